"""Keeping what a measurement overwrites: saved before, put back after, or before every single launch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ferrite_runtime.devices.cuda_driver import Driver
from ferrite_runtime.formats.kernel_spec import SCRATCH, KernelSpec

_LOG = logging.getLogger("ferrite_runtime")


@dataclass(frozen=True, slots=True)
class Protection:
    """Saved contents of what a measurement overwrites.

    Attributes:
        saved: address, backup's address and bytes of each part.
        keep: what keeps the backups alive.
        driver: what copies.
        stream: where it copies.
        each: whether every launch has to begin with the saved contents: what it changes steers it (indices, counters,
            semaphores), so that a second launch on the results of the first might leave the arrays.
    """

    saved: tuple[tuple[int, int, int], ...]
    keep: tuple[Any, ...]
    driver: Driver
    stream: int
    each: bool = False

    def restore(self) -> None:
        """Puts everything back, in the order of the stream."""
        for address, backup, size in self.saved:
            self.driver.copy(address, backup, size, self.stream)


OVERWRITTEN = ("write", SCRATCH)
"""Accesses to memory whose old contents do not matter."""


def changed_params(spec: KernelSpec, owners: Sequence[Any]) -> list[int]:
    """Returns the positions of the params whose old contents a launch needs and overwrites.

    Args:
        spec: the kernel.
        owners: the tensor that each argument lies in, None for numbers; two params over one tensor make
            even a plain write a change.
    """
    read = {id(o) for p, o in zip(spec.params, owners, strict=True) if o is not None and p.access not in OVERWRITTEN}
    return [
        position
        for position, (param, owner) in enumerate(zip(spec.params, owners, strict=True))
        if owner is not None
        and param.access != "read"
        and (param.access not in OVERWRITTEN or param.name in spec.mutated or id(owner) in read)
    ]


def protect_arguments(
    spec: KernelSpec, arguments: Sequence[Any], owners: Sequence[Any], driver: Driver, stream: int
) -> Protection | None:
    """Saves what a measurement of ``spec`` would change; None where it must not be measured: no memory has room for it.

    Backups lie on the device; where that is full, in pinned memory of the host.
    """
    saved, keep, each = [], [], False
    for position in changed_params(spec, owners):
        each = each or spec.params[position].dtype[0] in "iu"
        address, owner = arguments[position], owners[position]
        size = owner.data_ptr() + extent_bytes(owner) - address
        backup = make_backup(max(1, size), owner.device)
        if backup is None:
            _LOG.warning("kernel %s is not measured: there is no room to save its argument %d", spec.name, position)
            return None
        driver.copy(backup.data_ptr(), address, size, stream)
        saved.append((address, backup.data_ptr(), size))
        keep.append(backup)
    return Protection(tuple(saved), tuple(keep), driver, stream, each)


def make_backup(size: int, device: Any) -> Any | None:
    """Returns a tensor of so many bytes, on a device or in pinned memory of the host; None where neither has room."""
    import torch

    try:
        return torch.empty(size, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError:
        _LOG.info("the device has no %d bytes for a backup, the host has to", size)
    try:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    except RuntimeError:  # torch has no finer name for what the host lacks
        return None


def extent_bytes(tensor: Any) -> int:
    """Returns the distance in bytes from a tensor's first element to the end of its last."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int((last + 1) * tensor.element_size())
