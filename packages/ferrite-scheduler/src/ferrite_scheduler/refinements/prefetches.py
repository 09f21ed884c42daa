"""Software prefetch: how far ahead programs that wait for others request what later ones will read.

While a program waits for what others tell it, it reads nothing, and where programs are large, not enough others are
there that do. So it asks for what is read some way further on to be brought into the cache. How far is a matter of
bytes: less than what is on its way anyway is of no use, more than the cache holds is gone again. Scans do so only where
memory is fast: elsewhere it is at work all the time, and what is asked for is in the way. See decision 0026.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ferrite_ir.language.graph import Reduction, bodies_of
from ferrite_ir.language.scalar import Scalar
from ferrite_scheduler.memory.host_steps import Work
from ferrite_scheduler.model.annotations import LookBackScan
from ferrite_scheduler.model.schedule import Kernel
from ferrite_scheduler.model.target import Policy, Target

SCANNED, HELD = 128 << 10, 120 << 10
"""Bytes for each multiprocessor that programs are ahead: of scans about what all that run at once hold, of images less,
as these ask when their own elements have come."""


def prefetch(work: Sequence[Work], target: Target, policy: Policy) -> list[Work]:
    """Returns the work, in order, with how far ahead the programs of its kernels ask."""
    if not policy.prefetch:
        return list(work)
    return [
        replace(item, prefetch_distance=_prefetch_distance(item, target, policy)) if isinstance(item, Kernel) else item
        for item in work
    ]


def _prefetch_distance(kernel: Kernel, target: Target, policy: Policy) -> int:
    """Returns how many parts or images ahead a kernel's programs ask; 0 where there are no more than so many."""
    scan = next((definition for definition in kernel.body if isinstance(definition, LookBackScan)), None)
    if scan is not None:
        if target.bandwidth < policy.asking_bandwidth * target.processors:
            return 0
        lines = math.prod(int(axis.size) for axis in kernel.grid)
        size = scan.points * lines * _bytes_read(scan.operand.loads)
        count = -(-int(scan.along.size) // scan.points)
        prefetch_bytes = SCANNED
    elif kernel.columns:
        reduction = next(definition for definition in kernel.body if isinstance(definition, Reduction))
        size = math.prod(int(axis.size) for axis in kernel.axes[-2:])
        size *= _bytes_read(load for body in bodies_of(reduction) for load in body.loads)
        count = math.prod(int(axis.size) for axis in kernel.axes[:-2])
        prefetch_bytes = HELD
    else:
        return 0
    prefetch_distance = prefetch_bytes * target.processors // max(size, 1)
    return prefetch_distance if prefetch_distance < count else 0


def _bytes_read(loads: Iterable[Scalar]) -> int:
    return sum(load.dtype.bytes for load in set(loads))
