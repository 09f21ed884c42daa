"""Softmax over an axis of data-dependent length.

Where the length is known torch's decomposition applies, which takes a maximum of at least one element. Here the axis
may be empty, and the reduction over it has a value all the same.
"""

from __future__ import annotations

from ferrite_ir.language.scalar import Scalar
from ferrite_torch.lowering.builder import Builder
from ferrite_torch.lowering.elementwise import refuse_opaque
from ferrite_torch.lowering.expressions import call
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.shapes.creation import made
from ferrite_torch.lowering.shapes.views import axis_of, inserted, without
from ferrite_torch.lowering.tensors import Point, Tensor


@lowers("aten._softmax.default")
def softmax(b: Builder, x: Tensor, dim: int, half_to_float: bool) -> Tensor:  # the op's schema
    return _weighted(b, x, dim, is_log=False)


@lowers("aten._log_softmax.default")
def log_softmax(b: Builder, x: Tensor, dim: int, half_to_float: bool) -> Tensor:  # the op's schema
    return _weighted(b, x, dim, is_log=True)


def _weighted(b: Builder, x: Tensor, dim: int, *, is_log: bool) -> Tensor:
    refuse_opaque(x.dtype)
    if x.ndim == 0:
        return made(b, lambda point: call("exp", call("sub", x.value_at(point), x.value_at(point))))
    axis = axis_of(dim, x.ndim)
    shape, length = (*x.shape[:axis], *x.shape[axis + 1 :]), (x.shape[axis],)

    def along(point: Point, reduced: Point) -> Scalar:
        return x.value_at(inserted(point, axis, reduced[0]))

    (most,) = b.reduce("max", shape, length, lambda point, reduced: (along(point, reduced),))
    (total,) = b.reduce(
        "sum", shape, length, lambda point, reduced: (call("exp", call("sub", along(point, reduced), most.at(point))),)
    )

    def body(point: Point) -> Scalar:
        row = without(point, axis)
        shifted = call("sub", x.value_at(point), most.at(row))
        return (
            call("sub", shifted, call("log", total.at(row)))
            if is_log
            else call("div", call("exp", shifted), total.at(row))
        )

    return made(b, body)
