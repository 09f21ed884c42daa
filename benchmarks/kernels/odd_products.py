"""Measures what odd extents cost the library's products, and what extending an operand costs instead.

    python benchmarks/kernels/odd_products.py
    python benchmarks/kernels/odd_products.py --only returned

Prints microseconds of products of a few rows by the columns of a vocabulary, as it is and extended to a multiple of 64,
and of the copy that extends the weights; then of products of an odd number of tokens, which are rows in "forward" and
added up in "gradient", as they are and of the next multiple of 64; then of layers of odd extents that are drawn from a
seed, in bfloat16, TF32 and float32, as they are and with both extents that lie along memory extended to whole 16 bytes,
and of the copies for that. `ferrite_torch.lowering.products.matrix_products` weighs one against the other. Last come
results that the user gets, whose rows lie one behind the other: in eager mode, by Inductor (whose rows are longer), and
by Ferrite, in strips of the library's (`ferrite-library`) and in a kernel of its own.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from benchmarks.tools.backends import compile_with
from benchmarks.tools.timing import time_launches

SHAPES = ((768, 50257), (2048, 50257), (768, 30522))
ROWS = (16, 32, 64, 128, 192, 256, 512)
TOKENS = (231, 3577, 12805)
LAYERS = ((768, 768), (768, 3072), (3072, 768))
WIDE = 64
RETURNED = (
    (4096, 50257, 768, torch.bfloat16),
    (1024, 50257, 768, torch.bfloat16),
    (2048, 32003, 4096, torch.bfloat16),
    (8192, 30522, 1024, torch.float16),
    (4096, 30522, 768, torch.float32),
    (1024, 51865, 512, torch.float32),
)
"""Rows, columns and depth of results that users get; float32 is TF32."""
BACKENDS = ("eager", "inductor", "ferrite-library", "ferrite")
SETS = ("vocabularies", "drawn", "returned")
LAUNCHES, BATCHES = 20, 5
TYPES = {"bfloat16": torch.bfloat16, "tf32": torch.float32, "float32": torch.float32}
DRAWN, VECTOR_BYTES = 12, 16
TOLERANCE = 1e-2
"""Of the largest result: two roundings to bfloat16, which has eight bits, in sums of another order."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the layers that are drawn")
    parser.add_argument("--only", choices=SETS, nargs="+", default=SETS)
    chosen = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_default_device(device)
    if "vocabularies" in chosen.only:
        print_vocabularies(device)
    if "drawn" in chosen.only:
        print_drawn(device, chosen.seed)
    if "returned" in chosen.only:
        print_returned(device)
    return 0


def print_returned(device: str) -> None:
    """Prints the times of results that users get, each checked against a part of it in float64."""
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    print(f"\n{'rows':>6} {'columns':>8} {'depth':>6} {'type':>9}", *(f"{name:>16}" for name in BACKENDS))
    for rows, columns, depth, dtype in RETURNED:
        x, weights = torch.randn(rows, depth, dtype=dtype), torch.randn(columns, depth, dtype=dtype)
        exact = x[:WIDE].double() @ weights.double().t()
        times = []
        for name in BACKENDS:
            torch._dynamo.reset()
            product = compile_with(name, torch.nn.functional.linear, dynamic=False)
            error = float((product(x, weights)[:WIDE].double() - exact).norm() / exact.norm())
            if error > TOLERANCE:
                raise ArithmeticError(f"{rows} by {columns} by {depth} by {name}: off by {error:.1e}")
            times.append(microseconds(lambda: product(x, weights), device))  # noqa: B023
        told = (f"{time:16.1f}" for time in times)
        print(f"{rows:6d} {columns:8d} {depth:6d} {str(dtype)[6:]:>9}", *told, flush=True)


