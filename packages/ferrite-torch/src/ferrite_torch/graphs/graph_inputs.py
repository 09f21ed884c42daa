"""Arguments and constants of a module as inputs of its graph: which it takes, and in which order."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch

from ferrite_ir.language.graph import Graph
from ferrite_ir.language.sizes import Size, symbols_of
from ferrite_ir.text.printer import graph_symbols
from ferrite_torch.calls.layouts import Layouts
from ferrite_torch.devices.dtypes import dtype_of
from ferrite_torch.errors import Unsupported
from ferrite_torch.graphs.graph_numbers import fixed_float
from ferrite_torch.graphs.lifetimes import Lifetimes
from ferrite_torch.lowering.builder import Builder
from ferrite_torch.lowering.tensors import Tensor
from ferrite_torch.sizes.symbolic_sizes import size_of, sizes_of, steps_of
from ferrite_torch.torch_private.graph_positions import is_token_of

SizeArgument = tuple[int, str, Size]
"""An integer argument of a module: its position, its name and the size that it is."""


@dataclass(frozen=True, slots=True)
class Passed:
    """An argument that a module returns and uses for nothing else, such as the mesh of a distributed tensor."""

    position: int


class GraphInputs:
    """The inputs of one graph that is being lowered: constants first, then the arguments that it takes.

    Attributes:
        constants: the tensors that the module holds.
        selection: positions of the tensors among the arguments that the graph takes.
        arguments: number of arguments of the module, so far.
    """

    def __init__(self, module: torch.fx.GraphModule, builder: Builder, lifetimes: Lifetimes, layouts: Layouts) -> None:
        self._module, self._builder, self._lifetimes, self._layouts = module, builder, lifetimes, layouts
        self.constants: list[torch.Tensor] = []
        self.selection: list[int] = []
        self.arguments = 0
        self._constants_by_path: dict[str, Tensor] = {}
        self._sizes: list[SizeArgument] = []

    def argument(self, node: torch.fx.Node) -> Any:
        """Returns an argument of the module: a tensor, a size, a plain value, or None for what nobody reads.

        One of another kind is `Passed` if the module only returns it.

        Raises:
            Unsupported: the graph reads an argument of another kind.
        """
        position, self.arguments = self.arguments, self.arguments + 1
        fake = node.meta["val"]
        match fake:
            case torch.Tensor():
                return self._tensor_argument(node, fake, position)
            case torch.SymInt():
                size = size_of(fake)
                self._sizes.append((position, node.name, size))
                return size
            case torch.SymBool() | torch.SymFloat():
                return _fixed(node, fake) if node.users else None
            case None | bool() | int() | float() | str():
                return fake
        if not node.users:
            return None
        if all(user.op == "output" for user in node.users):
            return Passed(position)
        raise Unsupported(f"a graph with an input of type {type(fake).__name__}: {node.name}")

    def _tensor_argument(self, node: torch.fx.Node, fake: torch.Tensor, position: int) -> Tensor | None:
        if all(is_token_of(node, user) for user in node.users):
            return None
        self.selection.append(position)
        return self._new_input(node, fake, self._layouts.get(position))

    def _new_input(self, node: torch.fx.Node, fake: torch.Tensor, strides: tuple[int, ...] | None = None) -> Tensor:
        name = node.name
        if fake.layout != torch.strided:
            raise Unsupported(f"a graph with a tensor of layout {fake.layout}: {name}")
        if fake.is_neg():
            raise Unsupported(f"a graph with an input to be negated when it is read: {name}; pass resolve_neg()")
        shape, dtype = sizes_of(fake.shape), dtype_of(fake.dtype)
        tensor = self._builder.input(name, dtype, shape, strides or steps_of(fake), self._builder.device_of(fake))
        self._lifetimes.fix(tensor.value.name, node)
        return tensor

    def attribute(self, node: torch.fx.Node) -> Any:
        """Returns what the module holds under a name: a tensor, a plain value, or None for a submodule."""
        path = str(node.target)
        if path in self._constants_by_path:
            return self._constants_by_path[path]
        value = operator.attrgetter(path)(self._module)
        if not isinstance(value, torch.Tensor):
            if isinstance(value, (int, float, str)):
                return value
            # Only higher-order ops name submodules, and what they call gets them from the module itself.
            return None
        tensor = self._new_input(node, value)
        self._constants_by_path[path] = tensor
        self.constants.append(value)
        # Constants are passed first, so their inputs are moved to the front.
        self._builder.inputs.insert(len(self.constants) - 1, self._builder.inputs.pop())
        return tensor

    def sizes_for(self, graph: Graph) -> list[SizeArgument]:
        """Returns the integer arguments that a graph takes: one for each of its symbols that is an argument itself.

        Where a symbol is neither that nor an extent of an input, all arguments computed from it are taken.
        """
        symbols = {symbol.name for symbol in graph_symbols(graph)}
        taken = [(position, str(size), size) for position, _, size in self._sizes if str(size) in symbols]
        taken = list({name: (position, name, size) for position, name, size in reversed(taken)}.values())[::-1]
        missing = symbols - {name for _, name, _ in taken}
        missing -= {str(size) for value in graph.inputs for size in (*value.type.shape, *value.type.strides)}
        return taken + [argument for argument in self._sizes if symbols_of(argument[2]) & missing]


def _fixed(node: torch.fx.Node, fake: torch.SymBool | torch.SymFloat) -> bool | float:
    """Returns the present value of a number; a truth is what the forward has chosen a branch by."""
    return bool(fake) if isinstance(fake, torch.SymBool) else fixed_float(node, fake)
