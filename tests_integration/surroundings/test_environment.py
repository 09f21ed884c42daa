"""What the environment of a process says: variables of Triton and Python, folders that are not there."""

from __future__ import annotations

from pathlib import Path

from against_eager import own_only
from apart import run_program

pytestmark = own_only("it is about ferrite's own processes and files")

INTERPRETED = """
import torch, triton
import triton.language as tl
import ferrite_torch
from ferrite_runtime import Bundle, Kernel, Options, bundle_kernels, user_kernel

@triton.jit
def doubled(v):
    return v * 2

@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, doubled(tl.load(x + i, i < n)) + tl.sum(tl.load(y + i, i < n), 0), i < n)

def check(write):
    x, y, out = torch.randn(3, 64)
    write(x, y, out)
    torch.testing.assert_close(out, 2 * x + y.sum())

def by_triton(x, y, out):
    add[(1,)](x, y, out, 64, BLOCK=64)

@torch.compile(backend="ferrite", options={"fallback": False})
def compiled(x):
    return torch.nn.functional.gelu(x.softmax(-1)).cumsum(0), x.sort().values, x.var(0).erf()

check(by_triton)
compiled(torch.randn(5, 7))
check(by_triton)  # Triton's own way of interpreting is as it was
spec = user_kernel(add, {"x": "f32 read", "y": "f32 read", "out": "f32 write", "n": "i32"}, 1, [{"BLOCK": 64}])
check(lambda x, y, out: Kernel(spec)(x, y, out, 64))
check(by_triton)
bundle = bundle_kernels(spec, targets=("sm_90",), options=Options(workers=0))
assert [entry.form for entry in bundle.binaries] == ["cubin", "cubin"], bundle.binaries
print(spec.id)
"""


def test_triton_may_be_told_to_interpret(tmp_path: Path) -> None:
    """The variable of Triton's authors changes every jitted function; it changes nothing of what comes out."""
    identities = {run_program(INTERPRETED, tmp_path, env={"TRITON_INTERPRET": "1"})}
    # Said too late for Triton's own functions, Triton fails where Ferrite does not.
    told = 'import os, triton\nos.environ["TRITON_INTERPRET"] = "1"\n'
    identities.add(run_program(told + INTERPRETED.replace("check(by_triton)", ""), tmp_path))
    assert len(identities) == 1
