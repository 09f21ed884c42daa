"""Tiles of reductions: those of whole rows, of blocks of them, and how many rows leave nothing idle."""

from __future__ import annotations

from ferrite_runtime.formats.config import Config
from ferrite_runtime.policies.shape import Shape
from ferrite_runtime.policies.thresholds import TILES


def rows_config(shape: Shape, count: int, row: int, warps: int) -> Config:
    """Returns the config of ``count`` rows, or columns, of a length of ``row`` as a power of two, each held whole."""
    blocks = {axis.name: row for axis in shape.axes("reduction")}
    return shape.fit(blocks | {"x": count}, min(warps, shape.device.max_warps))


def keep_busy(shape: Shape, block: int, least: int = 1, programs: float = 2) -> int:
    """Returns the largest block up to ``block`` that leaves every multiprocessor so many programs, but ``least``."""
    while block > least and shape.points < programs * block * shape.device.multiprocessors:
        block //= 2
    return block


def loop_config(shape: Shape, columns: int, depth: int, warps: int) -> Config:
    """Returns the config of a loop that takes ``depth`` points of ``columns`` results at once, or rows of them."""
    blocks = {axis.name: depth for axis in shape.axes("reduction")}
    inner = shape.contiguous if shape.contiguous in ("x", "y", "z") else "x"
    return shape.fit(blocks | {inner: columns}, min(warps, shape.device.max_warps))


def part_per_thread(shape: Shape) -> int:
    """Returns how many elements a thread holds of a part of a line that other programs wait for.

    Half as many of ragged lines: each of a few is loaded by itself, with an address and a mask in registers of its own.
    """
    return TILES.part_per_thread // (2 if shape.is_ragged else 1)
