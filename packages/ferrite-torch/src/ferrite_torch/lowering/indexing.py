"""Reads and writes at places given by index tensors.

A place is an `indirect` index that carries the extent of the axis it goes into. Ops of advanced indexing count negative
places from the end; ``gather``, ``scatter``, ``embedding`` and ``index_add`` take none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch

from ferrite_ir import index as ix
from ferrite_ir import scalar as sc
from ferrite_ir.dtypes import BOOL, F32, F64, I32, I64, U8, DType
from ferrite_ir.graph import TensorType
from ferrite_ir.index import Index
from ferrite_ir.scalar import Scalar
from ferrite_ir.sizes import is_provably_at_most
from ferrite_torch.builder import Builder, Unlowered
from ferrite_torch.lowering.creation import made
from ferrite_torch.lowering.elementwise import Element, broadcast_point, element_at, plain_number, refuse_opaque
from ferrite_torch.lowering.expressions import (
    add,
    call,
    choose,
    eq,
    guarded,
    is_true,
    larger,
    mul,
    number_of,
)
from ferrite_torch.lowering.masking import rank_at, ranks
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.views import axis_of, point_at, replaced, reshaped
from ferrite_torch.symbols import sizes_of, steps_of
from ferrite_torch.tensors import Point, Tensor, is_dense


def place(index: Tensor, point: Point, size: int, *, wraps: bool = False) -> Index:
    """Returns the place that an index tensor names at a point, in an axis of this size."""
    return ix.indirect(sc.cast(index.at(point), I64), size, wraps)


def accumulated(
    b: Builder,
    x: Tensor,
    mode: str,
    shape: Sequence[int],
    indices: Callable[[Point], Sequence[Index]],
    body: Callable[[Point], Scalar],
    condition: Callable[[Point], Scalar] | None = None,
) -> Tensor:
    """Returns ``x`` with the body combined into it at each point of ``shape``.

    Raises:
        Unlowered: see `accumulated_widely`.
    """
    summed = accumulated_widely(b, x, mode, shape, indices, body, condition)
    return summed if summed.dtype is x.dtype else b.loop(x.shape, x.dtype, summed.at)


def accumulated_widely(
    b: Builder,
    x: Tensor,
    mode: str,
    shape: Sequence[int],
    indices: Callable[[Point], Sequence[Index]],
    body: Callable[[Point], Scalar],
    condition: Callable[[Point], Scalar] | None = None,
) -> Tensor:
    """Returns ``x`` with the body combined into it at each point of ``shape``, not rounded to its own type yet.

    It is done in a type wide enough for atomics and for the sum: f32, i32 or wider.

    Raises:
        Unlowered: torch is to be deterministic and the order of float operations is not, or the type has no atomics.
    """
    refuse_opaque(x.dtype)
    if x.dtype.is_float and mode in ("add", "mul"):
        refuse_disorder("atomic additions" if mode == "add" else "atomic multiplications")
    if x.dtype.kind == "uint" and x.dtype is not U8:
        raise Unlowered(f"an atomic {mode} of {x.dtype}")
    wide = x.dtype if x.dtype in (I64, F64) else F32 if x.dtype.is_float else I32
    start = x if wide is x.dtype else b.loop(x.shape, wide, x.at)
    return b.update(start, mode, shape, indices, lambda point: sc.cast(body(point), wide), condition)


def refuse_disorder(what: str) -> None:
    """Checks that results may depend on the order in which threads come.

    Raises:
        Unlowered: deterministic algorithms are asked for.
    """
    if torch.are_deterministic_algorithms_enabled():
        raise Unlowered(f"{what} have no fixed order, and deterministic algorithms are asked for")


def overwritten(
    b: Builder,
    x: Tensor,
    shape: Sequence[int],
    indices: Callable[[Point], Sequence[Index]],
    body: Callable[[Point], Scalar],
    source: Element,
) -> Tensor:
    """Returns ``x`` with the body, which reads ``source``, stored at each point of ``shape``.

    Raises:
        Unlowered: torch is to be deterministic, and two different elements may go to one place.
    """
    refuse_opaque(x.dtype)
    if isinstance(source, Tensor) and not is_provably_at_most(source.numel, 1):
        refuse_disorder("stores to one place")
    return b.update(x, "set", shape, indices, body)


@dataclass(frozen=True, slots=True)
class Advanced:
    """Torch's advanced indexing: one index tensor or None per leading axis of a tensor.

    Attributes:
        shape: of the indexed tensor.
        indices: as given.
        broadcast: the shape that the index tensors have together.
        start: the axis of the result where that shape stands.
    """

    shape: tuple[int, ...]
    indices: tuple[Tensor | None, ...]
    broadcast: tuple[int, ...]
    start: int

    @property
    def result_shape(self) -> tuple[int, ...]:
        """Returns the shape of what is indexed."""
        whole = [size for axis, size in enumerate(self.shape) if self._index(axis) is None]
        return (*whole[: self.start], *self.broadcast, *whole[self.start :])

    def _index(self, axis: int) -> Tensor | None:
        return self.indices[axis] if axis < len(self.indices) else None

    def to_old(self, point: Point) -> Point:
        """Returns the point of the indexed tensor for a point of the result."""
        end = self.start + len(self.broadcast)
        shared = point[self.start : end]
        whole = iter((*point[: self.start], *point[end:]))
        old: list[Index] = []
        for axis, size in enumerate(self.shape):
            index = self._index(axis)
            if index is None:
                old.append(next(whole))
            else:
                old.append(place(index, broadcast_point(index.shape, self.broadcast, shared), size, wraps=True))
        return tuple(old)


def advanced(x: Tensor, indices: Sequence[Tensor | None]) -> Advanced:
    """Returns the indexing of a tensor by index tensors.

    Raises:
        Unlowered: an index is a mask: how many places it names is only known at run time.
    """
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if any(index.dtype in (BOOL, U8) for _, index in given):
        raise Unlowered("an index that is a mask")
    if not given:
        return Advanced(x.shape, (), (), x.ndim)
    broadcast = tuple(_broadcast_shape(index.shape for _, index in given))
    first, last = given[0][0], given[-1][0]
    adjacent = last - first + 1 == len(given)
    return Advanced(x.shape, tuple(indices), broadcast, first if adjacent else 0)


def _broadcast_shape(shapes: Iterable[Sequence[int]]) -> Iterator[int]:
    """Yields the sizes that shapes, which fit, have together."""
    for sizes in reversed(list(zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1))):
        yield next((size for size in sizes if size != 1), 1)


@lowers(
    "aten.index.Tensor",
    "aten.index.Tensor_hacked_twin",
    "aten._unsafe_index.Tensor",
    "aten._unsafe_index.Tensor_hacked_twin",
)
def index(b: Builder, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    refuse_opaque(x.dtype)
    found = advanced(x, indices)
    return made(b, lambda point: x.at(found.to_old(point)))


@lowers("aten._unsafe_masked_index.default")
def masked_index(b: Builder, x: Tensor, mask: Tensor, indices: Sequence[Tensor | None], fill: Element) -> Tensor:
    refuse_opaque(x.dtype)
    found = advanced(x, indices)
    shape = found.result_shape
    other = b.constant(plain_number(fill), x.dtype.compute)

    def body(point: Point) -> Scalar:
        inside = is_true(mask.value_at(broadcast_point(mask.shape, shape, point)))
        return guarded(inside, x.value_at(found.to_old(point)), other)

    return made(b, body)


@lowers(
    "aten.index_put.default",
    "aten.index_put.hacked_twin",
    "aten._unsafe_index_put.default",
    "aten._unsafe_index_put.hacked_twin",
)
def index_put(
    b: Builder, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    refuse_opaque(x.dtype, values.dtype)
    if len(indices) == 1 and indices[0] is not None and indices[0].dtype is BOOL:
        return _put_masked(b, x, indices[0], values, accumulate)
    found = advanced(x, indices)
    shape = found.result_shape

    def body(point: Point) -> Scalar:
        return element_at(values, shape, point, x.dtype.compute)

    if accumulate:
        return accumulated(b, x, "add", shape, found.to_old, body)
    return overwritten(b, x, shape, found.to_old, body, values)


def _put_masked(b: Builder, x: Tensor, mask: Tensor, values: Tensor, accumulate: bool) -> Tensor:
    """Returns ``x`` with values where a mask over its leading axes holds: one after the other, or one for all."""
    rest = x.shape[mask.ndim :]
    is_ranked = values.ndim > len(rest) and values.shape[0] != 1
    counted = ranks(b, mask.shape, mask.at) if is_ranked and mask.numel != 0 else None
    given = (values.shape[0] if is_ranked else 1, *rest)

    def body(point: Point) -> Scalar:
        lead, tail = point[: mask.ndim], point[mask.ndim :]
        number = ix.constant(0) if counted is None else ix.indirect(rank_at(counted, lead), given[0])
        value = element_at(values, given, (number, *tail), x.dtype.compute)
        old = x.value_at(point)
        return guarded(mask.at(lead), add(old, value) if accumulate else value, old)

    return made(b, body)


@lowers("aten._unsafe_masked_index_put_accumulate.default")
def masked_index_put(b: Builder, x: Tensor, mask: Tensor, indices: Sequence[Tensor | None], values: Tensor) -> Tensor:
    found = advanced(x, indices)
    shape = found.result_shape
    return accumulated(
        b,
        x,
        "add",
        shape,
        found.to_old,
        lambda point: element_at(values, shape, point, x.dtype.compute),
        lambda point: is_true(mask.value_at(broadcast_point(mask.shape, shape, point))),
    )


@lowers("aten.index_select.default")
def index_select(b: Builder, x: Tensor, dim: int, index: Tensor) -> Tensor:
    refuse_opaque(x.dtype)
    if x.ndim == 0:
        return made(b, lambda point: x.at(()))
    axis = axis_of(dim, x.ndim)
    return made(
        b, lambda point: x.at(replaced(point, axis, place(index, point[axis : axis + index.ndim], x.shape[axis])))
    )


@lowers("aten.gather.default")
def gather(b: Builder, x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    refuse_opaque(x.dtype)
    if index.numel == 0:  # an empty index may be of any rank
        return made(b, lambda point: sc.const(0, x.dtype.compute))
    return made(b, lambda point: x.at(_along(x, dim, index, point)))


def _along(x: Tensor, dim: int, index: Tensor, point: Point) -> Point:
    """Returns the point of ``x`` for a point of ``index``, which names the place along one axis.

    A tensor without dims stands for one of one element.
    """
    if x.ndim == 0:
        return ()
    axis = axis_of(dim, x.ndim)
    found = place(index, point, x.shape[axis])
    return replaced(point, axis, found) if point else (found,)


@lowers("aten.take.default")
def take(b: Builder, x: Tensor, index: Tensor) -> Tensor:
    refuse_opaque(x.dtype)
    flat = reshaped(x, (x.numel,))
    return made(b, lambda point: flat.at((place(index, point, x.numel, wraps=True),)))


@lowers("aten.scatter.src", "aten.scatter.value")
def scatter(b: Builder, x: Tensor, dim: int, index: Tensor, source: Element) -> Tensor:
    constant = _constant_base(b, x, dim, index)
    if constant is not None:
        return _compared(b, x, dim, index, lambda point: _source_at(source, x, point), constant)

    def body(point: Point) -> Scalar:
        return _source_at(source, x, point)

    return overwritten(b, x, index.shape, lambda point: _along(x, dim, index, point), body, source)


def _source_at(source: Element, x: Tensor, point: Point) -> Scalar:
    """Returns the element of a source that may be longer than the index, or have no dims for one."""
    if isinstance(source, Tensor):
        return sc.cast(source.at(point[: source.ndim] if source.ndim else ()), x.dtype.compute)
    return element_at(source, (), (), x.dtype.compute)


@lowers("aten.scatter.reduce", "aten.scatter.value_reduce")
def scatter_with(b: Builder, x: Tensor, dim: int, index: Tensor, source: Element, *, reduce: str) -> Tensor:
    return _combined(b, x, dim, index, source, {"add": "sum", "multiply": "prod"}.get(reduce, reduce))


def _constant_base(b: Builder, x: Tensor, dim: int, index: Tensor) -> Scalar | None:
    """Returns the number that ``x`` holds everywhere, if it does and one element at most is stored along ``dim``."""
    if x.ndim == 0 or 0 in x.shape:
        return None
    axis = axis_of(dim, x.ndim)
    if index.shape != (*x.shape[:axis], 1, *x.shape[axis + 1 :]):
        return None
    refuse_opaque(x.dtype)
    return b.uniform(x)


def _compared(
    b: Builder, x: Tensor, dim: int, index: Tensor, source: Callable[[Point], Scalar], constant: Scalar
) -> Tensor:
    """Returns what a scatter of one element along ``dim`` into a constant gives: each element asks whether it is it.

    The result fuses with what reads it, and need not be in memory: the gradient of a cross entropy is such a scatter.
    """
    axis, base = axis_of(dim, x.ndim), sc.cast(constant, x.dtype.compute)

    def body(point: Point) -> Scalar:
        origin = replaced(point, axis, ix.constant(0))
        found = eq(sc.cast(index.at(origin), I64), number_of(point[axis]))
        return choose(found, sc.cast(source(origin), x.dtype.compute), base)

    return b.loop(x.shape, x.dtype, body)


@lowers("aten.scatter_add.default")
def scatter_add(b: Builder, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    constant = _constant_base(b, x, dim, index)
    if constant is not None and x.dtype is not BOOL:
        start = sc.cast(constant, x.dtype.compute)
        return _compared(b, x, dim, index, lambda point: add(start, _source_at(source, x, point)), constant)
    return _combined(b, x, dim, index, source, "sum")


def _combined(b: Builder, x: Tensor, dim: int, index: Tensor, source: Element, reduce: str) -> Tensor:
    return reduced_into(b, x, reduce, _scattered(x, dim, index, source), includes_self=True)


@dataclass(frozen=True, slots=True)
class Stores:
    """Where elements go, and which: ``indices`` and ``body`` by the point of ``shape``."""

    shape: tuple[int, ...]
    indices: Callable[[Point], Sequence[Index]]
    body: Callable[[Point], Scalar]


def _scattered(x: Tensor, dim: int, index: Tensor, source: Element) -> Stores:
    return Stores(index.shape, lambda point: _along(x, dim, index, point), lambda point: _source_at(source, x, point))


_MODES = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}
"""How elements are combined in memory for each reduction."""


def reduced_into(b: Builder, x: Tensor, reduce: str, stores: Stores, *, includes_self: bool) -> Tensor:
    """Returns ``x`` with elements reduced into it; ``includes_self`` says whether what was there counts as one.

    Raises:
        Unlowered: see `accumulated_widely`.
    """
    refuse_opaque(x.dtype)
    mode = _MODES[reduce]
    target = x
    if not includes_self:
        # What was there gives way to a number that changes no result, wherever something is combined into it.
        neutral = _neutral(mode, x.dtype)
        copy = b.fresh_copy(x)  # the source may be x itself, and is read once more below
        target = b.update(copy, "set", stores.shape, stores.indices, lambda _: neutral)
    if reduce != "mean":
        return accumulated(b, target, mode, stores.shape, stores.indices, stores.body)
    # Sums of integers wrap around in their own type before they are divided.
    add_up = accumulated_widely if x.dtype.is_float else accumulated
    total = add_up(b, target, mode, stores.shape, stores.indices, stores.body)
    return _averaged(b, x, total, stores, includes_self=includes_self)


def _averaged(b: Builder, x: Tensor, total: Tensor, stores: Stores, *, includes_self: bool) -> Tensor:
    """Returns sums divided by how many elements went into each; those of integers are rounded down."""
    start = b.loop(x.shape, I32, lambda _: sc.const(int(includes_self), I32))
    counts = b.update(start, "add", stores.shape, stores.indices, lambda _: sc.const(1, I32))

    def quotient(point: Point) -> Scalar:
        summed = total.value_at(point)
        count = sc.cast(larger(counts.at(point), 1), summed.dtype)
        return call("div" if summed.dtype.is_float else "floordiv", summed, count)

    return b.loop(x.shape, x.dtype, quotient)


def _neutral(mode: str, dtype: DType) -> Scalar:
    """Returns the number that changes no result when it is combined with others."""
    if mode in ("add", "mul"):
        return sc.const(int(mode == "mul"), dtype.compute)
    return sc.const(dtype.lowest if mode == "max" else dtype.highest, dtype.compute)


@lowers("aten.scatter_reduce.two")
def scatter_reduce(
    b: Builder, x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    return reduced_into(b, x, reduce, _scattered(x, dim, index, source), includes_self=include_self)


@lowers("aten.index_reduce.default")
def index_reduce(
    b: Builder, x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    stores = Stores(
        source.shape,
        lambda point: _rows(x, dim, index, point),
        lambda point: sc.cast(source.at(point), x.dtype.compute),
    )
    return reduced_into(b, x, reduce, stores, includes_self=include_self)


@lowers("aten.index_add.default")
def index_add(b: Builder, x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    def body(point: Point) -> Scalar:
        value = sc.cast(source.at(point[: source.ndim]), x.dtype.compute)
        return value if alpha == 1 else mul(value, alpha)

    return accumulated(b, x, "add", source.shape, lambda point: _rows(x, dim, index, point), body)


def _rows(x: Tensor, dim: int, index: Tensor, point: Point) -> Point:
    """Returns the point of ``x`` for a point of a source whose position along an axis is looked up in ``index``."""
    if x.ndim == 0:
        return ()
    axis = axis_of(dim, x.ndim)
    if not point:
        return (place(index, (ix.constant(0),) * index.ndim, x.shape[axis]),)
    return replaced(point, axis, place(index, point[axis : axis + index.ndim], x.shape[axis]))


@lowers("aten.index_copy.default")
def index_copy(b: Builder, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return overwritten(
        b,
        x,
        source.shape,
        lambda point: _rows(x, dim, index, point),
        lambda point: sc.cast(source.at(point), x.dtype.compute),
        source,
    )


@lowers("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def index_fill(b: Builder, x: Tensor, dim: int, index: Tensor, value: Element) -> Tensor:
    if x.ndim == 0:
        return index_fill(b, b.fresh_copy(reshaped(x, (1,))), 0, index, value).viewed((), lambda _: [ix.constant(0)])
    axis = axis_of(dim, x.ndim)
    shape = (*x.shape[:axis], index.numel, *x.shape[axis + 1 :])

    def indices(point: Point) -> Point:
        return replaced(point, axis, place(index, point[axis : axis + index.ndim], x.shape[axis], wraps=True))

    return overwritten(b, x, shape, indices, lambda point: element_at(value, shape, point, x.dtype.compute), value)


@lowers("aten.as_strided_scatter.default")
def as_strided_scatter(
    b: Builder, x: Tensor, source: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: Any = None
) -> Tensor:
    """Returns ``x`` with the elements at strided places of its storage replaced.

    Raises:
        Unlowered: ``x`` is not packed in memory, or does not hold all of these places.
    """
    fake = b.node.args[0].meta["val"]
    shape, strides = sizes_of(size), sizes_of(stride)
    kind = TensorType(x.dtype, x.shape, steps_of(fake))
    own = int(fake.storage_offset())
    start = (own if storage_offset is None else int(storage_offset)) - own
    reach = start + sum(max(length - 1, 0) * step for length, step in zip(shape, strides, strict=True))
    if not is_dense(kind) or start < 0 or reach >= max(x.numel, 1):
        raise Unlowered("as_strided_scatter beyond the elements of its operand")
    return overwritten(
        b,
        x,
        shape,
        lambda point: point_at(ix.linearize(point, strides) + start, kind),
        lambda point: element_at(source, shape, point, x.dtype.compute),
        source,
    )


@lowers("aten.put.default")
def put(b: Builder, x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Returns a tensor with elements at flat places replaced, or added to; negative places count from the end."""
    values = reshaped(source, index.shape)

    def where(point: Point) -> Point:
        return ix.delinearize(place(index, point, x.numel, wraps=True), x.shape)

    def body(point: Point) -> Scalar:
        return sc.cast(values.at(point), x.dtype.compute)

    if accumulate:
        return accumulated(b, x, "add", index.shape, where, body)
    return overwritten(b, x, index.shape, where, body, source)
