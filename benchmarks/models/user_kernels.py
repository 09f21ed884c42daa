"""A training step with hand-written Triton kernels inside: eager, Inductor and Ferrite side by side.

The kernels (`written_kernels.py`) are a fused norm, rotary embedding and a fused cross entropy, with derivatives. Every
backend has to make one forward and one backward graph of the step; losses and gradients are compared with eager's,
which launches the same kernels, before anything is timed. Backends take turns, so that the clock of the GPU is the same
for all.

python benchmarks/models/user_kernels.py
python benchmarks/models/user_kernels.py --size tiny --rounds 3
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import os

import torch

from benchmarks.models.architectures import DecoderConfig
from benchmarks.models.written_kernels import KernelDecoder
from benchmarks.tools.backends import UNCOMPILED, compile_with, count_work
from benchmarks.tools.timing import machine_name, time_launches
from benchmarks.tools.tree import add_packages_to_path, caches_in, results_folder
from benchmarks.tools.turns import Turn

SIZES = {
    "full": (DecoderConfig(), 4, 1024),
    "tiny": (DecoderConfig(vocabulary=500, hidden=128, inner=256, layers=2, heads=4, kv_heads=2, max_length=64), 2, 32),
}
"""Sizes of the model, sequences of a batch, and tokens of a sequence."""
TOLERANCE = {torch.bfloat16: 2e-2, torch.float32: 1e-4}
"""Largest relative error (l2) of any gradient against eager's: the kernels are the same, sums between them are not."""


@dataclass(slots=True)
class Contender:
    """One backend: its step, what it counted, and its times in milliseconds."""

    name: str
    step: Callable[[], torch.Tensor]
    first_seconds: float = 0.0
    error: float = 0.0
    loss: float = 0.0
    work: dict[str, Any] = field(default_factory=dict)
    peak: int = 0
    times: list[float] = field(default_factory=list)


def make_step(model: torch.nn.Module, compiled: Callable[..., Any], tokens: Any, targets: Any) -> Callable[[], Any]:
    """Returns a forward and a backward pass; it leaves gradients in the model, and returns the loss."""

    def step() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        loss = compiled(tokens, targets)
        loss.backward()
        return loss.detach()

    return step


def gradients_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns a copy of all gradients by name."""
    return {name: parameter.grad.double().cpu() for name, parameter in model.named_parameters()}


def largest_error(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Returns the largest relative l2 error of any gradient."""
    return max(float((found[name] - value).norm() / value.norm().clamp_min(1e-12)) for name, value in expected.items())


def contenders(plan: argparse.Namespace) -> list[Contender]:
    """Returns all backends with their first step taken and checked.

    Raises:
        SystemExit: a backend broke the graph, or its gradients are not eager's.
    """
    config, batch, length = SIZES[plan.size]
    dtype = getattr(torch, plan.dtype)
    torch.manual_seed(0)
    model = KernelDecoder(config).to(plan.device, dtype)
    tokens, targets = torch.randint(0, config.vocabulary, (2, batch, length), device=plan.device)
    expected: dict[str, torch.Tensor] = {}
    found: list[Contender] = []
    for name in (UNCOMPILED, *(each for each in plan.backends if each != UNCOMPILED)):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        options = {} if name == UNCOMPILED else {"fullgraph": True}
        step = make_step(model, compile_with(name, model, **options), tokens, targets)
        contender = Contender(name, step)
        torch.cuda.synchronize()
        started = time.perf_counter()
        contender.loss = float(step())
        contender.first_seconds = time.perf_counter() - started
        step()
        torch.cuda.reset_peak_memory_stats()
        step()
        contender.peak = torch.cuda.max_memory_allocated()
        gradients = gradients_of(model)
        expected = expected or gradients
        contender.error, contender.work = largest_error(gradients, expected), count_work(name)
        if contender.error > TOLERANCE[dtype]:
            raise SystemExit(f"{name}: a gradient is off by {contender.error:.2e}, {TOLERANCE[dtype]:.0e} is allowed")
        if contender.work.get("graphs", 1) != 1:
            raise SystemExit(f"{name}: {contender.work['graphs']} graphs, one was asked for")
        found.append(contender)
    return found


def measure(found: list[Contender], plan: argparse.Namespace) -> None:
    """Times all backends in turns, when no other process that names the same lock does."""
    Turn(plan.lock).take()
    for _ in range(plan.rounds):
        for contender in found:
            contender.times.append(time_launches(contender.step, plan.steps, plan.device))


def report(found: list[Contender]) -> str:
    """Returns a table of all backends."""
    lines = [f"{'backend':14}{'ms':>9}{'of eager':>10}{'peak MiB':>10}{'error':>10}{'loss':>9}{'first s':>9}"]
    base = statistics.median(found[0].times)
    for each in found:
        ms = statistics.median(each.times)
        row = f"{each.name:14}{ms:9.3f}{ms / base:10.3f}{each.peak / 2**20:10.0f}"
        lines.append(f"{row}{each.error:10.1e}{each.loss:9.4f}{each.first_seconds:9.1f}")
    named = {each.name: statistics.median(each.times) for each in found}
    if "inductor" in named and "ferrite" in named:
        lines.append(f"Inductor's time over Ferrite's: {named['inductor'] / named['ferrite']:.3f} (at least 1.0)")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", default=["inductor", "ferrite"])
    parser.add_argument("--size", choices=tuple(SIZES), default="full")
    parser.add_argument("--device", choices=("cuda",), default="cuda")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--rounds", type=int, default=9, help="turns of all backends")
    parser.add_argument("--steps", type=int, default=8, help="steps in a turn")
    parser.add_argument("--lock", type=Path, help="a file; processes that name it time one after the other")
    parser.add_argument("--out", type=Path, default=results_folder())
    plan = parser.parse_args()
    add_packages_to_path()
    with tempfile.TemporaryDirectory() as fresh:
        os.environ.update(caches_in(Path(fresh)))
        found = contenders(plan)
        measure(found, plan)
    print(machine_name(plan.device))
    print(report(found))
    plan.out.mkdir(parents=True, exist_ok=True)
    rows = [{name: getattr(each, name) for name in Contender.__slots__ if name != "step"} for each in found]
    record = {"machine": machine_name(plan.device), "size": plan.size, "dtype": plan.dtype, "rows": rows}
    (plan.out / "user-kernels.json").write_text(json.dumps(record, indent=1, default=str))
    return 0


if __name__ == "__main__":
    sys.exit(main())
