"""Flagged words: 32 bits of a value and one bit above them that says that the value is there.

Whoever sees the bit sees the value. A word is i64. Where words are zero when a kernel starts, the bit is a flag. Where
they are what the launch before has left, it is an *epoch*: the value of the bit that they do not have then. So words
are never cleared, if every launch publishes the same ones; each program finds the epoch in a word of its own.

    launch 1 publishes [1|value]    launch 2 publishes [0|value], and waits while it sees a 1
"""

from __future__ import annotations

import triton
import triton.language as tl

FLAG = tl.constexpr(1 << 32)
LOW = tl.constexpr((1 << 32) - 1)


@triton.jit
def other_epoch(word, bit: tl.constexpr):
    """Returns the epoch that a word does not have: ``bit``, or nothing."""
    return ~word & bit


@triton.jit
def launch_epoch(address, bit: tl.constexpr = FLAG):
    """Returns the epoch of all words of this launch, by a word of the program that nobody else writes."""
    return other_epoch(tl.load(address, volatile=True), bit)


@triton.jit
def publish_word(address, bits, wanted=None, epoch=FLAG):
    """Stores the lower 32 bits of an integer in a word, where it is wanted."""
    tl.atomic_xchg(address, (bits & LOW) | epoch, mask=wanted, sem="relaxed")


@triton.jit
def poll_words(address, wanted, epoch=FLAG):
    """Returns words as they are now, with the flag if they are published; those that are not wanted are zeros with it.

    A word of the other epoch becomes one without the flag.
    """
    return tl.load(address, wanted, epoch, volatile=True) ^ (epoch ^ FLAG)


@triton.jit
def await_words(found, address, wanted, epoch=FLAG):
    """Returns words that were asked for, once all of them are published."""
    while tl.min((found >> 32).to(tl.int32)) == 0:
        found = poll_words(address, wanted, epoch)
    return found
