"""Which launches start before those before them have ended (programmatic dependent launch; decision 0014).

The programs of a kernel that follows are placed where the kernel before leaves room, and stay there once that one has
ended. Where there are enough for every multiprocessor to get as many as it can hold, or one less, that is where they
would be anyway. Of fewer, some multiprocessors get all they can hold and others little, while a launch on an idle
device gives the same to each.
"""

from __future__ import annotations

from collections.abc import Mapping

from ferrite_runtime.cuda_driver import NEVER, Function
from ferrite_runtime.devices import DeviceFacts
from ferrite_runtime.policy import launch_bytes
from ferrite_runtime.spec import KernelSpec

LIGHT_BYTES, LIGHT_OPERATIONS = 1 << 20, 8 << 20
"""What a kernel moves and computes, at most, that takes less time than its start, wherever its programs are."""


def least_following(
    spec: KernelSpec, function: Function, device: DeviceFacts, sizes: Mapping[str, int] | None = None
) -> int:
    """Returns the number of programs from which launches of a kernel follow; `NEVER` where none may.

    People's own kernels do not: they may wait where they do because their authors know what else is launched.

    Args:
        spec: the kernel.
        function: its compiled form.
        device: where it runs.
        sizes: of the axes, by name, that it is for; the expected ones without it.
    """
    if not function.binary.follows or spec.family == "user":
        return NEVER
    moved = launch_bytes(spec, device, sizes)
    if moved is not None and moved <= LIGHT_BYTES and spec.facts.get("flops", 0) <= LIGHT_OPERATIONS:
        return 1
    return device.multiprocessors * (function.resident - 1) + 1
