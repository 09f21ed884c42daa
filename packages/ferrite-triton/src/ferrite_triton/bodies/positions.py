"""Statements that say which positions of an axis a tile holds, and which of them lie past the end."""

from __future__ import annotations

from dataclasses import replace

from ferrite_ir.language.dtypes import I32, DType
from ferrite_ir.language.sizes import is_static
from ferrite_scheduler.model.annotations import LookBackScan
from ferrite_triton.analysis.space import KernelAxis, Space
from ferrite_triton.bodies.builder import AxisPosition, Builder
from ferrite_triton.tile.build import add, apply, block_size, both, converted, either, lanes, sub
from ferrite_triton.tile.language import Expression, Literal, Name


def block_of_line(scan: LookBackScan) -> Name:
    """Returns where along its line a program's part of it lies: parts are counted in the direction of the scan."""
    return Name("block" if scan.reverse else "part")


QUARTET = 4
"""Random numbers that come from one draw."""


def write_axis_positions(
    builder: Builder, space: Space, axis: KernelAxis, vector: Expression, end: Expression | None = None
) -> None:
    """Writes positions and mask of an axis.

    Args:
        builder: takes the statements.
        space: the axes of the kernel.
        axis: one of them.
        vector: the positions, of rank 1, in the type of addresses.
        end: what they lie before, if that is not the end of the axis.
    """
    along = frozenset((axis.name,))
    position = builder.let(axis.name, space.expand(axis.name, vector), along).expression
    mask = None
    if axis.masked:
        mask = builder.let(f"{axis.name}mask", _inside(builder, space, axis, position, end), along).expression
    builder.positions[axis.name] = AxisPosition(position, mask)


def write_misaligned_positions(
    builder: Builder, space: Space, axis: KernelAxis, vector: Expression, misaligned: Expression
) -> None:
    """Writes positions and mask of a reduction axis whose blocks begin before the row, by ``misaligned`` elements."""
    along = frozenset((axis.name,))
    before = builder.let("lanes", space.expand(axis.name, vector), along).expression
    position = builder.let(axis.name, sub(before, misaligned), along).expression
    dtype = builder.type_of(position).dtype
    size = space.params.value(axis.size, dtype)
    inside = both(apply("ge", position, Literal(0, dtype)), apply("lt", position, size))
    mask = builder.let(f"{axis.name}mask", inside, along).expression
    builder.positions["lanes"] = AxisPosition(before)
    builder.positions[axis.name] = AxisPosition(position, mask)


def number_quartets(builder: Builder, space: Space, axis: KernelAxis, first: Expression | None = None) -> None:
    """Writes the numbers of the quartets of positions that a tile holds, from a first one on (None for the first)."""
    vector: Expression = lanes(axis.constant, QUARTET)
    if first is not None:
        vector = add(first, converted(vector, I32, builder.type_of(first).dtype))
    along = frozenset((axis.name,))
    quartet = builder.let(f"{axis.name}_quarter", space.expand(axis.name, vector), along).expression
    builder.positions[axis.name] = replace(builder.positions[axis.name], quartet=quartet)


def positions_from(first: Expression, constant: str, dtype: DType) -> Expression:
    """Returns the positions of a block: its first one, of this type, and those behind it."""
    return add(first, converted(lanes(constant), I32, dtype))


def _inside(
    builder: Builder, space: Space, axis: KernelAxis, position: Expression, end: Expression | None
) -> Expression:
    """Returns which positions of an axis lie before its end.

    What a symbolic size leaves open, and the compiler makes much of, it says of all sizes for which there is such a
    tile: the least one that holds a whole axis is more than half full, and one position is never past the end.
    """
    dtype = builder.type_of(position).dtype
    one = apply("eq", block_size(axis.constant, dtype), Literal(1, dtype))
    if end is not None:
        return either(apply("lt", position, end), one)
    test = apply("lt", position, space.params.value(axis.size, dtype))
    if is_static(axis.size):
        return test
    if axis.is_reduction:
        half = apply("lt", position, block_size(axis.constant, dtype, 2))
        return test if space.loops else either(test, half)
    return test if axis.name == space.order[-1] else either(test, one)