def print_drawn(device: str, seed: int) -> None:
    """Prints the times of layers of odd extents."""
    numbers = random.Random(seed)
    layers = [tuple(int(2 ** numbers.uniform(5, 12)) | 1 for _ in range(3)) for _ in range(DRAWN)]
    for name, dtype in TYPES.items():
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        print(f"\n{name:>9} {'rows':>6} {'columns':>8} {'depth':>6} {'as it is':>9} {'extended':>9} {'copies':>7}")
        for rows, columns, depth in layers:
            unit = VECTOR_BYTES // dtype.itemsize
            wide, deep = (-(-size // unit) * unit for size in (columns, depth))
            x, weights = torch.randn(rows, depth, dtype=dtype), torch.randn(columns, depth, dtype=dtype)
            long_x, long_weights = torch.zeros(rows, deep, dtype=dtype), torch.zeros(wide, deep, dtype=dtype)

            def extend() -> None:
                long_x[:, :depth].copy_(x)  # noqa: B023
                long_weights[:columns, :depth].copy_(weights)  # noqa: B023

            extend()
            expected, found = x @ weights.t(), (long_x @ long_weights.t())[:, :columns]
            error = float((found - expected).abs().max() / expected.abs().max())
            if error > TOLERANCE:
                raise ArithmeticError(f"{rows} by {columns} by {depth} in {name}: off by {error:.1e} of the largest")
            calls = (lambda: x @ weights.t(), lambda: long_x @ long_weights.t(), extend)  # noqa: B023
            own, extended, copies = (microseconds(call, device) for call in calls)
            print(f"{'':9} {rows:6d} {columns:8d} {depth:6d} {own:9.1f} {extended:9.1f} {copies:7.1f}")


def microseconds(call: Callable[[], object], device: str) -> float:
    """Returns the median microseconds of a call."""
    return 1e3 * statistics.median(time_launches(call, LAUNCHES, device) for _ in range(BATCHES))


def print_vocabularies(device: str) -> None:
    """Prints the times of products by the columns of a vocabulary, and of an odd number of tokens."""
    print(f"{'depth':>6} {'columns':>8} {'rows':>5} {'as it is':>9} {'extended':>9} {'copy':>7}")
    for depth, columns in SHAPES:
        weights = torch.randn(columns, depth, dtype=torch.bfloat16)
        extended = torch.zeros(-(-columns // WIDE) * WIDE, depth, dtype=torch.bfloat16)
        extended[:columns] = weights
        for rows in ROWS:
            x = torch.randn(rows, depth, dtype=torch.bfloat16)
            torch.testing.assert_close(x @ weights.t(), (x @ extended.t())[:, :columns], rtol=2e-2, atol=0.5)
            calls = (lambda: x @ weights.t(), lambda: x @ extended.t(), lambda: extended[:columns].copy_(weights))  # noqa: B023
            own, wide, copy = (microseconds(call, device) for call in calls)
            print(f"{depth:6d} {columns:8d} {rows:5d} {own:9.1f} {wide:9.1f} {copy:7.1f}")
    print(f"\n{'tokens':>6} {'depth':>6} {'columns':>8} {'forward':>9} {'extended':>9} {'gradient':>9} {'extended':>9}")
    for tokens in TOKENS:
        for depth, columns in LAYERS:
            times: dict[str, list[float]] = {"forward": [], "gradient": []}
            for rows in (tokens, -(-tokens // WIDE) * WIDE):
                x, y = (torch.randn(rows, width, dtype=torch.bfloat16) for width in (depth, columns))
                weights = torch.randn(columns, depth, dtype=torch.bfloat16)
                for name, call in (("forward", lambda: x @ weights.t()), ("gradient", lambda: y.t() @ x)):  # noqa: B023
                    times[name].append(microseconds(call, device))
            found = "".join(f"{time:9.1f} " for pair in times.values() for time in pair)
            print(f"{tokens:6d} {depth:6d} {columns:8d} {found}")


if __name__ == "__main__":
    sys.exit(main())
