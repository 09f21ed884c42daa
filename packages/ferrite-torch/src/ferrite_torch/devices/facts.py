"""What torch knows about the device at hand, and is asked to do with it, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch

from ferrite_runtime.devices import descriptors
from ferrite_runtime.devices.descriptors import DeviceFacts
from ferrite_runtime.errors import DeviceUnavailable

HOPPER = "sm_90"
"""The target whose tensor cores read factors from shared memory (``wgmma``)."""


def device_facts(device: str) -> dict[str, Any]:
    """Returns the facts about the current device of a type, by the names of the scheduler's target; none of the CPU."""
    return dict(_cuda_facts(torch.cuda.current_device())) if device == "cuda" and torch.cuda.is_available() else {}


def convolution_precision() -> str:
    """Returns what the library's convolutions of float32 compute in: ``tf32``, ``ieee``, or ``none`` for no wish.

    The older name ``cudnn.allow_tf32`` says so too, and raises where convolutions and recurrent nets differ.
    """
    cudnn: Any = torch.backends.cudnn
    return str(cudnn.conv.fp32_precision)


def product_precision() -> str:
    """Returns what the library's products of float32 compute in on a GPU: ``tf32``, ``ieee``, or ``none`` for no wish.

    The older name ``torch.get_float32_matmul_precision`` says so too, and raises where the newer one was set.
    """
    return str(torch.backends.cuda.matmul.fp32_precision)


def splits_factors() -> bool:
    """Returns whether products of float32 in parts of TF32 are faster here than whole: on Hopper, by measurement.

    A process that has not used its GPU, or the child of one that has, is not made to do so.
    """
    is_used: Callable[[], bool] = torch.cuda.is_initialized
    if torch.version.hip is not None or not is_used():
        return False
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}" == HOPPER


def fills_memory() -> bool:
    """Returns whether eager mode fills memory that has no contents yet, so that nothing depends on what it held."""
    deterministic: Any = torch.utils.deterministic  # has a property, which type checkers do not see
    return torch.are_deterministic_algorithms_enabled() and bool(deterministic.fill_uninitialized_memory)


def lacking_types() -> frozenset[torch.dtype]:
    """Returns the types of eight bits that kernels cannot have as elements here.

    AMD's two are no GPU's of NVIDIA, and the one with four exponent bits came with compute capability 8.9. A process
    that has not used its GPU, or the child of one that has, is not made to do so.
    """
    is_used: Callable[[], bool] = torch.cuda.is_initialized
    return _types_lacking(is_old=is_used() and torch.cuda.get_device_capability() < (8, 9))


@lru_cache(maxsize=2)
def _types_lacking(*, is_old: bool) -> frozenset[torch.dtype]:
    if torch.version.hip is not None:
        return frozenset()
    amd = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
    return frozenset((*amd, torch.float8_e4m3fn) if is_old else amd)


def described_facts(described: DeviceFacts) -> dict[str, Any]:
    """Returns what the runtime knows of a GPU by the names of the scheduler's target."""
    return {
        "name": described.name,
        "processors": described.multiprocessors,
        "warp_size": described.target.warp_size,
        "shared_memory": described.shared_per_program,
        "registers": described.registers_per_multiprocessor,
        "l2_bytes": described.l2_bytes,
        "bandwidth": float(described.bandwidth),
        "lane_operations": float(described.lane_operations),
        "tensor_operations": float(described.tensor_operations),
    }


@lru_cache(maxsize=16)
def _cuda_facts(index: int) -> Mapping[str, Any]:
    return {**described_facts(descriptors.device_facts(index)), "parameter_bytes": _parameter_bytes()}


def _parameter_bytes() -> int:
    """Returns how many bytes the parameters of a launch may take here; few where no driver of CUDA's says more."""
    from ferrite_runtime.devices.cuda_driver import FEW_PARAMETER_BYTES, cuda_driver  # noqa: PLC0415  # loads a library

    if torch.version.hip is not None:
        return FEW_PARAMETER_BYTES
    try:
        return cuda_driver().parameter_bytes
    except DeviceUnavailable:
        return FEW_PARAMETER_BYTES
