"""Regions: functions that control flow takes (branches, bodies of loops, repeated blocks), each lowered to a graph.

A region takes all parameters of its function, tensors first, then the integers. What it returns are tensors of their
own, laid out as its caller asks, so that a branch that returns what it was given copies it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch

from ferrite_ir.language import scalar as sc
from ferrite_ir.language.bindings import bindings_of, given_symbols
from ferrite_ir.language.dtypes import I64
from ferrite_ir.language.graph import Graph, Output, TensorType, whole
from ferrite_ir.language.sizes import Size, Symbolic
from ferrite_ir.text.fingerprint import fingerprint
from ferrite_ir.text.printer import graph_symbols
from ferrite_torch.devices.dtypes import dtype_of
from ferrite_torch.diagnostics.origins import origins_of
from ferrite_torch.graphs.extern_calls import laid_out
from ferrite_torch.graphs.graph_inputs import GraphInputs, SizeArgument
from ferrite_torch.graphs.lifetimes import Lifetimes
from ferrite_torch.graphs.storages import is_lazy, returned_by
from ferrite_torch.graphs.unbacked_sizes import RunTimeSizes
from ferrite_torch.lowering.builder import Builder
from ferrite_torch.lowering.tensors import Tensor, is_dense
from ferrite_torch.sizes.conditions import condition_of, number_of
from ferrite_torch.sizes.specialisation import NeedsNumber
from ferrite_torch.sizes.symbolic_sizes import size_of, sizes_of, steps_of
from ferrite_torch.torch_private.fake_tensors import is_fake, number_in
from ferrite_torch.torch_private.symbolic_shapes import is_unbacked_number


class NoForm(Exception):
    """A function has no form as a region; the op that takes it runs as a step of its own."""


Strides: TypeAlias = "tuple[Size, ...]"


@dataclass(frozen=True, slots=True)
class Use:
    """What becomes of the results of a region.

    Attributes:
        wanted: the strides of the tensors that it returns, in order; None for those that its function has.
        is_call: it is the only one that may be called here: its caller makes views of what it has given itself.
        knows_integers: its caller knows the integers that it returns, by its own symbols.
    """

    wanted: tuple[Strides, ...] | None = None
    is_call: bool = False
    knows_integers: bool = False


@dataclass(frozen=True, slots=True)
class PassedView:
    """A result that is a view of a parameter: of the tensor number ``parameter``, the elements at ``indices``."""

    parameter: int
    view: Tensor


Returned: TypeAlias = "TensorType | PassedView | Size | None"


@dataclass(frozen=True, slots=True)
class Region:
    """A function, lowered.

    Attributes:
        graph: name of its graph in the module.
        parameters: the fake values of its parameters, in order.
        returned: what it returns, in order: a tensor, one of the tensors given as a view, an integer, or nothing.
    """

    graph: str
    parameters: tuple[Any, ...]
    returned: tuple[Returned, ...]

    @property
    def tensors(self) -> tuple[TensorType, ...]:
        """The types of the tensors that the graph returns, in order."""
        return tuple(item for item in self.returned if isinstance(item, TensorType))


@dataclass(slots=True)
class RegionTable:
    """The regions of one module, each graph once, in an order in which those that are called come first."""

    graphs: list[Graph] = field(default_factory=list)
    _known: dict[Any, Region] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)

    def find(self, module: torch.fx.GraphModule, use: Use, make: Callable[[], Region]) -> Region:
        """Returns a function as a region, made if it has not been."""
        if (module, use) not in self._known:
            self._known[module, use] = make()
        return self._known[module, use]

    def add(self, graph: Graph) -> str:
        """Returns the name of a graph in the module: that of one that is equal, if there is one."""
        digest = fingerprint(replace(graph, name="region"))
        if digest not in self._names:
            taken = {known.name for known in self.graphs}
            numbered = (f"{graph.name}_{number}" for number in range(2, len(taken) + 3))
            name = next(name for name in (graph.name, *numbered) if name not in taken)
            self._names[digest] = name
            self.graphs.append(replace(graph, name=name))
        return self._names[digest]


class RegionInputs(GraphInputs):
    """The inputs of a region: every tensor that it is given, then every integer."""

    def attribute(self, node: torch.fx.Node) -> Any:
        """Returns a number that the function holds as a tensor, made anew in each call; None for functions of its own.

        The keys of stored graphs have such numbers, too.

        Raises:
            NoForm: the function holds another tensor.
        """
        value = operator.attrgetter(str(node.target))(self._module)
        if not isinstance(value, torch.Tensor):
            return super().attribute(node)
        is_number = value.numel() == 1 and not is_fake(value) and not self._builder.device_of(value)
        kind = dtype_of(value.dtype)
        if not is_number or kind.kind == "opaque":
            raise NoForm(f"the function holds a tensor, {node.target}")
        number = number_in(value)
        self._builder.begin(node, origins_of(node))
        return self._builder.loop(tuple(value.shape), kind, lambda _: sc.const(number, kind), strides=value.stride())

    def _tensor_argument(self, node: torch.fx.Node, fake: torch.Tensor, position: int) -> Tensor:
        self.selection.append(position)
        return self._new_input(node, fake)

    def sizes_for(self, graph: Graph) -> list[SizeArgument]:
        """Returns all integer arguments."""
        names: dict[str, SizeArgument] = {}
        for position, _, size in self._sizes:
            name = str(size) if str(size).isidentifier() and str(size) not in names else f"size{position}"
            names[name] = position, name, size
        return list(names.values())


class RegionOutputs:
    """What a region returns: tensors of their own; the fields that others of a graph's outputs have, too."""

    def __init__(self, graph: torch.fx.Graph, builder: Builder, lifetimes: Lifetimes, use: Use) -> None:
        self._graph, self._builder, self._lifetimes, self._use = graph, builder, lifetimes, use
        self._taken = set[str]()
        self._tensors: list[Output] = []
        self._numbers: list[Output] = []
        self.returned: list[Returned] = []
        self.repeats: list[int] = []
        self.passed: list[tuple[int, int]] = []
        self.lazy: list[Any] = []

    @property
    def values(self) -> list[Output]:
        """The outputs of the graph: tensors, then integers."""
        return [*self._tensors, *self._numbers]

    def collect(self, node: torch.fx.Node, results: Mapping[torch.fx.Node, Any], run_time: RunTimeSizes) -> None:
        """Makes outputs of what an output node returns.

        Raises:
            NoForm: a result is nothing that a region returns.
        """
        for item in returned_by(self._graph):
            value = results[item] if isinstance(item, torch.fx.Node) else item
            if isinstance(value, Tensor):
                self._add_tensor(item, value)
            elif value is None:
                self.returned.append(None)
            else:
                number = _number(item, value)
                self.returned.append(number)
                self._numbers += [] if self._use.knows_integers else [number]

    def _add_tensor(self, node: torch.fx.Node, tensor: Tensor) -> None:
        if is_lazy(node):
            raise NoForm("a result that is conjugated or negated when it is read")
        inputs = [value.name for value in self._builder.inputs]
        if self._use.is_call and tensor.value.name in inputs:
            self.returned.append(PassedView(inputs.index(tensor.value.name), tensor))
            return
        strides = self._strides(node, tensor)
        tensor = self._own(tensor, strides)
        self._taken.add(self._lifetimes.root(tensor.value.name))
        self.returned.append(tensor.value.type)
        self._tensors.append(whole(tensor.value))

    def _strides(self, node: torch.fx.Node, tensor: Tensor) -> Strides:
        position = sum(isinstance(item, TensorType) for item in self.returned)
        if self._use.wanted is not None:
            return self._use.wanted[position]
        return own_strides(node.meta["val"], tensor)

    def _own(self, tensor: Tensor, strides: Strides) -> Tensor:
        """Returns a tensor as one that is nobody else's, with these strides to the letter."""
        tensor = laid_out(self._builder, tensor, strides)
        root = self._lifetimes.root(tensor.value.name)
        is_own = tensor.is_whole and root not in self._taken and self._lifetimes.source(root) is None
        is_own = is_own and root == tensor.value.name and tensor.value.type.strides == strides
        return tensor if is_own else self._builder.fresh_copy(tensor, strides)


