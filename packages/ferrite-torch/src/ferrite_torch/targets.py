"""Facts about the device at hand, as the scheduler takes them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from ferrite_scheduler import Target

# Achievable bytes per second by device name; torch does not report it. Others are taken to be what the default target
# is.
_BANDWIDTH = {"B200": 6.5e12, "H200": 4.0e12, "H100": 2.8e12, "A100": 1.5e12, "RTX 4090": 0.9e12, "L4": 0.27e12}


def target_of(device: str, changes: Mapping[str, Any] | None = None) -> Target:
    """Returns the facts about the current device of a type, with some changed by name.

    Raises:
        ValueError: a change names no fact.
    """
    facts = dict(_cuda_facts(torch.cuda.current_device())) if device == "cuda" and torch.cuda.is_available() else {}
    return Target.from_mapping({**facts, **(changes or {})})


@lru_cache(maxsize=16)
def _cuda_facts(index: int) -> Mapping[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    facts: dict[str, Any] = {
        "name": properties.name,
        "processors": properties.multi_processor_count,
        "warp_size": properties.warp_size,
        "shared_memory": getattr(properties, "shared_memory_per_block_optin", Target().shared_memory),
        "registers": getattr(properties, "regs_per_multiprocessor", Target().registers),
        "l2_bytes": getattr(properties, "L2_cache_size", Target().l2_bytes),
    }
    bandwidth = next((value for name, value in _BANDWIDTH.items() if name in properties.name), None)
    return facts if bandwidth is None else {**facts, "bandwidth": bandwidth}
