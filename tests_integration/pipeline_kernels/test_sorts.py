"""Sorts of rows in one tile."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ferrite_triton import UnsupportedDefinition

Run = Callable[..., tuple[Any, ...]]
KINDS = {
    "f32": torch.float32,
    "f64": torch.float64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}


def sort_text(dtype: str, rows: int, size: int, options: str = "", kept: int | None = None) -> str:
    shape = f"[{rows}, {size if kept is None else kept}]"
    return f"""graph @f(x: {dtype}[{rows}, {size}]) -> (v, i) on cpu {{
  v: {dtype}{shape}, i: i64{shape} = sort {options} [d0 < {rows}, r0 < {size}] along r0 x[d0, r0]
}}"""


def sample(dtype: str, rows: int, size: int) -> torch.Tensor:
    torch.manual_seed(size)
    x = torch.randint(-6, 7, (rows, size)).to(KINDS[dtype])
    if x.is_floating_point() and size > 5:
        x[:, 1], x[:, 3], x[:, 4] = math.nan, -0.0, math.inf
    return x


def assert_same(found: tuple[Any, ...], wanted: Any) -> None:
    torch.testing.assert_close(found[0], wanted.values, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found[1], wanted.indices)


@pytest.mark.parametrize("options", ["", "descending"])
@pytest.mark.parametrize("size", [1, 7, 64, 1000])
@pytest.mark.parametrize("dtype", KINDS)
def test_sort(run: Run, dtype: str, size: int, options: str) -> None:
    x = sample(dtype, 3, size)
    found = run(sort_text(dtype, 3, size, options), x, form="sort")
    assert_same(found, x.sort(dim=1, stable=True, descending=bool(options)))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64"])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("top", [1, 3, 8, 9, 17])
def test_only_the_first(run: Run, top: int, rows: int, dtype: str) -> None:
    x = torch.stack([torch.randperm(17) for _ in range(rows)]).to(KINDS[dtype])
    found = run(sort_text(dtype, rows, 17, f"descending top {top}", top), x, form="sort")
    assert_same(found, x.topk(top, dim=1))


def test_only_the_first_along_the_slow_axis(run: Run) -> None:
    text = """graph @f(x: f32[20, 6]) -> (v, i) on cpu {
  v: f32[3, 6], i: i64[3, 6] = sort top 3 [r0 < 20, d0 < 6] along r0 x[r0, d0]
}"""
    x = sample("f32", 20, 6)
    wanted = x.sort(dim=0, stable=True)
    found = run(text, x, form="sort")
    torch.testing.assert_close(found[0], wanted.values[:3], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found[1], wanted.indices[:3])


def test_sort_along_the_slow_axis(run: Run) -> None:
    text = """graph @f(x: f32[50, 6]) -> (v, i) on cpu {
  v: f32[50, 6], i: i64[50, 6] = sort [r0 < 50, d0 < 6] along r0 x[r0, d0]
}"""
    x = sample("f32", 50, 6)
    assert_same(run(text, x, form="sort"), x.sort(dim=0, stable=True))


def test_sort_with_what_is_around_it(run: Run) -> None:
    text = """graph @f(x: f32[4, 30], k: f32[4]) -> (y, i) on cpu {
  v: f32[4, 30], i: i64[4, 30] = sort descending [d0 < 4, r0 < 30] along r0 mul(x[d0, r0], k[d0])
  y: f32[4, 30] = loop [d0 < 4, r0 < 30] add(v[d0, r0], cast.f32(i[d0, r0]))
}"""
    x, k = torch.randn(4, 30), torch.tensor([1.0, -2.0, 0.0, 3.0])
    y, index = run(text, x, k, form="sort")
    wanted = (x * k[:, None]).sort(dim=1, stable=True, descending=True)
    torch.testing.assert_close(y, wanted.values + wanted.indices)
    assert torch.equal(index, wanted.indices)


def test_rows_that_fit_in_no_tile_are_refused(emit: Callable[..., Any]) -> None:
    with pytest.raises(UnsupportedDefinition, match=r"v: rows of more than 4096 elements.*extern call"):
        emit(sort_text("f32", 3, 5000), "sort")
    with pytest.raises(UnsupportedDefinition, match="v: f8e5m2 is not sorted; sort it in a wider type"):
        emit(sort_text("f8e5m2", 3, 50), "sort")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [*KINDS, "u16", "u32", "u64"])
def test_networks_compile(emit: Callable[..., Any], compile_sm90: Callable[..., list[Any]], dtype: str) -> None:
    rows = f"v: {dtype}[300, 100], i: i64[300, 100] = sort descending [d0 < 300, r0 < 100] along r0 x[d0, r0]"
    columns = f"v: {dtype}[300, 100], i: i64[300, 100] = sort [r0 < 300, d0 < 100] along r0 x[r0, d0]"
    first = f"v: {dtype}[300, 5], i: i64[300, 5] = sort top 5 [d0 < 300, r0 < 100] along r0 x[d0, r0]"
    for line in (rows, columns, first):
        (binary,) = compile_sm90(emit(f"graph @f(x: {dtype}[300, 100]) -> (v, i) {{\n  {line}\n}}", "sort"))
        assert binary.local_bytes == 0
