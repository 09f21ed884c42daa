"""Thresholds of lowering: how the loops and blocks of a kernel are written where nothing but speed depends on it.

The scheduler's `Policy` says what is one kernel; a config policy chooses block sizes; these numbers stand between.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoweringPolicy:
    """Thresholds with unit and default; no user changes them, and kernels of one process have one.

    How a default was found stands behind it as in `ferrite_scheduler.Policy`: "measured" on an H200 with
    ``benchmarks/kernels``; "set" by the reason that is given, and never swept. Numbers that the text of one kernel
    form is written for, such as registers of a thread that holds so many elements, stand beside that form.

    Attributes:
        largest_block: most elements of a block of a grid axis. Set.
        largest_reduction_block: the same of a reduction axis. Set: one that is walked twice takes large steps, so that
            few rows at a time wait in the cache.
        longest_row: longest row (elements) that a scan or a sort takes in one tile. Set: sorting it takes 78 steps, and
            seconds to compile.
        longest_column: rows of a scan along columns that lie in one tile. Set: more are walked in blocks, so that a
            tile can be as wide as a line of memory and there are programs enough.
        product_points: points of the reduction axis by which blocks of a product of few rows are cut. Set.
        tile_rows, tile_points: blocks that a config may surely choose for an axis of the result of a tiled product, and
            for its reduction axis, without masks. Set: the tiles of most configs (decision 0045).
        largest_tile, largest_points: most of these that it may choose at all. Set.
        largest_scores: most rows, and columns of scores, of a block of attention. Set.
        sure_scores: blocks of these that a config is content with: where they divide an axis it has no mask, and no
            larger ones. Set.
        free_pointwise, free_tiled, free_reduction, free_grid, free_thread_rows: blocks that an axis may surely be cut
            in, so that it needs no mask where they divide it: of a flat loop, of one of several axes, of a reduction
            axis, of the rows beside one, and of rows that a thread has each. Set: a config loses its larger blocks.
        tile_group: rows of tiles of a product that programs take column by column, so that they share factors in the
            cache. Set (decision 0045).
        few_digits: most products of 8-bit floats that tensor cores make one sum of, with the 14 bits that those of
            Hopper keep, before it is added to one of f32 (decision 0057). Set.
        most_rounds: most tiles that a program takes one after the other. Set: more have long ended evenly.
        described_programs: most programs of a launch that may have descriptors, for which there is memory: a kernel of
            two factors is given 256 KiB. Set: more than a device runs at once, and more do not pay (decision 0060).
        described_operations: fewest operations, two for each point of the sums, of a product that may have descriptors.
            Set: what a program saves by them is what it takes to make them (on an H200 512 x 4096 x 4096, 17e9
            operations, is as fast either way), and small products stay without a param more.
        long_pass: bytes of what a program reads again that do not all stay in the cache, of 264 programs at once, in 50
            MB. Measured on softmax over rows of 16-bit elements: of 256 KiB 4 % faster backwards, of 100 KiB as fast or
            2 % slower.
        grouped_points: fewest points of a contiguous reduction axis whose blocks are surely wide enough that what one
            thread holds is combined first. Set.
        grouped_share: points of another reduction axis that a thread holds, and that do not lie next to each other.
            Set.
        grouped_column: fewest points of a column of which a thread surely holds several. Set.
        peeled_row: fewest elements of a row of odd length in which the vectors at its ends, that are not full, do not
            count. Set.
        near_bytes: bytes that elements beside each other of an axis may be apart to be read together. Set: a sector.
        few_neighbours: columns beside each other from which on a warp reads enough of them at once. Set.
        least_thread_row, most_thread_row: fewest and most elements of a row that one thread reduces by itself (decision
            0021). Set: it holds them in registers.
        least_thread_rows: rows from which on most of a device has a thread for each of them; fewer are shared by the
            threads of warps. Set.
        most_thread_held: most elements of all such rows that a thread reads. Set: the same.
        thread_row_bytes, long_thread_row_bytes, many_exchanges: most bytes of such a row, of which one number is
            reduced, and from so many numbers on: moments, extremes with their index, softmax. Measured (decision 0021):
            reducing rows of 98 to 132 bytes is 7 to 19 % slower so for a sum, and 14 to 32 % faster for moments. What
            all threads read stays in the cache next to them until each has read its row to the end.
        thread_access_bytes: what a thread reads at once of rows that are no such rows, at least. Set.
        column_stages: blocks of a scan along columns that are on their way at once. Set.
        short_row: elements of a row that takes little of the shared memory. Set.
        most_waiting: most stores that wait for the loads after them. Set: each holds registers.
        column_neighbours: neighbours along a column that a thread holds, where columns are scanned block by block. Set.
        repeated_share: a tensor with so many times fewer elements than the kernel has points is read from the cache.
            Set.
        shortest_draw: fewest points of an axis whose blocks are surely whole quartets of random numbers. Set.
        quartet_share: share of its cost that a random number has where four of them come from one draw. Set.
    """

    largest_block: int = 4096
    largest_reduction_block: int = 16384
    longest_row: int = 4096
    longest_column: int = 64
    product_points: int = 64
    tile_rows: int = 128
    tile_points: int = 64
    largest_tile: int = 256
    largest_points: int = 256
    largest_scores: int = 256
    sure_scores: int = 64
    free_pointwise: int = 1024
    free_tiled: int = 128
    free_reduction: int = 1024
    free_grid: int = 64
    free_thread_rows: int = 512
    tile_group: int = 8
    few_digits: int = 128
    most_rounds: int = 64
    described_programs: int = 1024
    described_operations: int = 4_000_000_000
    long_pass: int = 192 << 10
    grouped_points: int = 1024
    grouped_share: int = 8
    grouped_column: int = 128
    peeled_row: int = 8192
    near_bytes: int = 32
    few_neighbours: int = 16
    least_thread_row: int = 3
    most_thread_row: int = 64
    least_thread_rows: int = 1 << 14
    most_thread_held: int = 128
    thread_row_bytes: int = 88
    long_thread_row_bytes: int = 132
    many_exchanges: int = 2
    thread_access_bytes: int = 8
    column_stages: int = 2
    short_row: int = 1024
    most_waiting: int = 8
    column_neighbours: int = 8
    repeated_share: int = 16
    shortest_draw: int = 64
    quartet_share: float = 0.5


LOWERING = LoweringPolicy()
"""What kernels are written by."""
