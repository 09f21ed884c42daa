"""Order along one axis: sorting, the largest so many, medians, modes.

Rows that fit in one tile are sorted there; longer ones are left to the library, whose radix sort reads them several
times but in many programs. Of equal elements the first comes first, also where torch leaves that open. Single elements,
such as medians, are selected without sorting (`selection`).
"""

from __future__ import annotations

from collections.abc import Callable

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import BOOL, I32, I64, DType
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar
from ferrite_torch.lowering.builder import Builder, Lowered, Unlowered
from ferrite_torch.lowering.elementwise import refuse_opaque
from ferrite_torch.lowering.expressions import call, choose, eq, gt, guarded, is_nan, larger, number_of, sub
from ferrite_torch.lowering.reductions.reductions import Axes, finished, reduced, reduced_states
from ferrite_torch.lowering.reductions.selection import Rank, is_selected, selected
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.shapes.views import axis_of, inserted, replaced, reshaped
from ferrite_torch.lowering.tensors import Point, Tensor
from ferrite_torch.thresholds import ORDER


def longest_sorted(dtype: DType) -> int:
    """Returns the longest row of a type that is sorted here where a sort is all that is asked for."""
    return ORDER.longest_sorted_row if dtype.bits <= 16 else ORDER.longest_wide_row


def sorted_along(
    b: Builder,
    x: Tensor,
    dim: int,
    *,
    descending: bool = False,
    top: int | None = None,
    longest: int = ORDER.longest_row,
) -> tuple[Tensor, Tensor]:
    """Returns the elements sorted along a dim and their positions; ``top`` keeps the first that many.

    ``longest`` is the longest row that is sorted here.

    Raises:
        Unlowered: the rows are too long for one tile, or of a type that is not ordered here.
    """
    refuse_opaque(x.dtype)
    if x.dtype.is_float and x.dtype.bits == 8:
        raise Unlowered(f"sorting {x.dtype}")
    if x.ndim == 0:
        return b.loop((), x.dtype, x.at), b.loop((), I64, lambda _: sc.const(0, I64))
    axis = axis_of(dim, x.ndim)
    if not isinstance(x.shape[axis], int) or x.shape[axis] > longest:
        raise Unlowered(f"sorting rows of more than {longest} elements, or of a symbolic number")
    return b.sort(x.shape, axis, x.stored_at, descending=descending, top=None if top == x.shape[axis] else top)


@lowers("aten.sort.default")
def sort(b: Builder, x: Tensor, dim: int = -1, descending: bool = False) -> Lowered:
    return sorted_along(b, x, dim, descending=descending, longest=longest_sorted(x.dtype))


