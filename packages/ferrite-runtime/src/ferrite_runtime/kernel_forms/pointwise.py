"""Configs of kernels without a reduction: flat loops, and tiles where two axes are contiguous for different buffers."""

from __future__ import annotations

from dataclasses import replace

from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.facts import ComboFacts, PointwiseFacts, facts_as
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.policies.blocks import expected_points, next_power_of_two
from ferrite_runtime.policies.kernel_form import KernelForm
from ferrite_runtime.policies.occupancy import flops_per_point, spread
from ferrite_runtime.policies.roofline import ROOFLINE
from ferrite_runtime.policies.shape import Shape
from ferrite_runtime.policies.tables import pointwise_table
from ferrite_runtime.policies.thresholds import OCCUPANCY, POINTWISE


def pointwise_configs(shape: Shape) -> tuple[Config, ...]:
    """Returns the candidates of a pointwise kernel, best guess first."""
    real = sorted((axis for axis in shape.axes("grid") if shape.sizes[axis.name] > 1), key=lambda axis: axis.name)
    if facts_as(shape.spec.facts, PointwiseFacts).sorted and len(real) == 2:
        return _sorted_rows(shape, *(axis.name for axis in real))
    if facts_as(shape.spec.facts, PointwiseFacts).unrolled > 1 and len(real) <= 2:
        return _unrolled(shape, [axis.name for axis in real])
    first, *more = _flat(shape) if len(real) <= 1 else _tiled(shape, [axis.name for axis in real])
    return (spread(shape, first), first, *more)


