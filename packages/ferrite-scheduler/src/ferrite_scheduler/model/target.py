"""What the compiler knows of the machine, as plain data; how it weighs things is in `policy`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .value_checks import check_values, from_mapping

SECTOR_BYTES = 32
"""Of memory that GPUs read and write at once."""
_OTHER_PARAMETERS = 32
"""Parameters of 8 bytes that a launch has beside tensors, at most: symbolic sizes, scratch memory."""


@dataclass(frozen=True, slots=True)
class Target:
    """Facts about a device that decisions may depend on; never part of kernel text.

    Attributes:
        name: for messages.
        processors: number of multiprocessors.
        warp_size: threads per warp.
        shared_memory: bytes of shared memory one program may use.
        registers: 32-bit registers per multiprocessor.
        l2_bytes: size of the last-level cache.
        bandwidth: achievable memory bandwidth, bytes per second.
        lane_operations: instructions of single lanes that a multiprocessor completes in a second.
        program_bytes: what one program has on its way from memory at once, at most: 16 bytes for each of 1024 threads.
        resident_programs: most programs that a multiprocessor runs at once.
        latency_seconds: from a program's asking for that to its going on.
        tensor_operations: multiplications and additions of 16-bit factors that the tensor cores of a multiprocessor
            complete in a second.
        scan_seconds: what a program that has a multiprocessor to itself takes for one block of a line that it scans.
            Measured on an H200 for blocks of 8,192 elements.
        launch_seconds: what one more kernel costs: from the end of one to the first access of the next, and its start.
        cache_rate: times ``bandwidth`` with which what several programs read comes from the cache. Set, as the
            runtime's ``ProductThresholds.cache_rate``.
        parameter_bytes: most bytes that the parameters of a launch may take: 32,764 from CUDA 12.1 on, 4,096 before.
        tile_rates: tiles in which products of matrices may be computed: rows, columns, and the share of the fastest
            one's rate that each reaches where there are enough of them. Set for 16-bit factors on Hopper: what the
            runtime's table of configs (``kernel_forms.tiled_contractions``) has, in short.
    """

    name: str = "generic"
    processors: int = 132
    warp_size: int = 32
    shared_memory: int = 227 * 1024
    registers: int = 65536
    l2_bytes: int = 50 * 1024 * 1024
    bandwidth: float = 4.0e12
    lane_operations: float = 128 * 1.75e9
    program_bytes: int = 16 << 10
    resident_programs: int = 32
    latency_seconds: float = 0.8e-6
    tensor_operations: float = 5.0e12
    scan_seconds: float = 3e-6
    launch_seconds: float = 3e-6
    cache_rate: float = 2.0
    parameter_bytes: int = 32_764
    tile_rates: tuple[tuple[int, int, float], ...] = (
        (128, 256, 1.0),
        (128, 128, 0.9),
        (64, 128, 0.72),
        (64, 64, 0.5),
        (32, 64, 0.26),
        (16, 64, 0.14),
    )

    def __post_init__(self) -> None:
        check_values(self, "target fact")

    @classmethod
    def from_mapping(cls, facts: Mapping[str, Any]) -> Target:
        """Returns the target described by a mapping with these field names.

        Raises:
            ValueError: a key is not a field, or a value is none that it can have; the message names it.
        """
        return from_mapping(cls, facts, "target fact")

    @property
    def launch_tensors(self) -> int:
        """How many tensors one launch takes, beside so many sizes and pointers that the compiler appends."""
        return max(1, self.parameter_bytes // 8 - _OTHER_PARAMETERS)

    def seconds(self, moved: float, programs: int, operations: float = 0.0) -> float:
        """Returns how long so many equal programs take to move so many bytes of memory in all, and to compute.

        No multiprocessor draws more than its share of the bandwidth, so too few programs leave some of it unused; and
        none completes instructions, ``operations`` of single lanes in all, faster than it can.
        """
        moving = (moved / programs) * self.processors / self.bandwidth
        computing = (operations / programs) / self.lane_operations
        return math.ceil(programs / self.processors) * max(moving, computing)


DEFAULT_TARGET = Target()
