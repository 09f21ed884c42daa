"""Products of matrices of 8-bit floats, whose sums are multiplied with scales: of all of it, or of rows and columns."""

from __future__ import annotations

from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import F32
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import Size, hint
from ferrite_scheduler.model.contractions import EIGHT_BIT_FLOATS, LEAST_EXTENT
from ferrite_torch.devices.dtypes import dtype_of
from ferrite_torch.lowering.builder import Builder, Unlowered
from ferrite_torch.lowering.expressions import add, mul
from ferrite_torch.lowering.products.matrix_contractions import contract_matrices
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.tensors import Point, Tensor


@lowers("aten._scaled_mm.default")
def scaled_mm(
    b: Builder,
    left: Tensor,
    right: Tensor,
    left_scale: Tensor,
    right_scale: Tensor,
    bias: Tensor | None = None,
    result_scale: Tensor | None = None,  # of results of 8 bits
    out_dtype: object = None,
    use_fast_accum: bool = False,  # as the op has it
) -> Tensor:
    """Returns ``(left @ right) * left_scale * right_scale + bias`` from a kernel of tiles.

    Raises:
        Unlowered: it is left to the library.
    """
    (rows, points), columns = left.shape, right.shape[1]
    scales = (left_scale, (rows, 1)), (right_scale, (1, columns))
    result = dtype_of(b.fake.dtype)
    if not (
        b.choices.products in ("own", "measured")
        and left.dtype is right.dtype
        and left.dtype in EIGHT_BIT_FLOATS
        and result not in EIGHT_BIT_FLOATS
        and rows != 1
        and not any(operand.device for operand in (left, right, left_scale, right_scale))
        and min(map(hint, (columns, points))) >= LEAST_EXTENT
        and all(scale.dtype is F32 and _fits(scale, whole) for scale, whole in scales)
    ):
        raise Unlowered("a library product")
    total = contract_matrices(b, left, right, fast=use_fast_accum)

    def body(point: Point) -> Scalar:
        value = total.at(point)
        for scale, _ in scales:
            value = mul(value, scale.at(_place(scale, point)))
        return value if bias is None else add(value, sc.cast(bias.at(point[1:]), F32))

    return b.loop(total.shape, result, body)


def _fits(scale: Tensor, whole: tuple[Size, Size]) -> bool:
    """Returns whether a scale is one number, or one for each row or column; blocks of either have others."""
    return all(size == 1 for size in scale.shape) or scale.shape == whole


def _place(scale: Tensor, point: Point) -> Point:
    """Returns where the scale of an element lies."""
    if scale.ndim < len(point):
        return tuple(index * 0 for index in point[: scale.ndim])
    return tuple(index if size != 1 else index * 0 for index, size in zip(point, scale.shape, strict=True))
