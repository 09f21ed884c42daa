"""The builder: what lowerings grow a graph with.

Each method appends one definition (or none) and returns lazily viewed tensors over its results. Names come from the FX
node being lowered, so a graph reads like the program it came from and the same program gives the same graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.combine_functions import AnyCombine, CombineFunction
from ferrite_ir.language.combines import COMBINES
from ferrite_ir.language.dtypes import I64, DType
from ferrite_ir.language.graph import (
    Contract,
    Definition,
    Extern,
    Graph,
    Loop,
    Origins,
    Output,
    Reduction,
    Scan,
    Segments,
    Sort,
    Tag,
    TensorType,
    Update,
    Value,
    View,
    index_loads,
)
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import Symbolic
from ferrite_ir.passes.round_stored import without_excess
from ferrite_ir.reference.rounding import wrap
from ferrite_torch.devices.dtypes import dtype_of
from ferrite_torch.lowering.extern_arguments import argument_of
from ferrite_torch.lowering.extern_results import flatten
from ferrite_torch.lowering.fresh_names import FreshNames
from ferrite_torch.lowering.lowering_choices import DEFAULT_CHOICES, LoweringChoices
from ferrite_torch.lowering.tensors import (
    Point,
    Shape,
    Tensor,
    grid_dims,
    grid_point,
    is_dense,
    reduction_dims,
    whole_tensor,
)
from ferrite_torch.sizes.symbolic_sizes import sizes_of, steps_of
from ferrite_torch.torch_private.operators import is_read_by_element

Lowered: TypeAlias = "Tensor | Sequence[Tensor | None] | None"


class Unlowered(Exception):
    """An op cannot be expressed as definitions here; it becomes an extern call, counted under this reason."""


class Builder:
    """A graph under construction.

    Attributes:
        device: device type of the graph.
        choices: what becomes kernels.
        node: the FX node being lowered; its fake result is ``node.meta["val"]``.
        fake: the fake result whose layout new values take: that of the node, or one of its list.
        inputs, definitions: of the graph so far.
    """

    def __init__(self, device: str = "cuda", choices: LoweringChoices = DEFAULT_CHOICES) -> None:
        self.device = device
        self.choices = choices
        self.node: Any = None
        self.fake: Any = None
        self.returned: frozenset[torch.fx.Node] = frozenset()
        self.given_seed: Scalar | None = None
        self.inputs: list[Value] = []
        self.definitions: list[Definition] = []
        self._origins: Origins = ()
        self._names = FreshNames()
        self._stem = "value"
        self._private: set[str] = set()
        self._may_reuse: Callable[[str], bool] = lambda name: False
        self._seed_at: int | None = None
        self._seeds = 0

    def begin(
        self, node: torch.fx.Node, origins: Origins = (), may_reuse: Callable[[str], bool] = lambda name: False
    ) -> None:
        """Starts the definitions of a node.

        ``may_reuse`` says of a value's name whether nobody reads it after this node.
        """
        self.node, self._origins, self._may_reuse = node, origins, may_reuse
        self._stem, self.fake = node.name, node.meta.get("val")
        self._private.clear()

    @property
    def is_returned(self) -> bool:
        """Returns whether the caller gets the result of the node being lowered, in its exact layout."""
        return self.node in self.returned

    @property
    def is_read_pointwise(self) -> bool:
        """Returns whether none but pointwise ops read the result of the node being lowered, and no caller gets it."""
        return not self.is_returned and is_read_by_element(self.node)

    def mark(self) -> tuple[int, int]:
        """Returns a place to go back to with `rollback`."""
        return len(self.definitions), self._seeds

    def rollback(self, mark: tuple[int, int]) -> None:
        """Drops the definitions since `mark`."""
        count, self._seeds = mark
        if self._seed_at is not None and self._seed_at >= count:
            self._seed_at = None
        del self.definitions[count:]

    def round_since(self, count: int) -> None:
        """Takes excess precision from the half values that the definitions behind the first ``count`` make."""
        for position, definition in enumerate(self.definitions[count:], count):
            if isinstance(definition, Loop):
                bodies = tuple(without_excess(body, {}) for body in definition.bodies)
                self.definitions[position] = replace(definition, bodies=bodies)

    def input(self, name: str, dtype: DType, shape: Shape, strides: tuple[int, ...], device: str = "") -> Tensor:
        """Returns a new input of the graph."""
        value = Value(self._names.fresh(name), TensorType(dtype, shape, strides, device))
        self.inputs.append(value)
        return whole_tensor(value)

    def loop(
        self,
        shape: Sequence[int],
        dtype: DType,
        body: Callable[[Point], Scalar],
        *,
        strides: Sequence[int] | None = None,
    ) -> Tensor:
        """Returns a pointwise result: ``body`` at the general point of ``shape``, cast to ``dtype``.

        Without ``strides`` the result lies as the node's fake result does if that has this shape, else row-major.

        Raises:
            Unlowered: no kernel computes with this type.
        """
        shape = tuple(shape)
        value = self._value(dtype, shape, strides)
        if 0 in shape:
            return self._allocated(value)
        scalar = sc.cast(body(grid_point(shape)), dtype)
        self.definitions.append(Loop((value,), grid_dims(shape), (scalar,), self._origins))
        return whole_tensor(value)

    def _allocated(self, *values: Value) -> Tensor:
        """Returns values without elements, the first as a tensor; allocated, not computed: no kernel is empty."""
        for value in values:
            kind = value.type
            kwargs = (("dtype", Tag("dtype", kind.dtype.name)), ("device", Tag("device", kind.device or self.device)))
            args = (kind.shape, kind.strides)
            self.definitions.append(Extern((value,), "aten.empty_strided.default", args, kwargs, origins=self._origins))
        return whole_tensor(values[0])

    def reduce(
        self,
        combine: str,
        shape: Sequence[int],
        reduction_shape: Sequence[int],
        bodies: Callable[[Point, Point], tuple[Scalar, ...]],
    ) -> tuple[Tensor, ...]:
        """Returns one tensor of ``shape`` per state component: the operands combined over ``reduction_shape``.

        ``bodies`` gets the grid point and the reduction point. Operands are in the type they are accumulated in, and so
        are the results.

        Raises:
            ValueError: the operands do not fit the combine.
        """
        shape, reduction_shape = tuple(shape), tuple(reduction_shape)
        dims, reduced = grid_dims(shape), reduction_dims(reduction_shape)
        operands = tuple(bodies(grid_point(shape), tuple(dim.index for dim in reduced)))
        results = self._states(combine, shape, operands)
        if 0 in shape:
            self._allocated(*results)
        else:
            self.definitions.append(Reduction(results, combine, dims, reduced, operands, self._origins))
        return tuple(map(whole_tensor, results))

    def contract(
        self,
        shape: Shape,
        sums: Shape,
        left: Callable[[Point, Point], Scalar],
        right: Callable[[Point, Point], Scalar],
        *,
        fast: bool = False,
        segments: Segments | None = None,
        stored: DType | None = None,
    ) -> Tensor:
        """Returns sums of products of two factors, in the type that they are carried in.

        Args:
            shape: of the result, no extent 0.
            sums: extents of what is summed up, none of them 0.
            left: a factor at a point of the result and one of a sum, in the type that it is multiplied in.
            right: the other one.
            fast: whether tensor cores may round more than the types say (`Contract.fast`).
            segments: the groups that points of a canonical dim are in, if they are in any.
            stored: the type that the op gives what is made of the sums in, if they may be rounded to it
                (`Contract.stored`).
        """
        dims, reduced = grid_dims(shape), reduction_dims(sums)
        point, inside = (tuple(dim.index for dim in each) for each in (dims, reduced))
        first, second = left(point, inside), right(point, inside)
        value = self._value(first.dtype.compute, shape, None)
        self.definitions.append(Contract(value, dims, reduced, first, second, self._origins, fast, segments, stored))
        return whole_tensor(value)

    def scan(
        self, combine: AnyCombine, shape: Sequence[int], along: int, bodies: Callable[[Point], tuple[Scalar, ...]]
    ) -> tuple[Tensor, ...]:
        """Returns one tensor of ``shape`` per state component: the inclusive scan of the operands along one axis.

        Raises:
            ValueError: the operands do not fit the combine.
        """
        shape = tuple(shape)
        dims = grid_dims(shape)
        operands = tuple(bodies(grid_point(shape)))
        results = self._states(combine, shape, operands)
        if 0 in shape:
            self._allocated(*results)
        else:
            self.definitions.append(Scan(results, combine, dims, dims[along], operands, origins=self._origins))
        return tuple(map(whole_tensor, results))

    def sort(
        self,
        shape: Sequence[int],
        along: int,
        body: Callable[[Point], Scalar],
        *,
        descending: bool = False,
        top: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Returns the elements of ``shape`` sorted along one axis, and their positions there (i64).

        Equal elements keep their order; NaN is the largest. With ``top`` only the first that many are kept.
        """
        shape = tuple(shape)
        kept = shape if top is None else (*shape[:along], top, *shape[along + 1 :])
        dims, operand = grid_dims(shape), body(grid_point(shape))
        results = self._value(operand.dtype, kept, None, "values"), self._value(I64, kept, None, "indices")
        if 0 in kept:
            self._allocated(*results)
        else:
            self.definitions.append(Sort(results, dims, dims[along], operand, descending, top, self._origins))
        return whole_tensor(results[0]), whole_tensor(results[1])

    def _states(self, combine: AnyCombine, shape: Shape, operands: tuple[Scalar, ...]) -> tuple[Value, ...]:
        row = combine.row if isinstance(combine, CombineFunction) else COMBINES[combine]
        types = tuple(operand.dtype for operand in operands)
        problem = row.operand_problem(types)
        if problem is not None:
            raise ValueError(problem)
        parts = row.state if len(row.state) > 1 else ("",)
        kinds = row.result_types(types)
        return tuple(self._value(dtype, shape, None, part) for part, dtype in zip(parts, kinds, strict=True))

    def update(
        self,
        target: Tensor,
        mode: str,
        shape: Sequence[int],
        indices: Callable[[Point], Sequence[Index]],
        body: Callable[[Point], Scalar],
        condition: Callable[[Point], Scalar] | None = None,
    ) -> Tensor:
        """Returns ``target`` with elements stored.

        At each point of ``shape``, element ``indices`` is set to or combined with the body.

        ``mode`` is ``set``, or ``add``, ``mul``, ``min``, ``max`` (atomic). The target is copied first, unless it is a
        value of this node's own or one that nobody reads later.
        """
        shape = tuple(shape)
        if 0 in shape or target.numel == 0:
            return target if self.owns(target) else self.fresh_copy(target)
        point = grid_point(shape)
        where = tuple(indices(point))
        stored = sc.cast(body(point), target.dtype)
        wanted = None if condition is None else condition(point)
        read = {load.source for scalar in (stored, wanted) if scalar is not None for load in scalar.loads}
        read.update(load.source for load in index_loads(where))
        # A store must not race with the loads of its own body.
        owned = target if self.owns(target) and target.value.name not in read else self.fresh_copy(target)
        return self.store(owned, mode, shape, where, stored, wanted)

    def owns(self, target: Tensor) -> bool:
        """Returns whether `update` would store into ``target`` where it lies.

        It is this node's own, or nobody reads it later.
        """
        if not (target.is_whole and is_dense(target.value.type)):
            return False
        return target.value.name in self._private or self._may_reuse(target.value.name)

    def store(
        self, target: Tensor, mode: str, shape: Shape, indices: Point, body: Scalar, condition: Scalar | None = None
    ) -> Tensor:
        """Returns the new version of a whole value that is stored to where it lies: an input, or a private copy.

        Raises:
            Unlowered: no kernel computes with its type.
        """
        if target.dtype.kind == "opaque":
            raise Unlowered(f"kernels do not compute with {target.dtype}")
        result = Value(self._names.fresh(self._stem), target.value.type)
        self._private.add(result.name)
        self.definitions.append(
            Update(result, target.value.name, mode, grid_dims(shape), indices, body, condition, self._origins)
        )
        return whole_tensor(result)

    def extern(
        self,
        target: str,
        args: Sequence[Any],
        kwargs: dict[str, Any] | None = None,
        fakes: Any = None,
        *,
        aliases: Sequence[int] = (),
        mutates: Sequence[int] = (),
        effects: bool = False,
    ) -> Any:
        """Returns the results of an extern call, nested like ``fakes``: a `Tensor`, a tuple of them, or None.

        Numbers among the fakes stay.

        Arguments may hold tensors (given as strided views without a copy wherever their map is one), numbers, dtypes,
        devices, layouts, memory formats and lists of these. Results have exactly the strides of the fakes. ``aliases``
        and ``mutates`` are positions in the list of tensor operands.
        """
        operands: list[Tensor] = []
        view = self._operand_viewer(operands)
        given = tuple(argument_of(argument, view) for argument in args)
        named = tuple((name, argument_of(argument, view)) for name, argument in (kwargs or {}).items())
        flat: list[Any] = []
        rebuild = flatten(fakes, flat)
        several = isinstance(fakes, (tuple, list))
        results = tuple(self._extern_result(fake, position if several else None) for position, fake in enumerate(flat))
        mutated = tuple(dict.fromkeys(operands[position].value.name for position in mutates))
        shared = tuple(
            (result.name, operands[position].value.name)
            for result in results
            if result is not None
            for position in aliases
        )
        self.definitions.append(Extern(results, target, given, named, shared, mutated, effects, self._origins))
        tensors = [
            whole_tensor(result) if result is not None else fake if isinstance(fake, (int, float, Symbolic)) else None
            for result, fake in zip(results, flat, strict=True)
        ]
        return rebuild(tensors)

    def _operand_viewer(self, operands: list[Tensor]) -> Callable[[Tensor], View]:
        def view(tensor: Tensor) -> View:
            strided = tensor.strided()
            if strided is None:
                tensor = self.fresh_copy(tensor)
                strided = tensor.strided()
            assert strided is not None
            operands.append(tensor)
            return strided

        return view

    def _extern_result(self, fake: Any, position: int | None) -> Value | None:
        if not isinstance(fake, torch.Tensor):
            return None
        stem = self._stem if position is None else f"{self._stem}_{position}"
        return Value(self._names.fresh(stem), self.type_of(fake))

    def type_of(self, fake: torch.Tensor) -> TensorType:
        """Returns the type that a value of the graph has which is like a fake tensor."""
        return TensorType(dtype_of(fake.dtype), sizes_of(fake.shape), steps_of(fake), self.device_of(fake))

    def device_of(self, fake: torch.Tensor) -> str:
        """Returns what types call the device of a fake tensor: nothing where it is that of the graph."""
        return "" if fake.device.type == self.device else str(fake.device.type)

    @property
    def origins(self) -> Origins:
        """Where the node being lowered came from."""
        return self._origins

    def new_values(self, types: Sequence[TensorType], *, numbered: bool = False) -> tuple[Value, ...]:
        """Returns new values of these types, for a definition that the caller appends itself."""
        stems = (f"{self._stem}_{position}" if numbered else self._stem for position in range(len(types)))
        return tuple(Value(self._names.fresh(stem), kind) for stem, kind in zip(stems, types, strict=True))

    def fresh_copy(self, tensor: Tensor, strides: Sequence[int] | None = None) -> Tensor:
        """Returns a copy of the tensor as a private value.

        Without ``strides`` it lies as the tensor does if that has no gaps, else as the node's fake result does if that
        has the shape, else row-major.
        """
        if strides is None:
            view = tensor.strided()
            kept = view is not None and is_dense(TensorType(view.dtype, view.shape, view.strides))
            strides = view.strides if view is not None and kept else self._default_strides(tensor.shape)
            if strides is None:
                strides = TensorType(tensor.dtype, tensor.shape).strides
        if tensor.numel == 0:
            kind = TensorType(tensor.dtype, tensor.shape, tuple(strides), tensor.device)
            value = Value(self._names.fresh(self._stem), kind)
            self._private.add(value.name)
            return self._allocated(value)
        if tensor.dtype.kind == "opaque" or tensor.device:
            return self._library_copy(tensor, tuple(strides))
        value = self._value(tensor.dtype, tensor.shape, strides)
        body = tensor.at(grid_point(tensor.shape))
        self.definitions.append(Loop((value,), grid_dims(tensor.shape), (body,), self._origins))
        return whole_tensor(value)

    def _library_copy(self, tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
        view = tensor.strided()
        if view is None:
            raise Unlowered(f"a view of {tensor.dtype} data that is not strided")
        value = Value(self._names.fresh(self._stem), TensorType(tensor.dtype, tensor.shape, strides, tensor.device))
        self._private.add(value.name)
        self.definitions.append(Extern((value,), "aten.clone.default", (view,), origins=self._origins))
        return whole_tensor(value)

    def seed(self) -> Scalar:
        """Returns a seed (i64): the one that the op is given, or a new one.

        That is drawn from torch's generator of the graph's device each time the graph runs.
        """
        if self.given_seed is not None:
            return self.given_seed
        if self._seed_at is None:
            self._seed_at = len(self.definitions)
            self._seed_name = self._names.fresh("seeds")
            self.definitions.append(self._seed_call(1))
        slot = ix.constant(self._seeds)
        self._seeds += 1
        return sc.load(self._seed_name, (slot,), I64)

    def _seed_call(self, count: int) -> Extern:
        value = Value(self._seed_name, TensorType(I64, (count,)))
        return Extern((value,), "ferrite.seed", (count, Tag("device", self.device)), origins=self._origins)

    def constant(self, number: float | Symbolic, dtype: DType) -> Scalar:
        """Returns a number of a type, of an integer type without its fraction and modulo its size, as torch does."""
        if isinstance(number, Symbolic):
            return sc.cast(sc.index_value(ix.constant(number), I64), dtype)
        if dtype.is_integer and math.isfinite(number):
            number = wrap(int(number), dtype)
        return sc.const(number, dtype)

    def finish(self, name: str, outputs: Iterable[Output], mutations: Iterable[tuple[str, str]] = ()) -> Graph:
        """Returns the graph."""
        if self._seed_at is not None:
            first = self.definitions[self._seed_at]
            self.definitions[self._seed_at] = replace(self._seed_call(self._seeds), origins=first.origins)
        return Graph(
            name, tuple(self.inputs), tuple(self.definitions), tuple(outputs), tuple(mutations), device=self.device
        )

    def _value(self, dtype: DType, shape: Shape, strides: Sequence[int] | None, part: str = "") -> Value:
        if dtype.kind == "opaque":
            raise Unlowered(f"kernels do not compute with {dtype}")
        layout = self._default_strides(shape) if strides is None else tuple(strides)
        name = self._names.fresh(f"{self._stem}_{part}" if part else self._stem)
        self._private.add(name)
        return Value(name, TensorType(dtype, shape, layout))  # type: ignore[arg-type]  # None means row-major

    def _default_strides(self, shape: Shape) -> tuple[int, ...] | None:
        fakes: tuple[Any, ...] | list[Any] = self.fake if isinstance(self.fake, (tuple, list)) else (self.fake,)
        for fake in fakes:
            if isinstance(fake, torch.Tensor) and len(fake.shape) == len(shape) and sizes_of(fake.shape) == shape:
                strides = steps_of(fake)
                return strides if is_dense(TensorType(I64, shape, strides)) else None
        return None

    def reserve(self, names: Iterable[str]) -> None:
        """Keeps names for others: no value gets them."""
        self._names.reserve(names)
