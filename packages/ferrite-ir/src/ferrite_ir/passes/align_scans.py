"""Loop alignment of scans: they are made at the points where they are read, backwards, shifted or cut off."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from ferrite_ir.language import sizes
from ferrite_ir.language.combine_functions import CombineFunction
from ferrite_ir.language.dtypes import I64
from ferrite_ir.language.graph import Definition, Graph, Scan, TensorType, Value, loads_of, names_read
from ferrite_ir.language.index import Dim, Index, constant
from ferrite_ir.language.scalar import (
    Scalar,
    apply,
    const,
    index_value,
    load,
    replace_in_index,
    replace_loads,
    sizes_of,
    substitute_dims,
)
from ferrite_ir.language.sizes import Size
from ferrite_ir.reference.combine_semantics import neutral

from .rewriting import map_scalars, with_definitions


@dataclass(frozen=True, slots=True)
class AlignScans:
    """Makes scans that are read at one position along their axis, ``v[c + d]`` or ``v[c - d]``, scans read at d.

    A kernel that scans can then go on with what it has, where it would have had to store it first. What is read at
    ``c - d`` is scanned in the other direction. What is shifted, as exclusive scans are, is a scan of shifted operands:
    where there are none it combines the neutral element, so that nobody takes an element away again, which would lose
    digits, and infinities. All points that the scan begins with must have a position in the new one. Along its other
    axes a scan is made where it is read as well.

    Attributes:
        growth: a scan may get longer by one part in so many of its length, and by one point: longer ones would combine
            mostly neutral elements.
    """

    name: ClassVar[str] = "align_scans"
    growth: int = 8

    def run(self, graph: Graph) -> Graph:
        """Returns the graph with scans made where they are read, and their readers changed."""
        if not any(isinstance(definition, Scan) for definition in graph.definitions):
            return graph
        definitions = list(graph.definitions)
        for position in reversed(range(len(definitions))):
            scan = definitions[position]
            accesses = _accesses(scan, definitions, graph.output_names) if isinstance(scan, Scan) else {}
            if isinstance(scan, Scan) and accesses and not self._is_long(scan, accesses):
                moved = _Move(scan, accesses)
                definitions = list(map(moved.definition, definitions))
                definitions[position] = _aligned(scan, accesses)
        return with_definitions(graph, definitions)

    def _is_long(self, scan: Scan, accesses: Mapping[Dim, _Access]) -> bool:
        """Returns whether a scan would get too much longer where it is read."""
        if scan.along not in accesses:
            return False
        length, extent = sizes.hint(scan.along.size), sizes.hint(accesses[scan.along].extent)
        return extent * self.growth > length * (self.growth + 1) + self.growth


@dataclass(frozen=True, slots=True)
class _Access:
    """A position along a dim of a scan: ``sign * dim + offset``, where ``dim`` is the reader's and has this extent."""

    sign: int
    offset: Size
    extent: Size


def _access(index: Index) -> tuple[Dim, _Access] | None:
    """Returns the dim and the access that an index is, or None if it is none."""
    match index.terms:
        case ((Dim() as dim, (1 | -1) as sign),):
            return dim, _Access(sign, index.const, dim.size)
    return None


def _access_of(index: Index) -> _Access | None:
    found = _access(index)
    return None if found is None else found[1]


def _accesses(scan: Scan, definitions: Collection[Definition], kept: Collection[str]) -> dict[Dim, _Access]:
    """Returns where the results of a scan are read, along the dims along which it is to be made there.

    None of them if it is an output, or is read by a call, or at several positions along its axis.
    """
    names = {result.name for result in scan.results}
    loads: set[Scalar] = set()
    for definition in definitions:
        read = names.intersection(names_read(definition))
        found = [each for each in loads_of(definition) if each.source in read]
        if read != {each.source for each in found}:
            return {}
        loads.update(found)
    if not loads or not names.isdisjoint(kept):
        return {}
    accesses: dict[Dim, _Access] = {}
    for axis, dim in enumerate(scan.dims):
        positions = {_access_of(each.indices[axis]) for each in loads}
        access = positions.pop()
        fits = _has_begin if dim is scan.along else _is_inside
        if positions or access is None or not fits(scan, dim, access) or _lacks_neutrals(scan, dim, access):
            if dim is scan.along:
                return {}
        elif access != _Access(1, 0, dim.size):
            accesses[dim] = access
    return accesses


def _has_begin(scan: Scan, along: Dim, access: _Access) -> bool:
    """Returns whether all points before the first one that is read are points of a scan that is made there."""
    last = sizes.add(access.extent, -1)
    first = sizes.add(along.size, -1) if scan.reverse else 0
    begin = sizes.mul(access.sign, sizes.add(first, sizes.mul(-1, access.offset)))
    low, high = (begin, last) if _turns(scan, access) else (0, begin)
    return sizes.is_provably_at_most(low, high)


