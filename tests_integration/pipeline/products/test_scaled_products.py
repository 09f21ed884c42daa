"""Products in other types than halves: of 8-bit floats with scales, and of float32 where it may be rounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from against_eager import compiled, devices, own_only
from product_cases import kernels

OPTIONS: dict[str, Any] = {"fallback": False, "verify": True, "products": "own"}
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
SUM_BITS = 2.0**-13
"""What a sum of products of 8-bit floats is off by, of the sum of their sizes: Hopper's tensor cores carry 14 bits."""
TF32_BITS = 2.0**-10
"""The same of factors that are rounded to TF32, twice."""


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Forgets what was compiled before and after each test, and what float32 may be rounded to."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    torch.backends.cuda.matmul.fp32_precision = before


def calls() -> list[str]:
    from ferrite_torch import compiled_programs

    return [step["target"] for step in compiled_programs()[-1]["steps"] if step["do"] == "extern"]


def given(rows: int, device: str, k: int = 64, n: int = 48) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    shapes = ((rows, k), (n, k), (n,))
    left, right, bias = (torch.randn(shape, device=device) for shape in shapes)
    return left.to(E4M3), right.to(E4M3).t(), bias.bfloat16()


def scales(kind: str, rows: int, columns: int, device: str) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    shapes = {"tensor": ((), ()), "one element": ((1,), (1, 1)), "rows": ((rows, 1), (1, columns))}[kind]
    return tuple(torch.rand(shape, device=device) + 0.5 for shape in shapes)  # type: ignore[return-value]


