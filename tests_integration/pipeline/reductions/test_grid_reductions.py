"""Long rows read once, by programs that hold parts of a row and wait for each other: `Policy.grid_reductions`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from against_eager import compiled_anew, devices, forms
from ferrite_scheduler import Policy
from ferrite_torch import compiled_programs

POLICY = {
    "persistent_elements": 16,
    "persistent_elements_outer": 4,
    "persistent_elements_again": 4,
    "split_minimum": 1 << 30,
    "grid_reductions": True,
    "grid_reduction_points": 64,
    "grid_reduction_rows": 16,
    "grid_reduction_minimum": 0,
}
"""So that rows of a few hundred elements are long ones."""


def compiled(function: Callable[..., Any], **changes: object) -> Callable[..., Any]:
    return compiled_anew(function, POLICY | changes)


def check(function: Callable[..., Tensor], *inputs: Tensor, tolerance: float = 2e-6, **changes: object) -> None:
    found = compiled(function, **changes)(*inputs)
    assert forms() == ["grid_reduction"]
    expected = function(*(x.double() for x in inputs))
    assert found.dtype is torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance, equal_nan=True)


CASES: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "rows": (lambda x: torch.softmax(x, 1), (5, 512)),
    "rows with a rest": (lambda x: torch.softmax(x, 1), (5, 500)),
    "one row": (lambda x: torch.softmax(x, 0), (1000,)),
    "many parts": (lambda x: torch.softmax(x, 1), (2, 1000)),
    "columns": (lambda x: torch.softmax(x, 0), (128, 70)),
    "columns with a rest": (lambda x: torch.softmax(x, 0), (121, 33)),
    "columns of several matrices": (lambda x: torch.softmax(x, 1), (3, 100, 40)),
    "logarithms": (lambda x: torch.log_softmax(x, 1), (5, 500)),
    "scaled": (lambda x: torch.softmax(x * 3 + 1, 1) * 2, (4, 300)),
    "sum": (lambda x: x / x.abs().sum(1, keepdim=True), (5, 300)),
    "extremes": (lambda x: (x - x.amin(1, keepdim=True)) / x.amax(1, keepdim=True), (5, 300)),
    "sum and extreme": (lambda x: x / x.abs().sum(0) + x.amax(0), (90, 40)),
}


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", CASES)
def test_shared_rows_give_what_eager_gives(name: str, device: str) -> None:
    function, shape = CASES[name]
    torch.manual_seed(0)
    check(function, torch.randn(shape, device=device))


@pytest.mark.parametrize("device", devices())
def test_operands_that_are_not_read_twice_may_be_narrow(device: str) -> None:
    x, scale = torch.randn(5, 300, device=device), torch.randn(300, device=device)
    check(lambda x, scale: torch.softmax(x, 1) * scale.to(torch.float32), x, scale)


@pytest.mark.parametrize("device", devices())
def test_infinities_and_what_is_no_number(device: str) -> None:
    x = torch.randn(8, 300, device=device)
    x[0] = -math.inf
    x[1, 70], x[2, 290], x[3, :64] = math.inf, math.nan, -math.inf
    x[4, 100:] = -math.inf
    x[5] -= 1000
    x[5, :128] = -math.inf  # the parts of some programs have no maximum, that of the row is far below zero
    x[6, 64:128] += 95  # others' terms are far below the smallest number, or just above it
    x[7, 64:128] -= 95
    check(lambda x: torch.softmax(x, 1), x)


@pytest.mark.parametrize("device", devices())
def test_results_may_lie_where_operands_did(device: str) -> None:
    """The product's result dies in the softmax, which is written in its place."""
    x, y = torch.randn(6, 32, device=device), torch.randn(32, 300, device=device)
    found = compiled(lambda x, y: torch.softmax(x @ y, 1))(x, y)
    program = compiled_programs()[-1]
    assert forms() == ["grid_reduction"]
    (kernel,) = program["kernels"]
    assert [param["access"] for param in kernel["params"]] == ["read", "readwrite", "atomic"]
    (launch,) = (step for step in program["steps"] if step["do"] == "launch")
    assert launch["args"][0] == launch["args"][1]
    expected = torch.softmax(x.double() @ y.double(), 1)
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("device", devices())
def test_every_run_gives_the_same_bits(device: str) -> None:
    x = torch.randn(40, 1000, device=device)
    call = compiled(lambda x: torch.softmax(x, 1))
    first = call(x)
    assert all(torch.equal(call(x), first) for _ in range(50 if device == "cuda" else 2))


@pytest.mark.parametrize("device", devices())
def test_gradients(device: str) -> None:
    x = torch.randn(4, 300, device=device, requires_grad=True)
    compiled(lambda x: torch.softmax(x, 1))(x).square().sum().backward()
    again = x.detach().double().requires_grad_()
    torch.softmax(again, 1).square().sum().backward()
    torch.testing.assert_close(x.grad.double(), again.grad, rtol=1e-5, atol=1e-6)


