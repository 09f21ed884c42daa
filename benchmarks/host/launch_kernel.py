"""The kernel of `benchmarks/host/launch.py`: Triton reads its text from a file."""

import triton
import triton.language as tl


@triton.jit
def add_one(x_ptr, out_ptr, n, BLOCK: tl.constexpr):  # noqa: N803 - constants of kernels are written like this
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask) + 1.0, mask)
