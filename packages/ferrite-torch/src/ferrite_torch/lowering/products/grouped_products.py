"""Products whose rows, columns or sums are in groups of lengths that only data knows, as of a mixture of experts.

    rows:     x[m, k] @ w[group of m, k, n]              tokens sorted by expert, each with the weights of its own
    columns:  w[group of n, m, k] @ x[k, n]              the same, transposed
    sums:     over the rows of each group g of x[m, k] * y[m, n]     the gradient of the weights

Each is one contraction (`ferrite_ir.Segments`), so what makes its factors and reads its result is in its kernel: the
gather of tokens, the gate that two of them are, the routing weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ferrite_ir.language.dtypes import F32, I32
from ferrite_ir.language.graph import Segments
from ferrite_ir.language.index import Dim
from ferrite_ir.language.sizes import Size, hint
from ferrite_scheduler.model.contractions import LEAST_EXTENT
from ferrite_torch.devices.dtypes import dtype_of
from ferrite_torch.lowering.builder import Builder, Unlowered
from ferrite_torch.lowering.products.matrix_contractions import DEVICES, stored_type
from ferrite_torch.lowering.products.tiled_products import has_tiles, is_ours, tiled_sums
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.tensors import Tensor, grid_dims, reduction_dims
from ferrite_torch.thresholds import PRODUCTS

Sums: TypeAlias = "Callable[[Builder, Tensor, Tensor, Tensor], Tensor]"


@lowers("aten._grouped_mm.default")
def grouped_mm(
    b: Builder,
    left: Tensor,
    right: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: object = None,  # as the op has it
) -> Tensor:
    """Returns products of matrices in groups, which end at ``offs``, from a kernel of tiles.

    Args:
        b: the graph.
        left: ``[m, k]``, or a matrix for each group, ``[g, m, k]``.
        right: ``[k, n]``, or ``[g, k, n]``. With two matrices what they are summed over is in groups.
        offs: where each group ends; None of two lists of matrices.
        bias: is the library's.
        out_dtype: says what the result of the node does.

    Raises:
        Unlowered: it is left to the library.
    """
    if bias is not None:
        raise Unlowered("a library product")
    total = tiled_sums(b, left, right) if offs is None else _grouped_sums(b, left, right, offs)
    if total is None:
        raise Unlowered("a library product")
    return b.loop(total.shape, dtype_of(b.fake.dtype), total.at)


def _grouped_sums(b: Builder, left: Tensor, right: Tensor, offs: Tensor) -> Tensor | None:
    rows, points, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    (groups,) = offs.shape
    ways: dict[tuple[int, int], Sums] = {(2, 3): _by_rows, (3, 2): _by_columns, (2, 2): _by_sums}
    way = ways.get((left.ndim, right.ndim))
    cut = {(2, 3): rows, (3, 2): columns, (2, 2): points}.get((left.ndim, right.ndim))
    if (
        way is None
        or cut is None
        or left.device
        or right.device
        or offs.device
        or offs.dtype is not I32
        or not isinstance(groups, int)
        or 1 in (groups, cut)
        or not _is_ours_in_groups(b, (rows, columns, points), cut, groups)
        or not has_tiles(left, right)
        or min(map(hint, (columns, points))) < LEAST_EXTENT
        or 0 in (rows, groups)
    ):
        return None
    return way(b, left, right, offs)


def _is_ours_in_groups(b: Builder, extents: Sequence[Size], cut: Size, groups: int) -> bool:
    """Returns whether a product in groups is to have a kernel of ours; ``cut`` is the extent that is in groups.

    Of groups with few rows the library makes less.
    """
    if is_ours(b, extents):
        return True
    has_few = isinstance(cut, int) and cut <= PRODUCTS.group_rows * groups
    return has_few and b.choices.products == "small" and b.device in DEVICES


def _by_rows(b: Builder, left: Tensor, right: Tensor, offs: Tensor) -> Tensor:
    group = _group_of(offs)
    shape, sums = (left.shape[0], right.shape[2]), left.shape[1:]
    return b.contract(
        shape,
        sums,
        lambda point, inside: left.at((point[0], *inside)),
        lambda point, inside: right.at((group.index, *inside, point[1])),
        fast=left.dtype is F32,
        segments=Segments(grid_dims(shape)[0], group, offs.at((group.index,))),
        stored=stored_type(left.dtype),
    )


def _by_columns(b: Builder, left: Tensor, right: Tensor, offs: Tensor) -> Tensor:
    """Returns the transposed product of the transposed factors: what is in groups are its rows."""
    rows = right.viewed(right.shape[::-1], lambda point: point[::-1])
    factors = left.viewed((left.shape[0], *left.shape[:0:-1]), lambda point: (point[0], point[2], point[1]))
    total = _by_rows(b, rows, factors, offs)
    return total.viewed(total.shape[::-1], lambda point: point[::-1])


def _by_sums(b: Builder, left: Tensor, right: Tensor, offs: Tensor) -> Tensor:
    shape, sums = (offs.shape[0], left.shape[0], right.shape[1]), left.shape[1:]
    group = grid_dims(shape)[0]
    return b.contract(
        shape,
        sums,
        lambda point, inside: left.at((point[1], *inside)),
        lambda point, inside: right.at((*inside, point[2])),
        fast=left.dtype is F32,
        segments=Segments(reduction_dims(sums)[0], group, offs.at((group.index,))),
        stored=stored_type(left.dtype),
    )


def _group_of(offs: Tensor) -> Dim:
    return Dim("g0", offs.shape[0])
