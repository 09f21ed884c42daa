"""Exact quotients of float32 without branches: a quotient that is nearly right, corrected by what it leaves of x.

Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor" (1990); the fast path of CUDA's
own division is the same. Interpreted, NumPy divides.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ferrite_runtime.fmath.elementary import fast_reciprocal
from ferrite_runtime.fmath.machine import is_for_nvidia


@triton.jit
def share(x, y, inverse):
    """Returns x / y rounded to nearest for float32 with 0 <= x <= 1 <= y < 2**126 and ``inverse`` the rounded 1 / y.

    What is left of x beside the first quotient corrects it: Markstein, "Computation of elementary functions on the IBM
    RISC System/6000 processor" (1990). A result below 2**-100, where that rest may be subnormal, may be off by its last
    bit. All is NaN where y is.
    """
    quotient = x * inverse
    return tl.fma(tl.fma(-quotient, y, x), inverse, quotient)


@triton.jit
def divisor_scale(y):
    """Returns a power of two, mostly 1, that float32 divisors times which have normal reciprocals."""
    magnitude = tl.abs(y)
    return tl.where(magnitude > 2.0**100, 2.0**-64, tl.where(magnitude < 2.0**-100, 2.0**64, 1.0))


@triton.jit
def corrected_quotient(x, y, inverse):
    """Returns x / y for float32 from ``inverse``, the rounded 1 / y: the product, corrected by what it leaves of x.

    The correction is that of `share`, left out where it makes zero or NaN, as it does of zeros, whose sign it would
    lose, and of infinite quotients.

    On GPUs of NVIDIA the instructions of one element stand together. Operation by operation over a whole tile, the
    assembler kept several numbers of each of 64 elements a thread: of a kernel that may use 128 registers it spilled
    376 bytes a thread, and division by the largest of 256,000 elements took 1.4 times the time.
    """
    if is_for_nvidia():
        return tl.inline_asm_elementwise(
            """
            {
            .reg .f32 whole, rest, corrected, magnitude;
            .reg .pred is_number;
            mul.rn.f32 whole, $1, $3;
            neg.f32 rest, $2;
            fma.rn.f32 rest, whole, rest, $1;
            fma.rn.f32 corrected, rest, $3, whole;
            abs.f32 magnitude, corrected;
            setp.gt.f32 is_number, magnitude, 0f00000000;
            selp.f32 $0, corrected, whole, is_number;
            }
            """,
            "=f,f,f,f",
            [x, y, inverse],
            tl.float32,
            is_pure=True,
            pack=1,
        )
    else:
        quotient = x * inverse
        corrected = tl.fma(tl.fma(quotient, -y, x), inverse, quotient)
        return tl.where(tl.abs(corrected) > 0.0, corrected, quotient)


@triton.jit
def row_quotient(x, divisor, scale, inverse):
    """Returns x / y rounded to nearest for float32, where ``divisor`` is y times its `divisor_scale`.

    ``inverse`` is the rounded reciprocal of ``divisor``: one division for all that is divided by the same number. A
    result may be off by its last bit where it, or x, is below 2**-100 in magnitude, and infinite where it is one of the
    last finite numbers.
    """
    return corrected_quotient(x * scale, divisor, inverse)


@triton.jit
def rounded_inverse(y):
    """Returns 1 / y rounded to nearest for float32 with 2**-126 <= |y| <= 2**126, zero, infinity or NaN.

    One Newton step, as the fast path of CUDA's own division has it, but for what it would make NaN of.
    """
    if is_for_nvidia():
        inverse = fast_reciprocal(y)
        rest = tl.fma(-y, inverse, 1.0)
        return tl.where(tl.abs(rest) < 1.0, tl.fma(rest, inverse, inverse), inverse)
    else:
        return tl.div_rn(tl.full([], 1.0, tl.float32), y)


@triton.jit
def reciprocal(y):
    """Returns 1 / y rounded to nearest for float32; below 2**-126 it may be off by its last bit."""
    scale = divisor_scale(y)
    return rounded_inverse(y * scale) * scale


@triton.jit
def quotient(x, y):
    """Returns x / y rounded to nearest for float32, but for what `row_quotient` says of tiny numbers.

    `tl.div_rn` computes the same, and branches to a subroutine where an operand is zero, infinite or out of the range
    of the fast path. Lanes past the end hold zeros: with them most warps went there (H200, the gradient of a cosine
    loss of 26007 rows of 38: 32.6 us). This has no branches, and computes what depends on ``y`` once where ``y`` has
    fewer elements than ``x``.
    """
    if is_for_nvidia():
        scale = divisor_scale(y)
        divisor = y * scale
        return row_quotient(x, divisor, scale, rounded_inverse(divisor))
    else:
        return tl.div_rn(x, y)


@triton.jit
def divide_by(x, count, inverse):
    """Returns x / count rounded to nearest for float32, a number and ``inverse``, its rounded reciprocal.

    A result below 2**-126 may be off by its last bit if it lies halfway between two numbers, and one of the last two
    finite numbers may be infinite.
    """
    return corrected_quotient(x, count, inverse)
