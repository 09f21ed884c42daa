"""Sub-buffer allocation: short-lived buffers lie in a part of another one which holds nothing at that time.

A large result that is made in strips, each computed in a buffer of its own and then stored where it belongs, has room
for the next strip itself, in rows that are still empty; and so have the rows of an operand that the last strip does not
read. What is to lie in a sub-buffer must begin as a buffer without contents (``aten.empty_strided``).
A part of another buffer holds nothing

- from the time on after which nothing touches that part, or
- if the buffer began without contents too, as long as nothing has touched that part.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ferrite_ir.language.graph import Extern, Graph, TensorType, Update, View, loads_of, views_in
from ferrite_ir.language.index import Index, linearize
from ferrite_ir.language.sizes import is_static
from ferrite_scheduler.analysis.dependences import Dependences
from ferrite_scheduler.analysis.nodes import Node
from ferrite_scheduler.model.intermediates import EMPTY
from ferrite_scheduler.model.schedule import Kernel

Work: TypeAlias = Kernel | Node
Span: TypeAlias = tuple[int, int]
"""Elements of a storage: from one on, up to and without another."""
ALIGNMENT = 256
"""Bytes that the beginning of a sub-buffer is a multiple of, as those of buffers are."""


@dataclass(frozen=True, slots=True)
class SubBuffer:
    """Where a buffer lies: in which other one, from which of its elements on."""

    inside: str
    offset: int


@dataclass(slots=True)
class _Life:
    """A buffer: when it is made and last touched, and at what times which of its elements are.

    Times are positions in the order of execution.
    """

    tensor: TensorType
    begin: int
    end: int
    is_empty: bool = False
    is_returned: bool = False
    touches: list[tuple[int, Span]] = field(default_factory=list)
    sub_buffers: list[tuple[int, int, Span]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Returns the number of elements of its storage."""
        return int(self.tensor.storage_size)


def find_sub_buffers(
    work: Sequence[Work], graph: Graph, dependences: Dependences, owned: Collection[str]
) -> dict[str, SubBuffer]:
    """Returns the buffers, by name, that can lie in others, for work in execution order.

    ``owned`` names the buffers that are the program's own, and known under one name on the host.
    """
    wanting = [name for item in work if (name := empty_name(item)) is not None]
    if all(name in dependences.kept for name in wanting):
        return {}
    lives = _lives(work, graph, dependences, owned)
    found: dict[str, SubBuffer] = {}
    for name in wanting:
        life = lives.get(name)
        if life is None or life.is_returned or not life.size:
            continue
        for other, outer in lives.items():
            offset = _offset(life, outer) if other != name and other not in found and not life.sub_buffers else None
            if offset is not None:
                outer.sub_buffers.append((life.begin, life.end, (offset, offset + life.size)))
                found[name] = SubBuffer(other, offset)
                break
    return found


def empty_name(item: Work) -> str | None:
    """Returns the name of the buffer without contents that an item makes, if it does that."""
    if isinstance(item, Kernel) or not isinstance(item.definition, Extern) or item.definition.target != EMPTY:
        return None
    (result,) = item.definition.results
    return None if result is None else result.name


def _lives(work: Sequence[Work], graph: Graph, dependences: Dependences, owned: Collection[str]) -> dict[str, _Life]:
    """Returns the buffers by name, the earliest first."""
    storage = dependences.storage
    lives: dict[str, _Life] = {}
    for position, item in enumerate(work):
        empty = empty_name(item)
        for name, span in _touches(item, graph):
            root = storage[name]
            tensor = graph.values[root].type
            if root not in owned or name == empty or not is_static(tensor.storage_size):
                continue
            life = lives.setdefault(root, _Life(tensor, position, position))
            # Where a view of the buffer under another name begins is not known.
            is_all = span is None or graph.values[name].type.storage_size != tensor.storage_size
            life.touches.append((position, (0, life.size) if is_all or span is None else span))
            life.end = position
        if empty is not None and empty in owned and is_static(graph.values[empty].type.storage_size):
            lives[empty] = _Life(graph.values[empty].type, position, position, is_empty=True)
    for name in dependences.kept:
        if storage[name] in lives:
            lives[storage[name]].is_returned = True
    return lives


def _touches(item: Work, graph: Graph) -> Iterator[tuple[str, Span | None]]:
    """Yields the names that an item touches, each with the elements, None for all."""
    if isinstance(item, Node):
        yield from ((name, None) for name in item.result_names)
        if not isinstance(item.definition, Extern):
            yield from ((name, None) for name in item.reads)
            return
        arguments = (*item.definition.args, *(value for _, value in item.definition.kwargs))
        yield from ((view.name, _viewed(view, graph)) for view in views_in(arguments))
        return
    updated = {definition.result.name for definition in item.body if isinstance(definition, Update)}
    yield from ((name, None) for name in item.stored if name not in updated)
    for definition in item.body:
        if isinstance(definition, Update):
            yield definition.target, _addressed(definition.target, definition.indices, graph)
        yield from ((load.source, _addressed(load.source, load.indices, graph)) for load in loads_of(definition))


def _viewed(view: View, graph: Graph) -> Span | None:
    if view.dtype is not graph.values[view.name].type.dtype:
        return None
    if not all(map(is_static, (view.offset, *view.shape, *view.strides))):
        return None
    reach = sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))
    return int(view.offset), int(view.offset + reach) + 1


def _addressed(name: str, indices: tuple[Index, ...], graph: Graph) -> Span | None:
    address = linearize(indices, graph.values[name].type.strides)
    low, high = address.lo, address.hi
    return (low, high + 1) if isinstance(low, int) and isinstance(high, int) else None


def _offset(inner: _Life, outer: _Life) -> int | None:
    """Returns from which element on a buffer fits into a part of another that holds nothing; None if it does not."""
    is_alive = outer.begin < inner.begin and (outer.is_returned or inner.begin <= outer.end)
    if not is_alive or inner.tensor.dtype is not outer.tensor.dtype or inner.tensor.device != outer.tensor.device:
        return None
    taken = [span for begin, end, span in outer.sub_buffers if begin <= inner.end and inner.begin <= end]
    found = None
    if outer.is_empty:
        earlier = [span for position, span in outer.touches if position <= inner.end]
        found = _gap(inner, outer.size, [*taken, *earlier])
    if found is None and not outer.is_returned:
        later = [span for position, span in outer.touches if position >= inner.begin]
        found = _gap(inner, outer.size, [*taken, *later])
    return found


def _gap(inner: _Life, size: int, spans: Sequence[Span]) -> int | None:
    """Returns the first aligned element from which on a buffer fits between spans."""
    step = ALIGNMENT // inner.tensor.dtype.bytes
    for start in (0, *sorted(high for _, high in spans)):
        low = -(-start // step) * step
        high = low + inner.size
        if high <= size and all(high <= other_low or other_high <= low for other_low, other_high in spans):
            return low
    return None
