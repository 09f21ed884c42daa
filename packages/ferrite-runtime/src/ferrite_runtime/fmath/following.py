"""How a kernel begins that may have been started before what comes before it has ended; see `fmath`."""

from __future__ import annotations

import triton
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ferrite_runtime.fmath.machine import is_to_follow


@triton.jit
def follow():
    """Lets the next kernel of the stream start while this one runs, and waits until all before this one have ended.

    To stand before the first access to memory. In a kernel that is compiled with ``launch_pdl`` these are two
    instructions, which do nothing where no launch asks for them (programmatic dependent launch, CUDA C++ Programming
    Guide; from compute capability 9.0 on); in others it is nothing.
    """
    if is_to_follow():
        gdc_launch_dependents()
        gdc_wait()
