"""Configs of kernels that fold: whole rows in one tile (persistent), or a loop over them."""

from __future__ import annotations

from dataclasses import replace

from ferrite_runtime.config import Config
from ferrite_runtime.policy.blocks import next_power_of_two, previous_power_of_two
from ferrite_runtime.policy.shape import Shape, param_bytes

# A row of so many elements has work for a program of its own.
LONG_ROW = 1024
# A row of halves that is combined faster by fewer threads, with twice as many elements to each: measured on an H200.
HUGE_ROW = 8192
# A long row that fills less than this share of its tile.
IDLE_ROW, IDLE_SHARE = 4096, 0.75
# Elements of the tile of several short rows, and elements per thread of such that one warp holds.
SHORT_TILE, ROW_HELD = 2048, 32
# Bytes that a thread reads of whole columns, and most elements of them.
HELD_BYTES, HELD_OF_COLUMNS = 128, 64
# Rows of columns from which on half a line of halves is enough: more threads than hold a line combine slowly.
TALL_COLUMN = 128
LOOP_BLOCK = 2048
# Rows so long that the programs that a multiprocessor would hold at once fill its share of the cache with them.
LONG_PASS = 16384
# A row of more live tiles than this gets twice the threads.
MANY_LIVE = 3
# Elements per thread, and live tiles that are counted, of a kernel that takes rows one after the other.
RUN_PER_THREAD = 16
RUN_LIVE = 4
# Programs per multiprocessor that keep it busy whatever the program does.
FILL = 4
# Programs per multiprocessor of which each folds rows together with few threads.
SMALL_PROGRAMS = 8
# Elements per thread of a tile that is folded along its slow axis: what lies in registers for each of them (an
# accumulator or two, and the values on their way) decides how many programs share a multiprocessor.
OUTER_PER_THREAD = 8
# Programs of a multiprocessor that scan their parts of lines block by block, all of them at once.
PARTS_AT_ONCE = 8
# Elements per thread of a part of a line that other programs wait for.
PART_PER_THREAD = 64
# Rows of columns of halves that many programs fold with few threads, and the tile of such a program.
SHORT_COLUMN, SHORT_COLUMNS = 256, (128, 16)
# Columns that programs share: a line of memory of 32-bit elements.
SHARED_COLUMNS = 32
# Rows that a thread holds of columns that are scanned, or read twice.
ROWS_PER_THREAD = 8
# Warps of a program that scans columns, and columns of it, if there are enough of them; rows of columns that it holds
# whole by as few warps as it can.
SCAN_WARPS, SCANNED_COLUMNS, SHORT_SCAN = 4, 64, 64
# Most warps of a program that reads columns twice: with as many rows to a thread a multiprocessor holds one of them.
AGAIN_WARPS = 16
# Rows of columns that too few programs fold for the multiprocessors there are, at least and at once, and the warps of
# such a program for these.
FEW_ROWS, LONG_COLUMN, FEW_WARPS = 128, 512, 16
# Columns and elements of a block of the matrix that few rows are multiplied with, blocks on their way at once (with the
# one that is multiplied), and warps of a program.
PRODUCT_COLUMNS, PRODUCT_TILE, PRODUCT_STAGES, PRODUCT_WARPS = 32, 4096, 6, 2
# Sums of products that a thread has under way, and bytes of rows that a multiprocessor's own cache has room for.
MULTIPLIED_PER_THREAD, MULTIPLIED_BYTES = 32, 128 << 10
# Rows of halves that a program folds with a vector, and elements of them per thread.
VECTOR_ROWS, VECTOR_PER_THREAD = 2, 64
# Bytes per thread of rows that are sorted, and warps for these at most; fewer for rows of more elements: more steps.
SORTED_BYTES, SORT_WARPS, LONG_SORT, LONG_SORT_WARPS = 16, 8, 1024, 4
# Bytes for an element of a matrix of bytes, with what else is read and written for a row.
BYTE_SHARE = 1.25
# Bytes that memory is read in at least.
SECTOR = 32
# Share of the cache that data may take that is wanted again.
CACHE_SHARE = 0.5


