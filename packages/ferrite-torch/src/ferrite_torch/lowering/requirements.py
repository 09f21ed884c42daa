"""What eager asks of the contents of tensors: conditions that kernels check while they run.

A value that must be in a range is wrapped in an operation of `ferrite_ir.ops.REQUIREMENTS`, which stops the program where
the condition is false. Places of loads and stores carry their bound and need none, unless the place itself gets lost: in
tensors without dims, in expanded ones, and in values that do not depend on where they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ferrite_ir import scalar as sc
from ferrite_ir.dtypes import I64
from ferrite_ir.graph import Loop
from ferrite_ir.index import FloorDiv, Index, Indirect, Mod
from ferrite_ir.scalar import Scalar
from ferrite_ir.sizes import Size
from ferrite_torch.builder import Builder
from ferrite_torch.lowering.expressions import both, ge, lifted, lt
from ferrite_torch.tensors import Point

DEEPEST = 8
"""Loops, one reading the other, that are looked through: behind more a place counts as kept."""


def required(what: str, condition: Scalar, value: Scalar) -> Scalar:
    """Returns a value that stands only where a condition holds; ``what`` is the rest of the operation's name."""
    return value if sc.is_constant(condition, True) else sc.apply(f"require_{what}", condition, value)


def within(value: Scalar, low: float, high: float) -> Scalar:
    """Returns whether a number is in a range, its ends included; NaN is in none."""
    return both(ge(value, low), sc.apply("le", value, lifted(high, value.dtype)))


def inside(place: Scalar, size: Size, *, wraps: bool) -> Scalar:
    """Returns whether a place is one of an axis of this size."""
    number = sc.cast(place, I64)
    return both(ge(number, -size if wraps else 0), lt(number, size))


def in_bounds(b: Builder, value: Scalar, point: Iterable[Index]) -> Scalar:
    """Returns a value read at a point, of which those places are required to exist that the load itself forgets."""
    for place in _indirects(point):
        if not _depends(b, value, place, DEEPEST):
            value = required("place", inside(place.value, place.size, wraps=place.wraps), value)
    return value


def _indirects(indices: Iterable[Index]) -> Iterator[Indirect]:
    pending = [index for index in indices if index.is_indirect]
    while pending:
        for atom, _ in pending.pop().terms:
            if isinstance(atom, Indirect):
                yield atom
            elif isinstance(atom, (FloorDiv, Mod)):
                pending.append(atom.numerator)


def _depends(b: Builder, value: Scalar, place: Indirect, depth: int) -> bool:
    """Returns whether a load from memory goes to the place, once the loops that are read are written into readers."""
    if depth == 0:
        return True
    for load in value.loads:
        if place not in _indirects(load.indices):
            continue
        made = next((d for d in b.definitions if isinstance(d, Loop) and d.results[0].name == load.source), None)
        if made is None:
            return True
        body = sc.substitute_dims(made.bodies[0], dict(zip(made.dims, load.indices, strict=True)))
        if _depends(b, body, place, depth - 1):
            return True
    return False
