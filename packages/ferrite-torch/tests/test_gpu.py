"""The backend on a GPU: what the interpreter cannot show."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import ferrite_torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    ferrite_torch.reset_statistics()
    torch.manual_seed(0)
    yield
    assert ferrite_torch.statistics()["fallbacks"] == {}


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return ferrite_torch.compile(function, **{"fallback": False, "verify": True, **options})


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def assert_close(got: torch.Tensor, want: torch.Tensor, exact: torch.Tensor) -> None:
    """Checks that a result is about as near to the exact one as eager's is."""
    assert (got.shape, got.dtype, got.stride()) == (want.shape, want.dtype, want.stride())
    allowed = 2 * (want.double() - exact).abs().max() + 4 * torch.finfo(want.dtype).eps * exact.abs().max()
    assert (got.double() - exact).abs().max() <= allowed


def assert_trains(model: torch.nn.Module, *inputs: torch.Tensor) -> None:
    """Checks a forward and backward pass against eager and float64."""
    ours, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    results = []
    for run, parameters in ((compiled(ours), ours), (model, model), (exact, exact)):
        given = [x.double() if run is exact and x.is_floating_point() else x.clone() for x in inputs]
        loss = run(*given).square().mean()
        loss.backward()
        results.append([loss.detach(), *(p.grad for p in parameters.parameters() if p.grad is not None)])
    for got, want, right in zip(*results, strict=True):
        assert_close(got, want, right)


class Attention(torch.nn.Module):
    def __init__(self, width: int = 64, dropout: float = 0.0) -> None:
        super().__init__()
        self.qkv, self.dropout = torch.nn.Linear(width, 3 * width), dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (y.unflatten(-1, (4, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        return (
            F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True).transpose(1, 2).flatten(2)
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_attention_trains_in_every_kernel_of_torchs(dtype: torch.dtype) -> None:
    assert_trains(Attention().to("cuda", dtype), randn(2, 128, 64, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_with_dropout_runs(dtype: torch.dtype) -> None:
    model = Attention(dropout=0.5).to("cuda", dtype)
    compiled(model)(randn(2, 128, 64, dtype=dtype)).sum().backward()
    assert model.qkv.weight.grad is not None
    assert model.qkv.weight.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_perceptron_trains(dtype: torch.dtype) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.LayerNorm(512), torch.nn.Linear(512, 8)
    )
    assert_trains(model.to("cuda", dtype), randn(300, 256, dtype=dtype))


def test_a_channels_last_convolution_trains() -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(8, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.MaxPool2d(2)
    )
    model = model.to("cuda", memory_format=torch.channels_last)
    assert_trains(model, randn(4, 8, 16, 16).to(memory_format=torch.channels_last))


def test_a_number_on_the_cpu_is_passed_by_value() -> None:
    x, s = randn(1000), torch.tensor(2.5)
    f = compiled(lambda x, s: x * s + s)
    torch.testing.assert_close(f(x, s), x * s + s)
    s.fill_(-1)
    torch.testing.assert_close(f(x, s), x * s + s)


def test_arrays_on_the_cpu_are_moved() -> None:
    x, table = randn(4), torch.arange(4.0)
    torch.testing.assert_close(compiled(lambda x, t: x + t.to("cuda"))(x, table), x + table.cuda())


def test_losses_and_embeddings_train() -> None:
    class Language(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(1000, 64)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            logits = self.table(tokens) @ self.table.weight.t()
            return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())

    assert_trains(Language().cuda(), torch.randint(0, 1000, (4, 50), device="cuda"))


def test_a_cache_is_extended_where_it_lies() -> None:
    def f(cache: torch.Tensor, row: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(0, at, row)
        return cache.sum(0)

    cache, expected = torch.zeros(64, 128, device="cuda"), torch.zeros(64, 128, device="cuda")
    row, at = randn(2, 128), torch.tensor([3, 50], device="cuda")
    address = cache.data_ptr()
    got = compiled(f)(cache, row, at)
    torch.testing.assert_close(got, f(expected, row, at))
    torch.testing.assert_close(cache, expected)
    assert cache.data_ptr() == address


def test_overlapping_shifts_are_right() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x[1:] = x[:-1] + 1
        return x.sum()

    x = randn(1 << 20)
    y = x.clone()
    torch.testing.assert_close(compiled(f)(x), f(y))
    torch.testing.assert_close(x, y)


def test_dropout_follows_the_seed() -> None:
    drop = compiled(lambda x: F.dropout(x, 0.25))
    x = torch.ones(1 << 16, device="cuda")
    torch.manual_seed(3)
    first, second = drop(x), drop(x)
    torch.manual_seed(3)
    assert torch.equal(drop(x), first)
    assert not torch.equal(first, second)
    assert abs(first.mean().item() - 1) < 0.02


def test_autocast_trains() -> None:
    model = torch.nn.Linear(128, 64, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        out = compiled(model)(randn(32, 128))
    out.float().sum().backward()
    assert out.dtype is torch.bfloat16
    assert model.weight.grad is not None


def test_an_optimizer_step_is_compiled() -> None:
    models = [torch.nn.Linear(64, 64, device="cuda") for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    x = randn(8, 64)
    for model, wrap in zip(models, (compiled, lambda f: f), strict=True):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        step = wrap(optimizer.step)
        for _ in range(3):
            model(x).square().mean().backward()
            step()
            optimizer.zero_grad()
    torch.testing.assert_close(models[0].weight, models[1].weight, rtol=1e-4, atol=1e-5)


def test_memory_is_freed_as_early_as_in_eager() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = torch.sin(x @ x)
        return x.sum()

    x = randn(2048, 2048)
    g = compiled(f)
    peaks = []
    for function in (f, g):
        function(x)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function(x)
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] <= peaks[0]


def test_results_on_other_streams_are_right() -> None:
    f = compiled(lambda x: (x * 2).softmax(-1))
    x = randn(512, 512)
    f(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = f(x)
    stream.synchronize()
    torch.testing.assert_close(y, (x * 2).softmax(-1))


@pytest.mark.parametrize("dynamic", [False, True])
def test_complex_operands_are_refused_as_the_gpu_refuses_them(dynamic: bool) -> None:  # noqa: FBT001
    turned = torch.full((2,), 1j, device="cuda")
    half, number = torch.ones(2, device="cuda", dtype=torch.float16), turned[0]
    calls: list[tuple[Callable[..., Any], tuple[torch.Tensor, ...], type[Exception]]] = [
        (lambda x, y: x.clone().add_(y), (half, number), RuntimeError),
        (lambda x, y: torch._foreach_mul_([x.clone()], [y]), (half, number), RuntimeError),
        (F.glu, (turned,), NotImplementedError),
    ]
    for function, inputs, refusal in calls:
        for run in (function, compiled(function, dynamic=dynamic)):
            with pytest.raises(refusal, match=r"can't be cast|not implemented for"):
                run(*inputs)


def test_numbers_that_a_program_writes_are_waited_for_by_no_kernel() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = x.new_zeros(8, 8)
        rows[:3, :4], rows[3:, 4:] = 1, -2.5
        return x.where(x > 0, torch.tensor(float("-inf"))) + rows, torch.tensor(2.5) + 1

    x = randn(8, 8)
    ours, number = compiled(function)(x)
    want, eager_number = function(x)
    assert torch.equal(ours, want)
    assert torch.equal(number, eager_number)  # both are on the CPU
    called = set(ferrite_torch.statistics()["externs"])
    assert not [name for name in called if "copy" in name]
