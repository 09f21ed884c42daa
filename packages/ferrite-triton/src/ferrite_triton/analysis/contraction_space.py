"""The axes of a contraction that is computed tile by tile, and those of its factors.

What is computed of the result has tiles ``[YBLOCK, XBLOCK]``. A factor has tiles of two of the three axes, in the order
in which they are multiplied: the left one ``[YBLOCK, RBLOCK]``, the right one ``[RBLOCK, XBLOCK]``. A program takes
``TBLOCK`` tiles, one after the other, where it updates nothing in place.
"""

from __future__ import annotations

from dataclasses import replace

from ferrite_ir.language.graph import Update
from ferrite_scheduler.model.axes import Axis
from ferrite_scheduler.model.contractions import LEAST_EXTENT
from ferrite_scheduler.model.schedule import Kernel
from ferrite_triton.analysis.lowering_policy import LOWERING
from ferrite_triton.analysis.space import DESCRIPTORS_AXIS, ROUNDS_AXIS, KernelAxis, Space, dim_mapping, free_axis
from ferrite_triton.analysis.traversal import InBlocks

RESULT, LEFT, RIGHT = ("y", "x"), ("y", "r"), ("r", "x")
"""The axes of tiles of the result and of the factors."""


def contraction_space(kernel: Kernel) -> Space:
    """Returns the space of a kernel that computes the tiles of a contraction; each tile is of one point of a batch."""
    axes = tuple(_axis(axis.name, axis) for axis in kernel.axes)
    if not any(isinstance(definition, Update) for definition in kernel.body):
        rounds = KernelAxis(ROUNDS_AXIS, 1, tiled=False, masked=False, block=None, max_block=LOWERING.most_rounds)
        axes = (rounds, *axes)
    return Space(axes, RESULT, dim_mapping(kernel.axes), kernel.form, InBlocks())


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
