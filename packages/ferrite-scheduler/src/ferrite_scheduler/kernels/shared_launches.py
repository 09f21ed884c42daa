"""Kernels that share a launch, as one kernel: a mixed combo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ferrite_ir.language.sizes import hint, is_static, product
from ferrite_scheduler.model.forms import (
    ComboPart,
    MixedCombo,
    PersistentReduction,
    RowColumnReduction,
)
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.schedule import Kernel, Param


def combined(kernels: Sequence[Kernel], policy: Policy) -> Kernel:
    """Returns the kernel that holds others, or their members, those first whose programs take longest.

    The launch has the skip guard that each of them has.
    """
    ordered = sorted(
        (member for kernel in kernels for member in kernel.members), key=lambda kernel: -program_bytes(kernel)
    )
    params: dict[str, Param] = {}
    for param in (param for kernel in ordered for param in kernel.params):
        params.setdefault(param.name, param)
    parts = tuple(ComboPart(kernel.name, kernel.form, kernel.axes, len(kernel.body)) for kernel in ordered)
    first = ordered[0]
    return replace(
        first,
        name=f"{first.name}_and_{len(ordered) - 1}_more",
        form=MixedCombo(parts, takes_turns(ordered, policy)),
        axes=(),
        body=tuple(definition for kernel in ordered for definition in kernel.body),
        homes={name: home for kernel in ordered for name, home in kernel.homes.items()},
        stored=tuple(name for kernel in ordered for name in kernel.stored),
        params=tuple(params.values()),
        skip_guard=kernels[0].skip_guard,
    )


def program_bytes(kernel: Kernel) -> int:
    """Returns about how many bytes a program of a kernel moves: those of a row, or of a chunk of rows."""
    rows = max(1, kernel.points // row_length(kernel))
    programs = kernel.form.chunks if isinstance(kernel.form, RowColumnReduction) else rows
    return 0 if kernel.reduction is None else moved_bytes(kernel) // programs


def takes_turns(kernels: Sequence[Kernel], policy: Policy) -> bool:
    """Returns whether programs of parts alternate: each has a row; parts have equally many, of unlike length."""
    if not all(isinstance(kernel.form, PersistentReduction) for kernel in kernels):
        return False
    if not all(is_static(axis.size) for kernel in kernels for axis in kernel.axes):
        return False
    rows = {hint(product(axis.size for axis in kernel.grid)) for kernel in kernels}
    lengths = list(map(row_length, kernels))
    shortest, longest = min(lengths), max(lengths)
    return len(rows) == 1 and shortest >= policy.combo_single_row and longest >= policy.combo_unlike_rows * shortest


def stores_rows(kernel: Kernel) -> bool:
    """Returns whether a kernel that reduces also stores rows: an eighth of what it moves, at least."""
    written = tuple(param for param in kernel.params if param.access != "read")
    return kernel.reduction is not None and 8 * moved_bytes(replace(kernel, params=written)) >= moved_bytes(kernel)


def moved_bytes(kernel: Kernel) -> int:
    """Returns the bytes of memory that a kernel touches, at most: no more elements of a tensor than it has points."""
    points = kernel.points
    return sum(min(hint(param.type.storage_size), points) * param.type.dtype.bytes for param in kernel.params)


def row_length(kernel: Kernel) -> int:
    """Returns the points of the reduction axis, by hint; 1 without one."""
    return 1 if kernel.reduction is None else hint(kernel.reduction.size)
