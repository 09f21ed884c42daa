"""Configs of kernels that reduce: whole rows in one tile (persistent), in a loop over blocks, or by several programs.

Also those that multiply few rows with a matrix, which loop over blocks of its rows. Scans and sorts are in `scans`.
"""

from __future__ import annotations

from dataclasses import replace

from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.facts import (
    ContractionFacts,
    ReductionFacts,
    RegisterNormFacts,
    RowColumnFacts,
    SplitFacts,
    facts_as,
)
from ferrite_runtime.policies.blocks import next_power_of_two
from ferrite_runtime.policies.columns import busy_columns, looped_columns, persistent_columns, vector_of_columns
from ferrite_runtime.policies.kernel_form import KernelForm
from ferrite_runtime.policies.occupancy import flops_per_point, spread
from ferrite_runtime.policies.shape import Shape, param_bytes
from ferrite_runtime.policies.tables import looped_table, persistent_table
from ferrite_runtime.policies.thresholds import OCCUPANCY, ROWS, TILES
from ferrite_runtime.policies.tiles import (
    keep_busy,
    loop_config,
    part_per_thread,
    rows_config,
)


def persistent_configs(shape: Shape) -> tuple[Config, ...]:
    """Returns the candidates of a kernel that holds whole rows, best guess first."""
    row = next_power_of_two(shape.reduction)
    if shape.reduction_facts.row_per_thread:
        return _row_per_thread(shape, row)
    is_columns = shape.contiguous in ("x", "y")
    first, *more = persistent_columns(shape, row) if is_columns else _inner_persistent(shape, row)
    if is_columns and not shape.spec.facts.noncoalesced and flops_per_point(shape) >= OCCUPANCY.busy_flops:
        return (busy_columns(shape, first), first, *more)
    odd = None if is_columns else _odd_rows(shape, row, first)
    spread_out = spread(shape, first, _most_warps(shape, first))
    return (*(() if odd is None else (odd,)), spread_out, first, *more)


