"""The library's convolutions row-major (NCHW) and channels-last (NHWC): which is faster where, for random shapes.

    python benchmarks/kernels/convolution_layouts.py --count 60 --seconds 90 --out benchmark-results/layouts.jsonl
    python benchmarks/kernels/convolution_layouts.py --dims 1,2 --transposed 0.5 --kinds bfloat16,tf32
    python benchmarks/kernels/convolution_layouts.py --channels 3,4,6,8,12 --kinds tf32

A line of JSON per convolution: microseconds of the convolution (and of its backward) with everything in one layout and
in the other, and the errors beside float64, which tell where only one of them is computed in TF32. `ferrite_torch`
reads nothing of it; the rule that it keeps was made from such a table.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.kernels.results import geomean
from benchmarks.tools.timing import machine_name, time_launches

KINDS = ("bfloat16", "float16", "tf32", "float32")
CHANNELS = (3, 8, 16, 24, 32, 48, 64, 96, 128, 160, 256, 320, 512, 1024)
MEMORY = {4: torch.channels_last, 5: torch.channels_last_3d}
EXTENTS = {
    1: (128, 500, 1024, 1500, 4096, 8000),
    2: (7, 14, 28, 32, 56, 64, 112, 224),
    3: (4, 8, 14, 16, 19, 28),
}


def numbers_in(text: str) -> list[int]:
    """Returns the numbers of a list with commas."""
    return [int(word) for word in text.split(",")]


def drawn(numbers: random.Random, plan: argparse.Namespace) -> dict[str, Any]:
    """Returns a convolution: batch, channels, extents, kernel, stride, groups, and whether transposed.

    Those of one dim are convolutions of images of one row, as torch computes them.
    """
    dims = numbers.choice(plan.dims)
    kernel = numbers.choice((1, 1, 2, 3, 3, 3, 4, 5, 7))
    into = numbers.choice(plan.channels)
    out = numbers.choice((8, 16, 24, 32, 64, 96, 128, 256, 512, 1024))
    grouping = numbers.choice(("none", "none", "none", "depthwise", "grouped"))
    groups = 1
    if grouping == "depthwise" and into > 3:
        groups, out = into, into
    elif grouping == "grouped" and into % 8 == 0 and out % 8 == 0:
        groups = numbers.choice((2, 4, 8))
    extent = numbers.choice(EXTENTS[dims])
    batch = numbers.choice((1, 2, 8, 10, 32, 128))
    while batch > 1 and batch * max(into, out) * extent**dims > 1 << 25:
        batch //= 2
    if batch * into * out // groups * (extent * kernel) ** dims > 3 << 34:
        return drawn(numbers, plan)  # as many operations as take the library whole milliseconds
    return {
        "dims": dims,
        "batch": batch,
        "into": into,
        "out": out,
        "extent": extent,
        "kernel": kernel,
        "stride": numbers.choice((1, 1, 2)),
        "groups": groups,
        "transposed": groups == 1 and numbers.random() < plan.transposed,
    }


def microseconds(call: Callable[[], Any]) -> float:
    """Returns the median time of a call on the GPU."""
    time_launches(call, 2, "cuda")  # the library chooses a kernel
    return statistics.median(time_launches(call, 4, "cuda") for _ in range(5)) * 1e3


def measured(case: dict[str, Any], kind: str) -> dict[str, float]:
    """Returns microseconds by layout, forward and backward, and errors of results, as a share of their size."""
    dtype = torch.float32 if kind in ("tf32", "float32") else getattr(torch, kind)
    torch.backends.cudnn.allow_tf32 = kind == "tf32"
    dims, groups = case["dims"], case["groups"]

    def each(size: int, of_row: int) -> list[int]:
        return [of_row, size] if dims == 1 else [size] * dims

    x = torch.randn(case["batch"], case["into"], *each(case["extent"], 1), device="cuda", dtype=dtype)
    ends = (case["into"], case["out"]) if case["transposed"] else (case["out"], case["into"])
    weight = torch.randn(ends[0], ends[1] // groups, *each(case["kernel"], 1), device="cuda", dtype=dtype)
    stride, padding = each(case["stride"], 1), each(case["kernel"] // 2, 0)
    given = (stride, padding, [1] * len(stride), case["transposed"], [0] * len(stride), groups)
    found: dict[str, float] = {}
    for layout, memory in (("nchw", torch.contiguous_format), ("nhwc", MEMORY[x.dim()])):
        image, filters = x.contiguous(memory_format=memory), weight.contiguous(memory_format=memory)
        out = torch.ops.aten.convolution(image, filters, None, *given)
        if layout == "nchw":
            exact = torch.ops.aten.convolution(image.double(), filters.double(), None, *given)
            found["bytes"] = (x.numel() + out.numel()) * x.element_size()
            found["gflop"] = 2e-9 * (x if case["transposed"] else out).numel() * weight[0].numel()
        found[f"{layout}_error"] = float((out - exact).norm() / exact.norm())
        found[layout] = microseconds(partial(torch.ops.aten.convolution, image, filters, None, *given))
        operands = (torch.randn_like(out), image, filters, None, *given, (True, True, False))
        found[f"{layout}_backward"] = microseconds(partial(torch.ops.aten.convolution_backward, *operands))
    return found


def main() -> int:
    """Measures, writes lines, and prints for each kind of convolution how often and by how much a layout is faster."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--dims", type=numbers_in, default=[2, 2, 3], help="spatial dims that are drawn among")
    parser.add_argument("--channels", type=numbers_in, default=CHANNELS, help="of the images that go in")
    parser.add_argument("--transposed", type=float, default=0.15, help="share of those without groups")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--out", type=Path, default=Path("benchmark-results/convolution_layouts.jsonl"))
    chosen = parser.parse_args()
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    numbers, until, rows = random.Random(chosen.seed), time.monotonic() + chosen.seconds, []
    with chosen.out.open("w") as lines:
        for _ in range(chosen.count):
            case = drawn(numbers, chosen)
            for kind in chosen.kinds.split(","):
                if time.monotonic() > until:
                    break
                try:
                    row = case | {"kind": kind} | measured(case, kind)
                except RuntimeError as error:
                    print(case, kind, str(error)[:100])
                    continue
                rows.append(row)
                lines.write(json.dumps(row) + "\n")
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        grouping = "depthwise" if row["groups"] == row["into"] else "grouped" if row["groups"] > 1 else "whole"
        few = "few channels" if min(row["into"], row["out"]) < 16 else ""
        key = (row["kind"], row["dims"], grouping, "transposed" if row["transposed"] else "", few)
        groups.setdefault(key, []).append(row)
    print(f"{machine_name('cuda')}: time row-major over time channels-last")
    for key, found in sorted(groups.items()):
        text = []
        for suffix in ("", "_backward"):
            ratios = sorted(row[f"nchw{suffix}"] / row[f"nhwc{suffix}"] for row in found)
            text.append(f"{geomean(ratios):5.2f} ({ratios[0]:.2f}..{ratios[-1]:.2f})")
        print(f"{' '.join(map(str, key)):45} {len(found):3}  forward {text[0]}  backward {text[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
