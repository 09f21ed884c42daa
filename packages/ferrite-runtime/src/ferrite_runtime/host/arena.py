"""Puts the buffers of a small program side by side in one allocation: what is allocated once costs the host once.

A buffer gets a place that no other buffer has while it lives. All work is started in the order of the steps on one
stream, so a place may be given to the next buffer as soon as the steps are done with the one before.

A program is small if all that it allocates has a few megabytes. In a larger one the device is what takes time, and an
allocation that lives as long as the call would come on top of the peak. Where sizes are given by a call, each call
finds out, and the arena is a row of slots: a slot is as large as the largest buffer that it holds in turn, whatever the
sizes are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ferrite_runtime.formats.call_steps import CallStep
from ferrite_runtime.formats.expression_sums import Names, Terms, bound_of, expr_of, is_number, is_within, total_of
from ferrite_runtime.formats.expressions import Expr
from ferrite_runtime.formats.layouts import Layout
from ferrite_runtime.formats.steps import Alloc, Extern, Free, Launch, Output, Reuse, View
from ferrite_runtime.host.extern_calls import RESULTS_LIKE
from ferrite_runtime.host.layout_bytes import bytes_of
from ferrite_runtime.host.product_steps import HostStep, Multiply
from ferrite_runtime.host.thresholds import MEMORY

ALIGNMENT = 512
"""What torch's allocator aligns to, in bytes."""


@dataclass(slots=True)
class _Buffer:
    """A buffer that may go into an arena, and the steps from and to which it lives."""

    name: str
    dtype: str
    size: Terms
    first: int
    last: int
    names: int = 1


@dataclass(slots=True)
class _Slot:
    """A part of an arena for the buffers of these names, one after the other, until step ``last``."""

    size: Terms
    last: int
    names: list[str]


@dataclass(frozen=True, slots=True)
class Arenas:
    """Where buffers lie.

    Attributes:
        slots: dtype and offset in bytes by name.
        sizes: the bytes of each dtype's arena.
        total: the bytes that the program allocates altogether, at most; without arenas more than `MEMORY.arena`.
    """

    slots: dict[str, tuple[str, Expr]] = field(default_factory=dict)
    sizes: dict[str, Expr] = field(default_factory=dict)
    total: Terms = field(default_factory=dict)


def plan_arenas(
    steps: Sequence[HostStep], outputs: Sequence[Output], device: str, lengths: Names = frozenset()
) -> Arenas:
    """Returns an arena per dtype for the buffers that only kernels, products and attention see.

    There is none for a program that is not small. Left out are buffers that a caller gets, and those of which the host
    asks something.

    Args:
        steps: the steps of the program.
        outputs: what a caller gets.
        device: the device of the program.
        lengths: the names that sizes of buffers may depend on; none of them is negative.
    """
    total = _total(steps, lengths)
    if total is None or total.get((), 0) > MEMORY.arena:
        return Arenas()
    buffers = _candidates(steps, outputs, device, lengths)
    if not buffers:
        return Arenas()
    by_dtype = {dtype: [b for b in buffers if b.dtype == dtype] for dtype in dict.fromkeys(b.dtype for b in buffers)}
    arenas = Arenas(total=total)
    for dtype, members in by_dtype.items():
        offsets, size = _gaps(members) if is_number(total) else _slots(members)
        arenas.slots.update({name: (dtype, offset) for name, offset in offsets.items()})
        arenas.sizes[dtype] = size
    return arenas


def _total(steps: Sequence[HostStep], lengths: Names) -> Terms | None:
    """Returns the bytes that a program allocates, each buffer's rounded up; None where they are not known."""
    sizes = []
    for step in steps:
        if isinstance(step, CallStep) or (isinstance(step, Extern) and step.target not in RESULTS_LIKE):
            return None
        if isinstance(step, Alloc):
            size = _span(step.layout, lengths)
            if size is None:
                return None
            sizes.append(size if is_number(size) else total_of((size, {(): ALIGNMENT})))
    return total_of(sizes)


