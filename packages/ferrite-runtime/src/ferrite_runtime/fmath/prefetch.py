"""Software prefetch into L2: requests of what a program will read soon, as device functions; see `fmath`."""

from __future__ import annotations

import triton
import triton.language as tl

from ferrite_runtime.fmath.machine import has_bulk_requests, is_for_nvidia

SECTOR = tl.constexpr(32)
"""Bytes that memory is read in at least."""


@triton.jit
def sectors(column, size: tl.constexpr):
    """Returns those of columns side by side, ``[1, n]``, of elements of so many bytes that begin a sector of memory.

    One for each ``32 // size`` columns, if there are as many.
    """
    columns: tl.constexpr = column.shape[1]
    width: tl.constexpr = min(SECTOR // size, columns)
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


@triton.jit
def prefetch_bytes(pointer, size: tl.constexpr):
    """Asks for ``size`` bytes from an element on to be brought into the cache that all multiprocessors share.

    They have to exist, and the size is a multiple of 16; where the element lies at none, they begin at the one before.
    One thread of the program asks, once. It does nothing where the machine has no such instruction.
    """
    if has_bulk_requests():
        tl.inline_asm_elementwise(
            """
            {
            .reg .pred asks;
            .reg .b32 thread;
            .reg .b64 place;
            mov.u32 thread, %tid.x;
            setp.eq.u32 asks, thread, 0;
            and.b64 place, $1, -16;
            @asks cp.async.bulk.prefetch.L2.global [place], $2;
            mov.u32 $0, 0;
            }
            """,
            "=r,l,r",
            [pointer.to(tl.int64), tl.full([], size, tl.int32)],
            tl.int32,
            is_pure=False,
            pack=1,
        )
