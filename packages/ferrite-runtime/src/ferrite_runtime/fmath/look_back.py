"""Sums along lines that many programs compute side by side, each waiting for those before it; see `fmath`.

A program scans its part of a line, publishes what the part adds up to, and adds up what the programs before it have
published: the decoupled look-back of Merrill and Garland, "Single-pass parallel prefix scan with decoupled look-back"
(2016), in a variant whose results do not depend on timing. There a program takes the nearest inclusive sum that it
finds; here parts form groups, the last program of a group publishes the sum up to its end, and every program adds the
sum up to the group before and the totals of its own group, in one order always.

The workspace is i64: a counter, then for each line a word for each part and one for each group, as in `flags`. Values
of 64 bits have a second such table.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ferrite_runtime.fmath.flags import FLAG, LOW, await_words, launch_epoch, poll_words, publish_word
from ferrite_runtime.fmath.machine import is_for_nvidia

_GROUP = tl.constexpr(512)


@triton.jit
def take_ticket(workspace, count):
    """Returns the number of the part that a program takes: parts begin in this order, so that none waits for ever."""
    return (tl.atomic_add(workspace, 1, sem="relaxed") % count).to(tl.int32)


@triton.jit
def ticket_in_order(workspace, count):
    """Returns the number of the part that a program takes, which it does not draw where programs begin in order.

    GPUs of NVIDIA start them in the order of their numbers, on which the scans of CUB rely, too; see decision 0024.
    """
    if is_for_nvidia():
        return tl.program_id(0)
    else:
        return take_ticket(workspace, count)


@triton.jit
def _publish(words, position, value, span, epoch):
    if value.dtype.primitive_bitwidth == 64:
        bits = value.to(tl.int64, bitcast=True)
        publish_word(words + position, bits, None, epoch)
        publish_word(words + span + position, bits >> 32, None, epoch)
    else:
        publish_word(words + position, value.to(tl.int32, bitcast=True).to(tl.int64), None, epoch)


@triton.jit
def _awaited(low, high, words, position, wanted, span, epoch, dtype: tl.constexpr):
    low = await_words(low, words + position, wanted, epoch)
    if dtype.primitive_bitwidth == 64:
        high = await_words(high, words + span + position, wanted, epoch)
        return ((low & LOW) | (high << 32)).to(dtype, bitcast=True)
    else:
        return low.to(tl.int32).to(dtype, bitcast=True)


@triton.constexpr_function
def _groups(parts):
    return (parts + _GROUP.value - 1) // _GROUP.value


@triton.jit
def _added(a, b, c, d, e, f, g, h):
    return a + e, b + f, c + g, d + h


@triton.jit
def sums_of_four(first, second, third, fourth):
    """Returns what each of four vectors adds up to, for one meeting of the threads."""
    return tl.reduce((first, second, third, fourth), 0, _added)


@triton.jit
def part_epoch(workspace, line, part, parts: tl.constexpr):
    """Returns the epoch that a program's words have in this launch, and all others."""
    row: tl.constexpr = parts + _groups(parts)
    return launch_epoch(workspace + 1 + line * row + part)


@triton.jit
def publish_part(workspace, line, lines: tl.constexpr, part, parts: tl.constexpr, total, epoch=FLAG):
    """Tells the programs behind it what a part of a line adds up to."""
    row: tl.constexpr = parts + _groups(parts)
    _publish(workspace + 1, line * row + part, total, lines * row, epoch)


@triton.jit
def sum_before(workspace, line, lines: tl.constexpr, part, parts: tl.constexpr, total, epoch=FLAG):
    """Returns the sum of everything in a line before a part, whose own sum is ``total``; the same in every run."""
    row: tl.constexpr = parts + _groups(parts)
    span: tl.constexpr = lines * row
    words = workspace + 1 + line * row
    group = part // _GROUP
    ends = parts + group - 1 + tl.arange(0, 1)
    # What came before the group is asked for first: mostly it is there when the parts of the group are.
    ended = ends >= parts
    end_low = poll_words(words + ends, ended, epoch)
    end_high = poll_words(words + span + ends, ended, epoch) if total.dtype.primitive_bitwidth == 64 else end_low
    positions = group * _GROUP + tl.arange(0, _GROUP)
    wanted = positions < part
    low = poll_words(words + positions, wanted, epoch)
    high = poll_words(words + span + positions, wanted, epoch) if total.dtype.primitive_bitwidth == 64 else low
    before = tl.sum(_awaited(low, high, words, positions, wanted, span, epoch, total.dtype), 0)
    before = tl.sum(_awaited(end_low, end_high, words, ends, ended, span, epoch, total.dtype), 0) + before
    if part % _GROUP == _GROUP - 1:
        _publish(words, parts + group, before + total, span, epoch)
    return before
