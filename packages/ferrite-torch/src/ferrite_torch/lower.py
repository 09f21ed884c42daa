"""From an AOT graph to a Ferrite graph.

One walk over the nodes, each lowered by its table entry or called as the library op it is.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ferrite_ir.dtypes import F64
from ferrite_ir.graph import Extern, Graph, Output, Update, Value, View, whole
from ferrite_ir.scalar import Scalar, cast
from ferrite_ir.sizes import Size, Symbolic, Undecided, hint, symbols_of
from ferrite_ir.text import graph_symbols
from ferrite_torch.builder import Builder, Unlowered
from ferrite_torch.dtypes import dtype_of
from ferrite_torch.errors import FerriteError, Unsupported, translate
from ferrite_torch.foreach import is_foreach, lower_foreach
from ferrite_torch.functionalized import unwrap_functionalized
from ferrite_torch.library import call_library, call_of, laid_out, same_layout
from ferrite_torch.lifetimes import Lifetimes, tensors_in
from ferrite_torch.lowering import LOWERINGS
from ferrite_torch.lowering.casts import converted_number
from ferrite_torch.origins import origins_of
from ferrite_torch.refusals import Fallback
from ferrite_torch.saved_layouts import Layouts
from ferrite_torch.scatters import IN_PLACE
from ferrite_torch.size_names import named
from ferrite_torch.statistics import record_specialisation
from ferrite_torch.symbols import (
    NeedsNumber,
    depends_on_data,
    input_names,
    scalar_of,
    settled,
    size_of,
    sizes_of,
    steps_of,
)
from ferrite_torch.tensors import Tensor, grid_point
from ferrite_torch.torch_private.fake_tensors import is_fake, storage_key
from ferrite_torch.torch_private.operators import HigherOrderOp, Overload
from ferrite_torch.torch_private.symbolic_shapes import (
    environment_of,
    environments,
    is_data_dependent,
    is_unbacked_number,
    unbacked_bindings,
)
from ferrite_torch.unbacked import ASSERTIONS, BINDING_VIEWS, READS, RunTimeSizes

log = logging.getLogger(__name__)

NO_LOWERING = "no lowering"
ONLY_A_RUN_TELLS = "only a run tells its sizes"
CALLED_BY_LOWERING = "called by a lowering"
PRODUCTS = frozenset(("aten.mm.default", "aten.addmm.default", "aten.mm.out", "aten.addmm.out"))
"""Library calls that count where a lowering makes them; the others that lowerings make only allocate."""
OTHER_DEVICE = "not on the device of the graph"
CASTS = frozenset(("aten._to_copy.default", "prims.convert_element_type.default"))
PADDING_HELD = 1 / 32
"""Share of a result's bytes that it may keep alive of the larger value that it is a part of."""
VIEWS = frozenset(
    f"aten.{name}.default" for name in ("view", "_unsafe_view", "reshape", "alias", "detach", "squeeze", "unsqueeze")
)


@dataclass(frozen=True, slots=True)
class LoweredModule:
    """A lowered graph and what its caller must know.

    Attributes:
        graph: the graph; its inputs are the constants, then the selected arguments.
        constants: tensors that the module holds.
        selection: positions of the arguments that the graph takes; sizes and unread arguments are not among them.
        arguments: number of arguments of the module.
        externs: ``(op, reason)`` of each library call, in order.
        repeats: positions of outputs that equal an earlier output (or an input) but are tensors of their own in torch.
        fallbacks: the library calls that stand for one op of the module each, with their source lines.
        names: what the user's program calls symbols of the graph.
    """

    graph: Graph
    constants: tuple[torch.Tensor, ...]
    selection: tuple[int, ...]
    arguments: int
    externs: tuple[tuple[str, str], ...]
    repeats: tuple[int, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)


def lower(module: torch.fx.GraphModule, inputs: Sequence[Any] | None = None, name: str = "graph") -> Graph:
    """Returns an AOT graph in Ferrite's language; see `lower_module`. Sizes that it needs as numbers are fixed."""
    fakes = [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]
    return settled(lambda: lower_module(module, inputs, name), lambda: fakes).graph


