"""Checks graphs and modules against the numbered rules, and shows every problem in the listing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ferrite_ir.language import sizes
from ferrite_ir.language.calls import callees_of
from ferrite_ir.language.dtypes import BOOL
from ferrite_ir.language.graph import ControlFlow, For, Graph, Module, Output, TensorType, View, While, row_type
from ferrite_ir.text.printer import definition_text, graph_text, type_text

from .checks import check_graph
from .problems import RULES, Problem

__all__ = ["RULES", "Problem", "VerificationError", "listing", "require_valid", "verify"]


class VerificationError(ValueError):
    """A program breaks rules; the message is its listing with every problem under its line.

    Attributes:
        problems: all of them.
    """

    def __init__(self, program: Graph | Module, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = f"{len(problems)} problem{'s' * (len(problems) != 1)}"
        super().__init__(f"{count} in the program\n{listing(program, problems)}")


def verify(program: Graph | Module) -> tuple[Problem, ...]:
    """Returns every problem of a graph or module, in order of the text; empty if it is well-formed."""
    if isinstance(program, Graph):
        return tuple(check_graph(program))
    found = [problem for graph in program.graphs for problem in check_graph(graph)]
    return tuple(
        found
        + [problem for graph in program.graphs for problem in _check_calls(graph, program)]
        + _check_circles(program)
    )


def require_valid(program: Graph | Module) -> None:
    """Returns if a program is well-formed.

    Raises:
        VerificationError: it is not; the message shows every problem in the listing.
    """
    problems = verify(program)
    if problems:
        raise VerificationError(program, problems)


def listing(program: Graph | Module, problems: Sequence[Problem]) -> str:
    """Returns the text of a program with each problem under its line, a caret at the spot."""
    graphs = program.graphs if isinstance(program, Module) else (program,)
    return "\n\n".join(_graph_listing(graph, [p for p in problems if p.graph == graph.name]) for graph in graphs)


def _graph_listing(graph: Graph, problems: Sequence[Problem]) -> str:
    lines = graph_text(graph).split("\n")
    counts = [len(definition_text(definition, graph.values).split("\n")) for definition in graph.definitions]
    header = len(lines) - sum(counts) - 1
    spans = [(header + sum(counts[:i]), count) for i, count in enumerate(counts)]
    notes: dict[int, list[str]] = {}
    for problem in problems:
        start, count = (0, header) if problem.position is None else spans[problem.position]
        line, column = _find_spot(lines[start : start + count], problem.spot)
        notes.setdefault(start + line, []).append(f"{' ' * column}^ {problem.rule}: {problem.message}")
    return "\n".join(text for number, line in enumerate(lines) for text in (line, *notes.get(number, ())))


def _find_spot(lines: Sequence[str], spot: str) -> tuple[int, int]:
    """Returns the line and column at which a piece of text stands, the start of the first line if it is nowhere."""
    pattern = rf"\b{spot}\b" if spot.isidentifier() else re.escape(spot)
    for number, line in enumerate(lines):
        found = re.search(pattern, line) if spot else None
        if found is not None:
            return number, found.start()
    return 0, len(lines[0]) - len(lines[0].lstrip())


def _check_calls(graph: Graph, module: Module) -> Iterable[Problem]:
    known = {other.name: other for other in module.graphs}
    for position, definition in enumerate(graph.definitions):
        if not isinstance(definition, ControlFlow):
            continue
        for index, name in enumerate(callees_of(definition)):
            callee, is_condition = known.get(name), isinstance(definition, While) and index == 0
            if callee is None:
                message = f"the module has no graph @{name}; it has {', '.join('@' + other for other in known)}"
            else:
                problem = _signature_problem(graph, definition, callee, is_condition=is_condition)
                message = f"@{name}: {problem}" if problem else ""
            if message:
                yield Problem("V20", message, graph.name, position, f"@{name}")
        if isinstance(definition, While) and (problem := _carry_problem(graph, definition)):
            yield Problem("V20", problem, graph.name, position, "while")
        if isinstance(definition, For) and (problem := _row_problem(graph, definition)):
            yield Problem("V20", problem, graph.name, position, "for")


def _signature_problem(graph: Graph, call: ControlFlow, callee: Graph, *, is_condition: bool) -> str:
    """Returns what is wrong with a call of a graph, "" if nothing is."""
    if callee.mutations:
        return f"it changes its input {callee.mutations[0][0]}, which a called graph must not"
    args = [graph.values[name].type for name in call.args if name in graph.values]
    results = [value.type for value in call.results]
    if isinstance(call, For):
        if len(args) < call.carried + call.sliced or len(results) < call.carried:
            return ""
        rows = slice(call.carried, call.carried + call.sliced)
        args[rows] = map(row_type, args[rows])
        results[call.carried :] = map(row_type, results[call.carried :])
    if isinstance(call, While) and call.stacked:
        results = _rows(results)
    if problem := _difference("input", [value.type for value in callee.inputs], args):
        return problem
    if len(callee.sizes) != len(call.sizes):
        return f"{len(callee.sizes)} sizes, the call has {len(call.sizes)}"
    if is_condition:
        return "" if _is_condition(callee) else "it must give one bool, or an integer, to be a condition"
    numbers = len(call.binds) if isinstance(call, While) else 0
    tensors, integers = callee.outputs[: len(callee.outputs) - numbers], callee.outputs[len(callee.outputs) - numbers :]
    if problem := _difference("output", [_output_type(output) for output in tensors], results):
        return problem
    is_short = len(integers) != numbers or any(isinstance(output, View) or output is None for output in integers)
    return f"its last {numbers} outputs must be integers" if is_short else ""


def _output_type(output: Output) -> TensorType | None:
    return TensorType(output.dtype, output.shape, output.strides) if isinstance(output, View) else None


def _is_condition(graph: Graph) -> bool:
    if len(graph.outputs) != 1:
        return False
    (output,) = graph.outputs
    if isinstance(output, View):
        return output.dtype is BOOL and sizes.product(output.shape) == 1
    return isinstance(output, int | sizes.Symbolic)


def _rows(stacked: Iterable[TensorType]) -> list[TensorType]:
    """Returns the types of the rows of tensors; what has none stays what it is."""
    return [row_type(kind) if kind.shape else kind for kind in stacked]


def _carry_problem(graph: Graph, loop: While) -> str:
    """Returns what is wrong with what a loop carries: tensors that do not stay what they are, integers too many."""
    if len(loop.results) > len(loop.args) or len(loop.binds) > len(loop.sizes):
        return "it carries more than it is given"
    args = [graph.values[name].type for name in loop.args[: len(loop.results)] if name in graph.values]
    results = [value.type for value in loop.results]
    if loop.stacked and len({kind.shape[0] if kind.shape else None for kind in results} - {None}) != 1:
        return "what is stacked has the number of iterations as its first extent, one for all results"
    if len(args) < len(results):
        return ""
    problem = _difference("result", args, _rows(results) if loop.stacked else results)
    return f"what it carries must stay what it is: {problem}" if problem else ""


def _row_problem(graph: Graph, loop: For) -> str:
    """Returns what is wrong with what a loop over rows is given, carries and makes rows of."""
    if loop.carried < 0 or loop.sliced < 0 or loop.carried > len(loop.results):
        return "it carries more than it returns"
    if loop.carried + loop.sliced > len(loop.args):
        return "it carries, and takes rows of, more than it is given"
    types = [graph.values[name].type if name in graph.values else None for name in loop.args]
    carried = [kind for kind in types[: loop.carried] if kind is not None]
    results = [value.type for value in loop.results]
    if len(carried) == loop.carried and (problem := _difference("result", carried, results[: loop.carried])):
        return f"what it carries must stay what it is: {problem}"
    sliced = [kind for kind in types[loop.carried : loop.carried + loop.sliced] if kind is not None]
    for kind in (*sliced, *results[loop.carried :]):
        if not kind.shape:
            return "what has rows has a first axis"
        if sizes.is_static(kind.shape[0]) and sizes.is_static(loop.count) and kind.shape[0] != loop.count:
            return f"it has {sizes.text(loop.count)} iterations, and {sizes.text(kind.shape[0])} rows"
    return ""


def _difference(what: str, formal: Sequence[TensorType | None], actual: Sequence[TensorType]) -> str:
    if len(formal) != len(actual):
        return f"{len(formal)} {what}s, the call has {len(actual)}"
    for position, (declared, used) in enumerate(zip(formal, actual, strict=True)):
        if declared is not None and not _fits(declared, used):
            return f"{what} {position} is {type_text(declared)}, the call has {type_text(used)}"
    return ""


def _fits(declared: TensorType, used: TensorType) -> bool:
    """Returns whether types agree; a symbolic size of another graph may stand for any size."""
    if declared.dtype is not used.dtype or len(declared.shape) != len(used.shape):
        return False
    pairs = zip((*declared.shape, *declared.strides), (*used.shape, *used.strides), strict=True)
    return all(a == b or not (sizes.is_static(a) and sizes.is_static(b)) for a, b in pairs)


def _check_circles(module: Module) -> list[Problem]:
    calls = {graph.name: _callees(graph) for graph in module.graphs}
    problems = []
    for graph in module.graphs:
        for name, position in calls[graph.name]:
            if name == graph.name or graph.name in _reachable(name, calls):
                problems.append(
                    Problem("V21", f"@{graph.name} calls itself by way of @{name}", graph.name, position, f"@{name}")
                )
                break
    return problems


def _reachable(start: str, calls: dict[str, list[tuple[str, int]]]) -> set[str]:
    reached: set[str] = set()
    stack = [start]
    while stack:
        for callee, _ in calls.get(stack.pop(), ()):
            if callee not in reached:
                reached.add(callee)
                stack.append(callee)
    return reached


def _callees(graph: Graph) -> list[tuple[str, int]]:
    pairs = enumerate(graph.definitions)
    return [(name, position) for position, definition in pairs for name in callees_of(definition)]