def _lacks_neutrals(scan: Scan, dim: Dim, access: _Access) -> bool:
    """Returns whether a scan that is made there would begin before the first point, and nothing is neutral to it."""
    is_named = not isinstance(scan.combine, CombineFunction)
    return dim is scan.along and not is_named and not _is_inside(scan, dim, access)


def _is_inside(_: Scan, dim: Dim, access: _Access) -> bool:
    """Returns whether all that is read along another dim is there."""
    position = _position(dim, access)
    return _is_after_begin(position) and _is_before_end(position, dim.size)


def _turns(scan: Scan, access: _Access) -> bool:
    """Returns whether the scan that is made where another one is read begins with the last point."""
    return scan.reverse != (access.sign < 0)


def _position(dim: Dim, access: _Access) -> Index:
    position: Index = Dim(dim.name, access.extent).index * access.sign + access.offset
    return position


def _is_after_begin(position: Index) -> bool:
    return position.lo is not None and sizes.is_provably_at_most(0, position.lo)


def _is_before_end(position: Index, size: Size) -> bool:
    return position.hi is not None and sizes.is_provably_at_most(position.hi, sizes.add(size, -1))


def _aligned(scan: Scan, accesses: Mapping[Dim, _Access]) -> Scan:
    """Returns the scan whose point is what another one has where it is read."""
    dims = tuple(Dim(dim.name, accesses[dim].extent) if dim in accesses else dim for dim in scan.dims)
    positions = {dim: _position(dim, access) for dim, access in accesses.items()}
    bodies = tuple(substitute_dims(body, positions) for body in scan.bodies)
    along, reverse = dims[scan.dims.index(scan.along)], scan.reverse
    if scan.along in accesses:
        reverse = _turns(scan, accesses[scan.along])
        position, others = positions[scan.along], _neutrals(scan)
        bodies = tuple(
            _masked(position, scan.along.size, body, other) for body, other in zip(bodies, others, strict=True)
        )
    results = tuple(_resized(result, sizes_of(dims)) for result in scan.results)
    return replace(scan, results=results, dims=dims, along=along, bodies=bodies, reverse=reverse)


def _masked(position: Index, size: Size, body: Scalar, other: Scalar) -> Scalar:
    """Returns a body where a position lies in ``[0, size)``, and something else where it does not."""
    number = index_value(position, I64)
    if not _is_before_end(position, size):
        body = apply("masked", apply("lt", number, index_value(constant(size), I64)), body, other)
    if not _is_after_begin(position):
        body = apply("masked", apply("ge", number, const(0, I64)), body, other)
    return body


def _neutrals(scan: Scan) -> tuple[Scalar, ...]:
    """Returns operands that change nothing before the first point; nobody looks at positions there.

    A user's combine has none: such a scan is only made where all of its points are points of the other one.
    """
    if isinstance(scan.combine, CombineFunction):
        return scan.bodies
    value, *positions = (body.dtype for body in scan.bodies)
    (nothing,) = neutral({"cummax": "max", "cummin": "min"}.get(scan.combine, scan.combine), value)
    return const(nothing, value), *(const(0, dtype) for dtype in positions)


def _resized(value: Value, shape: tuple[Size, ...]) -> Value:
    known = value.type
    return value if shape == known.shape else Value(value.name, TensorType(known.dtype, shape, device=known.device))


class _Move:
    """Changes what reads a scan to read it at the reader's dims themselves, along those dims of the scan."""

    def __init__(self, scan: Scan, along: Collection[Dim]) -> None:
        self._names = frozenset(result.name for result in scan.results)
        self._moves = tuple(dim in along for dim in scan.dims)
        self._memo: dict[Scalar, Scalar] = {}

    def definition(self, definition: Definition) -> Definition:
        """Returns a definition with its reads changed; the same object if there are none."""
        if self._names.isdisjoint(names_read(definition)):
            return definition
        return map_scalars(definition, self._scalar, self._index)

    def _scalar(self, body: Scalar) -> Scalar:
        return replace_loads(body, self._load, self._memo)

    def _index(self, index: Index) -> Index:
        return replace_in_index(index, self._load, self._memo) if index.is_indirect else index

    def _load(self, node: Scalar) -> Scalar | None:
        if node.source not in self._names:
            return None
        indices = [_dim_of(index) if moves else index for moves, index in zip(self._moves, node.indices, strict=True)]
        return load(node.source, indices, node.dtype)


def _dim_of(index: Index) -> Index:
    access = _access(index)
    assert access is not None, "all reads along these dims were found to be accesses"
    return access[0].index
