"""Positions of arguments and results in the graphs that AOTAutograd makes, beside all that shifts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op
from torch.testing._internal.two_tensor import TwoTensor

from ferrite_torch.cache.artifact_loading import run_eagerly
from ferrite_torch.torch_private.aot import compile_with_aot
from ferrite_torch.torch_private.aot_metadata import report_strides
from ferrite_torch.torch_private.graph_positions import Positions, positions_of

Found = dict[str, tuple[torch.fx.GraphModule, Positions]]


@torch.library.custom_op("ferrite_test_positions::noted", mutates_args=())
def noted(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


noted.register_fake(torch.empty_like)
noted.register_autograd(lambda ctx, gradient: noted(gradient))
_register_effectful_op("ferrite_test_positions::noted", _EffectType.ORDERED)


def found_by(function: Callable[..., Any], *inputs: Any, retain_graph: bool = False, **named: Any) -> Found:
    """Returns the graphs of a function and of its gradient with what is known of their positions."""
    found: Found = {}

    def compiler(kind: str) -> Any:
        def compile_one(module: torch.fx.GraphModule, fakes: Any) -> Any:
            found[kind] = module, positions_of(module, kind)
            return run_eagerly(module)

        return compile_one

    def backend(module: torch.fx.GraphModule, fakes: Any) -> Any:
        kinds = ("forward", "backward", "inference")
        return compile_with_aot(module, fakes, **{kind: compiler(kind) for kind in kinds}, decompositions={})

    result = torch.compile(function, backend=backend, **named)(*inputs)
    result = result[0] if isinstance(result, tuple) else result
    if result.requires_grad:
        result.sum().backward(retain_graph=retain_graph)
    return found


def arguments(found: Found, kind: str, positions: frozenset[int]) -> list[str]:
    placeholders = found[kind][0].graph.find_nodes(op="placeholder")
    return [placeholders[position].name for position in sorted(positions)]


def results(found: Found, kind: str, positions: frozenset[int]) -> list[str]:
    returned: Any = found[kind][0].graph.output_node().args[0]
    return [returned[position].name for position in sorted(positions)]


def chain(x: torch.Tensor) -> torch.Tensor:
    """Returns a function whose one intermediate, the product, is saved for its gradient."""
    return (x @ x).sin().cumsum(0)


def matrix() -> torch.Tensor:
    return torch.randn(4, 4, requires_grad=True)


class Weighted(torch.nn.Module):
    def __init__(self, *, is_noted: bool) -> None:
        super().__init__()
        self.is_noted = is_noted
        self.weight = torch.nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x @ self.weight).sin()
        return noted(y) if self.is_noted else y


def written(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    count.add_(1)
    return chain(x) * count


# --- what shifts positions --------------------------------------------------------------------------------------------

SHIFTED: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]], int]] = {
    "nothing": (chain, lambda: (matrix(),), 0),
    "a token": (lambda x: (noted(x) @ x).sin().cumsum(0), lambda: (matrix(),), 1),
    "a result before": (lambda x: (chain(x), x.exp()), lambda: (matrix(),), 0),
    "a token and a result": (lambda x: (noted(chain(x)), x * 2), lambda: (matrix(),), 1),
    "an input that is written": (written, lambda: (matrix(), torch.zeros(())), 0),
    "a subclass": (chain, lambda: (TwoTensor(matrix().detach(), matrix().detach()).requires_grad_(),), 0),
    "a subclass beside a tensor": (
        lambda x, y: (chain(x) * y, y.exp()),
        lambda: (TwoTensor(matrix().detach(), matrix().detach()).requires_grad_(), matrix()),
        0,
    ),
}


@pytest.mark.parametrize("name", SHIFTED)
def test_only_what_the_backward_alone_reads_is_donated_and_laid_out_freely(name: str) -> None:
    """Checked from the graphs: neither inputs, nor what the caller sees, nor incoming gradients are among it."""
    function, make, tokens = SHIFTED[name]
    found = found_by(function, *make())
    _, backward = found["backward"]
    forward_module, forward = found["forward"]
    assert forward.tokens == tokens
    inputs = {node.name for node in forward_module.graph.find_nodes(op="placeholder")}
    donated, saved = set(arguments(found, "backward", backward.donated)), set(results(found, "forward", forward.saved))
    assert any(name.startswith("mm") for name in donated), "the product is the backward's own"
    assert donated <= saved
    assert not donated & inputs
    assert not any("tangents" in name for name in donated)
    returned: Any = forward_module.graph.output_node().args[0]
    seen = returned[: len(returned) - len(forward.saved)]
    assert not donated & {node.name for node in seen if isinstance(node, torch.fx.Node)}
    backward_inputs = {node.name for node in found["backward"][0].graph.find_nodes(op="placeholder")}
    assert saved <= backward_inputs, "what counts as saved is read by the backward"


def test_symbols_that_are_saved_come_before_tensors() -> None:
    found = found_by(lambda x: (x @ x.mT).sin().cumsum(0), torch.randn(4, 5, requires_grad=True), dynamic=True)
    assert arguments(found, "backward", found["backward"][1].donated) == ["mm"]
    assert found["backward"][0].graph.find_nodes(op="placeholder")[0].name != "mm"


def test_states_of_generators_are_not_donated() -> None:
    def drawn(x: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(lambda x: torch.rand_like(x) * x.sin(), chain(x), use_reentrant=False)

    found = found_by(drawn, matrix())
    assert not any("rng" in name for name in arguments(found, "backward", found["backward"][1].donated))


@pytest.mark.parametrize("is_noted", [False, True], ids=["plain", "with a token"])
def test_parameters_are_held(*, is_noted: bool) -> None:
    found = found_by(Weighted(is_noted=is_noted), matrix())
    module, positions = found["backward"]
    (held,) = positions.held
    weight = module.graph.find_nodes(op="placeholder")[held]
    users = {user.target for user in weight.users}
    assert users == {torch.ops.aten.t.default}, "the weight, transposed, takes part in the gradient of the input"


@pytest.mark.parametrize("tokens", [0, 1])
def test_results_made_anew_from_inputs_are_known(tokens: int) -> None:
    found = found_by(lambda x: ((noted(x) if tokens else x) + 1, x.t()), torch.randn(2, 3))
    _, positions = found["inference"]
    assert (positions.tokens, positions.regenerated.keys()) == (tokens, {tokens + 1})


def test_a_graph_that_is_kept_donates_nothing() -> None:
    assert found_by(chain, matrix(), retain_graph=True)["backward"][1].donated == frozenset()


def test_outside_a_compilation_nothing_is_known() -> None:
    module = torch.fx.symbolic_trace(lambda x: x + 1)
    assert all(positions_of(module, kind) == Positions() for kind in ("forward", "backward", "inference"))


@pytest.mark.parametrize("tokens", [0, 1])
def test_layouts_of_what_is_saved_reach_the_backward(tokens: int) -> None:
    """A forward that saves its product by columns says so, and the backward is compiled for that."""
    seen: list[tuple[int, ...]] = []

    def forward(module: torch.fx.GraphModule, fakes: Any) -> Any:
        returned: Any = module.graph.output_node().args[0]
        fakes = [node.meta["val"] if isinstance(node, torch.fx.Node) else None for node in returned]
        strides = [(1, 4) if node.name == "mm" else fake.stride() for node, fake in zip(returned, fakes, strict=True)]
        report_strides(strides, positions_of(module, "forward").tokens)
        return run_eagerly(module)

    def backward(module: torch.fx.GraphModule, fakes: Any) -> Any:
        nodes = module.graph.find_nodes(op="placeholder")
        seen.extend(fake.stride() for node, fake in zip(nodes, fakes, strict=True) if node.name == "mm")
        return run_eagerly(module)

    def backend(module: torch.fx.GraphModule, fakes: Any) -> Any:
        return compile_with_aot(module, fakes, forward=forward, backward=backward, inference=forward, decompositions={})

    call = torch.compile(lambda x: chain(noted(x) if tokens else x), backend=backend)
    call(matrix()).sum().backward()
    assert seen == [(1, 4)]
