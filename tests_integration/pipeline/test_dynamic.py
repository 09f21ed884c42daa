"""One compilation for many sizes: forward and backward under ``dynamic=True``, against eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import ferrite_torch

R = torch.randn


@dataclass(frozen=True)
class Case:
    """A function with arguments made for several sizes; ``compiles`` counts the graphs of one direction."""

    function: Callable[..., Any]
    make: Callable[..., Sequence[Any]]
    sizes: Sequence[tuple[int, ...]]
    compiles: int = 1


def norms(x: Tensor, w: Tensor) -> Any:
    return torch.softmax(x, -1) * w, x.sum(0), x.mean(-1), x.var(1), F.layer_norm(x, (x.shape[-1],), w, w)


def joined(x: Tensor, y: Tensor) -> Any:
    z = torch.cat([x, y], 0)
    return z[1:-1], z[:, 2:], z.t().contiguous(), torch.stack([x.sum(), y.sum()]), z[x.shape[0] :]


def heads(x: Tensor, w: Tensor) -> Any:
    b, s, _ = x.shape
    q, k, v = (x @ w).view(b, s, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
    a = torch.softmax((q @ k.transpose(-1, -2)) * 0.3 + torch.full((s, s), float("-inf")).triu(1), -1) @ v
    return a.transpose(1, 2).reshape(b, s, 32), torch.arange(s)[None] + 1


def convolved(x: Tensor, w: Tensor, bias: Tensor) -> Any:
    y = F.max_pool2d(torch.relu(F.conv2d(x, w, bias, padding=1)), 2)
    return F.adaptive_avg_pool2d(y, 1).flatten(1), y.mean((2, 3))


def moved(x: Tensor, i: Tensor) -> Any:
    summed = torch.zeros_like(x).scatter_add(0, i[:, None].expand(-1, x.shape[1]), x[: i.shape[0]])
    return x.flip(0).roll(1, 0), F.pad(x, (1, 2)), x[i], x[-1], x[:, 0], x.cumsum(0), x.tril(), x.topk(2, 0)[0], summed


def resampled(x: Tensor, grid: Tensor) -> Any:
    doubled = F.interpolate(x, scale_factor=2.0, mode="bilinear")
    halved = F.interpolate(F.interpolate(x, scale_factor=2), scale_factor=0.5)
    sampled = F.grid_sample(x, grid, align_corners=False)
    padded = F.pad(x, (1, 1, 1, 1), mode="reflect") + F.pad(x, (1, 1, 1, 1), mode="replicate")
    return (
        doubled,
        halved,
        sampled,
        padded,
        F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        F.adaptive_avg_pool2d(x, 3),
    )


CASES = {
    # Torch 2.11's fake kernel of avg_pool2d asks whether the windows divide the image, and guards the answer.
    "resampled": Case(
        resampled,
        lambda b, s: [R(b, 2, s, s + 1), R(b, 11, 4, 2).tanh()],
        [(3, 6), (4, 7), (5, 13)],
        compiles=1 if torch.__version__ >= "2.12" else 2,
    ),
    "pointwise": Case(
        lambda x: F.gelu(x * 2 + 1), lambda n: [R(n, 4096)], [(n,) for n in (3, 2, 5, 17, 31, 32, 33, 64)]
    ),
    "norms": Case(norms, lambda n, m: [R(n, m), R(m)], [(3, 7), (5, 64), (2, 2), (17, 130), (8, 1000)]),
    "sums": Case(
        lambda x: (x.sum(0) + 1, (x * x).sum(0), x.sum(), x.amax(0)),
        lambda n: [R(n, 24)],
        [(3,), (5000,), (2,), (2497,)],
    ),
    "linear": Case(
        lambda x, w, b: torch.relu(F.linear(x, w, b)).reshape(x.shape[0], -1),
        lambda n, m: [R(n, m, 16), R(8, 16), R(8)],
        [(3, 7), (5, 64), (2, 2), (17, 130)],
    ),
    "joined": Case(joined, lambda n, k, m: [R(n, m), R(k, m)], [(3, 5, 7), (5, 6, 64), (6, 4, 5), (17, 13, 130)]),
    "numbers": Case(
        lambda x, k, s: (x * k + s, x.shape[0] * k, x + x.shape[1]),
        lambda n, m, k: [R(n, m), k, k / 4],
        [(3, 5, 7), (5, 6, 64), (4, 3, -2)],
    ),
    "heads": Case(heads, lambda b, s: [R(b, s, 16), R(16, 96)], [(3, 7), (5, 16), (2, 2)]),
    "convolved": Case(convolved, lambda b, s: [R(b, 3, s, s), R(5, 3, 3, 3), R(5)], [(4, 8), (7, 16), (2, 12)]),
    "moved": Case(moved, lambda n, m: [R(n, m), torch.randint(0, n, (n - 1,))], [(5, 7), (9, 16), (4, 12)]),
}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    ferrite_torch.reset_statistics()
    return torch.compile(function, backend="ferrite", dynamic=True, fullgraph=True, options={"fallback": False})


def captures(case: Case) -> int:
    """Returns how often torch captures a case by itself: 2.12 guards on remainders in its pooling."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    called = torch.compile(case.function, backend=counter, dynamic=True, fullgraph=True)
    for size in case.sizes:
        called(*case.make(*size))
    return int(counter.frame_count)


