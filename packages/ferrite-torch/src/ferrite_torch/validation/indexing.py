"""Checks of ops that read or write at positions which tensors name, and of those that write a part of a tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ferrite_torch.rewrites.overlapping_targets import is_repeated
from ferrite_torch.validation.registry import checks

Checks = Iterator[tuple[Any, str]]
_POSITIONS = (torch.int64, torch.int32)
_MASKS = (torch.bool, torch.uint8)


@checks("index_put", "_index_put_impl")
def _index_put(self: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, **_: Any) -> Checks:
    """Yields that the values fit what they are written to, whose shape advanced indexing says."""
    for index in indices:
        known = index is None or index.dtype in (*_POSITIONS, *_MASKS)
        yield known, "tensors used as indices must be long, int, byte or bool tensors"
    yield from _masks_fit(self, indices)
    target = _indexed_shape(self, indices)
    shown = f"value tensor of shape {list(values.shape)} cannot be broadcast to indexing result of shape {target}"
    yield broadcasts(values.shape, target), f"shape mismatch: {shown}"
    yield from _reads_something(self, indices, target)


@checks("index.Tensor")
def _index(self: torch.Tensor, indices: Sequence[torch.Tensor | None], **_: Any) -> Checks:
    yield from _masks_fit(self, indices)
    yield from _reads_something(self, indices, _indexed_shape(self, indices))


def _masks_fit(self: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> Checks:
    """Yields that each mask is as large as the dims that it takes the place of."""
    axis = 0
    for index in indices:
        if index is None or index.dtype not in _MASKS:
            axis += 1
            continue
        shown = f"The shape of the mask {list(index.shape)} does not match the shape of the indexed tensor"
        yield (
            _same(index.shape, self.shape[axis : axis + index.dim()]),
            f"{shown} {list(self.shape)}, whose dims it takes the place of from {axis} on",
        )
        axis += index.dim()


def _reads_something(self: torch.Tensor, indices: Sequence[torch.Tensor | None], target: Sequence[Any]) -> Checks:
    if any(size is None for size in target):
        return  # what a mask has no room for it does not choose
    empty = any(index is not None and self.shape[axis] == 0 for axis, index in enumerate(indices))
    yield not empty or any(size == 0 for size in target), "index is out of bounds for dimension with size 0"


def _indexed_shape(self: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> list[Any]:
    """Returns the shape of what indices name: the axes of the indices stand together, first if they were apart.

    A mask counts as an index of each of its dims, of so many elements as it chooses: None, as that depends on data.
    """
    named = [shape for index in indices for shape in _shapes_of(index)]
    positions = [axis for axis, shape in enumerate(named) if shape is not None]
    counted = [[1 if size is None else size for size in named[axis]] for axis in positions]
    shape = list(torch.broadcast_shapes(*counted))  # type: ignore[no-untyped-call]
    if [None] in named and shape[-1] == 1:
        shape[-1] = None
    kept = [(axis, size) for axis, size in enumerate(self.shape) if axis not in positions]
    if not positions:
        return list(self.shape)
    is_together = positions[-1] - positions[0] + 1 == len(positions)
    before = [size for axis, size in kept if is_together and axis < positions[0]]
    after = [size for axis, size in kept if not (is_together and axis < positions[0])]
    return [*before, *shape, *after]


def _shapes_of(index: torch.Tensor | None) -> list[Any]:
    """Returns the shape of an index for each dim that it takes the place of, None where that is kept whole."""
    if index is None or index.dtype not in _MASKS:
        return [None if index is None else list(index.shape)]
    return [[None]] * index.dim()


def broadcasts(shape: Sequence[Any], target: Sequence[Any]) -> bool:
    """Returns whether a shape can be expanded to another, whose sizes may be unknown (None)."""
    if len(shape) > len(target):
        return all(size == 1 for size in shape[: len(shape) - len(target)]) and broadcasts(
            shape[len(shape) - len(target) :], target
        )
    ends = target[len(target) - len(shape) :]
    return all(end is None or size == 1 or size == end for size, end in zip(shape, ends, strict=True))  # noqa: PLR1714


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(a == b for a, b in zip(one, other, strict=True))


# --- parts that are written -------------------------------------------------------------------------------------------


@checks("slice_scatter")
def _slice_scatter(  # the op's own arguments
    self: torch.Tensor, src: torch.Tensor, dim: int, start: Any, end: Any, step: Any, **_: Any
) -> Checks:
    part = self.new_empty(()).expand(self.shape)
    part = torch.ops.aten.slice.Tensor(part, dim, start, end, step)
    yield _same(part.shape, src.shape), f"expected src to have a size equal to the slice of self: {list(part.shape)}"


@checks("select")
def _select(self: torch.Tensor, dim: int, index: Any, **_: Any) -> Checks:
    yield self.dim() != 0, "select() cannot be applied to a 0-dim tensor."
    size = self.shape[dim]
    message = f"select(): index {index} out of range for tensor of size {list(self.shape)} at dimension {dim}"
    yield -size <= index, message
    yield index < size, message


@checks("select_scatter")
def _select_scatter(self: torch.Tensor, src: torch.Tensor, dim: int, index: Any, **_: Any) -> Checks:
    yield from _select(self, dim, index)
    kept = [size for axis, size in enumerate(self.shape) if axis != dim % max(self.dim(), 1)]
    yield _same(kept, src.shape), f"expected src to have a size equal to the slice of self: {kept}"


@checks("diagonal_scatter")
def _diagonal_scatter(self: torch.Tensor, src: torch.Tensor, offset: int, dim1: int, dim2: int, **_: Any) -> Checks:
    part = self.new_empty(()).expand(self.shape).diagonal(offset, dim1, dim2)
    yield _same(part.shape, src.shape), f"expected src to have a size equal to the slice of self: {list(part.shape)}"


@checks("as_strided", "as_strided_copy")
def _as_strided(
    self: torch.Tensor, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any, **_: Any
) -> Checks:
    yield from _fits_storage(self, size, stride, storage_offset)


@checks("as_strided_scatter")
def _as_strided_scatter(  # the op's own arguments
    self: torch.Tensor, src: torch.Tensor, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any, **_: Any
) -> Checks:
    yield _same(size, src.shape), f"expected src to have a size equal to the slice of self: {list(size)}"
    if is_repeated(self):  # what is written to is a clone, whose elements lie apart
        self = self.clone()
    yield from _fits_storage(self, size, stride, storage_offset)


def _fits_storage(self: torch.Tensor, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any) -> Checks:
    if any(extent == 0 for extent in size):
        return
    offset = self.storage_offset() if storage_offset is None else storage_offset
    last = offset + sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))
    needed = (last + 1) * self.element_size()
    held = self.untyped_storage().nbytes()
    yield (
        needed <= held,
        (
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset} need a storage of size "
            f"{needed}, and are out of bounds for storage of size {held}"
        ),
    )


# --- vectors of positions
# ------------------------------------------------------------------------------------------------


def _is_vector(op: str, index: torch.Tensor) -> tuple[Any, str]:
    return index.dim() <= 1, f"{op}(): Index is supposed to be a vector"


@checks("index_select")
def _index_select(self: torch.Tensor, dim: int, index: torch.Tensor, **_: Any) -> Checks:
    yield _is_vector("index_select", index)
    yield index.dtype in _POSITIONS, "index_select(): Expected dtype int32 or int64 for index"
    if self.dim() == 0:
        yield index.numel() == 1, "index_select(): Index to scalar can have only 1 value"
        return
    others = [size for axis, size in enumerate(self.shape) if axis != dim % self.dim()]
    reads = index.numel() != 0 and all(size != 0 for size in others)
    yield not reads or self.shape[dim] != 0, "index out of range in self"


@checks("index_add", "index_reduce")
def _index_add(self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, **given: Any) -> Checks:
    known = given.get("reduce", "mean") in ("prod", "mean", "amax", "amin")
    yield known, "index_reduce(): Expected reduce to be one of prod, mean, amax or amin"
    yield _is_vector("index_add", index)
    yield index.dtype in _POSITIONS, "index_add(): Expected dtype int32/int64 for index"
    yield self.dtype == source.dtype, "index_add(): self and source must have the same scalar type"
    is_free = self.device.type == "cpu" and "alpha" in given  # a CPU's index_add alone takes a vector for a number
    yield is_free or self.dim() != 0 or source.dim() == 0, "source tensor shape must match self tensor shape"
    yield from _parts_match("index_add", self, dim, index, source)


@checks("index_copy")
def _index_copy(self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, **_: Any) -> Checks:
    yield _is_vector("index_copy", index)
    yield index.dtype is torch.int64, "index_copy(): Expected a long tensor for index"
    yield self.dtype == source.dtype, "index_copy(): self and source expected to have the same dtype"
    yield from _parts_match("index_copy", self, dim, index, source)


def _parts_match(op: str, self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> Checks:
    axis = dim % max(self.dim(), 1)
    count = source.shape[axis] if 0 <= axis < source.dim() else 1
    yield self.dim() == 0 or source.dim() in (0, self.dim()), f"{op}(): source and destination differ in dimensionality"
    yield index.numel() == count, f"{op}(): Number of indices should be equal to source.size(dim)"
    if self.dim() == source.dim() != 0:
        pairs = [(a, b) for at, (a, b) in enumerate(zip(self.shape, source.shape, strict=True)) if at != axis]
        yield all(a == b for a, b in pairs), f"{op}(): source and destination tensors have slices of different shapes"
    if self.dim() != 0:
        writes = source.numel() != 0
        yield not writes or self.shape[axis] != 0, f"{op}(): index out of range in self"


@checks("index_fill")
def _index_fill(self: torch.Tensor, dim: int, index: torch.Tensor, value: Any, **_: Any) -> Checks:
    yield _is_vector("index_fill_", index)
    yield index.dtype is torch.int64, "index_fill_(): Expected dtype int64 for index."
    if isinstance(value, torch.Tensor):
        yield value.dim() == 0, "index_fill_ only supports a 0-dimensional value tensor"
    if self.dim() != 0:
        others = [size for axis, size in enumerate(self.shape) if axis != dim % self.dim()]
        writes = index.numel() != 0 and all(size != 0 for size in others)
        yield not writes or self.shape[dim] != 0, "index out of range in self"


@checks("put")
def _put(self: torch.Tensor, index: torch.Tensor, source: torch.Tensor, **_: Any) -> Checks:
    yield index.dtype is torch.int64, "put_(): Expected a long tensor for index"
    yield self.dtype == source.dtype, "put_(): self and source expected to have the same dtype"
    yield index.numel() == source.numel(), "put_(): Expected source and index to have the same number of elements"
    yield index.numel() == 0 or self.numel() != 0, "put_(): Expected self to be non-empty"


@checks("take")
def _take(self: torch.Tensor, index: torch.Tensor, **_: Any) -> Checks:
    yield index.dtype is torch.int64, "take(): Expected a long tensor for index"
    yield index.numel() == 0 or self.numel() != 0, "take(): tried to take from an empty tensor"


@checks("gather")
def _gather(self: torch.Tensor, dim: int, index: torch.Tensor, **_: Any) -> Checks:
    yield from _ranks_match("gather", self, index)
    if self.dim() and index.numel() != 0:
        yield from _fits("gather", index, self, besides=dim % self.dim())
        yield self.shape[dim] != 0, "index is out of bounds for dimension with size 0"


@checks("scatter", "scatter_add", "scatter_reduce")
def _scatter(self: torch.Tensor, dim: int, index: torch.Tensor, src: Any = None, **_: Any) -> Checks:
    yield from _ranks_match("scatter", self, index)
    if isinstance(src, torch.Tensor):
        yield self.dtype == src.dtype, "scatter(): Expected self.dtype to be equal to src.dtype"
        yield from _ranks_match("scatter", src, index)
    if index.numel() == 0:
        return
    if self.dim():
        yield from _fits("scatter", index, self, besides=dim % self.dim())
        yield self.shape[dim] != 0, "index is out of bounds for dimension with size 0"
    if isinstance(src, torch.Tensor):
        yield from _fits("scatter", index, src, besides=None)


def _ranks_match(op: str, x: torch.Tensor, index: torch.Tensor) -> Checks:
    yield index.dtype in _POSITIONS or index.numel() == 0, f"{op}(): Expected dtype int64 for index"
    same = max(x.dim(), 1) == max(index.dim(), 1)
    yield same or index.numel() == 0, f"{op}(): Index tensor must have the same number of dimensions as its operands"


def _fits(op: str, index: torch.Tensor, x: torch.Tensor, *, besides: int | None) -> Checks:
    pairs = enumerate(zip(index.shape, x.shape, strict=False))
    inside = all(a <= b for axis, (a, b) in pairs if axis != besides)
    yield inside, f"Expected index {list(index.shape)} to be no larger than {list(x.shape)} in {op}"


# --- searches, repeats, masks -----------------------------------------------------------------------------------------


@checks("bucketize")
def _bucketize(self: Any, boundaries: torch.Tensor, **_: Any) -> Checks:
    yield boundaries.dim() == 1, f"bucketize: boundaries tensor must be 1 dimension, but got dim({boundaries.dim()})"
    if isinstance(self, torch.Tensor):
        yield from _searchable(self, boundaries)


@checks("searchsorted")
def _searchsorted(  # the op's own arguments
    sorted_sequence: torch.Tensor, self: Any, *, right: bool, side: str | None, sorter: torch.Tensor | None, **_: Any
) -> Checks:
    yield sorted_sequence.dim() != 0, "torch.searchsorted(): boundaries tensor should have positive dimension"
    yield side is None or side in ("left", "right"), f"torch.searchsorted(): side can only be 'left' or 'right': {side}"
    yield not (right and side == "left"), "torch.searchsorted(): side and right can't be set to opposites"
    if isinstance(self, torch.Tensor):
        yield from _searchable(self, sorted_sequence)
        matches = sorted_sequence.dim() == 1 or _same(sorted_sequence.shape[:-1], self.shape[:-1])
        yield matches, "torch.searchsorted(): boundaries tensor should be 1 dimension or match in the first dimensions"
    else:
        yield sorted_sequence.dim() == 1, "torch.searchsorted(): input value can be a scalar only for 1-d boundaries"
    if sorter is not None:
        yield (
            _same(sorter.shape, sorted_sequence.shape),
            "torch.searchsorted(): boundary and sorter must have same size",
        )
        yield sorter.dtype is torch.int64, "torch.searchsorted(): sorter must be a tensor of long dtype"


def _searchable(self: torch.Tensor, boundaries: torch.Tensor) -> Checks:
    wrapped = self.dim() == 0  # a number has been wrapped, whose type gives way
    yield wrapped or self.dtype == boundaries.dtype, "boundary tensor and input value tensor should have same dtype"


@checks("repeat_interleave.Tensor")
def _repeat_interleave(repeats: torch.Tensor, **_: Any) -> Checks:
    yield repeats.dim() == 1, "repeat_interleave only accept 1D vector as repeat"
    yield repeats.dtype in _POSITIONS, "repeats has to be Long or Int tensor"


@checks("masked_scatter")
def _masked_scatter(mask: torch.Tensor, self: torch.Tensor, source: torch.Tensor, **_: Any) -> Checks:
    yield mask.dtype is torch.bool, "masked_scatter_ only supports boolean masks"
    yield self.dtype == source.dtype, "masked_scatter: expected self and source to have same dtypes"


@checks("embedding")
def _embedding(weight: torch.Tensor, indices: torch.Tensor, **_: Any) -> Checks:
    yield weight.dim() == 2, "'weight' must be 2-D"
    yield indices.dtype in _POSITIONS, "Expected tensor for argument 'indices' to have scalar type Long or Int"
    yield indices.numel() == 0 or weight.shape[0] != 0, "index out of range in self"
