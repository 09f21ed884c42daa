"""Slices of concatenations: what the library computes only to be put beside other values is written where it belongs.

    p = extern aten.mm.default(x, a)       home = extern aten.empty_strided.default([m, n + k], …)
    q = extern aten.mm.default(y, b)       s    = extern aten.mm.out(x, a, out=home as [m, n] by [n + k, 1])
    c = loop [i < m, j < n + k] p | q      c    = extern aten.mm.out(y, b, out=s as [m, k] by [n + k, 1] at n)

Each call makes a new version of the whole. Of what kernels make, one part may be left: an update stores it behind the
calls. The concatenation must be wanted in memory: kernels that are its only readers read its parts as well.

Only calls are changed whose operator writes to a tensor that it is given (`TAKES_ROWS`, `TAKES_DENSE`). Torch has such
an overload of nearly every operator, but most were generated: these compute a result of their own and copy it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ferrite_ir.language.graph import (
    Computed,
    Definition,
    Extern,
    Graph,
    Loop,
    TensorType,
    Update,
    Value,
    View,
    names_read,
    row_major,
)
from ferrite_ir.language.index import Index, linearize
from ferrite_ir.language.scalar import substitute_dims
from ferrite_ir.language.sizes import is_static, product
from ferrite_scheduler.analysis.concatenations import Part, parts_of
from ferrite_scheduler.analysis.generic_sizes import storage_bytes
from ferrite_scheduler.model.intermediates import empty_for, fresh_dim, new_value
from ferrite_scheduler.model.policy import Policy

TAKES_ROWS = frozenset(("aten.mm", "aten.bmm"))
"""Operators that write to a matrix whose rows lie apart, as fast as to one without gaps."""
TAKES_DENSE = frozenset(("aten.addmm", "aten.baddbmm", "aten._int_mm", "aten._scaled_mm", "aten.mv", "aten.addmv"))
"""Operators that write to a tensor without gaps. What is added to a product is copied first where rows lie apart."""
_DEFAULT, _OUT = ".default", ".out"


@dataclass(frozen=True, slots=True)
class _Slice:
    """A call whose result is a slice of a concatenation: how it lies there, as the call sees it."""

    call: Extern
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class _Joined:
    """A concatenation, with the slices that calls make, and what is left, if anything is."""

    loop: Loop
    slices: Mapping[str, _Slice]
    rest: Part | None


def store_in_slices(graph: Graph, policy: Policy) -> Graph:
    """Returns the graph with such calls writing to slices; the same object where there are none."""
    found = list(_concatenations(graph, policy))
    return _rewritten(graph, found) if found else graph


# --- which ------------------------------------------------------------------------------------------------------------


def _concatenations(graph: Graph, policy: Policy) -> Iterator[_Joined]:
    """Yields the concatenations that calls may write to."""
    readers = Counter(name for each in graph.definitions for name in names_read(each))
    readers.update(graph.output_names)
    calls = {
        definition.results[0].name: definition
        for definition in graph.definitions
        if isinstance(definition, Extern) and _may_move(definition, readers) and definition.results[0] is not None
    }
    if not calls:
        return
    wanted, computed = _wanted(graph)
    for definition in graph.definitions:
        if (
            not isinstance(definition, Loop)
            or len(definition.results) != 1
            or not calls.keys() & names_read(definition)
        ):
            continue
        name = definition.results[0].name
        found = _joined(definition, calls, policy) if name in wanted else None
        if found is not None and (found.rest is None or name not in computed):
            yield found


def _may_move(call: Extern, readers: Counter[str]) -> bool:
    """Returns whether a call makes one new tensor that is read once, by an operator that takes a place for it."""
    operator = call.target.removesuffix(_DEFAULT)
    if operator not in TAKES_ROWS | TAKES_DENSE or not call.target.endswith(_DEFAULT) or len(call.results) != 1:
        return False
    (result,) = call.results
    is_plain = not (call.aliases or call.mutates or call.effects)
    return is_plain and result is not None and readers[result.name] == 1


def _wanted(graph: Graph) -> tuple[frozenset[str], frozenset[str]]:
    """Returns what is wanted in memory by others than kernels, and what kernels read."""
    outside = set(graph.output_names)
    inside: set[str] = set()
    for definition in graph.definitions:
        (inside if isinstance(definition, Computed) else outside).update(names_read(definition))
    return frozenset(outside), frozenset(inside)


def _joined(loop: Loop, calls: Mapping[str, Extern], policy: Policy) -> _Joined | None:
    """Returns a loop as a concatenation of results of calls, and one part more at most; None if it is none."""
    result = loop.results[0].type
    parts = parts_of(loop) if all(map(is_static, result.strides)) and result.dtype.kind != "opaque" else None
    if parts is None:
        return None
    slices: dict[str, _Slice] = {}
    rest: list[Part] = []
    for part in parts:
        found = _slice(loop, part, calls, policy)
        if found is None or found[0] in slices:
            rest.append(part)
        else:
            slices |= [found]
    is_apart = all(load.source not in slices for part in rest for load in part.value.loads)
    return _Joined(loop, slices, rest[0] if rest else None) if slices and len(rest) <= 1 and is_apart else None


def _slice(loop: Loop, part: Part, calls: Mapping[str, Extern], policy: Policy) -> tuple[str, _Slice] | None:
    """Returns the name and the slice of a part that is all of what a call makes, if the call may write there."""
    whole, value = loop.results[0].type, part.value
    if value.op != "load" or value.source not in calls:
        return None
    call = calls[value.source]
    result = call.results[0]
    assert result is not None, "calls are known by their results"
    kind = result.type
    is_like = kind.dtype is whole.dtype and kind.device == whole.device and kind.strides == row_major(kind.shape)
    if not is_like or not all(map(is_static, kind.strides)) or storage_bytes(kind) < policy.slice_bytes:
        return None
    extents = (part.end - part.start if dim is part.dim else dim.size for dim in loop.dims)
    lies = _lies(value.indices, kind, tuple(dim.index for dim in loop.dims), whole)
    if lies is None or product(extents) != kind.numel:
        return None
    strides, offset = lies
    is_taken = _is_taken(call.target.removesuffix(_DEFAULT), kind, strides, offset, policy)
    return (result.name, _Slice(call, strides, offset)) if is_taken else None


def _lies(
    indices: Sequence[Index], kind: TensorType, point: tuple[Index, ...], whole: TensorType
) -> tuple[tuple[int, ...], int] | None:
    """Returns the strides and the offset of the elements at ``indices`` of a tensor that are a point of another."""
    steps = {atom: int(stride) for index, stride in zip(point, whole.strides, strict=True) for atom, _ in index.terms}
    strides = [next((steps.get(atom, 0) for atom, factor in index.terms if factor == 1), 0) for index in indices]
    for axis in reversed(range(len(strides))):  # of an axis of one element it is as if rows had no gaps
        if kind.shape[axis] == 1:
            inner = axis + 1 < len(strides)
            strides[axis] = strides[axis + 1] * int(kind.strides[axis]) // int(kind.strides[axis + 1]) if inner else 1
    offset = linearize(point, whole.strides) - linearize(tuple(indices), tuple(strides))
    if not offset.is_constant or not isinstance(offset.const, int) or offset.const < 0:
        return None
    return tuple(strides), offset.const


def _is_taken(operator: str, kind: TensorType, strides: tuple[int, ...], offset: int, policy: Policy) -> bool:
    """Returns whether an operator writes to a tensor that lies so without a copy, as fast as to one of its own."""
    width, unit = kind.dtype.bytes, policy.slice_alignment
    if offset * width % unit:
        return False
    pairs = list(zip(kind.shape, strides, row_major(kind.shape), strict=True))
    if all(stride == dense for size, stride, dense in pairs if size != 1):
        return True
    rows_apart = len(strides) >= 2 and strides[-1] == 1 and strides[-2] >= int(kind.strides[-2])
    return operator in TAKES_ROWS and rows_apart and all(stride * width % unit == 0 for stride in strides[:-1])


# --- what becomes of them ---------------------------------------------------------------------------------------------


def _rewritten(graph: Graph, found: Iterable[_Joined]) -> Graph:
    """Returns the graph with calls that write to slices of concatenations."""
    joined = {each.loop.results[0].name: each for each in found}
    homes = _Homes(graph, {name: each.loop.results[0].name for each in joined.values() for name in each.slices})
    definitions: list[Definition] = []
    for definition in graph.definitions:
        names = [result.name for result in definition.results if result is not None]
        name = names[0] if len(names) == 1 else ""
        if name in joined:
            rest = joined[name].rest
            definitions += [] if rest is None else [_stored(joined[name].loop, rest, homes.latest[name])]
        elif name in homes.of_call:
            definitions += homes.written(name, joined[homes.of_call[name]])
        else:
            definitions.append(definition)
    return replace(graph, definitions=tuple(definitions))


class _Homes:
    """Where concatenations lie while calls write to them.

    Attributes:
        of_call: the concatenation that each call writes to, by the names of their results.
        latest: the last version so far of each concatenation.
    """

    def __init__(self, graph: Graph, of_call: Mapping[str, str]) -> None:
        self.of_call = of_call
        self.latest: dict[str, Value] = {}
        self._device = graph.device
        self._types = {name: value.type for name, value in graph.values.items()}
        self._waiting = Counter(of_call.values())

    def written(self, name: str, joined: _Joined) -> Iterator[Definition]:
        """Yields the call of this name as one that writes to its slice, behind what makes the whole if it is the first.

        The last call makes the concatenation itself, if nothing is left.
        """
        whole = joined.loop.results[0]
        if whole.name not in self.latest:
            self.latest[whole.name], made = empty_for(whole, self._types, self._device)
            yield replace(made, origins=joined.loop.origins)
        self._waiting[whole.name] -= 1
        is_last = self._waiting[whole.name] == 0 and joined.rest is None
        version = whole if is_last else new_value(f"{name}_stored", whole.type, self._types)
        yield _written(joined.slices[name], self.latest[whole.name], version)
        self.latest[whole.name] = version


def _written(slice_: _Slice, target: Value, version: Value) -> Extern:
    """Returns a call that writes to its slice of a tensor, of which it makes a new version."""
    call = slice_.call
    (result,) = call.results
    assert result is not None, "calls are known by their results"
    place = View(target.name, result.type.dtype, result.type.shape, slice_.strides, slice_.offset)
    return replace(
        call,
        results=(version,),
        target=call.target.removesuffix(_DEFAULT) + _OUT,
        kwargs=(*call.kwargs, ("out", place)),
        aliases=((version.name, target.name),),
        mutates=(target.name,),
    )


def _stored(loop: Loop, rest: Part, target: Value) -> Update:
    """Returns the update that stores what no call makes."""
    dim = fresh_dim("d", rest.end - rest.start, loop.dims)
    dims = tuple(dim if each is rest.dim else each for each in loop.dims)
    place = dim.index + rest.start
    point = tuple(place if each is rest.dim else each.index for each in loop.dims)
    body = substitute_dims(rest.value, {rest.dim: place})
    return Update(loop.results[0], target.name, "set", dims, point, body, origins=loop.origins)
