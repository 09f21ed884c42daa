"""Words through which programs tell each other values: 32 bits and a flag above them.

Whoever sees the flag sees the value. A word is i64, and zero when a kernel starts.
"""

from __future__ import annotations

import triton
import triton.language as tl

FLAG = tl.constexpr(1 << 32)
LOW = tl.constexpr((1 << 32) - 1)


@triton.jit
def publish_word(place, bits, wanted=None):
    """Stores the lower 32 bits of an integer in a word, where it is wanted."""
    tl.atomic_xchg(place, (bits & LOW) | FLAG, mask=wanted, sem="relaxed")


@triton.jit
def asked_words(place, wanted):
    """Returns words as they are now; those that are not wanted count as published zeros."""
    return tl.load(place, wanted, FLAG, volatile=True)


@triton.jit
def awaited_words(found, place, wanted):
    """Returns words that were asked for, once all of them are published."""
    while tl.min((found >> 32).to(tl.int32)) == 0:
        found = asked_words(place, wanted)
    return found
