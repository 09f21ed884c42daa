"""Lowering of control flow (`cond`, `while_loop`, `scan`, `map`, `invoke_subgraph`) to calls of regions."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ferrite_ir.language.dtypes import BOOL
from ferrite_ir.language.graph import Call, Extern, For, If, TensorType, Value, View, While, row_type
from ferrite_ir.language.sizes import Size, Symbolic, is_static
from ferrite_torch.calls.higher_order import leaves_of
from ferrite_torch.devices.dtypes import dtype_of
from ferrite_torch.diagnostics.origins import origins_of
from ferrite_torch.graphs.extern_calls import laid_out
from ferrite_torch.graphs.graph_numbers import GraphNumbers
from ferrite_torch.graphs.regions import NoForm, PassedView, Region, Use, own_strides
from ferrite_torch.graphs.unbacked_sizes import RunTimeSizes
from ferrite_torch.lowering.builder import Builder
from ferrite_torch.lowering.elementwise import element_at
from ferrite_torch.lowering.expressions import is_true
from ferrite_torch.lowering.tensors import Point, Shape, Tensor, is_dense, whole_tensor
from ferrite_torch.sizes.specialisation import NeedsNumber
from ferrite_torch.sizes.symbolic_sizes import size_of, sizes_of, steps_of
from ferrite_torch.torch_private.nodes import values_of_inputs
from ferrite_torch.torch_private.symbolic_shapes import is_unbacked_number, unbacked_bindings

LowerRegion = Callable[[torch.fx.GraphModule, str, Use], Region]


@dataclass(frozen=True, slots=True)
class _Given:
    """What a region is called with: names of values and integers, and the tensors as their caller has them."""

    args: tuple[str, ...]
    sizes: tuple[Size, ...]
    tensors: tuple[Tensor, ...]


class ControlFlow:
    """The control flow of one graph that is being lowered.

    Attributes:
        OPS: the ops that it lowers, by name.
    """

    def __init__(
        self,
        module: torch.fx.GraphModule,
        builder: Builder,
        results: Mapping[torch.fx.Node, Any],
        run_time: RunTimeSizes,
        numbers: GraphNumbers,
        lower_region: LowerRegion,
    ) -> None:
        self._module, self._builder, self._results = module, builder, results
        self._run_time, self._numbers, self._lower_region = run_time, numbers, lower_region

    def lower(self, node: torch.fx.Node) -> Any:
        """Returns the results of a node: a tuple, or the only one where torch has no tuple either.

        Raises:
            NoForm: a function that it takes has no form as a region, or a result none.
        """
        if "val" not in node.meta or node.kwargs:
            raise NoForm("it does not tell what it returns")
        self._builder.begin(node, origins_of(node))
        results = self.OPS[str(node.target)](self, node)
        return results if isinstance(node.meta["val"], (tuple, list)) else results[0]

    # --- the ops ----------------------------------------------------------------------------------------------------

    def _lower_cond(self, node: torch.fx.Node) -> tuple[Any, ...]:
        predicate, then, otherwise, operands = node.args
        fakes = self._fakes(node)
        if unbacked_bindings(node) or any(isinstance(fake, torch.SymInt) for fake in fakes):
            raise NoForm("results that depend on the branch: integers, or tensors of its own size")
        wanted = tuple(own_strides(fake) for fake in fakes if isinstance(fake, torch.Tensor))
        use = Use(wanted, knows_integers=True)
        chosen = self._chosen(predicate)
        if isinstance(chosen, (bool, int)):
            return self._called(node, then if chosen else otherwise, list(leaves_of(operands)))
        if not isinstance(chosen, Tensor) or chosen.dtype.kind == "opaque" or chosen.numel != 1:
            raise NoForm("a predicate that is no number in memory")
        chosen = chosen if chosen.dtype is BOOL else self._truth_of(chosen)
        regions = [self._region(function, use) for function in (then, otherwise)]
        values = self._values(fakes, regions[0])
        _refuse_differences(regions)
        chosen = self._builder.fresh_copy(chosen) if chosen.strided() is None else chosen
        condition = self._named(chosen, chosen.strided())
        given = self._given(list(leaves_of(operands)), regions[0])
        names = (regions[0].graph, regions[1].graph)
        origins = origins_of(node)
        self._builder.definitions.append(If(values, condition, *names, given.args, given.sizes, origins))
        return _nested(fakes, regions[0], values, given)

    def _truth_of(self, number: Tensor) -> Tensor:
        """Returns whether the one element of a tensor is anything but zero, as torch asks of what is no bool."""
        return self._builder.loop(
            number.shape, BOOL, lambda point: is_true(element_at(number, number.shape, point, None))
        )

    def _chosen(self, predicate: Any) -> Any:
        """Returns what decides; a data-dependent truth as a bool in memory."""
        value = self._results[predicate] if isinstance(predicate, torch.fx.Node) else predicate
        if not isinstance(value, NeedsNumber):
            return value
        try:
            return self._numbers.truth(predicate)
        except NeedsNumber as need:
            raise NoForm(f"a predicate that asks {need.reason}") from need

    def _lower_loop(self, node: torch.fx.Node) -> tuple[Any, ...]:
        test, body, kept = self._loop_regions(node)
        fakes, types = self._fakes(node), [self._builder.type_of(fake) for fake in kept]
        values = self._new_values(len(fakes), types)
        binds = self._run_time.carried(node)
        integers = [position for position, fake in enumerate(fakes) if isinstance(fake, torch.SymInt)]
        if sorted(binds) != integers or len(integers) != len(fakes) - len(kept):
            raise NoForm("a loop with results of a data-dependent size")
        given = self._given(list(leaves_of(node.args[2:])), body)
        bound = tuple(binds[position] for position in integers)
        origins = origins_of(node)
        loop = While(values, test.graph, body.graph, given.args, given.sizes, bound, origins=origins)
        self._builder.definitions.append(loop)
        tensors = iter(values)
        return tuple(binds[p] if p in binds else whole_tensor(next(tensors)) for p in range(len(fakes)))

    def _lower_stacking_loop(self, node: torch.fx.Node) -> tuple[Any, ...]:
        """Lowers a loop whose results are what all iterations have made, which torch's derivative of a loop needs."""
        test, body, kept = self._loop_regions(node)
        fakes = self._fakes(node)
        if len(kept) != len(fakes):
            raise NoForm("a loop that stacks integers")
        types = [
            TensorType(kind.dtype, (size_of(fake.shape[0]), *kind.shape), device=kind.device)
            for fake, kind in zip(fakes, map(self._builder.type_of, kept), strict=True)
        ]
        values, given = self._new_values(len(fakes), types), self._given(list(leaves_of(node.args[2:])), body)
        origins = origins_of(node)
        loop = While(values, test.graph, body.graph, given.args, given.sizes, stacked=True, origins=origins)
        self._builder.definitions.append(loop)
        results = tuple(map(whole_tensor, values))
        self._run_time.bind(self._builder, node, results, len(self._builder.definitions))
        return results

    def _loop_regions(self, node: torch.fx.Node) -> tuple[Region, Region, list[torch.Tensor]]:
        """Returns the condition and the body of a loop, and the tensors that it carries.

        Raises:
            NoForm: one of the three has no form.
        """
        condition, function, carried, _ = node.args
        count = len(list(leaves_of(carried)))
        parameters = values_of_inputs(self._graph_module(function))
        kept = [parameter for parameter in parameters[:count] if isinstance(parameter, torch.Tensor)]
        if not all(isinstance(each, (torch.Tensor, torch.SymInt)) for each in parameters[:count]):
            raise NoForm("a loop that carries something else than tensors and integers")
        if not all(is_dense(self._builder.type_of(fake)) for fake in kept):
            raise NoForm("a loop that carries a tensor with gaps")
        test = self._region(condition, Use())
        body = self._region(function, Use(tuple(map(steps_of, kept))))
        _refuse_condition(test)
        _refuse_other_parameters(test, body)
        if body.tensors != tuple(map(self._builder.type_of, kept)) or len(self._fakes(node)) != count:
            raise NoForm("a loop that does not carry what it is given")
        return test, body, kept

    def _lower_scan(self, node: torch.fx.Node) -> tuple[Any, ...]:
        function, carried, rows, others = node.args
        return self._lower_rows(
            node, function, list(leaves_of(carried)), list(leaves_of(rows)), list(leaves_of(others))
        )

    def _lower_map(self, node: torch.fx.Node) -> tuple[Any, ...]:
        function, rows, others = node.args
        return self._lower_rows(node, function, [], list(leaves_of(rows)), list(leaves_of(others)))

    def _lower_rows(
        self, node: torch.fx.Node, function: Any, carried: list[Any], rows: list[Any], others: list[Any]
    ) -> tuple[Any, ...]:
        """Lowers a loop over the rows of tensors, which carries some and makes rows of others."""
        fakes, type_of = self._fakes(node), self._builder.type_of
        parameters = values_of_inputs(self._graph_module(function))
        state, made = parameters[: len(carried)], fakes[len(carried) :]
        if unbacked_bindings(node) or not all(isinstance(each, torch.Tensor) for each in (*state, *fakes)) or not rows:
            raise NoForm("a loop that carries, or makes, something else than tensors")
        kept = list(map(type_of, state))
        if not all(map(is_dense, kept)):
            raise NoForm("a loop that carries a tensor with gaps")
        stacked = [TensorType(kind.dtype, kind.shape, device=kind.device) for kind in map(type_of, made)]
        types = [*kept, *stacked]
        body = self._region(function, Use(tuple(kind.strides for kind in (*kept, *map(row_type, stacked)))))
        if len(body.tensors) != len(fakes) or len(body.returned) != len(fakes) or any(kind.device for kind in types):
            raise NoForm("a loop that returns something else than its op")
        count = self._rows_of(rows[0])
        given = self._given([*carried, *rows, *others], body, slice(len(carried), len(carried) + len(rows)))
        values, origins = self._new_values(len(fakes), types), origins_of(node)
        loop = For(values, body.graph, given.args, count, len(carried), len(rows), given.sizes, origins)
        self._builder.definitions.append(loop)
        return tuple(map(whole_tensor, values))

    def _rows_of(self, operand: Any) -> Size:
        tensor = self._results[operand] if isinstance(operand, torch.fx.Node) else operand
        if not isinstance(tensor, Tensor) or not tensor.shape:
            raise NoForm("a loop over the rows of something else than a tensor")
        return tensor.shape[0]

    def _lower_call(self, node: torch.fx.Node) -> tuple[Any, ...]:
        function, _, *operands = node.args
        return self._called(node, function, list(leaves_of(operands)))

    def _called(self, node: torch.fx.Node, function: Any, operands: list[Any]) -> tuple[Any, ...]:
        fakes = self._fakes(node)
        if unbacked_bindings(node):
            raise NoForm("results of a data-dependent size")
        complete_parameters(self._graph_module(function), operands)
        region = self._region(function, Use(is_call=True, knows_integers=True))
        values = self._values(fakes, region)
        given = self._given(operands, region)
        self._builder.definitions.append(Call(values, region.graph, given.args, given.sizes, origins_of(node)))
        return _nested(fakes, region, values, given)

    OPS: Mapping[str, Callable[[ControlFlow, torch.fx.Node], tuple[Any, ...]]] = {
        "cond": _lower_cond,
        "while_loop": _lower_loop,
        "while_loop_stack_output": _lower_stacking_loop,
        "scan": _lower_scan,
        "map_impl": _lower_map,
        "invoke_subgraph": _lower_call,
    }

    # --- functions --------------------------------------------------------------------------------------------------

    def _graph_module(self, node: Any) -> torch.fx.GraphModule:
        is_held = isinstance(node, torch.fx.Node) and node.op == "get_attr"
        found = operator.attrgetter(str(node.target))(self._module) if is_held else None
        if not isinstance(found, torch.fx.GraphModule):
            raise NoForm("a function that is no graph")
        return found

    def _region(self, node: Any, use: Use) -> Region:
        return self._lower_region(self._graph_module(node), str(node.target), use)

    # --- operands and results ---------------------------------------------------------------------------------------

    def _fakes(self, node: torch.fx.Node) -> list[Any]:
        fakes = node.meta["val"]
        found = list(leaves_of(fakes))
        if isinstance(fakes, (tuple, list)) and len(found) != len(fakes):
            raise NoForm("results that are nested")
        return found

    def _given(self, operands: Sequence[Any], region: Region, rows: slice = slice(0)) -> _Given:
        """Returns what a region is called with; of the operands in ``rows`` it takes what lies along the first axis."""
        if len(operands) != len(region.parameters):
            raise NoForm(f"a function of {len(region.parameters)} parameters that is given {len(operands)}")
        args: list[str] = []
        sizes: list[Size] = []
        tensors: list[Tensor] = []
        sliced = range(len(operands))[rows]
        for position, (operand, parameter) in enumerate(zip(operands, region.parameters, strict=True)):
            value = self._results[operand] if isinstance(operand, torch.fx.Node) else operand
            if isinstance(parameter, torch.Tensor):
                args.append(self._tensor_given(value, parameter, has_rows=position in sliced))
                tensors.append(value)
            elif isinstance(parameter, torch.SymInt):
                sizes.append(_integer_given(value))
            elif type(value) is not type(parameter) or value != parameter:
                raise NoForm("a function that was traced for another number than it is given")
        return _Given(tuple(args), tuple(sizes), tuple(tensors))

    def _tensor_given(self, value: Any, parameter: torch.Tensor, *, has_rows: bool = False) -> str:
        """Returns the name of a value that is a tensor as a parameter wants it: itself, a view of it or a copy.

        With ``has_rows`` its rows are as the parameter wants them.
        """
        kind = self._builder.type_of(parameter)
        if has_rows:
            kind = _stacked(value, kind)
        if not isinstance(value, Tensor) or (value.dtype, value.device) != (kind.dtype, kind.device):
            raise NoForm("a function that is given something else than it was traced for")
        if len(value.shape) != len(kind.shape) or any(
            a != b for a, b in zip(value.shape, kind.shape, strict=True) if is_static(a) and is_static(b)
        ):
            raise NoForm("a function that is given a tensor of another shape than it was traced for")
        value = laid_out(self._builder, value, kind.strides)
        view = value.strided()
        if view is None:
            value = self._builder.fresh_copy(value, None if 0 in kind.strides else kind.strides)
            view = value.strided()
        assert view is not None, "a copy is strided"
        return self._named(value, View(view.name, view.dtype, view.shape, _strides_as(view, kind), view.offset))

    def _named(self, tensor: Tensor, view: View | None) -> str:
        """Returns the name of a value that is a view of a tensor's: of all of it as it lies, the tensor's own."""
        assert view is not None, "a copy is strided"
        kind = TensorType(view.dtype, view.shape, view.strides, tensor.device)
        if tensor.value.type == kind and view.offset == 0:
            return view.name
        (value,) = self._builder.new_values((kind,))
        aliases, origins = ((value.name, view.name),), self._builder.origins
        self._builder.definitions.append(Extern((value,), "ferrite.alias", (view,), aliases=aliases, origins=origins))
        return value.name

    def _values(self, fakes: Sequence[Any], region: Region) -> tuple[Value, ...]:
        """Returns new values for the tensors that a region returns, as the fake results of the op are."""
        if len(fakes) != len(region.returned):
            raise NoForm(f"a function that returns {len(region.returned)} values where its op returns {len(fakes)}")
        types = []
        for fake, returned in zip(fakes, region.returned, strict=True):
            if isinstance(returned, TensorType | PassedView) != isinstance(fake, torch.Tensor):
                raise NoForm("a function that returns something else than its op")
            if isinstance(returned, TensorType):
                types.append(_result_type(fake, returned, self._builder.device_of(fake)))
        return self._new_values(len(fakes), types)

    def _new_values(self, count: int, types: Sequence[TensorType]) -> tuple[Value, ...]:
        return self._builder.new_values(types, numbered=count > 1)


