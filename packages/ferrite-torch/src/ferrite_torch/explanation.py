"""What became of a model: its graphs, their kernels and library calls, and why something did not compile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ferrite_torch import torch_private
from ferrite_torch.backend import ferrite
from ferrite_torch.statistics import CompiledGraph, compiled_graphs, statistics

OTHERWISE = "otherwise"


@dataclass(frozen=True, slots=True)
class KernelLine:
    """One kernel of a graph.

    Its name and family, how often a call launches it, and the torch ops (with source lines) it computes. Where a launch
    chooses among kernels by the sizes of the call, ``condition`` says when it takes this one: ``otherwise`` marks the
    one that is left.
    """

    name: str
    family: str
    launches: int
    origin: tuple[str, ...]
    condition: str = ""

    def __str__(self) -> str:
        times = f" x{self.launches}" if self.launches > 1 else ""
        when = f"if {self.condition}: " if self.condition not in ("", OTHERWISE) else ""
        when = f"{OTHERWISE}: " if self.condition == OTHERWISE else when
        return f"kernel {self.name}{times} [{self.family}]: {when}{', '.join(self.origin)}"


@dataclass(frozen=True, slots=True)
class GraphExplanation:
    """One compiled graph: its kind, kernels, library calls ``(op, reason, count)`` and compile seconds by phase."""

    kind: str
    kernels: tuple[KernelLine, ...]
    externs: tuple[tuple[str, str, int], ...]
    seconds: Mapping[str, float]

    def __str__(self) -> str:
        launches = sum(kernel.launches for kernel in self.kernels if kernel.condition in ("", OTHERWISE))
        calls = sum(count for _, _, count in self.externs)
        lines = [f"{self.kind} graph: {launches} launches of {len(self.kernels)} kernels, {calls} library calls"]
        lines += [f"  {kernel}" for kernel in self.kernels]
        lines += [f"  library {op}{f' x{count}' if count > 1 else ''}: {reason}" for op, reason, count in self.externs]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What `explain` found.

    Compiled graphs, reasons of graphs that run eagerly, reasons of graph breaks, and what needed the value of a
    symbolic size, which is fixed then.
    """

    graphs: tuple[GraphExplanation, ...]
    fallbacks: tuple[str, ...]
    breaks: tuple[str, ...]
    fixed: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [str(graph) for graph in self.graphs]
        parts += [f"runs eagerly: {reason}" for reason in self.fallbacks]
        parts += [f"graph break: {reason}" for reason in self.breaks]
        parts += [f"a size is fixed: {reason}" for reason in self.fixed]
        return "\n".join(parts) or "nothing was compiled"


def explain(model: Callable[..., Any], *inputs: Any, **keywords: Any) -> Explanation:
    """Returns what becomes of a model (or function) on these inputs.

    It is compiled anew and called once, and once more to find its graph breaks.
    """
    before = statistics()
    known = {id(record) for record in compiled_graphs()}
    torch.compiler.reset()
    torch.compile(model, backend=ferrite)(*inputs, **keywords)
    records = [record for record in compiled_graphs() if id(record) not in known]
    after = statistics()
    torch.compiler.reset()
    report = torch_private.explain_graph_breaks(model, *inputs, **keywords)
    torch.compiler.reset()
    return Explanation(
        tuple(map(explain_graph, records)),
        _risen(before["fallbacks"], after["fallbacks"]),
        tuple(str(reason.reason) for reason in report.break_reasons),
        _risen(before["specialised"], after["specialised"]),
    )


def _risen(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[str, ...]:
    """Returns the reasons that were counted since then."""
    return tuple(reason for reason, count in sorted(after.items()) if count > before.get(reason, 0))


def explain_graph(record: CompiledGraph) -> GraphExplanation:
    """Returns the kernels and library calls of one compiled graph."""
    launches: Counter[str] = Counter()
    conditions: dict[str, dict[str, None]] = {}
    for step in record.program["steps"]:
        if step["do"] == "launch":
            for kernel, condition in _choices(step):
                launches[kernel] += 1
                if condition:
                    conditions.setdefault(kernel, {})[condition] = None
    kernels = tuple(
        KernelLine(
            spec["name"],
            spec["family"],
            launches[spec["id"]],
            tuple(spec.get("origin", ())),
            "; ".join(conditions.get(spec["id"], ())),
        )
        for spec in record.program["kernels"]
    )
    externs = tuple((op, reason, count) for (op, reason), count in Counter(record.externs).items())
    return GraphExplanation(record.kind, kernels, externs, record.seconds)


def _choices(launch: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the kernels that a launch chooses among, with the conditions under which each is taken."""
    choices = [
        (other["kernel"], " and ".join(f"{_expression(expr)} <= {limit:,}" for expr, limit in other["when"]))
        for other in launch.get("alternatives", ())
    ]
    idle = " or ".join(condition for kernel, condition in choices if kernel is None)
    others = [(kernel, condition) for kernel, condition in choices if kernel is not None]
    for kernel, condition in others:
        yield kernel, f"{condition} and not ({idle})" if idle else condition
    rest = [OTHERWISE] if others else []
    yield launch["kernel"], ", ".join([*rest, f"not ({idle})"] if idle else rest)


_SIGNS = {"add": " + ", "sub": " - ", "mul": "*", "floordiv": "//", "mod": " % "}


def _expression(expr: Any) -> str:
    """Returns an expression of a program as people write it; they are as deep as users wrote them."""
    if not isinstance(expr, (list, tuple)):
        return str(expr)
    parts = [_expression(part) for part in expr[1:]]
    return f"({_SIGNS[expr[0]].join(parts)})" if expr[0] in _SIGNS else f"{expr[0]}({', '.join(parts)})"