def lower_module(  # noqa: PLR0913  # independent facts about the one graph, all named
    module: torch.fx.GraphModule,
    inputs: Sequence[Any] | None = None,
    name: str = "graph",
    *,
    device: str | None = None,
    strict: bool = True,
    regenerated: frozenset[int] = frozenset(),
    saved: frozenset[int] = frozenset(),
    extends_products: bool = True,
    product_rows: int = 0,
    layouts: Layouts | None = None,
) -> LoweredModule:
    """Returns a functional graph of aten ops, as AOTAutograd makes it, in Ferrite's language.

    Args:
        module: the graph; each node's fake result is in ``node.meta["val"]``.
        inputs: fake inputs for placeholders whose ``meta`` holds none.
        name: name of the result.
        device: device type of the kernels; None takes it from the graph.
        extends_products: compute large products with odd extents on operands extended with zeros.
        product_rows: most rows of products that are no library calls.
        saved: positions of outputs that may lie as they like, because who reads them is told.
        regenerated: positions of outputs whose storage does not matter, as the caller makes them anew from the inputs.
        strict: raise what a faulty lowering raises; False makes the op a library call and warns.
        layouts: strides of arguments, by position, that lie otherwise than their fakes.

    Raises:
        Unsupported: the graph as a whole cannot be compiled: control flow, numbers that only a run tells and
            that sizes cannot hold, arguments that are no tensors.
        CompileError: a lowering failed, and ``strict``.
        NeedsNumber: a lowering needs the value of a symbolic size; `symbols.settled` fixes it.
    """
    unwrap_functionalized(module)
    walk = _Walk(module, name, device or graph_device(module), strict=strict)
    walk.regenerated, walk.saved = regenerated, saved
    walk.builder.returned = _returned_nodes(module, saved)
    walk.builder.extends_products = extends_products
    walk.builder.product_rows = product_rows
    walk.layouts = layouts or {}
    given = iter(inputs or ())
    for node in module.graph.nodes:
        if node.op == "placeholder":
            node.meta.setdefault("val", next(given, None))
            if isinstance(node.meta["val"], torch.SymInt):
                walk.builder.reserve(symbols_of(size_of(node.meta["val"])))
    for node in module.graph.nodes:
        try:
            walk.visit(node)
        except (FerriteError, NeedsNumber):
            raise
        except Exception as error:
            raise _explained(error, node) from error
    return walk.finish()


def _explained(error: Exception, node: torch.fx.Node) -> FerriteError:
    if is_data_dependent(error):
        return Unsupported(f"{origins_of(node)[0]}: a size is known only when the graph runs")
    return translate(error, "lowering", origins_of(node))


def graph_device(module: torch.fx.GraphModule) -> str:
    """Returns the device type that the kernels of a graph run on: the only accelerator in it, else the CPU.

    Raises:
        Unsupported: two accelerators, or two devices of one type.
    """
    found: dict[torch.device, None] = {}
    for node in module.graph.nodes:
        values = node.meta.get("val")
        for value in values if isinstance(values, (tuple, list)) else (values,):
            if isinstance(value, torch.Tensor):
                found.setdefault(value.device)
    accelerators = [device for device in found if device.type != "cpu"]
    if len({str(device) for device in accelerators}) > 1:
        raise Unsupported(f"a graph on several devices: {', '.join(map(str, accelerators))}")
    return accelerators[0].type if accelerators else "cpu"


def _tensors_of(node: torch.fx.Node) -> list[torch.Tensor]:
    """Returns the fake tensors that a node makes."""
    fakes = node.meta.get("val")
    listed = fakes if isinstance(fakes, (tuple, list)) else (fakes,)
    return [fake for fake in listed if isinstance(fake, torch.Tensor)]


