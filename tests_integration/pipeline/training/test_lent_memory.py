"""Training with CUDA graphs whose forward lends what it saves: results as eager's, whatever holds it and how long."""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import ferrite_torch
from ferrite_runtime.engines.generations import Generation
from ferrite_runtime.engines.tensor_copies import Writes
from ferrite_runtime.host.thresholds import SHAPES, GraphThresholds
from graphed_training import Graphs, Layer, Pair, backward, graphs, saved_memory, train

__all__ = ["graphs"]


def test_what_is_saved_is_not_copied(graphs: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    train(pair, 6)
    copied: list[int] = []
    write = Writes.__call__

    def counting(self: Writes, to: Any, source: Any) -> None:
        copied.append(len(to))
        write(self, to, source)

    monkeypatch.setattr(Writes, "__call__", counting)
    played = graphs.played, graphs.from_host
    train(pair, 1)
    assert graphs.from_host == played[1]
    forward, backwards = graphs
    assert len(forward._lent) >= 3
    (key,) = [key for key, each in backwards.generations.items() if each.captured]
    assert len(key.lent) > 2
    # x, which moves, and y; gradients of y
    assert sum(copied) <= 1 + 1 + 2
    assert saved_memory(graphs) == 0


class Attention(nn.Module):
    """Saves its queries, keys and values, which are views of one product, and its result twice, laid out anew."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(2, -1, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(x.shape))


def test_views_of_one_saved_tensor_do_not_hold_it(graphs: Graphs) -> None:
    pair = Pair(Attention)
    train(pair, 9)
    assert saved_memory(graphs) == 0
    forward, backwards = ([each.captured for each in p.generations.values() if each.captured] for p in graphs)
    assert forward == [1]
    # The gradient of y is allocated in each step, where it was in the step before or elsewhere: it may move once.
    assert backwards in ([1], [2])


def test_a_backward_is_captured_once_its_forward_is(graphs: Graphs) -> None:
    """Before, what it is given is not lent: by chance it lies where it lay, and a capture would hold it."""
    layer = Layer()
    call: Any = torch.compile(layer, backend="ferrite", options={"fallback": False})
    x, gradient = torch.randn(2, 4, 8)
    captured = []
    for _ in range(7):
        call(x).backward(gradient)
        layer.zero_grad()
        assert saved_memory(graphs) == 0
        captured.append([sum(each.captured for each in program.generations.values()) for program in graphs])
    forward, backward = zip(*captured, strict=True)
    assert forward == (0, 0, 0, 1, 1, 1, 1)
    assert backward == (0, 0, 0, 0, 1, 1, 1)


def test_two_forwards_before_their_backwards(graphs: Graphs) -> None:
    pair = Pair()

    def both(module: Any) -> torch.Tensor:
        first, second = module(x), module(z)
        (first.square().sum() + second.sin().sum()).backward()
        return torch.stack([first, second]).detach()

    for _ in range(8):
        x, z = torch.randn(2, 4, 8)
        pair.each(both)
        pair.step()
    forward, backwards = graphs
    assert [each.captured for each in forward.generations.values()] == [1, 1], [*forward.generations]
    # The second of two backwards finds gradients of the first held: it is one of those that copy theirs.
    assert all(len(key.lent) > 2 for key in backwards.generations)
    assert sorted(key[0] for key, each in backwards.generations.items() if each.captured) == [0, 2]
    host = graphs.from_host
    train(pair, 2)
    pair.each(both)
    assert graphs.from_host == host


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_backwards_in_any_order(graphs: Graphs, order: tuple[int, ...]) -> None:
    pair = Pair()

    def three(module: Any) -> torch.Tensor:
        results = [module(x) for x in xs]
        for place in order:
            backward(results[place])
        return torch.stack(results).detach()

    for _ in range(6):
        xs = torch.randn(3, 4, 8)
        pair.each(three)
        pair.step()
    host = graphs.from_host
    pair.each(three)
    assert graphs.from_host == host


def test_a_backward_that_never_comes(graphs: Graphs) -> None:
    pair, kept = Pair(), []

    for turn in range(10):
        x = torch.randn(4, 8)
        pair.each(lambda module, x=x: backward(module(x)))
        if turn == 5:
            y = torch.randn(4, 8)
            kept = [(pair.eager(y), pair.compiled(y))]
        pair.step()
    for expected, found in kept:
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_one_backward_twice(graphs: Graphs) -> None:
    pair = Pair()

    def twice(module: Any) -> torch.Tensor:
        y = module(x)
        backward(y, retain_graph=True)
        return backward(y)

    train(pair, 4)
    for _ in range(4):
        x = torch.randn(4, 8)
        pair.each(twice)
        pair.step()
    host = graphs.from_host
    train(pair, 2)
    assert graphs.from_host == host


def test_without_gradients_in_between(graphs: Graphs) -> None:
    pair = Pair()

    def between(module: Any) -> torch.Tensor:
        y = module(x)
        with torch.no_grad():
            inner = [module(each) for each in torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(1))]
        return torch.stack([backward(y), *inner])

    for _ in range(7):
        x = torch.randn(4, 8)
        pair.each(between)
        pair.step()
    host = graphs.from_host
    pair.each(between)
    assert graphs.from_host == host


def test_gradients_that_add_up_and_stay(graphs: Graphs) -> None:
    pair, kept = Pair(), []
    for turn in range(9):
        x = torch.randn(4, 8)
        pair.each(lambda module, x=x: backward(module(x)))
        if turn % 3 == 2:
            kept.append([(p.grad, p.grad.clone()) for p in pair.ours.parameters()])
            pair.step()
    for each in kept:
        for grad, copy in each:
            assert torch.equal(grad, copy)


def test_gradients_that_are_dropped_between_forward_and_backward(graphs: Graphs) -> None:
    pair = Pair()

    def late(module: Any) -> torch.Tensor:
        y = module(x)
        module.zero_grad(set_to_none=True)
        return backward(y)

    for _ in range(6):
        x = torch.randn(4, 8)
        pair.each(late)


@pytest.mark.parametrize("hooks", ["offload", "identity"])
def test_hooks_get_tensors_that_stay(graphs: Graphs, hooks: str) -> None:
    pair, kept = Pair(), []

    def unpack(packed: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        assert torch.equal(*packed)
        kept.append(packed)
        return packed[0]

    def hooked(module: Any) -> torch.Tensor:
        offload = torch.autograd.graph.save_on_cpu()
        identity = torch.autograd.graph.saved_tensors_hooks(lambda x: (x, x.clone()), unpack)
        with offload if hooks == "offload" else identity:
            first, second = module(x), module(x + 1)
        return backward(first + second)

    for turn in range(8):
        x = torch.randn(4, 8)
        pair.each(hooked if turn != 5 else lambda module, x=x: backward(module(x)))
        pair.step()
    assert bool(kept) == (hooks == "identity")
    assert graphs.played > graphs.from_host


@pytest.mark.parametrize("inside", [True, False])
def test_checkpoints(graphs: Graphs, inside: bool) -> None:  # noqa: FBT001 - pytest's way
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Layer(), Layer()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if inside:
                return self.second(checkpoint(self.first, x, use_reentrant=False))
            return self.second(self.first(x))

    pair = Pair(Model)
    for _ in range(7):
        x = torch.randn(4, 8)
        pair.each(lambda module, x=x: backward(module(x) if inside else checkpoint(module, x, use_reentrant=False)))
        pair.step()
    assert graphs.played > graphs.from_host


def test_one_program_for_all_layers(graphs: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that are compiled one by one: each has its parameters read where they lie.

    What a layer is given may lie twice at one address by chance, before the layer above lends it: it is taken for an
    input that rests, and when it moves its layer is captured once more.
    """
    began_to_move: list[Generation] = []
    look_at = Generation.look_at

    def noting(self: Generation, addresses: Sequence[int], **given: Any) -> bool:
        before = self.moving
        ready = look_at(self, addresses, **given)
        if self.parts and self.moving != before:
            began_to_move.append(self)
        return ready

    monkeypatch.setattr(Generation, "look_at", noting)

    def make() -> nn.Module:
        return nn.Sequential(*(Layer() for _ in range(4)))

    torch.manual_seed(0)
    pair = Pair(make)
    for layer in pair.ours:
        layer.compile(backend="ferrite", options={"fallback": False})
    pair.compiled = pair.ours
    train(pair, 7, wants=True)
    forward, _ = graphs
    captured = [each for each in forward.generations.values() if each.captured]
    assert len(captured) == 4
    assert all(each.captured == 1 + began_to_move.count(each) for each in captured)
    weight = next(
        value.name for value in forward._program.inputs if value.layout and value.layout.numbers[0] == (16, 8)
    )
    assert not any(weight in each.moving for each in forward.generations.values())
    host = graphs.from_host
    train(pair, 2, wants=True)
    assert graphs.from_host == host


@pytest.mark.parametrize("count", [4, 5, 6])
def test_more_layers_of_one_program_than_captures(graphs: Graphs, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """The first calls are at other depths than the later ones, as one of them was not looked at."""
    monkeypatch.setattr("ferrite_runtime.engines.generations.GRAPHS", GraphThresholds(addresses=5))

    torch.manual_seed(0)
    pair = Pair(lambda: nn.Sequential(*(Layer() for _ in range(count))))
    for layer in pair.ours:
        layer.compile(backend="ferrite", options={"fallback": False})
    pair.compiled = pair.ours
    train(pair, 12, wants=True)
    host = graphs.from_host
    train(pair, 2, wants=True)
    assert graphs.from_host == host
    forward, _ = graphs
    captured = [key for key, each in forward.generations.items() if each.captured]
    assert sum(bool(key.static) for key in captured) == min(count, 5), [*forward.generations]
    assert len(captured) == count
    assert all(sum(bool(key.static) for key in each.generations) <= 5 for each in graphs)


def test_layers_without_gradients_have_a_capture_each(graphs: Graphs) -> None:
    """As in a model that is cut between its layers: one program, which is called with the parameters of each."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
                torch._dynamo.graph_break()
            return x

    def run(count: int) -> None:
        for _ in range(count):
            x = torch.randn(4, 8)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)

    def sets() -> set[tuple[int, ...]]:
        return {key.static for key, each in program.generations.items() if each.captured}

    model = Model()
    compiled: Any = torch.compile(model, backend="ferrite", options={"fallback": False})
    with torch.no_grad():
        run(12)
        (program,) = graphs
        assert len(sets()) == 6
        assert all(len(each.moving) <= 1 for each in program.generations.values()), "x, and no parameter"
        before, played = sets(), graphs.played
        run(1)
        per_call = graphs.played - played
        model.layers[2].up.weight = nn.Parameter(torch.randn(16, 8))
        run(12)
        assert len(sets() - before) == 1
        assert len(before - sets()) == 1, "what read the parameter that is gone is dropped"
        played = graphs.played
        run(1)
        assert graphs.played - played == per_call
        assert sum(ferrite_torch.statistics()["captures"].values()) >= 6


def test_results_without_gradients_are_lent(graphs: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers take turns: the result of one is read by the next where it lies, whose own is copied."""
    copied: list[int] = []
    write = Writes.__call__

    def counting(self: Writes, to: Any, source: Any) -> None:
        copied.append(len(to))
        write(self, to, source)

    monkeypatch.setattr(Writes, "__call__", counting)
    layers = nn.ModuleList(Layer() for _ in range(6))
    for layer in layers:
        layer.compile(backend="ferrite", options={"fallback": False})
    kept = []
    with torch.no_grad():
        for turn in range(16):
            x = wanted = torch.randn(4, 8)
            copied.clear()
            for layer in layers:
                x, wanted = layer(x), layer.forward(wanted)
                torch.testing.assert_close(x, wanted, rtol=1e-5, atol=1e-5)
            if turn in (9, 10):
                kept.append((x, wanted))
            if turn == 8:
                assert sum(copied) <= 1, "x, which moves"
            elif turn == 15:
                assert sum(copied) <= 6, "somebody holds a result: the others are copied"
    for found, wanted in kept:
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_sizes_that_come_again(graphs: Graphs) -> None:
    pair = Pair()
    pair.compiled = torch.compile(pair.ours, backend="ferrite", dynamic=True, options={"fallback": False})
    for _ in range(SHAPES.calls + 4):
        for rows in (3, 5):
            train(pair, 1, rows)
    assert len(graphs) == 4
    host = graphs.from_host
    for rows in (5, 3, 5):
        train(pair, 1, rows)
    assert graphs.from_host == host


def test_an_error_between_forward_and_backward(graphs: Graphs) -> None:
    pair: Pair = Pair()
    caught: list[Any] = []

    def fail(module: Any) -> None:
        y = module(torch.ones(4, 8))
        raise ValueError(f"{y.shape}")

    for turn in range(9):
        if turn % 2:
            with pytest.raises(ValueError, match="4, 8") as error:
                fail(pair.compiled)
            caught = [error] if turn % 4 == 1 else []  # its traceback holds the result
            del error
        assert saved_memory(graphs) == len(caught)
        train(pair, 1)


def test_several_threads(graphs: Graphs) -> None:
    pair = Pair()
    train(pair, 5)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        made = torch.Generator().manual_seed(seed)
        try:
            for _ in range(4):
                x = torch.randn(4, 8, generator=made)
                expected = torch.autograd.grad(pair.eager(x).square().sum(), list(pair.eager.parameters()))
                found = torch.autograd.grad(pair.compiled(x).square().sum(), list(pair.ours.parameters()))
                torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failures


def test_what_is_saved_outlives_the_program(graphs: Graphs) -> None:
    pair = Pair()
    train(pair, 5)
    x = torch.randn(4, 8)
    expected, found = pair.eager(x), pair.compiled(x)
    for program in graphs:
        program._give_up("it is over")
    gc.collect()
    filling = [torch.full((4, each), float("nan")) for each in (1, 8, 16) for _ in range(50)]
    wanted = torch.autograd.grad(expected.sum(), list(pair.eager.parameters()))
    torch.testing.assert_close(torch.autograd.grad(found.sum(), list(pair.ours.parameters())), wanted)
    assert len(filling) == 150


def test_more_calls_at_a_time_than_generations(graphs: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrite_runtime.engines.generations.GRAPHS", GraphThresholds(generations=2, addresses=2))
    pair = Pair()

    def many(module: Any) -> torch.Tensor:
        results = [module(x) for x in xs]
        torch.stack(results).square().sum().backward()
        return torch.stack(results).detach()

    for _ in range(6):
        xs = torch.randn(4, 4, 8)
        pair.each(many)
        pair.step()
    assert all(sum(bool(key.static) for key in program.generations) <= 2 for program in graphs)
    assert all(sum(not key.static for key in program.generations) <= 2 for program in graphs)
