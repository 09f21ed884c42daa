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
from ferrite_scheduler.model.forms import LookBackScan as LookBackForm
from ferrite_scheduler.model.forms import RegisterNorm
from ferrite_scheduler.model.schedule import Kernel
from ferrite_scheduler.model.target import Policy, Target


def prefetch(work: Sequence[Work], target: Target, policy: Policy) -> list[Work]:
    """Returns the work, in order, with how far ahead the programs of its kernels ask."""
    if not policy.prefetch:
        return list(work)
    return [_prefetching(item, target, policy) if isinstance(item, Kernel) else item for item in work]


def _prefetching(kernel: Kernel, target: Target, policy: Policy) -> Kernel:
    """Returns a kernel with how many blocks or images ahead its programs ask, if they wait for each other."""
    match kernel.form:
        case LookBackForm() as form:
            return replace(kernel, form=replace(form, prefetch_distance=_blocks_ahead(kernel, form, target, policy)))
        case RegisterNorm() as form:
            return replace(kernel, form=replace(form, prefetch_distance=_images_ahead(kernel, target, policy)))
    return kernel


def _blocks_ahead(kernel: Kernel, form: LookBackForm, target: Target, policy: Policy) -> int:
    """Returns how many blocks of a line ahead the programs of a scan ask; 0 where there are no more than so many."""
    if target.bandwidth < policy.asking_bandwidth * target.processors:
        return 0
    scan = next(definition for definition in kernel.body if isinstance(definition, LookBackScan))
    lines = math.prod(int(axis.size) for axis in kernel.grid)
    size = form.block_length * lines * _bytes_read(scan.operand.loads)
    return _distance(policy.prefetch_scanned, size, -(-int(scan.along.size) // form.block_length), target)


def _images_ahead(kernel: Kernel, target: Target, policy: Policy) -> int:
    """Returns how many images ahead the programs of a register norm ask; 0 where there are no more than so many."""
    reduction = next(definition for definition in kernel.body if isinstance(definition, Reduction))
    size = math.prod(int(axis.size) for axis in kernel.axes[-2:])
    size *= _bytes_read(load for body in bodies_of(reduction) for load in body.loads)
    return _distance(policy.prefetch_held, size, math.prod(int(axis.size) for axis in kernel.axes[:-2]), target)


def _distance(prefetch_bytes: int, size: int, count: int, target: Target) -> int:
    """Returns how many things of ``size`` bytes come to so many bytes for each multiprocessor, if there are more."""
    distance = prefetch_bytes * target.processors // max(size, 1)
    return distance if distance < count else 0


def _bytes_read(loads: Iterable[Scalar]) -> int:
    return sum(load.dtype.bytes for load in set(loads))
