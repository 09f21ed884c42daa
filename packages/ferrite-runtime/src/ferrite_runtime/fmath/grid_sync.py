"""Grid barrier: states that programs publish for each other, each of one block of a row, and where they wait.

Source: Xiao and Feng, "Inter-block GPU communication via fast barrier synchronization" (2010).

A state is a float in a word of the workspace, with its flag (see `flags`). Programs wait at a counter, by atomics, one
thread each: plain loads, of which every thread does its own, take longer (`benchmarks/results/hand-written.md`). The
counter only tells when it is worth asking; what is published is known by its flag. An order of memory that made the
counter tell it would have each program wait for all that its multiprocessor is storing.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ferrite_runtime.fmath.flags import await_words, poll_words, publish_word
from ferrite_runtime.fmath.machine import is_for_nvidia


@triton.jit
def publish_state(address, value, wanted=None):
    """Stores floats in words of the workspace, for programs that pass the barrier with this one."""
    publish_word(address, value.to(tl.int32, bitcast=True).to(tl.int64), wanted)


@triton.jit
def grid_barrier(counter, count):
    """Waits until ``count`` programs have come here; the counter, a word of the workspace, is zero at the launch."""
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="relaxed")
    while tl.atomic_add(counter, 0, sem="relaxed") < count:
        pass
    tl.debug_barrier()


@triton.jit
def pause():
    """Marks where a program begins to wait for words of others, for an interpreter that runs one after the other."""


@triton.jit
def published_states(address, wanted, neutral):
    """Returns the floats in words, once all of them are published; those that are not wanted are ``neutral``."""
    found = await_words(poll_words(address, wanted), address, wanted)
    return tl.where(wanted, found.to(tl.int32).to(tl.float32, bitcast=True), neutral)


@triton.jit
def opaque_value(tile):
    """Returns elements of two or four bytes of which the compiler does not know what it has made of them before.

    Two of two bytes wait in a register; what is made of them it would keep in one each, rather than make it again.
    """
    if is_for_nvidia():
        count: tl.constexpr = 32 // tile.dtype.primitive_bitwidth
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [tile], tile.dtype, is_pure=False, pack=count)
    else:
        return tile


@triton.jit
def opaque_floats(tile):
    """Returns elements of bfloat16 as floats, of which the compiler does not know what it has made of them before.

    One instruction for each, where the compiler takes three for two.
    """
    if is_for_nvidia():
        text: tl.constexpr = "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;"
        return tl.inline_asm_elementwise(text, "=f,=f,r", [tile], tl.float32, is_pure=False, pack=2)
    else:
        return tile.to(tl.float32)


@triton.jit
def in_branch(number, branch: tl.constexpr):
    """Returns an integer of 32 or 64 bits, by an instruction that names a branch, which no other one has.

    Of branches that are alike but for the params that they name LLVM makes one (tail merging), behind which it needs
    those of all: for sm_90, 150 branches of four addresses took 171 registers a thread, with the instruction 40.
    """
    if is_for_nvidia():
        if number.dtype.primitive_bitwidth == 64:
            wide: tl.constexpr = "mov.b64 $0, $1; // " + branch
            return tl.inline_asm_elementwise(wide, "=l,l", [number], number.dtype, is_pure=True, pack=1)
        else:
            text: tl.constexpr = "mov.b32 $0, $1; // " + branch
            return tl.inline_asm_elementwise(text, "=r,r", [number], number.dtype, is_pure=True, pack=1)
    else:
        return number
