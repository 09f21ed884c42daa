"""Combines of `associative_scan`, which are graphs of ops, as functions of two states of the language.

Such a graph takes two slices of the operands, and is pointwise: element by element it says what two numbers combine to.
What it reads besides (captured tensors, say) is the same for all points along the scan. It goes along as a component of
the state that every combine hands on, a *passenger*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ferrite_ir.language import scalar as sc
from ferrite_ir.language.combine_functions import LEFT, RIGHT, CombineFunction, component
from ferrite_ir.language.index import Dim, Index
from ferrite_ir.language.scalar import Scalar, rewrite
from ferrite_torch.graphs.functions.scalar_graphs import ScalarGraph
from ferrite_torch.lowering.builder import Builder, Unlowered
from ferrite_torch.lowering.elementwise import packed_strides, refuse_opaque
from ferrite_torch.lowering.tensors import Point, Shape, Tensor, grid_dims, grid_point


def lower_associative_scan(
    b: Builder, combine: torch.fx.GraphModule, xs: Sequence[Tensor], beside: Sequence[Any]
) -> tuple[Tensor, ...]:
    """Returns the results of a scan along the first axis of some tensors.

    Args:
        b: the graph; its node is the call.
        combine: what makes a slice of two for each of the tensors.
        xs: what is scanned, of one shape.
        beside: further operands of the combine.

    Raises:
        Unlowered: the combine is not pointwise, or the operands are not of one shape.
    """
    refuse_opaque(*(x.dtype for x in xs))
    if any(x.shape != xs[0].shape for x in xs):
        raise Unlowered("its operands have different shapes")
    made = _Formula(b.device, xs, beside).read(combine)
    axes = {dim: Dim(f"d{axis + 1}", dim.size).index for axis, dim in enumerate(grid_dims(xs[0].shape[1:]))}

    def operands(point: Point) -> tuple[Scalar, ...]:
        scanned = [sc.cast(x.at(point), x.dtype.compute) for x in xs]
        return (*scanned, *(sc.cast(each.with_dims(axes), each.dtype.compute) for each in made.passengers))

    results = b.scan(made.function, xs[0].shape, 0, operands)
    fakes = b.fake
    return tuple(
        b.loop(x.shape, x.dtype, result.at, strides=packed_strides(fake))
        for x, result, fake in zip(xs, results, fakes, strict=False)
    )


@dataclass(frozen=True, slots=True)
class _Made:
    """A combine, and what its passengers are at a point of a slice: expressions over values of the outer graph."""

    function: CombineFunction
    passengers: tuple[Scalar, ...]


class _Formula:
    """Reads a combine: lowers its ops for whole slices, and takes from that what one element is."""

    def __init__(self, device: str, xs: Sequence[Tensor], beside: Sequence[Any]) -> None:
        self._graph = ScalarGraph(device, "combine")
        self._shape: Shape = xs[0].shape[1:]
        self._kinds = [x.dtype for x in xs]
        self._states: dict[str, tuple[str, int]] = {}
        self._given = [self._state(side, position) for side in (LEFT, RIGHT) for position in range(len(xs))]
        self._given += [self._graph.captured(value) for value in beside]
        self._passengers: dict[Scalar, int] = {}

    def _state(self, side: str, position: int) -> Tensor:
        given = self._graph.operand(f"{side}{position}", self._kinds[position], self._shape)
        self._states[given.value.name] = side, position
        return given

    def read(self, combine: torch.fx.GraphModule) -> _Made:
        """Returns what a combine is.

        Raises:
            Unlowered: it is not pointwise.
        """
        outputs = self._graph.results(combine, self._given)
        point = grid_point(self._shape)
        elements: list[Scalar] = []
        for output, kind in zip(outputs, self._kinds, strict=True):
            if not isinstance(output, Tensor) or output.shape != self._shape or output.dtype is not kind:
                raise Unlowered(f"its combine gives {output}, which is no slice of what is scanned")
            elements.append(sc.cast(self._of_states(self._graph.element(output, point)), kind.compute))
        riders = tuple(self._passengers)
        moved = (
            component(RIGHT, len(self._kinds) + position, rider.dtype.compute)
            for rider, position in self._passengers.items()
        )
        function = CombineFunction((*elements, *moved))
        problem = function.problem()
        if problem is not None:
            raise Unlowered(problem)
        return _Made(function, tuple(map(self._graph.outer, riders)))

    def _of_states(self, element: Scalar) -> Scalar:
        """Returns an element in terms of two states: what else it is made of becomes a passenger."""
        return rewrite(element, self._leaf, {})

    def _leaf(self, node: Scalar) -> Scalar:
        if node.op == "const":
            return node
        if any(load.source in self._states for part in node.below for load in part.loads):
            raise Unlowered("its combine is not pointwise: it reads where its operands say")
        if node.op == "load" and node.source in self._states:
            if not _is_here(node.indices, self._shape):
                raise Unlowered("its combine is not pointwise: it reads other elements of its operands")
            side, position = self._states[node.source]
            return sc.cast(component(side, position, node.dtype.compute), node.dtype)
        position = self._passengers.setdefault(node, len(self._passengers))
        return sc.cast(component(LEFT, len(self._kinds) + position, node.dtype.compute), node.dtype)


def _is_here(indices: Sequence[Index], shape: Shape) -> bool:
    """Returns whether indices are the general point of a shape; along extents of 1 there is only one place."""
    point = grid_point(shape)
    return all(
        size == 1 or index is own or index == own for index, own, size in zip(indices, point, shape, strict=True)
    )
