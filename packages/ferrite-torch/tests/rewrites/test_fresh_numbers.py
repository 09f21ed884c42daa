"""Numbers that a program makes a tensor of: graphs have the numbers, and no tensors of the CPU for GPUs to wait for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ferrite_torch import export
from ferrite_torch.rewrites.numbers.fresh_numbers import write_numbers
from ferrite_torch.torch_private.fake_tensors import fake_mode


def written(x: Tensor) -> Tensor:
    rows = x.new_zeros(8, 8)
    rows[:3, :4] = 1
    rows[3:, 4:] = -2.5
    return x + rows


def narrowed(x: Tensor) -> Tensor:
    rows = x.to(torch.int8)
    rows[1] = torch.tensor(5.7)
    return rows


def added_to(x: Tensor) -> tuple[Tensor, Tensor]:
    number = torch.tensor(3)
    number += 1
    return x * number, number


PROGRAMS: dict[str, Callable[..., Any]] = {
    "slices": written,
    "another type": narrowed,
    "in place": added_to,
    "infinite": lambda x: x.where(x > 0, torch.tensor(-math.inf)),
    "bool": lambda x: (x * torch.tensor(True), torch.tensor(False)),
    "double": lambda x: x + torch.tensor(0.1, dtype=torch.float64),
    "half": lambda x: x + torch.tensor(0.1, dtype=torch.bfloat16),
    "complex": lambda x: (x + 1, torch.tensor(1 + 2j)),
    "not a number": lambda x: x.where(x > 0, torch.tensor(math.nan)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_of_eager_mode(name: str) -> None:
    torch._dynamo.reset()
    x = torch.randn(8, 8)
    mine = torch.compile(PROGRAMS[name], backend="ferrite", fullgraph=True, options={"fallback": False})(x)
    torch.testing.assert_close(mine, PROGRAMS[name](x), rtol=0, atol=0, equal_nan=True)


def steps_on_gpu(function: Callable[..., Any]) -> list[str]:
    """Returns the calls of libraries in what a function of a matrix on a GPU becomes."""
    with fake_mode():
        x = torch.empty(8, 8, device="cuda")
    (program,) = export(function, (x,), prebuilt=False).programs.values()
    assert [each.name for each in program.inputs] == ["arg0_1"], "it is given nothing but the matrix"
    return [step.target for step in program.steps if type(step).__name__ == "Extern"]


@pytest.mark.parametrize("name", ["slices", "another type", "infinite", "double"])
def test_a_gpu_waits_for_no_number(name: str) -> None:
    assert steps_on_gpu(PROGRAMS[name]) == []


def test_tensors_that_are_read_otherwise_stay() -> None:
    root = torch.nn.Module()
    root.number, root.row = torch.tensor(2.0), torch.ones(3)
    graph = torch.fx.Graph()
    number, row = graph.get_attr("number"), graph.get_attr("row")
    copies = [graph.call_function(torch.ops.aten.lift_fresh_copy.default, (each,)) for each in (number, row)]
    read = graph.call_function(torch.ops.aten.mul.Tensor, (number, 3))
    graph.output((*copies, read))
    module = torch.fx.GraphModule(root, graph)
    write_numbers(module)
    graph.lint()
    module.recompile()
    assert [str(node.target) for node in graph.find_nodes(op="get_attr")] == ["number", "row"]
    assert [result.tolist() for result in module()] == [2.0, [1.0] * 3, 6.0]
