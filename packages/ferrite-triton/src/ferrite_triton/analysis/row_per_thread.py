"""Row per thread: short rows of odd sizes, each of which one thread goes through by itself.

The compiler spreads a tile over threads so that neighbouring elements belong to neighbouring threads. Of a row of 33
elements each of 32 threads has one or two then, which they reduce in five exchanges, and all of them compute what is
one number for the row; nothing is read in vectors, as the rows begin anywhere. Where a thread has a row of its own,
reducing takes no exchange, and elements past the end, which make a power of two, are none: that they are is known while
compiling. What a warp reads of 32 rows lies in a few lines of memory that are in the cache for the next elements.
Stores have no such cache before them: they go out in the order of memory, by way of shared memory.

The compiler knows which elements are neighbours by following their positions. So ``r`` are positions that are hidden
from it (`fmath.opaque_indices`), and ``position``, by which results are stored, the same ones as it knows them.
"""

from __future__ import annotations

from ferrite_ir.language.graph import Loop, Reduction
from ferrite_ir.language.index import Dim, Index
from ferrite_ir.language.index_substitution import substitute
from ferrite_ir.language.powers_of_two import next_power_of_two
from ferrite_ir.language.sizes import hint, is_static
from ferrite_scheduler.model.forms import PersistentReduction
from ferrite_triton.analysis.accesses import Access, touched_bytes
from ferrite_triton.analysis.flat import FlatKernel
from ferrite_triton.analysis.lowering_policy import LOWERING
from ferrite_triton.analysis.rows import behind, is_aligned_row, step_along
from ferrite_triton.analysis.space import POSITION, Space, flat_dim


def has_row_per_thread(flat: FlatKernel, accesses: tuple[Access, ...]) -> bool:
    """Returns whether a kernel holds short rows, one behind the other, that begin where nothing is aligned."""
    space, reduction = flat.space, flat.space.reduction
    if not isinstance(space.form, PersistentReduction) or space.order != ("x", "r") or reduction is None:
        return False
    if (
        not is_static(reduction.size)
        or not LOWERING.least_thread_row <= reduction.size <= LOWERING.most_thread_row
        or reduction.size == next_power_of_two(reduction.size)
    ):
        return False
    rows = space.axis("x")
    if rows is None or hint(rows.size) < LOWERING.least_thread_rows:
        return False
    if not all(isinstance(definition, (Reduction, Loop)) for definition in flat.definitions):
        return False
    read = [access for access in accesses if not access.writes and {"x", "r"} <= access.axes]
    heaviest = max(read, key=lambda access: touched_bytes(flat, access), default=None)
    if heaviest is None or behind(heaviest.offset) is None or step_along(heaviest.offset, "x") != reduction.size:
        return False
    if len(read) * reduction.size > LOWERING.most_thread_held:
        return False
    width = heaviest.param.dtype.bytes
    if reduction.size * width > most_bytes(flat):
        return False
    return not is_aligned_row(heaviest.offset, max(1, LOWERING.thread_access_bytes // width))


def most_bytes(flat: FlatKernel) -> int:
    """Returns how many bytes a row may have that one thread goes through: more where more is exchanged otherwise."""
    exchanged = sum(len(definition.results) for definition in flat.definitions if isinstance(definition, Reduction))
    return LOWERING.thread_row_bytes if exchanged < LOWERING.many_exchanges else LOWERING.long_thread_row_bytes


def in_order(space: Space, position: Index) -> Index:
    """Returns where a result is stored, by positions that are known to be neighbours."""
    reduction = space.reduction
    if not space.row_per_thread or reduction is None:
        return position
    return substitute(position, {flat_dim(reduction): Dim(POSITION, reduction.size).index})
