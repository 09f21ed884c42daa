"""Split precision: products on tensor cores that are more exact than one of their factors' types; see `fmath`."""

from __future__ import annotations

import triton
import triton.language as tl

from ferrite_runtime.fmath.machine import is_for_nvidia

TF32_BITS = tl.constexpr(-(1 << 13))
"""The bits of a float32 that those of a TF32 are."""


@triton.jit
def dot_in_parts(left, right, total):
    """Returns ``total`` and the product of two float32 matrices, ``[m, k]`` and ``[k, n]``.

    NVIDIA's tensor cores take factors of eleven bits. Each factor is cut in two, and three of the four products of
    parts are added (``tf32x3``): what is left out of a product is 3e-7 of it on average. Elsewhere factors are whole.
    """
    if is_for_nvidia():
        total = tl.dot(left, right, total, input_precision="tf32x3")
    else:
        total = tl.dot(left, right, total, input_precision="ieee")
    return total


@triton.jit
def to_tf32(x):
    """Returns numbers rounded to the nearest TF32 (eleven bits), halves away from zero; elsewhere as they are.

    Tensor cores of NVIDIA cut off the other bits of a float32. That makes each product 7e-4 smaller on average, and
    what is lost has one sign: fifty layers of a network were 2 % off. Rounded factors err by 2e-4 either way.
    """
    if is_for_nvidia():
        x = tl.inline_asm_elementwise("cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], tl.float32, is_pure=True, pack=1)
    return x


@triton.jit
def add_dot(left, right, total):
    """Returns ``total`` and the product of two matrices of a half type, ``[m, k]`` and ``[k, n]``, added up in float32.

    Tensor cores cut off what they add, and so lose a bit or two of a long sum. They add up these ``k`` points alone.
    """
    depth: tl.constexpr = left.shape[1]
    return total + tl.dot(left, right, max_num_imprecise_acc=depth)


@triton.jit
def add_dot_of_parts(left, right, low, total):
    """Returns ``total`` and the product of two float32 matrices, ``[m, k]`` and ``[k, n]``, in parts of TF32.

    Tensor cores cut off the bits of ``right`` that TF32 has none of: these are in ``low``, rounded. Of ``left`` both
    parts are made here. Products of both low parts are left out, 2**-23 of a product at most. These ``k`` points alone
    are added up by tensor cores, which truncate long sums. Elsewhere factors are whole.
    """
    if is_for_nvidia():
        depth: tl.constexpr = left.shape[1]
        high = to_tf32(left)
        rest = to_tf32(left - high)
        products = tl.dot(rest, right, input_precision="tf32", max_num_imprecise_acc=depth)
        products = tl.dot(high, low, products, input_precision="tf32")
        products = tl.dot(high, right, products, input_precision="tf32")
        total = total + products
    else:
        kept = (right.to(tl.int32, bitcast=True) & TF32_BITS).to(tl.float32, bitcast=True)
        total = tl.dot(left, kept + low, total, input_precision="ieee")
    return total


@triton.jit
def add_dot_cut_off(left, right, total):
    """Returns ``total`` and the product of two float32 matrices, whose bits beyond TF32 tensor cores may cut off.

    Unlike a rounded number, a number that is cut off is never an infinity if it was none.
    """
    if is_for_nvidia():
        total = tl.dot(left, right, total, input_precision="tf32")
    else:
        total = tl.dot(left, right, total, input_precision="ieee")
    return total


@triton.jit
def sum_of_parts(products):
    """Returns the sums of the four quarters of the rows of a matrix ``[m, n]``, for each quarter of them."""
    rows: tl.constexpr = products.shape[0] // 4
    quarters = tl.reshape(products, [4, rows, products.shape[1]])
    total = tl.sum(quarters, 0, keep_dims=True)
    return tl.reshape(tl.broadcast_to(total, quarters.shape), products.shape)