@pytest.mark.parametrize("name", CASES)
def test_one_compilation_serves_every_size(name: str) -> None:
    case = CASES[name]
    called = compiled(case.function)
    for size in case.sizes:
        given = case.make(*size)
        torch.testing.assert_close(called(*given), case.function(*given), rtol=1e-4, atol=1e-4)
    statistics = ferrite_torch.statistics()
    assert statistics["specialised"] == {}
    assert statistics["graphs"] in (case.compiles, captures(case))


@pytest.mark.parametrize("name", CASES)
def test_one_compilation_trains_every_size(name: str) -> None:
    case = CASES[name]
    called = compiled(case.function)
    for size in case.sizes:
        given = case.make(*size)
        want, got = (_trained(function, given) for function in (case.function, called))
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
    statistics = ferrite_torch.statistics()
    assert statistics["specialised"] == {}
    assert statistics["graphs"] in (2 * case.compiles, 2 * captures(case))


def _trained(function: Callable[..., Any], given: Sequence[Any]) -> list[Any]:
    leaves = [x.clone().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x for x in given]
    results = function(*leaves)
    results = results if isinstance(results, tuple) else (results,)
    loss = sum(
        (y * torch.arange(y.numel()).reshape(y.shape).cos()).sum()
        for y in results
        if isinstance(y, Tensor) and y.requires_grad
    )
    loss.backward()
    return [*results, *(x.grad for x in leaves if isinstance(x, Tensor) and x.requires_grad)]


def test_a_search_is_unrolled_in_time_for_any_size() -> None:
    """Each halving reads where the last one says: whoever walks that as a tree never comes to an end."""
    called = compiled(torch.bucketize)
    for places in (100, 7, 2, 5000):
        given = R(33), R(places).sort()[0]
        assert torch.equal(called(*given), torch.bucketize(*given))
    assert ferrite_torch.statistics()["graphs"] == 1


def test_views_of_unknown_ratios() -> None:
    called = compiled(lambda x: x.view(6, -1) * 2 + 1)
    for rows in (12, 18, 30):
        x = R(rows, 7)
        torch.testing.assert_close(called(x), x.view(6, -1) * 2 + 1)
    assert ferrite_torch.statistics()["graphs"] == 1


def test_a_size_that_floats_would_round_is_fixed_alone() -> None:
    """What no size expression says fixes the sizes it is computed from, not the graph to eager."""
    called = compiled(lambda x: F.interpolate(x, scale_factor=0.3, recompute_scale_factor=True))
    for batch in (3, 4, 5):
        x = R(batch, 2, 10, 12)
        want = F.interpolate(x, scale_factor=0.3, recompute_scale_factor=True)
        torch.testing.assert_close(called(x), want)
    statistics = ferrite_torch.statistics()
    assert (statistics["graphs"], statistics["fallbacks"]) == (1, {})


