"""Measures one compilation for many sizes against one compilation for each size, and against the opponent's both.

    python benchmarks/dynamic.py                                     # kernels and models, on a GPU
    python benchmarks/dynamic.py --kernels "layer norm" --models gpt2 --modes inference
    python benchmarks/dynamic.py --device cpu --tiny                 # does it run: no times worth reading

Every backend gets the same sizes in the same order, small and odd ones among them. "Dynamic" compiles with
``dynamic=True`` and keeps what it compiled over the whole sweep; "static" compiles for each size anew. Results are
compared with eager first. Compilations are counted by dynamo, per captured graph.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backends import compile_with
from kernels import time_launches
from workloads import WORKLOADS, Loss

BACKENDS = {
    "eager": ("eager", None),
    "inductor dynamic": ("inductor", True),
    "inductor static": ("inductor", False),
    "ferrite dynamic": ("ferrite", True),
    "ferrite static": ("ferrite", False),
}
ROWS = (2, 3, 7, 64, 100, 127, 128, 129, 1000, 1023, 1024, 1025, 4096, 5000, 8191, 8192, 8193, 16384, 20000, 32768)
SEQUENCES = ((1, 128), (2, 512), (3, 77), (4, 250), (5, 256), (7, 511), (8, 1023), (8, 1024), (6, 384), (2, 1000),
             (16, 33), (12, 640))  # fmt: skip
IMAGES = ((1, 224), (3, 224), (7, 192), (16, 160), (31, 128), (32, 224), (64, 128), (33, 96), (48, 224), (65, 224),
          (100, 64), (128, 224))  # fmt: skip
PATCHED = tuple((batch, 224) for batch, _ in IMAGES)
TINY = ((2, 16), (3, 16), (4, 13), (5, 16))


@dataclass(frozen=True, slots=True)
class Sweep:
    """Something to run at several sizes; `run` returns what is compared with eager's."""

    name: str
    make: Callable[[tuple[int, ...]], tuple[Any, ...]]
    function: Callable[..., Any]
    sizes: Sequence[tuple[int, ...]]
    tolerance: float


def kernel_sweeps(plan: argparse.Namespace) -> Iterator[Sweep]:
    width, dtype = 1000, torch.float32 if plan.device == "cpu" else torch.bfloat16
    sizes = [(count,) for count in (ROWS[:4] if plan.tiny else ROWS)]

    def matrix(size: tuple[int, ...]) -> tuple[Tensor, ...]:
        return (torch.randn(*size, width, dtype=dtype, device=plan.device),)

    def pair(size: tuple[int, ...]) -> tuple[Tensor, ...]:
        return (*matrix(size), *matrix(size))

    def columns(size: tuple[int, ...]) -> tuple[Tensor, ...]:
        return (torch.randn(512, *size, dtype=dtype, device=plan.device),)

    cases: dict[str, tuple[Callable[..., Any], Callable[[tuple[int, ...]], tuple[Tensor, ...]]]] = {
        "gelu": (lambda x: F.gelu(x * 2 + 1), matrix),
        "layer norm": (lambda x: F.layer_norm(x, (width,)), matrix),
        "softmax": (lambda x: torch.softmax(x, -1), matrix),
        "softmax of any length": (lambda x: torch.softmax(x, -1), columns),
        "rms norm of any length": (lambda x: x * torch.rsqrt(x.float().square().mean(-1, True) + 1e-6), columns),
        "transpose": (lambda x: (x + 1).t().contiguous(), matrix),
        "cat": (lambda x, y: torch.cat([x, y * 2], 1), pair),
        "column sums": (lambda x: x.float().sum(0), matrix),
    }
    for name, (function, make) in cases.items():
        if not plan.kernels or name in plan.kernels:
            yield Sweep(name, make, function, sizes, 2e-2 if dtype is torch.bfloat16 else 1e-3)


def model_sweeps(plan: argparse.Namespace) -> Iterator[Sweep]:
    dtype = torch.float32 if plan.device == "cpu" else torch.bfloat16
    for name in plan.models:
        workload = WORKLOADS[name]
        is_image = name in ("vit", "resnet50")
        sizes = (PATCHED if name == "vit" else IMAGES) if is_image else SEQUENCES
        if plan.tiny:
            sizes = tuple((batch, 32) for batch, _ in TINY) if is_image else TINY
        _, labels = workload.feed("tiny" if plan.tiny else "full")
        top = int(labels.max())

        def make(size: tuple[int, ...], *, is_image: bool = is_image, top: int = top) -> tuple[Any, ...]:
            batch, length = size
            if is_image:
                given = torch.randn(batch, 3, length, length, device=plan.device, dtype=dtype)
                return given, torch.randint(top, (batch,), device=plan.device)
            return tuple(torch.randint(top, size, device=plan.device) for _ in range(2))

        for mode in plan.modes:
            torch.manual_seed(0)
            model = workload.build("tiny" if plan.tiny else "full").to(plan.device, dtype)
            yield Sweep(f"{name} {mode}", make, step_of(Loss(model), mode), sizes, 5e-2)


