"""The NumPy printer of tile programs on whatever the scheduler makes of many small graphs, beside the tile evaluator.

What schedules mean is tested elsewhere: here each of their kernels runs twice, on memory of its own.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("numpy")

from ferrite_ir.language.sizes import hint
from ferrite_scheduler import Policy, schedule
from ferrite_triton import UnsupportedDefinition, emit_kernel, tile_programs
from ferrite_triton.printing.numpy_target import print_numpy
from generated_graphs import generated_graph
from numpy_programs import run_both
from tile_kernels import draw, grid_size

POLICIES = {
    "default": Policy(mixed_combos=False),
    "looped": Policy(
        mixed_combos=False, persistent_elements=2, persistent_elements_outer=2, persistent_elements_again=2
    ),
}


def arguments_of(kernel: Any, spec: Any, seed: int) -> dict[str, Any]:
    """Returns memory for the parameters of a kernel, and numbers for those that are no addresses."""
    generator = random.Random(seed)
    drawn: dict[str, Any] = {}
    for param, described in zip(kernel.params, spec.params, strict=False):
        values = draw(generator, max(1, hint(param.type.storage_size)), param.type.dtype)
        drawn[described["name"]] = values[0] if param.host_scalar else values
    return drawn


@pytest.mark.parametrize("name", POLICIES)
def test_kernels_of_generated_graphs_leave_what_the_evaluator_leaves(name: str) -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(60):
        graph = generated_graph(seed, 1 + seed % 12)
        for kernel in schedule(graph, policy=POLICIES[name]).kernels:
            spec, program = emit_kernel(kernel), tile_programs(kernel)[-1]
            try:
                print_numpy(program)
            except UnsupportedDefinition:
                outcomes["refused"] += 1
                continue
            sizes = {axis["name"]: int(axis["size"]) for axis in spec.axes}
            chosen = {axis["block"]: min(4, axis.get("max_block", 4)) for axis in spec.axes} | spec.blocks
            arguments = arguments_of(kernel, spec, seed)
            got, want = run_both(program, arguments, chosen, (grid_size(spec.grid, sizes | chosen),))
            for key, expected in want.items():
                assert got[key] == pytest.approx(expected, rel=1e-5, abs=1e-5, nan_ok=True), (seed, kernel.name)
            outcomes["run"] += 1
    assert outcomes["run"] > 100
    assert outcomes["refused"] * 20 < outcomes["run"]
