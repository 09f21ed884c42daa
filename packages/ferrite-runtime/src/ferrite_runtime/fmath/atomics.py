"""Read-modify-writes of memory that the machine has no instruction for, as device functions; see `fmath`.

Each takes the first element's pointer, offsets, values and a mask (or None), which broadcast together.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.constexpr_function
def _integer_like(dtype):
    return tl.int64 if dtype.primitive_bitwidth == 64 else tl.int32


@triton.jit
def atomic_max_nan(first, offset, value, mask):
    """Replaces floats in memory by the larger of themselves and ``value``; NaN wins.

    The instruction compares bits, by which a NaN of positive sign is the largest. One that is in memory from before may
    have another sign, so lanes look first; what they find may be outdated, but then it is only smaller.
    """
    old = tl.load(first + offset, mask)
    wanted = (old == old) & ((value > old) | (value != value))
    if mask is not None:
        wanted = wanted & mask
    tl.atomic_max(first + offset, tl.where(value != value, float("nan"), value), mask=wanted, sem="relaxed")


@triton.jit
def atomic_min_nan(first, offset, value, mask):
    """Replaces floats in memory by the smaller of themselves and ``value``; NaN wins; see `atomic_max_nan`."""
    old = tl.load(first + offset, mask)
    wanted = (old == old) & ((value < old) | (value != value))
    if mask is not None:
        wanted = wanted & mask
    # By its bits, a NaN of negative sign is the smallest.
    lowest = tl.full([], -1, _integer_like(value.dtype)).to(value.dtype, bitcast=True)
    tl.atomic_min(first + offset, tl.where(value != value, lowest, value), mask=wanted, sem="relaxed")


@triton.jit
def atomic_mul(first, offset, value, mask):
    """Multiplies numbers of 32 or 64 bits in memory by ``value``, trying again where another thread came between."""
    dtype: tl.constexpr = first.dtype.element_ty
    integer: tl.constexpr = _integer_like(dtype)
    offset, value = tl.broadcast(offset + tl.zeros([1], tl.int32), value)
    pending = offset == offset
    if mask is not None:
        # Lanes that are masked off put back what they find in the first element, as do lanes that are done in theirs.
        pending = pending & mask
        offset = tl.where(pending, offset, 0)
    pointer = (first + offset).to(tl.pointer_type(integer), bitcast=True)
    old = tl.load(pointer)
    while tl.max(tl.reshape(pending.to(tl.int32), [pending.numel]), 0) != 0:
        new = (old.to(dtype, bitcast=True) * value).to(integer, bitcast=True)
        found = tl.atomic_cas(pointer, old, tl.where(pending, new, old), sem="relaxed")
        pending = pending & (found != old)
        old = found
