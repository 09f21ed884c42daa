"""Programmatic dependent launch: how a kernel begins that may start before its predecessors end; see `fmath`."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ferrite_runtime.fmath.machine import uses_pdl

_LETTING = tl.constexpr(2048)
"""Programs that let the next kernel start, the last ones: a device begins only one in 1.2 ns of those that do."""


@triton.jit
def pdl_wait():
    """Lets the next kernel of the stream start while this one runs, and waits until all before this one have ended.

    To stand before the first access to memory. In a kernel that is compiled with ``launch_pdl`` these are two
    instructions, which do nothing where no launch asks for them (programmatic dependent launch, CUDA C++ Programming
    Guide; from compute capability 9.0 on); in others it is nothing. The next kernel starts when all programs have let
    it or have ended, so that it is enough if the last ones let it.
    """
    if uses_pdl():
        if tl.program_id(0) >= tl.num_programs(0) - _LETTING:
            gdc_launch_dependents()
        gdc_wait()
