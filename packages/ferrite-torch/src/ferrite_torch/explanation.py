"""What became of a model: its graphs, their kernels and library calls, and why something did not compile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ferrite_torch.backend import ferrite
from ferrite_torch.launch_conditions import predicate_text
from ferrite_torch.statistics import CompiledGraph, compiled_graphs, statistics
from ferrite_torch.torch_private.dynamo import explain_graph_breaks

OTHERWISE = "otherwise"


@dataclass(frozen=True, slots=True)
class KernelLine:
    """One kernel of a graph.

    Its name and family, how often a call launches it, and the torch ops (with source lines) it computes. Where a launch
    chooses among kernels by the sizes of the call, ``condition`` says when it takes this one: ``otherwise`` marks the
    one that is left, followed by when there is a launch at all, where that depends on sizes too.
    """

    name: str
    family: str
    launches: int
    origin: tuple[str, ...]
    condition: str = ""

    def __str__(self) -> str:
        times = f" x{self.launches}" if self.launches > 1 else ""
        when = self.condition if self.condition.startswith(OTHERWISE) else f"if {self.condition}"
        when = f"{when}: " if self.condition else ""
        return f"kernel {self.name}{times} [{self.family}]: {when}{', '.join(self.origin)}"


@dataclass(frozen=True, slots=True)
class GraphExplanation:
    """One compiled graph: its kind, kernels, library calls ``(op, reason, count)`` and compile seconds by phase.

    ``launches`` counts those of a call, at most: one may not take place at all, and then has no kernel without a
    condition.
    """

    kind: str
    kernels: tuple[KernelLine, ...]
    externs: tuple[tuple[str, str, int], ...]
    seconds: Mapping[str, float]
    launches: int = 0

    def __str__(self) -> str:
        always = sum(kernel.launches for kernel in self.kernels if kernel.condition in ("", OTHERWISE))
        launches = f"{'' if always == self.launches else 'at most '}{self.launches} launches"
        calls = sum(count for _, _, count in self.externs)
        lines = [f"{self.kind} graph: {launches} of {len(self.kernels)} kernels, {calls} library calls"]
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
    report = explain_graph_breaks(model, *inputs, **keywords)
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
    steps = [step for step in record.program["steps"] if step["do"] == "launch"]
    conditions: dict[str, dict[str, None]] = {}
    for step in steps:
        for kernel, condition in _choices(step, record.names):
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
    return GraphExplanation(record.kind, kernels, externs, record.seconds, len(steps))


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
