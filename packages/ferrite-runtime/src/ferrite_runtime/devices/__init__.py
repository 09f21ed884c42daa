"""Facts about GPUs, as data: a descriptor file per device, and what torch tells about the one at hand."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from ferrite_runtime.fields import Fields
from ferrite_runtime.target import Target, device_target


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What config policies know of a device; sizes in bytes, bandwidth in bytes per second."""

    name: str
    target: Target
    multiprocessors: int
    registers_per_multiprocessor: int
    threads_per_multiprocessor: int
    shared_per_program: int
    bandwidth: int
    l2_bytes: int

    @classmethod
    def from_mapping(cls, value: object, path: str = "device") -> DeviceFacts:
        """Returns the facts in ``value``; raises `SpecError` naming the field that is wrong."""
        fields = Fields(value, path)
        facts = cls(
            name=fields.string("name"),
            target=Target.parse(fields.string("target")),
            multiprocessors=fields.integer("multiprocessors"),
            registers_per_multiprocessor=fields.integer("registers_per_multiprocessor"),
            threads_per_multiprocessor=fields.integer("threads_per_multiprocessor"),
            shared_per_program=fields.integer("shared_per_program"),
            bandwidth=fields.integer("bandwidth"),
            l2_bytes=fields.integer("l2_bytes"),
        )
        fields.close()
        return facts

    @property
    def max_warps(self) -> int:
        """The most warps that a program may have: 1024 threads."""
        return 1024 // self.target.warp_size


@functools.cache
def known_devices() -> Mapping[str, DeviceFacts]:
    """Returns the described devices by the name of their file, such as ``h200``."""
    found = {}
    for entry in sorted(resources.files(__name__).iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".json"):
            found[entry.name.removesuffix(".json")] = DeviceFacts.from_mapping(
                json.loads(entry.read_text()), entry.name
            )
    return found


_TYPICAL = {"sm_80": "a100", "sm_90": "h200", "sm_100": "b200", "gfx942": "mi300x"}


def typical_device(target: Target) -> DeviceFacts:
    """Returns the facts to assume when only the architecture is known, as in cross-compiling."""
    return known_devices()[_TYPICAL.get(str(target), "h200" if target.backend == "cuda" else "mi300x")]


@functools.cache
def device_facts(index: int) -> DeviceFacts:
    """Returns the facts of torch's GPU number ``index``: a descriptor's where one has its name, completed by torch."""
    import torch

    properties: Any = torch.cuda.get_device_properties(index)
    target = device_target(index)
    for facts in known_devices().values():
        if facts.name == properties.name:
            return facts
    typical = typical_device(target)
    return DeviceFacts(
        name=properties.name,
        target=target,
        multiprocessors=properties.multi_processor_count,
        registers_per_multiprocessor=getattr(properties, "regs_per_multiprocessor", 65536),
        threads_per_multiprocessor=getattr(properties, "max_threads_per_multi_processor", 2048),
        shared_per_program=getattr(properties, "shared_memory_per_block_optin", typical.shared_per_program),
        bandwidth=typical.bandwidth,
        l2_bytes=getattr(properties, "L2_cache_size", typical.l2_bytes),
    )