HALVES: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    **{name: CASES[name] for name in ("rows", "rows with a rest", "one row", "many parts", "logarithms", "scaled")},
    **{name: CASES[name] for name in ("sum", "extremes")},
    "sum and extreme": (lambda x: x / x.abs().sum(1, keepdim=True) + x.amax(1, keepdim=True), (5, 300)),
    "shifted": (lambda x: torch.softmax(x + x * x, 1) - x, (5, 300)),
}


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", HALVES)
def test_shared_rows_of_halves(name: str, dtype: torch.dtype, device: str) -> None:
    """Results are rounded once where eager's operators round each: they are nearer to exact ones, or as near."""
    function, shape = HALVES[name]
    torch.manual_seed(0)
    x = torch.randn(shape, device=device).to(dtype)
    found = compiled(function)(x)
    assert forms() == ["grid_reduction"]
    assert found.dtype is dtype
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), function(x.double()), rtol=2 * step, atol=2 * step)


@pytest.mark.parametrize("device", devices())
def test_halves_beside_floats(device: str) -> None:
    """Of two tensors the one of 16-bit elements is held packed."""
    x, factor = torch.randn(5, 300, device=device).bfloat16(), torch.randn(300, device=device)
    found = compiled(lambda x, factor: torch.softmax(x * factor, 1).bfloat16())(x, factor)
    assert forms() == ["grid_reduction"]
    expected = torch.softmax(x.double() * factor.double(), 1)
    torch.testing.assert_close(found.double(), expected, rtol=8e-3, atol=1e-6)


@pytest.mark.parametrize("device", devices())
def test_halves_that_are_infinite_or_no_numbers(device: str) -> None:
    x = torch.randn(6, 300, device=device).bfloat16()
    x[0] = -math.inf
    x[1, 70], x[2, 290], x[3, :64] = math.inf, math.nan, -math.inf
    x[4, 100:] = -math.inf
    x[5, 64:128] += 95
    found = compiled(lambda x: torch.softmax(x, 1))(x)
    assert forms() == ["grid_reduction"]
    expected = torch.softmax(x.double(), 1)
    torch.testing.assert_close(found.double(), expected, rtol=8e-3, atol=1e-7, equal_nan=True)


def test_what_cannot_share_rows_is_done_as_before() -> None:
    x = torch.randn(5, 300)
    for function, given in (
        (lambda x: torch.softmax(x, 0), torch.randn(300, 5).bfloat16()),
        (lambda x: torch.softmax(x, 1, dtype=torch.float32), x.bfloat16()),
        (lambda x: torch.softmax(x, 1), x.double()),
        (lambda x: torch.softmax(torch.softmax(x, 1), 1), x),
    ):
        torch.testing.assert_close(compiled(function)(given), function(given))
        assert "grid_reduction" not in forms()


def test_rows_that_stay_in_the_cache_are_not_shared_by_default() -> None:
    x = torch.randn(5, 300)
    minimum = Policy().grid_reduction_minimum
    found = compiled(lambda x: torch.softmax(x, 1), grid_reduction_minimum=minimum)(x)
    torch.testing.assert_close(found, torch.softmax(x, 1))
    assert forms() == ["looped"]


@pytest.mark.gpu
def test_streams_beside_each_other() -> None:
    """Kernels of eight streams wait for their own programs only, and all of them end."""
    x = torch.randn(264, 131072, device="cuda")
    call = compiled(lambda x: torch.softmax(x, 1), grid_reduction_points=8192)
    expected = call(x)
    assert forms() == ["grid_reduction"]
    streams = [torch.cuda.Stream() for _ in range(8)]
    found = []
    for _ in range(5):
        for stream in streams:
            with torch.cuda.stream(stream):
                stream.wait_stream(torch.cuda.default_stream())
                found.append(call(x))
        found = found[-8:]
    torch.cuda.synchronize()
    assert all(torch.equal(result, expected) for result in found)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("shape", "dim"), [((2048, 131072), 1), ((4096, 16384), 0), ((300, 50304), 1), ((600, 151936), 1)]
)
def test_real_sizes(shape: tuple[int, ...], dim: int) -> None:
    x = torch.randn(shape, device="cuda")
    torch._dynamo.reset()
    found = torch.compile(lambda x: torch.softmax(x, dim), backend="ferrite", dynamic=False)(x)
    assert forms() == ["grid_reduction"]
    torch.testing.assert_close(found, torch.softmax(x.double(), dim).float(), rtol=1e-5, atol=1e-8)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("length", [131072, 128256, 256000])
def test_real_rows_of_halves(length: int, dtype: torch.dtype) -> None:
    x = torch.randn((1024, length), device="cuda").to(dtype)
    torch._dynamo.reset()
    call = torch.compile(lambda x: torch.softmax(x, 1), backend="ferrite", dynamic=False)
    found = call(x)
    assert forms() == ["grid_reduction"]
    expected = torch.softmax(x.double(), 1)
    torch.testing.assert_close(found.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-7)
    assert all(torch.equal(call(x), found) for _ in range(20))
