"""Programmatic dependent launch: which kernels start before those before them have ended; see decision 0014.

The programs of a dependent launch are placed where the kernel before leaves room, and stay there once that one has
ended. Where there are enough for every multiprocessor to get as many as it can hold, or one less, that is where they
would be anyway. Of fewer, some multiprocessors get all they can hold and others little, while a launch on an idle
device gives the same to each.
"""

from __future__ import annotations

from ferrite_runtime.devices.cuda_driver import NEVER
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.host.thresholds import LAUNCHES


def waits_itself(spec: KernelSpec) -> bool:
    """Tells whether a kernel is compiled to wait itself for what comes before it, if it has a line that says so.

    People's own kernels are not: what comes before them may be theirs, too.
    """
    return spec.form != "user"


def least_pdl_programs(spec: KernelSpec, resident: int, multiprocessors: int, moved: int | None) -> int:
    """Returns the number of programs from which on launches of a kernel that waits itself start early.

    It is `NEVER` of people's own kernels: they may wait anywhere.

    Args:
        spec: the kernel.
        resident: programs that a multiprocessor holds at once.
        multiprocessors: of the device.
        moved: the bytes that a launch moves, None where nothing tells.
    """
    if not waits_itself(spec):
        return NEVER
    if moved is not None and moved <= LAUNCHES.light_bytes and spec.facts.flops <= LAUNCHES.light_operations:
        return 1
    return multiprocessors * (resident - 1) + 1
