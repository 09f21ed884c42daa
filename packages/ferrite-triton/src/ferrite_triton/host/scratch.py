"""Scratch memory of kernels whose programs have descriptors: one tensor for all launches of a graph.

Launches of a graph follow each other on one stream, and each makes what it needs there before it reads it, so they may
share the memory. It is allocated before the first of them and given back after the last, like any other tensor: memory
plans, CUDA graphs and several streams need no word about it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ferrite_ir.language.dtypes import I64

DESCRIPTOR_BYTES = 128
"""Bytes of a tensor descriptor (TMA), and what its address is a multiple of."""


def scratch_elements(params: Sequence[Mapping[str, Any]]) -> int:
    """Returns the elements (i64) of scratch memory that a kernel with these params is launched with, 0 without."""
    return next((param["elements"] for param in params if param.get("access") == "scratch"), 0)


def scratch_name(taken: Collection[str]) -> str:
    """Returns what the memory is called by a host, or by a kernel: none of the names that are taken there."""
    name = "scratch"
    while name in taken:
        name += "_"
    return name


def with_scratch(steps: Sequence[dict[str, Any]], name: str, elements: int) -> list[dict[str, Any]]:
    """Returns steps with the memory allocated before the first launch that takes it, and freed after the last one.

    Args:
        steps: of one graph.
        name: what the host calls the memory.
        elements: how many (i64) the launch that takes most of it takes; 0 if none takes any.
    """
    if not elements:
        return list(steps)
    users = [number for number, step in enumerate(steps) if step["do"] == "launch" and name in step["args"]]
    first, last = users[0], users[-1] + 1
    allocate = {"do": "alloc", "name": name, "dtype": I64.name, "shape": [elements], "strides": [1]}
    return [*steps[:first], allocate, *steps[first:last], {"do": "free", "names": [name]}, *steps[last:]]
