"""The config for Triton's interpreter: as few, as large programs as possible, because each costs milliseconds."""

from __future__ import annotations

from collections.abc import Mapping

from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.kernel_spec import KernelSpec, name_in_whole
from ferrite_runtime.policies.blocks import block_limit, fixed_tile, free_axes
from ferrite_runtime.policies.kernel_form import kernel_form
from ferrite_runtime.policies.shape import MAX_TILE

MAX_REDUCTION = 1 << 14
"""Most points of a block of a reduction axis: a loop is to have several rounds, as on a GPU."""
ROUNDS = 2
"""Tiles of a program that may take any number: several, so that what is tested is what runs."""
LOADS = 1
"""How blocks are loaded: by pointers, as a tensor may begin anywhere here."""


def interpreter_config(spec: KernelSpec, sizes: Mapping[str, int]) -> Config:
    """Returns the config with which a kernel is interpreted.

    Args:
        spec: the kernel.
        sizes: the size of every axis, by name.
    """
    if spec.form == "user":
        return spec.configs[0] if spec.configs else Config.of({}, 4)
    if spec.parts:
        own = [interpreter_config(part, spec.of_part(sizes, number)) for number, part in enumerate(spec.alone)]
        return Config.of({name_in_whole(k, n): v for n, each in enumerate(own) for k, v in each.blocks}, num_warps=4)
    budget = max(1, MAX_TILE // fixed_tile(spec, sizes))  # it also bounds the interpreter's memory
    blocks: dict[str, int] = {}
    for axis in free_axes(spec, "reduction"):
        limit = block_limit(axis, sizes[axis.name])
        blocks[axis.block] = min(limit, MAX_REDUCTION, budget) if kernel_form(spec).has_loops else limit
        budget = max(1, budget // blocks[axis.block])
    for axis in free_axes(spec, "grid"):
        blocks[axis.block] = min(block_limit(axis, sizes[axis.name]), budget)
        budget = max(1, budget // blocks[axis.block])
    blocks |= {axis.block: ROUNDS for axis in free_axes(spec, "rounds")}
    blocks |= {axis.block: LOADS for axis in free_axes(spec, "descriptors")}
    return Config.of(blocks, num_warps=4)
