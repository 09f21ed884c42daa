"""Sums, products and counts of very many elements of narrow types: carried in wider ones, and rounded once.

In bfloat16 256 + 1 is 256, so what is added up, or counted, in the type itself stops growing there. Results are judged
by the same function of float64 tensors: they differ by no more than rounding the result, and eager's own deviations
from that (it divides by counts that it has added up in the narrow type) are not asked for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from against_eager import compiled_to_kernels, devices

each_device = pytest.mark.parametrize("device", devices())
HALVES = (torch.float16, torch.bfloat16)
each_half = pytest.mark.parametrize("half", HALVES, ids=str)
COUNT = 900

Function = Callable[..., Any]


def check_near(named: dict[str, Function], half: torch.dtype, *inputs: Tensor, roundings: float = 1.5) -> None:
    """Fails unless each result is what float64 gives, but for a few roundings to the half type."""
    for name, function in named.items():
        torch._dynamo.reset()
        actual = compiled_to_kernels(lambda *given, f=function: f(*given), fullgraph=True, dynamic=False)(*inputs)
        exact = function(*(x.double() if x.is_floating_point() else x for x in inputs))
        assert actual.dtype == half, name
        tolerance = roundings * torch.finfo(half).eps
        torch.testing.assert_close(
            actual.double(), exact, rtol=tolerance, atol=0, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.fixture(autouse=True)
def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="index_reduce")  # eager says once that it is in beta
        yield


def places(device: str, count: int = COUNT) -> Tensor:
    return (torch.arange(count) % 3).to(device)


@each_half
@each_device
def test_elements_combined_at_few_places(half: torch.dtype, device: str) -> None:
    index, values = places(device), torch.full((COUNT,), 3.0, dtype=half, device=device)
    near_one = torch.where(torch.arange(COUNT) % 2 == 0, 1.25, 0.8125).to(device, half)
    start = torch.ones(3, dtype=half, device=device)

    def reduce_into(reduce: str, *, include_self: bool = True) -> Function:
        return lambda z, i, v: z.scatter_reduce(0, i, v, reduce, include_self=include_self)

    def reduce_rows(reduce: str, *, include_self: bool = True) -> Function:
        return lambda z, i, v: z.index_reduce(0, i, v, reduce, include_self=include_self)

    named: dict[str, Function] = {
        "index_add": lambda z, i, v: z.index_add(0, i, v),
        "scatter_add": lambda z, i, v: z.scatter_add(0, i, v),
        "index_put": lambda z, i, v: z.index_put((i,), v, accumulate=True),
        "index_put_of_one": lambda z, i, v: z.index_put((i,), v[0], accumulate=True),
        "put": lambda z, i, v: z.put(i, v, accumulate=True),
        "scatter_sum": reduce_into("sum", include_self=False),
        "scatter_mean": reduce_into("mean"),
        "scatter_mean_without_self": reduce_into("mean", include_self=False),
        "index_mean": reduce_rows("mean"),
        "index_mean_without_self": reduce_rows("mean", include_self=False),
        "scatter_add_in_place": lambda z, i, v: z.clone().scatter_add_(0, i, v),
    }
    check_near(named, half, start, index, values)
    products = {"scatter_product": reduce_into("prod"), "index_product": reduce_rows("prod")}
    check_near(products, half, start, index, near_one)


@each_half
@each_device
def test_rows_combined_at_few_places(half: torch.dtype, device: str) -> None:
    index, rows = places(device), torch.full((COUNT, 8), 3.0, dtype=half, device=device)
    start = torch.ones(3, 8, dtype=half, device=device)
    named: dict[str, Function] = {
        "index_add": lambda z, i, v: z.index_add(0, i, v, alpha=0.5),
        "index_put": lambda z, i, v: z.index_put((i,), v, accumulate=True),
        "index_mean": lambda z, i, v: z.index_reduce(0, i, v, "mean"),
        "scatter_mean": lambda z, i, v: z.scatter_reduce(0, i[:, None].expand(-1, 8), v, "mean"),
        "columns": lambda z, i, v: z.t().contiguous().index_add(1, i, v.t()),
    }
    check_near(named, half, start, index, rows)


@each_half
@each_device
def test_gradients_of_rows_that_many_read(half: torch.dtype, device: str) -> None:
    index, table = places(device), torch.ones(3, 8, dtype=half, device=device)
    functions: dict[str, Function] = {
        "embedding": lambda table, index: F.embedding(index, table),
        "indexed": lambda table, index: table[index],
        "selected": lambda table, index: table.index_select(0, index),
        "gathered": lambda table, index: table.gather(0, index[:, None].expand(-1, 8)),
        "expanded": lambda table, index: table.expand(300, 3, 8),
        "added": lambda table, index: torch.zeros(300, 3, 8, dtype=table.dtype, device=table.device) + table,
    }
    for name, function in functions.items():
        torch._dynamo.reset()
        mine, exact = table.detach().clone().requires_grad_(), table.double().requires_grad_()
        out = compiled_to_kernels(function, fullgraph=True, dynamic=False)(mine, index)
        (actual,) = torch.autograd.grad(out, mine, torch.ones_like(out))
        wide = function(exact, index)
        (expected,) = torch.autograd.grad(wide, exact, torch.ones_like(wide))
        torch.testing.assert_close(actual.double(), expected, rtol=torch.finfo(half).eps, atol=0, msg=name)


@each_half
@each_device
def test_sums_counts_and_windows(half: torch.dtype, device: str) -> None:
    ones = torch.ones(COUNT, dtype=half, device=device)
    image = torch.ones(1, 2, 30, 30, dtype=half, device=device)
    named: dict[str, Function] = {
        "sum": lambda x: x.sum(),
        "mean": lambda x: x.mean(),
        "sum_of_double": lambda x: (x * 2).sum(),
        "cumsum": lambda x: x.cumsum(0),
        "cumprod": lambda x: (x * 1.0).cumprod(0),
        "norm": torch.linalg.vector_norm,
        "deviation": lambda x: (x * torch.arange(COUNT, device=x.device).remainder(2)).std(),
        "logsumexp": lambda x: torch.logsumexp(x, 0),
        "histogram": lambda x: torch.histc(x, 4, 0, 2),
        "softmax": lambda x: F.softmax(x, 0),
        "loss": lambda x: F.mse_loss(x, x * 3),
    }
    check_near(named, half, ones, roundings=2)
    windows: dict[str, Function] = {
        "avg_pool": lambda x: F.avg_pool2d(x, 29, 1),
        "avg_pool_with_padding": lambda x: F.avg_pool2d(x, 30, 1, 15, count_include_pad=False),
        "adaptive": lambda x: F.adaptive_avg_pool2d(x, 1),
        "reduced": lambda x: F.fold(F.unfold(x, 3, padding=1), (30, 30), 3, padding=1),
        "convolved": lambda x: F.interpolate(x, scale_factor=0.1, mode="area"),
    }
    check_near(windows, half, image)


@each_device
def test_a_loss_of_more_targets_than_float16_counts(device: str) -> None:
    """The loss is divided by how many targets count, which float16 has no number for."""
    x = torch.zeros(70000, 2, dtype=torch.float16, device=device)
    target = torch.zeros(70000, dtype=torch.int64, device=device)
    weight = torch.tensor([0.5, 2.0], dtype=torch.float16, device=device)
    named: dict[str, Function] = {
        "mean": lambda x, target, weight: F.cross_entropy(x, target),
        "weighted": F.cross_entropy,
    }
    check_near(named, torch.float16, x, target, weight)


@each_half
@each_device
def test_gradients_of_windows(half: torch.dtype, device: str) -> None:
    functions: dict[str, Function] = {
        "avg_pool": lambda x: F.avg_pool2d(x, 29, 1),
        "upsampled": lambda x: F.interpolate(x, scale_factor=20.0, mode="nearest"),
        "bilinear": lambda x: F.interpolate(x, scale_factor=20.0, mode="bilinear"),
        "unfolded": lambda x: F.unfold(x, 20, padding=0),
        "adaptive": lambda x: F.adaptive_avg_pool2d(x, 50),
    }
    for name, function in functions.items():
        size = 30 if name in ("avg_pool", "unfolded") else 2
        torch._dynamo.reset()
        mine = torch.ones(1, 1, size, size, dtype=half, device=device, requires_grad=True)
        exact = mine.detach().double().requires_grad_()
        out = compiled_to_kernels(function, fullgraph=True, dynamic=False)(mine)
        (actual,) = torch.autograd.grad(out, mine, torch.ones_like(out))
        wide = function(exact)
        (expected,) = torch.autograd.grad(wide, exact, torch.ones_like(wide))
        torch.testing.assert_close(actual.double(), expected, rtol=2 * torch.finfo(half).eps, atol=0, msg=name)