def own_strides(fake: torch.Tensor, tensor: Tensor | None = None) -> Strides:
    """Returns the strides of a tensor of its own that stands for a fake one: the same, unless these leave gaps."""
    shape = sizes_of(fake.shape) if tensor is None else tensor.shape
    strides = steps_of(fake)
    return strides if is_dense(TensorType(I64, shape, strides)) else TensorType(I64, shape).strides


def _number(item: Any, value: Any) -> Size:
    """Returns a number that a region returns as an integer; of a condition, one that is not 0 if it holds."""
    fake = item.meta.get("val") if isinstance(item, torch.fx.Node) else item
    if isinstance(fake, torch.SymBool) and is_unbacked_number(fake):
        try:
            condition = condition_of(fake)
        except NeedsNumber as need:
            raise NoForm(f"{need.reason}, which is no condition on integers") from need
        return int(condition) if isinstance(condition, bool) else number_of(condition)
    if isinstance(value, (bool, int, Symbolic)):
        return int(value) if isinstance(value, bool) else value
    if isinstance(fake, torch.SymInt) and not isinstance(value, NeedsNumber):
        return size_of(fake)
    raise NoForm(f"a function that returns {value!r}")


def region_name(path: str) -> str:
    """Returns the name of the graph that a function becomes which a module holds under a path."""
    name = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in path).strip("_")
    return name if name.isidentifier() else f"region_{name}"


def check_region(graph: Graph, captured: Sequence[Any]) -> None:
    """Checks that a graph can be called.

    Raises:
        NoForm: it writes to what it is given, has a step that only the captured graph has, or sizes that nobody tells.
    """
    if graph.mutations:
        raise NoForm("a function that writes to what it is given")
    for step in captured:
        raise NoForm(f"a function with a step of its own, {step.op}")
    bound = {binding.symbol for made in bindings_of(graph).values() for binding in made}
    unknown = {symbol.name for symbol in graph_symbols(graph)} - given_symbols(graph) - bound
    if unknown:
        raise NoForm(f"a function whose parameters do not tell the size {', '.join(sorted(unknown))}")
