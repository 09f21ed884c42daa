"""Index collisions: whether several points of an update may write one element, and which expressions say where."""

from __future__ import annotations

from ferrite_ir.language.graph import Update
from ferrite_ir.language.index import Dim, Index
from ferrite_ir.language.scalar import Scalar, indirects_of
from ferrite_ir.language.sizes import Size, hint, is_provably_at_most
from ferrite_triton.analysis.flat import FlatKernel
from ferrite_triton.analysis.size_params import magnitude
from ferrite_triton.analysis.space import Axes


def is_injective(offset: Index, points: dict[str, Size]) -> bool:
    """Returns whether different points of the axes ``points`` (sizes by name) provably have different offsets."""
    extents: list[tuple[Size, Size]] = []
    seen: set[str] = set()
    for atom, coefficient in offset.terms:
        if not isinstance(atom, Dim) or atom.name in seen:
            return False
        seen.add(atom.name)
        extents.append((magnitude(coefficient), atom.size))
    if any(size not in (0, 1) and name not in seen for name, size in points.items()):
        return False
    reach: Size = 0
    for stride, size in sorted(extents, key=lambda extent: (hint(extent[0]), hint(extent[1]))):
        if not is_provably_at_most(reach + 1, stride):
            return False
        reach = reach + stride * (size - 1)
    return True


def needs_atomics(flat: FlatKernel, update: Update) -> bool:
    """Returns whether indices of the update may collide: several points then write one element."""
    points = {axis.name: axis.size for axis in flat.space.axes if axis.name in domain_axes(flat, update)}
    return update.mode != "set" and not is_injective(flat.offset(update.result.name, update.indices), points)


def domain_axes(flat: FlatKernel, update: Update) -> Axes:
    """Returns the axes, longer than one point, in which the dims of the update lie."""
    longer = {axis.name for axis in flat.space.axes if axis.size != 1}
    return frozenset(
        axis.name for axis in flat.kernel.axes if axis.name in longer and any(dim in axis.dims for dim in update.dims)
    )


def update_scalars(update: Update) -> tuple[Scalar, ...]:
    """Returns the expressions of an update, those inside its indices and those beside its body included."""
    own = (update.body,) if update.condition is None else (update.body, update.condition)
    return (*own, *update.scalars_beside, *indirects_of(update.indices))
