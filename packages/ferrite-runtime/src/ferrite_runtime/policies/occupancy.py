"""Occupancy: small launches take more warps for a tile, so that all threads of the device have something to do.

A kernel that waits for memory wants many elements in each thread, as far as there are elements for all threads that a
multiprocessor holds; with fewer, more threads hide each other's waiting (Volkov, "Better performance at lower
occupancy", 2010, has both sides). What takes many instructions for an element wants more threads sooner.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from ferrite_runtime.formats.config import Config
from ferrite_runtime.policies.blocks import tile_elements
from ferrite_runtime.policies.shape import Shape
from ferrite_runtime.policies.thresholds import OCCUPANCY


def flops_per_point(shape: Shape) -> float:
    """Returns the operations of a kernel for each point of all its axes."""
    return shape.spec.facts.flops / max(1, shape.expected_points)


def programs_of(shape: Shape, blocks: Mapping[str, int]) -> int:
    """Returns how many programs a kernel has with these blocks."""
    return math.prod(
        -(-shape.sizes[axis.name] // blocks.get(axis.block, shape.spec.blocks.get(axis.block, 1)))
        for axis in shape.spec.axes
        if axis.kind == "grid"
    )


def spread(shape: Shape, config: Config, most_warps: int = 1 << 10) -> Config:
    """Returns a config with as many warps as it takes to fill the device, none of whose threads has too little.

    Args:
        shape: the kernel.
        config: what it would have on a device that is busy anyway.
        most_warps: beyond which threads would have to combine what they hold.
    """
    flops, device = flops_per_point(shape), shape.device
    blocks = dict(config.blocks)
    tile = tile_elements(shape.spec, blocks)
    programs = programs_of(shape, blocks)
    most = min(device.max_warps, most_warps, tile // device.target.warp_size)  # of an element for each thread
    filled = OCCUPANCY.filled_share * device.threads_per_multiprocessor * device.multiprocessors / shape.parts
    least = OCCUPANCY.least_of_heavy if flops >= OCCUPANCY.heavy_flops else OCCUPANCY.least_elements
    warps, threads = config.num_warps, config.num_warps * device.target.warp_size
    while warps < most and programs * threads < filled and tile >= 2 * least * threads:
        warps, threads = 2 * warps, 2 * threads
    return replace(config, num_warps=warps)
