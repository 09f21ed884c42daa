"""Results of a module as outputs of its graph, with exactly torch's strides and sharing of storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ferrite_ir.language.graph import Output, View, whole
from ferrite_ir.language.sizes import Size, Symbolic, hint, is_provably_at_most, is_static, quotient
from ferrite_torch.calls.lazy_results import LazyResult
from ferrite_torch.devices.dtypes import dtype_of
from ferrite_torch.diagnostics.origins import origins_of, unsupported
from ferrite_torch.errors import Unsupported
from ferrite_torch.graphs.eager_strides import EagerStrides
from ferrite_torch.graphs.extern_calls import laid_out
from ferrite_torch.graphs.graph_inputs import Passed
from ferrite_torch.graphs.graph_numbers import plain_value
from ferrite_torch.graphs.lifetimes import Lifetimes
from ferrite_torch.graphs.storages import is_lazy, returned_by
from ferrite_torch.graphs.unbacked_sizes import RunTimeSizes
from ferrite_torch.lowering.builder import Builder
from ferrite_torch.lowering.tensors import Tensor, same_layout
from ferrite_torch.sizes.size_names import named
from ferrite_torch.sizes.specialisation import NeedsNumber
from ferrite_torch.sizes.symbolic_sizes import size_of, sizes_of, steps_of
from ferrite_torch.thresholds import PRODUCTS

VIEWS = frozenset(
    f"aten.{name}.default" for name in ("view", "_unsafe_view", "reshape", "alias", "detach", "squeeze", "unsqueeze")
)


def returned_nodes(module: torch.fx.GraphModule, saved: frozenset[int]) -> frozenset[torch.fx.Node]:
    """Returns the nodes whose result, or a view of all of it, the caller gets in its exact layout.

    ``saved`` has the positions of outputs that may lie as they like.
    """
    found: set[torch.fx.Node] = set()
    for position, node in enumerate(returned_by(module.graph)):
        if position in saved:
            continue
        base = node
        while isinstance(base, torch.fx.Node) and str(base.target) in VIEWS:
            base = base.args[0]
        if isinstance(base, torch.fx.Node):
            found.add(base)
    return frozenset(found)


class GraphOutputs:
    """The outputs of one graph that is being lowered.

    Attributes:
        values: the outputs, in order.
        repeats: positions of outputs that equal an earlier output (or an input) but are tensors of their own in torch.
        passed: positions of outputs that are arguments which the graph does not take, and of these arguments.
        lazy: outputs that the caller has to mark as conjugated or negated when they are read.
    """

    def __init__(
        self,
        graph: torch.fx.Graph,
        builder: Builder,
        lifetimes: Lifetimes,
        regenerated: Mapping[int, int],
        saved: frozenset[int],
        versions: Mapping[str, str],
        *,
        marks: bool,
    ) -> None:
        self._graph, self._builder, self._lifetimes = graph, builder, lifetimes
        self._regenerated, self._saved, self._marks = regenerated, saved, marks
        self._versions = versions  # of inputs that are written to, as they are in the end
        self._storages = lifetimes.storages
        self._bases = lifetimes.storages.shared_bases(saved.union(regenerated))
        self._regenerated_bases = lifetimes.storages.bases_of(regenerated.keys())
        self._based: dict[int, View | None] = {}
        lifetimes.keep(self._bases.values())
        self.values: list[Output] = []
        self.repeats: list[int] = []
        self.passed: list[tuple[int, int]] = []
        self.lazy: list[LazyResult] = []
        self._owners: dict[str, int | None] = {}
        self._eager_strides = EagerStrides()

    def collect(self, node: torch.fx.Node, results: Mapping[torch.fx.Node, Any], run_time: RunTimeSizes) -> None:
        """Makes outputs of what an output node returns; ``run_time`` knows what depends on data in the graph.

        Raises:
            Unsupported: a result is no value that a graph returns.
        """
        owned = {whole(value): self._lifetimes.source(value.name) for value in self._builder.inputs}
        for item in returned_by(self._graph):
            if not isinstance(item, torch.fx.Node):
                self.values.append(_plain_output(item))
                continue
            result = results[item]
            if isinstance(result, Tensor):
                view = self._regenerated_view(item, results, run_time) or self._view_of_base(item, results)
                view = view or self._view(item, result)
                if owned.setdefault(view, item) is not item:
                    self.repeats.append(len(self.values))
                self.values.append(view)
            elif isinstance(result, Passed):
                self.passed.append((len(self.values), result.position))
                self.values.append(None)
            elif isinstance(result, NeedsNumber):
                truth = named(result.reason, run_time.names)
                raise unsupported(item, f"a graph that returns {truth}, which depends on data")
            else:
                self.values.append(_plain_output(plain_value(item, result)))

    def _regenerated_view(
        self, node: torch.fx.Node, results: Mapping[torch.fx.Node, Any], run_time: RunTimeSizes
    ) -> View | None:
        """Returns a result that the caller makes anew from an input, where it lies in that; None for any other.

        The caller reads where it begins, too: a copy, as of elements that are seen as another type, begins elsewhere.
        """
        if len(self.values) not in self._regenerated or self._lies_in_input(results[node]):
            return None
        view = self._view_of_written(node, results, run_time)
        if view is not None:
            return view
        base = self._regenerated_bases.get(self._storages.of(node) or 0)
        tensor = None if base is None else results[base]
        if base is None or not isinstance(tensor, Tensor):
            return None
        fake, whole_view = base.meta["val"], tensor.strided()
        if whole_view is None or not same_layout(tensor.shape, whole_view.strides, steps_of(fake)):
            return None
        return _view_at(whole_view, fake, node.meta["val"])

    def _view_of_written(
        self, node: torch.fx.Node, results: Mapping[torch.fx.Node, Any], run_time: RunTimeSizes
    ) -> View | None:
        """Returns a result that is made anew from an input as a view of that, if it is one of what the input becomes.

        What was computed for an input may lie otherwise, and begins elsewhere, than the input in whose storage the
        caller makes the view: strides and begin are those of the same view ops called on the input.
        """
        position = self._graph.find_nodes(op="placeholder")[self._regenerated[len(self.values)]]
        given = results.get(position)
        own = given.strided() if isinstance(given, Tensor) else None
        back = self._lifetimes.written_back.get(position)
        if own is None or back is None:
            return None
        calls: list[torch.fx.Node] = []
        while node is not back.args[1]:
            if not callable(node.target) or not node.args or not isinstance(node.args[0], torch.fx.Node):
                return None
            calls.append(node)
            node = node.args[0]
        fake = position.meta["val"]
        for call in reversed(calls):
            assert callable(call.target), "the loop above has seen to that"
            args, kwargs = torch.fx.node.map_arg((call.args[1:], call.kwargs), lambda argument: argument.meta["val"])
            below, fake = fake, call.target(fake, *args, **kwargs)
            run_time.note_again(call, below, fake)
        return _view_at(replace(own, name=self._versions.get(own.name, own.name)), position.meta["val"], fake)

    def _lies_in_input(self, result: Any) -> bool:
        view = result.strided() if isinstance(result, Tensor) else None
        return view is not None and self._lifetimes.source(self._lifetimes.root(view.name)) is not None

    def _view_of_base(self, node: torch.fx.Node, results: Mapping[torch.fx.Node, Any]) -> View | None:
        """Returns a result that shares storage with others as a view of what they all lie in, None for any other."""
        key, fake = self._storages.of(node), node.meta["val"]
        if key is None or key not in self._bases or len(self.values) in self._saved.union(self._regenerated):
            return None
        if is_lazy(node) and not self._marks:
            return None
        if key not in self._based:
            self._based[key] = self._base(self._bases[key], results)
        base = self._based[key]
        view = None if base is None else _view_at(base, self._bases[key].meta["val"], fake)
        if view is not None and is_lazy(node):
            self.lazy.append(LazyResult(len(self.values), fake.is_conj(), fake.is_neg()))
        return view

    def _base(self, node: torch.fx.Node, results: Mapping[torch.fx.Node, Any]) -> View | None:
        """Returns what a storage holds, laid out as torch lays it out."""
        self._builder.begin(node, origins_of(node))
        tensor, fake = results[node], node.meta["val"]
        if not isinstance(tensor, Tensor) or 0 in sizes_of(fake.shape):
            return None
        root, key = self._lifetimes.root(tensor.value.name), self._storages.of(node)
        if self._lifetimes.source(root) is not None or self._owners.get(root, key) != key:
            tensor = self._builder.fresh_copy(tensor, steps_of(fake))
        tensor = laid_out(self._builder, tensor, steps_of(fake))
        self._owners[self._lifetimes.root(tensor.value.name)] = key
        return tensor.strided()

    def _view(self, node: torch.fx.Node, tensor: Tensor) -> View:
        """Returns an output with exactly torch's strides, sharing storage with exactly what torch's does."""
        self._builder.begin(node, origins_of(node) if node.op == "call_function" else ())
        fake: torch.Tensor = node.meta["val"]
        shape, strides = sizes_of(fake.shape), self._eager_strides.of(node) or steps_of(fake)
        if len(self.values) not in self._regenerated and not self._may_share(node, fake, tensor):
            tensor = self._builder.fresh_copy(tensor, strides if 0 not in strides else None)
        view = tensor.strided()
        if view is None or not self._may_lie_otherwise(view.strides, strides):
            tensor = laid_out(self._builder, tensor, strides)
            view = tensor.strided()
        else:
            strides = view.strides
        if view is None:
            raise unsupported(node, "a result that is no strided tensor")
        assert same_layout(shape, view.strides, strides) or tensor.numel == 0
        self._owners.setdefault(self._lifetimes.root(tensor.value.name), self._storages.of(node))
        return View(view.name, view.dtype, shape, strides, view.offset)

    def _may_lie_otherwise(self, strides: Sequence[Size], traced: Sequence[Size]) -> bool:
        """Returns whether the next output may have other strides than it was traced with: see `saved_layouts`."""
        return len(self.values) in self._saved and 0 not in strides and all(map(is_static, (*strides, *traced)))

    def _may_share(self, node: torch.fx.Node, fake: torch.Tensor, tensor: Tensor) -> bool:
        root, key = self._lifetimes.root(tensor.value.name), self._storages.of(node)
        source = self._lifetimes.source(root)
        if source is not None:
            return source.op == "get_attr" or self._storages.of(source) == key
        if self._owners.get(root, key) != key:
            return False
        # A small result must not keep a large value alive that torch would have freed; a little padding does no harm.
        kind = tensor.value.type
        held = hint(kind.storage_size) * kind.dtype.bytes
        needed = max(hint(size_of(fake.untyped_storage().nbytes())), hint(tensor.numel) * kind.dtype.bytes)
        return node.op == "placeholder" or held <= needed * (1 + PRODUCTS.padding_held)


def _view_at(base: View, whole_fake: torch.Tensor, fake: torch.Tensor) -> View | None:
    """Returns the view of a storage that a fake tensor is; None if it begins before the base or within an element."""
    dtype = dtype_of(fake.dtype)
    begins = size_of(fake.storage_offset()) * fake.itemsize
    offset = base.offset * whole_fake.itemsize + begins - size_of(whole_fake.storage_offset()) * whole_fake.itemsize
    positions = quotient(offset, fake.itemsize) if offset != 0 else 0
    if positions is None or is_provably_at_most(positions, -1):
        return None
    return View(base.name, dtype, sizes_of(fake.shape), steps_of(fake), positions)


def _plain_output(value: Any) -> Output:
    match value:
        case None | bool() | int() | float() | Symbolic():
            return value
        case torch.SymInt():
            return size_of(value)  # type: ignore[no-any-return]
        case torch.SymFloat() | torch.SymBool():
            return float(value) if isinstance(value, torch.SymFloat) else bool(value)
    raise Unsupported(f"a graph that returns a {type(value).__name__}")