@pytest.mark.parametrize("size", [0, 1, 2, 3, 31, 32, 33, 127])
def test_extreme_sizes(size: int) -> None:
    def function(x: Tensor) -> Any:
        return x.relu() * 2, x.sum(1), (x @ x.t()).softmax(-1)

    called = compiled(function)
    x = R(max(size, 3), 8)
    called(x)
    given = R(size, 8)
    torch.testing.assert_close(called(given), function(given), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_rows_of_any_length(dtype: torch.dtype) -> None:
    """Lengths on both sides of every choice: tiles that are just full or just over, rows of whole vectors or not."""

    def function(x: Tensor) -> Any:
        y = x.float()
        return torch.softmax(x, -1), y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6), y.amax(-1)

    called = compiled(function)
    for length in (2, 3, 1, 4, 5, 127, 128, 129, 1021, 1024, 1025, 8191, 8192, 8193, 8200, 8204, 16384, 16385):
        given = R(3, length, dtype=dtype)
        torch.testing.assert_close(called(given), function(given))
    assert ferrite_torch.statistics()["graphs"] <= 2  # torch makes one row of one element a graph of its own


@pytest.mark.parametrize("length", [7, 300, 9000])
def test_rows_without_a_finite_maximum(length: int) -> None:
    """Short rows are held in one tile, longer ones looped over; both agree with eager on what is not finite."""

    def function(x: Tensor) -> Any:
        return torch.softmax(x, -1), torch.log_softmax(x, -1), torch.logsumexp(x, -1)

    called = compiled(function)
    called(R(6, 40))
    given = R(6, length)
    given[1] = -torch.inf
    given[2, 3], given[3, 2], given[3, 4] = torch.inf, torch.inf, -torch.inf
    given[4, 5], given[5, 1:] = torch.nan, -torch.inf
    torch.testing.assert_close(called(given), function(given), rtol=1e-4, atol=1e-4, equal_nan=True)
    assert ferrite_torch.statistics()["graphs"] == 1


def test_a_marked_size_stays_dynamic() -> None:
    torch._dynamo.reset()
    ferrite_torch.reset_statistics()
    called = torch.compile(lambda x: x * 2 + x.shape[0], backend="ferrite", options={"fallback": False})
    for size in (4, 7, 5):
        x = R(size, 3)
        torch._dynamo.mark_dynamic(x, 0, min=2, max=64)
        torch.testing.assert_close(called(x), x * 2 + size)
    assert ferrite_torch.statistics()["graphs"] == 1


def test_the_second_size_makes_it_dynamic() -> None:
    torch._dynamo.reset()
    ferrite_torch.reset_statistics()
    called = torch.compile(lambda x: x.softmax(0), backend="ferrite", options={"fallback": False})
    for size in (4, 7, 5, 9, 33):
        x = R(size, 3)
        torch.testing.assert_close(called(x), x.softmax(0))
    assert ferrite_torch.statistics()["graphs"] == 2


def test_a_number_that_changes_compiles_nothing() -> None:
    torch._dynamo.reset()
    ferrite_torch.reset_statistics()
    called = torch.compile(lambda x, s: x * s + s, backend="ferrite", options={"fallback": False})
    x = R(5)
    for step in range(100):
        torch.testing.assert_close(called(x, 0.5 + step / 7), x * (0.5 + step / 7) + (0.5 + step / 7))
    assert ferrite_torch.statistics()["graphs"] <= 2


def test_what_needs_a_number_is_fixed_alone(caplog: pytest.LogCaptureFixture) -> None:
    def function(x: Tensor, y: Tensor) -> Any:
        return torch.stack(x.unbind(0)).sum(0) + 1, y * 2

    called = compiled(function)
    for n, m in ((3, 5), (3, 6), (3, 17)):
        given = R(n, 4), R(m, 7)
        torch.testing.assert_close(called(*given), function(*given))
    assert ferrite_torch.statistics()["graphs"] == 1
