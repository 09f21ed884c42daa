"""Split precision: products on tensor cores that are more exact than one of their factors' types; see `fmath`."""

from __future__ import annotations

import triton
import triton.language as tl

from ferrite_runtime.fmath.machine import is_for_nvidia


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
def sum_of_parts(products):
    """Returns the sums of the four quarters of the rows of a matrix ``[m, n]``, for each quarter of them."""
    rows: tl.constexpr = products.shape[0] // 4
    quarters = tl.reshape(products, [4, rows, products.shape[1]])
    total = tl.sum(quarters, 0, keep_dims=True)
    return tl.reshape(tl.broadcast_to(total, quarters.shape), products.shape)