def _returned_nodes(module: torch.fx.GraphModule, saved: frozenset[int]) -> frozenset[torch.fx.Node]:
    """Returns the nodes whose result, or a view of all of it, the caller gets in its exact layout."""
    returned = module.graph.output_node().args[0]
    found: set[torch.fx.Node] = set()
    for position, node in enumerate(returned if isinstance(returned, (tuple, list)) else (returned,)):
        if position in saved:
            continue
        base = node
        while isinstance(base, torch.fx.Node) and str(base.target) in VIEWS:
            base = base.args[0]
        if isinstance(base, torch.fx.Node):
            found.add(base)
    return frozenset(found)


class _Walk:
    """The state of one lowering."""

    def __init__(self, module: torch.fx.GraphModule, name: str, device: str, *, strict: bool) -> None:
        self.module, self.name, self.strict = module, name, strict
        self.builder = Builder(device)
        self.lifetimes = Lifetimes(module.graph)
        self.results: dict[torch.fx.Node, Any] = {}
        self.constants: dict[str, Tensor] = {}
        self.constant_tensors: list[torch.Tensor] = []
        self.selection: list[int] = []
        self.size_arguments: list[tuple[int, str, Size]] = []
        self.arguments = 0
        self.floats: dict[str, Scalar] = {}
        self.externs: list[tuple[str, str]] = []
        self.fallbacks: list[Fallback] = []
        self.outputs: list[Output] = []
        self.mutations: dict[str, str] = {}
        self.versions: dict[str, Value] = {}
        self.repeats: list[int] = []
        self.regenerated: frozenset[int] = frozenset()
        self.saved: frozenset[int] = frozenset()
        self.layouts: Layouts = {}
        self.run_time = RunTimeSizes()

    def visit(self, node: torch.fx.Node) -> None:
        """Lowers one node.

        Raises:
            NeedsNumber: that takes the value of a symbolic size.
        """
        try:
            self._visit(node)
        except Undecided as question:
            raise NeedsNumber(f"{origins_of(node)[0]}", question.question, question.sizes) from question
        except NeedsNumber as need:
            raise need.at(f"{origins_of(node)[0]}") from need

    def _visit(self, node: torch.fx.Node) -> None:
        rule = self._RULES.get(node.op)
        if rule is None:
            raise Unsupported(f"a graph with a node of kind {node.op}: {node.name}")
        result = rule(self, node)
        self.results[node] = result
        self.lifetimes.record(node, result)

    def finish(self) -> LoweredModule:
        """Returns the finished graph."""
        graph = self.builder.finish(self.name, self.outputs, self.mutations.items())
        taken = given_sizes(graph, self.size_arguments)
        graph = replace(graph, sizes=tuple((name, size) for _, name, size in taken)) if taken else graph
        fakes = (node.meta.get("val") for node in self.module.graph.find_nodes(op="placeholder"))
        names = {**input_names(next(environments(fakes), None)), **self.run_time.names}
        graph = self.run_time.checked(graph, names)
        return LoweredModule(
            graph,
            tuple(self.constant_tensors),
            (*self.selection, *(position for position, _, _ in taken)),
            self.arguments,
            tuple(self.externs),
            tuple(self.repeats),
            tuple(self.fallbacks),
            names,
        )

    def _placeholder(self, node: torch.fx.Node) -> Any:
        position, self.arguments = self.arguments, self.arguments + 1
        fake = node.meta["val"]
        match fake:
            case torch.Tensor():
                return self._tensor_input(node, fake, position)
            case torch.SymInt():
                size = size_of(fake)
                self.size_arguments.append((position, node.name, size))
                return size
            case int():
                return fake
            case torch.SymFloat():
                return self._fixed(node, fake) if node.users else None
            case float():
                return fake
            case None | bool() | str():
                return fake
        if not node.users:
            return None
        raise Unsupported(f"a graph with an input of type {type(fake).__name__}: {node.name}")

    def _tensor_input(self, node: torch.fx.Node, fake: torch.Tensor, position: int) -> Tensor | None:
        if all(_is_token(node, user) for user in node.users):
            return None
        self.selection.append(position)
        tensor = self._new_input(node.name, fake, self.layouts.get(position))
        self.lifetimes.fix(tensor.value.name, node)
        return tensor

    def _new_input(self, name: str, fake: torch.Tensor, strides: tuple[int, ...] | None = None) -> Tensor:
        if fake.layout != torch.strided:
            raise Unsupported(f"a graph with a tensor of layout {fake.layout}: {name}")
        if fake.is_neg():
            raise Unsupported(f"a graph with an input to be negated when it is read: {name}; pass resolve_neg()")
        device = "" if fake.device.type == self.builder.device else fake.device.type
        return self.builder.input(name, dtype_of(fake.dtype), sizes_of(fake.shape), strides or steps_of(fake), device)

    def _get_attr(self, node: torch.fx.Node) -> Any:
        path = str(node.target)
        if path in self.constants:
            return self.constants[path]
        value = operator.attrgetter(path)(self.module)
        if not isinstance(value, torch.Tensor):
            if isinstance(value, (int, float, str)):
                return value
            # Only higher-order ops name submodules, and they are refused by name when they are reached.
            return None
        tensor = self._new_input(node.name, value)
        self.lifetimes.fix(tensor.value.name, node)
        self.constants[path] = tensor
        self.constant_tensors.append(value)
        # Constants are passed first, so their inputs are moved to the front.
        self.builder.inputs.insert(len(self.constants) - 1, self.builder.inputs.pop())
        return tensor

    def _call(self, node: torch.fx.Node) -> Any:
        target = node.target
        if target is operator.getitem:
            return self.results[node.args[0]][node.args[1]]  # type: ignore[index]  # FX's argument types are wide
        args = torch.fx.node.map_arg(node.args, self.results.__getitem__)
        kwargs = torch.fx.node.map_arg(node.kwargs, self.results.__getitem__)
        fake = node.meta.get("val")
        if str(target) == READS:
            return self._read_number(node, args[0], fake)
        if str(target) in ASSERTIONS:
            self.run_time.check(self.builder, node, self.floats)
            return None
        if isinstance(fake, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self._number(node, fake)
        for operand in node.all_input_nodes:
            if isinstance(self.results[operand], NeedsNumber):
                raise self._refusal(node, self.results[operand])
        if isinstance(target, Overload):
            return self._call_op(node, target, args, kwargs)
        if isinstance(target, HigherOrderOp):
            if str(target) == "with_effects":
                return self._call_with_effects(node, args, kwargs)
            raise Unsupported(f"{origins_of(node)[0]}: the higher-order op {target} is not compiled yet")
        if not callable(target) or any(tensors_in([*args, *kwargs.values()])):
            raise Unsupported(f"{origins_of(node)[0]}: a call of {target} is not compiled")
        return target(*args, **kwargs)

    def _read_number(self, node: torch.fx.Node, tensor: Any, fake: Any) -> Any:
        """Lowers ``item``: a float stays where it is; the host waits for an integer, which may be a size."""
        self.builder.begin(node, origins_of(node))
        if isinstance(fake, torch.SymFloat):
            held = self.builder.fresh_copy(tensor)
            self.run_time.name_float(node)
            for symbol, _ in unbacked_bindings(node):
                self.floats[str(symbol)] = cast(held.at(()), F64)
        else:
            self.run_time.read(self.builder, node, tensor)
        return self._number(node, fake)

    def _number(self, node: torch.fx.Node, fake: torch.SymInt | torch.SymFloat | torch.SymBool) -> Any:
        """Returns a number of the graph; one that only a run tells, and that has no form, fails where it is used."""
        try:
            if isinstance(fake, torch.SymInt):
                return size_of(fake)
            if isinstance(fake, torch.SymFloat):
                return self._float(node, fake)
            if not is_unbacked_number(fake):
                return bool(fake)
        except NeedsNumber as need:
            if not is_unbacked_number(fake):
                raise
            return need
        return NeedsNumber(str(origins_of(node)[0]), f"whether {fake}", ())

    def _float(self, node: torch.fx.Node, fake: torch.SymFloat) -> Scalar | float:
        try:
            return scalar_of(fake, self.floats)
        except NeedsNumber:
            if is_unbacked_number(fake):
                raise
            return self._fixed(node, fake)

    def _fixed(self, node: torch.fx.Node, fake: torch.SymFloat) -> float:
        """Returns the present value of a symbolic float, which dynamo guards.

        Raises:
            Unsupported: it has none yet.
        """
        if is_unbacked_number(fake):
            raise Unsupported(f"{origins_of(node)[0]}: a library call or a result takes {fake}, which only a run tells")
        record_specialisation(str(origins_of(node)[0]) if node.op == "call_function" else node.name, "a symbolic float")
        return float(fake)

    def _call_with_effects(self, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Lowers an op that must run in order: our calls with effects keep their order, so the token passes through."""
        token, op, *rest = args
        self.builder.begin(node, origins_of(node))
        self.externs.append((str(op), "has effects"))
        results = self._library(node, rest, kwargs)
        return (token, *(results if isinstance(results, tuple) else (results,)))

    def _refusal(self, node: torch.fx.Node, need: NeedsNumber) -> Unsupported:
        return Unsupported(f"{origins_of(node)[0]}: {need.reason}, a number that is known only when the graph runs")

    def _call_op(self, node: torch.fx.Node, op: Overload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        self.builder.begin(node, origins_of(node), lambda name: self.lifetimes.may_reuse(name, node))
        name = str(op)
        if name == "aten.copy_.default" and self._is_input(node.args[0]):
            return self._write_back(node)
        lowering = converted_number if self._is_number_for_kernels(node) else self._lowering(name, op, args)
        reason = NO_LOWERING if lowering is None else self._reason_against(node, args, kwargs)
        if lowering is not None and reason is None:
            try:
                return self._lowered(node, lowering, args, kwargs)
            except Unlowered as refusal:
                reason = str(refusal)
            except (Undecided, NeedsNumber) as need:
                if not depends_on_data(need.sizes, environment_of(node)):
                    raise
                reason = ONLY_A_RUN_TELLS
            except Exception as error:  # noqa: BLE001  # a defect of a lowering, of whatever kind
                reason = self._defect(error, node)
        self.externs.append((name, reason or NO_LOWERING))
        self.fallbacks.append(Fallback(name, reason or NO_LOWERING, str(origins_of(node)[0])))
        return self._library(node, args, kwargs)

    def _lowering(self, name: str, op: Overload, args: Sequence[Any]) -> Callable[..., Any] | None:
        in_place = IN_PLACE.get(name)
        if in_place is not None and isinstance(args[0], Tensor) and self.builder.owns(args[0]):
            return in_place
        if is_foreach(name) and name not in LOWERINGS:
            return lambda builder, *given, **named: lower_foreach(builder, op, LOWERINGS, given, named)
        return LOWERINGS.get(name)

    def _lowered(
        self, node: torch.fx.Node, lowering: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        mark = self.builder.mark()
        count = len(self.builder.definitions)
        try:
            if str(node.target) in BINDING_VIEWS:
                self.run_time.bind_view(self.builder, node, args[0], args[1:])
            result = lowering(self.builder, *args, **kwargs)
            _check_result(result, node.meta.get("val"))
        except Exception:
            self.builder.rollback(mark)
            raise
        self._note_sharing(count)
        calls = [made.target for made in self.builder.definitions[count:] if isinstance(made, Extern)]
        self.externs += [(target, CALLED_BY_LOWERING) for target in calls if target in PRODUCTS]
        return result

    def _defect(self, error: Exception, node: torch.fx.Node) -> str:
        sizes = _sizes_of_node(node)
        if depends_on_data(sizes, environment_of(node)):
            return ONLY_A_RUN_TELLS
        if sizes:
            kind = f"its lowering takes no symbolic size ({type(error).__name__}: {error})"
            raise NeedsNumber(f"{origins_of(node)[0]}", kind, sizes) from error
        if self.strict or is_data_dependent(error):
            raise _explained(error, node) from error
        kind = type(error).__name__
        log.warning("%s runs as a library call: its lowering failed with %s: %s", node.target, kind, error)
        return f"its lowering failed: {type(error).__name__}"

    def _reason_against(self, node: torch.fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """Returns why an op that has a lowering must not use it here.

        Kernels touch one device, and of the CPU only 0-d tensors.
        """
        if not all(map(self._is_here, _tensors_of(node))) and not self._is_number_for_kernels(node):
            return OTHER_DEVICE
        if unbacked_bindings(node) and str(node.target) not in BINDING_VIEWS:
            return ONLY_A_RUN_TELLS
        if any(tensor.device and tensor.ndim for tensor in tensors_in([*args, *kwargs.values()])):
            return OTHER_DEVICE
        return None

    def _is_here(self, fake: torch.Tensor) -> bool:
        return fake.device.type == self.builder.device

    def _is_number_for_kernels(self, node: torch.fx.Node) -> bool:
        """Returns whether a node casts a 0-d tensor of the CPU for operations on the graph's device alone.

        Such are the floats that dynamo keeps symbolic, say the constant of a norm. The kernels that read them cast them
        as well, where each library call would cost the host as much as dozens of launches.
        """
        if str(node.target) not in CASTS or any(fake.ndim or self._is_here(fake) for fake in _tensors_of(node)):
            return False
        read_by = [(user, _tensors_of(user)) for user in node.users]
        return all(
            (made and all(map(self._is_here, made))) or (user.op != "output" and self._is_number_for_kernels(user))
            for user, made in read_by
        )

    def _library(self, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        _refuse_layouts(node)
        count = len(self.builder.definitions)
        if any(isinstance(self.results.get(operand), Scalar) for operand in node.all_input_nodes):
            # Programs pass floats to libraries as numbers only.
            args = torch.fx.node.map_arg(node.args, self._plain)
            kwargs = torch.fx.node.map_arg(node.kwargs, self._plain)
        result = call_library(self.builder, call_of(node), args, kwargs)
        self.run_time.bind(self.builder, node, result, count)
        self._note_sharing(count)
        return result

    def _plain(self, node: torch.fx.Node) -> Any:
        result = self.results[node]
        return self._fixed(node, node.meta["val"]) if isinstance(result, Scalar) else result

    def _note_sharing(self, count: int) -> None:
        """Records which of the values defined since then share storage with older ones."""
        for definition in self.builder.definitions[count:]:
            if isinstance(definition, Extern):
                for result, operand in definition.aliases:
                    self.lifetimes.share(result, operand)
            elif isinstance(definition, Update):
                self.lifetimes.share(definition.result.name, definition.target)
                self.versions[self.lifetimes.root(definition.target)] = definition.result

    def _is_input(self, node: Any) -> bool:
        return isinstance(node, torch.fx.Node) and node.op == "placeholder" and isinstance(self.results[node], Tensor)

    def _write_back(self, node: torch.fx.Node) -> Tensor:
        """Lowers ``copy_`` to an input: a store over all of it, unless its new contents were computed in place."""
        source_node, target_node = node.args[1], node.args[0]
        old: Tensor = self.results[target_node]  # type: ignore[index]
        if not isinstance(source_node, torch.fx.Node):
            raise Unsupported(f"{origins_of(node)[0]}: copy_ of {source_node!r}")
        source: Tensor = self.results[source_node]
        root = self.lifetimes.root(old.value.name)
        if self.lifetimes.root(source.value.name) == root and source.is_whole:
            new = source
        else:
            new = self._store_over(node, old, source)
            self.lifetimes.share(new.value.name, root)
        if new.value.name != root:
            self._renew(node, new, root)
            self.mutations[root] = new.value.name
        return new

    def _store_over(self, node: torch.fx.Node, old: Tensor, source: Tensor) -> Tensor:
        if old.device or old.dtype.kind == "opaque":
            raise Unsupported(f"writing to an input of type {old.dtype}{' on the CPU' if old.device else ''}")
        point = grid_point(old.shape)
        missing = old.ndim - source.ndim
        spread = source.viewed(
            old.shape, lambda p: [p[missing + axis] * (size != 1) for axis, size in enumerate(source.shape)]
        )
        if self.lifetimes.root(source.value.name) == self.lifetimes.root(old.value.name):
            spread = self.builder.fresh_copy(spread)
        self._rescue(node, self.lifetimes.root(old.value.name))
        if old.numel == 0:
            return old
        # What was stored to it on the way to its new contents is overwritten now.
        latest = self.versions.get(self.lifetimes.root(old.value.name))
        if latest is not None:
            old = Tensor(latest, old.shape, old.indices)
        return self.builder.store(old, "set", old.shape, point, cast(spread.at(point), old.dtype))

    def _rescue(self, node: torch.fx.Node, root: str) -> None:
        """Copies results that still read the old contents of an input that is about to be overwritten."""
        key = _storage(node.args[0])
        for reader in self._later_readers(node, root):
            if _storage(reader) != key:
                self.results[reader] = self.builder.fresh_copy(self.results[reader])

    def _renew(self, node: torch.fx.Node, new: Tensor, root: str) -> None:
        """Makes the input, and views of it, views of its new contents.

        That is what torch shows to those who read them later.
        """
        for reader in self._later_readers(node, root):
            result: Tensor = self.results[reader]
            self.results[reader] = Tensor(new.value, result.shape, result.indices)

    def _later_readers(self, node: torch.fx.Node, root: str) -> list[torch.fx.Node]:
        """Returns the nodes read after ``node`` whose result lies in a storage."""
        place, last_use = self.lifetimes.position[node], self.lifetimes.last_use
        readers = (reader for reader in self.lifetimes.readers(root) if last_use(reader) > place)
        return [reader for reader in readers if self.lifetimes.root(self.results[reader].value.name) == root]

    def _output(self, node: torch.fx.Node) -> None:
        returned = node.args[0]
        owners: dict[str, int | None] = {}
        owned = {whole(value): self.lifetimes.source(value.name) for value in self.builder.inputs}
        for item in returned if isinstance(returned, (tuple, list)) else (returned,):
            if not isinstance(item, torch.fx.Node):
                self.outputs.append(_plain_output(item))
                continue
            result = self.results[item]
            if isinstance(result, Tensor):
                view = self._output_view(item, result, owners)
                if owned.setdefault(view, item) is not item:
                    self.repeats.append(len(self.outputs))
                self.outputs.append(view)
            elif isinstance(result, NeedsNumber):
                truth = named(result.reason, self.run_time.names)
                raise Unsupported(f"{result.where}: a graph that returns {truth}, which only a run tells")
            else:
                self.outputs.append(_plain_output(self._plain(item)))

    def _output_view(self, node: torch.fx.Node, tensor: Tensor, owners: dict[str, int | None]) -> View:
        """Returns an output with exactly torch's strides, sharing storage with exactly what torch's does."""
        self.builder.begin(node, origins_of(node) if node.op == "call_function" else ())
        fake: torch.Tensor = node.meta["val"]
        shape, strides = sizes_of(fake.shape), steps_of(fake)
        if len(self.outputs) not in self.regenerated and not self._may_share(node, fake, tensor, owners):
            tensor = self.builder.fresh_copy(tensor, strides if 0 not in strides else None)
        view = tensor.strided()
        if view is None or len(self.outputs) not in self.saved or 0 in view.strides:
            tensor = laid_out(self.builder, tensor, strides)
            view = tensor.strided()
        else:
            strides = view.strides
        if view is None:
            raise Unsupported(f"{origins_of(node)[0]}: a result that is no strided tensor")
        assert same_layout(shape, view.strides, strides) or tensor.numel == 0
        owners.setdefault(self.lifetimes.root(tensor.value.name), storage_key(fake))
        return View(view.name, view.dtype, shape, strides, view.offset)

    def _may_share(
        self, node: torch.fx.Node, fake: torch.Tensor, tensor: Tensor, owners: dict[str, int | None]
    ) -> bool:
        root = self.lifetimes.root(tensor.value.name)
        key = storage_key(fake)
        source = self.lifetimes.source(root)
        if source is not None:
            return source.op == "get_attr" or _storage(source) == key
        if owners.get(root, key) != key:
            return False
        # A small result must not keep a large value alive that torch would have freed; a little padding does no harm.
        kind = tensor.value.type
        held = hint(kind.storage_size) * kind.dtype.bytes
        needed = max(hint(size_of(fake.untyped_storage().nbytes())), hint(tensor.numel) * kind.dtype.bytes)
        return node.op == "placeholder" or held <= needed * (1 + PADDING_HELD)

    _RULES: Mapping[str, Callable[[_Walk, torch.fx.Node], Any]] = {
        "placeholder": _placeholder,
        "get_attr": _get_attr,
        "call_function": _call,
        "output": _output,
    }


def _refuse_layouts(node: torch.fx.Node) -> None:
    """Checks that the results of a call lie in memory by strides.

    Raises:
        Unsupported: one is sparse or lies in another way that only its own library knows.
    """
    fakes = node.meta.get("val")
    for fake in fakes if isinstance(fakes, (tuple, list)) else (fakes,):
        if isinstance(fake, torch.Tensor) and fake.layout != torch.strided:
            raise Unsupported(f"{origins_of(node)[0]}: a tensor of layout {fake.layout} is not compiled")


def _is_token(node: torch.fx.Node, user: torch.fx.Node) -> bool:
    """Returns whether a call with effects uses the node as its token, which orders calls and never has a value."""
    return str(user.target) == "with_effects" and user.args[0] is node and user.all_input_nodes.count(node) == 1


def _storage(node: Any) -> int | None:
    fake = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return storage_key(fake) if isinstance(fake, torch.Tensor) else None


def _sizes_of_node(node: torch.fx.Node) -> list[Size]:
    """Returns the symbolic sizes of the operands and results of a node."""
    values = [node.meta.get("val"), *(operand.meta.get("val") for operand in node.all_input_nodes)]
    found: dict[Size, None] = {}
    for value in values:
        for item in value if isinstance(value, (tuple, list)) else (value,):
            numbers = (*item.shape, *item.stride()) if is_fake(item) else (item,)
            found.update((size_of(number), None) for number in numbers if isinstance(number, torch.SymInt))
    return [size for size in found if isinstance(size, Symbolic)]


def given_sizes(graph: Graph, arguments: Sequence[tuple[int, str, Size]]) -> list[tuple[int, str, Size]]:
    """Returns the integer arguments that a graph takes: one for each of its symbols that is an argument itself.

    Where a symbol is neither that nor an extent of an input, all arguments computed from it are taken.
    """
    symbols = {symbol.name for symbol in graph_symbols(graph)}
    taken = [(position, str(size), size) for position, _, size in arguments if str(size) in symbols]
    taken = list({name: (position, name, size) for position, name, size in reversed(taken)}.values())[::-1]
    missing = symbols - {name for _, name, _ in taken}
    missing -= {str(size) for value in graph.inputs for size in (*value.type.shape, *value.type.strides)}
    return taken + [argument for argument in arguments if symbols_of(argument[2]) & missing]


def _plain_output(value: Any) -> Output:
    match value:
        case None | bool() | int() | float() | Symbolic():
            return value
        case torch.SymInt():
            return size_of(value)  # type: ignore[no-any-return]
        case torch.SymFloat() | torch.SymBool():
            return float(value) if isinstance(value, torch.SymFloat) else bool(value)
    raise Unsupported(f"a graph that returns a {type(value).__name__}")


def _check_result(result: Any, fake: Any) -> None:
    """Checks a lowering's result against torch's own: shape and type.

    Raises:
        ValueError: they differ.
        TypeError: the result is no tensor.
    """
    if isinstance(fake, (tuple, list)):
        if not isinstance(result, (tuple, list)) or len(result) != len(fake):
            raise ValueError(f"returned {result!r} where torch returns {len(fake)} results")
        for one, other in zip(result, fake, strict=True):
            _check_result(one, other)
    elif isinstance(fake, torch.Tensor) and result is not None:
        if not isinstance(result, Tensor):
            raise TypeError(f"returned {result!r} where torch returns a tensor")
        shape, dtype = sizes_of(fake.shape), dtype_of(fake.dtype)
        if result.shape != shape or result.dtype is not dtype:
            raise ValueError(f"returned {result.dtype}{list(result.shape)} where torch returns {dtype}{list(shape)}")
