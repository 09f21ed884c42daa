"""Measures hand-written reference kernels beside ours: what limits cases of `run.py` that miss their bars?

And, as ``beginning``, what it costs a kernel to wait itself for what comes before it; as ``order``, what it gains to
begin where the one before has ended, and as ``stretches``, where each of its programs has; as ``listing``, what the
steps of listing rows take that are sorted by their destinations first.

    python benchmarks/kernels/hand_written.py
    python benchmarks/kernels/hand_written.py scan

Shares are of the bandwidth bound: bytes over the copy bandwidth of the same run. Results are checked first, but for
those of kernels that leave something out: a scan that waits for nobody says what the bytes alone cost, and a list
before its rows what their parts do.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.tools.tree import add_packages_to_path

LAUNCHES, BATCHES = 16, 5


def main() -> int:
    """Returns 1 if a variant is wrong, else 0."""
    add_packages_to_path()
    import torch

    from benchmarks.reference.hand_cases import CASES
    from benchmarks.tools.timing import copy_bandwidth, time_launches

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[*CASES], default=[*CASES], help="all without it")
    plan = parser.parse_args()
    with torch.device("cuda"):
        bandwidth = copy_bandwidth("cuda", 1 << 30)
    print(f"copy bandwidth {bandwidth / 1e12:.3f} TB/s")
    wrong = 0
    for name in plan.cases:
        variants, elements = CASES[name]
        for dtype in (torch.bfloat16, torch.float32):
            for variant, call, error_of in variants(dtype):
                call()
                error, bound = error_of(), 4e-3 + 2 * torch.finfo(dtype).eps
                wrong += error > bound
                us = min(time_launches(call, LAUNCHES, "cuda") for _ in range(BATCHES)) * 1e3
                bound = 2 * elements * dtype.itemsize / bandwidth * 1e6
                note = f"  {'WRONG' if error > bound else 'error'}: {error:.1e}"
                print(
                    f"{name:10} {str(dtype)[6:]:8} {us:8.1f} us {100 * bound / us:5.1f} %  {variant}{note}", flush=True
                )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