def _gaps(buffers: Sequence[_Buffer]) -> tuple[dict[str, Expr], Expr]:
    """Returns the offsets of buffers of known sizes, each in the first gap that has room, and the bytes of all."""
    offsets: dict[str, Expr] = {}
    taken: list[tuple[int, int, int]] = []
    most = 0
    for buffer in buffers:
        size = buffer.size[()]
        taken = [slot for slot in taken if slot[2] >= buffer.first]
        offset = _first_gap(taken, size)
        taken.append((offset, offset + size, buffer.last))
        taken.sort()
        offsets[buffer.name] = offset
        most = max(most, offset + size)
    return offsets, most


def _slots(buffers: Sequence[_Buffer]) -> tuple[dict[str, Expr], Expr]:
    """Returns the offsets of buffers, each in the first free slot that fits or can be made to, and the bytes of all."""
    slots: list[_Slot] = []
    for buffer in buffers:
        free = [slot for slot in slots if slot.last < buffer.first]
        fitting = [slot for slot in free if is_within(buffer.size, slot.size)]
        fitting += [slot for slot in free if is_within(slot.size, buffer.size)]
        if not fitting:
            slots.append(_Slot(buffer.size, buffer.last, [buffer.name]))
            continue
        slot = fitting[0]
        slot.size, slot.last = bound_of((slot.size, buffer.size)), buffer.last
        slot.names.append(buffer.name)
    offsets: dict[str, Expr] = {}
    end: Expr = 0
    for slot in sorted(slots, key=lambda slot: not is_number(slot.size)):
        offsets |= dict.fromkeys(slot.names, end)
        size = _rounded(slot.size)
        end = size if end == 0 else end + size if isinstance(end, int) and isinstance(size, int) else ("add", end, size)
    return offsets, end


def _rounded(size: Terms) -> Expr:
    """Returns a number of bytes, rounded up."""
    if all(coefficient % ALIGNMENT == 0 for coefficient in size.values()):
        return expr_of(size)
    return ("mul", ("ceildiv", expr_of(size), ALIGNMENT), ALIGNMENT)


def _first_gap(taken: Sequence[tuple[int, int, int]], size: int) -> int:
    """Returns the lowest offset at which so many bytes are free; ``taken`` is sorted."""
    at = 0
    for start, end, _ in taken:
        if start - at >= size:
            break
        at = max(at, end)
    return at


def _candidates(steps: Sequence[HostStep], outputs: Sequence[Output], device: str, lengths: Names) -> list[_Buffer]:
    """Returns the buffers that may go into an arena, in the order of their allocation."""
    found: dict[str, _Buffer] = {}
    owners: dict[str, _Buffer] = {}
    excluded = {output.value for output in outputs if output.value is not None}
    kept: set[str] = set()
    for position, step in enumerate(steps):
        match step:
            case Alloc(name, layout, where):
                size = _span(layout, lengths)
                if size and where in (None, device):
                    owners[name] = found[name] = _Buffer(name, layout.dtype, size, position, len(steps))
            case View(name, base, _, _) if base in owners:
                owners[name] = owners[base]
                owners[base].names += 1
            case Reuse(name, source, layout) if source in owners:
                owners[name] = owners[source]
                size = _span(layout, lengths)
                if not size or not is_within(size, owners[source].size):
                    kept.add(owners[source].name)
            case Free(names):
                for buffer in (owners[name] for name in names if name in owners):
                    buffer.names -= 1
                    buffer.last = position if buffer.names == 0 else buffer.last
            case Launch() | Multiply() | Extern():
                pass
            case _:
                kept |= {owners[name].name for name in _names_in(step) if name in owners}
    kept |= {owners[name].name for name in excluded if name in owners}
    return [buffer for name, buffer in found.items() if name not in kept]


def _names_in(step: HostStep) -> list[str]:
    """Returns the names of tensors that a step on the host reads or copies."""
    probed = getattr(getattr(step, "value", None), "tensor", None)
    named = (getattr(step, name, None) for name in ("source", "to"))
    return [name for name in (*named, probed) if isinstance(name, str)]


def _span(layout: Layout, lengths: Names) -> Terms | None:
    """Returns the bytes that a buffer takes up, rounded up if they are a number; None where they are not known."""
    size = bytes_of(layout, lengths)
    if size is None or not is_number(size):
        return size
    whole = -(-size.get((), 0) // ALIGNMENT) * ALIGNMENT
    return {(): whole} if whole else {}
