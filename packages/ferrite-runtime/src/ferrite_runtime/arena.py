"""Puts the buffers of a small program side by side in one allocation: what is allocated once costs the host once.

A buffer gets a place that no other buffer has while it lives. All work is started in the order of the steps on one
stream, so a place may be given to the next buffer as soon as the steps are done with the one before.

A program is small if all that it allocates has a few megabytes. In a larger one the device is what takes time, and an
allocation that lives as long as the call would come on top of the peak.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ferrite_runtime.dtypes import DTYPES
from ferrite_runtime.externs import KEEP_SIZE
from ferrite_runtime.product_steps import HostStep, Multiply
from ferrite_runtime.steps import Alloc, Extern, Free, Launch, Layout, Output, Reuse, View

MAX_ARENA = 8 << 20
"""Bytes that a program with arenas may allocate altogether."""
ALIGNMENT = 512
"""What torch's allocator aligns to, in bytes."""


@dataclass(slots=True)
class _Buffer:
    """A buffer that may go into an arena, and the steps from and to which it lives."""

    name: str
    dtype: str
    size: int
    first: int
    last: int
    names: int = 1


@dataclass(frozen=True, slots=True)
class Arenas:
    """Where buffers lie: dtype and offset in bytes by name (``places``), and the bytes of each dtype's arena."""

    places: dict[str, tuple[str, int]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)


def plan_arenas(steps: Sequence[HostStep], outputs: Sequence[Output], device: str) -> Arenas:
    """Returns an arena per dtype for the buffers that only kernels, products and attention see.

    There is none for a program that is not small. Left out are buffers that a caller gets, and those of which the host
    asks something.
    """
    arenas = Arenas()
    if not _is_small(steps):
        return arenas
    live: dict[str, list[tuple[int, int, int]]] = {}
    for buffer in _candidates(steps, outputs, device):
        taken = live.setdefault(buffer.dtype, [])
        taken[:] = [place for place in taken if place[2] >= buffer.first]
        offset = _first_gap(taken, buffer.size)
        end = offset + buffer.size
        taken.append((offset, end, buffer.last))
        taken.sort()
        arenas.places[buffer.name] = (buffer.dtype, offset)
        arenas.sizes[buffer.dtype] = max(arenas.sizes.get(buffer.dtype, 0), end)
    return arenas


def _is_small(steps: Sequence[HostStep]) -> bool:
    """Tells whether all that a program allocates is known, and little."""
    total = 0
    for step in steps:
        if isinstance(step, Extern) and step.target not in KEEP_SIZE:
            return False
        if isinstance(step, Alloc):
            size = _span(step.layout)
            if size == 0 and not step.layout.is_empty:
                return False
            total += size
    return total <= MAX_ARENA


def _first_gap(taken: Sequence[tuple[int, int, int]], size: int) -> int:
    """Returns the lowest offset at which so many bytes are free; ``taken`` is sorted."""
    at = 0
    for start, end, _ in taken:
        if start - at >= size:
            break
        at = max(at, end)
    return at


def _candidates(steps: Sequence[HostStep], outputs: Sequence[Output], device: str) -> list[_Buffer]:
    """Returns the buffers that may go into an arena, in the order of their allocation."""
    found: dict[str, _Buffer] = {}
    owners: dict[str, _Buffer] = {}
    excluded = {output.value for output in outputs if output.value is not None}
    kept: set[str] = set()
    for position, step in enumerate(steps):
        match step:
            case Alloc(name, layout, where):
                size = _span(layout)
                if size and where in (None, device):
                    owners[name] = found[name] = _Buffer(name, layout.dtype, size, position, len(steps))
            case View(name, base, _, _) if base in owners:
                owners[name] = owners[base]
                owners[base].names += 1
            case Reuse(name, source, layout) if source in owners:
                owners[name] = owners[source]
                if not 0 < _span(layout) <= owners[source].size:
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


def _span(layout: Layout) -> int:
    """Returns the bytes that a buffer takes up, rounded up; 0 where there are none, or they are no number."""
    if layout.numbers is None or layout.is_empty or layout.dtype not in DTYPES:
        return 0
    shape, strides = layout.numbers
    elements = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return -(-elements * DTYPES[layout.dtype].itemsize // ALIGNMENT) * ALIGNMENT
