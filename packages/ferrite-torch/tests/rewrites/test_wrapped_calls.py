"""Ops that only wrap what they call: what they call stands in their place, and computes the same."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._higher_order_ops import InvokeQuant, strict_mode
from torch._higher_order_ops.local_map import local_map_hop
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from ferrite_torch.rewrites.wrapped_calls import unwrap_calls
from ferrite_torch.torch_private.operators import HigherOrderOp

ops = torch.ops.higher_order


def unwrapped(function: Callable[..., Any], *inputs: Tensor) -> torch.fx.GraphModule:
    """Returns the graph of a function after it has been unwrapped; checks that it computes what eager mode does."""
    torch._dynamo.reset()
    found: list[torch.fx.GraphModule] = []

    def compile_graph(module: torch.fx.GraphModule, inputs: Any) -> Any:
        unwrap_calls(module)
        module.graph.lint()
        module.recompile()
        found.append(module)
        return module.forward

    mine = torch.compile(function, backend=aot_autograd(fw_compiler=compile_graph), fullgraph=True)(*inputs)
    torch.testing.assert_close(mine, function(*inputs))
    return found[0]


def higher_order(module: torch.fx.GraphModule) -> list[str]:
    """Returns the higher-order ops that are left in a graph."""
    return [str(node.target) for node in module.graph.nodes if isinstance(node.target, HigherOrderOp)]


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "strict mode": lambda x: strict_mode(lambda x: (x.sin(), x + 1), (x * 2,))[1],
    "hints": lambda x: ops.hints_wrapper(lambda x: (x.sin(),), (x * 2,), {}, hints={"outer": True})[0] + x,
    "inside of itself": lambda x: strict_mode(lambda x: strict_mode(lambda x: (x.sin(),), (x * 2,)), (x + 1,))[0],
    "precision": lambda x: InvokeQuant()(lambda a, b: (a.sin() * b,), x, x * 2)[0],
    "constants": lambda x: strict_mode(lambda x: (x + torch.tensor([1.0, 2.0, 3.0, 4.0]),), (x,))[0],
    "wider products": lambda x: ops.out_dtype(
        torch.ops.aten.mm.default, torch.int32, (x * 9).to(torch.int8), torch.full((4, 4), 100, dtype=torch.int8)
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_left_of_the_op(name: str) -> None:
    module = unwrapped(PROGRAMS[name], torch.randn(3, 4))
    assert not higher_order(module)
    assert not [node for node in module.graph.nodes if isinstance(node.target, type)], "objects that say how"


def test_functions_inside_are_found_where_they_are() -> None:
    def function(x: Tensor) -> Any:
        return strict_mode(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), (x * 2,))

    module = unwrapped(function, torch.ones(3, 4))
    assert higher_order(module) == ["cond"]
    (call,) = [node for node in module.graph.nodes if str(node.target) == "cond"]
    branch: Any = call.args[1]
    assert isinstance(operator.attrgetter(branch.target)(module), torch.fx.GraphModule)


def test_what_is_returned_unchanged_keeps_what_is_known_of_it() -> None:
    inner = torch.fx.symbolic_trace(lambda x, y: (x, x + y))
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    x.meta["val"], y.meta["val"] = (object(), object())
    call = graph.call_function(local_map_hop, (graph.get_attr("inner"), x, y))
    first, second = (graph.call_function(operator.getitem, (call, position)) for position in range(2))
    first.meta["val"], second.meta["val"] = (object(), object())
    graph.output((first, second))
    module = torch.fx.GraphModule({"inner": inner}, graph)
    known, made = x.meta["val"], second.meta["val"]
    unwrap_calls(module)
    returned: Any = module.graph.output_node().args[0]
    assert returned[0] is x
    assert x.meta["val"] is known
    assert returned[1].meta["val"] is made


def weights(first: float = 1.0) -> Tensor:
    """Returns a constant of a function."""
    return torch.tensor([first, 2.0, 3.0, 4.0])


@torch.compiler.nested_compile_region
def weighted(x: Tensor) -> Tensor:
    """Returns what a region with a constant computes."""
    return x * weights()


@torch.compiler.nested_compile_region
def moved_on(x: Tensor, y: Tensor) -> Tensor:
    """Adds to its first operand."""
    x.add_(y)
    return x * y


def written(x: Tensor) -> Tensor:
    """Returns all that two calls of a region return and write."""
    y = x.sin()
    return moved_on(y, x) + moved_on(y, x) * 2 + y


HOLDERS: dict[str, Callable[[Tensor], Any]] = {
    "branches": lambda x: torch.cond(x.sum() > 0, lambda x: x * weights(), lambda x: x + weights(2) / weights(3), (x,)),
    "one branch": lambda x: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x[:, [1, 0, 2, 3]] * 2, (x,)),
    "no operands": lambda x: torch.cond(x.sum() > 0, weights, lambda: weights(2), ()) + x,
    "branches of branches": lambda x: torch.cond(
        x.sum() > 0,
        lambda x: torch.cond(x[0, 0] > 0, lambda x: x * weights(), lambda x: x.sin(), (x,)) + weights(2),
        lambda x: x * weights(3),
        (x,),
    ),
    "a loop": lambda x: while_loop(
        lambda i, _: i < weights().sum() - 8, lambda i, x: (i + 1, x * weights()), (torch.tensor(0), x)
    )[1],
    "a scan": lambda x: scan(lambda s, row: (s + row * weights(), s * weights(2)), torch.zeros(4), x)[1],
    "a map": lambda x: map_rows(lambda row: row * weights(), x),
    "regions": lambda x: weighted(weighted(x) + 1),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_functions_hold_no_tensors_of_several_elements(name: str) -> None:
    module = unwrapped(HOLDERS[name], torch.randn(3, 4, generator=torch.Generator().manual_seed(0)))
    held = [(path, value) for path, part in module.named_modules() if path for value in part.buffers(recurse=False)]
    assert higher_order(module)
    reached = {str(node.target) for node in module.graph.find_nodes(op="get_attr")}
    assert not [path for path, value in held if path.split(".")[0] in reached and value.numel() > 1]


def test_a_region_that_is_called_again_is_lifted_once() -> None:
    module = unwrapped(HOLDERS["regions"], torch.ones(3, 4))
    calls = [node for node in module.graph.nodes if str(node.target) == "invoke_subgraph"]
    assert len({str(node.args[0].target) for node in calls}) == 1  # type: ignore[union-attr]
    assert [len(node.args) for node in calls] == [4, 4]


def test_a_region_that_writes_is_inlined() -> None:
    """Or has no writes left: torch 2.15 makes functions of regions itself."""
    module = unwrapped(written, torch.ones(3, 4))
    assert set(higher_order(module)) <= ({"invoke_subgraph"} if torch.__version__ >= "2.15" else set())
