"""Thresholds of config policies: which blocks, warps and stages a kernel gets first, by its sizes and facts.

Defaults are the best of grids of configs on an H200 (decisions 0013 and 0020; ``benchmarks/kernels/config_grid.py``
repeats them), but for those whose words give a reason: these were set by it. Sizes are in elements unless they are
called bytes; "warps" are those of a program. Rates of a device stand in its descriptor.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PointwiseThresholds:
    """Blocks of pointwise kernels.

    Attributes:
        flat_tile: a program of this many elements amortises its start and still leaves enough of them to fill the
            device.
        small_tile: elements of the smallest tile: one for each thread of four warps.
        row_bytes: bytes of a tile of rows: each thread has a few rows, so that what belongs to its columns is loaded
            once for them.
        row_waste: a block that leaves more lanes than this idle at the end of a row is halved, down to a width that a
            warp still reads at once.
        row_width: columns of the narrowest block of a row.
        full_width: columns of a block of a row that is long enough.
        fill: programs per multiprocessor below which smaller programs are better than idle multiprocessors.
        sorted_rows: rows that a warp combines before it stores what they come to.
        many_buffers: beyond so many buffers each element occupies registers enough that fewer per thread are faster.
        least_window, window_bytes, window_threads: fewest loads of one tensor, each of single elements, that make a
            window, of which a thread has so many bytes, in programs of so many threads: its loads touch few lines
            of the first-level cache.
        window_tile, window_warps: elements and warps of a tile of rows with such windows. Measured on an H200:
            bilinear resampling of 8x64x128x128 to twice the size 80 us in tiles of 1024 and four warps, 66 in these; of
            16 bits 63, and 59.
        few_apart, most_apart, apart_warps: percent of the bytes read apart from each other from which on a thread has
            four elements of a flat tile, and from which on two, so that what the threads of a warp read at once is few
            lines; warps of such a tile.
        run_tile, run_warps: elements of a tile of short runs that are stored along another axis, and its warps.
        side: a side between this length and twice as much is taken whole.
        sector, ragged_run: bytes that memory writes at once, and how many elements a transposing tile stores beside
            each other in rows that begin anywhere in these: both ends of each are written with those of others.
            Measured on an H200: 16384 rows of 15876 from channels-last 512 us, 556 in squares of 64; of 16 bits 290,
            363; 2048 of 16641 72, 86.
        long_row, long_width: rows of so many 16-bit elements are taken in pieces of that width: what belongs to a row
            is loaded less often.
        unrolled_tiles, unrolled_rows: points and warps of a tile of a kernel whose lanes have several results at each
            point, and columns, rows and warps where it has two axes. Set.
    """

    flat_tile: int = 1024
    small_tile: int = 128
    row_bytes: int = 4096
    row_waste: float = 1.125
    row_width: int = 64
    full_width: int = 256
    fill: int = 4
    sorted_rows: int = 8
    many_buffers: int = 6
    least_window: int = 2
    window_bytes: int = 8
    window_threads: int = 256
    window_tile: int = 512
    window_warps: int = 2
    few_apart: int = 25
    most_apart: int = 60
    apart_warps: int = 8
    run_tile: int = 2048
    run_warps: int = 8
    side: int = 64
    sector: int = 32
    ragged_run: int = 128
    long_row: int = 32768
    long_width: int = 1024
    unrolled_tiles: tuple[tuple[int, int], ...] = ((256, 4), (128, 4), (512, 8), (512, 4))
    unrolled_rows: tuple[tuple[int, int, int], ...] = ((64, 8, 4), (64, 16, 4), (64, 4, 2), (128, 8, 4))


@dataclass(frozen=True, slots=True)
class RowThresholds:
    """Rows that are reduced, scanned, sorted or multiplied, contiguous in memory.

    Attributes:
        long_row: a row of so many elements has work for a program of its own.
        huge_row: a row of 16-bit elements that is combined faster by fewer threads, with twice as many elements to
            each: measured on an H200.
        idle_row, idle_share: a long row that fills less than this share of its tile.
        short_tile, row_held, row_reduced, reduced_row: elements of the tile of several short rows, and elements per
            thread of such that one warp holds; of those that are only added up, or at least so long and only reduced.
            Half as many of short odd rows of floats that are stored, of which each element is loaded by itself.
            Measured on an H200 (softmaxes and norms of 1 to 4 tensors with rows of 33 to 77, 24 kernels): with 32 1.20
            times the time of the best config in geometric mean, 2.16 at most; with 16 1.03, and 1.18.
        tiny_row, tiny_tile: rows of so few elements, and elements of a tile of them.
        odd_row: rows of 16-bit elements that lie at odd positions are reduced two by two up to this length: a thread
            has as many as of short ones.
        odd_per_thread, odd_warps, odd_programs: elements per thread and warps of a program of few rows at odd positions
            that are stored, too, and programs per multiprocessor that are left where one has several rows. Measured on
            an H200 (``config_grid.py`` on 700 to 9,000 rows of 121 to 841 elements, 27 kernels of moments and
            softmaxes): first configs with warps along each row took 1.23 times as long as the best, 2.13 at most; these
            1.04, and 1.18.
        row_per_thread_short, row_per_thread_long: rows of which a thread has one each go through their lines of memory
            element by element. So many bytes of a row leave room for those of two to a thread, and warps that store
            rows longer than so many do so one by one: by way of shared memory, where a program of several would wait
            for all of them.
        loop_block: points of a block of a reduction axis that a loop goes through.
        single_turn, single_turn_warps: elements of 16 bits of a row, at most, that a loop reads in one turn if the row
            begins at no multiple of 16 bytes, and the warps for it. Measured (H200, rows of 9,001 to 9,549, six
            kernels): 0.64 to 0.82 of the time that turns of 4,096 elements take.
        long_pass, long_ragged_pass: bytes of rows that are read again, and of such that begin between vectors of 16
            bytes, from which on the programs that a multiprocessor would hold at once fill its share of the cache with
            them. The former are also those of a block of such rows. Measured on an H200: 8192 rows of 16383 floats,
            divided by their means, take 480 us by eight programs a multiprocessor and 285 by two; of 12131 211 and, in
            blocks of 4096, 329; softmax of 8192 rows of 10000 190 and 165.
        chunk_per_thread: elements per thread, and live tiles that are counted, of a kernel that takes rows one after
            the other.
        chunk_live: values alive at once that count there.
        scan_block, scanned_per_thread: block of lines that are scanned block by block, and elements per thread of a
            scan.
        busily_scanned_per_thread: the same where it takes long to combine.
        odd_scan_block, odd_scan_warps: block and warps of many rows of odd length that are scanned block by block.
            Measured on an H200: reversed sums of 1111 rows of 8471 16-bit elements take 71 us, 188 with blocks of 8192
            and 8 warps.
        busy_odd_row, busy_odd_block, busy_odd_warps: a row of odd length that takes long to combine and is scanned by
            one warp, twice as many elements at most; the block of longer ones, and its warps. Measured on an H200 for
            sums of exponentials (``config_grid.py --set scans``): 3386 rows of 2457 numbers take 61.5 us with two warps
            and 255 with 32; 879 of 14411 take 135 us in blocks of 512 and 388 in such of 8192.
        shared_columns: columns that programs share: a line of memory of 32-bit elements.
        product_columns, product_tile, product_stages, product_warps: columns and elements of a block of the matrix that
            few rows are multiplied with, blocks on their way at once (with the one that is multiplied), and warps of a
            program.
        multiplied_per_thread, multiplied_bytes: sums of products that a thread has under way, and bytes of rows that a
            multiprocessor's own cache has room for.
        vector_rows, vector_per_thread: rows of 16-bit elements that a program reduces with a vector, and elements of
            them per thread.
        sorted_bytes, sort_warps, long_sort, long_sort_warps: bytes per thread of rows that are sorted, and warps for
            these at most; fewer for rows of more elements: more steps.
        byte_share: bytes for an element of a matrix of bytes, with what else is read and written for a row.
    """

    long_row: int = 1024
    huge_row: int = 8192
    idle_row: int = 4096
    idle_share: float = 0.75
    short_tile: int = 2048
    row_held: int = 32
    row_reduced: int = 64
    reduced_row: int = 128
    tiny_row: int = 4
    tiny_tile: int = 1024
    odd_row: int = 2048
    odd_per_thread: int = 16
    odd_warps: int = 2
    odd_programs: float = 1.0
    row_per_thread_short: int = 20
    row_per_thread_long: int = 56
    loop_block: int = 2048
    single_turn: int = 16384
    single_turn_warps: int = 8
    long_pass: int = 32 << 10
    long_ragged_pass: int = 56 << 10
    chunk_per_thread: int = 16
    chunk_live: int = 4
    scan_block: int = 8192
    scanned_per_thread: int = 32
    busily_scanned_per_thread: int = 8
    odd_scan_block: int = 2048
    odd_scan_warps: int = 4
    busy_odd_row: int = 2048
    busy_odd_block: int = 512
    busy_odd_warps: int = 4
    shared_columns: int = 32
    product_columns: int = 32
    product_tile: int = 4096
    product_stages: int = 6
    product_warps: int = 2
    multiplied_per_thread: int = 32
    multiplied_bytes: int = 128 << 10
    vector_rows: int = 2
    vector_per_thread: int = 64
    sorted_bytes: int = 16
    sort_warps: int = 8
    long_sort: int = 1024
    long_sort_warps: int = 4
    byte_share: float = 1.25


@dataclass(frozen=True, slots=True)
class ColumnThresholds:
    """Columns that are reduced or scanned: what is contiguous is the grid.

    Attributes:
        held_bytes, held_of_columns: bytes that a thread reads of whole columns, and most elements of them.
        noncoalesced_warps: warps for columns of which few lie beside each other.
        half_line_rows: rows of columns from which on half a line of 16-bit elements is enough: more threads than hold a
            line combine slowly.
        small_programs: programs per multiprocessor of which each reduces rows together with few threads.
        outer_per_thread: elements per thread of a tile that is reduced along its slow axis: what lies in registers for
            each of them (an accumulator or two, and the values on their way) decides how many programs share a
            multiprocessor. Half as many where a point takes ``busy_flops`` operations (moments behind ``softplus`` and
            ``mish``, 123x64x23x23 channels-last: 36 and 20 us).
        short_column, short_columns: rows of columns of 16-bit elements that many programs reduce with few threads, and
            the tile of such a program.
        many_tile: elements of a tile of columns of which there are many programs.
        flight: bytes that the programs of a multiprocessor have on their way at once, at least. Set: half of what
            memory moves for it in a microsecond. On an H200 400 programs of 4 KiB reduce 15 MB in 16.7 us.
        tall_reduction, tall_columns, tall_bytes, tall_warps, nearly_busy: rows from which on columns are tall; columns
            and bytes of a tile of such, its warps, and the programs that are enough for a multiprocessor.
        tall_moments, tall_moments_of_16_bit, whole_tiles, live_of_moments: tile and warps of moments of many tall
            columns, floats and 16-bit elements: so few registers to a thread that all programs run at once. What
            numbers of columns are multiples of for that, and what moments have of each of their elements.
        busy_fill, busy_warps, busy_held: whole columns with ``busy_flops`` operations for a point: warps of all
            programs on a multiprocessor that are enough, most warps of a program that share columns, and elements for
            a thread, at least. Measured (H200, 44 kernels of ``config_grid.py --set images`` and ``random``): the first
            config took 1.19 times as long as the best in geometric mean, 4.9 at most; by these 1.10, and 1.42.
        rows_per_thread: rows that a thread holds of columns that are scanned, or read twice.
        scan_warps, scanned_columns, short_scan: warps of a program that scans columns, and columns of it, if there are
            enough of them; rows of columns that it holds whole by as few warps as it can.
        whole_scan, scan_tile: rows of columns that one tile holds whole while it scans them, and elements of such a
            tile.
        busy_scan, busy_turn, busily_scanned_per_thread: most rows that one tile scans at once of columns that take long
            to combine; rows that take as long as what each turn of a loop adds; elements for a thread.
        light_scan: operations for a point up to which columns of twice as many rows as ``whole_scan`` are scanned in
            steps: those of a sum.
        columns_apart, apart_per_thread: columns of a tile of whole short ones whose rows begin at odd places, and
            elements for a thread.
        unaligned_bytes, unaligned_reads: bytes that a thread reads at once up to which its reads are counted, and how
            often it then reads in each turn of a loop, at most.
        unaligned_rows, unaligned_columns, unaligned_per_thread: rows of such columns up to which a tile holds them
            whole, columns of this tile, and elements of it for a thread. Measured (H200, 23 kernels of bf16 and f32,
            about a hundred configs each, as ``config_grid.py --set odd`` has them): the first config took 1.60 times as
            long as the best in geometric mean, 13.6 at most; by these 1.10, and 1.48.
        apart_scan_tile: elements of the tile of a scan of columns of 16-bit elements whose rows begin at odd positions;
            half of it of wider ones.
        again_warps: most warps of a program that reads columns twice: with as many rows to a thread a multiprocessor
            holds one of them.
        again_tile, short_again_warps, short_again: elements of a tile of columns that stay in the cache until they are
            read again, its warps, and rows of which one turn of the loop reads all.
        few_rows, long_column, few_warps: rows of columns that too few programs reduce for the multiprocessors there
            are, at least and at once, and the warps of such a program for these.
        cache_share: share of the cache that data may take that is wanted again.
    """

    held_bytes: int = 128
    held_of_columns: int = 64
    noncoalesced_warps: int = 4
    half_line_rows: int = 128
    small_programs: int = 8
    outer_per_thread: int = 8
    short_column: int = 256
    short_columns: tuple[int, int] = (128, 16)
    many_tile: int = 1024
    flight: int = 16 << 10
    tall_reduction: int = 768
    tall_columns: int = 64
    tall_bytes: int = 8192
    tall_warps: int = 8
    nearly_busy: float = 1.9
    tall_moments: tuple[int, int, int] = (128, 4, 8)
    tall_moments_of_16_bit: tuple[int, int, int] = (64, 32, 4)
    whole_tiles: int = 128
    live_of_moments: int = 3
    busy_fill: int = 24
    busy_warps: int = 4
    busy_held: int = 8
    rows_per_thread: int = 8
    scan_warps: int = 4
    scanned_columns: int = 64
    short_scan: int = 64
    whole_scan: int = 512
    scan_tile: int = 16384
    busy_scan: int = 256
    busy_turn: int = 32
    busily_scanned_per_thread: int = 16
    light_scan: float = 2.0
    columns_apart: int = 128
    apart_per_thread: int = 16
    unaligned_bytes: int = 8
    unaligned_reads: int = 8
    unaligned_rows: int = 1024
    unaligned_columns: int = 64
    unaligned_per_thread: int = 64
    apart_scan_tile: int = 4096
    again_warps: int = 16
    again_tile: int = 16384
    short_again_warps: int = 8
    short_again: int = 512
    few_rows: int = 128
    long_column: int = 512
    few_warps: int = 16
    cache_share: float = 0.5


@dataclass(frozen=True, slots=True)
class TileThresholds:
    """What tiles of rows and of columns have in common.

    Attributes:
        many_live: a row of more live tiles than this gets twice the threads.
        fill: programs per multiprocessor that keep it busy whatever the program does.
        part_per_thread: elements per thread of a part of a line that other programs wait for, and of columns that are
            scanned whole.
        packed_per_thread: the same of a part that waits packed, two elements in a register.
    """

    many_live: int = 3
    fill: int = 4
    part_per_thread: int = 64
    packed_per_thread: int = 128


@dataclass(frozen=True, slots=True)
class RegisterThresholds:
    """What threads can hold. Set: beyond it the compiler keeps values in memory.

    Attributes:
        live_per_thread: live values of a thread from which on its tile gets more warps: more spill everywhere.
        elements_per_thread: most elements of 4 bytes that a tile has for each thread. One has 255 registers, and the
            compiler takes long to find out that they are too few: 18 s for 32 x 2048 floats on four warps, against a
            fraction of one.
        most: most registers of a thread, the one that is always zero included. Set: the hardware's.
        spilled_bytes: bytes on the stack of each thread from which on a config is not timed where another has less:
            it loses.
        spilled_tries: other configs of a kernel that are compiled because the first one spills, one after the other.
    """

    live_per_thread: int = 64
    elements_per_thread: int = 256
    most: int = 256
    spilled_bytes: int = 64
    spilled_tries: int = 3


@dataclass(frozen=True, slots=True)
class SearchThresholds:
    """The search for better configs than the listed ones.

    Attributes:
        moves: moves from config to neighbouring config after which it ends in any case. Set: each is a round of
            compilations.
    """

    moves: int = 6


@dataclass(frozen=True, slots=True)
class TableThresholds:
    """The wider tables of configs (`tables`), which are those of PyTorch's compiler, and so these numbers.

    Attributes:
        wide_warp, narrow_warp, reduction_warp: elements that a warp gets, in the two flat rows of the table and in that
            of reductions.
        pointwise_warps, reduction_warps, crowded_warps: most warps; fewer where registers are few.
        few_elements: elements of a tile from which on it has four warps at least.
        depth: points of a reduction axis that a tile has at most.
        crowded_loads, crowded_points: a reduction that takes so much from memory at once, over so many rows, has few
            registers left: half the depth.
        rows, rows_tile: rows that are held whole at once, and most elements of these.
        small_share: where everything together is less than a requested tile, one part in so many of it is enough.
    """

    wide_warp: int = 256
    narrow_warp: int = 64
    reduction_warp: int = 128
    pointwise_warps: int = 8
    reduction_warps: int = 16
    crowded_warps: int = 8
    few_elements: int = 128
    depth: int = 2048
    crowded_loads: int = 10
    crowded_points: int = 1024
    rows: tuple[int, ...] = (1, 8, 32, 128)
    rows_tile: int = 4096
    small_share: int = 8


@dataclass(frozen=True, slots=True)
class OccupancyThresholds:
    """How many warps fill a device; see `occupancy`. From ``benchmarks/kernels/config_grid.py --set images``.

    Attributes:
        filled_share: share of a device's threads from which on a launch fills it.
        least_elements, least_of_heavy: elements of a tile that a thread keeps at least; of kernels with ``heavy_flops``
            operations for a point.
        programs: programs of one warp that a multiprocessor holds. Of the hardware.
        heavy_flops: operations for a point, as a kernel's facts count them, of which a few for each thread take as long
            as its loads.
        busy_flops: the same from which on programs have fewer columns to reduce, and tiles that are stored along
            another axis are small: several programs to a multiprocessor, with fewer elements for a thread.
    """

    filled_share: float = 0.75
    least_elements: int = 4
    least_of_heavy: int = 2
    programs: int = 32
    heavy_flops: float = 128.0
    busy_flops: float = 32.0


@dataclass(frozen=True, slots=True)
class MixedComboThresholds:
    """Kernels of any forms that share a launch, whose programs have one number of warps.

    Attributes:
        counting_share: a part counts for the number of warps if it moves one byte in so many of the kernel's, at least.
            Set.
        programs: programs per multiprocessor that are left where those of a part take more rows each, because they
            have more warps. Set.
    """

    counting_share: int = 8
    programs: int = 2


@dataclass(frozen=True, slots=True)
class ProductThresholds:
    """Products of matrices and attention, on tensor cores.

    Attributes:
        sums: most registers of a thread that hold sums of a tiled product. Set: more leave too few for addresses and
            for what reads the result.
        element_registers: registers for each element of factors that a thread loads by itself in a round, with its
            address. Set: with more elements than fit the compiler keeps some in memory, for sm_90.
        address_registers, read_share: registers of a thread for addresses, and for each tensor that is read to compute
            with the result, as a share of those for sums. Fitted to registers that kernels of ResNet-50 take in
            bfloat16 (Triton 3.6, sm_90, 210 configs, as ``benchmarks/kernels/compiled_code.py`` shows them): with 64
            sums 106 where nothing is read, 128 to 156 of four tensors, 175 to 192 of five.
        block_latency, warp_load_seconds: seconds until the elements of a block come that threads load one by one, and
            of each load of a warp. Measured on an H200 (8 products of 20 to 500 rows, 32 to 1,102 columns and 129 to
            4,095 points in bfloat16, 86 configs each): the first configs took 1.90 times as long as the best in
            geometric mean, and 3.20 at most; ordered by these 1.05, and 1.16.
        sums_and_scores: as ``sums``, of attention, scores included. Set: the compiler keeps some in memory from about
            224 on, for sm_90.
        score_copies: registers for each score, some of which are in the making.
        epilogue_seconds, idle_warps: what a simple instruction for each element takes a multiprocessor, and warps that
            have as many cycles idle as busy while nothing is multiplied: fitted to epilogues
            (``benchmarks/kernels/products.py``; GELU with 8 warps 140 us, with 16 115).
        persistent_tile: elements of the smallest tile of which a program takes several. Set: of smaller ones a
            multiprocessor has several programs, which do not wait for each other.
        described_tile: elements of the smallest tile whose blocks may be loaded through descriptors. Set: of smaller
            ones a multiprocessor has many programs, each of which would make its own.
        described_rate: times the rate of a tile whose blocks are loaded by pointers that it has through descriptors,
            where an element of a factor has two bytes or more. Measured (H200, bf16, best configs, TFLOP/s by pointers
            and by descriptors): 4096 x 4096 x 4096 680 and 677, 8192 x 8192 x 8192 663 and 694, 4096 x 11008 x 4096
            633 and 669; with one tile a program 562 and 643. Of 8-bit floats 1280 and 1247: none.
        describe_seconds: what a program takes to make its descriptors. Set.
        cache_rate: times the bandwidth of memory with which blocks that several programs load come from the cache. Set.
        rounded_rows: rows of a tile that are multiplied by a block of the right factor while that block is rounded to
            TF32 and put back into shared memory. Measured on an H200 (us in tiles of 64 x 64, and of 32 x 64, which
            keep it in registers): 24200 x 363 x 64 121 and 40, 1352 x 1728 x 384 39 and 24; 4096 x 768 x 30522 in tiles
            of 128 rows 974, the library 580.
        rounded_share: share of the fastest rate that tiles of 32 rows have with rounded factors in registers, however
            many columns. Measured: the second of these takes longer in tiles of 32 x 128, of which a multiprocessor has
            one, than in twice as many of 32 x 64.
    """

    sums: int = 160
    element_registers: int = 3
    address_registers: int = 44
    read_share: float = 0.15
    block_latency: float = 4.5e-7
    warp_load_seconds: float = 2.3e-9
    sums_and_scores: int = 220
    score_copies: float = 1.25
    epilogue_seconds: float = 4.5e-12
    idle_warps: int = 24
    persistent_tile: int = 128 * 128
    described_tile: int = 128 * 128
    described_rate: float = 1.05
    describe_seconds: float = 1.5e-6
    cache_rate: float = 2.0
    rounded_rows: int = 192
    rounded_share: float = 0.34


POINTWISE, ROWS, COLUMNS, TILES = PointwiseThresholds(), RowThresholds(), ColumnThresholds(), TileThresholds()
OCCUPANCY, MIXED_COMBOS = OccupancyThresholds(), MixedComboThresholds()
REGISTERS, SEARCH, TABLES = RegisterThresholds(), SearchThresholds(), TableThresholds()
PRODUCTS = ProductThresholds()
"""What config policies go by."""
