"""Times calls on the device, without the host's time, and what the device itself can do."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import triton

SPIN_HERTZ = 1.8e9
"""Steps of the spinning kernel in a second: about the clock of the device."""
HOST_SECONDS = (0.4e-3, 1.6e-3, 6.4e-3, 25.6e-3)
"""What the host gets for a call to fill the queue; the next where it was not enough, as its time would be measured."""
PRODUCT = 8192
"""Rows, columns and depth of the matrix product that tells the rate of arithmetic."""


def machine_name(device: str) -> str:
    """Returns what ran and what it ran on."""
    processor = torch.cuda.get_device_name() if device == "cuda" else "a processor"
    return f"{processor}, torch {torch.__version__}, Triton {triton.__version__}"


def time_launches(call: Callable[[], Any], launches: int, device: str) -> float:
    """Returns milliseconds per call of `launches` queued calls."""
    if device != "cuda":
        started = time.perf_counter()
        for _ in range(launches):
            call()
        return (time.perf_counter() - started) * 1e3 / launches
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for host_seconds in HOST_SECONDS:
        if host_seconds == HOST_SECONDS[-1]:
            launches = max(1, launches // 4)  # the queue itself may have been too short
        torch.cuda.synchronize()
        torch.cuda._sleep(int(launches * host_seconds * SPIN_HERTZ))
        begin.record()
        for _ in range(launches):
            call()
        end.record()
        in_time = not begin.query()
        torch.cuda.synchronize()
        if in_time:
            return begin.elapsed_time(end) / launches
    raise RuntimeError(f"a call takes the host over {HOST_SECONDS[-1] * 1e3:.1f} ms; its device time is not known")


def visible_gpus() -> list[str]:
    """Returns the names of this process's GPUs, for its children's environment."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else list(map(str, range(torch.cuda.device_count())))


def copy_bandwidth(device: str, count: int) -> float:
    """Returns bytes per second, read and written, of copying a buffer of so many bytes."""
    source = torch.randn(count // 4)
    target = torch.empty_like(source)
    times = [time_launches(lambda: target.copy_(source), 8, device) for _ in range(5)]
    return 2 * count / (statistics.median(times) * 1e-3)


def product_rate(device: str, dtype: torch.dtype, scale: int = 1) -> float:
    """Returns operations per second of the library's product of two large square matrices."""
    size = PRODUCT // scale
    a, b = torch.randn(size, size, dtype=dtype), torch.randn(size, size, dtype=dtype)
    times = [time_launches(lambda: a @ b, 4, device) for _ in range(5)]
    return 2 * size**3 / (statistics.median(times) * 1e-3)
