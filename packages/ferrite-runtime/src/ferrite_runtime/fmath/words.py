"""Words through which programs tell each other values: 32 bits and a mark above them.

Whoever sees the mark sees the value. A word is i64. The mark is a flag, where words are zero when a kernel starts.
Where they are what the launch before has left, it is the one that they do not have then: the flag, or none. So nobody
has to make them zero, if every launch publishes the same words; each program finds the mark in a word of its own.
"""

from __future__ import annotations

import triton
import triton.language as tl

FLAG = tl.constexpr(1 << 32)
LOW = tl.constexpr((1 << 32) - 1)


@triton.jit
def other_mark(word, bit: tl.constexpr):
    """Returns the mark that a word does not have: ``bit``, or nothing."""
    return ~word & bit


@triton.jit
def mark_of_launch(place, bit: tl.constexpr = FLAG):
    """Returns the mark of all words of this launch, by a word of the program that nobody else writes."""
    return other_mark(tl.load(place, volatile=True), bit)


@triton.jit
def publish_word(place, bits, wanted=None, mark=FLAG):
    """Stores the lower 32 bits of an integer in a word, where it is wanted."""
    tl.atomic_xchg(place, (bits & LOW) | mark, mask=wanted, sem="relaxed")


@triton.jit
def asked_words(place, wanted, mark=FLAG):
    """Returns words as they are now, with the flag if they are published; those that are not wanted are zeros with it.

    A word of the other mark becomes one without the flag.
    """
    return tl.load(place, wanted, mark, volatile=True) ^ (mark ^ FLAG)


@triton.jit
def awaited_words(found, place, wanted, mark=FLAG):
    """Returns words that were asked for, once all of them are published."""
    while tl.min((found >> 32).to(tl.int32)) == 0:
        found = asked_words(place, wanted, mark)
    return found