def scaled(left: Tensor, right: Tensor, a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    return torch._scaled_mm(left, right, a, b, out_dtype=torch.bfloat16)


def with_bias(left: Tensor, right: Tensor, a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(torch._scaled_mm(left, right, a, b, bias=bias, out_dtype=torch.bfloat16))


def in_f32(left: Tensor, right: Tensor, a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    return torch._scaled_mm(left, right, a, b, out_dtype=torch.float32)


def fast(left: Tensor, right: Tensor, a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    return torch._scaled_mm(left, right, a, b, out_dtype=torch.bfloat16, use_fast_accum=True)


def quantised(left: Tensor, right: Tensor, a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    wide = left.float()
    narrow = (wide / wide.abs().amax(1, keepdim=True)).to(E4M3)
    y = torch._scaled_mm(narrow, right, a, b, bias=bias, out_dtype=torch.bfloat16)
    return (y.float() * 0.25).to(E4M3).float()


def in_double(left: Tensor, right: Tensor, a: Tensor, b: Tensor, **given: Any) -> Tensor:
    """Returns what `torch._scaled_mm` does, which takes no scales of rows on a processor before torch 2.13."""
    total = left.double() @ right.double() * a.double() * b.double()
    bias = given.get("bias")
    return (total if bias is None else total + bias.double()).to(given["out_dtype"])


def expected(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Tensor:
    with mock.patch.object(torch, "_scaled_mm", in_double):
        return function(*inputs)


def check(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> None:
    mine = compiled(function, fullgraph=True, dynamic=False, options=OPTIONS)(*inputs)
    left, right, a, b, _ = inputs
    wanted = expected(function, inputs)
    sizes = left.double().abs() @ right.double().abs() * a.double() * b.double()
    step = torch.finfo(E4M3).eps if function is quantised else torch.finfo(mine.dtype).eps
    allowed = SUM_BITS * sizes + step * wanted.double().abs() + 2.0**-9 * (function is quantised)
    assert mine.dtype is wanted.dtype
    assert bool(((mine.double() - wanted.double()).abs() <= allowed).all())


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("kind", ["tensor", "one element", "rows"])
@pytest.mark.parametrize("function", [scaled, with_bias, in_f32, fast, quantised])
def test_values(function: Callable[..., Tensor], kind: str, device: str) -> None:
    left, right, bias = given(40, device)
    if device == "cuda" and kind == "rows" and function is in_f32:
        pytest.skip("torch's library has no row scales with such results")
    check(function, (left, right, *scales(kind, 40, 48, device), bias))
    assert not calls()


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(("rows", "k", "n"), [(5, 64, 48), (40, 2048, 64), (130, 112, 272)])
def test_values_of_few_rows_long_sums_and_several_tiles(rows: int, k: int, n: int, device: str) -> None:
    left, right, bias = given(rows, device, k, n)
    check(with_bias, (left, right, *scales("rows", rows, n, device), bias))
    assert not calls()


@pytest.mark.parametrize("device", devices())
def test_values_at_symbolic_sizes(device: str) -> None:
    torch._dynamo.reset()
    mine = compiled(with_bias, fullgraph=True, dynamic=True, options=OPTIONS)
    for rows in (40, 64, 17):
        left, right, bias = given(rows, device)
        inputs = (left, right, *scales("tensor", rows, 48, device), bias)
        torch.testing.assert_close(mine(*inputs), expected(with_bias, inputs), rtol=2**-7, atol=2**-5)
    assert not calls()


@own_only("looks at its kernels")
def test_one_kernel_does_all_of_it() -> None:
    left, right, bias = given(40, "cpu")
    check(with_bias, (left, right, *scales("rows", 40, 48, "cpu"), bias))
    (kernel,) = kernels()
    assert kernel["form"] == "tiled_contraction"


@own_only("looks at its calls")
@pytest.mark.parametrize("what", ["another type", "one row", "measured"])
def test_others_are_left_to_the_library(what: str) -> None:
    left, right, bias = given(1 if what == "one row" else 40, "cpu")
    left = left.to(E5M2) if what == "another type" else left
    options = {**OPTIONS, "products": "measured"} if what == "measured" else OPTIONS
    inputs = (left, right, *scales("tensor", 40, 48, "cpu"), bias)
    mine = compiled(scaled, fullgraph=True, dynamic=False, options=options)(*inputs)
    torch.testing.assert_close(mine, scaled(*inputs))
    assert calls() == ["aten._scaled_mm.default"]


# --- float32 ----------------------------------------------------------------------------------------------------------


def linear(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(F.linear(x, w))


def batched(x: Tensor, w: Tensor) -> Tensor:
    return torch.bmm(x[None], w.t()[None])[0] + 1.0


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("function", [linear, batched])
def test_float32_has_kernels_where_it_may_be_rounded(function: Callable[..., Tensor], device: str) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(40, 72, device=device), torch.randn(48, 72, device=device)
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    mine = compiled(function, fullgraph=True, dynamic=False, options=OPTIONS)(x, w)
    allowed = TF32_BITS * (x.double().abs() @ w.double().abs().t()) + 1e-6
    assert bool(((mine - function(x.double(), w.double())).abs() <= allowed).all())
    assert not calls()


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("width", [48, 512])
def test_what_rounding_to_tf32_loses_has_either_sign(width: int, device: str) -> None:
    torch.manual_seed(0)
    x, w = torch.rand(256, 512, device=device), torch.rand(width, 512, device=device)
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    mine = compiled(batched, fullgraph=True, dynamic=False, options=OPTIONS)(x, w)
    exact = batched(x.double(), w.double())
    mean = ((mine - exact) / exact).mean().abs().item()
    assert mean < 2e-5, "factors that are cut off make products 7e-4 smaller"


@own_only("looks at its calls")
@pytest.mark.parametrize("precision", ["ieee", "none"])
def test_float32_is_left_to_the_library_otherwise(precision: str) -> None:
    x, w = torch.randn(40, 72), torch.randn(48, 72)
    torch.backends.cuda.matmul.fp32_precision = precision
    mine = compiled(linear, fullgraph=True, dynamic=False, options=OPTIONS)(x, w)
    torch.testing.assert_close(mine, linear(x, w))
    assert calls() == ["aten.mm.default"]


@own_only("looks at its calls")
def test_what_may_be_rounded_is_asked_again() -> None:
    x, w = torch.randn(40, 72), torch.randn(48, 72)
    mine = compiled(linear, fullgraph=True, dynamic=False, options=OPTIONS)
    found = []
    for precision in ("tf32", "ieee"):
        torch.backends.cuda.matmul.fp32_precision = precision
        mine(x, w)
        found.append(calls())
    assert found == [[], ["aten.mm.default"]]
