"""Combines of `associative_scan`, which are graphs of ops, as functions of two states of the language.

Such a graph takes two slices of the operands, and is pointwise: element by element it says what two numbers combine to.
What it reads besides (captured tensors, say) is the same for all points along the scan. It goes along as a component of
the state that every combine hands on, a *passenger*.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ferrite_ir.language import scalar as sc
from ferrite_ir.language.combine_functions import LEFT, RIGHT, CombineFunction, component
from ferrite_ir.language.graph import Loop, row_major
from ferrite_ir.language.index import Dim, Index
from ferrite_ir.language.scalar import Scalar, replace_loads, rewrite
from ferrite_torch.diagnostics.origins import origins_of
from ferrite_torch.lowering import LOWERINGS
from ferrite_torch.lowering.builder import Builder, Unlowered
from ferrite_torch.lowering.elementwise import packed_strides, refuse_opaque
from ferrite_torch.lowering.tensors import Point, Shape, Tensor, grid_dims, grid_point
from ferrite_torch.torch_private.operators import Overload


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
        self._scratch = Builder(device)
        self._shape: Shape = xs[0].shape[1:]
        self._kinds = [x.dtype for x in xs]
        self._states: dict[str, tuple[str, int]] = {}
        self._names: dict[str, str] = {}
        self._given = [self._state(side, place) for side in (LEFT, RIGHT) for place in range(len(xs))]
        self._given += [self._apart(value) if isinstance(value, Tensor) else value for value in beside]
        self._passengers: dict[Scalar, int] = {}

    def _state(self, side: str, place: int) -> Any:
        strides = row_major(self._shape)
        given = self._scratch.input(f"{side}{place}", self._kinds[place], self._shape, strides)
        self._states[given.value.name] = side, place
        return given

    def _apart(self, tensor: Tensor) -> Tensor:
        """Returns a tensor of the outer graph under a name that no value of a graph has."""
        name = f"%{len(self._names)}"
        self._names[name] = tensor.value.name
        return replace(tensor, value=replace(tensor.value, name=name))

    def read(self, combine: torch.fx.GraphModule) -> _Made:
        """Returns what a combine is.

        Raises:
            Unlowered: it is not pointwise.
        """
        outputs = self._lowered(combine)
        made = self._inlined()
        point = grid_point(self._shape)
        elements: list[Scalar] = []
        for output, kind in zip(outputs, self._kinds, strict=True):
            if not isinstance(output, Tensor) or output.shape != self._shape or output.dtype is not kind:
                raise Unlowered(f"its combine gives {output}, which is no slice of what is scanned")
            element = replace_loads(output.at(point), lambda load: _element(load, made))
            elements.append(sc.cast(self._of_states(element), kind.compute))
        riders = tuple(self._passengers)
        moved = (
            component(RIGHT, len(self._kinds) + place, rider.dtype.compute) for rider, place in self._passengers.items()
        )
        function = CombineFunction((*elements, *moved))
        problem = function.problem()
        if problem is not None:
            raise Unlowered(problem)
        return _Made(function, tuple(replace_loads(rider, self._outer) for rider in riders))

    def _lowered(self, combine: torch.fx.GraphModule) -> Sequence[Any]:
        """Returns the results of a combine of whole slices."""
        known: dict[torch.fx.Node, Any] = {}
        given = iter(self._given)
        for node in combine.graph.nodes:
            args, kwargs = (torch.fx.node.map_arg(each, known.__getitem__) for each in (node.args, node.kwargs))
            match node.op:
                case "placeholder":
                    known[node] = next(given)
                case "output":
                    found: Any = args[0]
                    return found if isinstance(found, (tuple, list)) else (found,)
                case "call_function" if node.target is operator.getitem:
                    known[node] = args[0][args[1]]
                case "call_function":
                    known[node] = self._called(node, args, kwargs)
                case _:
                    raise Unlowered(f"its combine holds {node.name}, which is no op")
        raise Unlowered("its combine returns nothing")

    def _called(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        lowering = LOWERINGS.get(str(node.target)) if isinstance(node.target, Overload) else None
        if lowering is None:
            raise Unlowered(f"its combine calls {node.target}, which is not compiled")
        self._scratch.begin(node, origins_of(node))
        return lowering(self._scratch, *args, **kwargs)

    def _inlined(self) -> dict[str, Loop]:
        """Returns the values of a combine by name, each in terms of its operands alone."""
        made: dict[str, Loop] = {}
        for definition in self._scratch.definitions:
            if not isinstance(definition, Loop):
                raise Unlowered("its combine is not pointwise")
            bodies = tuple(replace_loads(body, lambda load: _element(load, made)) for body in definition.bodies)
            for result, body in zip(definition.results, bodies, strict=True):
                made[result.name] = replace(definition, results=(result,), bodies=(body,))
        return made

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
            side, place = self._states[node.source]
            return sc.cast(component(side, place, node.dtype.compute), node.dtype)
        place = self._passengers.setdefault(node, len(self._passengers))
        return sc.cast(component(LEFT, len(self._kinds) + place, node.dtype.compute), node.dtype)

    def _outer(self, load: Scalar) -> Scalar:
        return sc.load(self._names[load.source], load.indices, load.dtype)


def _element(load: Scalar, made: Mapping[str, Loop]) -> Scalar | None:
    """Returns what an element of a value of a combine is made of; None of an operand's."""
    loop = made.get(load.source)
    if loop is None:
        return None
    return loop.bodies[0].with_dims(dict(zip(loop.dims, load.indices, strict=True)))


def _is_here(indices: Sequence[Index], shape: Shape) -> bool:
    """Returns whether indices are the general point of a shape; along extents of 1 there is only one place."""
    point = grid_point(shape)
    return all(
        size == 1 or index is own or index == own for index, own, size in zip(indices, point, shape, strict=True)
    )
