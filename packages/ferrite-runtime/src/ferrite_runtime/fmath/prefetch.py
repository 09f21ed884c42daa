"""Requests of what a program will read soon, as device functions: it is in the cache by then; see `fmath`."""

from __future__ import annotations

import triton
import triton.language as tl

from ferrite_runtime.fmath.machine import is_for_nvidia

_SECTOR = tl.constexpr(32)
"""Bytes that memory is read in at least."""


@triton.jit
def sectors(column, size: tl.constexpr):
    """Returns those of columns side by side, ``[1, n]``, of elements of so many bytes that begin a sector of memory.

    One for each ``32 // size`` columns, if there are as many.
    """
    columns: tl.constexpr = column.shape[1]
    width: tl.constexpr = min(_SECTOR // size, columns)
    return tl.min(tl.reshape(column, [1, columns // width, width]), 2)


@triton.jit
def prefetch(pointer):
    """Asks for elements to be brought into the cache that all multiprocessors share, and waits for nothing.

    They have to exist. It does nothing where the machine has no such instruction.
    """
    if is_for_nvidia():
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointer.to(tl.int64)], tl.int32, is_pure=False, pack=1
        )
