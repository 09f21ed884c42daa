"""What the CUDA engine asks torch about devices and streams, as a port."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Platform:
    """Functions on devices by index.

    Attributes:
        current_stream: the address of a device's current stream.
        current_device: the current device.
        device_count: the number of devices.
        on_device: a context in which a device is current.
        prepare: makes a device's context exist, and current in this thread.
        is_capturing: whether the current stream is recorded as a graph.
    """

    current_stream: Callable[[int], int]
    current_device: Callable[[], int]
    device_count: Callable[[], int]
    on_device: Callable[[int], AbstractContextManager[Any]]
    prepare: Callable[[int], Any]
    is_capturing: Callable[[], bool]


def torch_platform() -> Platform:
    """Returns torch's devices; the first two functions are the bare ones, without torch's Python around them."""
    import torch

    return Platform(
        current_stream=torch._C._cuda_getCurrentRawStream,
        current_device=torch._C._cuda_getDevice,
        device_count=torch.cuda.device_count,
        on_device=torch.cuda.device,
        # A call of the CUDA runtime that does nothing to the device: it binds the context to the calling thread.
        prepare=torch.cuda.mem_get_info,
        is_capturing=torch.cuda.is_current_stream_capturing,
    )


def rank_board() -> tuple[int, Any] | None:
    """Returns this process's rank and the key-value store of its process group; None where there is none."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return None
    return dist.get_rank(), dist.distributed_c10d._get_default_store()
