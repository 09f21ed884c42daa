"""Products of matrices that kernels of ours compute tile by tile, with what makes factors and reads results.

Such a product is a definition like others (`ferrite_ir.Contract`); which of them have kernels the scheduler knows
(`ferrite_scheduler.model.tiled_contractions`). Of float32 there are such kernels where people let the library round to
TF32, and of large products that it may not round; others are left to it.

By default that is what becomes of small ones. A call of the library takes the host longer than a small product takes
the device, and kernels on both sides of it are started apart: without it, a transformer of batch 1 is one row of
launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ferrite_ir.language.dtypes import F32
from ferrite_ir.language.sizes import Size, hint
from ferrite_scheduler.model.contractions import LEAST_EXTENT
from ferrite_scheduler.model.tiled_contractions import FACTORS
from ferrite_torch.devices.facts import product_precision
from ferrite_torch.lowering.builder import Builder
from ferrite_torch.lowering.products.matrix_contractions import DEVICES, contract_matrices
from ferrite_torch.lowering.tensors import Tensor
from ferrite_torch.thresholds import PRODUCTS


def tiled_sums(b: Builder, left: Tensor, right: Tensor, *, is_wanted: bool = False) -> Tensor | None:
    """Returns the product of two matrices, or of batches of them, in f32; None where the library is left to it.

    Where ``is_wanted``, that is only where no kernel of tiles computes it, or users leave products to the library.
    """
    if is_split(b, left, right):
        return contract_matrices(b, left, right)
    *batch, rows, points = left.shape
    columns = right.shape[-1]
    wanted = (is_wanted and b.choices.products != "library") or is_ours(b, (*batch, rows, columns, points))
    if left.device or right.device or not wanted:
        return None
    if not has_tiles(left, right):
        return None
    if min(map(hint, (rows, columns, points))) < LEAST_EXTENT or 0 in batch:
        return None  # of fewer the library makes more
    return contract_matrices(b, left, right, fast=left.dtype is F32)


def is_split(b: Builder, left: Tensor, right: Tensor) -> bool:
    """Returns whether tensor cores compute a product of float32 in parts (`ferrite_scheduler.rewrites.split_factors`).

    Large ones, of tiles for all multiprocessors, whose left factor has the points of a sum one behind the other, as
    vectors. What is made of the right factor is no more memory than the left one and the result are.
    """
    if not b.choices.split_points or b.device not in DEVICES or left.device or right.device:
        return False
    if left.dtype is not F32 or right.dtype is not F32 or product_precision() == "tf32" or left.ndim != 2:
        return False
    (rows, points), columns = left.shape, right.shape[1]
    if not (isinstance(rows, int) and isinstance(points, int) and isinstance(columns, int)):
        return False
    vector, first, second = 16 // F32.bytes, left.strided(), right.strided()
    lies_along_sums = second is not None and second.strides[0] == 1
    made = columns * points * (1 if lies_along_sums else 2)
    return (
        2 * rows * columns * points >= PRODUCTS.split_flops
        and rows * columns >= PRODUCTS.split_results
        and points >= b.choices.split_points
        and points % vector == columns % vector == 0
        and first is not None
        and 1 in first.strides
        and all(step % vector == 0 for step in (*first.strides, first.offset) if step != 1)
        and made <= rows * (points + columns)
    )


def is_small(b: Builder, extents: Sequence[Size], operations: int, most: int) -> bool:
    """Returns whether the device computes a product before the host has called the library for it.

    Args:
        b: the graph, compiled for a device with a library that it waits for.
        extents: whose product is the number of points that are computed; symbolic ones may be any.
        operations: for each point.
        most: operations that are few.
    """
    numbers = [extent for extent in extents if isinstance(extent, int)]
    return b.device in DEVICES and len(numbers) == len(extents) and operations * prod(numbers) <= most


def has_tiles(left: Tensor, right: Tensor) -> bool:
    """Returns whether kernels of tiles multiply factors of these types: of float32 where they may be rounded."""
    is_fast = left.dtype is F32 and product_precision() == "tf32"
    return left.dtype is right.dtype and (is_fast or left.dtype in FACTORS)


def is_ours(b: Builder, extents: Sequence[Size]) -> bool:
    """Returns whether a product with these extents, among them that of its sums, is to have a kernel of ours."""
    if b.choices.products == "small":
        return is_small(b, extents, 2, PRODUCTS.small_flops)
    return b.choices.products != "library"
