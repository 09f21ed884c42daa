"""A group norm written by hand that reads its images once and holds them, packed, until their moments are known.

Of 16 images of 4096 points and 320 channels, which lie together, in 32 groups; `held_cases.py` calls it. Results lie as
the images do, where those of torch on a GPU lie point by point, so that the compiler's kernel transposes. Moments are
words, a mean and a sum of squares in each, whose two lowest bits are those of the number of the launch, so that neither
a counter nor an order of memory has to tell of them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ferrite_runtime import fmath
from hand_kernels import four_sums, halves_of, pair_of


@triton.jit
def _start(image, part, block, POINTS: tl.constexpr):
    """Returns where the first word of a part lies."""
    return (image * 4096 + part * POINTS) * 160 + block * 32


@triton.jit
def _slot_of_column(block):
    """Returns which of the groups of a block of channels each column of words belongs to."""
    return (block * 64 + 2 * tl.arange(0, 32)) // 10 - block * 64 // 10


@triton.jit
def _publish(place, mean, square, launches):
    low = mean.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    high = ((square.to(tl.int32, bitcast=True) & -4) | (launches & 3)).to(tl.int64)
    tl.atomic_xchg(place, low | (high << 32), sem="relaxed")


@triton.jit
def _asked(places, further, has_two, launches):
    """Returns the words of this block of channels and of the other one as they are now; published if there is none."""
    published = (launches & 3).to(tl.int64) << 32
    return tl.load(places, volatile=True), tl.load(further, has_two, published, volatile=True)


@triton.jit
def _are_missing(words, words_of_others, launches):
    own = ((words >> 32).to(tl.int32) ^ launches) & 3
    return tl.max(own) | tl.max(((words_of_others >> 32).to(tl.int32) ^ launches) & 3) != 0


@triton.jit
def _parts_of(words):
    """Returns the means and the sums of squares in words."""
    return words.to(tl.int32).to(tl.float32, bitcast=True), (words >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _sums(words, first_low, first_high, ROWS: tl.constexpr):
    """Returns sums of what is held of each channel, and of its squares, as threads of one column have them."""
    low, high = halves_of(words)
    low = tl.reshape(low - first_low[None, :], [ROWS // 16, 16, 32])
    high = tl.reshape(high - first_high[None, :], [ROWS // 16, 16, 32])
    return tl.sum(low, 0), tl.sum(high, 0), tl.sum(low * low, 0), tl.sum(high * high, 0)


@triton.jit
def _held(x, image, part, block, POINTS: tl.constexpr):
    """Returns the first and second half of the points of a part, 64 channels of them."""
    column, row = tl.arange(0, 32), tl.arange(0, POINTS // 2)
    start = _start(image, part, block, POINTS)
    place = (row * 160)[:, None] + column[None, :]
    first = tl.load(x + start + place, eviction_policy="evict_first")
    return first, tl.load(x + start + POINTS * 80 + place, eviction_policy="evict_first")


@triton.jit
def _moments_of_part(x, first, second, image, part, block, POINTS: tl.constexpr):
    """Returns the means of what is held of each group, and the sums of squared distances from them."""
    from_low, from_high = halves_of(tl.load(x + _start(image, part, block, POINTS) + tl.arange(0, 32)))
    sums = four_sums(*_sums(first, from_low, from_high, POINTS // 2), *_sums(second, from_low, from_high, POINTS // 2))
    sum_low, sum_high, power_low, power_high = tl.reduce(sums, 0, four_sums)
    apart_low, apart_high = sum_low * (1.0 / POINTS), sum_high * (1.0 / POINTS)
    mean_low, mean_high = from_low + apart_low, from_high + apart_high
    apart = (mean_low - mean_high) * 0.5
    square = power_low + power_high - (apart_low * apart_low + apart_high * apart_high - 2 * apart * apart) * POINTS
    is_in_slot = tl.arange(0, 8)[:, None] == _slot_of_column(block)[None, :]
    members = tl.sum(tl.where(is_in_slot, 2.0, 0.0), 1)
    mean_of_pair = ((mean_low + mean_high) * 0.5)[None, :]
    mean = tl.sum(tl.where(is_in_slot, mean_of_pair, 0.0), 1) * 2.0 / tl.maximum(members, 2.0)
    away = mean_of_pair - mean[:, None]
    return mean, tl.sum(tl.where(is_in_slot, square[None, :] + away * away * (2 * POINTS), 0.0), 1)


@triton.jit
def _stored(place, words, scale_low, scale_high, shift_low, shift_high):
    low, high = halves_of(fmath.opaque_value(words))
    low = low * scale_low[None, :] + shift_low[None, :]
    high = high * scale_high[None, :] + shift_high[None, :]
    tl.store(place, pair_of(low * fmath.sigmoid(low), high * fmath.sigmoid(high)), cache_modifier=".cs")


@triton.jit
def _parts_in_other_block(image, block):
    """Returns, for each group, where its parts in another block of channels lie, and how many channels it has there."""
    slot = tl.arange(0, 8)
    group = block * 64 // 10 + slot
    before, after = tl.maximum(block * 64 - group * 10, 0), tl.maximum(group * 10 - block * 64 - 54, 0)
    has_two = (before + after > 0) & (group < 32) & (before < 10) & (after < 10)
    last_of_before = (block - 1) * 8 + block * 64 // 10 - (block * 64 - 64) // 10
    return image * 40 + tl.where(before > 0, last_of_before, (block + 1) * 8), tl.where(has_two, before + after, 0)


@triton.jit
def _make_all(x, moments, image, block, launches, POINTS: tl.constexpr):
    """Publishes the moments of all parts of the groups of a block of channels."""
    parts: tl.constexpr = 4096 // POINTS
    for number in range(3 * parts):
        where, part = block - 1 + number // parts, number % parts
        if (where >= 0) & (where < 5):
            first, second = _held(x, image, part, where, POINTS)
            mean, square = _moments_of_part(x, first, second, image, part, where, POINTS)
            place = ((image * 5 + where) * 8 + tl.arange(0, 8)) * parts + part
            _publish(moments + place, mean, square, launches)


@triton.jit
def _combined(words, words_of_others, others, POINTS: tl.constexpr):
    """Returns the means of whole groups, and the sums of squared distances from them."""
    parts: tl.constexpr = 4096 // POINTS
    own_mean, own_square = _parts_of(words)
    other_mean, other_square = _parts_of(tl.where(others[:, None] > 0, words_of_others, 0))
    share = others.to(tl.float32)[:, None]
    mean = tl.sum(own_mean * (10 - share) + other_mean * share, 1) * (1.0 / (10 * parts))
    own_away, other_away = own_mean - mean[:, None], other_mean - mean[:, None]
    spread = own_away * own_away * (10 - share) + other_away * other_away * share
    return mean, tl.sum(own_square + other_square + spread * POINTS, 1)


@triton.jit(do_not_specialize=["launches", "patience"])
def register_norm(
    x, weight, bias, y, moments, counter, launches, patience, POINTS: tl.constexpr, ORDER: tl.constexpr,
    HELPS: tl.constexpr, WAITS: tl.constexpr
):  # fmt: skip
    """Group norm in one kernel whose programs hold ``POINTS`` points of 64 channels, two of them in a word.

    A program publishes the moments of its part of each group, waits for those of all other parts of its groups, and
    combines them; groups that end in another block of channels have two rows of parts. ``launches`` says which launch
    on the same moments this is.

    That no program waits for ever takes one of these: programs start in the order of their numbers, which is habit, not
    promised; they draw their numbers (``ORDER`` "drawn"); or one that has asked ``patience`` times makes what is
    missing by itself, the same to the bit (``HELPS``), even if all start in "reverse". Where nobody ``WAITS`` results
    are wrong, and the bytes alone cost something.
    """
    fmath.pdl_wait()
    parts: tl.constexpr = 4096 // POINTS
    each: tl.constexpr = parts * 5
    if ORDER == "drawn":
        program = tl.atomic_add(counter, 1, sem="relaxed") - (launches - 1) * (16 * each)
    elif ORDER == "reverse":
        program = 16 * each - 1 - tl.program_id(0)
    else:
        program = tl.program_id(0)
    image = program // each
    block, part = program % each // parts, program % parts
    first, second = _held(x, image, part, block, POINTS)
    mean, square = _moments_of_part(x, first, second, image, part, block, POINTS)
    slot, column = tl.arange(0, 8), tl.arange(0, 32)
    own = ((image * 5 + block) * 8 + slot) * parts
    _publish(moments + own + part, mean, square, launches)
    weight_low, weight_high = halves_of(tl.load(weight + block * 32 + column))
    bias_low, bias_high = halves_of(tl.load(bias + block * 32 + column))
    if WAITS:
        row_of_others, others = _parts_in_other_block(image, block)
        number = tl.arange(0, parts)[None, :]
        places, further = moments + own[:, None] + number, moments + (row_of_others * parts)[:, None] + number
        has_two = (others[:, None] > 0) & (number >= 0)
        words, words_of_others = _asked(places, further, has_two, launches)
        if HELPS:
            asked = 0
            while _are_missing(words, words_of_others, launches) & (asked < patience):
                words, words_of_others = _asked(places, further, has_two, launches)
                asked += 1
            if _are_missing(words, words_of_others, launches):
                _make_all(x, moments, image, block, launches, POINTS)
                first, second = _held(x, image, part, block, POINTS)
        while _are_missing(words, words_of_others, launches):
            words, words_of_others = _asked(places, further, has_two, launches)
        mean, square = _combined(words, words_of_others, others, POINTS)
    inverse = tl.rsqrt(square * (1.0 / 40960) + 1e-5)
    of_column = _slot_of_column(block)
    mean_of_column = tl.gather(mean, of_column, 0)
    scale = tl.gather(inverse, of_column, 0)
    scale_low, scale_high = scale * weight_low, scale * weight_high
    shift_low, shift_high = bias_low - mean_of_column * scale_low, bias_high - mean_of_column * scale_high
    start = fmath.opaque_value(_start(image, part, block, POINTS))
    place = y + start + (tl.arange(0, POINTS // 2) * 160)[:, None] + column[None, :]
    _stored(place, first, scale_low, scale_high, shift_low, shift_high)
    _stored(place + POINTS * 80, second, scale_low, scale_high, shift_low, shift_high)
