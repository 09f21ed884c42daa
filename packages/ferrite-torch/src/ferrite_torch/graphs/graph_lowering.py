"""From an AOT graph to a Ferrite graph.

One walk over the nodes, each lowered by its table entry or called as the library op it is.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from ferrite_ir.language import index as ix
from ferrite_ir.language.graph import Extern, Graph
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import Undecided, symbols_of
from ferrite_torch.calls.higher_order import USER_KERNELS
from ferrite_torch.calls.layouts import Layouts
from ferrite_torch.calls.user_constants import NotWritten
from ferrite_torch.devices.placement import graph_device, is_made_on, is_number_for
from ferrite_torch.diagnostics.announcements import announce
from ferrite_torch.diagnostics.error_translation import translate
from ferrite_torch.diagnostics.origins import origins_of, unsupported
from ferrite_torch.diagnostics.refusals import Fallback
from ferrite_torch.errors import FerriteError, Unsupported, located
from ferrite_torch.graphs.captured_steps import A_STEP, CapturedSteps
from ferrite_torch.graphs.control_flow import ControlFlow, decides
from ferrite_torch.graphs.extern_calls import call_extern, call_of
from ferrite_torch.graphs.foreach import is_foreach, lower_foreach
from ferrite_torch.graphs.graph_inputs import GraphInputs
from ferrite_torch.graphs.graph_numbers import GraphNumbers, plain_value
from ferrite_torch.graphs.graph_outputs import GraphOutputs, returned_nodes
from ferrite_torch.graphs.higher_order_lowerings import HIGHER_ORDER
from ferrite_torch.graphs.lifetimes import COPY_BACK, Lifetimes, tensors_in
from ferrite_torch.graphs.lowered_module import LoweredModule
from ferrite_torch.graphs.node_results import check_result, refuse_layouts, sizes_of_node
from ferrite_torch.graphs.regions import (
    NoForm,
    Region,
    RegionInputs,
    RegionOutputs,
    RegionTable,
    Use,
    check_region,
    region_name,
)
from ferrite_torch.graphs.slice_stores import IN_PLACE
from ferrite_torch.graphs.strided_views import is_inside
from ferrite_torch.graphs.unbacked_sizes import ASSERTIONS, BINDING_VIEWS, RunTimeSizes
from ferrite_torch.graphs.write_backs import WriteBacks
from ferrite_torch.lowering import LOWERINGS
from ferrite_torch.lowering.builder import Builder, Unlowered
from ferrite_torch.lowering.lowering_choices import DEFAULT_CHOICES, LoweringChoices
from ferrite_torch.lowering.pointwise.random_numbers import draws
from ferrite_torch.lowering.shapes.casts import converted_number
from ferrite_torch.lowering.shapes.views import axis_of
from ferrite_torch.lowering.tensors import Tensor
from ferrite_torch.rewrites.prepared_graphs import prepare_graph
from ferrite_torch.rewrites.rounded_half_types import ROUNDED
from ferrite_torch.sizes.specialisation import NeedsNumber, settled
from ferrite_torch.sizes.symbol_tables import depends_on_data, input_names, note_inputs
from ferrite_torch.sizes.symbolic_sizes import size_of
from ferrite_torch.torch_private.nodes import target_name, values_of_inputs
from ferrite_torch.torch_private.operators import READS, HigherOrderOp, Overload
from ferrite_torch.torch_private.seeded_ops import dropped_inside, plain_op
from ferrite_torch.torch_private.symbolic_shapes import (
    environment_of,
    environments,
    is_data_dependent,
    unbacked_bindings,
)

log = logging.getLogger(__name__)

NO_LOWERING = "no lowering"
DATA_DEPENDENT = "its sizes depend on data"
CALLED_BY_LOWERING = "called by a lowering"
PRODUCTS = frozenset(("aten.mm.default", "aten.addmm.default", "aten.mm.out", "aten.addmm.out"))
"""Extern calls that count where a lowering makes them; the others that lowerings make only allocate."""
OTHER_DEVICE = "not on the device of the graph"
DRAWN_BY_TORCH = "draws random numbers, which torch does with fallback_random"


def lower(module: torch.fx.GraphModule, inputs: Sequence[Any] | None = None, name: str = "graph") -> Graph:
    """Returns an AOT graph in Ferrite's language; see `lower_module`. Sizes that it needs as numbers are fixed."""
    fakes = values_of_inputs(module)
    return settled(lambda: lower_module(module, inputs, name).complete(), lambda: fakes).graph