def persistent_configs(shape: Shape) -> tuple[Config, ...]:
    """Returns the candidates of a kernel that holds whole rows, best guess first."""
    row = next_power_of_two(shape.fold)
    if "run" in shape.spec.facts:
        return _runs(shape, row)
    return _outer_persistent(shape, row) if shape.contiguous in ("x", "y") else _inner_persistent(shape, row)


def _inner_persistent(shape: Shape, row: int) -> tuple[Config, ...]:
    takes_many = _moves_bytes(shape) or (row >= HUGE_ROW and shape.reads_halves)
    per_thread = 8 if shape.live > MANY_LIVE else 32 if takes_many else 16
    rows = 1 if row >= LONG_ROW else max(1, SHORT_TILE // row)
    threads = shape.device.target.warp_size
    if row < LONG_ROW and _fills_warp(shape, row):
        per_thread = ROW_HELD if shape.live <= MANY_LIVE else ROW_HELD // 2
        rows, shape = max(1, threads * per_thread // row), replace(shape, live=1)
    rows = _keep_busy(shape, rows)
    warps = max(1, rows * row // (threads * per_thread))
    # Where few rows leave multiprocessors idle, a row is shared by as many threads as can each read 16 bytes at once.
    if rows == 1 and shape.points < FILL * shape.device.multiprocessors:
        warps = max(warps, min(4, row // (threads * min(8, shape.vector))), 1)
    first = _rows(shape, rows, row, warps)
    if rows == 1 and _shares_vectors(shape):
        several = _with_vectors(shape, row)
        return (several, first) if _matrices(shape) > 1 else (first, several)
    more = [(rows, warps * 2), (rows, max(1, warps // 2)), (rows * 2, warps * 2), (rows * 4, warps * 2)]
    if (row >= IDLE_ROW and shape.fold <= row * IDLE_SHARE) or _narrows_to_bytes(shape):
        # The lanes past the end keep threads idle, the more the more there are; and what becomes bytes takes many
        # instructions for each of them, so that what a row takes beside them counts. Measured on an H200 for halves: 18
        # to 20 % less for softmax of 3,000 and RMS norm of 5,000 elements, 0 to 8 % for quantisation.
        more[:2] = reversed(more[:2])
        if shape.reads_halves:
            first, more[0] = _rows(shape, rows, row, max(1, warps // 2)), (rows, warps)
    elif rows == 1 and shape.live <= MANY_LIVE and _saves_steps(shape, warps):
        return (_halved(shape, row, warps), first, *(_rows(shape, rows, row, w) for _, w in more[:1]))
    return (first, *(_rows(shape, count, row, w) for count, w in more if count <= max(1, shape.points)))


def _fills_warp(shape: Shape, row: int) -> bool:
    """Returns whether a row is longer than what a warp reads at once: a second one would lie along it, too.

    What they have folded would be combined through shared memory, of short rows for each few elements. A thread reads
    as many at once as rows are multiples of, 16 bytes at most.
    """
    if not shape.fold_is_known:
        return False
    vector = min(shape.fold & -shape.fold, max(1, 16 // max(1, shape.narrowest_read)))
    return row > shape.device.target.warp_size * vector


def _shares_vectors(shape: Shape) -> bool:
    """Returns whether there are rows enough for programs to fold several of halves with the same vectors."""
    is_half = shape.narrowest_read == shape.element_bytes == 2
    return is_half and "vectors" in shape.spec.facts and _keep_busy(shape, VECTOR_ROWS) == VECTOR_ROWS


def _matrices(shape: Shape) -> int:
    """Returns how many matrices are folded with vectors.

    On an H200 two rows of each of two take 5 % less time than one of each, and two rows of one matrix 7 % more.
    """
    return int(shape.spec.facts.get("loads", 1)) - int(shape.spec.facts["vectors"])


def _with_vectors(shape: Shape, row: int) -> Config:
    """Returns the config of long rows that are folded with vectors: a thread widens its part of these for two rows."""
    warps = max(1, VECTOR_ROWS * row // (shape.device.target.warp_size * VECTOR_PER_THREAD))
    return _rows(replace(shape, live=1), VECTOR_ROWS, row, warps)


def _moves_bytes(shape: Shape) -> bool:
    """Returns whether hardly more than a byte is moved for an element: a thread reads 16 bytes twice if it has 32."""
    return int(shape.spec.facts.get("bytes", 0)) <= BYTE_SHARE * shape.points * shape.fold and shape.narrowest_read == 1


def _narrows_to_bytes(shape: Shape) -> bool:
    """Returns whether what is read wider is written in bytes: quantisation."""
    written = [param_bytes(p.dtype) for p in shape.spec.params if p.role == "tensor" and p.access == "write"]
    return min(written, default=2) == 1 < shape.narrowest_read


def _runs(shape: Shape, row: int) -> tuple[Config, ...]:
    """Returns the candidates of a kernel whose programs take rows one after the other and hold sums of their columns.

    The next rows are on their way meanwhile, so a program needs no more threads than hold its values.
    """
    shape = replace(shape, live=min(shape.live, RUN_LIVE))
    rows = max(1, LONG_ROW // row)
    warps = max(1, rows * row // (shape.device.target.warp_size * RUN_PER_THREAD))
    chosen = tuple(_rows(shape, x, row, w) for x, w in ((rows, warps), (rows, warps * 2), (rows * 2, warps * 2)))
    return (_halved(shape, row, warps), *chosen) if rows == 1 and _saves_steps(shape, warps) else chosen


def _saves_steps(shape: Shape, warps: int) -> bool:
    """Returns whether half as many warps have less to do past the end of a row that is not much longer than a step.

    A step is what all threads of a program read at once. The compiler knows which steps lie past the end and leaves
    them out, unless only the call knows how long rows are; of a step that ends past it the program waits for threads
    that have nothing to do.
    """
    if not shape.fold_is_known:
        return False
    vector = 16 // max(2, shape.narrowest_read)
    step = shape.device.target.warp_size * warps * vector
    steps = -(-shape.fold // step) * step
    return warps > 1 and shape.fold < IDLE_ROW and -(-shape.fold * 2 // step) * step // 2 < steps


def _halved(shape: Shape, row: int, warps: int) -> Config:
    """Returns the config of a row with half as many warps, whatever each thread holds then."""
    return _rows(replace(shape, live=1), 1, row, warps // 2)


def _outer_persistent(shape: Shape, row: int) -> tuple[Config, ...]:
    tiles, shape = _whole_columns(shape, row), replace(shape, live=1)
    return tuple(_rows(shape, count, row, w) for count, w in tiles)


def _whole_columns(shape: Shape, row: int) -> tuple[tuple[int, int], ...]:
    """Returns how many columns lie beside each other in tiles that hold them whole, and their warps; best guess first.

    As many as one warp holds, but whole lines. What threads of several warps hold of a column they fold through shared
    memory, which costs more than its reading: softmax of columns of 8 halves took 287 us with eight warps and takes 47
    with one on an H100.
    """
    threads, held = shape.device.target.warp_size, _held_of_columns(shape)
    line = 128 // max(4 if row >= TALL_COLUMN else 1, shape.narrowest_read)
    columns = max(threads * held // row, line, 8)
    columns = _keep_busy(shape, columns, least=min(columns, 128 // max(1, shape.element_bytes)))
    if shape.points // columns < FILL * shape.device.multiprocessors:
        held //= 2  # few programs read no more at once than their threads do
    warps = max(1, columns * row // (threads * held))
    return (columns, warps), (columns // 2 or 1, warps), (columns, warps * 2)


def _held_of_columns(shape: Shape) -> int:
    """Returns how many elements of columns a thread holds, of each of the tiles that are live at once."""
    held = min(HELD_OF_COLUMNS, HELD_BYTES // max(1, shape.narrowest_read))
    return held // 2 if shape.live > MANY_LIVE else held


def _rows(shape: Shape, count: int, row: int, warps: int) -> Config:
    blocks = {axis.name: row for axis in shape.axes("fold")}
    return shape.fit(blocks | {"x": count}, min(warps, shape.device.max_warps))


def _keep_busy(shape: Shape, block: int, least: int = 1) -> int:
    """Returns the largest block up to ``block`` that leaves every multiprocessor two programs, but ``least``."""
    while block > least and shape.points // block < 2 * shape.device.multiprocessors:
        block //= 2
    return block


def looped_configs(shape: Shape) -> tuple[Config, ...]:
    """Returns the candidates of a kernel that loops over rows, best guess first."""
    if shape.spec.facts.get("product"):
        return _products(shape)
    if "multiplied_rows" in shape.spec.facts:
        return _multiplied(shape)
    if shape.contiguous in ("x", "y"):
        return _outer_looped(shape)
    return _inner_looped(shape)


def _products(shape: Shape) -> tuple[Config, ...]:
    """Returns the candidates of products of few rows: blocks of the matrix, several of them on their way at once.

    Half as many columns to a program where those would leave multiprocessors idle, and twice the depth. Blocks of f32
    have as many bytes, and half the threads: what tensor cores multiply in parts is twice as many registers.
    """
    columns, tile = PRODUCT_COLUMNS, PRODUCT_TILE // (1 if shape.reads_halves else 2)
    if shape.sizes["x"] // columns < 2 * shape.device.multiprocessors:
        columns //= 2
    points = tile // columns
    tiles: tuple[tuple[int, int, int, int], ...] = (
        (columns, points, PRODUCT_STAGES, PRODUCT_WARPS),
        (columns, points, PRODUCT_STAGES - 2, PRODUCT_WARPS * 2),
        (columns, points // 2, PRODUCT_STAGES, PRODUCT_WARPS * 2),
        (columns * 2, points // 2, PRODUCT_STAGES - 2, PRODUCT_WARPS * 2),
    )
    if shape.reads_halves and int(shape.spec.facts["product"]) > 1:
        # Blocks of two matrices and more are on their way: as many columns of each are half as deep.
        tiles = (tiles[3], tiles[0], *tiles[1:3])
    elif not shape.reads_halves:
        tiles = (
            (columns, points, PRODUCT_STAGES - 2, PRODUCT_WARPS // 2),
            (columns * 2, points, PRODUCT_STAGES - 2, PRODUCT_WARPS * 2),
            (columns, points, PRODUCT_STAGES - 2, PRODUCT_WARPS),
        )
    limits = {axis.block: shape.limit(axis) for axis in shape.spec.axes}
    return tuple(
        Config.of({"XBLOCK": min(x, limits["XBLOCK"]), "RBLOCK": min(r, limits["RBLOCK"])}, warps, stages)
        for x, r, stages, warps in tiles
    )


def _multiplied(shape: Shape) -> tuple[Config, ...]:
    """Returns the candidates of products of few rows without tensor cores: a few columns of the matrix to a program.

    Each element of the rows is read once for all of them, from the cache; twice as many where the rows are too long for
    a multiprocessor's own.
    """
    rows = next_power_of_two(int(shape.spec.facts["multiplied_rows"]))
    limits = {axis.block: shape.limit(axis) for axis in shape.spec.axes}
    tiles, found = [(2, 1, 4), (4, 2, 4), (1, 1, 4), (4, 1, 4)], []
    if rows * shape.fold * param_bytes("f32") > MULTIPLIED_BYTES:
        tiles[:2] = reversed(tiles[:2])
    for columns, share, warps in tiles:
        sums = share * MULTIPLIED_PER_THREAD * warps * shape.device.target.warp_size
        points = max(1, sums // (rows * columns))
        blocks = {"XBLOCK": min(columns, limits["XBLOCK"]), "RBLOCK": min(points, limits["RBLOCK"])}
        found.append(Config.of(blocks, warps, 1))
    return tuple(found)


def _inner_looped(shape: Shape) -> tuple[Config, ...]:
    if int(shape.spec.facts.get("passes", 1)) > 1 and shape.fold >= LONG_PASS:
        # Few rows at a time, each read by as many threads as a program can have: the next pass finds them in the cache.
        most = shape.device.max_warps
        # With the fewest lanes past the end; of equals the longer blocks, which are half as many.
        blocks = sorted((LONG_PASS, LONG_PASS // 2), key=lambda block: -(-shape.fold // block) * block)
        return tuple(_loop(shape, 1, r, w) for r, w in (*((r, most) for r in blocks), (LONG_PASS // 4, most // 2 or 1)))
    block = LOOP_BLOCK * (2 if shape.element_bytes <= 2 else 1)
    if shape.live > 4 or shape.buffers > 8:
        block //= 2
    crowded = shape.points >= 2 * shape.device.multiprocessors
    if not crowded:
        block *= 2  # few programs have to keep the memory busy between them
    block = min(block, next_power_of_two(shape.fold))
    rows = _keep_busy(shape, max(1, LOOP_BLOCK // 2 // block))
    warps = max(1, rows * block // (shape.device.target.warp_size * (16 if shape.element_bytes <= 2 else 8)))
    first = (rows, block, warps)
    tiles = [first, (rows, block, warps * 2), (rows, block * 2, warps * 2), (rows, block // 2 or 1, warps)]
    if shape.reads_halves and shape.element_bytes > 2:
        # Of elements narrower than the sums, twice as many to a thread are as many bytes on their way.
        tiles[:2] = (rows, block * 2, warps), first
    return tuple(_loop(shape, x, r, w) for x, r, w in tiles)


def _outer_looped(shape: Shape) -> tuple[Config, ...]:
    threads = shape.device.target.warp_size
    line = 128 // max(1, shape.element_bytes)
    if int(shape.spec.facts.get("passes", 1)) > 1:
        # Columns that are read again: as few at a time as fill half a line, so that they are still in the cache.
        columns = line // 2 or 1
        warps = _again_warps(shape, columns)
        fewer = max(1, warps // 2)  # two programs to a multiprocessor: one reads while the other computes
        again = ((columns, warps), (columns // 2 or 1, fewer), (columns, fewer), (line, warps), (line, fewer))
        return tuple(_again(shape, *tile) for tile in again)
    rows = int(shape.spec.facts.get("rows_together", 1))
    if rows > 1:
        # Of halves, and where there are many programs, small ones hide each other's waiting.
        warps = 2 if shape.reads_halves else 4
        if shape.points * shape.narrowest_read // 128 >= SMALL_PROGRAMS * shape.device.multiprocessors:
            warps //= 2
        together = ((rows, warps), (rows, warps * 2), (rows, max(1, warps // 2)), (rows * 2, 4))
        return tuple(_together(shape, count, warps) for count, warps in together)
    if shape.points // (2 * line) >= FILL * shape.device.multiprocessors:
        # Many programs: small ones, so that one waits for memory while others combine.
        more = ((line, 2048 // line, 4), (line, 1024 // line, 4), (2 * line, 1024 // line, 4))
        wide = _loop_of(shape, 2 * line, 4 * threads * OUTER_PER_THREAD)
        tiles = (wide, *(_loop(shape, x, r, w) for x, r, w in more))
        # Where what is read is half as wide as the sums, whole lines of as many rows again keep as much on its way.
        tiles = (_loop(shape, 2 * line, 2048 // (2 * line), 4), *tiles[:3]) if shape.reads_narrow else tiles
        if shape.reads_halves and shape.fold <= SHORT_COLUMN:
            # They end before it is worth to combine what several warps hold, two of them if it is much.
            tiles = (_loop(replace(shape, live=1), *SHORT_COLUMNS, 1 if shape.live == 1 else 2), *tiles[:3])
        return tiles
    columns = _keep_busy(shape, line, least=max(8, line // 2))
    if shape.points // columns < shape.device.multiprocessors and shape.fold > FEW_ROWS:
        # Few programs of many rows, mostly partial sums that the cache still has: as many threads as can be, on pieces
        # of memory that are no smaller than what it is read in.
        half = columns // 2 if columns // 2 * shape.narrowest_read >= SECTOR else columns
        most = min(LONG_COLUMN, next_power_of_two(shape.fold))
        few = _loop(shape, half, most, FEW_WARPS * most // LONG_COLUMN)
        return (few, *(_loop(shape, columns, LONG_COLUMN // d, FEW_WARPS // d) for d in (2, 4, 8)))
    depth = 32 if shape.points // columns >= 2 * shape.device.multiprocessors else 64
    warps = max(1, columns * depth // (threads * OUTER_PER_THREAD))
    last = (2 * line, depth, warps) if shape.reads_narrow else (columns // 2 or 1, depth * 2, warps)
    more = ((columns, depth * 2, warps), (2 * line, depth // 2, warps), last)
    return tuple(_loop(shape, x, r, w) for x, r, w in ((columns, depth, warps), *more))


def _again_warps(shape: Shape, columns: int) -> int:
    """Returns the warps of a program that reads columns twice.

    They are so many that the columns of all programs that run at once stay in the cache for the second time.
    """
    device = shape.device
    most = min(AGAIN_WARPS, device.max_warps)
    warps = 4
    while warps < most and device.multiprocessors * most // warps * columns * shape.fold * shape.element_bytes > (
        device.l2_bytes * CACHE_SHARE
    ):
        warps *= 2
    return warps


def _again(shape: Shape, columns: int, warps: int) -> Config:
    """Returns the config of columns that are read twice, with several rows to a thread."""
    shape = replace(shape, live=1)
    rows = warps * shape.device.target.warp_size * shape.vector // columns
    return _loop(shape, columns, ROWS_PER_THREAD * max(1, rows), warps)


def _together(shape: Shape, rows: int, warps: int) -> Config:
    """Returns the config of whole lines of columns with so many rows to a thread, which folds them on its own first."""
    shape = replace(shape, live=1)
    axis = next(axis for axis in shape.axes("grid") if axis.name == shape.contiguous)
    depth = next(shape.limit(axis) for axis in shape.axes("fold"))
    columns = min(previous_power_of_two(128 // shape.narrowest_read), shape.limit(axis))
    step = shape.device.target.warp_size * max(1, 16 // shape.narrowest_read)  # what a warp reads at once
    while warps > 1 and rows * warps * step // columns > depth:
        warps //= 2
    return _loop(shape, columns, max(1, rows * warps * step // columns), warps)


def _loop_of(shape: Shape, columns: int, elements: int) -> Config:
    """Returns the config of a tile of so many elements."""
    warps = elements // (shape.device.target.warp_size * OUTER_PER_THREAD)
    return _loop(shape, columns, max(1, elements // columns), warps)


def _loop(shape: Shape, columns: int, depth: int, warps: int) -> Config:
    blocks = {axis.name: depth for axis in shape.axes("fold")}
    inner = shape.contiguous if shape.contiguous in ("x", "y", "z") else "x"
    return shape.fit(blocks | {inner: columns}, min(warps, shape.device.max_warps))


def cooperative_configs(shape: Shape) -> tuple[Config, ...]:
    """Returns the config of a kernel whose programs hold blocks of rows, or of a line's width of columns.

    One only: such a kernel is not for measuring, its status counts launches.
    """
    columns = SHARED_COLUMNS if shape.contiguous in ("x", "y") else 1
    held = columns * shape.spec.blocks.get("RBLOCK", 1)
    warps = max(1, held // (shape.device.target.warp_size * PART_PER_THREAD))
    return (replace(shape, live=1).fit({"x": columns}, min(warps, shape.device.max_warps)),)


def scan_configs(shape: Shape) -> tuple[Config, ...]:
    """Returns the candidates of a prefix scan: a row per program, with work enough for each thread."""
    if "parts" in shape.spec.facts:
        # One only: a kernel whose programs wait for each other is not for measuring, its status counts launches.
        warps = shape.spec.blocks["RBLOCK"] // (shape.device.target.warp_size * PART_PER_THREAD)
        return (replace(shape, live=1).fit({}, max(1, min(warps, shape.device.max_warps))),)
    if shape.contiguous in ("x", "y"):
        return _outer_scan(shape)
    row = next_power_of_two(shape.fold)
    block = min(row, 2048)
    rows = _keep_busy(shape, max(1, 512 // block))
    # Where all programs could run at once, they get half the threads, so that there are registers for all of them.
    together = row > block and shape.points <= PARTS_AT_ONCE * shape.device.multiprocessors
    warps = max(1, rows * block // (shape.device.target.warp_size * (16 if together else 8)))
    if row == block and _fills_warp(shape, row) and (row < LONG_ROW or shape.fold % 2):
        warps, shape = 1, replace(shape, live=1)
    return tuple(_loop_x(shape, x, r, w) for x, r, w in ((rows, block, warps), (rows, max(1, block // 2), warps)))


def _outer_scan(shape: Shape) -> tuple[Config, ...]:
    """Returns the candidates of a scan along columns: lines of memory side by side, and as deep as a few threads are.

    Threads beyond those of a line take rows further down; each holds `ROWS_PER_THREAD` rows of its columns. Of short
    columns as many as one warp holds whole.
    """
    shape = replace(shape, live=1)  # most of what is alive at once is a thread's share of totals, not a tile
    row = next_power_of_two(shape.fold)
    if row <= SHORT_SCAN and shape.fold_is_known:
        return tuple(_loop(shape, count, row, w) for count, w in _whole_columns(shape, row))
    line = 128 // max(1, shape.element_bytes)
    columns = _keep_busy(shape, max(line, SCANNED_COLUMNS), least=max(8, line // 2))
    depth = ROWS_PER_THREAD * max(1, SCAN_WARPS * shape.device.target.warp_size * shape.vector // columns)
    tiles = ((columns, depth, SCAN_WARPS), (columns, depth // 2, SCAN_WARPS), (columns, depth * 2, SCAN_WARPS * 2))
    return tuple(_loop(shape, x, r, w) for x, r, w in tiles)


def sort_configs(shape: Shape) -> tuple[Config, ...]:
    """Returns the candidates of a sort, which holds whole rows: sorting networks compile slowly, so there are few."""
    row = next_power_of_two(shape.fold)
    rows = _keep_busy(shape, max(1, 512 // row))
    # With fewer threads more steps of the network stay within a thread or a warp, but the code grows.
    wanted = rows * row * shape.narrowest_read // (shape.device.target.warp_size * SORTED_BYTES)
    longest = LONG_SORT_WARPS if shape.reads_halves else LONG_SORT_WARPS // 2
    warps = max(1, min(wanted, longest if row > LONG_SORT else SORT_WARPS))
    return tuple(_loop_x(shape, rows, row, w) for w in (warps, warps * 2, max(1, warps // 2)))


def _loop_x(shape: Shape, rows: int, block: int, warps: int) -> Config:
    return shape.fit(
        {axis.name: block for axis in shape.axes("fold")} | {"x": rows}, min(warps, shape.device.max_warps)
    )
