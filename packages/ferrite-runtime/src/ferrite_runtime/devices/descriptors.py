"""Facts about GPUs, as data: a descriptor file per device, and what torch tells about the one at hand."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from importlib import resources
from pathlib import Path
from typing import Any

from ferrite_runtime.errors import DeviceUnavailable, FileUnreadable, SpecError
from ferrite_runtime.formats.json_fields import Fields
from ferrite_runtime.formats.target import Target, device_target
from ferrite_runtime.process.environment_variables import read_settings

_RATES = ("lane_operations", "tensor_operations", "launch_nanoseconds")
ACHIEVED_SHARE = 0.87
"""The share of a memory's peak bandwidth that kernels reach: of the descriptors' GPUs 0.86 to 0.9 (data sheets have the
peaks: 4.9 TB/s of an H200, 3.35 of an H100, 2.04 of an A100, 8 of a B200)."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What config policies and predictions know of a device; sizes in bytes, bandwidth in bytes per second.

    The last three a descriptor may leave out; their defaults were fitted to kernels on an H200
    (``benchmarks/kernels/run.py`` prints predictions beside measurements).

    Attributes:
        lane_operations: instructions of single lanes that a multiprocessor completes in a second.
        tensor_operations: multiplications and additions of 16-bit factors that the tensor cores of a multiprocessor
            complete in a second.
        launch_nanoseconds: from the end of one kernel in a queue to the first access of the next.
    """

    name: str
    target: Target
    multiprocessors: int
    registers_per_multiprocessor: int
    threads_per_multiprocessor: int
    shared_per_program: int
    bandwidth: int
    l2_bytes: int
    lane_operations: int = 128 * 1_750_000_000
    tensor_operations: int = 5_000_000_000_000
    launch_nanoseconds: int = 1500

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
            **{name: rate for name in _RATES if (rate := fields.optional_integer(name)) is not None},
        )
        fields.close()
        return facts

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form: the content of a descriptor file."""
        facts = {field.name: getattr(self, field.name) for field in dataclass_fields(self)}
        return {**facts, "target": str(self.target)}

    @property
    def max_warps(self) -> int:
        """The most warps that a program may have: 1024 threads."""
        return 1024 // self.target.warp_size


@functools.cache
def known_devices() -> Mapping[str, DeviceFacts]:
    """Returns the described devices by the name of their file, such as ``h200``.

    Files in the folders that the settings name add to those of this package, and go before them.

    Raises:
        SpecError: if one of these does not read, naming the file and the field.
    """
    found = {}
    shipped: list[Any] = sorted(resources.files("ferrite_runtime.devices").iterdir(), key=lambda entry: entry.name)
    for entry in (*shipped, *added_descriptors(read_settings().device_dirs)):
        if entry.name.endswith(".json"):
            found[entry.name.removesuffix(".json")] = read_descriptor(entry)
    return found


def added_descriptors(folders: Sequence[Path]) -> list[Path]:
    """Returns the descriptor files in some folders, in the order of their names; a folder may be missing."""
    return [path for folder in folders for path in sorted(folder.glob("*.json"))]


def read_descriptor(entry: Any) -> DeviceFacts:
    """Returns the facts in a descriptor file; raises `SpecError` naming the file and the field that is wrong."""
    try:
        value = json.loads(entry.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileUnreadable(entry, error) from error
    except ValueError as error:
        raise SpecError(str(entry), f"is no JSON: {error}") from error
    try:
        facts = DeviceFacts.from_mapping(value, str(entry))
    except DeviceUnavailable as error:
        raise SpecError(f"{entry}.target", str(error)) from error
    numbers = {field.name: getattr(facts, field.name) for field in dataclass_fields(facts)}
    for name, number in numbers.items():
        if isinstance(number, int) and number < 1:
            raise SpecError(f"{entry}.{name}", f"{number} is less than 1")
    return facts


_TYPICAL = {"sm_80": "a100", "sm_90": "h200", "sm_100": "b200", "gfx942": "mi300x"}


def typical_device(target: Target) -> DeviceFacts:
    """Returns the facts to assume when only the architecture is known, as in cross-compiling."""
    known = known_devices()
    if str(target) in _TYPICAL:
        return known[_TYPICAL[str(target)]]
    same = [facts for facts in known.values() if facts.target == target]
    return same[0] if same else known["h200" if target.backend == "cuda" else "mi300x"]


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
        bandwidth=achieved_bandwidth(properties) or typical.bandwidth,
        l2_bytes=getattr(properties, "L2_cache_size", typical.l2_bytes),
    )


def achieved_bandwidth(properties: Any) -> int:
    """Returns the bytes per second that kernels reach on a GPU with these properties of torch; 0 if these do not tell.

    The peak of memory that moves data twice in a cycle is its clock (kHz) times two times the width of its bus (bits).
    """
    clock, width = (getattr(properties, name, 0) for name in ("memory_clock_rate", "memory_bus_width"))
    return int(ACHIEVED_SHARE * 2 * clock * 1000 * width / 8)
