"""Wider tables of configs, for tuning with full effort: shapes that are seldom best, and sometimes are.

The requested tiles, and how they are fitted to a kernel's sizes, are those of PyTorch's compiler, so that what it would
find by measuring is among what is measured here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.kernel_spec import Axis
from ferrite_runtime.policies.blocks import next_power_of_two, previous_power_of_two
from ferrite_runtime.policies.shape import Shape
from ferrite_runtime.policies.thresholds import TABLES

MAX_BLOCKS = {"x": 4096, "y": 1024, "z": 1024}
# Requested tiles: x, y(, z) of pointwise kernels; columns, depth, warps (None: by size) of reductions.
TILES_2D = ((32, 32), (64, 64), (256, 16), (16, 256))
TILES_3D = ((16, 16, 16), (64, 8, 8), (8, 64, 8), (8, 8, 64))
REDUCTION_TILES: tuple[tuple[int, int, int | None], ...] = ((64, 8, None), (64, 64, None), (8, 512, None), (64, 4, 8))


def _real_axes(shape: Shape) -> list[Axis]:
    found = [axis for axis in shape.axes("grid") if shape.sizes[axis.name] > 1]
    return sorted(found, key=lambda axis: axis.name) or list(shape.axes("grid")[:1])


def _hints(shape: Shape, axes: Sequence[Axis]) -> list[int]:
    """Returns the sizes of some axes as powers of two, bounded by what a block of the axis may be."""
    return [shape.limit(axis) for axis in axes]


def flat_block(points: int) -> int:
    """Returns the block of a flat loop over so many points."""
    return min(1024, max(256, previous_power_of_two(points // 128)))


def fit_tile(requested: Sequence[int], hints: Sequence[int], most: Sequence[int]) -> list[int]:
    """Returns a tile of about as many elements as was requested, cut to the sizes and grown along the first axes."""
    target = math.prod(requested)
    if math.prod(hints) < target:
        target //= TABLES.small_share
    blocks = [min(block, hint) for block, hint in zip(requested, hints, strict=True)]
    for position, limit in enumerate(most):
        while blocks[position] < min(limit, hints[position]) and math.prod(blocks) < target:
            blocks[position] *= 2
    return blocks


def pointwise_table(shape: Shape) -> tuple[Config, ...]:
    """Returns the tiles of a kernel of one to three axes."""
    axes = _real_axes(shape)
    if not 1 <= len(axes) <= 3:
        return ()
    hints, flat = _hints(shape, axes), flat_block(shape.points)
    if len(axes) == 1:
        requests = [((flat,), TABLES.wide_warp), ((flat // 2,), TABLES.narrow_warp)]
    else:
        lines = [tuple(flat if position == long else 1 for position in range(len(axes))) for long in range(len(axes))]
        requests = [(tile, TABLES.wide_warp) for tile in (*(TILES_2D if len(axes) == 2 else TILES_3D), *lines)]
    found = []
    for requested, per_warp in requests:
        blocks = fit_tile(requested, hints, [MAX_BLOCKS[axis.name] for axis in axes])
        size = math.prod(blocks)
        warps = min(TABLES.pointwise_warps, max(1, size // per_warp))
        found.append(_config(shape, axes, blocks, max(4, warps) if size >= TABLES.few_elements else warps))
    return tuple(found)


def looped_table(shape: Shape) -> tuple[Config, ...]:
    """Returns the tiles of a kernel that reduces in a loop, of one grid axis and one reduction axis."""
    axes = [*_real_axes(shape), *shape.axes("reduction")]
    if len(axes) != 2:
        return ()
    hints = _hints(shape, axes)
    crowded = shape.points >= TABLES.crowded_points and shape.spec.facts.loads >= TABLES.crowded_loads
    depth = TABLES.depth // 2 if crowded else TABLES.depth
    reduction = hints[1]
    contiguous = (1, reduction if 256 <= reduction < depth else depth, None)
    tiny = (2 * (256 // reduction) if reduction <= 256 else 1, min(reduction, depth), None)
    found = []
    for columns, rows, warps in (contiguous, *REDUCTION_TILES, tiny):
        limited = crowded and (columns, rows) in ((1, depth), (64, 8))
        most = TABLES.crowded_warps if limited else TABLES.reduction_warps
        found.append(_reduction_config(shape, axes, (columns, rows), hints, warps, most))
    return tuple(found)


def _reduction_config(
    shape: Shape,
    axes: Sequence[Axis],
    requested: tuple[int, int],
    hints: Sequence[int],
    warps: int | None,
    most_warps: int,
) -> Config:
    target = math.prod(requested)
    if math.prod(hints) < target:
        target //= TABLES.small_share
    blocks = fit_tile(requested, hints, hints)
    warps = warps or next_power_of_two(max(2, min(most_warps, math.prod(blocks) // TABLES.reduction_warp)))
    while blocks[1] > 1 and math.prod(blocks) > target:
        blocks[1] //= 2
    return _config(shape, axes, blocks, warps)


def persistent_table(shape: Shape) -> tuple[Config, ...]:
    """Returns the numbers of rows that a kernel may hold at once which holds whole rows."""
    axes = _real_axes(shape)
    if len(axes) != 1:
        return ()
    row, limit = next_power_of_two(shape.reduction), shape.limit(axes[0])
    found = [rows for rows in TABLES.rows if rows == 1 or (rows * row <= TABLES.rows_tile and rows <= limit)]
    chosen = [_rows_config(shape, axes, rows, row, TABLES.crowded_warps) for rows in found]
    if row <= 256:
        chosen.append(_rows_config(shape, axes, min(2 * (256 // row), limit), row, TABLES.reduction_warps))
    return tuple(chosen)


def _rows_config(shape: Shape, axes: Sequence[Axis], rows: int, row: int, most_warps: int) -> Config:
    return _config(shape, axes, [rows], next_power_of_two(max(2, min(most_warps, rows * row // TABLES.reduction_warp))))


def _config(shape: Shape, axes: Sequence[Axis], blocks: Sequence[int], warps: int) -> Config:
    chosen: Mapping[str, int] = {axis.block: block for axis, block in zip(axes, blocks, strict=True)}
    free = [axis for axis in shape.spec.axes if axis.block not in shape.spec.blocks]
    fixed = {axis.block: chosen.get(axis.block, 1) for axis in free}
    # A reduction axis that the table says nothing of is held whole.
    fixed |= {a.block: shape.limit(a) for a in free if a.kind == "reduction" and a.block not in chosen}
    return Config.of(fixed, min(warps, shape.device.max_warps))
