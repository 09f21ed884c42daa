"""Arithmetic on block constants: powers of two, and what an axis allows."""

from __future__ import annotations

from collections.abc import Mapping

from ferrite_runtime.spec import Axis, KernelSpec


def next_power_of_two(value: int) -> int:
    """Returns the least power of two that is not less than ``value``; 1 for everything below 1."""
    return 1 << max(0, value - 1).bit_length()


def previous_power_of_two(value: int) -> int:
    """Returns the greatest power of two that does not exceed ``value``; 1 for everything below 1."""
    return 1 << (max(1, value).bit_length() - 1)


def block_limit(axis: Axis, size: int) -> int:
    """Returns the largest sensible block of an axis of this size: no larger than it has to be, nor than it may be."""
    limit = next_power_of_two(size)
    return limit if axis.max_block is None else min(limit, previous_power_of_two(axis.max_block))


def free_axes(spec: KernelSpec, kind: str) -> tuple[Axis, ...]:
    """Returns the axes of a kind whose block constant a config has to choose."""
    return tuple(axis for axis in spec.axes if axis.kind == kind and axis.block not in spec.blocks)


def fixed_tile(spec: KernelSpec, sizes: Mapping[str, int]) -> int:
    """Returns the product of the blocks that the source fixes (a persistent fold axis counts as one block)."""
    product = 1
    for axis in spec.axes:
        if axis.block in spec.blocks:
            product *= spec.blocks[axis.block]
    return product
