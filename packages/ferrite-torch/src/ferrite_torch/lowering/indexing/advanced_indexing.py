"""Reads and writes at positions given by several index tensors, or by a mask; negative ones count from the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import BOOL, I64, U8
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar
from ferrite_torch.lowering.builder import Builder, Unlowered
from ferrite_torch.lowering.elementwise import Element, broadcast_point, element_at, plain_number, refuse_opaque
from ferrite_torch.lowering.expressions import add, eq, guarded, is_true
from ferrite_torch.lowering.indexing.masking import rank_at, ranks
from ferrite_torch.lowering.indexing.stores import accumulated, index_at, overwritten
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.requirements import in_bounds, required
from ferrite_torch.lowering.shapes.creation import made
from ferrite_torch.lowering.tensors import Point, Tensor


@dataclass(frozen=True, slots=True)
class Advanced:
    """Torch's advanced indexing: one index tensor or None per leading axis of a tensor.

    Attributes:
        shape: of the indexed tensor.
        indices: as given.
        broadcast: the shape that the index tensors have together.
        start: the axis of the result where that shape stands.
        builder: of the graph that the index tensors are of; None for an op that promises that its positions exist.
    """

    shape: tuple[int, ...]
    indices: tuple[Tensor | None, ...]
    broadcast: tuple[int, ...]
    start: int
    builder: Builder | None

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
                named = broadcast_point(index.shape, self.broadcast, shared)
                old.append(index_at(self.builder, index, named, size, wraps=True))
        return tuple(old)


def advanced(b: Builder, x: Tensor, indices: Sequence[Tensor | None]) -> Advanced:
    """Returns the indexing of a tensor by index tensors.

    Raises:
        Unlowered: an index is a mask: how many positions it names is only known at run time.
    """
    checked_by = None if str(b.node.target).startswith("aten._unsafe") else b
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if any(index.dtype in (BOOL, U8) for _, index in given):
        raise Unlowered("an index that is a mask")
    if not given:
        return Advanced(x.shape, (), (), x.ndim, checked_by)
    broadcast = tuple(_broadcast_shape(index.shape for _, index in given))
    first, last = given[0][0], given[-1][0]
    adjacent = last - first + 1 == len(given)
    return Advanced(x.shape, tuple(indices), broadcast, first if adjacent else 0, checked_by)


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
    found = advanced(b, x, indices)

    def body(point: Point) -> Scalar:
        old = found.to_old(point)
        return in_bounds(b, x.at(old), old)

    return made(b, body)


@lowers("aten._unsafe_masked_index.default")
def masked_index(b: Builder, x: Tensor, mask: Tensor, indices: Sequence[Tensor | None], fill: Element) -> Tensor:
    refuse_opaque(x.dtype)
    found = advanced(b, x, indices)
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
    found = advanced(b, x, indices)
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
        found = guarded(mask.at(lead), add(old, value) if accumulate else value, old)
        if counted is None:
            return found
        last = tuple(ix.constant(size - 1) for size in mask.shape)
        return required("source", eq(sc.cast(counted.at(last), I64), given[0]), found)

    return made(b, body)


@lowers("aten._unsafe_masked_index_put_accumulate.default")
def masked_index_put(b: Builder, x: Tensor, mask: Tensor, indices: Sequence[Tensor | None], values: Tensor) -> Tensor:
    found = advanced(b, x, indices)
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
