"""Whole models whose kernels and matrix products start as sequences of native code: the same as eager, and as Python's.

Without a GPU the engine for GPUs runs on tensors of the host, with a driver that interprets what it is told to launch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ferrite_runtime.engines.shape_cache
import ferrite_runtime.host.host_function
import ferrite_runtime.loading.loaded_program
from against_eager import assert_all_close, compiled, devices, widened
from ferrite_runtime.engines.cuda_engine import CudaEngine
from ferrite_runtime.host.product_library import find_products
from ferrite_runtime.host.thresholds import MemoryThresholds, ShapeThresholds
from ferrite_runtime.launching.native_launcher import find_launcher
from ferrite_runtime.store.interface import MemoryStore
from sampling import as_slow

STORE = MemoryStore()
NATIVE = find_launcher(STORE, may_build=True)

pytestmark = pytest.mark.skipif(NATIVE is None, reason="no C compiler here")


class Layer(nn.Module):
    """A transformer layer, norms first."""

    def __init__(self, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Apart(nn.Module):
    """Attention whose query, key and value come from products of their own: so do the gradients go to."""

    def __init__(self, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        made = (of(x).view(*x.shape[:2], self.heads, -1) for of in (self.query, self.key, self.value))
        y = nn.functional.scaled_dot_product_attention(*(one.transpose(1, 2) for one in made))
        return x + self.out(y.transpose(1, 2).reshape(x.shape))


class Batched(nn.Module):
    """Products of batches, with and without a summand."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(32, 32), nn.Linear(32, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.left(x), self.right(x)
        scores = torch.baddbmm(x.new_ones(1, 1, 1), left, right.transpose(1, 2), beta=0.5, alpha=0.25).sigmoid()
        return torch.bmm(scores, left).tanh()


class Cell(nn.Module):
    """A recurrent cell, unrolled: many buffers that take turns at a few places."""

    def __init__(self) -> None:
        super().__init__()
        self.of_input, self.of_state = nn.Linear(32, 64), nn.Linear(16, 64)

    def forward(self, x: Tensor) -> Tensor:
        state = memory = x.new_zeros(x.shape[0], 16)
        for step in range(x.shape[1]):
            i, f, g, o = (self.of_input(x[:, step]) + self.of_state(state)).chunk(4, -1)
            memory = f.sigmoid() * memory + i.sigmoid() * g.tanh()
            state = o.sigmoid() * memory.tanh()
        return state


class Shared(nn.Module):
    """One weight as it is, transposed and cut; a product that is a result, and one that the next product reads."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 32) / 6)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = x.reshape(-1, 32) @ self.weight
        z = y.sin() @ self.weight.t()
        return y, (y @ self.weight)[::2] @ self.weight[:, :8], (y * z).sum(0)


def layers() -> nn.Module:
    return nn.Sequential(Layer(), Layer())


@pytest.fixture
def drivers() -> list[Any]:
    """Returns the drivers that stand in for a GPU's."""
    return []


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch, drivers: list[Any]) -> list[Any]:
    """Returns the host functions of later calls; graphs on the host run through the engine for GPUs."""
    found: list[Any] = []
    folder = str(Path(__file__).parents[2] / "packages" / "ferrite-runtime" / "tests")
    monkeypatch.syspath_prepend(folder)
    fakes = importlib.import_module("runtime_fakes")
    choose = ferrite_runtime.loading.loaded_program.choose_engine
    steady = CudaEngine.steady

    def choose_engine(program: Any, options: Any, *rest: Any) -> Any:
        if program.device != "cpu":
            return choose(program, options, *rest)
        products = find_products if options.native_products else lambda device_type, index: None
        machine = fakes.fake_machine(tune="none", driver=fakes.graph_driver())
        drivers.append(machine.driver)
        platform, graphs = fakes.FakeStreams().platform(), options.native_graphs is not False
        return CudaEngine(program, platform, lambda index: machine, lambda: NATIVE, products, graphs)

    def kept(self: CudaEngine, device: Any, redirect: Any) -> Any:
        found.append(steady(self, device, redirect))
        return found[-1]

    monkeypatch.setattr(ferrite_runtime.loading.loaded_program, "choose_engine", choose_engine)
    monkeypatch.setattr(CudaEngine, "steady", kept)
    return found


def names_in(hosts: Iterable[Any]) -> set[str]:
    """Returns the global names that host functions use, and those that they leave calls of some sizes to."""
    fronts = {host: host.__globals__.get("_specialise") for host in hosts}
    behind = [(host,) if front is None else (front.usual, *front.prepared.values()) for host, front in fronts.items()]
    return {name for functions in behind for function in functions for name in function.__code__.co_names}


