"""Sort-based scatter: where many rows are combined into few, they are sorted first and combined in registers.

Adding half a million rows into four thousand destinations takes an atomic instruction for each element, which the
cache carries out one after the other. In the order of their destinations most rows have that of the row before: a
program combines such neighbours in registers and needs one instruction where a segment of equal destinations ends.

Sorting the destinations by an extern call costs about as much as it saves where rows are short, or few of them
share a destination.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from ferrite_ir.language.dtypes import I16, I32, I64, DType
from ferrite_ir.language.graph import Definition, Extern, Graph, Loop, TensorType, Update, whole
from ferrite_ir.language.index import Dim, Indirect, delinearize, indirect
from ferrite_ir.language.scalar import Scalar, apply, cast, const, load, substitute_dims
from ferrite_ir.language.sizes import is_static
from ferrite_scheduler.kernels.tiling import fills_tiles
from ferrite_scheduler.model.annotations import SortedScatter
from ferrite_scheduler.model.intermediates import fresh_dim, new_value
from ferrite_scheduler.model.policy import Policy

from .segmented_reductions import plain_atom

COMBINED = ("add", "max", "min")


def sort_scatters(graph: Graph, policy: Policy) -> Graph:
    """Returns the graph with such updates in the order of their destinations; the same object where there are none."""
    if not policy.sort_scatters:
        return graph
    types = {name: value.type for name, value in graph.values.items()}
    definitions: list[Definition] = []
    for definition in graph.definitions:
        destination = _destination_of(definition, types, policy) if isinstance(definition, Update) else None
        if destination is None or not isinstance(definition, Update):
            definitions.append(definition)
        else:
            definitions.extend(_sorted(definition, destination, types))
    return replace(graph, definitions=tuple(definitions)) if len(definitions) > len(graph.definitions) else graph


def _destination_of(update: Update, types: dict[str, TensorType], policy: Policy) -> Indirect | None:
    """Returns the row that an update combines into, if whole rows are, enough of them, and long ones."""
    if update.mode not in COMBINED or update.condition is not None:
        return None
    if not all(is_static(dim.size) for dim in update.dims) or not update.body.dtype.is_float:
        return None
    found: list[Indirect] = []
    columns: list[Dim] = []
    for index in update.indices:
        atom = plain_atom(index)
        if isinstance(atom, Dim):
            columns.append(atom)
        elif isinstance(atom, Indirect):
            found.append(atom)
        else:
            return None
    if len(found) != 1 or not isinstance(found[0].value, Scalar) or not is_static(found[0].size):
        return None
    rows = [dim for dim in update.dims if dim not in columns]
    count, width = _extent(rows), _extent(columns)
    whole_rows = len(set(columns)) == len(columns) and found[0].value.dims == frozenset(rows) and columns
    # Bytes that atomic instructions would move, in 32 bits each.
    heavy = width >= policy.sorted_row and count * width * 4 >= policy.sorted_bytes and fills_tiles(width, policy)
    return found[0] if whole_rows and heavy and count >= policy.sorted_collisions * int(found[0].size) else None


def _extent(dims: list[Dim]) -> int:
    return prod(int(dim.size) for dim in dims)


def _sorted(update: Update, destination: Indirect, types: dict[str, TensorType]) -> Iterator[Definition]:
    """Yields the keys, the call that sorts them, and the update of its rows in their order."""
    row = cast(_scalar(destination), I64)
    rows = [dim for dim in update.dims if dim in row.dims]
    sizes, count = tuple(dim.size for dim in rows), _extent(rows)
    # Destinations that fit in 16 bits are sorted in half as many passes as those that need 32.
    narrow = I16 if int(destination.size) <= I16.highest else I32
    kind = TensorType(narrow, (count,), device=types[update.target].device)
    name = update.result.name
    keys, ranked = new_value(f"{name}_keys", kind, types), new_value(f"{name}_ranked", kind, types)
    order = new_value(f"{name}_order", replace(kind, dtype=I64), types)
    position = fresh_dim("q", count, update.dims)
    point = dict(zip(rows, delinearize(position.index, sizes), strict=True))
    yield Loop((keys,), (position,), (cast(_clamped(substitute_dims(row, point), narrow), narrow),), update.origins)
    arguments = (("stable", True), ("dim", 0), ("descending", False))
    yield Extern((ranked, order), "aten.sort.stable", (whole(keys),), arguments, origins=update.origins)
    source = delinearize(indirect(load(order.name, [position.index], I64), count), sizes)
    here = cast(load(ranked.name, [position.index], narrow), I64)
    body = substitute_dims(update.body, dict(zip(rows, source, strict=True)))
    found = indirect(here, destination.size, destination.wraps)
    indices = tuple(found if index == destination.index else index for index in update.indices)
    dims = (position, *(dim for dim in update.dims if dim not in rows))
    yield SortedScatter(update.result, update.target, update.mode, dims, indices, body, None, update.origins, count)


def _clamped(value: Scalar, dtype: DType) -> Scalar:
    """Returns an integer cut to what a narrower type holds: what is no destination stays none."""
    return apply("minimum", apply("maximum", value, const(dtype.lowest, I64)), const(dtype.highest, I64))


def _scalar(destination: Indirect) -> Scalar:
    if not isinstance(destination.value, Scalar):
        raise TypeError(f"a place that is no scalar: {destination.value!r}")
    return destination.value
