"""States that the programs of a row publish for each other, each of one block of the row.

A word of the status is i64: 32 bits of a float and a flag above them, so that whoever sees the flag sees the value. All
of it must be zero when a kernel starts.
"""

from __future__ import annotations

import triton
import triton.language as tl

_FLAG = tl.constexpr(1 << 32)
_LOW = tl.constexpr((1 << 32) - 1)


@triton.jit
def publish_state(place, value, wanted=None):
    """Stores floats in words of the status for the other programs of their rows."""
    bits = value.to(tl.int32, bitcast=True).to(tl.int64) & _LOW
    tl.atomic_xchg(place, bits | _FLAG, wanted, sem="relaxed")


@triton.jit
def asked_states(place, wanted):
    """Returns words of the status as they are now; those that are not wanted count as published."""
    return tl.load(place, wanted, _FLAG, volatile=True)


@triton.jit
def awaited_states(found, place, wanted, neutral):
    """Returns the floats in words that were asked for, once all of them are published; others are ``neutral``."""
    while tl.min((found >> 32).to(tl.int32)) == 0:
        found = asked_states(place, wanted)
    return tl.where(wanted, found.to(tl.int32).to(tl.float32, bitcast=True), neutral)
