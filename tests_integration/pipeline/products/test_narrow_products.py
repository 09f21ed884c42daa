"""Products of few rows: kernels of their own, with what makes their factors and what reads their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from against_eager import assert_all_close, compiled, devices, own_only, widened
from product_cases import dequantised, drawn, gated, kernels, normalised, product, residual, scaled, with_bias

OPTIONS: dict[str, Any] = {"fallback": False, "verify": True, "policy": {"programs_per_processor": 0}}
K, N = 72, 40


def narrow_products(monkeypatch: pytest.MonkeyPatch, devices: tuple[str, ...], **thresholds: int) -> None:
    """Has products on some devices lowered by other thresholds."""
    own = pytest.importorskip("ferrite_torch.lowering.products.narrow_products")
    monkeypatch.setattr(own, "DEVICES", devices)
    monkeypatch.setattr(own, "PRODUCTS", replace(own.PRODUCTS, **thresholds))


@pytest.fixture(autouse=True)
def narrow_products_count(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Has small products on any device computed as large ones are on a GPU."""
    narrow_products(monkeypatch, ("cpu", "cuda"), narrow_columns=1, narrow_points=1, plain_rows=16)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


FUNCTIONS = [product, with_bias, scaled, residual, gated, normalised, dequantised]


def given(rows: int, dtype: torch.dtype, device: str, k: int = K, n: int = N) -> tuple[Tensor, ...]:
    return drawn(rows, dtype, device, k, n)


def check(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> None:
    mine = compiled(function, fullgraph=True, dynamic=False, options=OPTIONS)(*inputs)
    assert_all_close([mine], [function(*inputs)], [function(*map(widened, inputs))])


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 5, 16])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_values(function: Callable[..., Tensor], rows: int, dtype: torch.dtype, device: str) -> None:
    check(function, given(rows, dtype, device))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("rows", [1, 2, 5, 16])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(("k", "n"), [(K, N), (1000, 24)])
def test_values_in_float32(function: Callable[..., Tensor], k: int, n: int, rows: int, device: str) -> None:
    inputs = given(rows, torch.float32, device, k, n)
    check(function, inputs)


@own_only("looks at its kernels")
@pytest.mark.parametrize("function", [product, with_bias, scaled, residual, gated])
def test_a_kernel_multiplies_each_row_in_float32(function: Callable[..., Tensor]) -> None:
    check(function, given(4, torch.float32, "cpu"))
    kernel = kernels()[-1]
    assert kernel["facts"]["multiplied_rows"] == 4
    assert "dot" not in kernel["source"]
    assert kernel["blocks"]["YBLOCK"] == 4


@own_only("looks at its kernels")
@pytest.mark.parametrize("function", [product, with_bias, scaled, residual, gated, normalised])
def test_one_row_of_float32_is_multiplied_by_a_reduction(function: Callable[..., Tensor]) -> None:
    from ferrite_torch import compiled_programs

    check(function, given(1, torch.float32, "cpu"))
    assert not [step for step in compiled_programs()[-1]["steps"] if step["do"] == "extern"]
    assert "dot" not in kernels()[-1]["source"]
    assert kernels()[-1]["facts"]["reductions"] >= 1


def gated_codes(x: Tensor, w: Tensor, bias: Tensor, y: Tensor, v: Tensor) -> Tensor:
    gate, up = ((each * 20).round().to(torch.int8).to(x.dtype) for each in (w, v))
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


