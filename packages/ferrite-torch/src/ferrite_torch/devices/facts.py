"""What torch knows about the device at hand, and is asked to do with it, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch

from ferrite_runtime.errors import DeviceUnavailable

# Achievable bytes per second by device name; torch does not report it. Others are taken to be what the default target
# is.
_BANDWIDTH = {"B200": 6.5e12, "H200": 4.0e12, "H100": 2.8e12, "A100": 1.5e12, "RTX 4090": 0.9e12, "L4": 0.27e12}


def device_facts(device: str) -> dict[str, Any]:
    """Returns the facts about the current device of a type that torch knows, by name."""
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


@lru_cache(maxsize=16)
def _cuda_facts(index: int) -> Mapping[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    facts: dict[str, Any] = {  # None where this torch does not tell: the default target's then
        "name": properties.name,
        "processors": properties.multi_processor_count,
        "warp_size": properties.warp_size,
        "shared_memory": getattr(properties, "shared_memory_per_block_optin", None),
        "registers": getattr(properties, "regs_per_multiprocessor", None),
        "l2_bytes": getattr(properties, "L2_cache_size", None),
    }
    facts["parameter_bytes"] = _parameter_bytes()
    facts["bandwidth"] = next((value for name, value in _BANDWIDTH.items() if name in properties.name), None)
    return {name: fact for name, fact in facts.items() if fact is not None}


def _parameter_bytes() -> int:
    """Returns how many bytes the parameters of a launch may take here; few where no driver of CUDA's says more."""
    from ferrite_runtime.devices.cuda_driver import FEW_PARAMETER_BYTES, cuda_driver  # noqa: PLC0415  # loads a library

    if torch.version.hip is not None:
        return FEW_PARAMETER_BYTES
    try:
        return cuda_driver().parameter_bytes
    except DeviceUnavailable:
        return FEW_PARAMETER_BYTES
