"""A training step with hand-written Triton kernels inside: eager, Inductor and Ferrite side by side.

The kernels (`written_kernels.py`) are a fused norm, rotary embedding and a fused cross entropy, with derivatives. Every
backend has to make one forward and one backward graph of the step. Gradients in bfloat16 are compared with those of
eager mode in float32, which launches the same kernels, before anything is timed. Backends have processes of their own,
so that they compile side by side; then they take turns, so that the clock of the GPU is the same for all.

python benchmarks/models/user_kernels.py
python benchmarks/models/user_kernels.py --size tiny --rounds 3
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from benchmarks.models.architectures import DecoderConfig
from benchmarks.reference.written_kernels import KernelDecoder
from benchmarks.tools.backends import compile_with, count_work
from benchmarks.tools.side_by_side import (
    Contender,
    compare,
    keep_record,
    make_step,
    parser_of,
    require_errors,
    whole_graph,
)
from benchmarks.tools.timing import machine_name, time_launches
from benchmarks.tools.tree import add_packages_to_path

SIZES = {
    "full": (DecoderConfig(), 4, 1024),
    "tiny": (DecoderConfig(vocabulary=500, hidden=128, inner=256, layers=2, heads=4, kv_heads=2, max_length=64), 2, 32),
}
"""Sizes of the model, sequences of a batch, and tokens of a sequence."""
MOST = 1.5
"""How many times eager mode's own error (l2) against float32 the largest error of a gradient of ours may be.

Each rounding to bfloat16 is off by up to 2e-3, and backends round at other places: of two layers of width 64 eager mode
is off by 1.1e-2, ours by 1.0e-2; on an H200 Inductor's worst gradient differs by 2e-2 from eager mode's. A wrong kernel
is off by about 1.
"""


def gradients_of(model: torch.nn.Module) -> list[torch.Tensor]:
    """Returns a copy of all gradients in float32."""
    return [parameter.grad.float().clone() for parameter in model.parameters()]


def largest_error(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Returns the largest relative l2 error of any gradient."""
    pairs = zip(found, expected, strict=True)
    return max(float((mine - value).norm() / value.norm().clamp_min(1e-12)) for mine, value in pairs)


def contender(name: str, plan: argparse.Namespace) -> tuple[Contender, Callable[[], Any]]:
    """Returns a backend with its first steps taken.

    Raises:
        SystemExit: it broke the graph.
    """
    add_packages_to_path()
    config, batch, length = SIZES[plan.size]
    torch.manual_seed(0)
    model = KernelDecoder(config).to(plan.device, torch.bfloat16)
    tokens, targets = torch.randint(0, config.vocabulary, (2, batch, length), device=plan.device)
    exact = copy.deepcopy(model).float()
    make_step(exact, exact, tokens, targets)()
    expected = gradients_of(exact)
    step = make_step(model, compile_with(name, model, **whole_graph(name)), tokens, targets)
    torch.cuda.synchronize()
    started = time.perf_counter()
    found = Contender(name, loss=float(step()))
    found.first_seconds = time.perf_counter() - started
    found.error, found.work = largest_error(gradients_of(model), expected), count_work(name)
    if found.work.get("graphs", 1) != 1:
        raise SystemExit(f"{name}: {found.work['graphs']} graphs, one was asked for")
    del exact, expected
    step()
    torch.cuda.reset_peak_memory_stats()
    step()
    found.peak = torch.cuda.max_memory_allocated()
    return found, step


def check(found: list[Contender]) -> None:
    """Fails where gradients of ours are off; those of others are shown beside their rows.

    Raises:
        SystemExit: they are.
    """
    require_errors(found, MOST * found[0].error, "a gradient")


def report(found: list[Contender]) -> str:
    """Returns a table of all backends."""
    lines = [f"{'backend':14}{'ms':>9}{'of eager':>10}{'peak MiB':>10}{'error':>10}{'loss':>9}{'first s':>9}"]
    base = statistics.median(found[0].times)
    for each in found:
        ms = statistics.median(each.times)
        row = f"{each.name:14}{ms:9.3f}{ms / base:10.3f}{each.peak / 2**20:10.0f}"
        remark = "  more than allowed" if not each.error <= MOST * found[0].error else ""
        lines.append(f"{row}{each.error:10.1e}{each.loss:9.4f}{each.first_seconds:9.1f}{remark}")
    named = {each.name: statistics.median(each.times) for each in found}
    if "inductor" in named and "ferrite" in named:
        ratio = named["inductor"] / named["ferrite"]
        lines.append(f"user kernels: Inductor's time over Ferrite's {ratio:.3f} (at least 1.0), one graph each way")
    return "\n".join(lines)


def main() -> int:
    parser = parser_of(__doc__, 8)
    parser.add_argument("--size", choices=tuple(SIZES), default="full")
    plan = parser.parse_args()
    found = compare(plan, contender, check, time_launches, plan.device)
    print(machine_name(plan.device))
    print(report(found))
    keep_record(plan, "user-kernels", size=plan.size, rows=found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
