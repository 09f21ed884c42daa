"""Who reads what, at how many points and in which steps."""

from __future__ import annotations

from collections.abc import Iterable

from ferrite_ir import sizes
from ferrite_ir.graph import Definition, TensorType, Update, bodies_of, domain_of, index_loads
from ferrite_ir.index import Dim, Index, atom_dims
from ferrite_ir.scalar import Scalar
from ferrite_ir.sizes import Size


def loads_of(definition: Definition) -> tuple[Scalar, ...]:
    """Returns the distinct loads of a definition, those of an update's places included."""
    bodies = bodies_of(definition)
    if len(bodies) == 1 and not isinstance(definition, Update):
        return bodies[0].loads
    loads = [load for body in bodies for load in body.loads]
    if isinstance(definition, Update):
        loads += index_loads(definition.indices)
    return tuple(dict.fromkeys(loads))


def points_of(definition: Definition) -> Size:
    """Returns the number of points at which a definition's bodies are computed."""
    return sizes.product(dim.size for dims in domain_of(definition) for dim in dims)


def reading_points(definitions: Iterable[Definition]) -> dict[str, Size]:
    """Returns, for every value that definitions read, the largest number of points at which one of them does."""
    reach: dict[str, Size] = {}
    for definition in definitions:
        points = points_of(definition)
        for load in loads_of(definition):
            if not sizes.is_provably_at_most(points, reach.get(load.source, 0)):
                reach[load.source] = points
    return reach


def smallest_step(indices: tuple[Index, ...], read: TensorType, dims: frozenset[Dim]) -> int | None:
    """Returns the fewest elements between what neighbouring points along one of the dims read, None if unknown."""
    steps = [
        abs(stride * coefficient)
        for index, stride in zip(indices, read.strides, strict=True)
        for atom, coefficient in index.terms
        if isinstance(stride, int) and isinstance(coefficient, int) and atom_dims(atom) & dims
    ]
    return min((step for step in steps if step), default=None)
