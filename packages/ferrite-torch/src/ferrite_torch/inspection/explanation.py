"""What became of a model: its graphs, their kernels and extern calls, and why something did not compile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from textwrap import indent
from typing import Any

import torch

from ferrite_runtime.process.option_ranges import FUNCTION, MAYBE_BOOL
from ferrite_scheduler import Boundary, Schedule, boundaries
from ferrite_scheduler import explain as explain_pair
from ferrite_scheduler.model.schedule import CallGraph, Launch
from ferrite_torch.backend import ferrite
from ferrite_torch.diagnostics.call_checks import check_arguments, check_call
from ferrite_torch.diagnostics.origins import absolute
from ferrite_torch.diagnostics.statistics import GraphRecord, Ledger, all_steps, observed
from ferrite_torch.inspection.graph_calls import call_text
from ferrite_torch.inspection.launch_conditions import predicate_text
from ferrite_torch.inspection.untouched import tensors_in, untouched
from ferrite_torch.options import parse_options
from ferrite_torch.torch_private.dynamo import innermost
from ferrite_torch.torch_private.dynamo_state import leaving_dynamo_alone, uncompiled

OTHERWISE = "otherwise"
BESIDE = (
    "graphs run op by op while they are compiled: ferrite_torch.statistics()['background'] counts those that are "
    "waiting, and those that are ready"
)
"""What is noted where calls do not wait for compilations."""


@dataclass(frozen=True, slots=True)
class KernelLine:
    """One kernel of a graph.

    Its name and form, how often a call launches it, and the torch ops (with source lines) it computes. Where a launch
    chooses among kernels by the sizes of the call, ``condition`` says when it takes this one: ``otherwise`` marks the
    one that is left, followed by when there is a launch at all, where that depends on sizes too.
    """

    name: str
    form: str
    launches: int
    origin: tuple[str, ...]
    condition: str = ""

    def __str__(self) -> str:
        times = f" x{self.launches}" if self.launches > 1 else ""
        when = self.condition if self.condition.startswith(OTHERWISE) else f"if {self.condition}"
        when = f"{when}: " if self.condition else ""
        return f"kernel {self.name}{times} [{self.form}]: {when}{', '.join(self.origin)}"


@dataclass(frozen=True, slots=True)
class GraphExplanation:
    """One compiled graph.

    Attributes:
        kind: ``forward``, ``backward`` or ``inference``.
        kernels: its kernels.
        externs: its extern calls, as ``(op, reason, count)``.
        seconds: compile seconds by phase.
        launches: those of a call, at most: one may not take place at all, and then has no kernel without a condition.
            Those of a graph that is called count once.
        calls: its choices, loops and calls of graphs, with the op and its line, and how many there are of each.
        boundaries: where kernels end: the rule that kept two apart, its numbers, and both source lines.
        schedule: the schedule, with every decision; `why` asks it about two values.
        uncaptured: what is in no CUDA graph, where these are asked for, as ``(op, reason)``.
    """

    kind: str
    kernels: tuple[KernelLine, ...]
    externs: tuple[tuple[str, str, int], ...]
    seconds: Mapping[str, float]
    launches: int = 0
    boundaries: tuple[Boundary, ...] = ()
    schedule: Schedule | None = field(default=None, repr=False, compare=False)
    calls: tuple[tuple[str, int], ...] = ()
    uncaptured: tuple[tuple[str, str], ...] = ()

    def why(self, first: str, second: str) -> str:
        """Returns why two values of the schedule's graph are, or are not, made by one kernel.

        Raises:
            KeyError: the graph has no such value, or it is an input.
        """
        if self.schedule is None:
            raise KeyError(f"the schedule of {first} and {second} was not kept; `explain` keeps it")
        return explain_pair(self.schedule, first, second)

    def __str__(self) -> str:
        always = sum(kernel.launches for kernel in self.kernels if kernel.condition in ("", OTHERWISE))
        launches = f"{'' if always == self.launches else 'at most '}{self.launches} launches"
        calls = sum(count for _, _, count in self.externs)
        lines = [f"{self.kind} graph: {launches} of {len(self.kernels)} kernels, {calls} extern calls"]
        lines += [f"  {kernel}" for kernel in self.kernels]
        lines += [f"  library {op}{f' x{count}' if count > 1 else ''}: {reason}" for op, reason, count in self.externs]
        lines += [f"  {text}{f' x{count}' if count > 1 else ''}" for text, count in self.calls]
        lines += [f"  in no CUDA graph: {op}: {reason}" for op, reason in self.uncaptured]
        lines += [f"  choice {choice}" for choice in (self.schedule.choices if self.schedule else ())]
        lines += [indent(str(boundary), "  ") for boundary in self.boundaries]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """A place where the captured graph ends: its source line as ``path:line``, and dynamo's reason, hints included."""

    location: str
    reason: str

    def __str__(self) -> str:
        return f"{self.location}: {self.reason}" if self.location else self.reason