@own_only("looks at its kernels")
@pytest.mark.parametrize("rows", [2, 3, 4])
@pytest.mark.parametrize("function", [dequantised, gated_codes])
def test_weights_of_eight_bits_are_multiplied_with_parts_of_float32(function: Callable[..., Tensor], rows: int) -> None:
    check(function, given(rows, torch.float32, "cpu"))
    sources = [kernel["source"] for kernel in kernels() if "fmath.add_dot(" in kernel["source"]]
    (source,) = sources
    assert source.count("fmath.add_dot(") == 1 + (function is gated_codes)
    assert source.count("tl.arange(0, YBLOCK)[:, None]\n") == 1  # the parts of the rows are read once


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("rows", [4, 5])
def test_rows_that_are_sums_of_three_as_parts_are(rows: int, device: str) -> None:
    def function(x: Tensor, codes: Tensor) -> Tensor:
        high, middle, low = x.float()
        return F.linear(high + (middle + low), codes.float())

    x = torch.stack([given(rows, torch.bfloat16, device)[0] * scale for scale in (1.0, 0.5, 0.25)])
    codes = (given(rows, torch.float32, device)[1] * 20).round().to(torch.int8)
    options = {**OPTIONS, "policy": {**OPTIONS["policy"], "cut_rows": False}}
    mine = compiled(function, fullgraph=True, dynamic=False, options=options)(x, codes)
    assert_all_close([mine], [function(x, codes)], [x.double().sum(0) @ codes.double().t()])


@pytest.mark.parametrize("device", devices())
def test_parts_of_what_is_no_finite_number(device: str) -> None:
    x, w, bias, *_ = given(4, torch.float32, device)
    x[0, 3], x[1, 5], x[2, 7] = float("inf"), float("nan"), 3.4e38
    w[:, 3] = 1.0
    inputs = (x, w, bias)
    mine = compiled(dequantised, fullgraph=True, dynamic=False, options=OPTIONS)(*inputs)
    exact = dequantised(*map(widened, inputs)).float()
    torch.testing.assert_close(mine[[0, 1, 3]], exact[[0, 1, 3]], equal_nan=True, rtol=1e-5, atol=1e-5)
    assert not mine[2].isnan().any()


@own_only("looks at its kernels")
@pytest.mark.parametrize("function", [product, with_bias, scaled, residual, gated])
def test_tensor_cores_multiply_more_rows_of_float32_in_parts(function: Callable[..., Tensor]) -> None:
    check(function, given(5, torch.float32, "cpu"))
    kernel = kernels()[-1]
    assert kernel["facts"]["product"]
    assert kernel["source"].count("fmath.dot_in_parts(") == 1 + (function is gated)
    assert kernel["blocks"]["YBLOCK"] == 16


@own_only("looks at its kernels")
@pytest.mark.parametrize("rows", [4, 5])
def test_rows_of_float32_that_are_computed_are_multiplied_one_by_one_or_by_the_library(rows: int) -> None:
    from ferrite_torch import compiled_programs

    check(normalised, given(rows, torch.float32, "cpu"))
    calls = [step["target"] for step in compiled_programs()[-1]["steps"] if step["do"] == "extern"]
    assert calls == ["aten.addmm.default"] * (rows == 5)


@own_only("looks at its kernels")
def test_tensor_cores_of_the_library_are_used_where_people_let_them_round() -> None:
    from ferrite_torch import compiled_programs

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        compiled(product, fullgraph=True, dynamic=False, options=OPTIONS)(*given(4, torch.float32, "cpu"))
    finally:
        torch.set_float32_matmul_precision(before)
    assert [step["do"] for step in compiled_programs()[-1]["steps"]].count("extern") == 1


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("rows", [1, 3, 16])
@pytest.mark.parametrize(("k", "n"), [(8, 200), (200, 33), (1000, 17)])
def test_values_at_odd_sizes(k: int, n: int, rows: int, device: str) -> None:
    check(with_bias, given(rows, torch.bfloat16, device, k, n))


@own_only("looks at its kernels")
@pytest.mark.parametrize("function", [product, with_bias, scaled, residual, gated])
def test_one_kernel_does_all(function: Callable[..., Tensor]) -> None:
    check(function, given(4, torch.bfloat16, "cpu"))
    (kernel,) = kernels()
    assert kernel["facts"]["product"]
    assert kernel["source"].count("tl.dot(") == 1 + (function is gated)


