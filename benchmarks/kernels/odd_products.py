"""Measures what odd extents cost the library's products, and what extending an operand costs instead.

    python benchmarks/kernels/odd_products.py

Prints microseconds of products of a few rows by the columns of a vocabulary, as it is and extended to a multiple of 64,
and of the copy that extends the weights; then of products of an odd number of tokens, which are rows in "forward" and
added up in "gradient", as they are and of the next multiple of 64. `ferrite_torch.lowering.products.matrix_products`
weighs one against the other.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from benchmarks.tools.timing import time_launches

SHAPES = ((768, 50257), (2048, 50257), (768, 30522))
ROWS = (16, 32, 64, 128, 192, 256, 512)
TOKENS = (231, 3577, 12805)
LAYERS = ((768, 768), (768, 3072), (3072, 768))
WIDE = 64
LAUNCHES, BATCHES = 20, 5


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_default_device(device)
    print(f"{'depth':>6} {'columns':>8} {'rows':>5} {'as it is':>9} {'extended':>9} {'copy':>7}")
    for depth, columns in SHAPES:
        weights = torch.randn(columns, depth, dtype=torch.bfloat16)
        extended = torch.zeros(-(-columns // WIDE) * WIDE, depth, dtype=torch.bfloat16)
        extended[:columns] = weights
        for rows in ROWS:
            x = torch.randn(rows, depth, dtype=torch.bfloat16)
            torch.testing.assert_close(x @ weights.t(), (x @ extended.t())[:, :columns], rtol=2e-2, atol=0.5)
            calls = (lambda: x @ weights.t(), lambda: x @ extended.t(), lambda: extended[:columns].copy_(weights))  # noqa: B023
            times = [statistics.median(time_launches(call, LAUNCHES, device) for _ in range(BATCHES)) for call in calls]
            own, wide, copy = (1e3 * time for time in times)
            print(f"{depth:6d} {columns:8d} {rows:5d} {own:9.1f} {wide:9.1f} {copy:7.1f}")
    print(f"\n{'tokens':>6} {'depth':>6} {'columns':>8} {'forward':>9} {'extended':>9} {'gradient':>9} {'extended':>9}")
    for tokens in TOKENS:
        for depth, columns in LAYERS:
            times: dict[str, list[float]] = {"forward": [], "gradient": []}
            for rows in (tokens, -(-tokens // WIDE) * WIDE):
                x, y = (torch.randn(rows, width, dtype=torch.bfloat16) for width in (depth, columns))
                weights = torch.randn(columns, depth, dtype=torch.bfloat16)
                for name, call in (("forward", lambda: x @ weights.t()), ("gradient", lambda: y.t() @ x)):  # noqa: B023
                    batches = [time_launches(call, LAUNCHES, device) for _ in range(BATCHES)]
                    times[name].append(1e3 * statistics.median(batches))
            found = "".join(f"{time:9.1f} " for pair in times.values() for time in pair)
            print(f"{tokens:6d} {depth:6d} {columns:8d} {found}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
