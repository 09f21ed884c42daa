"""Graphs of ops that say, element by element, what numbers become: read as expressions of the language.

Torch hands such functions (the combine of a scan, what a user does to a score of attention) to a compiler as graphs of
ops on tensors. Their ops are lowered by the table that every op has, in a graph of its own; of what that gives, an
element is taken, in terms of elements of what the graph is given.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import F64, DType
from ferrite_ir.language.graph import Loop, row_major
from ferrite_ir.language.scalar import Scalar, replace_loads
from ferrite_ir.language.sizes import Size
from ferrite_torch.devices.dtypes import dtype_of
from ferrite_torch.diagnostics.origins import origins_of
from ferrite_torch.lowering import LOWERINGS
from ferrite_torch.lowering.builder import Builder, Unlowered
from ferrite_torch.lowering.elementwise import refuse_opaque
from ferrite_torch.lowering.tensors import Point, Shape, Tensor
from ferrite_torch.sizes.specialisation import NeedsNumber
from ferrite_torch.sizes.symbolic_scalars import scalar_of
from ferrite_torch.torch_private.fake_tensors import is_fake, number_in
from ferrite_torch.torch_private.operators import READS, Overload
from ferrite_torch.torch_private.symbolic_shapes import symbolic_value

DETACHED = "aten.detach_.default"
"""What torch says of a constant that it has just made: it changes no number."""
SCATTERED = "flex_lib.zeros_and_scatter.default"
"""What torch says of the gradient of a tensor of which a function reads an element: zeros, but for this one."""


@dataclass(frozen=True, slots=True)
class Scattered:
    """A tensor of zeros, but for numbers that are added at places of it.

    Attributes:
        shape: of the tensor.
        parts: of each number the places along all axes, and the number.
    """

    shape: Shape
    parts: tuple[tuple[tuple[Tensor, ...], Tensor], ...]

    @classmethod
    def of(cls, shape: Sequence[Size], places: Sequence[Tensor], added: Tensor | Scattered) -> Scattered:
        """Returns zeros with a number, or with what is such a tensor, added at places along the first axes."""
        parts = added.parts if isinstance(added, Scattered) else (((), added),)
        return cls(tuple(shape), tuple(((*places, *rest), number) for rest, number in parts))

    def __add__(self, other: Scattered) -> Scattered:
        return Scattered(self.shape, (*self.parts, *other.parts))


class ScalarGraph:
    """Reads one graph of ops.

    Args:
        device: of the graph that it stands in.
        what: what to call it in messages, as in "its combine".
    """

    def __init__(self, device: str, what: str) -> None:
        self._scratch = Builder(device)
        self._what = what
        self._names: dict[str, str] = {}
        self._made: dict[str, Loop] = {}
        self._floats: dict[str, Scalar] = {}

    def operand(self, name: str, dtype: DType, shape: Shape) -> Tensor:
        """Returns a tensor to hand to the graph; elements of it are loads of its value."""
        return self._scratch.input(name, dtype, shape, row_major(shape))

    def captured(self, value: Any) -> Any:
        """Returns a value of the outer graph as the graph is handed it: a tensor under a name that no value has."""
        if not isinstance(value, Tensor):
            return value
        name = f"%{len(self._names)}"
        self._names[name] = value.value.name
        return replace(value, value=replace(value.value, name=name))

    def outer(self, root: Scalar) -> Scalar:
        """Returns an expression with what the graph has captured under its names in the outer graph."""

        def renamed(load: Scalar) -> Scalar | None:
            name = self._names.get(load.source)
            return None if name is None else sc.load(name, load.indices, load.dtype)

        return replace_loads(root, renamed)

    def results(self, graph: torch.fx.GraphModule, given: Sequence[Any]) -> Sequence[Any]:
        """Returns what the graph gives: tensors of its own, of which `element` tells what they are made of.

        Raises:
            Unlowered: an op of it is not compiled, or not pointwise.
        """
        found = self._lowered(graph, given)
        for definition in self._scratch.definitions:
            if not isinstance(definition, Loop):
                raise Unlowered(f"its {self._what} is not pointwise")
            bodies = tuple(replace_loads(body, self._inlined) for body in definition.bodies)
            for result, body in zip(definition.results, bodies, strict=True):
                self._made[result.name] = replace(definition, results=(result,), bodies=(body,))
        return found

    def element(self, result: Tensor, point: Point) -> Scalar:
        """Returns the element of a result at a point, in terms of elements of what the graph was given."""
        return replace_loads(result.at(point), self._inlined)

    def _inlined(self, load: Scalar) -> Scalar | None:
        loop = self._made.get(load.source)
        if loop is None:
            return None
        return loop.bodies[0].with_dims(dict(zip(loop.dims, load.indices, strict=True)))

    def _lowered(self, graph: torch.fx.GraphModule, operands: Sequence[Any]) -> Sequence[Any]:
        known: dict[torch.fx.Node, Any] = {}
        given = iter(operands)
        for node in graph.graph.nodes:
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
                case "get_attr":
                    self._scratch.begin(node, origins_of(node))
                    known[node] = self._constant(operator.attrgetter(str(node.target))(graph))
                case _:
                    raise Unlowered(f"its {self._what} holds {node.name}, which is no op")
        raise Unlowered(f"its {self._what} returns nothing")

    def _constant(self, value: Any) -> Tensor:
        """Returns a number that the graph holds as a tensor; the keys of stored graphs have it, too."""
        if not isinstance(value, torch.Tensor) or value.numel() != 1 or is_fake(value):
            raise Unlowered(f"its {self._what} holds a tensor of its own")
        kind, number = dtype_of(value.dtype), number_in(value)
        refuse_opaque(kind)
        return self._scratch.loop(tuple(value.shape), kind, lambda _: sc.const(number, kind))

    def _called(self, node: torch.fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if str(node.target) == DETACHED:
            return args[0]
        if str(node.target) == SCATTERED:
            return Scattered.of(*args)
        if any(isinstance(arg, Scattered) for arg in args):
            return self._of_scattered(node, args)
        fake = node.meta.get("val")
        if isinstance(fake, torch.SymFloat):
            return self._float(node, args, fake)
        lowering = LOWERINGS.get(str(node.target)) if isinstance(node.target, Overload) else None
        if lowering is None:
            raise Unlowered(f"its {self._what} calls {node.target}, which is not compiled")
        self._scratch.begin(node, origins_of(node))
        return lowering(self._scratch, *args, **kwargs)

    def _of_scattered(self, node: torch.fx.Node, args: Sequence[Any]) -> Scattered:
        """Returns what an op makes of gradients that are zero but for some places; they are rounded once added up.

        Raises:
            Unlowered: something else than one of these, or their sum.
        """
        if str(node.target) == "aten.add.Tensor" and all(isinstance(arg, Scattered) for arg in args):
            total: Scattered = args[0] + args[1]
            return total
        if str(node.target) == "aten._to_copy.default":
            found: Scattered = args[0]
            return found
        raise Unlowered(f"its {self._what} calls {node.target} on the gradient of a tensor that it has captured")

    def _float(self, node: torch.fx.Node, args: Sequence[Any], fake: torch.SymFloat) -> Scalar:
        """Returns a float: one that is no constant to dynamo, which captures it as a tensor, or what is made of such.

        Raises:
            Unlowered: the language does not have what makes it.
        """
        if str(node.target) == READS:
            number = sc.cast(args[0].at(()), F64)
            expression, _ = symbolic_value(fake)
            self._floats[str(expression)] = number
            return number
        try:
            return scalar_of(fake, self._floats)
        except NeedsNumber as need:
            raise Unlowered(f"its {self._what} computes {fake}: {need.reason}") from need
