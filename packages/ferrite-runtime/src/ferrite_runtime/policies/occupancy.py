"""Occupancy: small launches take more warps for a tile, so that all threads of the device have something to do.

A kernel that waits for memory wants many elements in each thread, as far as there are elements for all threads that a
multiprocessor holds; with fewer, more threads hide each other's waiting (Volkov, "Better performance at lower
occupancy", 2010, has both sides). What takes many instructions for an element wants more threads sooner. The numbers
are from ``benchmarks/kernels/config_grid.py --set images`` on an H200.
"""

from __future__ import annotations

from dataclasses import replace

from ferrite_runtime.formats.config import Config
from ferrite_runtime.policies.shape import Shape

FILLED_SHARE = 0.75
"""Share of a device's threads from which on a launch fills it."""
LEAST_ELEMENTS, LEAST_OF_HEAVY = 4, 2
"""Elements of a tile that a thread keeps at least; of kernels with `HEAVY_FLOPS` operations for a point."""
HEAVY_FLOPS = 128.0
"""Operations for a point, as a kernel's facts count them, of which a few for each thread take as long as its loads."""
BUSY_FLOPS = 32.0
"""The same from which on columns are reduced by more warps although these meet in shared memory, and tiles that are
stored along another axis are small: several programs to a multiprocessor, with fewer elements for a thread."""


def flops_per_point(shape: Shape) -> float:
    """Returns the operations of a kernel for each point of all its axes."""
    return shape.spec.facts.flops / max(1, shape.expected_points)


def spread(shape: Shape, config: Config, most_warps: int = 1 << 10) -> Config:
    """Returns a config with as many warps as it takes to fill the device, none of whose threads has too little.

    Args:
        shape: the kernel.
        config: what it would have on a device that is busy anyway.
        most_warps: beyond which threads would have to combine what they hold.
    """
    flops, device = flops_per_point(shape), shape.device
    tile, programs, blocks = 1, 1, dict(config.blocks)
    for axis in shape.spec.axes:
        block = blocks.get(axis.block, shape.spec.blocks.get(axis.block, 1))
        tile *= block
        if axis.kind == "grid":
            programs *= -(-shape.sizes[axis.name] // block)
    most = min(device.max_warps, most_warps, tile // device.target.warp_size)  # of an element for each thread
    filled = FILLED_SHARE * device.threads_per_multiprocessor * device.multiprocessors / shape.parts
    least = LEAST_OF_HEAVY if flops >= HEAVY_FLOPS else LEAST_ELEMENTS
    warps, threads = config.num_warps, config.num_warps * device.target.warp_size
    while warps < most and programs * threads < filled and tile >= 2 * least * threads:
        warps, threads = 2 * warps, 2 * threads
    return replace(config, num_warps=warps)
