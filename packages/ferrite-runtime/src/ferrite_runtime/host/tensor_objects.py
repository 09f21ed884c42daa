"""What a buffer is allocated as: the tensor that somebody gets of it, where kernels and products take its address only.

    y = alloc [16, 16]                  y = _empty((16, 16), (16, 1), …)
    launch k(x, y)                  →   z = _reinterpret(y, (1, 2, 16, 8), (256, 8, 16, 1), 0)
    z = view y [1, 2, 8, 16]            return (z,)
    return z                            becomes     z = _empty((1, 2, 16, 8), (256, 8, 16, 1), …)

A tensor that the host makes takes about a microsecond. Most of what a forward saves for its backward are such views.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ferrite_runtime.formats.call_steps import Call, For, If, While
from ferrite_runtime.formats.layouts import Layout
from ferrite_runtime.formats.steps import Alloc, Copy, Extern, Item, Let, Output, Probe, Reuse, View, value_refs
from ferrite_runtime.host.layout_bytes import bytes_of
from ferrite_runtime.host.product_steps import HostStep


@dataclass(slots=True)
class _Family:
    """A buffer and all that begins where it begins: their names and layouts, in the order of the steps."""

    layouts: dict[str, Layout] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TensorObject:
    """What a buffer is allocated as: a value that begins where it begins and is as long, and its layout."""

    name: str
    layout: Layout


def tensor_objects(steps: Sequence[HostStep], outputs: Iterable[Output]) -> dict[str, TensorObject]:
    """Returns, by the names of buffers that nobody needs as tensors of their own layout, what they are allocated as.

    That is the first value that a caller gets; if there is none, the first that a step on the host takes. All others
    are tensors of their own, as two results are: of their layouts only those that are numbers are compared.
    """
    returned = [output.value for output in outputs if output.value is not None]
    needed = dict.fromkeys([*returned, *(name for step in steps for name in _needed(step))])
    found: dict[str, TensorObject] = {}
    for owner, family in _families(steps).items():
        if owner in needed:
            continue
        fitting = (name for name in family.layouts if _is_as_long(family.layouts[name], family.layouts[owner]))
        wanted = [name for name in fitting if name in needed]
        chosen = next((name for name in wanted if name in returned), next(iter(wanted), None))
        if chosen is not None:
            found[owner] = TensorObject(chosen, family.layouts[chosen])
    return found


def _needed(step: HostStep) -> Iterator[str]:
    """Yields the values that a step takes as tensors."""
    match step:
        case Extern(_, args, kwargs):
            yield from value_refs((*args, *kwargs.values()))
        case Item(_, source):
            yield source
        case Copy(to, source):
            yield from (to, source)
        case Let(_, Probe(tensor=tensor)):
            yield tensor
        case Call() | If() | While() | For():
            yield from step.args
            if isinstance(step, If):
                yield step.condition


def _families(steps: Sequence[HostStep]) -> dict[str, _Family]:
    """Returns what begins where a buffer begins, by the names of buffers."""
    families: dict[str, _Family] = {}
    owners: dict[str, str] = {}
    for step in steps:
        match step:
            case Alloc(name, layout):
                owners[name], families[name] = name, _Family({name: layout})
            case View(name, base, layout, 0) | Reuse(name, base, layout) if base in owners:
                owners[name] = owners[base]
                families[owners[base]].layouts[name] = layout
    return families


def _is_as_long(layout: Layout, other: Layout) -> bool:
    """Tells whether memory of one layout is surely as long as that of another of the same type."""
    if layout.dtype != other.dtype or layout.numbers is None or other.numbers is None:
        return False
    return bytes_of(layout, frozenset()) == bytes_of(other, frozenset()) is not None