@lowers("aten.sort.stable")
def sort_stable(
    b: Builder, x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Lowered:
    return sorted_along(b, x, dim, descending=descending, longest=longest_sorted(x.dtype))


@lowers("aten.argsort.default")
def argsort(b: Builder, x: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    return sorted_along(b, x, dim, descending=descending, longest=longest_sorted(x.dtype))[1]


@lowers("aten.argsort.stable")
def argsort_stable(b: Builder, x: Tensor, *, stable: bool, dim: int = -1, descending: bool = False) -> Tensor:
    return sorted_along(b, x, dim, descending=descending, longest=longest_sorted(x.dtype))[1]


@lowers("aten.msort.default")
def msort(b: Builder, x: Tensor) -> Tensor:
    return sorted_along(b, x, 0, longest=longest_sorted(x.dtype))[0]


@lowers("aten.topk.default")
def topk(b: Builder, x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Lowered:  # noqa: A002
    return sorted_along(b, x, dim, descending=largest, top=int(k))


Place = Callable[[Point], Index]
"""The place in a sorted row, by the point of the row."""


def _ranked(b: Builder, x: Tensor, axis: int, pair: tuple[Tensor, Tensor], rank: Place) -> Lowered:
    """Returns what a reduction along ``axis`` returns: the value of a rank, and its position."""
    return tuple(
        finished(b, _at_rank(b, x, axis, tensor, rank), fake) for tensor, fake in zip(pair, b.fake, strict=True)
    )


def _at_rank(b: Builder, x: Tensor, axis: int, ordered: Tensor, rank: Place) -> Tensor:
    if x.ndim == 0:
        return ordered
    rows = Axes(x.shape, (axis,)).kept_shape
    return b.loop(rows, ordered.dtype, lambda point: ordered.at(inserted(point, axis, rank(point))))


@lowers("aten.kthvalue.default")
def kthvalue(b: Builder, x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Lowered:
    return _of_rank(b, x, axis_of(dim, x.ndim), lambda _: sc.const(int(k) - 1, I64), top=int(k))


def _of_rank(b: Builder, x: Tensor, axis: int, rank: Rank, *, top: int | None = None) -> Lowered:
    """Returns the elements of a rank along an axis and their places: selected, or else of rows that are sorted.

    ``top`` is one more than the rank where all rows have the same.
    """
    if is_selected(x, axis):
        found = selected(b, x, axis, rank)
        return tuple(finished(b, tensor, fake) for tensor, fake in zip(found, b.fake, strict=True))
    pair = sorted_along(b, x, axis, top=top)
    if top is not None:
        return _ranked(b, x, axis, pair, lambda _: ix.constant(top - 1))
    return _ranked(b, x, axis, pair, lambda point: ix.indirect(rank(point), x.shape[axis] if x.ndim else 1))


def _median_rank(b: Builder, x: Tensor, axis: int, *, skips_nan: bool) -> Rank:
    """Returns the rank of the lower median: of what is not NaN, or else of the first NaN if there is one."""
    size = x.shape[axis] if x.ndim else 1
    if not x.dtype.is_float or x.ndim == 0:
        return lambda _: sc.const((size - 1) // 2, I64)
    nans = reduced(b, "sum", Axes(x.shape, (axis,)), lambda point: sc.cast(is_nan(x.stored_at(point)), I32))

    def rank(point: Point) -> Scalar:
        count = sc.cast(nans.at(point), I64)
        if skips_nan:
            return call("floordiv", larger(sub(sc.const(size - 1, I64), count), 0), 2)
        return choose(gt(count, 0), sub(sc.const(size, I64), count), (size - 1) // 2)

    return rank


def _median_along(b: Builder, x: Tensor, dim: int, *, skips_nan: bool) -> Lowered:
    axis = axis_of(dim, x.ndim)
    return _of_rank(b, x, axis, _median_rank(b, x, axis, skips_nan=skips_nan))


def _median_of_all(b: Builder, x: Tensor, *, skips_nan: bool) -> Tensor:
    if x.numel == 0:
        raise Unlowered("the median of no elements")
    flat = reshaped(x, (x.numel,))
    rank = _median_rank(b, flat, 0, skips_nan=skips_nan)
    if is_selected(flat, 0):
        return finished(b, selected(b, flat, 0, rank)[0], b.fake)
    values, _ = sorted_along(b, flat, 0)
    return finished(b, _at_rank(b, flat, 0, values, lambda point: ix.indirect(rank(point), x.numel)), b.fake)


@lowers("aten.median.dim")
def median_along(b: Builder, x: Tensor, dim: int, keepdim: bool = False) -> Lowered:
    return _median_along(b, x, dim, skips_nan=False)


@lowers("aten.nanmedian.dim")
def nanmedian_along(b: Builder, x: Tensor, dim: int, keepdim: bool = False) -> Lowered:
    return _median_along(b, x, dim, skips_nan=True)


@lowers("aten.median.default")
def median(b: Builder, x: Tensor) -> Tensor:
    return _median_of_all(b, x, skips_nan=False)


@lowers("aten.nanmedian.default")
def nanmedian(b: Builder, x: Tensor) -> Tensor:
    return _median_of_all(b, x, skips_nan=True)


@lowers("aten.mode.default")
def mode(b: Builder, x: Tensor, dim: int = -1, keepdim: bool = False) -> Lowered:
    """Returns the smallest of the most frequent elements and the last place where it stands.

    In a sorted row equal elements are a run; a NaN equals nothing, not even itself. The end of the longest run is found
    by how far each element is from the start of its own.
    """
    pair = sorted_along(b, x, dim)
    axis = axis_of(dim, x.ndim)
    if x.ndim == 0:
        return _ranked(b, x, axis, pair, lambda _: ix.constant(0))
    values = pair[0]

    def start(point: Point) -> tuple[Scalar, ...]:
        here = number_of(point[axis])
        earlier = values.value_at(replaced(point, axis, point[axis] - 1))
        repeats = guarded(gt(here, 0), eq(earlier, values.value_at(point)), sc.const(False, BOOL))
        return (choose(repeats, 0, here),)

    (started,) = b.scan("max", x.shape, axis, start)
    axes = Axes(x.shape, (axis,))

    def length(point: Point, reduced: Point) -> tuple[Scalar, ...]:
        here = number_of(reduced[0])
        return sub(here, started.at(axes.join(point, reduced))), here

    _, end = reduced_states(b, "argmax", axes, length)
    return _ranked(b, x, axis, pair, lambda point: ix.indirect(end.at(point), x.shape[axis]))
