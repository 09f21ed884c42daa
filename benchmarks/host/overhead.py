"""Measures the host's microseconds per call of tiny compiled functions: what a call costs beside its kernels.

python benchmarks/host/overhead.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor

from benchmarks.tools.backends import compile_with
from benchmarks.tools.tree import add_packages_to_path, results_folder

BATCH = 200


def one_kernel(x: Tensor) -> Tensor:
    return torch.sin(x) + 1.0


def ten_kernels(*inputs: Tensor) -> tuple[Tensor, ...]:
    """Returns ten results of different sizes, which no vertical fusion brings together."""
    return tuple(torch.sin(x) + 1.0 for x in inputs)


def one_kernel_training(x: Tensor) -> Tensor:
    return torch.sin(x) * x


def forward_and_backward(function: Callable[..., Tensor]) -> Callable[..., None]:
    def call(x: Tensor) -> None:
        function(x).backward(x.detach())
        x.grad = None

    return call


def cases() -> dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], bool]]:
    """Returns name -> function, inputs, whether gradients are wanted."""
    return {
        "one kernel": (one_kernel, (torch.randn(64, 64),), False),
        "ten kernels": (ten_kernels, tuple(torch.randn(64, 61 + 3 * i) for i in range(10)), False),
        "forward+backward": (one_kernel_training, (torch.randn(64, 64, requires_grad=True),), True),
    }


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def microseconds(call: Callable[..., Any], inputs: tuple[Tensor, ...], batches: int, device: str) -> list[float]:
    """Returns host microseconds per call, one figure per batch of calls; the device is idle when a batch starts."""
    times = []
    for _ in range(batches):
        wait(device)
        started = time.perf_counter()
        for _ in range(BATCH):
            call(*inputs)
        times.append((time.perf_counter() - started) * 1e6 / BATCH)
    wait(device)
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default="eager,inductor,ferrite")
    parser.add_argument("--batches", type=int, default=15)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=results_folder() / "overhead.json")
    plan = parser.parse_args()
    torch.set_default_device(plan.device)
    results: dict[str, dict[str, Any]] = {}
    for name, (function, inputs, trains) in cases().items():
        results[name] = {}
        for backend in plan.backends.split(","):
            torch._dynamo.reset()
            try:
                compiled = compile_with(backend, function, fullgraph=True, dynamic=False)
                call = forward_and_backward(compiled) if trains else compiled
                with torch.set_grad_enabled(trains):
                    microseconds(call, inputs, 2, plan.device)
                    times = microseconds(call, inputs, plan.batches, plan.device)
                results[name][backend] = {"us": statistics.median(times), "best": min(times)}
            except Exception as error:  # noqa: BLE001 - one backend's failure leaves the others comparable
                results[name][backend] = {"failed": f"{type(error).__name__}: {error}"}
        cells = (
            f"{backend} {found['us']:7.1f} (best {found['best']:.1f})" if "us" in found else f"{backend} FAILED {found}"
            for backend, found in results[name].items()
        )
        print(f"{name:18s} us per call: " + " | ".join(cells), flush=True)
    plan.out.parent.mkdir(parents=True, exist_ok=True)
    plan.out.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    add_packages_to_path()
    sys.exit(main())
