"""Products of matrices that kernels of ours compute tile by tile, with what makes factors and reads results.

Such a product is a definition like others (`ferrite_ir.Contract`); which of them have kernels the scheduler knows
(`ferrite_scheduler.model.tiled_contractions`). Of float32 there are such kernels where people let the library round to
TF32; otherwise it is left to it.
"""

from __future__ import annotations

from ferrite_ir.language.dtypes import F32
from ferrite_ir.language.sizes import hint
from ferrite_scheduler.model.contractions import LEAST_EXTENT
from ferrite_scheduler.model.tiled_contractions import FACTORS
from ferrite_torch.devices.facts import product_precision
from ferrite_torch.lowering.builder import Builder
from ferrite_torch.lowering.tensors import Tensor


def tiled_sums(b: Builder, left: Tensor, right: Tensor) -> Tensor | None:
    """Returns the product of two matrices, or of batches of them, in f32; None where the library is left to it."""
    *batch, rows, points = left.shape
    columns = right.shape[-1]
    if b.choices.products == "library" or left.device or right.device:
        return None
    is_fast = left.dtype is F32 and product_precision() == "tf32"
    if left.dtype is not right.dtype or not (is_fast or left.dtype in FACTORS):
        return None
    if min(map(hint, (rows, columns, points))) < LEAST_EXTENT or 0 in batch:
        return None  # of fewer the library makes more
    return b.contract((*batch, rows, columns), points, left.at, right.at, fast=is_fast)
