"""Thread-local reduction: what one thread holds along the reduction axis shares an accumulator of the loop.

A thread reads 16 bytes at a time. Where the elements in them lie next to each other along the reduction axis, a tile
``[…, RBLOCK]`` is ``[…, RBLOCK // n, n]`` without moving anything between threads. Where rows begin at no multiple of
16 bytes a thread reads less at a time, and the rest of what it holds further on: ``[…, m, RBLOCK // (m * n), n]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ferrite_ir.language.graph import Reduction
from ferrite_ir.language.sizes import Size, is_provably_at_most, is_static
from ferrite_ir.passes.vectors import VECTOR_BYTES
from ferrite_triton.analysis.flat import FlatKernel, memory_loads
from ferrite_triton.analysis.loop_plan import plan_passes
from ferrite_triton.analysis.lowering_policy import LOWERING
from ferrite_triton.analysis.rows import behind, is_aligned_row
from ferrite_triton.analysis.space import Axes, Space
from ferrite_triton.tile.language import Block, Expand, Expression, Extent, Reduce, Reshape, Shape

GROUPED = ("welford", "online_softmax")
"""Combines for which a kernel groups what a thread holds."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """How a block of the reduction axis is split: ``[far, RBLOCK // (far * near), near]`` of it.

    Attributes:
        far: points that a thread holds at equal distances.
        near: points that a thread holds next to each other.
    """

    far: int
    near: int

    @property
    def count(self) -> int:
        """Returns how many points are reduced among themselves."""
        return self.far * self.near


@dataclass(frozen=True, slots=True)
class TakenApart:
    """How a tile whose reduction axis is split into groups looks.

    Attributes:
        states: shape of what there is one of for each group.
        parts: shape of the tile.
        axes: those of the tile along which a group lies, the last one first.
    """

    states: Shape
    parts: Shape
    axes: tuple[int, ...]

    @classmethod
    def of(cls, space: Space, axes: Axes, groups: Grouping) -> TakenApart:
        """Returns the shapes for tiles that vary along some axes, the reduction axis among them."""
        position = space.reduction_position
        shape = list(space.shape(axes))
        shape[position] = Block("RBLOCK", groups.count)
        parts: list[Extent] = list(shape)
        reduced: list[int] = []
        if groups.near > 1:
            parts.insert(position + 1, groups.near)
            reduced.append(position + 1)
        if groups.far > 1:
            parts.insert(position, groups.far)
            reduced = [*(axis + 1 for axis in reduced), position]
        return cls(tuple(shape), tuple(parts), tuple(reduced))

    def group(self, tile: Expression) -> Expression:
        """Returns the tile with that axis split."""
        return Reshape(tile, self.parts)

    def spread(self, state: Expression) -> Expression:
        """Returns what each group has one of, for each of its points."""
        return Expand(state, tuple(sorted(self.axes)))

    def reduced(self, group: Expression, combine: str) -> Expression:
        """Returns a tile that is split, with its groups reduced by a combine."""
        for axis in self.axes:
            group = Reduce((group,), combine, axis)
        return group


def grouping(flat: FlatKernel, reduction: Reduction) -> Grouping:
    """Returns how the points that a thread holds lie along the reduction axis; groups of one where that is not known.

    A thread reads neighbours if rows begin at multiples of what it can read at once. Whatever else it holds are the
    points that the threads of a program reach in further steps: of rows that begin anywhere, and of columns.
    """
    axis = flat.space.reduction
    has_moments = reduction.combine == "welford"
    if axis is None or (has_moments and axis.masked):  # groups of moments count alike
        return Grouping(1, 1)
    if flat.space.order == ("r", "x"):
        # Kernels of either kind get blocks of several rows to a thread.
        is_read_again = len(plan_passes(flat).loops) > 1
        is_long = is_provably_at_most(LOWERING.grouped_column, axis.max_block or axis.size)
        return Grouping(LOWERING.grouped_share, 1) if is_long and (is_read_again or has_moments) else Grouping(1, 1)
    is_long = flat.space.least >= LOWERING.grouped_points or is_provably_at_most(LOWERING.grouped_points, axis.size)
    if flat.space.order[-1:] != ("r",) or not is_long:
        return Grouping(1, 1)
    found: tuple[int, int] | None = None
    for load in memory_loads(flat, reduction.bodies):
        offset = flat.offset(load.source, load.indices)
        if not any(dim.name == "r" for dim in offset.dims):
            continue
        if behind(offset) is None:
            return Grouping(1, 1)
        width = VECTOR_BYTES // flat.param_of(load.source).dtype.bytes
        if flat.space.misalignment is not None:
            return Grouping(1, width)
        # The compiler looks at addresses alone: where the last row's end is no multiple, threads hold the same points.
        near = next(n for n in _halves(width) if is_aligned_row(offset, n, row=_row_of_multiples(flat.space, n)))
        # Of several operands, the one that is read in the smallest pieces says how all of them lie.
        found = min(found or (near, width), (near, width))
    if found is None:
        return Grouping(1, 1)
    near, width = found
    return Grouping(1 if near == width else max(1, LOWERING.grouped_share // near), near)


def _row_of_multiples(space: Space, width: int) -> Size:
    """Returns the length of rows where it is symbolic and a multiple of ``width``, else 0."""
    return space.reduction_size if space.multiple % width == 0 and not is_static(space.reduction_size) else 0


def needed_multiple(flat: FlatKernel) -> int:
    """Returns what a symbolic reduction axis has to be a multiple of for threads to hold neighbours in groups, or 1.

    It is the number of elements of the narrowest operand of a grouped reduction that a thread reads at once.
    """
    axis = flat.space.reduction
    if axis is None or is_static(axis.size):
        return 1
    reductions = [
        d for d in flat.definitions if isinstance(d, Reduction) and d.combine in GROUPED and len(d.bodies) == 1
    ]
    loads = [load for reduction in reductions for load in memory_loads(flat, reduction.bodies)]
    multiple = max((VECTOR_BYTES // flat.param_of(load.source).dtype.bytes for load in loads), default=1)
    aligned = replace(flat, space=replace(flat.space, multiple=multiple))
    return multiple if any(grouping(flat, reduction) != grouping(aligned, reduction) for reduction in reductions) else 1


def rows_together(flat: FlatKernel) -> int:
    """Returns how many rows of its columns a thread of a kernel should hold; 1 where it does not matter."""
    if not flat.space.loops or flat.space.order != ("r", "x"):
        return 1
    reductions = [
        d for d in flat.definitions if isinstance(d, Reduction) and d.combine in GROUPED and len(d.bodies) == 1
    ]
    return max((grouping(flat, reduction).far for reduction in reductions), default=1)


def _halves(width: int) -> Iterator[int]:
    """Yields ``width``, half of it and so on down to one."""
    while width:
        yield width
        width //= 2