@own_only("looks at its kernels")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_weights_are_dequantised_on_their_way(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    narrow_products(monkeypatch, ("cpu",), narrow_columns=1, narrow_points=1)

    def function(x: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
        return F.linear(x, codes.to(x.dtype) * scale[:, None])

    x, w, scale, *_ = given(4, dtype, "cpu")
    check(function, (x, (w * 20).to(torch.int8), scale))
    *parts, kernel = kernels()
    is_cut = dtype is torch.float32
    assert len(parts) == is_cut
    assert {param["dtype"] for param in kernel["params"]} == {"i8", "bf16"} | ({"f32"} if is_cut else set())
    assert "product" in kernel["facts"]


@own_only("looks at its kernels")
@pytest.mark.parametrize("rows", [1, 4])
def test_what_is_dear_is_not_computed_for_every_column(rows: int) -> None:
    def function(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        x = F.rms_norm(x, x.shape[-1:])
        return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)

    x, gate, _, _, up = given(rows, torch.bfloat16, "cpu")
    inputs = (x, gate, up, torch.randn(K, N).bfloat16())
    mine = compiled(function, fullgraph=True, dynamic=False, options=OPTIONS)(*inputs)
    assert_all_close([mine], [function(*inputs)], [function(*map(widened, inputs))])
    assert [kernel["source"].count("sigmoid(") for kernel in kernels()][-2:] == [1, 0]


@own_only("looks at its kernels")
@pytest.mark.parametrize(
    ("rows", "dtype", "options"),
    [
        (17, torch.bfloat16, OPTIONS),
        (17, torch.float32, OPTIONS),
        (4, torch.float32, {**OPTIONS, "policy": {"wide_product_rows": 2}}),
        (4, torch.bfloat16, {**OPTIONS, "policy": {"product_rows": 2}}),
    ],
)
def test_the_library_gets_the_others(rows: int, dtype: torch.dtype, options: dict[str, Any]) -> None:
    from ferrite_torch import compiled_programs

    inputs = given(rows, dtype, "cpu")
    mine = compiled(product, fullgraph=True, dynamic=False, options=options)(*inputs)
    assert torch.equal(mine, product(*inputs))
    assert [step["target"] for step in compiled_programs()[-1]["steps"] if step["do"] == "extern"] == [
        "aten.mm.default"
    ]


@pytest.mark.parametrize("device", devices())
def test_values_that_are_no_numbers_stay_in_their_rows(device: str) -> None:
    x, w, *_ = given(3, torch.bfloat16, device)
    x[1] = float("inf")
    mine = compiled(product, fullgraph=True, dynamic=False, options=OPTIONS)(x, w)
    assert torch.equal(mine.isfinite(), product(x, w).isfinite())


@own_only("looks at its kernels")
@pytest.mark.parametrize(("rows", "calls"), [(1, 0), (2, 1)])
def test_several_rows_by_weights_in_memory_are_left_to_the_library(
    rows: int, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ferrite_torch

    narrow_products(monkeypatch, ("cpu",), plain_rows=1)
    ferrite_torch.reset_statistics()
    check(product, given(rows, torch.bfloat16, "cpu"))
    assert len(ferrite_torch.statistics()["externs"]) == calls


def normalised(x: Tensor, w: Tensor, bias: Tensor, *_: Tensor) -> Tensor:
    return with_bias(F.rms_norm(x, x.shape[-1:]), w, bias)


@own_only("looks at its kernels")
@pytest.mark.parametrize(("function", "calls"), [(product, 1), (with_bias, 0), (normalised, 1)])
def test_several_rows_in_memory_are_multiplied_where_their_reader_is(
    function: Callable[..., Tensor], calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ferrite_torch

    narrow_products(monkeypatch, ("cpu",), plain_rows=1)
    ferrite_torch.reset_statistics()
    check(function, given(4, torch.bfloat16, "cpu"))
    assert len(ferrite_torch.statistics()["externs"]) == calls
