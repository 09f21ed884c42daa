"""A training step of a checkpointed model with dropout: eager, Inductor and Ferrite side by side.

    python benchmarks/models/checkpointed.py
    python benchmarks/models/checkpointed.py --layers 2 --rounds 3

Each of the 12 layers of a GPT (`gpt.py`) is a checkpoint (``torch.utils.checkpoint``) with dropout behind both of its
parts, so that a backward draws the masks of the forward again. What is asked is the memory that a checkpoint promises:
the peak of a step beside eager mode's, and the time beside Inductor's.

First every backend's gradient of a small model in float32 is compared with the slope of the loss along it, for one
seed: other masks in the recomputation would give another gradient. Backends have processes of their own, so that they
compile side by side; then they take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.models.gpt import GPT, Block
from benchmarks.tools.backends import UNCOMPILED, compile_with, count_work
from benchmarks.tools.side_by_side import Contender, compare, make_step, parser_of, require_errors, whole_graph
from benchmarks.tools.timing import machine_name
from benchmarks.tools.tree import add_packages_to_path

DROPPED = 0.1
WIDTH, ROWS, LENGTH = 768, 8, 512
SMALL = (2, 64, 2, 16)
"""Layers, width, rows and length of the model whose gradient is checked."""
STEP, TOLERANCE = 1e-2, 1e-3
"""How far the loss is moved along the normalised gradient, and the relative error of the slope that is allowed.

In float32 eager mode and Ferrite are off by 3e-7 to 4e-7, and eager mode by 8e-3 where it draws other masks in the
recomputation.
"""
PEAK, TIME = 1.02, 1.0
"""Largest peak beside eager mode's, and largest time beside Inductor's."""


class DroppedBlock(Block):
    """A layer with dropout behind attention and behind the feed-forward part."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + nn.functional.dropout(self.attention(self.attention_norm(x)), DROPPED)
        return x + nn.functional.dropout(self.inner(self.inner_norm(x)), DROPPED)


class CheckpointedGPT(GPT):
    """A GPT whose layers are computed again in the backward."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__(layers, width)
        self.blocks = nn.ModuleList(DroppedBlock(width, width // 64) for _ in range(layers))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(self.norm(x)).float().square().mean()


def made(layers: int, width: int, rows: int, length: int) -> tuple[CheckpointedGPT, Tensor]:
    """Returns a model and a batch of token ids, the same for all backends."""
    torch.manual_seed(0)
    return CheckpointedGPT(layers, width).cuda(), torch.randint(0, 512, (rows, length), device="cuda")


def slope_error(name: str) -> float:
    """Returns how far the gradient of a backend is off the slope of its own loss along it, relatively."""
    model, tokens = made(*SMALL)
    torch._dynamo.reset()
    compiled = compile_with(name, model, **whole_graph(name))

    def loss() -> Tensor:
        torch.manual_seed(1)
        found: Tensor = compiled(tokens)
        return found

    loss().backward()
    parameters = list(model.parameters())
    gradients = [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]
    norm = float(sum((each.double() ** 2).sum() for each in gradients)) ** 0.5
    ends = []
    for sign in (1, -2):
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.add_(gradient, alpha=sign * STEP / norm)
        ends.append(float(loss().detach()))
    return abs((ends[0] - ends[1]) / (2 * STEP) / norm - 1)


def contender(name: str, plan: argparse.Namespace) -> tuple[Contender, Callable[[], Tensor]]:
    """Returns a backend with its gradient compared, its first steps taken, and their peak."""
    add_packages_to_path()
    error = slope_error(name)
    model, tokens = made(plan.layers, WIDTH, ROWS, LENGTH)
    model.bfloat16()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    step = make_step(model, compile_with(name, model, **whole_graph(name)), tokens)
    began = time.perf_counter()
    found = Contender(name, error=error, loss=float(step()))
    found.first_seconds = time.perf_counter() - began
    step()
    found.peak = peak_of(model, step)
    found.work = count_work(name)
    return found, step


def peak_of(model: nn.Module, step: Callable[[], Tensor]) -> int:
    """Returns the most bytes that are allocated at once in a step, beyond the models that are there."""
    model.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def step_milliseconds(step: Callable[[], Tensor], steps: int) -> float:
    """Returns what a step takes, the host's time included, after one that is not counted."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    step()
    begin.record()
    for _ in range(steps):
        step()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / steps


def check(found: list[Contender]) -> None:
    """Fails where a gradient of ours is off; those of others are shown beside their rows.

    Raises:
        SystemExit: it is.
    """
    require_errors(found, TOLERANCE, "the slope of the loss along a gradient")


def report(found: list[Contender]) -> str:
    """Returns a table of all backends, and the figures."""
    times = {each.name: statistics.median(each.times) for each in found}
    peaks = {each.name: each.peak for each in found}
    lines = [f"{'backend':12}{'ms':>9}{'peak MiB':>10}{'slope off':>11}{'loss':>9}{'first s':>9}"]
    for each in found:
        row = f"{each.name:12}{times[each.name]:9.3f}{each.peak / 2**20:10.1f}{each.error:11.1e}"
        remark = "  more than allowed" if not each.error <= TOLERANCE else ""
        lines.append(f"{row}{each.loss:9.4f}{each.first_seconds:9.1f}{remark}")
    if "ferrite" in times:
        peak = f"checkpointed: peak {peaks['ferrite'] / peaks[UNCOMPILED]:.3f} of eager's (at most {PEAK:.2f})"
        beside = {name: f"{times['ferrite'] / other:.3f} of {name}'s" for name, other in times.items()}
        beside.pop("ferrite")
        lines.append(f"{peak}, time {', '.join(beside.values())} (of Inductor's at most {TIME:.1f})")
    return "\n".join(lines)


def main() -> int:
    parser = parser_of(__doc__, 4)
    parser.add_argument("--layers", type=int, default=12)
    plan = parser.parse_args()
    found = compare(plan, contender, check, step_milliseconds)
    print(machine_name(plan.device))
    print(report(found))
    plan.out.mkdir(parents=True, exist_ok=True)
    (plan.out / "checkpointed.json").write_text(json.dumps(list(map(asdict, found)), indent=1, default=str))
    return 0


if __name__ == "__main__":
    sys.exit(main())
