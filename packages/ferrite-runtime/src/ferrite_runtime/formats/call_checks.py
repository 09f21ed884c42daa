"""Checks that steps call graphs as these want to be called: with what they take, for what they return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ferrite_runtime.errors import SpecError
from ferrite_runtime.formats.call_steps import CallStep, For, While, graphs_called
from ferrite_runtime.formats.layouts import Layout
from ferrite_runtime.formats.steps import Input, Output


@dataclass(frozen=True, slots=True)
class Signature:
    """What a graph takes and returns."""

    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]

    @property
    def tensors(self) -> tuple[Layout, ...]:
        """The layouts of the tensors among the inputs, which come first."""
        return tuple(value.layout for value in self.inputs if value.layout is not None)

    @property
    def integers(self) -> int:
        """The number of the integers behind the tensors."""
        return len(self.inputs) - len(self.tensors)


def check_signature(inputs: Sequence[Input], path: str) -> None:
    """Raises `SpecError` unless a graph takes tensors, then integers."""
    kinds = [value.kind if value.dtype in (None, "i64") else str(value.dtype) for value in inputs]
    if kinds != sorted(kinds, key=lambda kind: kind != "tensor") or not set(kinds) <= {"tensor", "scalar"}:
        raise SpecError(f"{path}inputs", "a graph that steps call takes tensors, then integers (i64)")


def check_call(step: CallStep, layouts: Sequence[Layout | None], graphs: Mapping[str, Signature], path: str) -> None:
    """Raises `SpecError` unless a step fits the graphs that it calls; ``layouts`` are those of its args, if known."""
    for field, name in graphs_called(step).items():
        if name not in graphs:
            raise SpecError(f"{path}.{field}", f"no graph {name!r} stands before the steps that call it")
        is_condition = isinstance(step, While) and field == "condition"
        has_buffers = isinstance(step, While | For) and step.buffers and not is_condition
        buffers = [None] * len(step.results) if has_buffers else []
        given = _rows(step, layouts, path) if isinstance(step, For) else layouts
        _check_given(step, [*given, *buffers], graphs[name], path, name)
        if is_condition and len(graphs[name].outputs) != 1:
            raise SpecError(f"{path}.{field}", f"{name!r} returns {len(graphs[name].outputs)} values, not a condition")
        if not is_condition:
            _check_results(step, graphs[name], path, name)


def _rows(step: For, layouts: Sequence[Layout | None], path: str) -> list[Layout | None]:
    """Returns the layouts of what each iteration of a loop is given."""
    given = list(layouts)
    for position in range(step.carried, step.carried + step.rows):
        layout = given[position]
        if layout is not None and not layout.shape:
            raise SpecError(f"{path}.args[{position}]", "what a loop takes rows of has a first axis")
        given[position] = layout and Layout(layout.dtype, layout.shape[1:], layout.strides[1:])
    return given


def _check_given(step: CallStep, layouts: Sequence[Layout | None], graph: Signature, path: str, name: str) -> None:
    if len(layouts) != len(graph.tensors) or len(step.sizes) != graph.integers:
        wanted = f"{len(graph.tensors)} tensors and {graph.integers} integers"
        raise SpecError(
            f"{path}.args", f"{len(layouts)} and {len(step.sizes)} are given to {name!r}, which takes {wanted}"
        )
    for position, (given, wanted_layout) in enumerate(zip(layouts, graph.tensors, strict=True)):
        if given is not None and not _fits(given, wanted_layout):
            raise SpecError(f"{path}.args[{position}]", f"{name!r} takes a tensor that is laid out otherwise")


def _fits(given: Layout, wanted: Layout) -> bool:
    """Tells whether a tensor may be what a graph takes, as far as numbers tell."""
    if given.dtype != wanted.dtype or len(given.shape) != len(wanted.shape):
        return False
    pairs = list(zip(given.shape, wanted.shape, strict=True))
    if any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs):
        return False
    if given.is_empty or wanted.is_empty:
        return True
    strides = zip(given.strides, wanted.strides, given.shape, strict=True)
    return all(a == b or size == 1 for a, b, size in strides if isinstance(a, int) and isinstance(b, int))


def _check_results(step: CallStep, graph: Signature, path: str, name: str) -> None:
    numbers = len(step.binds) if isinstance(step, While) else 0
    if len(step.results) + numbers != len(graph.outputs):
        raise SpecError(f"{path}.results", f"{name!r} returns {len(graph.outputs)} values")
    split = len(step.results)
    are_tensors = all(output.value is not None for output in graph.outputs[:split])
    are_numbers = all(output.value is None and output.scalar is not None for output in graph.outputs[split:])
    if not are_tensors or not are_numbers:
        raise SpecError(f"{path}.results", f"{name!r} returns something else in some places: tensors, then integers")
    if isinstance(step, While) and (len(step.results) > len(step.args) or numbers > len(step.sizes)):
        raise SpecError(path, "the loop carries more than it is given")
