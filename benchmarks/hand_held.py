"""A group norm written by hand that reads its images once and holds them, as they came, until their moments are known.

Of 16 images of 4096 points and 320 channels, which lie together, in 32 groups; `held_cases.py` calls it. Moments are
words, which hold the number of the launch besides, so that no order of memory has to tell of them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ferrite_runtime import fmath


@triton.jit
def _added(a, b, c, d, e, f, g, h):
    return a + e, b + f, c + g, d + h


@triton.jit
def _halves(words):
    """Returns the two numbers of type bfloat16 in each word, the first one in its lower half."""
    low = (words << 16).to(tl.float32, bitcast=True)
    return low, (words & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _in_one_word(low, high):
    return tl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [low, high], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _as_it_came(words):
    """Returns words of which the compiler does not know what it has made of them before."""
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [words], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _publish(place, value, launches):
    bits = value.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    tl.atomic_xchg(place, bits | (launches.to(tl.int64) << 32), sem="relaxed")


@triton.jit
def _published(place, wanted, launches, ASKS: tl.constexpr):
    """Returns what was published in this launch, once all of it is there, and zeros where nothing is wanted.

    It is not asked whether it is there if something else tells.
    """
    found = tl.load(place, wanted, 0, volatile=True)
    if ASKS:
        while tl.min(tl.where(wanted, (found >> 32).to(tl.int32), launches)) < launches:
            found = tl.load(place, wanted, 0, volatile=True)
    return tl.where(wanted, found.to(tl.int32).to(tl.float32, bitcast=True), 0.0)


@triton.jit
def _moments_of_part(words, first_low, first_high, of_column, POINTS: tl.constexpr):
    """Returns the means of what is held of each group, and the sums of squared distances from them."""
    low, high = _halves(words)
    low -= first_low[None, :]
    high -= first_high[None, :]
    sum_low, sum_high, power_low, power_high = tl.reduce((low, high, low * low, high * high), 0, _added)
    apart_low, apart_high = sum_low * (1.0 / POINTS), sum_high * (1.0 / POINTS)
    mean_low, mean_high = first_low + apart_low, first_high + apart_high
    apart = (mean_low - mean_high) * 0.5
    square = power_low + power_high - (apart_low * apart_low + apart_high * apart_high - 2 * apart * apart) * POINTS
    is_in_slot = tl.arange(0, 8)[:, None] == of_column[None, :]
    members = tl.sum(tl.where(is_in_slot, 2.0, 0.0), 1)
    mean_of_pair = ((mean_low + mean_high) * 0.5)[None, :]
    mean = tl.sum(tl.where(is_in_slot, mean_of_pair, 0.0), 1) * 2.0 / tl.maximum(members, 2.0)
    away = mean_of_pair - mean[:, None]
    return mean, tl.sum(tl.where(is_in_slot, square[None, :] + away * away * (2 * POINTS), 0.0), 1)


@triton.jit
def _moments_of_image(means, squares, image, block, launches, POINTS: tl.constexpr, ASKS: tl.constexpr):
    """Returns the means of groups of an image, and the sums of squared distances from them, from those of all parts.

    Groups that end in another block of channels have two parts.
    """
    parts: tl.constexpr = 4096 // POINTS
    slot = tl.arange(0, 8)
    group = block * 64 // 10 + slot
    before, after = tl.maximum(block * 64 - group * 10, 0), tl.maximum(group * 10 - block * 64 - 54, 0)
    is_shared = (before + after > 0) & (group < 32) & (before < 10) & (after < 10)
    others = tl.where(is_shared, before + after, 0).to(tl.float32)[:, None]
    last_of_before = (block - 1) * 8 + block * 64 // 10 - (block * 64 - 64) // 10
    other = tl.where(before > 0, last_of_before, (block + 1) * 8)
    number = tl.arange(0, parts)[None, :]
    place_of_own = (((image * 5 + block) * 8 + slot) * parts)[:, None] + number
    place_of_other = ((image * 40 + other) * parts)[:, None] + number
    is_there = place_of_own >= 0
    is_shared = is_there & is_shared[:, None]
    own_mean = _published(means + place_of_own, is_there, launches, ASKS)
    own_square = _published(squares + place_of_own, is_there, launches, ASKS)
    other_mean = _published(means + place_of_other, is_shared, launches, ASKS)
    other_square = _published(squares + place_of_other, is_shared, launches, ASKS)
    mean = tl.sum(own_mean * (10 - others) + other_mean * others, 1) * (1.0 / (10 * parts))
    own_away, other_away = own_mean - mean[:, None], other_mean - mean[:, None]
    spread = own_away * own_away * (10 - others) + other_away * other_away * others
    return mean, tl.sum(own_square + other_square + spread * POINTS, 1)


@triton.jit(do_not_specialize=["launches"])
def held_images(
    x, weight, bias, y, means, squares, counts, launches, POINTS: tl.constexpr, DRAWS: tl.constexpr,
    TELLS: tl.constexpr
):  # fmt: skip
    """Group norm in one kernel whose programs hold ``POINTS`` points of 64 channels, two of them in a word.

    A program publishes the moments of its part of each group, waits for all others of its image, and combines those of
    its groups. ``counts`` and words are of all ``launches`` so far. With ``DRAWS`` programs draw their numbers,
    otherwise that they start in order is habit, not promised.

    What ``TELLS`` that moments are there: their words ("words"); an order of memory ("order"), which has a program wait
    for all that its multiprocessor is storing; only the counter ("counter"), which promises nothing; or nobody waits
    ("none"), so that results are wrong, and the bytes alone cost something.
    """
    fmath.follow()
    parts: tl.constexpr = 4096 // POINTS
    each: tl.constexpr = parts * 5
    if DRAWS:
        program = tl.atomic_add(counts + 16 * 32, 1, sem="relaxed") - (launches - 1) * (16 * each)
    else:
        program = tl.program_id(0)
    image = program // each
    part = program % each // 5
    block = program % 5
    column = tl.arange(0, 32)
    start = (image * 4096 + part * POINTS) * 160 + block * 32
    place = (tl.arange(0, POINTS) * 160)[:, None] + column[None, :]
    words = tl.load(x + start + place, eviction_policy="evict_first")
    first_low, first_high = _halves(tl.load(x + start + column))
    of_column = (block * 64 + 2 * column) // 10 - block * 64 // 10
    mean, square = _moments_of_part(words, first_low, first_high, of_column, POINTS)
    weight_low, weight_high = _halves(tl.load(weight + block * 32 + column))
    bias_low, bias_high = _halves(tl.load(bias + block * 32 + column))
    if TELLS != "none":
        own = ((image * 5 + block) * 8 + tl.arange(0, 8)) * parts + part
        _publish(means + own, mean, launches)
        _publish(squares + own, square, launches)
        tl.debug_barrier()
        if TELLS == "order":
            tl.atomic_add(counts + image * 32, 1, sem="release")
            while tl.atomic_add(counts + image * 32, 0, sem="acquire") < each * launches:
                pass
        else:
            tl.atomic_add(counts + image * 32, 1, sem="relaxed")
            while tl.atomic_add(counts + image * 32, 0, sem="relaxed") < each * launches:
                pass
        tl.debug_barrier()
        mean, square = _moments_of_image(means, squares, image, block, launches, POINTS, TELLS == "words")
    inverse = tl.rsqrt(square * (1.0 / 40960) + 1e-5)
    mean_of_column = tl.gather(mean, of_column, 0)
    scale = tl.gather(inverse, of_column, 0)
    scale_low, scale_high = scale * weight_low, scale * weight_high
    low, high = _halves(_as_it_came(words))
    low = low * scale_low[None, :] + (bias_low - mean_of_column * scale_low)[None, :]
    high = high * scale_high[None, :] + (bias_high - mean_of_column * scale_high)[None, :]
    result = _in_one_word(low * fmath.sigmoid(low), high * fmath.sigmoid(high))
    tl.store(y + _as_it_came(start) + place, result, cache_modifier=".cs")
