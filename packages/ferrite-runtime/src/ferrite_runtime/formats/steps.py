"""The parts of a program: inputs, outputs and host steps; `step_mappings` reads them from JSON and writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ferrite_runtime.formats.call_steps import CallStep
from ferrite_runtime.formats.expressions import Condition, Expr
from ferrite_runtime.formats.layouts import Layout

Number: TypeAlias = "int | float | bool"


@dataclass(frozen=True, slots=True)
class Input:
    """One input of kind tensor (with ``layout`` and ``device``), scalar (with ``dtype``) or opaque."""

    name: str
    kind: str
    dtype: str | None = None
    layout: Layout | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """One output: a named value, a number (or an expression of the program's), or None when both are absent."""

    value: str | None = None
    scalar: Number | Expr | None = None


@dataclass(frozen=True, slots=True)
class Tagged:
    """A tagged argument of an extern call.

    ``tag`` is ref, dtype, device, layout, memory_format, float, complex or size, whose value is an expression.
    """

    tag: str
    value: Expr


@dataclass(frozen=True, slots=True)
class Alloc:
    """Creates an uninitialised buffer; ``device`` None means the program's."""

    name: str
    layout: Layout
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Keep:
    """Names a buffer on the program's device that is filled with zeros once and kept, for each stream one.

    Calls in one stream have one after the other what the call before has left in it.
    """

    name: str
    layout: Layout


@dataclass(frozen=True, slots=True)
class Reuse:
    """Creates a buffer over the storage of ``source``, which is gone afterwards."""

    name: str
    source: str
    layout: Layout


@dataclass(frozen=True, slots=True)
class View:
    """Creates a strided tensor over the storage of ``base``, ``offset`` elements after its first one."""

    name: str
    base: str
    layout: Layout
    offset: Expr


@dataclass(frozen=True, slots=True)
class Probe:
    """One number that a tensor tells: its ``size`` or its ``stride`` along an axis."""

    kind: str
    tensor: str
    axis: int


@dataclass(frozen=True, slots=True)
class Let:
    """Names an integer of the program."""

    name: str
    value: Expr | Probe


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another kernel for a launch, or none: taken where each expression is at most its limit."""

    when: tuple[tuple[Expr, int], ...]
    kernel: str | None


@dataclass(frozen=True, slots=True)
class Launch:
    """Launches a kernel; tensor args are names, scalars names or numbers, sizes expressions.

    The first alternative whose conditions hold is launched instead, with the same arguments; nothing, where it has no
    kernel. ``expected`` is the number of the one that is expected to be (their number, if none is): the others are
    compiled when they are needed.
    """

    kernel: str
    args: tuple[Any, ...]
    alternatives: tuple[Alternative, ...] = ()
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class Extern:
    """Calls a library operator; ``strides`` holds what a result's layout has to be, None where it does not matter.

    ``binds`` names extents of its results, ``(name, position of the result, axis)``, which the strides may use.
    ``origin`` says what the call came from, for people: ``"aten.linalg_solve (model.py:12)"``.
    """

    target: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[str | None, ...]
    strides: tuple[tuple[Expr, ...] | None, ...] | None = None
    binds: tuple[tuple[str, int, int], ...] = ()
    origin: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Item:
    """Reads a one-element tensor into a Python number."""

    name: str
    source: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Free:
    """Drops names."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Copy:
    """Copies the elements of ``source`` into ``to``."""

    to: str
    source: str


@dataclass(frozen=True, slots=True)
class Check:
    """Stops the program unless a condition holds; the error has the message, and the values of what is named.

    ``error`` says which one it is, if it is one of `ferrite_runtime.errors.CHECK_ERRORS`.
    """

    holds: Condition
    message: str
    names: tuple[tuple[str, Expr], ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Within:
    """Stops the program unless the memory of ``owner`` reaches to ``end``, in bytes from its first element.

    ``owner`` is a result of an extern call, of which only the tensor itself tells how large it is. The step is made
    where a program is loaded (``buffer_bounds.py``), and is never part of a stored one.
    """

    owner: str
    end: Expr


Step: TypeAlias = "Alloc | Keep | Reuse | View | Let | Launch | Extern | Item | Free | Copy | Check | Within | CallStep"

DEVICES = ("cpu", "cuda", "hip", "xpu", "mps", "meta", "tpu")
"""Types of devices that a program may name; what has no engine here is refused where the program is loaded."""
CLOSED_TAGS: Mapping[str, tuple[str, ...]] = {
    "device": DEVICES,
    "layout": ("strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "jagged"),
    "memory_format": ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d"),
    "float": ("inf", "-inf", "nan"),
}
"""The values of tags that have few: names of torch's, each the attribute of ``torch`` of that name."""


def value_refs(value: Any) -> list[str]:
    """Returns the names that an extern argument refers to, in order."""
    pending, names = [value], []
    while pending:
        current = pending.pop()
        if isinstance(current, Tagged) and current.tag == "ref":
            names.append(str(current.value))
        elif isinstance(current, tuple):
            pending.extend(reversed(current))
    return names


def value_sizes(value: Any) -> list[Expr]:
    """Returns the expressions in an extern argument, in order."""
    pending, found = [value], []
    while pending:
        current = pending.pop()
        if isinstance(current, Tagged) and current.tag == "size":
            found.append(current.value)
        elif isinstance(current, tuple):
            pending.extend(reversed(current))
    return found