def decides(operand: torch.fx.Node, node: torch.fx.Node) -> bool:
    """Returns whether an operand of a node is a truth that the op chooses by; that may depend on data."""
    return str(node.target) == "cond" and operand is node.args[0]


def _stacked(value: Any, row: TensorType) -> TensorType:
    """Returns the type of a tensor whose rows have a type, of as many as a value has."""
    if not isinstance(value, Tensor) or not value.shape or not is_dense(row):
        raise NoForm("a loop over rows with gaps")
    return TensorType(row.dtype, (value.shape[0], *row.shape), (row.numel, *row.strides), row.device)


def _result_type(fake: torch.Tensor, returned: TensorType, device: str) -> TensorType:
    """Returns the type of a result in the symbols of the caller.

    Raises:
        NoForm: the function returns another one.
    """
    strides = returned.strides if all(map(is_static, returned.strides)) else own_strides(fake)
    kind = TensorType(dtype_of(fake.dtype), sizes_of(fake.shape), strides, device)
    pairs = zip((*kind.shape, *kind.strides), (*returned.shape, *returned.strides), strict=False)
    is_other = any(is_static(a) and is_static(b) and a != b for a, b in pairs)
    if (kind.dtype, kind.device, len(kind.shape)) != (returned.dtype, returned.device, len(returned.shape)) or is_other:
        raise NoForm("a function that returns a tensor of another type than its op")
    return kind


