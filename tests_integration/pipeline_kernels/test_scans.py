"""Inclusive scans in one tile and block by block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

Run = Callable[..., tuple[Any, ...]]
SIZES = (1, 7, 64, 1000, 5000)
KINDS = {"f32": torch.float32, "i64": torch.int64, "i32": torch.int32}
SCANS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.cumsum(1).to(x.dtype),
    "prod": lambda x: x.cumprod(1).to(x.dtype),
    "max": lambda x: x.cummax(1).values,
    "min": lambda x: x.cummin(1).values,
    "logaddexp": lambda x: x.logcumsumexp(1),
}


def sample(dtype: str, size: int) -> torch.Tensor:
    torch.manual_seed(size)
    return torch.randn(3, size) if dtype == "f32" else torch.randint(-4, 5, (3, size)).to(KINDS[dtype])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["f32", "i64"])
@pytest.mark.parametrize("combine", SCANS)
@pytest.mark.parametrize("form", ["scan", "looped"])
def test_scan(run: Run, combine: str, dtype: str, size: int, form: str) -> None:
    if combine == "logaddexp" and dtype != "f32":
        pytest.skip("a scan of floats")
    x = sample(dtype, size)
    if combine == "prod" and dtype == "f32":
        x = 1 + x * 0.01
    text = (
        f"graph @f(x: {dtype}[3, {size}]) -> (y) on cpu {{\n"
        f"  y: {dtype}[3, {size}] = scan {combine} [d0 < 3, r0 < {size}] along r0 x[d0, r0]\n}}"
    )
    (found,) = run(text, x, form=form)
    tolerance = 1e-4 if dtype == "f32" else 0
    torch.testing.assert_close(found, SCANS[combine](x), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("form", ["scan", "looped"])
@pytest.mark.parametrize("combine", ["cummax", "cummin"])
def test_best_so_far(run: Run, combine: str, form: str, size: int) -> None:
    x = (sample("f32", size) * 2).round()
    if size > 40:
        x[1, [20, 40]] = float("nan")
    text = f"""graph @f(x: f32[3, {size}]) -> (v, i) on cpu {{
  v: f32[3, {size}], i: i64[3, {size}] = scan {combine} [d0 < 3, r0 < {size}] along r0 (x[d0, r0], index.i64(r0))
}}"""
    value, index = run(text, x, form=form)
    expected = getattr(x, combine)(1)
    torch.testing.assert_close(value, expected.values, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(index, expected.indices)


@pytest.mark.parametrize("form", ["scan", "looped"])
@pytest.mark.parametrize("size", [100, 5000])
def test_scan_with_what_is_around_it(run: Run, form: str, size: int) -> None:
    text = f"""graph @f(x: f32[3, {size}]) -> (y, t) on cpu {{
  s: f32[3, {size}] = scan sum [d0 < 3, r0 < {size}] along r0 mul(x[d0, r0], f32(2.0))
  t: f32[3] = reduce max [d0 < 3 | r0 < {size}] s[d0, r0]
  y: f32[3, {size}] = loop [d0 < 3, r0 < {size}] sub(s[d0, r0], t[d0])
}}"""
    x = sample("f32", size)
    y, top = run(text, x, form=form)
    scanned = (2 * x).double().cumsum(1)
    torch.testing.assert_close(top.double(), scanned.amax(1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(y.double(), scanned - scanned.amax(1, keepdim=True), rtol=1e-4, atol=1e-3)


def test_scan_along_the_slow_axis(run: Run) -> None:
    x = sample("f32", 50).T.contiguous()
    text = "graph @f(x: f32[50, 3]) -> (y) on cpu {\n  y: f32[50, 3] = scan sum [r0 < 50, d0 < 3] along r0 x[r0, d0]\n}"
    torch.testing.assert_close(run(text, x, form="scan")[0], x.cumsum(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [100, 128, 20000])
@pytest.mark.parametrize("dtype", ["f32", "i64"])
@pytest.mark.parametrize("combine", SCANS)
def test_scan_along_columns_in_blocks(run: Run, combine: str, dtype: str, size: int) -> None:
    """Blocks hold rows out of order; 20000 rows are two blocks also in the interpreter."""
    if combine == "logaddexp" and dtype != "f32":
        pytest.skip("a scan of floats")
    x = sample(dtype, size).T.contiguous()
    if combine == "prod" and dtype == "f32":
        x = 1 + x * 1e-3
    text = (
        f"graph @f(x: {dtype}[{size}, 3]) -> (y) on cpu {{\n"
        f"  y: {dtype}[{size}, 3] = scan {combine} [r0 < {size}, d0 < 3] along r0 x[r0, d0]\n}}"
    )
    (found,) = run(text, x, form="scan")
    tolerance = 1e-3 if dtype == "f32" else 0
    torch.testing.assert_close(found, SCANS[combine](x.T).T, rtol=tolerance, atol=tolerance)


def test_an_infinity_changes_nothing_before_it(run: Run) -> None:
    """A thread's share after an infinity must not be what is left when the infinity is taken away."""
    x = torch.ones(128, 4)
    x[[5, 77], 1], x[6, 2], x[9, 3] = float("inf"), -float("inf"), float("nan")
    x[90, 2] = float("inf")
    text = "graph @f(x: f32[128, 4]) -> (y) on cpu {\n  y: f32[128, 4] = scan sum [r < 128, d < 4] along r x[r, d]\n}"
    torch.testing.assert_close(run(text, x, form="scan")[0], x.cumsum(0), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("size", [100, 20000])
def test_best_so_far_along_columns(run: Run, size: int) -> None:
    x = (sample("f32", size).T * 2).round().contiguous()
    text = f"""graph @f(x: f32[{size}, 3]) -> (v, i) on cpu {{
  v: f32[{size}, 3], i: i64[{size}, 3] = scan cummax [r < {size}, c < 3] along r (x[r, c], index.i64(r))
}}"""
    value, index = run(text, x, form="scan")
    expected = x.cummax(0)
    assert torch.equal(value, expected.values)
    assert torch.equal(index, expected.indices)


def test_scan_along_columns_with_what_is_around_it(run: Run) -> None:
    text = """graph @f(x: bf16[3, 200, 5], w: f32[200]) -> (y) on cpu {
  s: f32[3, 200, 5] = scan sum [b < 3, r < 200, c < 5] along r mul(cast.f32(x[b, r, c]), w[r])
  y: f32[3, 200, 5] = loop [b < 3, r < 200, c < 5] mul(s[b, r, c], f32(0.5))
}"""
    torch.manual_seed(0)
    x, w = torch.randn(3, 200, 5).bfloat16(), torch.randn(200)
    expected = (x.double() * w.double()[:, None]).cumsum(1) * 0.5
    torch.testing.assert_close(run(text, x, w, form="scan")[0].double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("is_column", [False, True])
def test_products_stay_finite_where_exponents_cancel(run: Run, dtype: str, *, is_column: bool) -> None:
    """No prefix leaves the range of its type, but the same factors in another order do."""
    size, period = 20000, 100 if dtype == "f32" else 1000
    kind = {"f32": torch.float32, "f64": torch.float64}[dtype]
    line = torch.tensor([1.9, 1 / 1.9]).repeat_interleave(period).repeat(size // period)[:size]
    x = torch.stack([line, line.flip(0), -line]).to(kind)
    x[2, 17000] = -0.0  # and the sign of what follows a zero is that of the factors, tile after tile
    shape, domain, at = f"3, {size}", f"d0 < 3, r0 < {size}", "d0, r0"
    if is_column:
        x, shape, domain, at = x.T.contiguous(), f"{size}, 3", f"r0 < {size}, d0 < 3", "r0, d0"
    text = (
        f"graph @f(x: {dtype}[{shape}]) -> (y) on cpu {{\n"
        f"  y: {dtype}[{shape}] = scan prod [{domain}] along r0 x[{at}]\n}}"
    )
    (found,) = run(text, x, form="scan")
    expected = x.double().cumprod(0 if is_column else 1)
    torch.testing.assert_close(found.double(), expected, rtol=1e-2, atol=0)
    assert torch.equal(found.signbit(), expected.signbit())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["f32", "i64"])
@pytest.mark.parametrize("combine", SCANS)
@pytest.mark.parametrize("form", ["scan", "looped", "columns"])
def test_scan_from_the_end(run: Run, combine: str, dtype: str, size: int, form: str) -> None:
    if combine == "logaddexp" and dtype != "f32":
        pytest.skip("a scan of floats")
    x = sample(dtype, size)
    if combine == "prod" and dtype == "f32":
        x = 1 + x * 1e-3
    expected = SCANS[combine](x.flip(1)).flip(1)
    shape, domain, at = f"3, {size}", f"d0 < 3, r0 < {size}", "d0, r0"
    if form == "columns":
        x, expected, shape, domain, at = x.T.contiguous(), expected.T, f"{size}, 3", f"r0 < {size}, d0 < 3", "r0, d0"
    text = (
        f"graph @f(x: {dtype}[{shape}]) -> (y) on cpu {{\n"
        f"  y: {dtype}[{shape}] = scan reverse {combine} [{domain}] along r0 x[{at}]\n}}"
    )
    (found,) = run(text, x, form="looped" if form == "looped" else "scan")
    tolerance = 1e-3 if dtype == "f32" else 0
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("form", ["scan", "looped"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("rises", [False, True])
def test_the_last_of_equal_values_is_told(run: Run, form: str, size: int, *, reverse: bool, rises: bool) -> None:
    """Whether positions grow in the direction of the scan or not."""
    x = (sample("f32", size) * 2).round()
    if size > 40:
        x[1, [20, 40]] = float("nan")
    place = "r0" if rises != reverse else f"{size - 1} - r0"
    text = f"""graph @f(x: f32[3, {size}]) -> (v, i) on cpu {{
  v: f32[3, {size}], i: i64[3, {size}] =
    scan {"reverse " * reverse}cummax [d0 < 3, r0 < {size}] along r0 (x[d0, r0], index.i64({place}))
}}"""
    value, index = run(text, x, form=form)
    expected = x.flip(1).cummax(1) if reverse else x.cummax(1)
    values, indices = (each.flip(1) if reverse else each for each in expected)
    torch.testing.assert_close(value, values, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(index, indices if rises else size - 1 - indices)
