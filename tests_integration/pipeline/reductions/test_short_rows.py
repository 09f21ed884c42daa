"""Reductions over short rows of odd sizes, of which each thread goes through one of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import ferrite_torch
from against_eager import assert_all_close, compiled, devices, gradients, own_only, widened
from ferrite_triton.analysis import row_per_thread
from ferrite_triton.analysis.lowering_policy import LOWERING
from sampling import sampled

OPTIONS = {"fallback": False, "verify": True}


@pytest.fixture(autouse=True)
def few_rows_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives threads rows of their own although a test has few."""
    monkeypatch.setattr(row_per_thread, "LOWERING", replace(LOWERING, least_thread_rows=1))


Function = Callable[[Tensor], Any]

REDUCTIONS: dict[str, Function] = {
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(-1),
    "prod": lambda x: (x / 2).prod(-1),
    "extremes": lambda x: (x.amax(-1), x.amin(-1)),
    "places": lambda x: (x.argmax(-1), x.argmin(-1), x.max(-1), x.min(-1)),
    "moments": lambda x: torch.var_mean(x, -1),
    "deviation": lambda x: x.std(-1, correction=0),
    "logsumexp": lambda x: x.logsumexp(-1),
    "distance": lambda x: (x - x.flip(0)).norm(dim=-1),
    "signs": lambda x: ((x > 0).any(-1), (x > 0).all(-1), (x > 0).sum(-1)),
}
WITH_ROWS: dict[str, Function] = {
    "softmax": lambda x: torch.softmax(x, -1),
    "norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "centred": lambda x: (x - x.mean(-1, keepdim=True), x.argmax(-1)),
}
ALL = {**REDUCTIONS, **WITH_ROWS}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROWS = [pytest.param(points, dtype, id=f"{points}-{dtype}") for points in (2, 3, 7, 10, 17, 41) for dtype in DTYPES]


# The sample has all types, and five of six lengths; every function has it.
@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(("points", "dtype"), sampled(ROWS, 4))
@pytest.mark.parametrize("name", ALL)
def test_values(name: str, points: int, dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(points)
    x = (torch.randn(5, 61, points, device=device) + 2).to(dtype)
    function = ALL[name]
    mine = compiled(function, fullgraph=True, dynamic=False, options=OPTIONS)(x)
    assert_all_close(mine, function(x), function(widened(x)))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("points", [3, 17])
@pytest.mark.parametrize("name", ["mean", "extremes", "moments", "logsumexp", "distance", *WITH_ROWS])
def test_gradients(name: str, points: int, device: str) -> None:
    torch.manual_seed(points)
    x = torch.randn(300, points, device=device)
    function = ALL[name]

    def run(call: Function, value: Tensor) -> list[Tensor]:
        leaf = value.detach().clone().requires_grad_()
        found = call(leaf)
        results = [result for result in (found if isinstance(found, tuple) else (found,)) if result.is_floating_point()]
        return [*(result.detach() for result in results), *gradients(results, [leaf])]

    mine = run(compiled(function, fullgraph=True, dynamic=False, options=OPTIONS), x)
    assert_all_close(mine, run(function, x), run(function, widened(x)))


@pytest.mark.parametrize("device", devices())
def test_equals_nans_and_infinities(device: str) -> None:
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([[nan, 1, nan], [1, 2, nan], [3, 1, 3], [-inf] * 3, [inf, -inf, inf], [0, -0.0, 0]], device=device)
    for name in ("extremes", "places", "sum", "logsumexp", "signs"):
        function = REDUCTIONS[name]
        mine = compiled(function, fullgraph=True, dynamic=False, options=OPTIONS)(x)
        assert_all_close(mine, function(x), function(widened(x)))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.int32, torch.int8, torch.bool], ids=str)
def test_integers(dtype: torch.dtype, device: str) -> None:
    x = torch.randint(-9, 10, (77, 3, 5), device=device).to(dtype)

    def function(x: Tensor) -> Any:
        return x.sum((1, 2)), x.amax((1, 2)), x.amin((1, 2)), x.any(-1), x.int().argmax(-1)

    mine = compiled(function, fullgraph=True, dynamic=False, options=OPTIONS)(x)
    for own, other in zip(mine, function(x), strict=True):
        assert own.dtype == other.dtype
        assert torch.equal(own, other)


@pytest.mark.parametrize("device", devices())
def test_any_number_of_rows(device: str) -> None:
    call = compiled(REDUCTIONS["moments"], fullgraph=True, dynamic=True, options=OPTIONS)
    for rows in (2, 300, 1029):
        x = torch.randn(rows, 7, device=device)
        assert_all_close(call(x), REDUCTIONS["moments"](x), REDUCTIONS["moments"](widened(x)))


@own_only("looks at its kernels")
@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", ALL)
def test_a_thread_has_a_row_of_its_own(name: str, device: str) -> None:
    function = ALL[name]
    for points in (7, 8):
        x = torch.randn(512, points, device=device)
        compiled(function, fullgraph=True, dynamic=False, options={**OPTIONS, "use_cache": False})(x)
        (kernel,) = ferrite_torch.compiled_programs()[-1]["kernels"]
        assert kernel["facts"].get("row_per_thread", False) is (points == 7)