def _strides_as(view: View, kind: TensorType) -> tuple[Size, ...]:
    """Returns strides that address a view and are those of a type, as far as these are numbers."""
    pairs = zip(view.strides, kind.strides, view.shape, strict=True)
    return tuple(wanted if is_static(wanted) and (size == 1 or 0 in view.shape) else own for own, wanted, size in pairs)


def _integer_given(value: Any) -> Size:
    if isinstance(value, (int, Symbolic)):
        return int(value) if isinstance(value, bool) else value
    if isinstance(value, torch.SymInt) and not is_unbacked_number(value):
        return size_of(value)
    raise NoForm("a function that is given something else than an integer")


def complete_parameters(function: torch.fx.GraphModule, operands: Sequence[Any]) -> None:
    """Says of the parameters of a function what they are given, where torch does not: of those that nothing reads."""
    parameters = [node for node in function.graph.nodes if node.op == "placeholder"]
    for parameter, operand in zip(parameters, operands, strict=False):
        if "val" not in parameter.meta:
            parameter.meta["val"] = operand.meta["val"] if isinstance(operand, torch.fx.Node) else operand


def _nested(fakes: Sequence[Any], region: Region, values: Sequence[Value], given: _Given) -> tuple[Any, ...]:
    """Returns the results of an op: new tensors, views of what its function was given, its own integers."""
    tensors = iter(values)
    found: list[Any] = []
    for fake, returned in zip(fakes, region.returned, strict=True):
        if isinstance(returned, TensorType):
            found.append(whole_tensor(next(tensors)))
        elif isinstance(returned, PassedView):
            found.append(_seen(given.tensors[returned.parameter], sizes_of(fake.shape), returned.view.indices))
        else:
            found.append(size_of(fake) if isinstance(fake, torch.SymInt) else fake)
    return tuple(found)


