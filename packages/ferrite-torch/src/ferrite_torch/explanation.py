"""What became of a model: its graphs, their kernels and library calls, and why something did not compile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ferrite_torch import torch_private
from ferrite_torch.backend import ferrite
from ferrite_torch.statistics import CompiledGraph, compiled_graphs, statistics


@dataclass(frozen=True, slots=True)
class KernelLine:
    """One kernel of a graph.

    Its name and family, how often a call launches it, and the torch ops (with source lines) it computes.
    """

    name: str
    family: str
    launches: int
    origin: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GraphExplanation:
    """One compiled graph: its kind, kernels, library calls ``(op, reason, count)`` and compile seconds by phase."""

    kind: str
    kernels: tuple[KernelLine, ...]
    externs: tuple[tuple[str, str, int], ...]
    seconds: Mapping[str, float]

    def __str__(self) -> str:
        launches = sum(kernel.launches for kernel in self.kernels)
        calls = sum(count for _, _, count in self.externs)
        lines = [f"{self.kind} graph: {launches} launches of {len(self.kernels)} kernels, {calls} library calls"]
        for kernel in self.kernels:
            times = f" x{kernel.launches}" if kernel.launches > 1 else ""
            lines.append(f"  kernel {kernel.name}{times} [{kernel.family}]: {', '.join(kernel.origin)}")
        lines += [f"  library {op}{f' x{count}' if count > 1 else ''}: {reason}" for op, reason, count in self.externs]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What `explain` found: compiled graphs, reasons of graphs that run eagerly, and reasons of graph breaks."""

    graphs: tuple[GraphExplanation, ...]
    fallbacks: tuple[str, ...]
    breaks: tuple[str, ...]

    def __str__(self) -> str:
        parts = [str(graph) for graph in self.graphs]
        parts += [f"runs eagerly: {reason}" for reason in self.fallbacks]
        parts += [f"graph break: {reason}" for reason in self.breaks]
        return "\n".join(parts) or "nothing was compiled"


def explain(model: Callable[..., Any], *inputs: Any, **keywords: Any) -> Explanation:
    """Returns what becomes of a model (or function) on these inputs.

    It is compiled anew and called once, and once more to find its graph breaks.
    """
    before = statistics()["fallbacks"]
    known = {id(record) for record in compiled_graphs()}
    torch.compiler.reset()
    torch.compile(model, backend=ferrite)(*inputs, **keywords)
    records = [record for record in compiled_graphs() if id(record) not in known]
    after = Counter(statistics()["fallbacks"])
    after.subtract(before)
    torch.compiler.reset()
    report = torch_private.explain_graph_breaks(model, *inputs, **keywords)
    torch.compiler.reset()
    return Explanation(
        tuple(map(explain_graph, records)),
        tuple(reason for reason, count in sorted(after.items()) if count > 0),
        tuple(str(reason.reason) for reason in report.break_reasons),
    )


def explain_graph(record: CompiledGraph) -> GraphExplanation:
    """Returns the kernels and library calls of one compiled graph."""
    launches = Counter(step["kernel"] for step in record.program["steps"] if step["do"] == "launch")
    kernels = tuple(
        KernelLine(spec["name"], spec["family"], launches[spec["id"]], tuple(spec.get("origin", ())))
        for spec in record.program["kernels"]
    )
    externs = tuple((op, reason, count) for (op, reason), count in Counter(record.externs).items())
    return GraphExplanation(record.kind, kernels, externs, record.seconds)
