"""Software prefetch: how far ahead programs that wait for others request what later ones will read.

A program that waits for values of other programs reads nothing meanwhile, and where programs are large too few others
run beside it to keep memory busy. So it prefetches into L2 what a later program will read. The distance is chosen by
bytes: less than what is being loaded anyway is of no use, more than the cache holds is evicted before it is read. Scans
prefetch only where memory is fast: elsewhere it is busy all the time. See decision 0026.
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
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.schedule import Kernel
from ferrite_scheduler.model.target import Target


def prefetch(work: Sequence[Work], target: Target, policy: Policy) -> list[Work]:
    """Returns the work, in order, with how far ahead the programs of its kernels prefetch."""
    if not policy.prefetch:
        return list(work)
    return [_prefetching(item, target, policy) if isinstance(item, Kernel) else item for item in work]


def _prefetching(kernel: Kernel, target: Target, policy: Policy) -> Kernel:
    """Returns a kernel with how many blocks or images ahead its programs prefetch, if they wait for each other."""
    match kernel.form:
        case LookBackForm() as form:
            return replace(kernel, form=replace(form, prefetch_distance=_blocks_ahead(kernel, form, target, policy)))
        case RegisterNorm() as form:
            return replace(kernel, form=replace(form, prefetch_distance=_images_ahead(kernel, target, policy)))
    return kernel


def _blocks_ahead(kernel: Kernel, form: LookBackForm, target: Target, policy: Policy) -> int:
    """Returns how many blocks of its line ahead a program of a scan prefetches; 0 where there are not so many."""
    if target.bandwidth < policy.prefetch_bandwidth * target.processors:
        return 0
    scan = next(definition for definition in kernel.body if isinstance(definition, LookBackScan))
    lines = math.prod(int(axis.size) for axis in kernel.grid)
    size = form.block_length * lines * _bytes_read(scan.operand.loads)
    return _distance(policy.prefetch_scan_bytes, size, -(-int(scan.along.size) // form.block_length), target)


def _images_ahead(kernel: Kernel, target: Target, policy: Policy) -> int:
    """Returns how many images ahead a program of a register norm prefetches; 0 where there are not so many."""
    reduction = next(definition for definition in kernel.body if isinstance(definition, Reduction))
    size = math.prod(int(axis.size) for axis in kernel.axes[-2:])
    size *= _bytes_read(load for body in bodies_of(reduction) for load in body.loads)
    return _distance(policy.prefetch_norm_bytes, size, math.prod(int(axis.size) for axis in kernel.axes[:-2]), target)


def _distance(prefetch_bytes: int, size: int, count: int, target: Target) -> int:
    """Returns how many items of ``size`` bytes make up so many bytes for each multiprocessor; 0 if there are fewer."""
    distance = prefetch_bytes * target.processors // max(size, 1)
    return distance if distance < count else 0


def _bytes_read(loads: Iterable[Scalar]) -> int:
    return sum(load.dtype.bytes for load in set(loads))
