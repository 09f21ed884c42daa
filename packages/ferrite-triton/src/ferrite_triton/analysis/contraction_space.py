"""The axes of a contraction that is computed tile by tile, and those of its factors.

What is computed of the result has tiles ``[YBLOCK, XBLOCK]``. A factor has tiles of two of the three axes, in the order
in which they are multiplied: the left one ``[YBLOCK, RBLOCK]``, the right one ``[RBLOCK, XBLOCK]``. A program takes
``TBLOCK`` tiles, one after the other, where it updates nothing in place.
"""

from __future__ import annotations

from dataclasses import replace

from ferrite_ir.language.graph import Computed, Contract, Segments, Update
from ferrite_ir.language.powers_of_two import next_power_of_two
from ferrite_scheduler.model.axes import Axis
from ferrite_scheduler.model.contractions import LEAST_EXTENT, part_products
from ferrite_scheduler.model.schedule import Kernel
from ferrite_triton.analysis.lowering_policy import LOWERING
from ferrite_triton.analysis.space import (
    DESCRIPTORS_AXIS,
    ROUNDS_AXIS,
    KernelAxis,
    Space,
    dim_mapping,
    flat_dim,
    free_axis,
)
from ferrite_triton.analysis.traversal import InBlocks

RESULT, LEFT, RIGHT = ("y", "x"), ("y", "r"), ("r", "x")
"""The axes of tiles of the result and of the factors."""
GROUPS_AXIS = "g"
"""The axis of the groups that rows, or what is summed over, are in: a tile is of one, see `bodies.products.groups`."""


def contraction_space(kernel: Kernel) -> Space:
    """Returns the space of a kernel that computes the tiles of a contraction; each tile is of one point of a batch."""
    axes = tuple(_axis(axis.name, axis) for axis in kernel.axes)
    grouped = next((d for d in kernel.body if isinstance(d, Contract) and d.segments is not None), None)
    if grouped is not None and grouped.segments is not None:
        return _grouped_space(kernel, axes, grouped.segments, "y" if grouped.has_grouped_rows else "r")
    if not any(isinstance(definition, Update) or _has_parts(definition) for definition in kernel.body):
        rounds = KernelAxis(ROUNDS_AXIS, 1, tiled=False, masked=False, block=None, max_block=LOWERING.most_rounds)
        axes = (rounds, *axes)
    return Space(axes, RESULT, dim_mapping(kernel.axes), kernel.form, InBlocks())


def _has_parts(definition: Computed) -> bool:
    """Returns whether a factor is multiplied in parts: a program has two loops then, which cannot become one."""
    return isinstance(definition, Contract) and part_products(definition) > 1


def _grouped_space(kernel: Kernel, axes: tuple[KernelAxis, ...], segments: Segments, name: str) -> Space:
    """Returns the space of a kernel in which the positions along the axis of this name are in groups.

    Where groups end, a program looks up for all of them at once, along an axis of its own.
    """
    groups = KernelAxis(GROUPS_AXIS, segments.group.size, tiled=False, masked=False, block=None, max_block=None)
    mapping = {segments.group: flat_dim(groups).index} | dim_mapping(kernel.axes)
    block = next_power_of_two(int(groups.size))
    groups = replace(groups, tiled=True, masked=groups.size != block, block=block, max_block=block)
    largest = LOWERING.largest_points if name == "r" else LOWERING.largest_tile
    # What lies past the end of a group is of the next one: there is always a mask.
    cut = tuple(replace(axis, masked=True, max_block=largest) if axis.name == name else axis for axis in axes)
    return Space(cut, RESULT, mapping, kernel.form, InBlocks(), inner=(groups,))


def with_descriptors(space: Space) -> Space:
    """Returns a space whose config says whether blocks are loaded by pointers (``LBLOCK`` 1) or descriptors (2)."""
    axis = KernelAxis(DESCRIPTORS_AXIS, 1, tiled=False, masked=False, block=None, max_block=2)
    return replace(space, axes=(axis, *space.axes))


def factor_space(space: Space, order: tuple[str, str]) -> Space:
    """Returns the space in which a factor of a contraction is computed, `LEFT` or `RIGHT`."""
    return replace(space, order=order)


def _axis(name: str, axis: Axis) -> KernelAxis:
    if name == "z":
        return KernelAxis(name, axis.size, tiled=False, masked=False, block=1, max_block=1)
    sure = LOWERING.tile_points if axis.is_reduction else LOWERING.tile_rows
    largest = LOWERING.largest_points if axis.is_reduction else LOWERING.largest_tile
    found = free_axis(name, axis.size, sure, largest)
    if found.max_block is None or found.max_block < LEAST_EXTENT:
        return replace(found, masked=True, max_block=largest)
    return found
