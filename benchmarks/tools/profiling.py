"""Counts the device's work in one step, the same way for every backend."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch

LIBRARY = re.compile(
    r"nvjet|cutlass|cudnn|cublas|xmma|gemm|gemv|splitk|flash|fmha|winograd|implicit_convolve|nchwToNhwc|nhwcToNchw"
    r"|multi_tensor|elementwise_kernel|reduce_kernel|at_cuda|_kernel_cuda|Rijk_|ck_|sm\d\d_",
    re.IGNORECASE,
)
IDENTIFIER = re.compile(r"[A-Za-z_]\w*\Z")


def kind_of(name: str) -> str:
    """Returns "copy", "triton" or "library" for a device event, judged by its name.

    Triton kernels keep their Python name; library kernels are mangled templates, or carry a library's mark.
    """
    if name.startswith(("Memcpy", "Memset")):
        return "copy"
    if IDENTIFIER.match(name) and not LIBRARY.search(name):
        return "triton"
    return "library"


def union_length(intervals: Iterable[tuple[float, float]]) -> float:
    """Returns how long at least one of some intervals `(start, end)` lasts, what several share counted once."""
    total, reached = 0.0, -math.inf
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def profile_step(step: Callable[[], Any], device: str, longest: int = 15) -> dict[str, Any]:
    """Returns launches and milliseconds per kind in one step, and the kernels that took longest.

    ``busy_ms`` is the time of all kernels and copies together, ``union_ms`` that in which any of them ran.
    """
    if device != "cuda":
        return {}
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        step()
        torch.cuda.synchronize()
    kinds: dict[str, dict[str, float]] = {}
    kernels = []
    for event in profile.key_averages():
        if event.device_type != torch.autograd.DeviceType.CUDA or getattr(event, "is_user_annotation", False):
            continue
        milliseconds = event.self_device_time_total / 1e3
        total = kinds.setdefault(kind_of(event.key), {"launches": 0, "ms": 0.0})
        total["launches"] += event.count
        total["ms"] += milliseconds
        kernels.append({"name": event.key[:100], "kind": kind_of(event.key), "calls": event.count, "ms": milliseconds})
    kernels.sort(key=lambda kernel: -kernel["ms"])
    spans = [
        (event.time_range.start / 1e3, event.time_range.end / 1e3)
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA and not getattr(event, "is_user_annotation", False)
    ]
    busy = sum(kind["ms"] for kind in kinds.values())
    return {"kinds": kinds, "busy_ms": busy, "union_ms": union_length(spans), "longest": kernels[:longest]}
