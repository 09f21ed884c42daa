"""How the scheduler weighs things: its thresholds, as plain data; what it knows of the machine is in `target`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .value_checks import check_values, from_mapping


@dataclass(frozen=True, slots=True)
class Policy:
    """Thresholds of the scheduler that another machine or program may want otherwise, with unit and default.

    How a default was found stands behind it: "measured" on an H200 with ``benchmarks/kernels``, where no other card is
    named, with the decision record that has more; "set" was set by the reason that is given, or as a round number, and
    never swept. What follows from how kernels are written, or from hardware alone, stands beside what uses it.

    Attributes:
        persistent_elements: longest reduction axis (elements, rounded up to a power of two) that a contiguous row may
            hold in one tile. Set.
        persistent_elements_outer: the same where the reduction axis is not the contiguous one. Set.
        persistent_elements_again: the same of these where a loop would load again what it has reduced. Set.
        scan_elements: longest line of a scan that is held in one tile; longer ones are walked in blocks. Set.
        heavy_scan_elements: the same for scans of more than one 32-bit sum or product, which take more registers. Set.
        persistent_bytes: most bytes of values alive at once in one persistent tile row. Set.
        persistent_column_bytes: the same for a column that is longer than ``persistent_elements_outer`` and held as a
            loop would load it again. Set: one warp holds a column of so many bytes without shared memory.
        chunk_bytes: the same for a program of a row-column reduction, which takes a chunk of rows one after the other
            and holds partial sums of their columns. Set.
        chunk_minimum: smallest matrix (bytes) whose column sums are computed by the kernel that reads its rows: smaller
            ones are read from the cache the second time. Set.
        chunk_columns: fewest columns of such a matrix. Set.
        chunk_programs: most programs per multiprocessor, each with a chunk of the rows. Set.
        chunk_elements: elements of the rows that the programs of a multiprocessor take at once, which decides how many
            there are: enough to keep its share of memory's bandwidth busy. Set.
        chunk_rows: fewest rows of a chunk where there are more than two programs per multiprocessor: each leaves a row
            of partial sums. Set.
        chunk_filling: share of the programs wanted that there must be at least; within it a number is taken with which
            all chunks have equally many rows. Set.
        chunk_search: definitions that may depend on a column sum; more are taken as if everything did. Set: bounds the
            time of scheduling.
        chunk_tile: elements that a program takes at once at least, several rows where they are shorter. Set.
        chunk_least_programs: programs of a multiprocessor that there are however short their chunks. Set: one waits for
            memory while another sums.
        chunk_symbolic_rows: what a symbolic number of rows is at least taken for. Set: with few rows chunks cost no
            more launches than they save.
        split_minimum: shortest reduction axis worth splitting over programs (elements). Set.
        split_parts: most partial states for each result of a split reduction. Set: the second stage stays one tile.
        split_chunk: fewest points of a part. Set.
        split_symbolic_chunk: the same where the length of the reduction axis is symbolic, at the shortest length for
            which it is split. Set.
        stages_gain: how many times faster a reduction or scan in stages must be than in one kernel, by bytes and
            ``Target.launch_seconds``. Set.
        access_operations: instructions counted there for each element that is read: its address, and what widens it.
            Set.
        column_block: neighbouring columns that one program of a reduction or scan along columns takes together. Set: a
            line of memory of 16-bit elements.
        narrow_column_block: the same where even so few programs leave multiprocessors without one. Set: each then has
            as many threads as can be.
        column_flight: bytes that a program which reads columns again has on its way at once. Set: 128 for each thread.
        column_turn: rows that a program of few columns has on its way at once; for each such turn but the first one it
            waits for memory (`Target.latency_seconds`). Set; ``benchmarks/kernels/run.py --set odd`` compares it with
            ``--policy '{"column_turn": 1048576}'``, which waits for none.
        merged_states: most states that one program combines, where a reduction reads the results of another that was
            split. Set: more of them are many programs' work first (decision 0017).
        scan_part: fewest points of a part of a scan in stages. Set: one step of a kernel that scans block by block.
        scan_column_part: the same of lines that lie beside each other in memory. Set: such a kernel takes so many rows
            in a step.
        scan_parts: most parts of a line. Set: the scan of their totals stays one tile.
        typical_size: what a symbolic size is at least taken for where the form for large sizes is no worse for small
            ones. Set.
        reckoned_length, reckoned_growth: points of a reduction axis, and times its hint, that a symbolic one is taken
            for, whichever are fewer, where a choice costs little if it is short. Set.
        programs_per_processor: programs wanted per multiprocessor before a reduction is split. Set.
        programs_for_images: the same where a reduction over the positions of several images, that fill half the cache
            or more, is followed by what reads them again: shorter parts were found to gain (decision 0017).
        max_kernel_params: most tensor parameters of one kernel. Set.
        max_combo_params: the same for a kernel of independent updates or of definitions between inputs and results,
            which are parts of it. Set.
        combo_shared_share: what parts of a combo kernel may share: tensors of one element, or of so many times fewer
            than there are points. Set.
        max_kernel_ops: most scalar operations in one kernel's body. Set.
        product_rows: most rows of a matrix of a half type that one program multiplies with columns of another one. Set.
        wide_product_rows: the same of float32; 0 leaves all of them to the library. Set.
        multiplied_rows: most rows of float32 that are multiplied one by one, not on tensor cores. Measured (4096 x
            14336): two rows take 57 us so and four 64, the library 82 and 88; eight take 80 us so and 62 on tensor
            cores, in parts, the library 120. Four rows by weights of eight bits (4096 x 16384) take 47 us so, 23 in
            parts (``cut_rows``), and with the library 200.
        tile_products: compute products of half types with more rows than that in kernels of tiles (decision 0045), with
            what reads their results; False leaves them to the library.
        product_tiles: most products whose tiles a program holds at once. Set: a third leaves no registers.
        product_parts: most parts in which the sums of a product of tiles are computed (decision 0057); 1 leaves them
            whole. Set: the sum of the parts stays one tile.
        product_part_points: fewest points of a part. Set: eight blocks of a loop, so that its start is a small part.
        product_part_step: points that the length of a part is a multiple of. Set: the largest block of a tile, so that
            loops need no masks.
        sector_seconds: what a device takes to write a part of a sector of memory, all multiprocessors together, where
            programs of tiles store single elements. Derived from one figure (H200, bf16): 72 programs that store 512 x
            2304 elements 18 bytes apart, 663,552 parts of sectors, take 43 us longer than the library's kernels for the
            same gradient of filters, on 72 of 132 multiprocessors.
        product_parts_gain: how many times faster parts and their sum must be than whole sums, by an estimate. Set.
        library_gain: part of the library's cost that a kernel of ours may have at most, where both are measured. Set:
            less of a gain is noise between runs.
        attention_rows: rows of scores that fill a program: with fewer of a head, heads that share keys and values are
            rows of one program. Set: what a group of four warps multiplies in one step.
        attention_programs: programs wanted per multiprocessor before the keys of a row are split (decision 0058). Set.
        attention_keys: fewest keys of a part. Set: two or more rounds of a program.
        attention_key_block: keys of a block, of which each part has every so manyth. Set: those of a program's round.
        attention_parts: most parts. Set: one tile holds what they left of a column.
        scale_sums: multiply weights of eight bits as they are, and the sums with the scale of a column.
        split_points: fewest points of a sum of products of float32 that may not be rounded and are multiplied in parts
            of TF32 (`rewrites.split_factors`); 0 leaves all of them to torch's library. Of fewer, what is left out of a
            product counts beside roundings: errors in norm on an H200, over those of the library, 4096 points 2.4e-7 of
            1.15e-6, 512 1.5e-7 of 4.1e-7.
        cut_rows: multiply weights of eight bits with rows of float32 in three parts, on tensor cores.
        recomputed_points: most points of a statistic that each program of a product computes for itself. Set: the
            vectors of a small batch.
        recomputed_cost: most instructions for each element of it. Set.
        hoisted_points: fewest points that share what is computed once by a loop of its own. Set.
        hoisted_cost: fewest instructions of it. Set.
        division_cost: instructions that a division in an index counts for there. Set: it also makes a vector of loads
            one for each element.
        max_tiled_axes: most grid axes (1 or 2). Set.
        tiled_share: share of a kernel's traffic that must run along another dim before a second tile axis pays. Set.
        tiled_near_share: part of the most unit-stride traffic that counts as much, when what is written decides which
            dim is innermost. Set.
        narrow_inner: extent (elements) up to which the dim that the main store walks along is innermost, however much
            the loads carry along the next one: they still find all elements of a sector within a warp, whereas a store
            with gaps of that length writes each sector in parts. Set.
        tiled_minimum: smallest extent worth tiling (elements). Set.
        tiled_long: extent from which on any other is worth tiling. Set: what lies beside is no more in the cache when
            its turn comes.
        row_minimum: shortest row (elements, a power of two) that tiles of rows and columns pay for. Set.
        rows_minimum: fewest rows of such a tiling. Set.
        row_waste: most lanes a row may occupy per element, with the best block for it. Set.
        divided_share: times as many bytes as an access whose walk over the innermost dim may be divided the heaviest
            one has, at least. Set.
        horizontal_distance: independent definitions further apart than this many definitions are not fused, because
            values would live longer. Set.
        horizontal_share: independent definitions are fused if they share at least one part in this many of the smaller
            one's traffic. Set.
        small_kernel_bytes: independent kernels that move less than this are fused to save a launch. Set.
        block_bytes: most bytes of a value whose rows are cut into blocks for definitions that have a point for each of
            these: so few that the time of a launch is most of what it takes. Set.
        uncoalesced_factor: bytes moved per useful byte by an access that runs across a tile. Set.
        search_budget: most dependence edges walked from either side to see whether two kernels can be one. Set.
        fusion_neighbours: how many following readers of a buffer, over as many points, each reader is paired with. Set:
            bounds the work of fusion.
        reordered_share: pairs whose accesses agree only in another loop order are tried as if they saved this many
            times less. Set: straight ones come first.
        fusion_retries: how often a pair that a path blocks is tried again. Set: the same.
        derived_placements: how many of the shared names, those with most bytes, placements are derived from. Set: the
            same.
        ordered_bytes: peak of memory from which on an order of execution with a lower one is searched. Set: less than
            what torch's allocator reserves at once.
        ordered_items: kernels and calls for which that is done, at most. Set: a search takes about 0.3 milliseconds for
            each.
        ordered_share: such an order is taken where it lowers the peak by one part in so many, at least. Set.
        ordered_exactly: kernels and calls around the peak that are put in the best order there is, at most. Set.
        order_states: sets of kernels that one search for an order looks at, at most: about 10 microseconds each. Set.
        order_beam: sets of one size that a beam search goes on with, at least; where ``order_states`` allows fewer, a
            list schedule takes its place. Set: with fewer that is as good.
        order_windows: how often kernels around the peak are put in order, at most. Set: each time takes milliseconds.
        order_chain: kernels that the list schedule runs as one step, at most, to reach one that frees memory. Set.
        order_choices: kernels that could run next that it looks at, and those that wait for each of them. Set.
        unfused_bytes: peak of memory from which on kernels are cut whose parts could run one after the other. Set: less
            memory is not worth the time.
        unfused_share: that is done where it lowers the peak by one part in so many, at least. Set.
        unfused_kernels: kernels that are cut, at most. Set.
        look_back: scan few long lines in one pass, with programs that wait for each other, rather than in two passes.
        look_back_points: points of a line that one such program takes, a power of two. Set.
        grid_reductions: have programs share rows that a looped kernel would read twice, and wait for each other, those
            of columns with elements of 4 bytes (decisions 0011 and 0022).
        grid_reduction_points: elements of a contiguous row that one such program holds, a power of two; twice as many
            of rows too long for as many programs as may wait for each other. Set.
        grid_reduction_rows: rows of the columns that it holds, a power of two. Set.
        grid_reduction_minimum: fewest bytes that a program reads twice otherwise: shorter rows stay in the cache. Set.
        grid_reduction_live: most values alive at once for each element. Set: one that waits in a register and one that
            is made of it.
        grid_reduction_share: a row has at most one part for so many multiprocessors. Set: kernels of a dozen streams
            leave room for one another, so that all of them make progress (decision 0011).
        register_norms: compute group norms of channels-last images in one kernel, whose programs hold what they have
            read in registers until its moments are known (decision 0023), where ``grid_reductions`` allows it.
        norm_points, norm_least_points: most and fewest positions of an image that one of these programs holds, powers
            of two. Set: so many results lie side by side where these are in row-major order (decision 0023).
        norm_programs: programs for each multiprocessor, at least, before each holds more positions. Set.
        norm_words: most words that a program waits for, of all groups that it has channels of. Set: four for each of
            128 threads.
        norm_members: fewest channels of a group. Set: of smaller ones a block has more than a thread can keep the
            moments of.
        affine_operands: operands of a channel, multiplied with and added to an element, from which on they are joined
            to a factor and a summand. Set.
        prefetch: have programs that wait for others prefetch into L2 what later ones will read (decision 0026): those
            of register-resident norms and of scans by look-back; and those that bin rows by destination, what the rows
            are combined into (decision 0027).
        prefetch_scan_bytes, prefetch_norm_bytes: bytes for each multiprocessor that they prefetch ahead: scans about
            what all programs that run at once hold, norms less, as these do it when their own elements have arrived.
            Measured (decision 0026: cumsum of a flat tensor 78.8 to 73.6 us, group norm 28.3 to 26.8).
        prefetch_bandwidth: bytes per second of memory for each multiprocessor from which on scans prefetch: an H200 has
            32 billion, an H100, where they lose up to 5 %, 23 billion.
        reduce_segments: scatter whole rows by kernels whose programs own the destinations, where that pays.
        segment_bytes: fewest bytes that it must save: of all elements in 32 bits, which the cache would combine, and of
            a copy of their target in 32 bits, written and read. Updates of a few MiB would be 2 to 8 microseconds
            faster with atomics on an H200; 0 because their sums would differ from run to run.
        segment_row: fewest elements of such a row: two for each thread of a warp. Set.
        combined_flight: bytes of rows that the programs of a multiprocessor have on their way at once: three times its
            share of memory's bandwidth in a microsecond, as half of a program's time goes by before it knows which rows
            it wants. Set.
        segment_batch: most rows that one of these programs has on their way, a power of two. Set.
        segment_programs: programs of a multiprocessor up to which those of few destinations have fewer columns, two for
            each thread at least. Measured on an H200: 8,451 rows of 287 16-bit elements for 157 destinations 33.7 to
            12.2 us; 4,588 rows of 226 for 1,024 were 0.7 us slower with 8.
        segment_prefetch: most bytes of them, a power of two: more take registers that other programs need. Set.
        segment_prefetch_target: most bytes of what destinations are before that are prefetched while rows are listed: a
            part of what memory can move meanwhile. Measured (decision 0027: an index add's 19.3 to 18.4 us).
        segment_copied_share: copy all destinations before rows are combined where one in so many gets rows, at most.
            Set: those are moved twice.
        accumulated_bytes: fewest bytes of a matrix product that is added to others as soon as it is computed, where it
            would wait for them otherwise: smaller ones take little memory, and adding them one by one takes time. Set.
        accumulated_products: fewest products in such a sum. Set: of two only one waits.
        accumulated_share: what is gained is one part of the peak in so many, at least. Set.
        accumulated_near_peak: share of the peak of memory from which on a moment of the program counts as one of its
            peaks. Set: blocks of a model that are alike have peaks that are alike, and a sum that lowers one of them
            lowers none.
        product_in_place_bytes: fewest bytes of a matrix that a product is added to in its own place. Set: a copy of
            less takes a few microseconds, which the host takes longer to call the library in this way.
        slice_bytes: fewest bytes of what an extern call makes that is written to its slice of a concatenation. Set: a
            copy of less takes no longer than a launch, and is often part of one that there is in any case.
        slice_alignment: bytes that the rows of such a slice begin at multiples of. Set: what the library's kernels
            load and store at once.
        sort_scatters: sort rows by destination before they are combined there, where that pays.
        sorted_bytes: fewest bytes of such rows, counted in 32 bits for each element. Set.
        sorted_row: fewest elements of such a row. Set.
        sorted_collisions: fewest rows for each destination, on average. Set.
        reverse_traversal: have kernels begin at the end of large tensors that the kernel before has read or written.
        last_use_share: what takes less than one part in so many of the cache is not marked as read for the last time.
            Set: it survives without being told to (decision 0018).
        coarsened_rows: most rows of windows that a lane has (`refinements.coarsening`), 1 for none. Set;
            ``benchmarks/kernels/run.py --set depthwise`` compares it with ``--policy '{"coarsened_rows": 1}'``.
        coarsened_window: fewest places that a lane loads from one tensor for a result, so that it counts as a window.
            Set.
        coarsened_share: most of these loads that are left for a result. Set.
        coarsened_nodes: most expressions of such a text, counted for all rows: what compiles in a second. Set.
        coarsened_lanes: fewest lanes for each multiprocessor. Set: as many as it runs at once.
        horizontal: fuse independent definitions that share inputs.
        combo: give independent definitions of a pointwise kernel programs of their own.
        mixed_combos: have small kernels that need nothing of each other share a launch, whatever their forms and sizes
            (decision 0052).
        combo_part_bytes: most bytes that one of them moves, if it shares its text with none: a launch is 2 to 4
            microseconds, in which an H100 moves 4 to 8 MiB; what moves more gains little and stays as it was. Measured
            for what stores the rows that it reduces (H200, gradients of a layer norm of 160,749 rows of 74: 224 us in
            one launch, 54 in two); what is pointwise or only reduces may move more, if the caller holds it.
        combo_moved_bytes: most bytes of one of them that is moved past others though what it reads or writes is of the
            graph's own: it would not find that in the cache. Not measured yet.
        combo_row_elements: longest row of a kernel that shares a launch with others of short rows, or none, where they
            are not small together: all have as many warps. 2,048 was slower on an H200 (six programs of
            ``benchmarks/host/combos.py --only clip,sums``, with and without ``--policy combo_row_elements=2048``: 1.37,
            1.03, 1.03, 0.92, 1.18 and 1.76 times the time without a limit).
        combo_unlike_bytes: most bytes that such kernels move together. Not measured yet.
        combo_peak_bytes: bytes by which shared launches may raise the peak of a program, all of them together: eight of
            the blocks that torch's allocator rounds to. Set.
        combo_peak_share: the same as a share of the peak, one byte in so many, but no more than ``combo_moved_bytes``.
            Set: partial sums of all tensors that the caller holds are less.
        max_combo_parts: most texts of kernels in one launch. Set.
        max_launch_params: most tensors of one launch; no more than `Target.launch_tensors`. Set.
        combo_least_parts: fewest kernels of one launch in a program of more than ``combo_small_program`` kernels: what
            they become is compiled for each place in the program, they themselves once for all layers. Set.
        combo_small_program: see there. Set: steps of optimizers and heads of models have fewer, layers have more.
        combo_launches: how many launches, the last ones that are not full, a kernel may join. Set: bounds the work.
        combo_distance: positions in the order of execution that a kernel is moved at most to join one. Set: what lies
            there has to be looked at.
        combo_refusals: refusals that are kept of a kernel that joins none, the nearest ones. Set.
        combo_single_row: elements from which on a row has a program of its own. Set: neighbouring programs then belong
            to different kernels where all have equally many.
        combo_unlike_rows: rows so many times as long as others make programs of unlike length. Set: the same.
        reuse: let a dead buffer's storage serve a new one of the same size.
        inplace: let a pointwise result take the storage of an operand that dies there.
    """

    persistent_elements: int = 8192
    persistent_elements_outer: int = 64
    persistent_elements_again: int = 256
    scan_elements: int = 8192
    heavy_scan_elements: int = 4096
    persistent_bytes: int = 64 * 1024
    persistent_column_bytes: int = 4096
    chunk_bytes: int = 192 * 1024
    chunk_minimum: int = 16 << 20
    chunk_columns: int = 256
    chunk_programs: int = 8
    chunk_elements: int = 8192
    chunk_rows: int = 64
    chunk_filling: float = 0.7
    chunk_search: int = 64
    chunk_tile: int = 1024
    chunk_least_programs: int = 2
    chunk_symbolic_rows: int = 8192
    split_minimum: int = 256
    split_parts: int = 512
    split_chunk: int = 64
    split_symbolic_chunk: int = 4
    stages_gain: float = 1.25
    access_operations: int = 2
    column_block: int = 64
    narrow_column_block: int = 16
    column_flight: int = 64 << 10
    column_turn: int = 512
    merged_states: int = 4096
    scan_part: int = 1024
    scan_column_part: int = 128
    scan_parts: int = 1024
    typical_size: int = 1024
    reckoned_length: int = 16384
    reckoned_growth: int = 64
    programs_per_processor: int = 8
    programs_for_images: int = 16
    max_kernel_params: int = 48
    max_combo_params: int = 240
    combo_shared_share: int = 16
    max_kernel_ops: int = 2000
    product_rows: int = 16
    wide_product_rows: int = 16
    multiplied_rows: int = 4
    tile_products: bool = False
    product_tiles: int = 2
    product_parts: int = 64
    product_part_points: int = 512
    product_part_step: int = 128
    product_parts_gain: float = 1.1
    sector_seconds: float = 3.5e-11
    library_gain: float = 0.98
    attention_rows: int = 64
    attention_programs: int = 2
    attention_keys: int = 256
    attention_key_block: int = 128
    attention_parts: int = 64
    scale_sums: bool = True
    split_points: int = 256
    cut_rows: bool = True
    recomputed_points: int = 16
    recomputed_cost: int = 8
    hoisted_points: int = 64
    hoisted_cost: int = 8
    division_cost: int = 4
    max_tiled_axes: int = 2
    tiled_share: float = 0.1
    tiled_near_share: float = 0.9
    narrow_inner: int = 4
    tiled_minimum: int = 8
    tiled_long: int = 4096
    row_minimum: int = 64
    rows_minimum: int = 16
    row_waste: float = 1.125
    divided_share: int = 16
    horizontal_distance: int = 64
    horizontal_share: int = 8
    small_kernel_bytes: int = 1 << 20
    block_bytes: int = 4 << 20
    uncoalesced_factor: int = 8
    search_budget: int = 512
    fusion_neighbours: int = 2
    reordered_share: int = 8
    fusion_retries: int = 8
    derived_placements: int = 4
    ordered_bytes: int = 16 << 20
    ordered_items: int = 1000
    ordered_share: int = 64
    ordered_exactly: int = 16
    order_states: int = 4000
    order_beam: int = 16
    order_windows: int = 64
    order_chain: int = 12
    order_choices: int = 24
    unfused_bytes: int = 64 << 20
    unfused_share: int = 8
    unfused_kernels: int = 8
    look_back: bool = True
    look_back_points: int = 8192
    grid_reductions: bool = True
    grid_reduction_points: int = 8192
    grid_reduction_rows: int = 512
    grid_reduction_minimum: int = 144 << 10
    grid_reduction_live: int = 2
    grid_reduction_share: int = 8
    register_norms: bool = True
    norm_points: int = 256
    norm_least_points: int = 64
    norm_programs: int = 2
    norm_words: int = 512
    norm_members: int = 4
    affine_operands: int = 3
    prefetch: bool = True
    prefetch_scan_bytes: int = 128 << 10
    prefetch_norm_bytes: int = 120 << 10
    prefetch_bandwidth: float = 27e9
    reduce_segments: bool = True
    segment_bytes: int = 0
    segment_row: int = 64
    combined_flight: int = 96 << 10
    segment_batch: int = 16
    segment_programs: int = 4
    segment_prefetch: int = 4096
    segment_prefetch_target: int = 8 << 20
    segment_copied_share: int = 4
    accumulated_bytes: int = 1 << 20
    accumulated_products: int = 3
    accumulated_share: int = 64
    accumulated_near_peak: float = 7 / 8
    product_in_place_bytes: int = 16 << 20
    slice_bytes: int = 1 << 20
    slice_alignment: int = 16
    sort_scatters: bool = True
    sorted_bytes: int = 192 << 20
    sorted_row: int = 128
    sorted_collisions: int = 8
    reverse_traversal: bool = True
    last_use_share: int = 8
    coarsened_rows: int = 8
    coarsened_window: int = 9
    coarsened_share: float = 0.6
    coarsened_nodes: int = 2000
    coarsened_lanes: int = 2048
    horizontal: bool = True
    combo: bool = True
    mixed_combos: bool = True
    combo_part_bytes: int = 8 << 20
    combo_moved_bytes: int = 2 << 20
    combo_row_elements: int = 1 << 20
    combo_unlike_bytes: int = 8 << 20
    combo_peak_bytes: int = 4096
    combo_peak_share: int = 256
    max_combo_parts: int = 64
    max_launch_params: int = 2048
    combo_least_parts: int = 8
    combo_small_program: int = 16
    combo_launches: int = 16
    combo_distance: int = 512
    combo_refusals: int = 2
    combo_single_row: int = 1024
    combo_unlike_rows: int = 2
    reuse: bool = True
    inplace: bool = True

    def __post_init__(self) -> None:
        check_values(self, "threshold")

    @classmethod
    def from_mapping(cls, thresholds: Mapping[str, Any]) -> Policy:
        """Returns the policy with some thresholds changed by name.

        Raises:
            ValueError: a key is not a field, or a value is none that it can have; the message names it.
        """
        return from_mapping(cls, thresholds, "threshold")


DEFAULT_POLICY = Policy()
