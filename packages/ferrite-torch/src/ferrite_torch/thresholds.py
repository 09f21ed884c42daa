"""Thresholds of capture and lowering: what is left to the library, what is compiled once, what Python waits for.

What becomes one kernel is decided by the scheduler's `Policy`, which users change; these numbers come before it. How a
default was found stands behind it as there: "measured" on an H200; "set" by the reason that is given, and never swept.
What follows from hardware alone, or from how kernels are written, stands beside what uses it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LibraryProductThresholds:
    """Which products of matrices are left to the library, and what is done to their operands.

    Attributes:
        narrow_columns, narrow_points: fewest columns, and points of a sum, of a product of few rows that has a kernel
            of its own. Set: enough for all multiprocessors without cutting the sums.
        plain_rows: most rows of such a product with weights that lie in memory as they are multiplied, whoever reads
            it. Measured (4096 x 14336, bf16): of the bandwidth bound the library reaches 90 % with two to sixteen rows
            and such kernels 86 to 87 %, but 97 against 88 % with one. With what reads the result in the kernel four
            rows reach 88 % (a residual) and 92 % (a gate), where the library and a second kernel reach 80 %. Weights
            that are made of fewer bits in the kernel gain in any case: with four rows of int8, 23 us against 90.
        small_flops: most operations of a product of half types that is a kernel of ours, unless users say otherwise.
            Measured (H200, ``benchmarks/models/run.py --set wide``, ``ferrite`` beside ``ferrite-library``): the device
            takes 0.94 to 1.10 of its time with the library, while the host is spared the call, and starts all kernels
            in a row as one graph.
        split_flops, split_results: fewest operations and results of a product of float32 that tensor cores compute in
            parts. Measured (H200, kernels alone, library 50 and 42 TFLOP/s): 4096x4096x4096 106, 2048x2048x512 76; what
            makes the parts takes 8 bytes for each element of a factor. Results: two tiles for each multiprocessor.
        group_rows: most rows of a group, on average, or points that are summed for one, of a product in groups that is
            a kernel of ours though it is not small. Measured (H200, bf16, alone, against ``torch._grouped_mm``): 1.33
            times as fast with 4 and 6 rows of a group, 1.00 with 256, 0.91 with 384 and 0.62 with 1024; a gate, its
            product and the sum over experts together 1.45 with 384.
        extended_flops: fewest operations of a product whose operands are extended with zeros. Set.
        flops_per_byte: operations per byte copied (read and written) with which a product repays these copies. Set.
        odd_flops_per_byte: the same where an extent is odd, for which the library is slower still. Measured
            (``benchmarks/kernels/odd_products.py``): 16 rows by 50257 columns take 104 us, 27 with the columns
            extended, which takes 42.
        extended_extent: smallest extent of such a product. Set.
        aligned_bytes: bytes that a line of a matrix begins at multiples of where the library is fast with it.
        line_bytes: the same of whole cache lines.
        widening: an extent becomes a multiple of whole cache lines where that adds this share of it at most. Set.
        stripped_rows: rows from which on a result that must not exist twice is computed in strips. Set.
        last_rows: rows of the last strip, and what those of the others are multiples of. Set.
        padding_held: share of a result's bytes that it may keep alive of the larger value that it is a part of. Set:
            what ``widening`` adds.
    """

    narrow_columns: int = 2048
    narrow_points: int = 512
    plain_rows: int = 1
    small_flops: int = 2_000_000_000
    split_flops: int = 2_000_000_000
    split_results: int = 1 << 21
    group_rows: int = 256
    extended_flops: int = 2_000_000_000
    flops_per_byte: int = 100
    odd_flops_per_byte: int = 8
    extended_extent: int = 16
    aligned_bytes: int = 16
    line_bytes: int = 128
    widening: float = 1 / 32
    stripped_rows: int = 1024
    last_rows: int = 64
    padding_held: float = 1 / 32


@dataclass(frozen=True, slots=True)
class ConvolutionThresholds:
    """Convolutions.

    Attributes:
        small_flops: most operations of a convolution that is a kernel of ours, unless users say otherwise. Set: that of
            products, which its kernel is one of.
        split_flops: the same of a convolution of float32 that is computed in parts of TF32, as it may not be rounded:
            none yet, as nothing says how fast that is.
        rounded_channels: channels of a row-major image from which on the library rounds float32 to TF32 where it may.
            Measured (``benchmarks/kernels/convolution_layouts.py``).
        few_points: most points of the sums of a filter's gradient that reads images as they lie. Set: two blocks of a
            tile's sums, loaded by elements, take less than a kernel that copies an image channels-last before, and one
            that lays the gradient out as filters lie after it.
        short_vector: bytes of vectors of channels that are still loaded well. Set: for shorter ones a kernel copies the
            image first, so that they are longer.
        reread_bytes: most bytes of an image and a result whose depthwise filters have their gradient from a kernel of
            ours, which reads both for each place in a window. Set: what the cache of a data-centre GPU holds with room
            to spare.
    """

    small_flops: int = 2_000_000_000
    split_flops: int = 0
    rounded_channels: int = 16
    few_points: int = 128
    short_vector: int = 8
    reread_bytes: int = 32 << 20


@dataclass(frozen=True, slots=True)
class AttentionThresholds:
    """Attention.

    Attributes:
        small_flops: most operations of attention that is a kernel of ours though it is torch's op. Measured with
            that of products, in the same models.
        longest_head: most elements of a head of which there is a kernel. Set: a program holds all of them, for a block
            of queries and one of keys.
        library_head: most elements of a head that torch's fast kernels take.
        library_head_bytes: bytes that heads are multiples of which they take as they are: others are padded, or left to
            a slow kernel.
        mask_bytes: most bytes of all tensors that are computed, while compiling, to see what a mask hides. Set: some
            tenths of a second on a few cores.
    """

    small_flops: int = 2_000_000_000
    longest_head: int = 256
    library_head: int = 256
    library_head_bytes: int = 16
    mask_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class OrderThresholds:
    """Sorting, and searching in what is sorted.

    Attributes:
        longest_row: longest row that is sorted in one tile. Set: the network of 4096 takes 78 steps, compiles for
            seconds, and one program of 16 warps holds a whole multiprocessor; the library's sort of such rows is no
            slower.
        longest_sorted_row, longest_wide_row: the same where a sort is all that is asked for, of at most 16 bits and of
            more. Measured, over the time of the library's sort: in bfloat16, rows of 1024 take 0.87 and rows of 2048
            1.6, in float32, rows of 1024 take 1.15.
        longest_selected_row, longest_selected_column: longest row, and column beside others, of which the element of a
            rank is selected, as its kernel holds it. Set: as `persistent_elements` of the scheduler.
        preloaded_halvings: first steps of a binary search whose elements (7 of 3 steps) are loaded once, and selected
            from, where all values are searched for in one sequence. Set.
        preloaded_size: shortest sequence for which that is done. Set.
    """

    longest_row: int = 2048
    longest_sorted_row: int = 1024
    longest_wide_row: int = 512
    longest_selected_row: int = 8192
    longest_selected_column: int = 64
    preloaded_halvings: int = 3
    preloaded_size: int = 64


@dataclass(frozen=True, slots=True)
class JoiningThresholds:
    """Tensors that become one (``cat``, ``stack``).

    Attributes:
        tensors: most tensors that are joined by a kernel: more would make it as many nested conditions. Set.
        interleaved: most tensors that are joined element by element along the last axis and loaded without conditions.
            Set: a vector of four floats.
    """

    tensors: int = 64
    interleaved: int = 4


@dataclass(frozen=True, slots=True)
class RepeatedBlockThresholds:
    """Calls of modules that become calls of one region (decision 0048).

    Attributes:
        least_calls: calls of equal structure from which on a region is made. Set: two do not repay the boundary that no
            fusion crosses.
        least_nodes: nodes that a block has at least. Set: what is smaller (a norm, an activation) gains more from
            fusing with what surrounds it.
        most_written: bytes of a tensor that a block writes to at most: it is copied whole, even where a block writes a
            row of it. Measured on an H200, steps of 12 layers that write a row of a cache of keys and values, regions
            beside none: 0.91 against 1.09 ms with caches of 1 MiB, 0.85 against 1.06 with 4 MiB, 0.79 against 1.00
            with 16 MiB; first calls of 1.2 to 1.8 against 2.1 to 2.8 s. Larger ones were not measured.
    """

    least_calls: int = 3
    least_nodes: int = 8
    most_written: int = 1 << 24


@dataclass(frozen=True, slots=True)
class LossThresholds:
    """Losses of linear layers that are computed in chunks of rows (decision 0070).

    Attributes:
        logits_bytes: fewest bytes of logits, in the type of the layer, that are computed in chunks unless users say
            otherwise. Set: with their gradient, and what converts them, several times as many would be needed at once,
            which then is a part of a GPU's memory that matters; below, launches of smaller products cost more.
        chunk_bytes: bytes of the logits of a chunk, as far as the numbers of chunks below allow. Set: products with
            less than a thousand rows leave multiprocessors idle (a vocabulary of 128256 in half types has 2093 rows).
        least_chunks: fewest chunks. Measured (4096 rows of 128256 classes, bf16): 0.28 of the logits' memory, with what
            else is alive, for 1.07 times the time of separate kernels; five chunks of 8192 x 151936: 0.23 for 1.08.
        most_chunks: most chunks where the gradient of the weight is of a half type, to which it is rounded once for
            each. Set: the roundings of eight independent chunks add up to 2.1 times that of one, and to less than twice
            the error of eager mode, which has rounded the gradients of the logits as well.
        most_wide_chunks: the same for wider types. Set: each is traced by itself.
        row_step: what rows of a chunk are a multiple of, where there are as many. Set: the tiles of the library's
            products.
        aligned_bytes: logits of a row in half types are padded unless they are a multiple of so many bytes, with which
            the library has fast products: the copy of the weight is one of as many products as there are chunks, three
            times over.
        padded_classes: what the number of classes is a multiple of then. Set: whole cache lines.
    """

    logits_bytes: int = 256 << 20
    chunk_bytes: int = 512 << 20
    least_chunks: int = 4
    most_chunks: int = 8
    most_wide_chunks: int = 32
    row_step: int = 128
    aligned_bytes: int = 16
    padded_classes: int = 64


@dataclass(frozen=True, slots=True)
class TracingThresholds:
    """Ops that torch decomposes while it traces a graph.

    Attributes:
        unbound: most results of an ``unbind`` that is decomposed, so that the backward may compute them again.
            Measured (torch 2.11): 20,000 results took 121 s apart, and 22 s as one op.
    """

    unbound: int = 256


@dataclass(frozen=True, slots=True)
class CompileSearchThresholds:
    """Bounds of what is looked at while compiling; what lies beyond is taken for the worse of what it may be. All set.

    Attributes:
        factors: numbers of steps that are tried to see whether two strided tensors have a byte in common: beyond these
            they count as having one. Tensors without gaps take one or two.
        layout_nodes: nodes that are run again to see how the results of one graph lie in eager mode; what they are made
            from before that keeps the strides of its fake.
        number_nodes: parts of a number that are looked at to see where it comes from.
        position_loops: loops, one reading the other, that are looked through to see what a position is made from.
        position_loads: elements that such a position may be made from.
        range_depth: operations and loops, one inside the other, that are looked through for the range of an integer.
        specialised_sizes: symbolic sizes of one graph that are fixed one after the other; a graph that wants more runs
            eagerly.
        python_values: values of a program's state that `explain` walks over to put them back.
    """

    factors: int = 20_000
    layout_nodes: int = 256
    number_nodes: int = 256
    position_loops: int = 8
    position_loads: int = 64
    range_depth: int = 32
    specialised_sizes: int = 64
    python_values: int = 200_000


@dataclass(frozen=True, slots=True)
class InterpreterThresholds:
    """Python's own clockwork while a graph is compiled.

    Attributes:
        turn_seconds: time after which a thread that runs Python lets others, while a program is made beside calls;
            usually 5 ms. Each op of a call gives the interpreter away, and has to wait for so long to get it back.
            Measured (x86, one core for each thread): a hundred products of 256 by 256 and as many ``tanh`` take 106 ms
            alone; beside a thread that only runs Python 326 ms with 5 ms, 125 ms with 1 ms, 116 ms with 0.2 ms and
            165 ms with 0.05 ms.
        young_objects: new objects after which Python looks for garbage among them; usually 700 to 2000. Set:
            compiling makes millions of objects that live until it ends, and to look through them every few hundred is
            a good part of the time that it takes (``benchmarks/host/compile_host.py``).
    """

    turn_seconds: float = 2e-4
    young_objects: int = 50_000


PRODUCTS, CONVOLUTIONS = LibraryProductThresholds(), ConvolutionThresholds()
ATTENTION, ORDER = AttentionThresholds(), OrderThresholds()
REPEATED_BLOCKS, INTERPRETER = RepeatedBlockThresholds(), InterpreterThresholds()
TRACING, LOSSES = TracingThresholds(), LossThresholds()
SEARCHES, JOINING = CompileSearchThresholds(), JoiningThresholds()
"""What graphs are captured and lowered by."""
