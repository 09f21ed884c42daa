"""Configs of kernels that scan rows (prefix sums and their like), whole, block by block or by look-back, or sort them.

Scans along columns have theirs in `policies.columns`.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.facts import ReductionFacts, SplitFacts, facts_as
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.policies.blocks import expected_points, next_power_of_two
from ferrite_runtime.policies.columns import scanned_columns
from ferrite_runtime.policies.kernel_form import KernelForm
from ferrite_runtime.policies.occupancy import flops_per_point
from ferrite_runtime.policies.roofline import ROOFLINE
from ferrite_runtime.policies.shape import Shape
from ferrite_runtime.policies.thresholds import OCCUPANCY, ROWS, TILES
from ferrite_runtime.policies.tiles import keep_busy, part_per_thread


def look_back_configs(shape: Shape) -> tuple[Config, ...]:
    """Returns the config of a scan by decoupled look-back.

    One only: a kernel whose programs wait for each other is not for measuring, its workspace counts launches.
    """
    block, tiles = shape.spec.blocks.get("RBLOCK", 1), facts_as(shape.spec.facts, SplitFacts).register_tiles
    held = block * tiles // TILES.packed_per_thread if tiles > 1 else block // part_per_thread(shape)
    warps = held // shape.device.target.warp_size
    return (replace(shape, live=1).fit({}, max(1, min(warps, shape.device.max_warps))),)


def scan_configs(shape: Shape) -> tuple[Config, ...]:
    """Returns the candidates of a prefix scan: a row per program, with work enough for each thread."""
    if shape.contiguous in ("x", "y"):
        return scanned_columns(shape)
    row = next_power_of_two(shape.reduction)
    is_busy = flops_per_point(shape) >= OCCUPANCY.busy_flops
    if row > ROWS.scan_block and shape.has_odd_rows and not is_busy:
        return _scanned_odd(shape)
    if row >= ROWS.busy_odd_row and shape.has_odd_rows and is_busy:
        return _busily_scanned_odd(shape, row)
    block = row if row <= ROWS.loop_block else ROWS.scan_block
    held = (ROWS.busily_scanned_per_thread if is_busy else ROWS.scanned_per_thread) * shape.device.target.warp_size
    rows = keep_busy(shape, max(1, held // block) if row < ROWS.long_row else 1)
    is_light = shape.reduction_is_known and (row < ROWS.long_row or (row == block and shape.has_odd_rows))
    is_full = is_light or is_busy or block > ROWS.loop_block
    warps = max(1, rows * block // (held if is_full else held // 4))
    shape = replace(shape, live=1) if is_light else shape
    return tuple(_loop_x(shape, x, r, w) for x, r, w in ((rows, block, warps), (rows, max(1, block // 2), warps)))


def _scanned_odd(shape: Shape) -> tuple[Config, ...]:
    """Returns the candidates of a scan of odd rows, block by block.

    A thread reads an element at a time, so that each row of its elements is a scan across its warp and then across all
    warps: many rows are scanned by few warps each. Few rows are scanned in large blocks, as the turns of a loop wait
    for each other, but with few lanes past the end: these take as long as others, each with a mask of its own.
    """
    small = (ROWS.odd_scan_block, ROWS.odd_scan_warps)
    if shape.points >= TILES.fill * shape.device.multiprocessors:
        tiles = (small, (2 * ROWS.odd_scan_block, 2 * ROWS.odd_scan_warps))
    else:
        block = min((ROWS.scan_block, ROWS.scan_block // 2), key=lambda block: -(-shape.reduction // block) * block)
        tiles = ((block, 2 * ROWS.odd_scan_warps), small)
    return tuple(_loop_x(shape, 1, block, warps) for block, warps in tiles)


def _busily_scanned_odd(shape: Shape, row: int) -> tuple[Config, ...]:
    """Returns the candidates of a scan of odd rows that takes long to combine.

    A thread reads an element at a time, and each row of a tile's elements is combined across its warp, and then with
    what every warp before comes to. So the fewer warps there are, the less is to be combined; but a multiprocessor that
    has few programs is filled by their warps alone.
    """
    is_filled = shape.points >= TILES.fill * shape.device.multiprocessors
    if row <= 2 * ROWS.busy_odd_row:
        warps = row // ROWS.busy_odd_row * (1 if is_filled else ROWS.busy_odd_warps)
        tiles = ((row, warps), (row, 2 * warps))
    else:
        block, warps = ROWS.busy_odd_block, ROWS.busy_odd_warps
        tiles = ((block, warps), (2 * block, 2 * warps)) if is_filled else ((2 * block, 2 * warps), (block, warps))
    return tuple(_loop_x(shape, 1, block, warps) for block, warps in tiles)


def sort_configs(shape: Shape) -> tuple[Config, ...]:
    """Returns the candidates of a sort, which holds whole rows: sorting networks compile slowly, so there are few."""
    row = next_power_of_two(shape.reduction)
    rows = keep_busy(shape, max(1, 512 // row))
    # With fewer threads more steps of the network stay within a thread or a warp, but the code grows.
    wanted = rows * row * shape.narrowest_read // (shape.device.target.warp_size * ROWS.sorted_bytes)
    longest = ROWS.long_sort_warps if shape.reads_16_bit else ROWS.long_sort_warps // 2
    warps = max(1, min(wanted, longest if row > ROWS.long_sort else ROWS.sort_warps))
    return tuple(_loop_x(shape, rows, row, w) for w in (warps, warps * 2, max(1, warps // 2)))


def _loop_x(shape: Shape, rows: int, block: int, warps: int) -> Config:
    return shape.fit(
        {axis.name: block for axis in shape.axes("reduction")} | {"x": rows}, min(warps, shape.device.max_warps)
    )


def scan_operations(spec: KernelSpec) -> float:
    """Returns the scalar operations of scanning, of one launch."""
    return expected_points(spec) * ROOFLINE.scanned_operations


def sort_operations(spec: KernelSpec) -> float:
    """Returns the scalar operations of a sorting network, of one launch."""
    steps = math.log2(max(2, facts_as(spec.facts, ReductionFacts).reduction_size))
    points = expected_points(spec)
    return points * ROOFLINE.sort_operations * steps * (steps + 1) / 2


FORMS = (
    KernelForm(
        name="scan",
        facts=ReductionFacts,
        configs=scan_configs,
        has_loops=True,
        joins=True,
        operations=scan_operations,
    ),
    KernelForm(
        name="look_back",
        facts=SplitFacts,
        configs=look_back_configs,
        waits_for="earlier",
        operations=scan_operations,
    ),
    # Sorting networks have one config, and compile slowly.
    KernelForm(
        name="sort",
        facts=ReductionFacts,
        configs=sort_configs,
        is_settled=True,
        joins=True,
        operations=sort_operations,
    ),
)
