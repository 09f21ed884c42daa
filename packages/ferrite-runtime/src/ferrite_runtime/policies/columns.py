"""Configs of kernels that reduce or scan columns: what lies next to each other belongs to other results."""

from __future__ import annotations

import math
from dataclasses import replace

from ferrite_runtime.formats.config import Config
from ferrite_runtime.policies.blocks import next_power_of_two, previous_power_of_two
from ferrite_runtime.policies.occupancy import flops_per_point, programs_of
from ferrite_runtime.policies.shape import Shape
from ferrite_runtime.policies.thresholds import COLUMNS, OCCUPANCY, TILES
from ferrite_runtime.policies.tiles import keep_busy, loop_config, rows_config

# Bytes that memory is read in at least.
SECTOR = 32


def persistent_columns(shape: Shape, row: int) -> tuple[Config, ...]:
    """Returns the candidates of a kernel that holds whole columns, best guess first."""
    if shape.spec.facts.noncoalesced:
        return _noncoalesced_columns(shape, row)
    tiles, shape = _whole_columns(shape, row), replace(shape, live=1)
    return tuple(rows_config(shape, count, row, w) for count, w in tiles)


def _whole_columns(shape: Shape, row: int) -> tuple[tuple[int, int], ...]:
    """Returns how many columns lie beside each other in tiles that hold them whole, and their warps; best guess first.

    As many as one warp holds, but whole lines. What threads of several warps hold of a column they reduce through
    shared memory, which costs more than its reading (`benchmarks/results/first-configs.md`, softmax of short columns).
    """
    threads, held = shape.device.target.warp_size, _held_of_columns(shape)
    beside = shape.spec.facts.neighbours
    line = 128 // max(4 if row >= COLUMNS.half_line_rows and not beside else 1, shape.narrowest_read)
    columns = max(threads * held // row, line, 8)
    columns = keep_busy(shape, columns, least=min(columns, 128 // max(1, shape.element_bytes)))
    if shape.points // columns < TILES.fill * shape.device.multiprocessors:
        held //= 2  # few programs read no more at once than their threads do
    warps = max(1, columns * row // (threads * held))
    return (columns, warps), (columns // 2 or 1, warps), (columns, warps * 2)


def busy_columns(shape: Shape, config: Config) -> Config:
    """Returns the config of whole columns that take many instructions, of which programs are to fill the device.

    Fewer columns make more programs. Warps that share columns reduce them through shared memory, where all of a program
    wait for each other: there are only a few, for columns that are no fewer than two sectors of memory are wide.
    """
    warp, row, shape = shape.device.target.warp_size, next_power_of_two(shape.reduction), replace(shape, live=1)
    columns, warps = config.block("XBLOCK"), config.num_warps
    least, held = 2 * SECTOR // shape.narrowest_read, COLUMNS.busy_held * warp
    wanted = COLUMNS.busy_fill * shape.device.multiprocessors / shape.parts

    def is_filled() -> bool:
        return programs_of(shape, {**dict(config.blocks), "XBLOCK": columns}) * warps >= wanted

    while not is_filled() and columns >= 2 * least and (warps > 1 or columns * row >= 2 * held):
        columns, warps = columns // 2, max(1, warps // 2)
    while not is_filled() and 2 * warps <= COLUMNS.busy_warps and columns * row >= 2 * warps * held:
        warps *= 2
    return rows_config(shape, columns, row, warps)


def _noncoalesced_columns(shape: Shape, row: int) -> tuple[Config, ...]:
    """Returns the candidates of columns of which few lie beside each other, all of whose rows one warp has.

    A thread has 32 bytes of what is only reduced, and of what is not four elements, which are stored one by one as
    well.
    """
    threads, shape = COLUMNS.noncoalesced_warps * shape.device.target.warp_size, replace(shape, live=1)
    columns = threads * (32 // shape.narrowest_read if shape.only_reduces else 4) // row
    tiles = (
        (columns, COLUMNS.noncoalesced_warps),
        (columns // 2, COLUMNS.noncoalesced_warps // 2),
        (columns * 2, COLUMNS.noncoalesced_warps * 2),
    )
    return tuple(rows_config(shape, max(1, x), row, w) for x, w in tiles)


def _held_of_columns(shape: Shape) -> int:
    """Returns how many elements of columns a thread holds, of each of the tiles that are live at once."""
    held = min(COLUMNS.held_of_columns, COLUMNS.held_bytes // max(1, shape.narrowest_read))
    return held // 2 if shape.live > TILES.many_live else held


def looped_columns(shape: Shape) -> tuple[Config, ...]:
    """Returns the candidates of a kernel that loops over columns, best guess first."""
    line = 128 // max(1, shape.element_bytes)
    if shape.reduction_facts.passes > 1:
        # Columns that are read again: as few at a time as fill half a line, so that they are still in the cache; or as
        # what memory is read in, where that leaves multiprocessors idle.
        columns = keep_busy(shape, line // 2 or 1, SECTOR // shape.narrowest_read or 1, programs=1)
        is_filled = shape.points >= (line // 2) * shape.device.multiprocessors
        cached = shape.device.l2_bytes * COLUMNS.cache_share
        if is_filled and shape.device.multiprocessors * _again_bytes(shape, line) <= cached:
            return _again_short(shape, line)
        warps = _again_warps(shape, columns) if is_filled else min(COLUMNS.again_warps, shape.device.max_warps)
        fewer = max(1, warps // 2)  # two programs to a multiprocessor: one reads while the other computes
        again = ((columns, warps), (columns // 2 or 1, fewer), (columns, fewer), (line, warps), (line, fewer))
        return tuple(_again(shape, *tile) for tile in again)
    rows = shape.reduction_facts.rows_together
    if rows > 1:
        # Of 16-bit elements, and where there are many programs, small ones hide each other's waiting.
        warps, programs = 2 if shape.reads_16_bit else 4, shape.points * shape.narrowest_read // 128
        if programs < shape.device.multiprocessors:
            # Too few programs for the multiprocessors there are: twice as many, with as many threads as can be.
            shares = ((COLUMNS.few_warps, 2), (COLUMNS.few_warps, 1), (COLUMNS.few_warps // 2, 2))
            return tuple(_together(shape, rows, many, share) for many, share in shares)
        if programs >= COLUMNS.small_programs * shape.device.multiprocessors:
            warps //= 2
        together = ((rows, warps), (rows, warps * 2), (rows, max(1, warps // 2)), (rows * 2, 4))
        return tuple(_together(shape, count, warps) for count, warps in together)
    vector = vector_of_columns(shape, 16 // max(1, shape.narrowest_read))
    if shape.reduction_is_known and vector * shape.narrowest_read <= COLUMNS.unaligned_bytes:
        return _unaligned_columns(shape, _looped_once(shape), vector)
    return _looped_once(shape)


def _looped_once(shape: Shape) -> tuple[Config, ...]:
    """Returns the candidates of a kernel that loops over columns once, each of whose rows by itself."""
    threads = shape.device.target.warp_size
    line = 128 // max(1, shape.element_bytes)
    tall = shape.reduction >= COLUMNS.tall_reduction
    if shape.points // (2 * line) >= TILES.fill * shape.device.multiprocessors:
        return _many_tall(shape) if tall else _many_columns(shape)
    columns = keep_busy(shape, line, least=max(8, line // 2))
    if shape.points // columns < shape.device.multiprocessors and shape.reduction > COLUMNS.few_rows:
        # Few programs of many rows, mostly partial sums that the cache still has: as many threads as can be, on pieces
        # of memory that are no smaller than what it is read in.
        half = columns // 2 if columns // 2 * shape.narrowest_read >= SECTOR else columns
        most = min(COLUMNS.long_column, next_power_of_two(shape.reduction))
        few = loop_config(shape, half, most, COLUMNS.few_warps * most // COLUMNS.long_column)
        return (
            few,
            *(loop_config(shape, columns, COLUMNS.long_column // d, COLUMNS.few_warps // d) for d in (2, 4, 8)),
        )
    if tall and shape.points // columns >= shape.device.multiprocessors:
        return _few_tall(shape)
    depth = 32 if shape.points // columns >= 2 * shape.device.multiprocessors else 64
    held = COLUMNS.outer_per_thread // (2 if flops_per_point(shape) >= OCCUPANCY.busy_flops else 1)
    warps = max(1, columns * depth // (threads * held))
    deeper = _deepened(shape, columns, depth, warps)
    depth, warps = depth * deeper, warps * deeper
    last = (2 * line, depth, warps) if shape.reads_narrow else (columns // 2 or 1, depth * 2, warps)
    more = ((columns, depth * 2, warps), (2 * line, depth // 2, warps), last)
    return tuple(loop_config(shape, x, r, w) for x, r, w in ((columns, depth, warps), *more))


def _unaligned_columns(shape: Shape, aligned: tuple[Config, ...], vector: int) -> tuple[Config, ...]:
    """Returns the candidates of columns whose rows begin at no multiple of a vector, so that a thread reads little.

    ``aligned`` are those of other columns, ``vector`` is how many elements a thread reads at once. Columns that one
    tile holds are read in one turn, each thread's share of them at once. Others get as many warps as it takes for a
    thread to read only a few times in each turn of the loop: with dozens of reads the turns last several times as long.
    """
    row, beside = next_power_of_two(shape.reduction), COLUMNS.unaligned_columns
    if row > COLUMNS.unaligned_rows or shape.live > TILES.many_live:
        return tuple(_read_few_times(shape, config, vector) for config in aligned)
    columns = keep_busy(shape, max(SECTOR // 2, min(beside, COLUMNS.scan_tile // row)), least=SECTOR // 2, programs=1)
    warps = max(1, columns * row // (shape.device.target.warp_size * COLUMNS.unaligned_per_thread))
    whole = replace(shape, live=1)
    first = loop_config(whole, columns, row, warps)
    return (first, loop_config(whole, columns, row, warps * 2), aligned[0])


def _read_few_times(shape: Shape, config: Config, vector: int) -> Config:
    """Returns a config with so many warps that a thread reads a tile in a few vectors of so many elements."""
    tile, warps = math.prod(block for _, block in config.blocks), config.num_warps
    most = vector * COLUMNS.unaligned_reads * shape.device.target.warp_size
    while 2 * warps <= shape.device.max_warps and tile > most * warps:
        warps *= 2
    return replace(config, num_warps=warps)


def vector_of_columns(shape: Shape, most: int) -> int:
    """Returns how many neighbouring columns a thread reads at once: what the rows of a matrix begin at multiples of.

    At most as many as lie in 16 bytes, ``most``, which depends on the elements that are asked about.
    """
    count = max(1, shape.sizes.get(shape.contiguous or "x", 1))
    return min(most, count & -count)


def _deepened(shape: Shape, columns: int, depth: int, warps: int) -> int:
    """Returns how many times as many rows, and warps for them, programs too few to fill the device take at once.

    A turn of the loop waits for memory as long for few rows as for many. What shares a launch with them fills the wait.
    """
    if shape.shares_launch:
        return 1
    threads = -(-shape.points // columns) * warps * shape.device.target.warp_size
    filled = OCCUPANCY.filled_share * shape.device.threads_per_multiprocessor * shape.device.multiprocessors
    most, times = min(filled / threads, COLUMNS.tall_warps / warps, shape.reduction / depth), 1
    while times < most:
        times *= 2
    return times


def _many_columns(shape: Shape) -> tuple[Config, ...]:
    """Returns the candidates of columns of which there are many programs: small ones, so that others read meanwhile.

    A thread has 32 bytes of a line of what is read. Short columns of 16-bit elements end before it is worth to combine
    what several warps hold.
    """
    line, threads = 128 // max(1, shape.narrowest_read), shape.device.target.warp_size
    warps = max(1, COLUMNS.many_tile * shape.narrowest_read // (threads * 32))
    more = (
        (line, 2 * COLUMNS.many_tile // line, 2 * warps),
        (line // 2, COLUMNS.many_tile // line, warps),
        (2 * line, 16, 4),
    )
    tiles: tuple[tuple[int, int, int], ...] = ((line, COLUMNS.many_tile // line, warps), *more)
    if shape.reads_16_bit and shape.reduction <= COLUMNS.short_column:
        columns, rows = COLUMNS.short_columns if shape.live == 1 else (size // 2 for size in COLUMNS.short_columns)
        tiles = ((columns, rows, 1), *tiles[:3])
    tiles = (_in_flight(shape, *tiles[0]), *tiles)
    shape = replace(shape, live=1) if shape.reads_16_bit else shape
    return tuple(loop_config(shape, *tile) for tile in tiles)


def _in_flight(shape: Shape, columns: int, rows: int, warps: int) -> tuple[int, int, int]:
    """Returns a tile with so many times the rows, and warps for them, that all programs ask for enough bytes at once.

    Threads have as many elements as before; those of other warps are combined once, at the end.
    """
    asked = shape.points * rows * shape.narrowest_read  # of all programs, by the columns that each has
    wanted = COLUMNS.flight * shape.device.multiprocessors
    times = 1
    while asked * times < wanted and 2 * times * warps <= COLUMNS.tall_warps and times * rows < shape.reduction:
        times *= 2
    return columns, rows * times, warps * times


def _many_tall(shape: Shape) -> tuple[Config, ...]:
    """Returns the candidates of tall columns of which there are many.

    Of what is only added up as many are beside each other whatever their type: more of a page of memory at once.
    Moments of as many columns at once take more registers, and programs that have to wait for others to end.
    """
    tile = _tall_tile(shape)
    columns = COLUMNS.tall_columns if shape.live == 1 or shape.reads_16_bit else COLUMNS.tall_columns // 2
    tiles = _tall_configs(shape, (columns, tile), (columns, tile // 2), (columns // 2, tile), (2 * columns, tile))
    if shape.live < COLUMNS.live_of_moments or shape.sizes.get(shape.contiguous or "x", 1) % COLUMNS.whole_tiles:
        return tiles
    first = COLUMNS.tall_moments_of_16_bit if shape.reads_16_bit else COLUMNS.tall_moments
    return (loop_config(replace(shape, live=1), *first), *tiles[:3])


def _few_tall(shape: Shape) -> tuple[Config, ...]:
    """Returns the candidates of tall columns of which there are few programs: each has enough on its way for all."""
    tile, line = _tall_tile(shape), 128 // max(1, shape.narrowest_read)
    columns = keep_busy(shape, line, max(SECTOR // shape.narrowest_read, 8), COLUMNS.nearly_busy)
    return _tall_configs(shape, (columns, tile), (columns, tile * 2), (columns, tile // 2), (columns // 2, tile))


def _tall_tile(shape: Shape) -> int:
    """Returns the elements of a tile of tall columns: more of what is only added up, which takes fewer registers."""
    return COLUMNS.tall_bytes * (2 if shape.live == 1 else 1) // max(1, shape.narrowest_read)


def _tall_configs(shape: Shape, *tiles: tuple[int, int]) -> tuple[Config, ...]:
    """Returns the configs of tiles, each so many columns and elements, whatever a thread holds of them."""
    shape = replace(shape, live=1)
    return tuple(loop_config(shape, columns, elements // columns, COLUMNS.tall_warps) for columns, elements in tiles)


def _again_warps(shape: Shape, columns: int) -> int:
    """Returns the warps of a program that reads columns twice.

    They are so many that the columns of all programs that run at once stay in the cache for the second time.
    """
    device = shape.device
    most = min(COLUMNS.again_warps, device.max_warps)
    warps = 4
    while warps < most and device.multiprocessors * most // warps * _again_bytes(shape, columns) > (
        device.l2_bytes * COLUMNS.cache_share
    ):
        warps *= 2
    return warps


def _again_bytes(shape: Shape, columns: int) -> int:
    """Returns the bytes of so many columns."""
    return columns * shape.reduction * shape.element_bytes


def _again_short(shape: Shape, line: int) -> tuple[Config, ...]:
    """Returns the candidates of columns that are read twice and stay in the cache in whole lines.

    Of those that one turn of the loop reads half a line, so that more programs run at once.
    """
    columns, rows = (
        (line // 2 or 1, COLUMNS.short_again)
        if shape.reduction <= COLUMNS.short_again
        else (line, COLUMNS.again_tile // line)
    )
    shape = replace(shape, live=1)
    tiles = ((columns, rows), (columns, rows // 2), (line * 2, rows // 2))
    return tuple(loop_config(shape, x, r, COLUMNS.short_again_warps) for x, r in tiles)


def _again(shape: Shape, columns: int, warps: int) -> Config:
    """Returns the config of columns that are read twice, with several rows to a thread."""
    shape = replace(shape, live=1)
    rows = warps * shape.device.target.warp_size * shape.vector // columns
    return loop_config(shape, columns, COLUMNS.rows_per_thread * max(1, rows), warps)


def _together(shape: Shape, rows: int, warps: int, share: int = 1) -> Config:
    """Returns the config of lines of columns, or shares of such, with so many rows to a thread, reduced alone first."""
    shape = replace(shape, live=1)
    axis = next(axis for axis in shape.axes("grid") if axis.name == shape.contiguous)
    depth = next(shape.limit(axis) for axis in shape.axes("reduction"))
    columns = min(previous_power_of_two(128 // (share * shape.narrowest_read)), shape.limit(axis))
    step = shape.device.target.warp_size * max(1, 16 // shape.narrowest_read)  # what a warp reads at once
    while warps > 1 and rows * warps * step // columns > depth:
        warps //= 2
    return loop_config(shape, columns, max(1, rows * warps * step // columns), warps)


def scanned_columns(shape: Shape) -> tuple[Config, ...]:
    """Returns the candidates of a scan along columns: lines of memory side by side, and as deep as a few threads are.

    Threads beyond those of a line take rows further down; each holds `rows_per_thread` rows of its columns. Of short
    columns as many as one warp holds whole, and of longer ones, up to `whole_scan`, as many as one tile holds. Where it
    takes long to combine, threads have little each.
    """
    continues = shape.live > 1
    shape = replace(shape, live=1)  # most of what is alive at once is a thread's share of totals, not a tile
    row = next_power_of_two(shape.reduction)
    if flops_per_point(shape) >= OCCUPANCY.busy_flops:
        return _busily_scanned_columns(shape, row)
    if row <= COLUMNS.short_scan and shape.reduction_is_known:
        apart = vector_of_columns(shape, shape.vector) == 1
        whole_columns = _whole_columns_apart(shape, row) if apart else _whole_columns(shape, row)
        return tuple(loop_config(shape, count, row, w) for count, w in whole_columns)
    line = 128 // max(1, shape.element_bytes)
    if row <= COLUMNS.whole_scan and shape.reduction_is_known and continues:
        return _continued_columns(shape, row, line)
    if row <= COLUMNS.whole_scan and shape.reduction_is_known:
        whole = min(2 * line, COLUMNS.scan_tile // row)
        columns = keep_busy(shape, whole, least=min(whole, line))
        warps = max(1, columns * row // (shape.device.target.warp_size * TILES.part_per_thread))
        return (loop_config(shape, columns, row, warps), loop_config(shape, columns, row, warps * 2))
    if (
        vector_of_columns(shape, shape.vector) * 4 <= shape.vector
        and shape.points >= COLUMNS.scanned_columns * shape.device.multiprocessors
    ):
        whole = COLUMNS.scan_tile // row
        is_short = row <= 2 * COLUMNS.whole_scan and shape.reduction_is_known
        if is_short and whole * shape.narrowest_read >= 2 * SECTOR and flops_per_point(shape) > COLUMNS.light_scan:
            warps = max(1, whole * row // (shape.device.target.warp_size * TILES.part_per_thread))
            return tuple(loop_config(shape, whole, row, w) for w in (warps, 2 * warps))
        tile, warps = (
            (COLUMNS.apart_scan_tile, COLUMNS.scan_warps) if shape.reads_16_bit else (COLUMNS.apart_scan_tile // 2, 1)
        )
        return tuple(
            loop_config(shape, COLUMNS.scanned_columns, tile // COLUMNS.scanned_columns, w) for w in (warps, 2)
        )
    columns = keep_busy(shape, max(line, COLUMNS.scanned_columns), least=max(8, line // 2))
    depth = COLUMNS.rows_per_thread * max(
        1, COLUMNS.scan_warps * shape.device.target.warp_size * shape.vector // columns
    )
    tiles = (
        (columns, depth, COLUMNS.scan_warps),
        (columns, depth // 2, COLUMNS.scan_warps),
        (columns, depth * 2, COLUMNS.scan_warps * 2),
    )
    return tuple(loop_config(shape, x, r, w) for x, r, w in tiles)


def _whole_columns_apart(shape: Shape, row: int) -> tuple[tuple[int, int], ...]:
    """Returns how many columns lie beside each other in tiles of whole short ones, whose rows begin at odd places.

    Each element is loaded by itself: by many threads, with few of them, so that those of a warp lie side by side
    (`benchmarks/RESULTS.md`, 28 rows of 428305 numbers).
    """
    columns = keep_busy(shape, COLUMNS.columns_apart, least=COLUMNS.columns_apart // 4, programs=TILES.fill)
    warps = max(1, columns * row // (shape.device.target.warp_size * COLUMNS.apart_per_thread))
    return (columns, warps), (columns, warps * 2), (columns // 2, warps)


def _busily_scanned_columns(shape: Shape, row: int) -> tuple[Config, ...]:
    """Returns the candidates of a scan of columns that takes long to combine: many threads, with few elements each.

    A combine such as log(exp(a) + exp(b)) is worth it (`benchmarks/RESULTS.md`, `logcumsumexp` over 43374 columns).
    Rows past the end are combined as well: where a large block has many of these, smaller ones take more turns.
    """
    line = 128 // max(1, shape.narrowest_read)
    columns = keep_busy(shape, line, least=max(8, line // 2), programs=TILES.fill)
    depth = min(
        (max(1, min(row, COLUMNS.busy_scan) >> halvings) for halvings in range(3)),
        key=lambda block: -(-shape.reduction // block) * (block + COLUMNS.busy_turn),
    )
    warps = max(1, columns * depth // (shape.device.target.warp_size * COLUMNS.busily_scanned_per_thread))
    tiles = ((columns, warps), (columns // 2, max(1, warps // 2)), (columns, max(1, warps // 2)))
    return tuple(loop_config(shape, count, depth, most) for count, most in tiles)


def _continued_columns(shape: Shape, row: int, line: int) -> tuple[Config, ...]:
    """Returns the candidates of a scan of parts of columns, each in one tile, that goes on from what comes before.

    Many parts have tiles of half as many elements as other scans, as what is added to each takes registers, so that a
    multiprocessor holds several programs; where all of them are few, threads have a quarter of the elements each.
    """
    columns = keep_busy(shape, min(line, COLUMNS.scan_tile // (2 * row)), SECTOR // shape.narrowest_read, TILES.fill)
    held, threads = TILES.part_per_thread, shape.device.target.warp_size
    if 4 * shape.points * row < threads * held * OCCUPANCY.programs * shape.device.multiprocessors:
        held //= 4
    warps = max(1, columns * row // (threads * held))
    return tuple(loop_config(shape, columns, row, w) for w in (warps, warps * 2, max(1, warps // 2)))