def tensors(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


def trained(model: nn.Module, call: Callable[..., Any], x: Tensor) -> list[Tensor]:
    """Returns results and gradients."""
    model.zero_grad(set_to_none=True)
    leaf = x.detach().clone().requires_grad_()
    results = tensors(call(leaf))
    sum(result.double().square().sum() for result in results).backward()
    return [*(result.detach() for result in results), leaf.grad, *(p.grad.clone() for p in model.parameters())]


MODELS = (layers, Apart, Batched, Cell, Shared)
TYPED = [
    *((make, torch.float32) for make in MODELS),
    *((make, torch.bfloat16) for make in (layers, Shared)),
    # The steps are the same in both types, but for the products.
    *(as_slow(pytest.param(make, torch.bfloat16)) for make in (Apart, Batched, Cell)),
]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(("make", "dtype"), TYPED)
def test_values_and_gradients(make: Callable[[], nn.Module], dtype: torch.dtype, device: str, hosts: list[Any]) -> None:
    torch.manual_seed(0)
    model = make().to(device, dtype)
    exact = make().to(device, torch.float64)
    exact.load_state_dict({name: widened(value) for name, value in model.state_dict().items()})
    call = compiled(model, fullgraph=True, dynamic=False)
    inputs = [torch.randn(4, 6, 32, device=device).to(dtype) for _ in range(3)]
    # All calls before all comparisons: a result must not change with the next call.
    mine = [trained(model, call, x) for x in inputs]
    for found, x in zip(mine, inputs, strict=True):
        assert_all_close(found, trained(model, model, x), trained(exact, exact, widened(x)))
    with torch.no_grad():
        inferred = [tensors(call(x)) for x in inputs]
        for found, x in zip(inferred, inputs, strict=True):
            assert_all_close(found, tensors(model(x)), tensors(exact(widened(x))))
    names = {name for host in hosts for name in host.__code__.co_names}
    assert any(name.startswith("_run") for name in names)
    assert not {f"_aten_{product}_default" for product in ("mm", "addmm", "bmm", "baddbmm")} & names


LIMITS = {
    "small": {},
    "no arenas": {"arena": 0},
    "free early": {"arena": 0, "deferred_of_lengths": 0},
    "come again": {"calls": 1},
}
"""What says how a call is treated whose sizes are given: bytes from which on it is not small any more, or how often
these sizes have to come."""


LIMITED = [
    *((Layer, limits) for limits in LIMITS),
    *((make, limits) for make in (Apart, Batched, Shared) for limits in ("small", "come again")),
    # What has the arenas, and when it is freed, is decided step by step, whatever the model.
    *(as_slow(pytest.param(make, each)) for make in (Apart, Batched, Shared) for each in ("no arenas", "free early")),
]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(("make", "limits"), LIMITED)
def test_values_and_gradients_at_sizes_of_the_call(
    make: Callable[[], nn.Module], limits: str, device: str, hosts: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    thresholds = LIMITS[limits]
    if "calls" in thresholds:
        monkeypatch.setattr(ferrite_runtime.engines.shape_cache, "SHAPES", ShapeThresholds(**thresholds))
    else:
        monkeypatch.setattr(ferrite_runtime.host.host_function, "MEMORY", MemoryThresholds(**thresholds))
    torch.manual_seed(0)
    model = make().to(device)
    exact = make().to(device, torch.float64)
    exact.load_state_dict({name: widened(value) for name, value in model.state_dict().items()})
    call = compiled(model, fullgraph=True, dynamic=True)
    sizes = ((4, 6), (3, 7), (3, 7), (2, 17), (5, 3), (4, 6), (3, 7))
    inputs = [torch.randn(*size, 32, device=device) for size in sizes]
    mine = [trained(model, call, x) for x in inputs]
    for found, x in zip(mine, inputs, strict=True):
        assert_all_close(found, trained(model, model, x), trained(exact, exact, widened(x)))
    assert len(hosts) == 2, "one compilation serves all sizes"
    names = names_in(hosts)
    assert not {f"_aten_{product}_default" for product in ("mm", "addmm", "bmm", "baddbmm")} & names
    assert any(name.startswith("_plans") for name in names)
    for host in hosts:
        again = host.__globals__["_specialise"].prepared
        assert len(again) == (4 if limits == "come again" else 0), "different sizes"


@pytest.mark.parametrize("device", devices())
def test_python_computes_the_same(device: str, hosts: list[Any]) -> None:
    torch.manual_seed(0)
    model = layers().to(device)
    calls = [compiled(model, fullgraph=True, dynamic=False, options={"native_products": on}) for on in (True, False)]
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(4, 6, 32, device=device)
            native, python = (call(x) for call in calls)
            assert torch.equal(native, python)
    assert sum("_aten_addmm_default" in host.__code__.co_names for host in hosts) == 1


@pytest.mark.parametrize("device", devices())
def test_many_kernels_in_a_row_give_the_same_as_a_graph(device: str, hosts: list[Any], drivers: list[Any]) -> None:
    """Inputs move and results stay alive from call to call, and training follows."""
    torch.manual_seed(0)

    def many(*inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.sin().softmax(-1) for x in inputs)

    apart = {"mixed_combos": False}  # launches enough for a graph
    calls = [
        compiled(many, fullgraph=True, dynamic=False, options={"native_graphs": on, "policy": apart})
        for on in (None, False)
    ]
    kept = []
    for _ in range(9):
        inputs = [torch.randn(4, 61 + 3 * k, device=device, requires_grad=True) for k in range(10)]
        for call in calls:
            results = call(*inputs)
            kept.append([*results, *torch.autograd.grad(sum(y.square().sum() for y in results), inputs)])
    for graphs, alone in zip(kept[::2], kept[1::2], strict=True):
        assert all(map(torch.equal, graphs, alone))
    assert any(name.startswith("_run") for host in hosts for name in host.__code__.co_names)
    launched = [driver.graphs.counts["cuGraphLaunch"] for driver in drivers]
    assert device == "cuda" or sorted(launched) == [0, 0, 5, 5], (
        "forward and backward, with graphs from the fifth call on"
    )
