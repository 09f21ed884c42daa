"""Tensor descriptors of what a kernel multiplies, and loads of blocks through them.

    in0_blocks = make_tensor_descriptor(in0, [4096, 1024], [1024, 1], [YBLOCK, RBLOCK])      before all tiles
    load = in0_blocks.load([yfirst, rstart]) if LBLOCK > 1 else tl.load(in0 + y * 1024 + r, …)

Whether blocks come by descriptors or by pointers is a number of the config: devices before sm_90 have none, and where a
program computes little, making them takes longer than they save. The compiler leaves out what is not chosen.
"""

from __future__ import annotations

from collections.abc import Mapping

from ferrite_ir.language.dtypes import I32, I64
from ferrite_ir.language.scalar import Scalar
from ferrite_triton.analysis.described_blocks import DescribedBlock, described_blocks
from ferrite_triton.analysis.flat import FlatKernel
from ferrite_triton.analysis.space import DESCRIPTORS_AXIS, NO_AXES
from ferrite_triton.bodies.builder import Builder
from ferrite_triton.tile.build import converted
from ferrite_triton.tile.language import (
    Block,
    Choose,
    Describe,
    Expression,
    Literal,
    Load,
    LoadBlock,
    Name,
    Offset,
    Reshape,
    Shape,
    Transpose,
)


class Descriptors:
    """Writes the descriptors of a kernel when it is made, and loads through them."""

    def __init__(self, flat: FlatKernel, builder: Builder) -> None:
        self._builder = builder
        axis = flat.space.axis(DESCRIPTORS_AXIS)
        self._constant = Block(axis.constant) if axis is not None else None
        self._blocks: Mapping[Scalar, DescribedBlock] = described_blocks(flat) if axis is not None else {}
        self._names = {block: self._describe(block) for block in self._blocks.values()}

    def _describe(self, block: DescribedBlock) -> Expression:
        """Writes a descriptor; returns its name."""
        pointer: Expression = Name(block.param)
        if block.first:
            pointer = Offset(pointer, Literal(block.first, I64))
        extents = (Literal(extent, I32) for extent in block.extents)
        steps = (Literal(step, I64) for step in block.steps)
        made = Describe((pointer, *extents, *steps), _shape(block))
        return self._builder.let(f"{block.param}_blocks", made, NO_AXES).expression

    def choice(self, node: Scalar, load: Load, order: tuple[str, ...]) -> Expression:
        """Returns a load that the config makes through a descriptor or by pointers; by pointers where there is none.

        Args:
            node: what is loaded.
            load: the same by pointers, of a tile inside no conditions but that positions lie inside their axes.
            order: the axes of the tile.
        """
        block = self._blocks.get(node)
        if block is None or self._constant is None:
            return load
        starts = tuple(map(self._start, block.axes))
        made: Expression = LoadBlock((self._names[block], *starts))
        tiled = tuple(name for name in block.axes if name in order)
        if tiled != block.axes:
            made = Reshape(made, tuple(Block(f"{name.upper()}BLOCK") for name in tiled))
        if tiled != order:
            made = Transpose(made, tuple(map(tiled.index, order)))
        return Choose(made, load, self._constant)

    def _start(self, name: str) -> Expression:
        """Returns where along an axis the block of a tile begins."""
        positions = self._builder.positions
        start = positions[f"{name}first" if f"{name}first" in positions else name].position
        return converted(start, self._builder.type_of(start).dtype, I32)


def _shape(block: DescribedBlock) -> Shape:
    """Returns the shape of a block: of one point of a batch."""
    return tuple(1 if name == "z" else Block(f"{name.upper()}BLOCK") for name in block.axes)
