"""Products with vectors: sums over one axis, which fuse with what computes the operands and with what reads the sum."""

from __future__ import annotations

from ferrite_ir.language import scalar as sc
from ferrite_ir.language.scalar import Scalar
from ferrite_torch.devices.dtypes import dtype_of
from ferrite_torch.lowering.builder import Builder, Lowered
from ferrite_torch.lowering.elementwise import element_at, refuse_opaque
from ferrite_torch.lowering.expressions import add, div, mul, sub
from ferrite_torch.lowering.reductions.reductions import Axes, reduced
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.shapes.views import axis_of
from ferrite_torch.lowering.tensors import Point, Tensor


def _summed(b: Builder, matrix: Tensor, vector: Tensor) -> Tensor:
    """Returns the sums of products along the last axis, in the type they are accumulated in."""
    carried = dtype_of(b.fake.dtype).accumulate
    refuse_opaque(matrix.dtype, vector.dtype)

    def product(point: Point) -> Scalar:
        return mul(sc.cast(matrix.at(point), carried), sc.cast(vector.at(point[-1:]), carried))

    return reduced(b, "sum", Axes(matrix.shape, (matrix.ndim - 1,)), product)


@lowers("aten.dot.default", "aten.vdot.default", "aten.mv.default")
def product(b: Builder, left: Tensor, right: Tensor) -> Tensor:
    """Returns the product of a matrix or a vector with a vector."""
    total = _summed(b, left, right)
    return b.loop(total.shape, dtype_of(b.fake.dtype), total.at)


@lowers("aten.addmv.default")
def added_product(
    b: Builder, bias: Tensor, matrix: Tensor, vector: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """Returns ``beta * bias + alpha * matrix @ vector``."""
    return shifted(b, _summed(b, matrix, vector), bias, beta, alpha)


def shifted(b: Builder, total: Tensor, bias: Tensor, beta: float, alpha: float) -> Tensor:
    """Returns ``beta * bias + alpha * total``; a bias that counts nothing is not looked at."""
    refuse_opaque(bias.dtype)

    def body(point: Point) -> Scalar:
        value = total.at(point)
        value = value if alpha == 1 else mul(value, element_at(alpha, (), (), value.dtype))
        if beta == 0:
            return value
        shift = element_at(bias, total.shape, point, value.dtype)
        return add(value, shift if beta == 1 else mul(shift, element_at(beta, (), (), value.dtype)))

    return b.loop(total.shape, dtype_of(b.fake.dtype), body)


@lowers("aten._weight_norm_interface_backward.default")
def weight_norm_backward(b: Builder, grad: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> Lowered:
    """Returns the gradients of a direction and a length by that of the weight ``v * g / norm(v)``."""
    refuse_opaque(v.dtype, g.dtype)
    kept = axis_of(dim, v.ndim)
    axes = Axes(v.shape, tuple(axis for axis in range(v.ndim) if axis != kept))
    along = reduced(b, "sum", axes, lambda point: mul(grad.value_at(point), v.value_at(point)))

    def direction(point: Point) -> Scalar:
        position = tuple(index if size > 1 else index * 0 for index, size in zip(point, g.shape, strict=True))
        norm = sc.cast(norms.at(position), v.dtype.compute)
        back = mul(v.value_at(point), div(along.at((point[kept],)), mul(norm, norm)))
        return mul(div(g.value_at(position), norm), sub(grad.value_at(point), back))

    def length(point: Point) -> Scalar:
        return div(along.at((point[kept],)), sc.cast(norms.at(point), g.dtype.compute))

    return b.loop(v.shape, v.dtype, direction), b.loop(g.shape, g.dtype, length)
