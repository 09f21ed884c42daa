"""Hand-written reference kernels for cases of `run.py` that miss their bars; `hand_cases.py` calls them."""

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
def prefetched_columns(x, y, count: tl.constexpr, XBLOCK: tl.constexpr, RBLOCK: tl.constexpr, ROWS: tl.constexpr,
                  AHEAD: tl.constexpr):  # fmt: skip
    """Softmax of columns that are read twice, by blocks, where the next block is prefetched before one is worked on.

    Behind the last block it prefetches the last row (1), the first block again (2), or the first element of all
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
        if AHEAD == 1:
            fmath.prefetch(x + tl.minimum(start + RBLOCK + lane, ROWS - 1) * count + sector)
        elif AHEAD == 2:
            fmath.prefetch(x + ((start + RBLOCK) % ROWS + lane) * count + sector)
        elif AHEAD == 3:
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
    """Returns a tile of 16-bit elements as an opaque value: the compiler widens it again where it is used.

    So they lie in half as many registers until then.
    """
    pack: tl.constexpr = 32 // narrow.dtype.primitive_bitwidth
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [narrow], narrow.dtype, is_pure=False, pack=pack)


@triton.jit
def poll_until_published(words, places, wanted):
    """Words of a workspace, of which only those are polled again that were not published."""
    found = poll_words(words + places, wanted)
    missing = (found >> 32).to(tl.int32) == 0
    while tl.max(missing.to(tl.int32), 0) != 0:
        found = tl.where(missing, poll_words(words + places, wanted & missing), found)
        missing = (found >> 32).to(tl.int32) == 0
    return found.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def sum_of_missing(workspace, part, parts: tl.constexpr, total):
    """`fmath.sum_before` of one line of f32, with fewer polls."""
    words = workspace + 1
    group = part // 512
    ends = parts + group - 1 + tl.arange(0, 1)
    places = group * 512 + tl.arange(0, 512)
    before = tl.sum(poll_until_published(words, places, places < part), 0)
    before = tl.sum(poll_until_published(words, ends, ends >= parts), 0) + before
    if part % 512 == 511:
        fmath.publish_part(words - 1, 0, 1, parts + group, parts, before + total)
    return before


@triton.jit
def scanned_part(
    x, workspace, y, PARTS: tl.constexpr, RBLOCK: tl.constexpr, DRAWS: tl.constexpr, WAITS: tl.constexpr
):  # fmt: skip
    """A part of a long sum: its number is drawn, or the program's; without waiting the parts before it are missing.

    It polls again for all that it waits for (1), or for what is missing (2).
    """
    part = fmath.take_ticket(workspace, PARTS) if DRAWS else tl.program_id(0)
    place = part * RBLOCK + tl.arange(0, RBLOCK)
    value = tl.load(x + place, eviction_policy="evict_first").to(tl.float32)
    total = tl.sum(value, 0)
    if WAITS:
        fmath.publish_part(workspace, 0, 1, part, PARTS, total)
    running = tl.cumsum(value, 0)
    if WAITS == 2:
        running += sum_of_missing(workspace, part, PARTS, total)
    elif WAITS == 1:
        running += fmath.sum_before(workspace, 0, 1, part, PARTS, total)
    tl.store(y + place, running.to(y.dtype.element_ty), eviction_policy="evict_first")


@triton.jit
def unpacked(pair):
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
    low, high = unpacked(pair)
    return low + high


@triton.jit
def four_sums(a, b, c, d, e, f, g, h):
    """Adds up four numbers side by side."""
    return a + e, b + f, c + g, d + h


@triton.jit
def _scan_quarter(y, pair, before):
    """Stores the running sums of pairs, which have stayed packed."""
    low, high = unpacked(fmath.opaque_value(pair))
    running = tl.cumsum(low + high, 0) + before
    tl.store(y, pair_of(running - high, running), cache_modifier=".cs")


@triton.jit
def scanned_held(x, workspace, y, PARTS: tl.constexpr, RBLOCK: tl.constexpr, DRAWS: tl.constexpr, WAITS: tl.constexpr):
    """A part of a long sum of bfloat16, read and held in pairs, in quarters: it is scanned after waiting."""
    part = fmath.take_ticket(workspace, PARTS) if DRAWS else tl.program_id(0)
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
        fmath.publish_part(workspace, 0, 1, part, PARTS, total)
        before = fmath.sum_before(workspace, 0, 1, part, PARTS, total)
    _scan_quarter(y + place, first, before)
    before += sum_1
    _scan_quarter(y + place + quarter, second, before)
    before += sum_2
    _scan_quarter(y + place + 2 * quarter, third, before)
    _scan_quarter(y + place + 3 * quarter, fourth, before + sum_3)


@triton.jit
def sum_of_polled(words, part, parts: tl.constexpr, polled, end):
    """The sum before a part of one line, from words that were polled; those that are missing are polled again."""
    group = part // 512
    places, ends = group * 512 + tl.arange(0, 512), parts + group - 1 + tl.arange(0, 1)
    polled = await_words(polled, words + places, places < part)
    end = await_words(end, words + ends, ends >= parts)
    own = tl.sum(polled.to(tl.int32).to(tl.float32, bitcast=True), 0)
    return tl.sum(end.to(tl.int32).to(tl.float32, bitcast=True), 0) + own


@triton.jit
def scanned_prefetching(x, workspace, y, PARTS: tl.constexpr, RBLOCK: tl.constexpr, POLLS: tl.constexpr):
    """Parts of a long sum of bfloat16, read in pairs: a program says what its next part adds up to before it waits.

    So nobody waits for memory that another one reads. It polls for what the parts before its own add up to where
    that is needed (0), or when it begins with the next part (1): mostly all of it is published by then. Who has drawn
    the least part that is not done works on it, as everyone takes its parts in their order: nothing waits for ever.
    """
    lane = tl.arange(0, RBLOCK)
    words = workspace + 1
    part = tl.atomic_add(workspace, 1, sem="relaxed").to(tl.int32)
    pair = tl.load(x + part * RBLOCK + lane, part * RBLOCK + lane < PARTS * RBLOCK, other=0)
    ahead = tl.atomic_add(workspace, 1, sem="relaxed").to(tl.int32)
    low, high = unpacked(pair)
    total = tl.sum(low + high, 0)
    if part < PARTS:
        fmath.publish_part(workspace, 0, 1, part, PARTS, total)
    while part < PARTS:
        coming = tl.load(x + ahead * RBLOCK + lane, ahead * RBLOCK + lane < PARTS * RBLOCK, other=0)
        if POLLS:
            group = part // 512
            places, ends = group * 512 + tl.arange(0, 512), PARTS + group - 1 + tl.arange(0, 1)
            polled = poll_words(words + places, places < part)
            end = poll_words(words + ends, ends >= PARTS)
        further = tl.atomic_add(workspace, 1, sem="relaxed").to(tl.int32)
        low, high = unpacked(pair)
        both = low + high
        running = tl.cumsum(both, 0)
        next_low, next_high = unpacked(coming)
        next_total = tl.sum(next_low + next_high, 0)
        if ahead < PARTS:
            fmath.publish_part(workspace, 0, 1, ahead, PARTS, next_total)
        if POLLS:
            before = sum_of_polled(words, part, PARTS, polled, end)
            if part % 512 == 511:
                fmath.publish_part(workspace, 0, 1, PARTS + part // 512, PARTS, before + total)
        else:
            before = fmath.sum_before(workspace, 0, 1, part, PARTS, total)
        tl.store(y + part * RBLOCK + lane, pair_of(before + (running - both) + low, before + running))
        total, pair = next_total, coming
        part, ahead = ahead, further


@triton.jit
def await_group(counts, group, SHARE: tl.constexpr, LOADS: tl.constexpr):
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
def shared_columns(
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
    await_group(counts + 1, part // SHARE, SHARE, LOADS)
    place = (part // SHARE * SHARE + tl.arange(0, SHARE))[:, None] * XBLOCK + lane[None, :]
    parts = tl.load(tops + place, volatile=True)
    highest = tl.max(parts, 0)
    total = tl.sum(tl.load(masses + place, volatile=True) * tl.exp(parts - highest[None, :]), 0)
    if KEEPS:
        mass = tl.exp(kept(value).to(tl.float32) - top[None, :])
    share = mass * (tl.exp(top - highest) / total)[None, :]
    tl.store(y + row * count + column, share.to(y.dtype.element_ty), eviction_policy="evict_first")


@triton.jit
def shared_rows(
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
    await_group(counts + 1, part // SHARE, SHARE, LOADS)
    members = part // SHARE * SHARE + tl.arange(0, SHARE)
    parts = tl.load(tops + members, volatile=True)
    highest = tl.max(parts, 0)
    total = tl.sum(tl.load(masses + members, volatile=True) * tl.exp(parts - highest), 0)
    share = tl.exp((kept(value) if KEEPS else value).to(tl.float32) - highest) / total
    tl.store(y + place, share.to(y.dtype.element_ty), eviction_policy="evict_first")


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