def _odd_rows(shape: Shape, row: int, config: Config) -> Config | None:
    """Returns the config of odd rows of which a warp holds several, None where there is none.

    More warps would lie along each row (`_fills_warp`), and combine what they have reduced in shared memory: for each
    element that a thread reads by itself, which takes more instructions than all else. Rows that are only reduced are a
    warp's, however few there are, with as many loads to a thread as if they filled the device. Few rows that are stored
    as well are shared by two warps, where not many values are alive at once; few short ones have threads that hide each
    other's waiting, unless half as many to a program fill the device.
    """
    if not (ROWS.tiny_row < row <= ROWS.long_row and shape.has_odd_rows and _fills_warp(shape, row)):
        return None
    threads, is_short = shape.device.target.warp_size, row < ROWS.reduced_row
    if shape.only_reduces and not is_short:
        per_thread, warps = ROWS.row_reduced, 1
    else:
        rows, filled = config.block("XBLOCK"), OCCUPANCY.filled_share * OCCUPANCY.programs / shape.parts
        fewer = max(1, rows // 2)
        only_fewer = row <= ROWS.reduced_row and not shape.only_reduces and not shape.reads_16_bit
        for count in (fewer,) if only_fewer else (rows, fewer) if is_short else (rows,):
            if row < ROWS.long_row and shape.points * config.num_warps >= filled * count * shape.device.multiprocessors:
                return rows_config(replace(shape, live=1), count, row, config.num_warps)
        if is_short or shape.live > TILES.many_live:
            return None
        per_thread, warps = ROWS.odd_per_thread, ROWS.odd_warps
    rows = keep_busy(shape, max(1, threads * warps * per_thread // row), programs=ROWS.odd_programs)
    return rows_config(replace(shape, live=1), rows, row, warps)


def _most_warps(shape: Shape, config: Config) -> int:
    """Returns the warps beyond which several would hold parts of one result that is little work.

    One row has as many threads as are worth to combine already; rows are shared out among warps, and columns as far as
    each thread still reads 16 bytes of them at once. Measured on an H200 (sums of the parts of products, in float32):
    5 parts of 98,304 columns 5.8 us with one warp for 128 columns, 7.3 with four; of 456 x 552 8.5 with one for 64,
    10.1 with two.
    """
    blocks, warp = dict(config.blocks), shape.device.target.warp_size
    if shape.contiguous in ("x", "y"):
        beside = blocks.get(f"{shape.contiguous.upper()}BLOCK", 1)
        vector = vector_of_columns(shape, max(1, 16 // shape.narrowest_read))
        return max(config.num_warps, beside // (warp * vector))
    return shape.device.max_warps if blocks.get("XBLOCK", 1) > 1 else config.num_warps


def _row_per_thread(shape: Shape, row: int) -> tuple[Config, ...]:
    """Returns the candidates of short rows of which each thread goes through its own."""
    read, threads, shape = shape.reduction * shape.narrowest_read, shape.device.target.warp_size, replace(shape, live=1)
    rows, warps = (512, 8) if read <= ROWS.row_per_thread_short else (128, 4)
    if read > ROWS.row_per_thread_long and not shape.only_reduces:
        rows, warps = 32, 1
    busy = keep_busy(shape, rows, threads)
    tiles = ((busy, max(1, min(warps, busy // threads))), (32, 1), (128, 4), (256, 4), (512, 8))
    return tuple(rows_config(shape, x, row, w) for x, w in tiles)


def _inner_persistent(shape: Shape, row: int) -> tuple[Config, ...]:
    takes_many = _moves_bytes(shape) or (row >= ROWS.huge_row and shape.reads_16_bit)
    per_thread = 8 if shape.live > TILES.many_live else 32 if takes_many else 16
    rows = 1 if row >= ROWS.long_row else max(1, ROWS.short_tile // row)
    threads = shape.device.target.warp_size
    if row <= ROWS.tiny_row:
        per_thread, rows = (16 if shape.reads_16_bit else 8), ROWS.tiny_tile // row
        shape = replace(shape, live=1)
    elif row < ROWS.long_row and _fills_warp(shape, row):
        per_thread = _held_by_warp(shape, row)
        rows, shape = max(1, threads * per_thread // row), replace(shape, live=1)
    elif ROWS.long_row < row <= ROWS.odd_row and shape.reads_16_bit and shape.only_reduces and shape.has_odd_rows:
        rows, per_thread, shape = 2, ROWS.row_reduced, replace(shape, live=1)
    rows = keep_busy(shape, rows)
    warps = max(1, rows * row // (threads * per_thread))
    # Where few rows leave multiprocessors idle, a row is shared by as many threads as can each read 16 bytes at once.
    if rows == 1 and shape.points < TILES.fill * shape.device.multiprocessors:
        warps = max(warps, min(4, row // (threads * min(8, shape.vector))), 1)
    first = rows_config(shape, rows, row, warps)
    if rows == 1 and _shares_vectors(shape):
        several = _with_vectors(shape, row)
        return (several, first) if _matrices(shape) > 1 else (first, several)
    more = [(rows, warps * 2), (rows, max(1, warps // 2)), (rows * 2, warps * 2), (rows * 4, warps * 2)]
    if (row >= ROWS.idle_row and shape.reduction <= row * ROWS.idle_share) or _narrows_to_bytes(shape):
        # The lanes past the end keep threads idle, the more the more there are; and what becomes bytes takes many
        # instructions for each of them, so that what a row takes beside them counts.
        more[:2] = reversed(more[:2])
        if shape.reads_16_bit:
            first, more[0] = rows_config(shape, rows, row, max(1, warps // 2)), (rows, warps)
    elif rows == 1 and shape.live <= TILES.many_live and _saves_steps(shape, warps):
        return (_halved(shape, row, warps), first, *(rows_config(shape, rows, row, w) for _, w in more[:1]))
    return (first, *(rows_config(shape, count, row, w) for count, w in more if count <= max(1, shape.points)))


def _held_by_warp(shape: Shape, row: int) -> int:
    """Returns how many elements of short rows a thread holds of which one warp holds several."""
    is_one_sum = shape.live == 1 and shape.spec.facts.stores == 1
    if shape.only_reduces and (is_one_sum or row >= ROWS.reduced_row):
        return ROWS.row_reduced
    return ROWS.row_held if shape.live <= TILES.many_live else ROWS.row_held // 2


def _fills_warp(shape: Shape, row: int) -> bool:
    """Returns whether a row is longer than what a warp reads at once: a second one would lie along it, too.

    What they have reduced would be combined through shared memory, of short rows for each few elements. A thread reads
    as many at once as rows are multiples of, 16 bytes at most.
    """
    if not shape.reduction_is_known:
        return False
    vector = min(shape.reduction & -shape.reduction, max(1, 16 // max(1, shape.narrowest_read)))
    return row > shape.device.target.warp_size * vector


def _shares_vectors(shape: Shape) -> bool:
    """Returns whether there are rows enough for programs to reduce several of 16-bit elements with the same vectors."""
    is_half = shape.narrowest_read == shape.element_bytes == 2
    return is_half and bool(shape.spec.facts.vectors) and keep_busy(shape, ROWS.vector_rows) == ROWS.vector_rows


def _matrices(shape: Shape) -> int:
    """Returns how many matrices are reduced with vectors: two rows at once pay where there are two of them."""
    return shape.spec.facts.loads - shape.spec.facts.vectors


def _with_vectors(shape: Shape, row: int) -> Config:
    """Returns the config of long rows that are reduced with vectors: a thread widens its part of these for two rows."""
    warps = max(1, ROWS.vector_rows * row // (shape.device.target.warp_size * ROWS.vector_per_thread))
    return rows_config(replace(shape, live=1), ROWS.vector_rows, row, warps)


def _moves_bytes(shape: Shape) -> bool:
    """Returns whether hardly more than a byte is moved for an element: a thread reads 16 bytes twice if it has 32."""
    return (shape.spec.facts.bytes or 0) <= ROWS.byte_share * shape.expected_points and shape.narrowest_read == 1


def _narrows_to_bytes(shape: Shape) -> bool:
    """Returns whether what is read wider is written in bytes: quantisation."""
    written = [param_bytes(p.dtype) for p in shape.spec.params if p.role == "tensor" and p.access == "write"]
    return min(written, default=2) == 1 < shape.narrowest_read


def row_column_configs(shape: Shape) -> tuple[Config, ...]:
    """Returns the candidates of a kernel whose programs take rows one after the other and hold sums of their columns.

    The next rows are on their way meanwhile, so a program needs no more threads than hold its values.
    """
    row = next_power_of_two(shape.reduction)
    shape = replace(shape, live=min(shape.live, ROWS.chunk_live))
    rows = max(1, ROWS.long_row // row)
    warps = max(1, rows * row // (shape.device.target.warp_size * ROWS.chunk_per_thread))
    chosen = tuple(rows_config(shape, x, row, w) for x, w in ((rows, warps), (rows, warps * 2), (rows * 2, warps * 2)))
    return (_halved(shape, row, warps), *chosen) if rows == 1 and _saves_steps(shape, warps) else chosen


def _saves_steps(shape: Shape, warps: int) -> bool:
    """Returns whether half as many warps have less to do past the end of a row that is not much longer than a step.

    A step is what all threads of a program read at once. The compiler knows which steps lie past the end and leaves
    them out, unless only the call knows how long rows are; of a step that ends past it the program waits for threads
    that have nothing to do.
    """
    if not shape.reduction_is_known:
        return False
    vector = 16 // max(2, shape.narrowest_read)
    step = shape.device.target.warp_size * warps * vector
    steps = -(-shape.reduction // step) * step
    return warps > 1 and shape.reduction < ROWS.idle_row and -(-shape.reduction * 2 // step) * step // 2 < steps


def _halved(shape: Shape, row: int, warps: int) -> Config:
    """Returns the config of a row with half as many warps, whatever each thread holds then."""
    return rows_config(replace(shape, live=1), 1, row, warps // 2)


def looped_configs(shape: Shape) -> tuple[Config, ...]:
    """Returns the candidates of a kernel that loops over rows, best guess first."""
    return looped_columns(shape) if shape.contiguous in ("x", "y") else _inner_looped(shape)


def contraction_configs(shape: Shape) -> tuple[Config, ...]:
    """Returns the candidates of products of few rows: on tensor cores where its facts say so.

    A text that leaves more than the blocks of ``x`` and ``r`` to the config is a loop like any other.
    """
    if {axis.block for axis in shape.spec.axes} - shape.spec.blocks.keys() != {"XBLOCK", "RBLOCK"}:
        return _inner_looped(shape)
    facts = facts_as(shape.spec.facts, ContractionFacts)
    return _products(shape, facts.product) if facts.product else _multiplied(shape, facts.multiplied_rows)


def _products(shape: Shape, count: int) -> tuple[Config, ...]:
    """Returns the candidates of products of few rows: blocks of the matrix, several of them on their way at once.

    Half as many columns to a program where those would leave multiprocessors idle, and twice the depth. Blocks of f32
    have as many bytes, and half the threads: what tensor cores multiply in parts is twice as many registers.
    """
    columns, tile = ROWS.product_columns, ROWS.product_tile // (1 if shape.reads_16_bit else 2)
    if shape.sizes["x"] // columns < 2 * shape.device.multiprocessors:
        columns //= 2
    points = tile // columns
    tiles: tuple[tuple[int, int, int, int], ...] = (
        (columns, points, ROWS.product_stages, ROWS.product_warps),
        (columns, points, ROWS.product_stages - 2, ROWS.product_warps * 2),
        (columns, points // 2, ROWS.product_stages, ROWS.product_warps * 2),
        (columns * 2, points // 2, ROWS.product_stages - 2, ROWS.product_warps * 2),
    )
    if shape.reads_16_bit and count > 1:
        # Blocks of two matrices and more are on their way: as many columns of each are half as deep.
        tiles = (tiles[3], tiles[0], *tiles[1:3])
    elif not shape.reads_16_bit:
        tiles = (
            (columns, points, ROWS.product_stages - 2, ROWS.product_warps // 2),
            (columns * 2, points, ROWS.product_stages - 2, ROWS.product_warps * 2),
            (columns, points, ROWS.product_stages - 2, ROWS.product_warps),
        )
    limits = {axis.block: shape.limit(axis) for axis in shape.spec.axes}
    return tuple(
        Config.of({"XBLOCK": min(x, limits["XBLOCK"]), "RBLOCK": min(r, limits["RBLOCK"])}, warps, stages)
        for x, r, stages, warps in tiles
    )


def _multiplied(shape: Shape, rows: int) -> tuple[Config, ...]:
    """Returns the candidates of products of few rows without tensor cores: a few columns of the matrix to a program.

    Each element of the rows is read once for all of them, from the cache; twice as many where the rows are too long for
    a multiprocessor's own.
    """
    rows = next_power_of_two(rows)
    limits = {axis.block: shape.limit(axis) for axis in shape.spec.axes}
    tiles, found = [(2, 1, 4), (4, 2, 4), (1, 1, 4), (4, 1, 4)], []
    if rows * shape.reduction * param_bytes("f32") > ROWS.multiplied_bytes:
        tiles[:2] = reversed(tiles[:2])
    for columns, share, warps in tiles:
        sums = share * ROWS.multiplied_per_thread * warps * shape.device.target.warp_size
        points = max(1, sums // (rows * columns))
        blocks = {"XBLOCK": min(columns, limits["XBLOCK"]), "RBLOCK": min(points, limits["RBLOCK"])}
        found.append(Config.of(blocks, warps, 1))
    return tuple(found)


def _inner_looped(shape: Shape) -> tuple[Config, ...]:
    row_bytes = shape.reduction * shape.narrowest_read
    if shape.reduction_facts.passes > 1 and row_bytes >= (ROWS.long_ragged_pass if shape.is_ragged else ROWS.long_pass):
        # Few rows at a time, each read by as many threads as a program can have: the next pass finds them in the cache.
        most, whole = shape.device.max_warps, ROWS.long_pass // shape.narrowest_read
        # With the fewest lanes past the end; of equals the longer blocks, which are half as many. Where a thread does
        # not read 16 bytes at once, too little would be on its way in shorter ones.
        blocks = [whole, whole // 2]
        if not shape.is_ragged:
            blocks.sort(key=lambda block: -(-shape.reduction // block) * block)
        again = (*((block, most) for block in blocks), (whole // 4, most // 2 or 1))
        return tuple(loop_config(shape, 1, r, w) for r, w in again)
    block = ROWS.loop_block * (2 if shape.element_bytes <= 2 else 1)
    if shape.live > 4 or shape.buffers > 8:
        block //= 2
    crowded = shape.points >= 2 * shape.device.multiprocessors
    if not crowded:
        block *= 2  # few programs have to keep the memory busy between them
    block = min(block, next_power_of_two(shape.reduction))
    rows = keep_busy(shape, max(1, ROWS.loop_block // 2 // block))
    warps = max(1, rows * block // (shape.device.target.warp_size * (16 if shape.element_bytes <= 2 else 8)))
    is_filled = shape.points >= TILES.fill * shape.device.multiprocessors
    if is_filled and shape.narrowest_read >= 4 and shape.only_reduces and not shape.spec.facts.vectors:
        warps *= 2  # as many threads as read 16 bytes each
    first = (rows, block, warps)
    tiles = [first, (rows, block, warps * 2), (rows, block * 2, warps * 2), (rows, block // 2 or 1, warps)]
    if shape.reads_16_bit and shape.element_bytes > 2:
        # Of elements narrower than the sums, twice as many to a thread are as many bytes on their way.
        tiles[:2] = (rows, block * 2, warps), first
    if _takes_one_turn(shape):
        whole = next_power_of_two(shape.reduction)
        return (
            loop_config(replace(shape, live=1), 1, whole, ROWS.single_turn_warps),
            *(loop_config(shape, x, r, w) for x, r, w in tiles[:3]),
        )
    return tuple(loop_config(shape, x, r, w) for x, r, w in tiles)


def _takes_one_turn(shape: Shape) -> bool:
    """Returns whether a loop had better read rows of 16-bit elements at once that begin at no multiple of 16 bytes.

    A turn of a loop over them has more instructions that find where vectors begin than reads; in one turn these are
    numbers. That is so while a row is hardly longer than what one tile holds for good.
    """
    return (
        shape.narrowest_read == 2
        and shape.reduction_is_known
        and shape.reduction % 8 != 0
        and shape.reduction <= ROWS.single_turn
        and shape.live <= TILES.many_live
    )


def grid_reduction_configs(shape: Shape) -> tuple[Config, ...]:
    """Returns the config of a kernel whose programs hold blocks of rows, or of a line's width of columns.

    One only: such a kernel is not for measuring, its synchronisation workspace counts launches.
    """
    columns = ROWS.shared_columns if shape.contiguous in ("x", "y") else 1
    held = columns * shape.spec.blocks.get("RBLOCK", 1)
    warps = max(1, held // (shape.device.target.warp_size * part_per_thread(shape)))
    return (replace(shape, live=1).fit({"x": columns}, min(warps, shape.device.max_warps)),)


def register_norm_configs(shape: Shape) -> tuple[Config, ...]:
    """Returns the config of a register-resident norm: its text is for so many threads, and not for measuring."""
    threads = facts_as(shape.spec.facts, RegisterNormFacts).threads
    return (replace(shape, live=1).fit({}, threads // shape.device.target.warp_size),)


FORMS = (
    KernelForm(
        name="persistent",
        facts=ReductionFacts,
        configs=persistent_configs,
        table=persistent_table,
        holds_rows=True,
        joins=True,
    ),
    KernelForm(
        name="row_column",
        facts=RowColumnFacts,
        configs=row_column_configs,
        table=persistent_table,
        holds_rows=True,
        joins=True,
    ),
    KernelForm(
        name="looped", facts=ReductionFacts, configs=looped_configs, table=looped_table, has_loops=True, joins=True
    ),
    KernelForm(
        name="contraction",
        facts=ContractionFacts,
        configs=contraction_configs,
        table=looped_table,
        has_loops=True,
        joins=True,
    ),
    KernelForm(name="grid_reduction", facts=SplitFacts, configs=grid_reduction_configs, waits_for="all"),
    KernelForm(name="register_norm", facts=RegisterNormFacts, configs=register_norm_configs, waits_for="all"),
)
