"""Arithmetic on block constants: powers of two, and what an axis allows."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.expressions import evaluate
from ferrite_runtime.formats.kernel_spec import Axis, KernelSpec

LEAST_EXTENT = 16
"""Fewest rows, columns and points that tensor cores multiply."""
RESERVED = 2048
"""Bytes of shared memory that a program takes beside the blocks of factors that tensor cores multiply."""


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


def factor_block(axis: Axis, size: int, wanted: int) -> int:
    """Returns the block of an axis of factors: no larger than it has to be or may be, but one for tensor cores."""
    block = min(wanted, max(LEAST_EXTENT, next_power_of_two(size)))
    return block if axis.max_block is None else min(block, axis.max_block)


def tile_elements(spec: KernelSpec, blocks: Mapping[str, int]) -> int:
    """Returns the elements of a tile over all axes of a kernel, given the blocks that it leaves to a config."""
    return math.prod(blocks.get(axis.block, spec.blocks.get(axis.block, 1)) for axis in spec.axes)


def expected_points(spec: KernelSpec) -> int:
    """Returns the points of all axes of a kernel at the expected sizes, which are those that its facts are of."""
    return math.prod(max(1, size) for size in spec.hint_sizes().values())


def axis_problem(spec: KernelSpec, config: Config) -> str | None:
    """Returns which axis allows no block as large as a config's, None if all do."""
    for axis in spec.axes:
        chosen = spec.blocks.get(axis.block) or config.block(axis.block)
        if axis.max_block is not None and chosen > axis.max_block:
            return f"{axis.block} {chosen} is more than axis {axis.name} allows"
    return None


def shared_problem(need: int, available: int) -> str | None:
    """Returns that blocks of factors take more shared memory than a program has, None if they do not; both in bytes."""
    return f"{need} bytes of blocks on their way, a program has {available}" if need > available else None


def free_axes(spec: KernelSpec, kind: str) -> tuple[Axis, ...]:
    """Returns the axes of a kind whose block constant a config has to choose."""
    return tuple(axis for axis in spec.axes if axis.kind == kind and axis.block not in spec.blocks)


def misfit(spec: KernelSpec, config: Config, sizes: Mapping[str, int]) -> str:
    """Returns why a kernel cannot run with a config, nothing if it can: a config that somebody wrote may be any.

    What the compiler would notice is left to it; this is about what it would not.
    """
    if spec.form == "user":
        stated = any(config.blocks == each.blocks for each in spec.configs)
        return "" if stated or not spec.grids else "nothing says how many programs it has"
    if spec.parts:
        return _misfit_of_parts(spec, config, sizes)
    fixed = [name for name, _ in config.blocks if name in spec.blocks]
    if fixed:
        return f"{fixed[0]} is fixed by its text"
    for axis in spec.axes:
        if axis.block in spec.blocks:
            continue
        block = dict(config.blocks).get(axis.block)
        if block is None:
            return f"it gives no value for {axis.block}"
        if axis.max_block is not None and block > axis.max_block:
            return f"{axis.block} is {block}, at most {axis.max_block} is allowed"
        if spec.known_form.holds_rows and axis.kind == "reduction" and block < sizes[axis.name]:
            return f"{axis.block} is {block}, less than the {sizes[axis.name]} elements that have to be in one tile"
        if spec.known_form.holds_rows and axis.kind == "reduction" and block > next_power_of_two(sizes[axis.name]):
            return f"{axis.block} is {block}, more than it takes to hold the {sizes[axis.name]} elements in one tile"
    return ""


def _misfit_of_parts(spec: KernelSpec, config: Config, sizes: Mapping[str, int]) -> str:
    blocks = dict(config.blocks)
    for number, part in enumerate(spec.alone):
        own = Config.of(spec.of_part(blocks, number), config.num_warps, config.num_stages)
        if problem := misfit(part, own, spec.of_part(sizes, number)):
            return f"part {number}: {problem}"
    return ""


def scratch_programs(spec: KernelSpec) -> int:
    """Returns for how many programs a launch of a kernel gives scratch memory."""
    scratch = spec.scratch
    return 0 if scratch is None else (scratch.elements or 0) // (scratch.each or 1)


def scratch_used(spec: KernelSpec, blocks: Mapping[str, int]) -> int:
    """Returns the number of programs, along all axes, of a kernel with scratch memory: its grid takes no sizes."""
    values = {**spec.hint_sizes(), **spec.blocks, **blocks}
    return math.prod(evaluate(axis, values) for axis in spec.grid_at(blocks))


def fixed_tile(spec: KernelSpec, sizes: Mapping[str, int]) -> int:
    """Returns the product of the blocks that the source fixes (a persistent reduction axis counts as one block)."""
    product = 1
    for axis in spec.axes:
        if axis.block in spec.blocks:
            product *= spec.blocks[axis.block]
    return product


def parts_of(spec: KernelSpec, config: Config) -> list[tuple[KernelSpec, Config]]:
    """Returns the parts of a kernel as kernels alone, each with its own of a config; of another kernel, itself."""
    if not spec.parts:
        return [(spec, config)]
    blocks = dict(config.blocks)
    return [
        (alone, Config.of(spec.of_part(blocks, number), config.num_warps, config.num_stages))
        for number, alone in enumerate(spec.alone)
    ]