def _flat(shape: Shape) -> tuple[Config, ...]:
    axis = next((a.name for a in shape.axes("grid") if shape.sizes[a.name] > 1), "x")
    # Half types move 16 bytes with 8 elements: twice the tile keeps as many bytes in flight per thread.
    full = POINTWISE.flat_tile * (2 if shape.element_bytes <= 1 else 1)
    if shape.buffers > POINTWISE.many_buffers:
        full //= 2
    tile = max(POINTWISE.small_tile, min(full, filling(shape)))
    warps = max(1, min(4, tile // (shape.device.target.warp_size * min(4, shape.vector))))
    facts = facts_as(shape.spec.facts, PointwiseFacts)
    apart = facts.percent_apart
    if apart < POINTWISE.few_apart and facts.window >= POINTWISE.least_window:
        # Each load takes one element of every thread: the further apart these are, the more lines it touches.
        elements = max(1, POINTWISE.window_bytes // max(1, shape.element_bytes))
        tile = min(tile, POINTWISE.window_threads * elements)
        warps = max(1, tile // (shape.device.target.warp_size * elements))
    if apart >= POINTWISE.few_apart:
        tile, warps = (tile // 2 if apart >= POINTWISE.most_apart else tile), POINTWISE.apart_warps
    first = shape.fit({axis: tile}, warps)
    return (first, *(shape.fit({axis: block}, w) for block, w in ((tile // 2, 4), (tile * 2, 8), (tile * 2, 4))))


def _unrolled(shape: Shape, names: list[str]) -> tuple[Config, ...]:
    """Returns the candidates of a kernel whose lanes have several results at each point: few points to a thread."""
    if len(names) <= 1:
        tiles, axis = POINTWISE.unrolled_tiles, next(iter(names), "x")
        return tuple(shape.fit({axis: tile}, warps) for tile, warps in tiles)
    x, y = names
    return tuple(shape.fit({x: width, y: rows}, warps) for width, rows, warps in POINTWISE.unrolled_rows)


def filling(shape: Shape) -> int:
    """Returns the tile with which there are programs enough for all multiprocessors."""
    return next_power_of_two(shape.points * shape.parts // (POINTWISE.fill * shape.device.multiprocessors))


def _rows(shape: Shape, names: list[str]) -> tuple[Config, ...]:
    """Returns the candidates of a kernel over rows (``y``) and columns (``x``) that moves data along rows only."""
    x, *rest = names
    tile = max(POINTWISE.small_tile, min(POINTWISE.row_bytes // (2 if shape.reads_16_bit else 4), filling(shape)))

    axis = next(axis for axis in shape.axes("grid") if axis.name == x)
    is_short = shape.limit(axis) < POINTWISE.full_width

    def rows(width: int, elements: int, warps: int) -> Config:
        width = min(width, shape.limit(axis))
        while (
            width > POINTWISE.row_width and -(-shape.sizes[x] // width) * width > POINTWISE.row_waste * shape.sizes[x]
        ):
            width //= 2
        return shape.fit({x: width, rest[0]: max(1, elements // width)}, warps)

    if is_short:
        # What is loaded once for a thread's rows is little, what they keep live is not.
        tile = min(tile, POINTWISE.flat_tile // (1 if shape.reads_16_bit else 2))
    first, long = rows(POINTWISE.full_width, tile, 4), rows(POINTWISE.long_width, tile, 2)
    more = (rows(512, tile * 2, 8), rows(POINTWISE.full_width, tile // 2, 4))
    if facts_as(shape.spec.facts, PointwiseFacts).window >= POINTWISE.least_window:
        return (rows(POINTWISE.full_width, POINTWISE.window_tile, POINTWISE.window_warps), first, long, *more)
    if shape.reads_16_bit and (shape.spec.facts.neighbours or facts_as(shape.spec.facts, PointwiseFacts).percent_apart):
        # Rows that are turned round, or begin elsewhere: whole ones.
        return (rows(POINTWISE.long_width, POINTWISE.long_width, 4), first, *more)
    if shape.reads_16_bit and shape.spec.facts.vectors:
        # What is loaded once for a thread's columns serves twice as many rows with half the threads.
        return (rows(POINTWISE.full_width, tile, 2), first, long, *more)
    return (long, first, *more) if shape.reads_16_bit and shape.sizes[x] >= POINTWISE.long_row else (first, long, *more)


def _sorted_rows(shape: Shape, x: str, y: str) -> tuple[Config, ...]:
    """Returns the candidates of a kernel that combines rows that follow each other: a warp for each few of them.

    A warp that has whole lines holds all of the rows of its columns in its own registers.
    """
    tiles = (
        (POINTWISE.sorted_rows, 1),
        (2 * POINTWISE.sorted_rows, 1),
        (2 * POINTWISE.sorted_rows, 2),
        (4 * POINTWISE.sorted_rows, 4),
    )
    return tuple(replace(shape, live=1).fit({x: POINTWISE.full_width, y: rows}, warps) for rows, warps in tiles)


def _tiled(shape: Shape, names: list[str]) -> tuple[Config, ...]:
    if not shape.spec.facts.transposed:
        return _rows(shape, names)
    # A side of 64 16-bit elements or 32 floats is a 128-byte line in either direction.
    side = 64 if shape.element_bytes <= 2 else 32
    tiles: tuple[tuple[dict[str, int], int], ...]
    if len(names) == 2:
        x, y = names
        run = next_power_of_two(shape.spec.facts.neighbours or side)
        # A square of 64 where both axes have it and every multiprocessor still gets a few tiles.
        square = ({x: 64, y: 64}, 8)
        line = ({x: side, y: 32}, 4 if side == 32 else 8)
        fills = all(shape.limit(axis) >= 64 for axis in shape.axes("grid") if axis.name in names)
        fills = fills and shape.points >= 64 * 64 * POINTWISE.fill * shape.device.multiprocessors
        fills = fills and flops_per_point(shape) < OCCUPANCY.busy_flops
        if POINTWISE.side < shape.sizes[y] < 2 * POINTWISE.side:
            square = ({x: 64, y: 2 * POINTWISE.side}, 8)
        elif shape.sizes[x] * shape.element_bytes % POINTWISE.sector:
            square = ({x: POINTWISE.ragged_run, y: 64 * 64 // POINTWISE.ragged_run}, 8)
        tiles = (
            *((({x: POINTWISE.run_tile // run, y: run}, POINTWISE.run_warps),) if run < side else ()),
            *((_balanced(shape, blocks), warps) for blocks, warps in ((square, line) if fills else (line, square))),
            (_balanced(shape, {x: 256, y: 4}), 4),
            (_balanced(shape, {x: 4, y: 256}), 4),
        )
    else:
        x, y, z = names[:3]
        tiles = (
            (_balanced(shape, {x: 32, y: 8, z: 4}), 4),
            (_balanced(shape, {x: 16, y: 16, z: 4}), 4),
            (_balanced(shape, {x: 64, y: 4, z: 4}), 4),
            (_balanced(shape, {x: 8, y: 8, z: 16}), 4),
        )
    return tuple(shape.fit(blocks, warps) for blocks, warps in tiles)


def _balanced(shape: Shape, blocks: dict[str, int]) -> dict[str, int]:
    """Returns blocks in which an axis too short for its share leaves the rest of it to the others."""
    limits = {axis.name: shape.limit(axis) for axis in shape.axes("grid")}
    balanced = {name: min(block, limits[name]) for name, block in blocks.items()}
    spare = 1
    for name, block in blocks.items():
        spare *= block // balanced[name]
    for name, limit in limits.items():
        while spare > 1 and name in balanced and balanced[name] < limit:
            balanced[name] *= 2
            spare //= 2
    return balanced


def pointwise_operations(spec: KernelSpec) -> float:
    """Returns the scalar operations of windows and transpositions, of one launch."""
    facts = facts_as(spec.facts, PointwiseFacts)
    each = max(0, facts.window - 1) * ROOFLINE.window_operations
    return expected_points(spec) * (each + facts.transposed * ROOFLINE.transposed_operations)


FORMS = (
    KernelForm(
        name="pointwise",
        facts=PointwiseFacts,
        configs=pointwise_configs,
        table=pointwise_table,
        operations=pointwise_operations,
        joins=True,
    ),
    KernelForm(name="combo", facts=ComboFacts, configs=pointwise_configs, table=pointwise_table, joins=True),
)