def _seen(base: Tensor, shape: Shape, positions: Point) -> Tensor:
    """Returns the view of a tensor whose elements are those at these places of it."""
    return base.viewed(shape, lambda point: positions)


def _refuse_differences(regions: Sequence[Region]) -> None:
    """Raises `NoForm` unless regions take and return the same."""
    first, *others = regions
    for other in others:
        _refuse_other_parameters(first, other)
        if [type(item) for item in first.returned] != [type(item) for item in other.returned]:
            raise NoForm("branches that return something else")
        if first.tensors != other.tensors:
            raise NoForm("branches whose results have other types")


def _refuse_other_parameters(first: Region, other: Region) -> None:
    if _parameter_kinds(first) != _parameter_kinds(other):
        raise NoForm("functions that take the same operands in other layouts")


def _parameter_kinds(region: Region) -> list[Any]:
    return [
        (each.dtype, sizes_of(each.shape), steps_of(each), each.device)
        if isinstance(each, torch.Tensor)
        else type(each)
        for each in region.parameters
    ]


def _refuse_condition(region: Region) -> None:
    """Raises `NoForm` unless a region returns one bool, or an integer."""
    (returned,) = region.returned if len(region.returned) == 1 else (None,)
    is_bool = isinstance(returned, TensorType) and returned.dtype is BOOL and returned.numel == 1
    if not is_bool and not isinstance(returned, (int, Symbolic)):
        raise NoForm("a condition that is no bool")
