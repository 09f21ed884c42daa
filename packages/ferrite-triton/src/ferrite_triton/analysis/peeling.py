"""Misaligned-row peeling: rows that begin at no multiple of a vector are read in whole vectors all the same.

A thread reads 16 bytes at a time only from multiples of 16 bytes: of rows of 50,257 16-bit elements it would read each
element by itself. So each program begins at the vector in which its row does, some elements before it, and drops what
lies before the row and behind it. A row is *misaligned* by the number of elements before it.
"""

from __future__ import annotations

from collections.abc import Iterator

from ferrite_ir.language.graph import Computed, Loop, Reduction, bodies_of
from ferrite_ir.language.index import Index, mod
from ferrite_ir.language.scalar import postorder
from ferrite_ir.language.sizes import is_static
from ferrite_ir.passes.vectors import VECTOR_BYTES
from ferrite_triton.analysis.flat import FlatKernel, memory_loads
from ferrite_triton.analysis.lowering_policy import LOWERING
from ferrite_triton.analysis.rows import behind, is_aligned_row, varies_along_reduction
from ferrite_triton.analysis.traversal import Misalignment


def misalignment_of(flat: FlatKernel) -> Misalignment | None:
    """Returns how the rows of a kernel are misaligned, None where they are not or where it cannot read them so.

    It can where rows at the same place in their tensors are all that its loop reads and the loop does nothing but
    reduction: a store writes whole vectors only from multiples of them, and of two operands that are misaligned
    differently one would be read as before. Moments count the points that each lane has seen, and positions of extremes
    lie in vectors of their own. The last vector of the last row has to be whole, too, so that vectors are of half as
    many bytes where a tensor ends in the middle of one.
    """
    space, reduction = flat.space, flat.space.reduction
    if reduction is None or not space.loops or space.order[-1:] != ("r",) or not reduction.masked:
        return None
    if not is_static(reduction.size) or reduction.size < LOWERING.peeled_row:
        return None
    inside = [definition for definition in flat.definitions if flat.is_reduction_level(definition)]
    if not all(_only_reduces(flat, definition) for definition in inside):
        return None
    roots = tuple(body for definition in inside for body in bodies_of(definition))
    loads = [load for load in memory_loads(flat, roots) if varies_along_reduction(load.indices)]
    counts = [node for node in postorder(roots) if node.op == "index" and varies_along_reduction(node.args)]
    places = {(flat.param_of(load.source).dtype.bytes, flat.offset(load.source, load.indices)) for load in loads}
    if len(places) != 1 or counts:
        return None
    ((element_bytes, offset),) = places
    start = behind(offset)
    if start is None or start.is_indirect or not all(is_static(number) for number in _numbers(start)):
        return None
    sizes = [flat.param_of(load.source).param.type.storage_size for load in loads]
    for vector_bytes in (VECTOR_BYTES, VECTOR_BYTES // 2):
        width = vector_bytes // element_bytes
        if width > 1 and all(is_static(size) and size % width == 0 for size in sizes):
            return None if is_aligned_row(offset, width) else Misalignment(width, mod(start, width))
    return None


def _only_reduces(flat: FlatKernel, definition: Computed) -> bool:
    match definition:
        case Reduction():
            return definition.combine != "welford"
        case Loop():
            return all(result.name not in flat.kernel.stored for result in definition.results)
    return False


def _numbers(start: Index) -> Iterator[object]:
    yield from (coefficient for _, coefficient in start.terms)
    yield start.const
