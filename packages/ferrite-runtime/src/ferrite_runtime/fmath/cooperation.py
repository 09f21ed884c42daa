"""States that the programs of a row publish for each other, each of one block of the row: floats in `words`."""

from __future__ import annotations

import triton
import triton.language as tl

from ferrite_runtime.fmath.words import asked_words, publish_word


@triton.jit
def publish_state(place, value, wanted=None):
    """Stores floats in words of the status for the other programs of their rows."""
    publish_word(place, value.to(tl.int32, bitcast=True).to(tl.int64), wanted)


@triton.jit
def asked_states(place, wanted):
    """Returns words of the status as they are now; those that are not wanted count as published."""
    return asked_words(place, wanted)


@triton.jit
def awaited_states(found, place, wanted, neutral):
    """Returns the floats in words that were asked for, once all of them are published; others are ``neutral``."""
    while tl.min((found >> 32).to(tl.int32)) == 0:
        found = asked_words(place, wanted)
    return tl.where(wanted, found.to(tl.int32).to(tl.float32, bitcast=True), neutral)