def lower_module(  # noqa: PLR0913  # independent facts about the one graph, all named
    module: torch.fx.GraphModule,
    inputs: Sequence[Any] | None = None,
    name: str = "graph",
    *,
    device: str | None = None,
    strict: bool = True,
    regenerated: Mapping[int, int] = MappingProxyType({}),
    saved: frozenset[int] = frozenset(),
    choices: LoweringChoices = DEFAULT_CHOICES,
    layouts: Layouts | None = None,
    marks: bool = False,
) -> LoweredModule:
    """Returns a functional graph of aten ops, as AOTAutograd makes it, in Ferrite's language.

    Args:
        module: the graph; each node's fake result is in ``node.meta["val"]``.
        inputs: fake inputs for placeholders whose ``meta`` holds none.
        name: name of the result.
        device: device type of the kernels; None takes it from the graph.
        choices: what becomes kernels.
        saved: positions of outputs that may lie as they like, because who reads them is told.
        regenerated: positions of outputs whose storage does not matter, as the caller makes them anew, each with that
            of the argument that it makes them from.
        strict: raise what a faulty lowering raises; False makes the op an extern call and warns.
        layouts: strides of arguments, by position, that lie otherwise than their fakes.
        marks: the caller marks results as conjugated or negated when they are read (`LoweredModule.lazy`); without it
            such results are computed, and share no storage.

    Raises:
        Unsupported: the graph as a whole cannot be compiled: control flow, data-dependent numbers and
            that sizes cannot hold, arguments that are no tensors.
        CompileError: a lowering failed, and ``strict``.
        NeedsNumber: a lowering needs the value of a symbolic size; `specialisation.settled` fixes it.
    """
    prepare_graph(module)
    builder = Builder(device or graph_device(module), choices)
    builder.returned = returned_nodes(module, saved)
    _describe_placeholders(module, inputs or ())
    walk = _Walk(module, builder, strict=strict)
    walk.inputs = GraphInputs(module, builder, walk.lifetimes, layouts or {})
    walk.outputs = GraphOutputs(
        module.graph, builder, walk.lifetimes, regenerated, saved, walk.write_backs.mutations, marks=marks
    )
    walk.run()
    return walk.finish(name)


