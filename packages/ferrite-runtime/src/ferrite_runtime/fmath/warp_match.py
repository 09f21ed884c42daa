"""Warp match: rows of one warp with one destination, found by its threads together; see `row_bins`.

Each thread must have rows of its own: tiles have at least one for each thread. In a block of instructions each line is
for one row of each thread of a warp, so that a lane's number means the same from its first instruction to its last.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ferrite_runtime.fmath.machine import is_for_nvidia


@triton.jit
def matches_in_warp(destination):
    """Returns how many rows of its warp go where each row goes, itself included; 1 where no instruction tells."""
    if is_for_nvidia():
        return tl.inline_asm_elementwise(
            "match.any.sync.b32 $0, $1, 0xffffffff; popc.b32 $0, $0;",
            "=r,r",
            [destination],
            tl.int32,
            is_pure=False,
            pack=1,
        )
    else:
        return tl.full(destination.shape, 1, tl.int32)


@triton.jit
def count_together(counter, destination, known):
    """Counts rows at their destinations: those of a warp that share one by one addition, elsewhere each by its own.

    Args:
        counter: pointers to the counter (i32) of each row's destination.
        destination: where rows go; those that are not known, to one that no other row goes to.
        known: which rows are counted.

    Returns:
        What the counter was before, the number of a row among those that are counted together, and how many they are;
        of rows that are not counted they mean nothing.
    """
    if is_for_nvidia():
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 alike, lower, first;
            .reg .pred counts, leads;
            setp.ne.b32 counts, $3, 0;
            match.any.sync.b32 alike, $4, 0xffffffff;
            mov.u32 lower, %lanemask_lt;
            and.b32 lower, lower, alike;
            popc.b32 $1, lower;
            popc.b32 $2, alike;
            setp.eq.and.u32 leads, $1, 0, counts;
            mov.u32 $0, 0;
            @leads atom.global.relaxed.gpu.add.u32 $0, [$5], $2;
            brev.b32 first, alike;
            bfind.shiftamt.u32 first, first;
            shfl.sync.idx.b32 $0, $0, first, 31, 0xffffffff;
            }
            """,
            "=&r,=&r,=&r,r,r,l",
            [known.to(tl.int32), destination, counter.to(tl.int64)],
            (tl.int32, tl.int32, tl.int32),
            is_pure=False,
            pack=1,
        )
    else:
        before = tl.atomic_add(counter, 1, mask=known, sem="relaxed")
        return before, tl.zeros(destination.shape, tl.int32), tl.full(destination.shape, 1, tl.int32)