def step_of(model: nn.Module, mode: str) -> Callable[..., Any]:
    """Returns a function of a batch and its labels; what it calls is compiled by `compiled_step`."""
    model = model.eval() if mode == "inference" else model.train()
    parameters = list(model.parameters())

    def step(batch: Tensor, labels: Tensor) -> Tensor:
        if mode == "inference":
            with torch.no_grad():
                return step.call(batch, labels)  # type: ignore[attr-defined]
        loss = step.call(batch, labels)  # type: ignore[attr-defined]
        loss.backward()
        for parameter in parameters:
            parameter.grad = None
        return loss.detach()

    step.call = step.model = model  # type: ignore[attr-defined]
    return step


def prepared(sweep: Sweep, backend: str, *, dynamic: bool | None) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Returns what a sweep calls, compiled by a backend, and the same in eager."""
    model = getattr(sweep.function, "model", None)
    options = {} if dynamic is None else {"dynamic": dynamic}
    if model is None:
        return compile_with(backend, sweep.function, **options), sweep.function
    compiled = compile_with(backend, model, **options)

    def through(chosen: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            sweep.function.call = chosen  # type: ignore[attr-defined]
            return sweep.function(*given)

        return call

    return through(compiled), through(model)


def measure(sweep: Sweep, label: str, plan: argparse.Namespace) -> tuple[dict[tuple[int, ...], float], int]:
    """Returns milliseconds by size, and the number of graphs compiled."""
    from torch._dynamo.utils import counters

    backend, dynamic = BACKENDS[label]
    torch._dynamo.reset()
    counters.clear()
    times: dict[tuple[int, ...], float] = {}
    graphs = 0
    call, exact = prepared(sweep, backend, dynamic=dynamic)
    for size in sweep.sizes:
        if dynamic is False:
            torch._dynamo.reset()
            graphs += counters["stats"]["unique_graphs"]
            counters.clear()
            call, exact = prepared(sweep, backend, dynamic=dynamic)
        given = sweep.make(size)
        for _ in range(3):
            got = call(*given)
        torch.testing.assert_close(got, exact(*given), rtol=sweep.tolerance, atol=sweep.tolerance)
        repeats = [time_launches(lambda: call(*given), plan.launches, plan.device) for _ in range(3)]  # noqa: B023
        times[size] = statistics.median(repeats)
    return times, graphs + counters["stats"]["unique_graphs"]


def report(sweep: Sweep, plan: argparse.Namespace) -> dict[str, dict[tuple[int, ...], float]]:
    """Measures every backend on a sweep and prints a line for each size."""
    found: dict[str, dict[tuple[int, ...], float]] = {}
    for label in plan.backends:
        try:
            found[label], graphs = measure(sweep, label, plan)
            print(f"{sweep.name}: {label}: {graphs} graphs", flush=True)
        except Exception as error:  # noqa: BLE001 - a backend that fails is a result
            print(f"{sweep.name}: {label}: FAILED {type(error).__name__}: {str(error)[:300]}", flush=True)
    for size in sweep.sizes:
        cells = [f"{label} {times[size]:.4f}" for label, times in found.items() if size in times]
        print(f"  {'x'.join(map(str, size)):>10}  {'  '.join(cells)}", flush=True)
    return found


def ratio_text(name: str, ratios: Sequence[float]) -> str:
    if not ratios:
        return f"{name}: not measured"
    return f"{name}: {math.exp(statistics.fmean(map(math.log, ratios))):.3f}x in geomean, {max(ratios):.3f}x at worst"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", nargs="*", default=[])
    parser.add_argument("--models", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--modes", nargs="*", default=["inference", "training"])
    parser.add_argument("--backends", nargs="*", default=list(BACKENDS))
    parser.add_argument("--only", choices=["kernels", "models"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--launches", type=int, default=20)
    parser.add_argument("--tiny", action="store_true")
    plan = parser.parse_args()
    torch._dynamo.config.recompile_limit = 64
    sweeps = [] if plan.only == "models" else list(kernel_sweeps(plan))
    verdicts: dict[str, list[float]] = {"ferrite static": [], "inductor dynamic": []}
    for sweep in (*sweeps, *(() if plan.only == "kernels" else model_sweeps(plan))):
        found = report(sweep, plan)
        mine = found.get("ferrite dynamic", {})
        for other, ratios in verdicts.items():
            own = [mine[size] / time for size, time in found.get(other, {}).items() if size in mine]
            print("  " + ratio_text(f"ferrite dynamic over {other}", own), flush=True)
            ratios.extend(own)
    for other, ratios in verdicts.items():
        print(ratio_text(f"ferrite dynamic over {other}, all", ratios))
    return 0


if __name__ == "__main__":
    sys.exit(main())