def _describe_placeholders(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Gives placeholders whose ``meta`` holds no fake inputs these, from the first one on."""
    given = iter(inputs)
    for node in module.graph.find_nodes(op="placeholder"):
        node.meta.setdefault("val", next(given, None))


def _explained(error: Exception, node: torch.fx.Node) -> FerriteError:
    if is_data_dependent(error):
        return unsupported(node, "a size is known only when the graph runs")
    return translate(error, "lowering", origins_of(node))


class _Walk:
    """The state of one lowering."""

    inputs: GraphInputs
    outputs: GraphOutputs | RegionOutputs

    def __init__(
        self, module: torch.fx.GraphModule, builder: Builder, *, strict: bool, regions: RegionTable | None = None
    ) -> None:
        self.module, self.builder, self.strict = module, builder, strict
        self.lifetimes = Lifetimes(module.graph)
        self.results: dict[torch.fx.Node, Any] = {}
        self.run_time = RunTimeSizes()
        self.numbers = GraphNumbers(builder, self.run_time)
        self.write_backs = WriteBacks(builder, self.lifetimes, self.results)
        self.externs: list[tuple[str, str]] = []
        self.fallbacks: list[Fallback] = []
        self.captured = CapturedSteps(builder, self.lifetimes, self.run_time, self.numbers, self.results)
        self.regions = RegionTable() if regions is None else regions
        self.control_flow = ControlFlow(module, builder, self.results, self.run_time, self.numbers, self._region)

    def run(self) -> None:
        """Lowers all nodes, in order."""
        fakes = values_of_inputs(self.module)
        note_inputs(fakes)
        for fake in fakes:
            if isinstance(fake, torch.SymInt):
                self.builder.reserve(symbols_of(size_of(fake)))
        for node in self.module.graph.nodes:
            try:
                self.visit(node)
            except (NeedsNumber, NoForm):
                raise
            except FerriteError as error:
                raise located(error, origins_of(node) if node.op == "call_function" else ()) from error.__cause__
            except Exception as error:
                raise _explained(error, node) from error

    def visit(self, node: torch.fx.Node) -> None:
        """Lowers one node.

        Raises:
            NeedsNumber: that takes the value of a symbolic size.
        """
        try:
            self._visit(node)
        except Undecided as question:
            raise NeedsNumber(origins_of(node)[0].description, question.question, question.sizes) from question
        except NeedsNumber as need:
            raise need.at(origins_of(node)[0].description) from need

    def _visit(self, node: torch.fx.Node) -> None:
        result = self._result(node)
        self.results[node] = result
        self.lifetimes.record(node, result)

    def _result(self, node: torch.fx.Node) -> Any:
        match node.op:
            case "placeholder":
                return self.inputs.argument(node)
            case "get_attr":
                return self.inputs.attribute(node)
            case "call_function":
                return self._call(node)
            case "output":
                self.outputs.collect(node, self.results, self.run_time)
                return None
        raise Unsupported(f"a graph with a node of kind {node.op}: {node.name}")

    def finish(self, name: str) -> LoweredModule:
        """Returns the finished graph under a name."""
        graph = self.builder.finish(name, self.outputs.values, self.write_backs.mutations.items())
        taken = self.inputs.sizes_for(graph)
        graph = replace(graph, sizes=tuple((name, size) for _, name, size in taken)) if taken else graph
        fakes = values_of_inputs(self.module)
        names = {**input_names(next(environments(fakes), None)), **self.run_time.names}
        graph = self.run_time.checked(graph, names)
        return LoweredModule(
            graph,
            tuple(self.inputs.constants),
            (*self.inputs.selection, *(position for position, _, _ in taken)),
            self.inputs.arguments,
            tuple(self.externs),
            tuple(self.outputs.repeats),
            tuple(self.outputs.passed),
            tuple(self.outputs.lazy),
            tuple(self.fallbacks),
            names,
            tuple(self.captured.found),
            tuple(self.regions.graphs),
            tuple(self.captured.launches.values()),
        )

    def _region(self, module: torch.fx.GraphModule, name: str, use: Use) -> Region:
        """Returns a function of control flow as a region, lowered if it has not been."""
        try:
            return self.regions.find(module, use, lambda: self._lowered_region(module, name, use))
        except Unsupported as error:
            raise NoForm(str(error)) from error
        except NeedsNumber as need:
            if depends_on_data(need.sizes, next(environments(values_of_inputs(module)), None)):
                raise NoForm(need.reason) from need
            raise

    def _lowered_region(self, module: torch.fx.GraphModule, name: str, use: Use) -> Region:
        try:
            return self._read_region(module, name, use)
        finally:
            note_inputs(values_of_inputs(self.module))

    def _read_region(self, module: torch.fx.GraphModule, name: str, use: Use) -> Region:
        prepare_graph(module)
        builder = Builder(self.builder.device, self.builder.choices)
        builder.returned = returned_nodes(module, frozenset())
        walk = _Walk(module, builder, strict=self.strict, regions=self.regions)
        walk.inputs = RegionInputs(module, builder, walk.lifetimes, {})
        outputs = walk.outputs = RegionOutputs(module.graph, builder, walk.lifetimes, use)
        walk.run()
        lowered = walk.finish(region_name(name))
        check_region(lowered.graph, lowered.captured)
        self.externs += lowered.externs
        self.fallbacks += lowered.fallbacks
        self.captured.launches.update({launch.target: launch for launch in lowered.launches})
        return Region(self.regions.add(lowered.graph), tuple(values_of_inputs(module)), tuple(outputs.returned))

    def _call(self, node: torch.fx.Node) -> Any:
        target = node.target
        if target is operator.getitem:
            return self.results[node.args[0]][node.args[1]]  # type: ignore[index]  # FX's argument types are wide
        args = torch.fx.node.map_arg(node.args, self.results.__getitem__)
        kwargs = torch.fx.node.map_arg(node.kwargs, self.results.__getitem__)
        fake = node.meta.get("val")
        if str(target) == READS:
            return self.numbers.read(node, args[0], fake)
        if str(target) in ASSERTIONS:
            self.run_time.check(self.builder, node, self.numbers.floats)
            return None
        if isinstance(fake, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self.numbers.number(node, fake)
        for operand in node.all_input_nodes:
            if isinstance(self.results[operand], NeedsNumber) and not decides(operand, node):
                raise self._refusal(node, self.results[operand])
        if isinstance(target, Overload):
            return self._call_op(node, target, args, kwargs)
        if isinstance(target, HigherOrderOp):
            if str(target) == "with_effects" and isinstance(node.args[1], Overload):
                return self._call_with_effects(node, args, kwargs)
            return self._call_higher_order(node, args)
        if not callable(target) or any(tensors_in([*args, *kwargs.values()])):
            raise unsupported(node, f"a call of {target} is not compiled")
        return target(*args, **kwargs)

    def _call_with_effects(self, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Lowers an op that must run in order: our calls with effects keep their order, so the token passes through."""
        token, op, *rest = args
        self.builder.begin(node, origins_of(node))
        self.externs.append((str(op), "has effects"))
        results = self._library(node, rest, kwargs)
        return (token, *(results if isinstance(results, tuple) else (results,)))

    def _call_higher_order(self, node: torch.fx.Node, args: Sequence[Any]) -> Any:
        """Lowers control flow to calls of graphs, scans to scans, kernels to launches, all else to steps of its own."""
        name = str(node.target)
        if name not in (*ControlFlow.OPS, *HIGHER_ORDER, *USER_KERNELS):
            return self._call_as_it_is(node)
        mark, count = self.builder.mark(), len(self.builder.definitions)
        try:
            if name in ControlFlow.OPS:
                results = self.control_flow.lower(node)
            elif name in USER_KERNELS:
                results = self.captured.launch(node)
            else:
                self.builder.begin(node, origins_of(node))
                results = HIGHER_ORDER[name](self.builder, self.module, node, args)
                check_result(results, node.meta.get("val"))
        except (NoForm, NotWritten, Unlowered) as reason:
            self.builder.rollback(mark)
            return self._call_as_it_is(node, str(reason))
        self.write_backs.note_sharing(self.builder.definitions[count:])
        return results

    def _call_as_it_is(self, node: torch.fx.Node, reason: str = "") -> Any:
        """Lowers a higher-order op to a step of its own, which it is for a reason, if it usually is none."""
        count = len(self.builder.definitions)
        results = self.captured.lower(node, reason)
        self.externs.append((self.captured.found[-1].op, f"{A_STEP}: {reason}" if reason else A_STEP))
        self.write_backs.note_sharing(self.builder.definitions[count:])
        return results

    def _refusal(self, node: torch.fx.Node, need: NeedsNumber) -> Unsupported:
        return unsupported(node, f"{need.reason}, a number that is known only when the graph runs")

    def _call_op(self, node: torch.fx.Node, op: Overload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        plain = plain_op(op)
        if plain is not None and dropped_inside(plain, args[1:], kwargs) == 0:
            node.target, node.args = plain, node.args[1:]
            return self._call_op(node, plain, args[1:], kwargs)
        if plain is not None:
            return self._call_seeded(node, plain, args, kwargs)
        self.builder.begin(node, origins_of(node), lambda name: self.lifetimes.may_reuse(name, node))
        name = str(op)
        if name == COPY_BACK and self._is_input(node.args[0]):
            return self.write_backs.write(node)
        lowering = converted_number if is_number_for(self.builder.device, node) else self._lowering(name, op, args)
        reason = NO_LOWERING if lowering is None else self._reason_against(node, args, kwargs)
        if lowering is not None and reason is None:
            try:
                return self._lowered(node, lowering, args, kwargs)
            except Unlowered as refusal:
                reason = str(refusal)
            except (Undecided, NeedsNumber) as need:
                if not depends_on_data(need.sizes, environment_of(node)):
                    raise
                reason = DATA_DEPENDENT
            except Exception as error:  # noqa: BLE001  # a defect of a lowering, of whatever kind
                reason = self._defect(error, node)
        self.externs.append((name, reason or NO_LOWERING))
        self.fallbacks.append(Fallback(name, reason or NO_LOWERING, origins_of(node)[0].description))
        return self._library(node, args, kwargs)

    def _call_seeded(self, node: torch.fx.Node, op: Overload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Lowers a random op with a seed; a library would draw other numbers than those of the other direction."""
        self.builder.begin(node, origins_of(node), lambda name: self.lifetimes.may_reuse(name, node))
        seed, *operands = args
        reason = self._reason_against(node, args, kwargs)
        if reason is not None:
            raise Unsupported(f"{origins_of(node)[0]}: random numbers that are drawn again, {reason}")
        self.builder.given_seed = seed.at((ix.constant(0),))
        try:
            return self._lowered(node, LOWERINGS[str(op)], operands, kwargs)
        except Unlowered as refusal:
            raise Unsupported(f"{origins_of(node)[0]}: random numbers that are drawn again, {refusal}") from refusal
        finally:
            self.builder.given_seed = None

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
            elif str(node.target) == "aten.select_scatter.default":
                target, _, dim, index = args
                self.run_time.ask_position(node, size_of(index), target.shape[axis_of(dim, target.ndim)])
            result = lowering(self.builder, *args, **kwargs)
            check_result(result, node.meta.get("val"))
            if node.meta.get(ROUNDED):
                self.builder.round_since(count)
        except Exception:
            self.builder.rollback(mark)
            raise
        self.write_backs.note_sharing(self.builder.definitions[count:])
        calls = [made.target for made in self.builder.definitions[count:] if isinstance(made, Extern)]
        self.externs += [(target, CALLED_BY_LOWERING) for target in calls if target in PRODUCTS]
        return result

    def _defect(self, error: Exception, node: torch.fx.Node) -> str:
        sizes = sizes_of_node(node)
        if depends_on_data(sizes, environment_of(node)):
            return DATA_DEPENDENT
        if sizes:
            kind = f"its lowering takes no symbolic size ({type(error).__name__}: {error})"
            raise NeedsNumber(origins_of(node)[0].description, kind, sizes) from error
        if self.strict or is_data_dependent(error):
            raise _explained(error, node) from error
        kind = type(error).__name__
        description = origins_of(node)[0].description
        announce(
            f"{description}: {node.target} runs as an extern call: its lowering failed with {kind}: {error}",
            "report it with these lines of the program; options={'fallback': False} makes it an error",
        )
        return f"its lowering failed: {type(error).__name__}"

    def _reason_against(self, node: torch.fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """Returns why an op that has a lowering must not use it here.

        Kernels touch one device, and of the CPU only 0-d tensors. The user may want the random numbers of eager mode.
        """
        if not self.builder.choices.draws_numbers and draws(node.target, args):
            return DRAWN_BY_TORCH
        if not is_made_on(self.builder.device, node) and not is_number_for(self.builder.device, node):
            return OTHER_DEVICE
        if unbacked_bindings(node) and str(node.target) not in BINDING_VIEWS:
            return DATA_DEPENDENT
        if any(tensor.device and tensor.ndim for tensor in tensors_in([*args, *kwargs.values()])):
            return OTHER_DEVICE
        return None

    def _library(self, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        refuse_layouts(node)
        if target_name(node).startswith("as_strided"):
            self._refuse_without_storage(node)
        count = len(self.builder.definitions)
        if any(isinstance(self.results.get(operand), Scalar) for operand in node.all_input_nodes):
            # Programs pass floats to libraries as numbers only.
            args = torch.fx.node.map_arg(node.args, self._plain)
            kwargs = torch.fx.node.map_arg(node.kwargs, self._plain)
        result = call_extern(self.builder, call_of(node), args, kwargs)
        self.run_time.bind(self.builder, node, result, count)
        self.write_backs.note_sharing(self.builder.definitions[count:])
        return result

    def _refuse_without_storage(self, node: torch.fx.Node) -> None:
        """Checks that an op that counts places from the start of a storage gets one that is as in eager mode.

        Raises:
            Unsupported: what it gets is computed here, and lies among other tensors.
        """
        operand = self.results[node.all_input_nodes[0]]
        inputs = [result for each, result in self.results.items() if self._is_input(each)]
        if not any(operand.value is each.value for each in inputs) and not is_inside(node):
            reason = "a view by strides (as_strided) of memory around a tensor, which is not around one computed here"
            raise unsupported(node, reason, "take slices of the tensor that has the memory")

    def _plain(self, node: torch.fx.Node) -> Any:
        return plain_value(node, self.results[node])

    def _is_input(self, node: Any) -> bool:
        return isinstance(node, torch.fx.Node) and node.op == "placeholder" and isinstance(self.results[node], Tensor)
