"""States that the programs of a row publish for each other, each of one block of the row, and where they meet.

A state is a float in the lower half of a word of the status, which is i64. Programs wait by atomics, one thread each:
by plain loads, of which every thread does its own, an H200 took 6 to 23 % longer for the same kernels.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def publish_state(place, value, wanted=None):
    """Stores floats in words of the status, for who meets this program afterwards."""
    tl.store(place, value.to(tl.int32, bitcast=True).to(tl.int64), wanted)


@triton.jit
def meet(counter, count):
    """Waits until ``count`` programs have come here; the counter, a word of the status, is zero before the launch."""
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="acq_rel")
    while tl.atomic_add(counter, 0, sem="acquire") < count:
        pass
    tl.debug_barrier()


@triton.jit
def published_states(place, wanted, neutral):
    """Returns the floats in words that were published before the meeting; those that are not wanted are ``neutral``."""
    found = tl.load(place, wanted, 0, volatile=True)
    return tl.where(wanted, found.to(tl.int32).to(tl.float32, bitcast=True), neutral)
