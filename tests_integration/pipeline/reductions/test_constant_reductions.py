"""Reductions of what does not vary along their axis: Triton's interpreter accepts more of them than its compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from against_eager import compiled
from ferrite_ir import PIPELINE
from ferrite_runtime import cross_compile
from ferrite_scheduler import Policy, Target, schedule
from ferrite_torch.cache.artifact_loading import run_eagerly
from ferrite_torch.graphs.graph_lowering import lower_module
from ferrite_torch.lowering.recomputation import stays_whole
from ferrite_torch.rewrites.decompositions import decomposition_table
from ferrite_torch.torch_private.aot import compile_with_aot
from ferrite_triton import emit_program

REDUCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "sum": lambda x: x.sum(-1),
    "prod": lambda x: x.prod(-1),
    "max": lambda x: x.amax(-1),
    "max and where": lambda x: x.max(-1),
    "min and where": lambda x: x.min(-1),
    "argmax": lambda x: x.argmax(-1),
    "any": lambda x: (x > 0).any(-1),
    "all": lambda x: (x > 0).all(-1),
    "var": lambda x: x.var(-1),
    "var_mean": lambda x: torch.var_mean(x, -1),
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "logsumexp": lambda x: x.logsumexp(-1),
    "softmax": lambda x: x.softmax(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "cummax": lambda x: x.cummax(-1),
    "norm": lambda x: x.norm(dim=-1),
}
SHAPES = ((8,), (1, 7), (300, 33), (3, 20001), (1, 4_000_000))
"""One tile with and without a mask, rows, rows in a loop, a row in pieces."""


def programs(function: Callable[..., Any], *inputs: Tensor) -> list[dict[str, Any]]:
    """Returns the programs that a function becomes."""
    found: list[Any] = []

    def compile_one(module: torch.fx.GraphModule, fakes: Sequence[Any]) -> Any:
        graph = PIPELINE.run(lower_module(module, name="inference").graph)
        found.append(emit_program(schedule(graph, Target(), Policy()), Target()).to_mapping())
        return run_eagerly(module)

    def backend(module: torch.fx.GraphModule, fakes: Sequence[Any]) -> Any:
        compilers = dict.fromkeys(("forward", "backward", "inference"), compile_one)
        table = dict(decomposition_table(stays_whole))
        return compile_with_aot(module, fakes, decompositions=table, **compilers)

    torch.compile(function, backend=backend, fullgraph=True, dynamic=False)(*inputs)
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("source", ["constant", "one element", "per row"])
def test_every_reduction_of_what_does_not_vary_compiles(shape: tuple[int, ...], source: str) -> None:
    extents = {"constant": (), "one element": (1,) * len(shape), "per row": (*shape[:-1], 1)}[source]

    def function(x: Tensor) -> list[Any]:
        row = torch.full(shape, 3.0) if source == "constant" else x.exp().expand(shape)
        return [reduction(row) for reduction in REDUCTIONS.values()]

    written = programs(function, torch.ones(extents))
    assert written
    for program in written:
        assert not [f"{row.kernel}: {row.error}" for row in cross_compile(program, "sm_90").failures]


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_reduction_of_one_number_may_be_an_index(dynamic: bool) -> None:  # noqa: FBT001
    """Its result is a scalar, whatever the tiles of the kernel are: an address and its mask have no extents."""

    def function(x: Tensor) -> Tensor:
        where = (x - x).prod(0)
        numbers = torch.arange(x.shape[0])
        numbers = numbers.index_put((numbers % 3 == 0,), numbers.sum())
        return numbers.index_put((where,), numbers[where], accumulate=True)

    x = torch.randint(-3, 3, (3, 3))
    assert torch.equal(compiled(function, dynamic=dynamic)(x), function(x))