@dataclass(frozen=True, slots=True)
class Explanation:
    """What `explain` found.

    Attributes:
        graphs: compiled graphs, those of the backward included.
        fallbacks: reasons of graphs that run eagerly.
        breaks: graph breaks.
        fixed: what needed the value of a symbolic size, which is fixed then.
        losses: how losses of linear layers with large logits are computed: in chunks of rows, or why not.
        notes: what could not be explained or put back, and that calls do not wait for compilations.
    """

    graphs: tuple[GraphExplanation, ...]
    fallbacks: tuple[str, ...]
    breaks: tuple[GraphBreak, ...]
    fixed: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [str(graph) for graph in self.graphs]
        parts += [f"runs eagerly: {reason}" for reason in self.fallbacks]
        parts += [f"graph break: {reason}" for reason in self.breaks]
        parts += [f"a size is fixed: {reason}" for reason in self.fixed]
        parts += self.losses
        parts += self.notes
        return "\n".join(parts) or "nothing was compiled"


def explain(
    model: Callable[..., Any],
    *inputs: Any,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    **keywords: Any,
) -> Explanation:
    """Returns what becomes of a model (or function) on these inputs, compiled with this mode and these options.

    The model is called once, its graphs op by op: no kernel is compiled or run. Where a result wants gradients, the
    backward is explained, too. What the model holds, what the code of its methods names, and its arguments are as they
    were afterwards: tensors, gradients, attributes, lists, dicts, sets, globals, arrays, the states of random number
    generators, and so are `statistics` and what was compiled before. What leaves the process is done (printing, files),
    and iterators, objects of the standard library and of C extensions keep what the call did to them; ``notes`` says so
    where an iterator moved. A keyword of the model's own that is called ``mode``, ``options`` or ``dynamic`` has to be
    bound beforehand (`functools.partial`).

    Raises:
        OptionError: an unknown mode or option, or inputs that the model does not take.
    """
    check_arguments("explain", {"model": FUNCTION, "dynamic": MAYBE_BOOL}, model=model, dynamic=dynamic)
    chosen = parse_options(mode, options)
    model = uncompiled(model)
    check_call(model, inputs, keywords)
    compiler = Observing(mode, options)
    notes = [] if chosen.budget_s is None else [BESIDE]
    with (
        untouched(model, (inputs, keywords)) as (saved, state),
        leaving_dynamo_alone(compiler.is_called_by) as breaks,
    ):
        compiler.before_run = saved.save_inputs
        results = torch.compile(model, backend=compiler, dynamic=dynamic)(*inputs, **keywords)
        try:
            _differentiate(results)
        except Exception as error:  # noqa: BLE001  # whatever it is, the forward is explained
            notes.append(f"the backward is not explained: {type(error).__name__}: {error}")
        del results
        notes += dict.fromkeys(state.problems())
    ledger = compiler.ledger
    return Explanation(
        tuple(map(explain_graph, ledger.programs)),
        tuple(sorted(ledger.fallbacks)),
        tuple(dict.fromkeys(_graph_break(reason, frames) for reason, frames in breaks.found)),
        tuple(f"{where}: {reason}" for where, reason in sorted(ledger.specialised)),
        tuple(sorted(ledger.losses)),
        tuple(notes),
    )


