"""Kernels written by hand for cases of `kernels.py` that miss their bars; `hand_cases.py` calls them."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ferrite_runtime import fmath
from ferrite_runtime.fmath.flags import await_words, poll_words
from ferrite_runtime.fmath.sorting import sort_integers


@triton.jit
def held_columns(x, y, count: tl.constexpr, XBLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Softmax of columns that a program holds whole, so that they are read once."""
    column = (tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK))[None, :]
    row = tl.arange(0, ROWS)[:, None]
    value = tl.load(x + row * count + column, eviction_policy="evict_first").to(tl.float32)
    mass = tl.exp(value - tl.max(value, 0, keep_dims=True))
    share = mass * (1.0 / tl.sum(mass, 0, keep_dims=True))
    tl.store(y + row * count + column, share.to(y.dtype.element_ty))


@triton.jit
def asked_columns(x, y, count: tl.constexpr, XBLOCK: tl.constexpr, RBLOCK: tl.constexpr, ROWS: tl.constexpr,
                  ASKS: tl.constexpr):  # fmt: skip
    """Softmax of columns that are read twice, by blocks, where the next block is asked for before one is worked on.

    Behind the last block it asks for the last row (1), for the first block again (2), or for the first element of all
    columns (3).
    """
    first = tl.program_id(0) * XBLOCK
    column = (first + tl.arange(0, XBLOCK))[None, :]
    sector = (first + tl.arange(0, XBLOCK // 16) * 16)[None, :]
    lane = tl.arange(0, RBLOCK)[:, None]
    top = tl.full([RBLOCK // 8, XBLOCK], float("-inf"), tl.float32)
    mass = tl.full([RBLOCK // 8, XBLOCK], 0.0, tl.float32)
    for start in tl.range(0, ROWS, RBLOCK):
        value = tl.load(x + (start + lane) * count + column, eviction_policy="evict_last")
        if ASKS == 1:
            fmath.prefetch(x + tl.minimum(start + RBLOCK + lane, ROWS - 1) * count + sector)
        elif ASKS == 2:
            fmath.prefetch(x + ((start + RBLOCK) % ROWS + lane) * count + sector)
        elif ASKS == 3:
            ahead = start + RBLOCK + lane
            fmath.prefetch(x + tl.where(ahead < ROWS, ahead * count + sector, 0))
        group = tl.reshape(value.to(tl.float32), [8, RBLOCK // 8, XBLOCK])
        moved = tl.maximum(top, tl.max(group, 0))
        mass = mass * fmath.fast_exp(top - moved) + tl.sum(fmath.fast_exp(group - moved[None, :, :]), 0)
        top = moved
    highest = tl.max(top, 0, keep_dims=True)
    share = 1.0 / tl.sum(mass * fmath.fast_exp(top - highest), 0, keep_dims=True)
    for start in tl.range(0, ROWS, RBLOCK):
        place = (start + lane) * count + column
        value = tl.load(x + place, eviction_policy="evict_first").to(tl.float32)
        tl.store(y + place, (fmath.fast_exp(value - highest) * share).to(y.dtype.element_ty), cache_modifier=".cs")


@triton.jit
def kept(narrow):
    """Returns a tile of halves as it is, which the compiler does not know: it widens them again where they are used.

    So they lie in half as many registers until then.
    """
    pack: tl.constexpr = 32 // narrow.dtype.primitive_bitwidth
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [narrow], narrow.dtype, is_pure=False, pack=pack)


@triton.jit
def words_asked_until_there(words, places, wanted):
    """Words of a status, of which only those are asked for again that were not published."""
    found = poll_words(words + places, wanted)
    missing = (found >> 32).to(tl.int32) == 0
    while tl.max(missing.to(tl.int32), 0) != 0:
        found = tl.where(missing, poll_words(words + places, wanted & missing), found)
        missing = (found >> 32).to(tl.int32) == 0
    return found.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def sum_of_missing(status, part, parts: tl.constexpr, total):
    """`fmath.sum_before` of one line of f32, with fewer questions."""
    words = status + 1
    group = part // 512
    ends = parts + group - 1 + tl.arange(0, 1)
    places = group * 512 + tl.arange(0, 512)
    before = tl.sum(words_asked_until_there(words, places, places < part), 0)
    before = tl.sum(words_asked_until_there(words, ends, ends >= parts), 0) + before
    if part % 512 == 511:
        fmath.publish_part(words - 1, 0, 1, parts + group, parts, before + total)
    return before


@triton.jit
def scanned_part(
    x, status, y, PARTS: tl.constexpr, RBLOCK: tl.constexpr, DRAWS: tl.constexpr, WAITS: tl.constexpr
):  # fmt: skip
    """A part of a long sum: its number is drawn, or the program's; without waiting the parts before it are missing.

    It asks again for all that it waits for (1), or for what is missing (2).
    """
    part = fmath.take_ticket(status, PARTS) if DRAWS else tl.program_id(0)
    place = part * RBLOCK + tl.arange(0, RBLOCK)
    value = tl.load(x + place, eviction_policy="evict_first").to(tl.float32)
    total = tl.sum(value, 0)
    if WAITS:
        fmath.publish_part(status, 0, 1, part, PARTS, total)
    running = tl.cumsum(value, 0)
    if WAITS == 2:
        running += sum_of_missing(status, part, PARTS, total)
    elif WAITS == 1:
        running += fmath.sum_before(status, 0, 1, part, PARTS, total)
    tl.store(y + place, running.to(y.dtype.element_ty), eviction_policy="evict_first")


@triton.jit
def halves_of(pair):
    """Returns the two bfloat16 numbers that lie in 32 bits."""
    return (pair << 16).to(tl.float32, bitcast=True), (pair & -65536).to(tl.float32, bitcast=True)


@triton.jit
def pair_of(low, high):
    """Returns two numbers as bfloat16 in 32 bits."""
    return tl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $1, $2;", "=r,f,f", [high, low], tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _sum_of_pairs(pair):
    low, high = halves_of(pair)
    return low + high


@triton.jit
def four_sums(a, b, c, d, e, f, g, h):
    """Adds up four numbers side by side."""
    return a + e, b + f, c + g, d + h


@triton.jit
def _scan_quarter(y, pair, before):
    """Stores the running sums of pairs, which have stayed packed."""
    low, high = halves_of(fmath.opaque_value(pair))
    running = tl.cumsum(low + high, 0) + before
    tl.store(y, pair_of(running - high, running), cache_modifier=".cs")


@triton.jit
def scanned_held(x, status, y, PARTS: tl.constexpr, RBLOCK: tl.constexpr, DRAWS: tl.constexpr, WAITS: tl.constexpr):
    """A part of a long sum of bfloat16, read and held in pairs, in quarters: it is scanned after waiting."""
    part = fmath.take_ticket(status, PARTS) if DRAWS else tl.program_id(0)
    quarter: tl.constexpr = RBLOCK // 4
    place = part * RBLOCK + tl.arange(0, quarter)
    first = tl.load(x + place, eviction_policy="evict_first")
    second = tl.load(x + place + quarter, eviction_policy="evict_first")
    third = tl.load(x + place + 2 * quarter, eviction_policy="evict_first")
    fourth = tl.load(x + place + 3 * quarter, eviction_policy="evict_first")
    sums = (_sum_of_pairs(first), _sum_of_pairs(second), _sum_of_pairs(third), _sum_of_pairs(fourth))
    sum_1, sum_2, sum_3, sum_4 = tl.reduce(sums, 0, four_sums)
    total = ((sum_1 + sum_2) + sum_3) + sum_4
    before = total
    if WAITS:
        fmath.publish_part(status, 0, 1, part, PARTS, total)
        before = fmath.sum_before(status, 0, 1, part, PARTS, total)
    _scan_quarter(y + place, first, before)
    before += sum_1
    _scan_quarter(y + place + quarter, second, before)
    before += sum_2
    _scan_quarter(y + place + 2 * quarter, third, before)
    _scan_quarter(y + place + 3 * quarter, fourth, before + sum_3)


@triton.jit
def told_before(words, part, parts: tl.constexpr, asked, end):
    """The sum before a part of one line, from words that were asked for; those that are missing are asked for again."""
    group = part // 512
    places, ends = group * 512 + tl.arange(0, 512), parts + group - 1 + tl.arange(0, 1)
    asked = await_words(asked, words + places, places < part)
    end = await_words(end, words + ends, ends >= parts)
    own = tl.sum(asked.to(tl.int32).to(tl.float32, bitcast=True), 0)
    return tl.sum(end.to(tl.int32).to(tl.float32, bitcast=True), 0) + own


@triton.jit
def scanned_prefetching(x, status, y, PARTS: tl.constexpr, RBLOCK: tl.constexpr, ASKS: tl.constexpr):
    """Parts of a long sum of bfloat16, read in pairs: a program says what its next part adds up to before it waits.

    So nobody waits for memory that another one reads. It asks for what the parts before its own add up to where that
    is needed (0), or when it begins with the next part (1): mostly all of it has been told by then. Who has drawn the
    least part that is not done works on it, as everyone takes its parts in their order: nothing waits for ever.
    """
    lane = tl.arange(0, RBLOCK)
    words = status + 1
    part = tl.atomic_add(status, 1, sem="relaxed").to(tl.int32)
    pair = tl.load(x + part * RBLOCK + lane, part * RBLOCK + lane < PARTS * RBLOCK, other=0)
    ahead = tl.atomic_add(status, 1, sem="relaxed").to(tl.int32)
    low, high = halves_of(pair)
    total = tl.sum(low + high, 0)
    if part < PARTS:
        fmath.publish_part(status, 0, 1, part, PARTS, total)
    while part < PARTS:
        coming = tl.load(x + ahead * RBLOCK + lane, ahead * RBLOCK + lane < PARTS * RBLOCK, other=0)
        if ASKS:
            group = part // 512
            places, ends = group * 512 + tl.arange(0, 512), PARTS + group - 1 + tl.arange(0, 1)
            asked = poll_words(words + places, places < part)
            end = poll_words(words + ends, ends >= PARTS)
        further = tl.atomic_add(status, 1, sem="relaxed").to(tl.int32)
        low, high = halves_of(pair)
        both = low + high
        running = tl.cumsum(both, 0)
        next_low, next_high = halves_of(coming)
        next_total = tl.sum(next_low + next_high, 0)
        if ahead < PARTS:
            fmath.publish_part(status, 0, 1, ahead, PARTS, next_total)
        if ASKS:
            before = told_before(words, part, PARTS, asked, end)
            if part % 512 == 511:
                fmath.publish_part(status, 0, 1, PARTS + part // 512, PARTS, before + total)
        else:
            before = fmath.sum_before(status, 0, 1, part, PARTS, total)
        tl.store(y + part * RBLOCK + lane, pair_of(before + (running - both) + low, before + running))
        total, pair = next_total, coming
        part, ahead = ahead, further


@triton.jit
def store_moments(means, squares, place, value, ROWS: tl.constexpr):
    """Stores the means of columns of ``ROWS`` points, and what their squared distances from them add up to."""
    mean = tl.sum(value, 0, keep_dims=True) * (1.0 / ROWS)
    off = value - mean
    tl.store(means + place, mean)
    tl.store(squares + place, tl.sum(off * off, 0, keep_dims=True))


@triton.jit
def store_silu(y, value, HINT: tl.constexpr, MODIFIER: tl.constexpr):
    result = (value / (1.0 + tl.exp(-value))).to(y.dtype.element_ty)
    tl.store(y, result, eviction_policy=HINT, cache_modifier=MODIFIER)


@triton.jit
def moments_of_image(means, squares, image, PARTS: tl.constexpr, ROWS: tl.constexpr):
    """Returns the means of the 32 groups of an image, and their inverse standard deviations, from those of its parts.

    Each part has ``ROWS`` points, of whose channels other programs have stored the moments.
    """
    part = tl.arange(0, PARTS)[:, None, None]
    group = tl.arange(0, 32)[None, :, None]
    member = tl.arange(0, 16)[None, None, :]
    is_there = (member < 10) & (part >= 0) & (group >= 0)
    places = (image * PARTS + part) * 320 + group * 10 + member
    mean_of_part = tl.load(means + places, is_there, other=0.0, cache_modifier=".cg")
    square = tl.load(squares + places, is_there, other=0.0, cache_modifier=".cg")
    mean = tl.sum(tl.sum(mean_of_part, 0), 1) * (1.0 / (PARTS * 10))
    apart = tl.where(is_there, mean_of_part - mean[None, :, None], 0.0)
    variance = tl.sum(tl.sum(square + apart * apart * ROWS, 0), 1) * (1.0 / 40960)
    return mean, tl.rsqrt(variance + 1e-5)


@triton.jit
def normalised_behind(
    x, weight, bias, y, means, squares, moments, counts,
    PIECES: tl.constexpr, BEHIND: tl.constexpr, ROWS: tl.constexpr, EACH: tl.constexpr
):  # fmt: skip
    """Group norm with silu of 16 images of 4096 points and 320 channels in one kernel.

    A program adds up a piece of one image, and the last one of an image combines its 32 groups; then it waits for the
    moments of the image that the piece ``BEHIND`` pieces before lies in, and reads that again from the cache.
    """
    pieces_of_image: tl.constexpr = 4096 // ROWS
    program = tl.program_id(0)
    lane = tl.arange(0, 64)[None, :]
    row = tl.arange(0, ROWS)[:, None]
    if program < PIECES:
        image = program // EACH
        piece = program % EACH // 5
        channel = program % 5 * 64 + lane
        value = tl.load(x + (image * 4096 + piece * ROWS + row) * 320 + channel, eviction_policy="evict_last")
        value = value.to(tl.float32)
        store_moments(means, squares, (image * pieces_of_image + piece) * 320 + channel, value, ROWS)
        tl.debug_barrier()
        if tl.atomic_add(counts + image, 1, sem="acq_rel") == EACH - 1:
            group = tl.arange(0, 32)
            mean_of_group, inverse = moments_of_image(means, squares, image, pieces_of_image, ROWS)
            tl.store(moments + image * 64 + group, mean_of_group)
            tl.store(moments + image * 64 + 32 + group, inverse)
            tl.debug_barrier()
            tl.atomic_xchg(counts + 16 + image, 1, sem="release")
    if program >= BEHIND:
        image = (program - BEHIND) // EACH
        while tl.load(counts + 16 + image, volatile=True) == 0:
            pass
        channel = (program - BEHIND) % 5 * 64 + lane
        place = (image * 4096 + (program - BEHIND) % EACH // 5 * ROWS + row) * 320 + channel
        value = tl.load(x + place, eviction_policy="evict_first").to(tl.float32)
        mean = tl.load(moments + image * 64 + channel // 10, volatile=True)
        scale = tl.load(moments + image * 64 + 32 + channel // 10, volatile=True) * tl.load(weight + channel)
        store_silu(y + place, (value - mean) * scale + tl.load(bias + channel), "evict_first", "")


@triton.jit
def meet(counts, group, SHARE: tl.constexpr, LOADS: tl.constexpr):
    """Waits until the programs of a group have all come here; what they stored before can be read after it."""
    if LOADS:
        tl.debug_barrier()
        tl.atomic_add(counts + group, 1, sem="acq_rel")
        while tl.load(counts + group, volatile=True) < SHARE:
            pass
        tl.debug_barrier()
    else:
        fmath.grid_barrier(counts + group, SHARE)


@triton.jit
def met_columns(
    x, y, counts, tops, masses, count, XBLOCK: tl.constexpr, RBLOCK: tl.constexpr, SHARE: tl.constexpr,
    KEEPS: tl.constexpr, LOADS: tl.constexpr
):  # fmt: skip
    """Softmax of columns that ``SHARE`` programs hold together, each some rows of them, so that they are read once."""
    part = tl.atomic_add(counts, 1, sem="relaxed")
    lane = tl.arange(0, XBLOCK)
    column = (part // SHARE * XBLOCK + lane)[None, :]
    row = (part % SHARE * RBLOCK + tl.arange(0, RBLOCK))[:, None]
    value = tl.load(x + row * count + column, eviction_policy="evict_first")
    top = tl.max(value.to(tl.float32), 0)
    value = kept(value) if KEEPS else value
    mass = tl.exp(value.to(tl.float32) - top[None, :])
    tl.store(tops + part * XBLOCK + lane, top)
    tl.store(masses + part * XBLOCK + lane, tl.sum(mass, 0))
    meet(counts + 1, part // SHARE, SHARE, LOADS)
    place = (part // SHARE * SHARE + tl.arange(0, SHARE))[:, None] * XBLOCK + lane[None, :]
    parts = tl.load(tops + place, volatile=True)
    highest = tl.max(parts, 0)
    total = tl.sum(tl.load(masses + place, volatile=True) * tl.exp(parts - highest[None, :]), 0)
    if KEEPS:
        mass = tl.exp(kept(value).to(tl.float32) - top[None, :])
    share = mass * (tl.exp(top - highest) / total)[None, :]
    tl.store(y + row * count + column, share.to(y.dtype.element_ty), eviction_policy="evict_first")


@triton.jit
def met_rows(
    x, y, counts, tops, masses, length: tl.constexpr, RBLOCK: tl.constexpr, SHARE: tl.constexpr,
    KEEPS: tl.constexpr, LOADS: tl.constexpr
):  # fmt: skip
    """Softmax of rows that ``SHARE`` programs hold together."""
    part = tl.atomic_add(counts, 1, sem="relaxed")
    place = (part // SHARE).to(tl.int64) * length + part % SHARE * RBLOCK + tl.arange(0, RBLOCK)
    value = tl.load(x + place, eviction_policy="evict_first")
    top = tl.max(value.to(tl.float32), 0)
    value = kept(value) if KEEPS else value
    tl.store(tops + part, top)
    tl.store(masses + part, tl.sum(tl.exp(value.to(tl.float32) - top), 0))
    meet(counts + 1, part // SHARE, SHARE, LOADS)
    members = part // SHARE * SHARE + tl.arange(0, SHARE)
    parts = tl.load(tops + members, volatile=True)
    highest = tl.max(parts, 0)
    total = tl.sum(tl.load(masses + members, volatile=True) * tl.exp(parts - highest), 0)
    share = tl.exp((kept(value) if KEEPS else value).to(tl.float32) - highest) / total
    tl.store(y + place, share.to(y.dtype.element_ty), eviction_policy="evict_first")


@triton.jit
def met_group_norm(
    x, weight, bias, y, counts, words, ROWS: tl.constexpr, EACH: tl.constexpr
):  # fmt: skip
    """Group norm with silu of 16 images of 4096 points and 320 channels, of which a program holds 64 of some points.

    Of the eight groups or fewer that its channels lie in a program publishes the moments, and combines them with those
    of the other programs of the image that have channels of the same groups.
    """
    pieces: tl.constexpr = 4096 // ROWS
    program = tl.atomic_add(counts, 1, sem="relaxed")
    image = program // EACH
    piece = program % EACH // 5
    block = program % 5
    channel = block * 64 + tl.arange(0, 64)
    place = (image * 4096 + piece * ROWS + tl.arange(0, ROWS)[:, None]) * 320 + channel[None, :]
    halves = tl.load(x + place, eviction_policy="evict_first")
    value = halves.to(tl.float32)
    mean_of_channel = tl.sum(value, 0) * (1.0 / ROWS)
    off = value - mean_of_channel[None, :]
    square_of_channel = tl.sum(off * off, 0)
    first = block * 64 // 10
    lane = tl.arange(0, 8)
    is_own = (channel // 10 - first)[None, :] == lane[:, None]
    share = tl.sum(is_own.to(tl.float32), 1)
    mean = tl.sum(tl.where(is_own, mean_of_channel[None, :], 0.0), 1) / tl.maximum(share, 1.0)
    apart = mean_of_channel[None, :] - mean[:, None]
    square = tl.sum(tl.where(is_own, square_of_channel[None, :] + ROWS * apart * apart, 0.0), 1)
    here = words + ((image * 5 + block) * pieces + piece) * 16 + lane
    fmath.publish_state(here, mean)
    fmath.publish_state(here + 8, square)
    neighbour = block - 1 + tl.arange(0, 4)[:, None, None]
    group = (first + lane)[None, None, :]
    begin = tl.maximum(group * 10, neighbour * 64)
    channels = tl.minimum(group * 10 + 10, neighbour * 64 + 64) - begin
    local = group - neighbour * 64 // 10
    part = tl.arange(0, pieces)[None, :, None]
    is_there = (neighbour >= 0) & (neighbour < 5) & (channels > 0) & (group < 32) & (part >= 0)
    there = words + ((image * 5 + neighbour) * pieces + part) * 16 + local
    fmath.grid_barrier(counts + 1 + image, EACH)
    means = fmath.published_states(there, is_there, 0.0)
    squares = fmath.published_states(there + 8, is_there, 0.0)
    counted = tl.where(is_there, channels, 0).to(tl.float32)
    middle = tl.sum(tl.sum(means * counted, 0), 0) * (1.0 / (10 * pieces))
    apart_there = means - middle[None, None, :]
    variance = tl.sum(tl.sum(squares + ROWS * counted * apart_there * apart_there, 0), 0) * (1.0 / 40960)
    middles = tl.sum(tl.where(is_own, middle[:, None], 0.0), 0)
    scales = tl.sum(tl.where(is_own, tl.rsqrt(variance + 1e-5)[:, None], 0.0), 0) * tl.load(weight + channel)
    again = kept(halves).to(tl.float32)
    moved = (again - middles[None, :]) * scales[None, :] + tl.load(bias + channel)[None, :]
    store_silu(y + place, moved, "evict_first", "")


@triton.jit
def reciprocal(x):
    """Returns 1 / x to about one unit in the last place."""
    return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def store_scaled_silu(y, value, scale, shift):
    moved = value * scale[None, :] + shift[None, :]
    share = moved * reciprocal(1.0 + tl.exp2(moved * -1.4426950408889634))
    tl.store(y, share.to(y.dtype.element_ty), cache_modifier=".cs")


@triton.jit
def ask_for(x, count: tl.constexpr, ASKS: tl.constexpr):
    """Asks for ``count`` elements to be brought into the cache: by sectors (1), or by pieces for 256 lanes (2)."""
    bytes_of_one: tl.constexpr = x.dtype.element_ty.primitive_bitwidth // 8
    if ASKS == 1:
        for turn in tl.range(0, count, 256 * 32 // bytes_of_one):
            fmath.prefetch(x + turn + tl.arange(0, 256) * (32 // bytes_of_one))
    elif ASKS == 2:
        piece: tl.constexpr = count // 256
        text: tl.constexpr = "cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;"
        size = tl.full([256], piece * bytes_of_one, tl.int32)
        places = (x + tl.arange(0, 256) * piece).to(tl.int64)
        tl.inline_asm_elementwise(text, "=r,l,r", [places, size], tl.int32, is_pure=False, pack=1)


@triton.jit
def rows_apart(x, first, is_held: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr):
    """Returns a tile, and its distances from the first row and their squares, added up by threads: ``[LANES, 64]``."""
    found = tl.load(x, eviction_policy="evict_first" if is_held else "evict_last")
    off = tl.reshape(found.to(tl.float32) - first[None, :], [ROWS // LANES, LANES, 64])
    return found, tl.sum(off, 0), tl.sum(off * off, 0)


@triton.jit
def store_normalised(
    found, weight, bias, y, middle, inverse, block: tl.constexpr, piece: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    channel = block * 64 + tl.arange(0, 64)
    scale = tl.gather(inverse, channel // 10, 0) * tl.load(weight + channel).to(tl.float32)
    shift = tl.load(bias + channel).to(tl.float32) - tl.gather(middle, channel // 10, 0) * scale
    store_scaled_silu(y + piece * ROWS * 320 + block * 64, found.to(tl.float32), scale, shift)


@triton.jit
def register_group_norm(
    x, weight, bias, y, counts, means, squares, POINTS: tl.constexpr, ROWS: tl.constexpr, HELD: tl.constexpr,
    LANES: tl.constexpr, ASKS: tl.constexpr, PHASES: tl.constexpr
):  # fmt: skip
    """Group norm with silu of 16 images of 4096 points and 320 channels; all programs run at once.

    A program has ``POINTS`` points of an image, in tiles of ``ROWS`` points and 64 channels: the last ``HELD`` of them
    stay in registers, in as many bits as they have, and the others are read again, which the cache should have still.
    A meeting is only of the programs of an image. The counters are zero again when the last one has left. Of three
    phases (adding up, meeting, normalising) only the first ``PHASES`` are done.
    """
    share: tl.constexpr = 4096 // POINTS
    pieces: tl.constexpr = POINTS // ROWS
    tiles: tl.constexpr = 5 * pieces
    image = tl.program_id(0) // share
    own = x + tl.program_id(0) * POINTS * 320
    ask_for(own, POINTS * 320, ASKS)
    lane = tl.arange(0, 64)
    point = tl.program_id(0) * POINTS + tl.arange(0, ROWS)
    place = point[:, None] * 320 + lane[None, :]
    held = ()
    firsts = ()
    for block in tl.static_range(5):
        firsts = firsts + (tl.load(own + block * 64 + lane).to(tl.float32),)  # noqa: RUF005 - Triton knows no other way
    for block in tl.static_range(5):
        total = tl.full([LANES, 64], 0.0, tl.float32)
        power = tl.full([LANES, 64], 0.0, tl.float32)
        first = firsts[block]
        for piece in tl.static_range(pieces):
            found, off, square = rows_apart(
                x + place + piece * ROWS * 320 + block * 64,
                first,
                block * pieces + piece >= tiles - HELD,
                ROWS,
                LANES,
            )
            if block * pieces + piece >= tiles - HELD:
                held = held + (found,)  # noqa: RUF005 - Triton knows no other way
            total += off
            power += square
        apart = tl.sum(total, 0) * (1.0 / POINTS)
        here = tl.program_id(0) * 320 + block * 64 + lane
        tl.store(means + here, first + apart)
        tl.store(squares + here, tl.sum(power, 0) - apart * apart * POINTS)
    if PHASES > 1:
        fmath.grid_barrier(counts + image, share)
        middle, inverse = moments_of_image(means, squares, image, share, POINTS)
        if PHASES > 2:
            for tile in tl.static_range(tiles - HELD, tiles):
                found = kept(held[tile - (tiles - HELD)])
                store_normalised(found, weight, bias, y + place, middle, inverse, tile // pieces, tile % pieces, ROWS)
            for tile in tl.static_range(tiles - HELD):
                there = x + place + tile % pieces * ROWS * 320 + tile // pieces * 64
                found = tl.load(there, eviction_policy="evict_first")
                store_normalised(found, weight, bias, y + place, middle, inverse, tile // pieces, tile % pieces, ROWS)
        else:
            tl.store(y + tl.program_id(0) * 32 + tl.arange(0, 32), (middle * inverse).to(y.dtype.element_ty))
        if tl.atomic_add(counts + 16 + image, 1, sem="relaxed") == share - 1:
            tl.store(counts + image, 0)
            tl.store(counts + 16 + image, 0)


@triton.jit
def moments_of_parts(x, means, squares, ROWS: tl.constexpr):
    """The first of three kernels of a group norm of 16 images of 4096 points and 320 channels: moments of pieces."""
    fmath.pdl_wait()
    piece = tl.program_id(0) // 5
    channel = tl.program_id(0) % 5 * 64 + tl.arange(0, 64)[None, :]
    row = piece * ROWS + tl.arange(0, ROWS)[:, None]
    value = tl.load(x + row * 320 + channel, eviction_policy="evict_last").to(tl.float32)
    store_moments(means, squares, piece * 320 + channel, value, ROWS)


@triton.jit
def moments_of_stretches(
    x, means, squares, POINTS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr,
    STAGES: tl.constexpr, KEPT: tl.constexpr = -1
):  # fmt: skip
    """Moments of ``WIDTH`` of the 320 channels of a stretch of ``POINTS`` points, ``ROWS`` of them at a time.

    Distances from the first row, and their squares, are added up by ``LANES`` threads for each channel. What the last
    ``KEPT`` of a hundred programs read should stay in the cache, what those before read should leave it first; nothing
    is said of either if that is negative.
    """
    fmath.pdl_wait()
    blocks: tl.constexpr = (320 + WIDTH - 1) // WIDTH
    stretch = tl.program_id(0) // blocks
    channel = tl.program_id(0) % blocks * WIDTH + tl.arange(0, WIDTH)
    if KEPT < 0:
        store_moments_of_stretch(x, means, squares, stretch, channel, POINTS, ROWS, WIDTH, LANES, STAGES, "")
    elif tl.program_id(0) * 100 >= tl.num_programs(0) * (100 - KEPT):
        store_moments_of_stretch(x, means, squares, stretch, channel, POINTS, ROWS, WIDTH, LANES, STAGES, "evict_last")
    else:
        store_moments_of_stretch(x, means, squares, stretch, channel, POINTS, ROWS, WIDTH, LANES, STAGES, "evict_first")


@triton.jit
def store_moments_of_stretch(
    x, means, squares, stretch, channel, POINTS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    LANES: tl.constexpr, STAGES: tl.constexpr, HINT: tl.constexpr
):  # fmt: skip
    is_there = channel < 320
    own = x + stretch * POINTS * 320 + channel
    first = tl.load(own, is_there, other=0.0).to(tl.float32)
    total = tl.zeros([LANES, WIDTH], tl.float32)
    power = tl.zeros([LANES, WIDTH], tl.float32)
    row = tl.arange(0, ROWS)[:, None] * 320
    for start in tl.range(0, POINTS, ROWS, num_stages=STAGES):
        place = own[None, :] + start * 320 + row
        found = tl.load(place, is_there[None, :], other=0.0, eviction_policy=HINT).to(tl.float32)
        off = tl.reshape(found - first[None, :], [ROWS // LANES, LANES, WIDTH])
        total += tl.sum(off, 0)
        power += tl.sum(off * off, 0)
    apart = tl.sum(total, 0) * (1.0 / POINTS)
    place = stretch * 320 + channel
    tl.store(means + place, first + apart, is_there)
    tl.store(squares + place, tl.sum(power, 0) - apart * apart * POINTS, is_there)


@triton.jit
def moments_of_groups(means, squares, moments, ROWS: tl.constexpr):
    """The second of three kernels: the moments of a group, of those of its pieces."""
    fmath.pdl_wait()
    store_moments_of_group(means, squares, moments, tl.program_id(0), ROWS, False)


@triton.jit
def store_moments_of_group(means, squares, moments, number, ROWS: tl.constexpr, SAME_LAUNCH: tl.constexpr):
    """Stores the moments of a group, of those of its pieces, which programs of the same launch may have stored."""
    pieces: tl.constexpr = 4096 // ROWS
    image = number // 32
    group = number % 32
    part = tl.arange(0, pieces)[:, None]
    member = tl.arange(0, 16)[None, :]
    is_there = (member < 10) & (part >= 0)
    place = (image * pieces + part) * 320 + group * 10 + member
    mean_of_part = tl.load(means + place, is_there, other=0.0, volatile=SAME_LAUNCH)
    square = tl.load(squares + place, is_there, other=0.0, volatile=SAME_LAUNCH)
    mean = tl.sum(tl.sum(mean_of_part, 0), 0) * (1.0 / (pieces * 10))
    apart = tl.where(is_there, mean_of_part - mean, 0.0)
    variance = tl.sum(tl.sum(square + apart * apart * ROWS, 0), 0) * (1.0 / 40960)
    tl.store(moments + image * 64 + group, mean)
    tl.store(moments + image * 64 + 32 + group, tl.rsqrt(variance + 1e-5))


@triton.jit
def normalised(
    x, weight, bias, y, moments, ROWS: tl.constexpr, PROGRAMS: tl.constexpr, BACKWARDS: tl.constexpr,
    HINT: tl.constexpr = "evict_first", STORED: tl.constexpr = "evict_first", MODIFIER: tl.constexpr = ""
):  # fmt: skip
    """The last of three kernels; backwards it begins where the first one ended, which is in the cache still."""
    fmath.pdl_wait()
    program = PROGRAMS - 1 - tl.program_id(0) if BACKWARDS else tl.program_id(0)
    piece = program // 5
    image = piece // (4096 // ROWS)
    channel = program % 5 * 64 + tl.arange(0, 64)[None, :]
    place = (piece * ROWS + tl.arange(0, ROWS)[:, None]) * 320 + channel
    value = tl.load(x + place, eviction_policy=HINT).to(tl.float32)
    mean = tl.load(moments + image * 64 + channel // 10)
    scale = tl.load(moments + image * 64 + 32 + channel // 10) * tl.load(weight + channel)
    store_silu(y + place, (value - mean) * scale + tl.load(bias + channel), STORED, MODIFIER)


@triton.jit
def copied(x, y, LETS: tl.constexpr, WAITS: tl.constexpr, BLOCK: tl.constexpr):
    """A copy whose last ``LETS`` programs let the next kernel start, and whose programs wait for the one before."""
    if LETS:  # noqa: SIM102 - known while compiling
        if tl.program_id(0) >= tl.num_programs(0) - LETS:
            gdc_launch_dependents()
    if WAITS:
        gdc_wait()
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + place, tl.load(x + place, eviction_policy="evict_first"))


@triton.jit
def scaled(x, y, STRETCHES: tl.constexpr, BLOCK: tl.constexpr):
    """One and a half times a tensor: forwards (0), from its end on (1), or from the ends of so many stretches of it."""
    block = tl.program_id(0)
    if STRETCHES:
        each = tl.num_programs(0) // STRETCHES
        block = block % STRETCHES * each + each - 1 - block // STRETCHES
    place = block * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + place, (tl.load(x + place).to(tl.float32) * 1.5).to(y.dtype.element_ty))


@triton.jit
def summed(x, y, BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
    """Sums of stretches of so many blocks, of which each program takes one."""
    place = tl.program_id(0) * BLOCKS * BLOCK + tl.arange(0, BLOCK)
    total = tl.full([BLOCK], 0.0, tl.float32)
    for block in tl.range(0, BLOCKS):
        total += tl.load(x + place + block * BLOCK).to(tl.float32)
    tl.store(y + tl.program_id(0), tl.sum(total, 0))


@triton.jit
def listed(
    places, counts, lists, runs, ordered, count: tl.constexpr, capacity: tl.constexpr, tile: tl.constexpr,
    STEPS: tl.constexpr
):  # fmt: skip
    """The first ``STEPS`` steps of listing rows that are sorted first, without chunks of long places.

    They sort rows, find runs, write their words, count them, and list their rows.
    """
    program, lane = tl.program_id(0), tl.arange(0, tile)
    number = program * tile + lane
    key = tl.load(places + number).to(tl.int32) * tile + lane
    tl.store(ordered + number, sort_integers(key) if STEPS > 0 else key)
    if STEPS > 1:
        tl.debug_barrier()
        key = tl.load(ordered + number)
        place = key // tile
        begins = tl.load(ordered + number - 1, lane > 0, other=-1) // tile != place
        ends = tl.load(ordered + number + 1, lane < tile - 1, other=-1) // tile != place
        head = tl.associative_scan(tl.where(begins, lane, 0), 0, later)
        length = tl.associative_scan(tl.where(ends, lane, tile - 1), 0, sooner, reverse=True) - lane + 1
        if STEPS == 2:
            tl.store(runs + number, head + length)
        else:
            tl.store(runs + place * (count // tile) + program, lane * tile + length - 1, begins)
        if STEPS > 3:
            before = tl.atomic_add(counts + place, length, mask=begins, sem="relaxed")
            if STEPS == 4:
                tl.store(lists + number, before)
            else:
                at = tl.gather(before, head, 0) + lane - head
                tl.store(lists + place * capacity + at, program * tile + key % tile, at < capacity)


@triton.jit
def later(a, b):
    return tl.maximum(a, b)


@triton.jit
def sooner(a, b):
    return tl.minimum(a, b)


@triton.jit
def few_rows(
    x, w, y, rows: tl.constexpr, columns: tl.constexpr, depth: tl.constexpr, YBLOCK: tl.constexpr,
    XBLOCK: tl.constexpr, RBLOCK: tl.constexpr
):  # fmt: skip
    """Products of a few rows with the columns of a matrix in float32, by multiplications and additions."""
    column = (tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK))[None, :, None]
    row = tl.arange(0, YBLOCK)[:, None, None]
    total = tl.full([YBLOCK, XBLOCK, RBLOCK], 0.0, tl.float32)
    for start in tl.range(0, depth, RBLOCK):
        point = (start + tl.arange(0, RBLOCK))[None, None, :]
        given = tl.load(x + row * depth + point, row < rows, other=0.0, eviction_policy="evict_last")
        total += given * tl.load(w + column * depth + point, eviction_policy="evict_first")
    place = row * columns + column
    tl.store(y + place, tl.sum(total, 2, keep_dims=True), row < rows)


@triton.jit
def few_rows_in_parts(
    x, w, y, rows: tl.constexpr, columns: tl.constexpr, depth: tl.constexpr, XBLOCK: tl.constexpr, RBLOCK: tl.constexpr
):
    """The same on tensor cores, each factor in two parts."""
    column = (tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK))[:, None]
    row = tl.arange(0, 16)[:, None]
    total = tl.full([16, XBLOCK], 0.0, tl.float32)
    for start in tl.range(0, depth, RBLOCK):
        point = (start + tl.arange(0, RBLOCK))[None, :]
        given = tl.load(x + row * depth + point, row < rows, other=0.0)
        weight = tl.load(w + column * depth + point)
        total = fmath.dot_in_parts(given, tl.trans(weight), total)
    tl.store(y + row * columns + tl.reshape(column, [1, XBLOCK]), total, row < rows)