class Observing:
    """The backend with a mode and options, which writes down what it does and compiles no kernels."""

    def __init__(self, mode: str | None, options: Mapping[str, Any] | None) -> None:
        self.mode, self.options = mode, options
        self.ledger = Ledger()
        self.before_run: Callable[[torch.fx.GraphModule, Sequence[Any]], None] = lambda module, inputs: None

    def __call__(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Returns a graph that is compiled as far as its kernels' texts, and runs op by op."""
        captured = copy(module)  # compiling rewrites it
        captured.graph = deepcopy(module.graph)
        with observed(self.ledger):
            call = ferrite(module, inputs, mode=self.mode, options=self.options)

        def run(*arguments: Any) -> Any:
            self.before_run(captured, arguments)
            return call(*arguments)

        return run

    def is_called_by(self, compiler: Any) -> bool:
        """Tells whether a function that dynamo calls to compile is this one."""
        return innermost(compiler) is self


def _differentiate(results: Any) -> None:
    """Computes the gradients that results have, for the sake of the graphs; they are added to nothing."""
    wanted = [each for each in tensors_in(results) if each.requires_grad and each.grad_fn is not None]
    leaves = _leaves(wanted)
    if wanted and leaves:
        torch.autograd.grad(wanted, leaves, [torch.ones_like(each) for each in wanted], allow_unused=True)


def _leaves(results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the tensors that results were computed from and that collect gradients."""
    pending: list[Any] = [each.grad_fn for each in results]
    seen: set[Any] = set()
    found: list[torch.Tensor] = []
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        pending += [before for before, _ in node.next_functions]
    return found


def _graph_break(reason: str, frames: Sequence[Any]) -> GraphBreak:
    if not frames:
        return GraphBreak("", reason)
    return GraphBreak(f"{absolute(frames[-1].filename)}:{frames[-1].lineno}", reason)


def explain_graph(record: GraphRecord) -> GraphExplanation:
    """Returns the kernels, extern calls and boundaries of one compiled graph."""
    launches: Counter[str] = Counter()
    steps = [step for step in all_steps(record.program) if step["do"] == "launch"]
    conditions: dict[str, dict[str, None]] = {}
    for step in steps:
        for kernel, condition in _choices(step, record.names):
            launches[kernel] += 1
            if condition:
                conditions.setdefault(kernel, {})[condition] = None
    descriptions = _descriptions(record.schedule)
    kernels = tuple(
        KernelLine(
            spec["name"],
            spec["form"],
            launches[spec["id"]],
            tuple(descriptions.get(origin, origin) for origin in spec.get("origin", ())),
            "; ".join(conditions.get(spec["id"], ())),
        )
        for spec in record.program["kernels"]
    )
    externs = tuple((op, reason, count) for (op, reason), count in Counter(record.externs).items())
    between = () if record.schedule is None else tuple(_named(boundaries(record.schedule), record))
    calls = _calls(record)
    return GraphExplanation(
        record.kind, kernels, externs, record.seconds, len(steps), between, record.schedule, calls, record.uncaptured
    )


def _calls(record: GraphRecord) -> tuple[tuple[str, int], ...]:
    """Returns the control flow of a graph and of those that it calls."""
    plans = () if record.schedule is None else (record.schedule, *record.schedule.callees)
    launches = {plan.graph.name: sum(isinstance(step, Launch) for step in plan.steps) for plan in plans}
    steps = (step for plan in plans for step in plan.steps if isinstance(step, CallGraph))
    return tuple(Counter(call_text(step.definition, launches) for step in steps).items())


def _named(found: Iterable[Boundary], record: GraphRecord) -> Iterator[Boundary]:
    """Yields boundaries with kernels called as in the program, where each launch of the schedule is one of its own."""
    ids = [step["kernel"] for step in record.program["steps"] if step["do"] == "launch"]
    numbers = [step.kernel for step in record.schedule.steps if isinstance(step, Launch)]
    specs = {spec["id"]: spec["name"] for spec in record.program["kernels"]}
    names = {number: specs[made] for number, made in zip(numbers, ids, strict=True)} if len(ids) == len(numbers) else {}
    for boundary in found:
        first, second = (
            side if side.kernel is None else replace(side, maker=names.get(side.kernel, side.maker))
            for side in (boundary.first, boundary.second)
        )
        yield replace(boundary, first=first, second=second)


def _descriptions(schedule: Schedule | None) -> dict[str, str]:
    """Returns for each origin, as it is written down with kernels, what it is with its whole path."""
    graphs = () if schedule is None else (schedule.graph, *(callee.graph for callee in schedule.callees))
    definitions = (definition for graph in graphs for definition in graph.definitions)
    return {str(origin): origin.description for definition in definitions for origin in definition.origins}


def _choices(launch: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields the kernels that a launch chooses among, with the conditions under which each is taken."""
    alternatives = launch.get("alternatives", ())
    idle = [other["when"] for other in alternatives if other["kernel"] is None]
    awake = " and ".join(_negated(when, names) for when in idle)
    others = [other for other in alternatives if other["kernel"] is not None]
    for other in others:
        condition = " and ".join(predicate_text(expr, limit, names) for expr, limit in other["when"])
        yield other["kernel"], f"{awake} and {condition}" if awake else condition
    rest = OTHERWISE if others else ""
    yield launch["kernel"], f"{rest} if {awake}" if rest and awake else rest or awake


def _negated(when: Sequence[tuple[Any, int]], names: Mapping[str, str]) -> str:
    parts = [predicate_text(expr, limit, names, holds=False) for expr, limit in when]
    return parts[0] if len(parts) == 1 else f"({' or '.join(parts)})"
