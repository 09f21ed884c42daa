"""Order along one axis."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from ferrite_ir.language.graph import Sort

NUMBERS = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8]
SPECIAL = torch.tensor([[3.0, math.nan, 1.0, -0.0, 0.0, math.inf], [-math.inf, 0.0, -0.0, math.nan, 5.0, -math.nan]])


@pytest.mark.parametrize("dtype", [*NUMBERS, torch.bool], ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_sort(agree: Any, dtype: torch.dtype, *, descending: bool) -> None:
    x = torch.randint(0, 5, (4, 7)).to(dtype)
    agree(lambda x: tuple(x.sort(dim=1, stable=True, descending=descending)), x)
    agree(lambda x: tuple(x.t().sort(dim=1, stable=True, descending=descending)), x)
    agree(lambda x: x.argsort(dim=0, stable=True, descending=descending), x)


@pytest.mark.parametrize("descending", [False, True])
def test_nan_is_the_largest_and_zeros_are_equal(agree: Any, *, descending: bool) -> None:
    agree(lambda x: tuple(x.sort(dim=1, stable=True, descending=descending)), SPECIAL)


def test_sorting_by_other_names(agree: Any) -> None:
    x = torch.randperm(24).reshape(4, 6)
    agree(lambda x: (*torch.sort(x), torch.argsort(x, 0), torch.msort(x)), x)


@pytest.mark.parametrize("k", [0, 1, 4])
@pytest.mark.parametrize("largest", [False, True])
def test_topk(agree: Any, k: int, *, largest: bool) -> None:
    x = torch.randperm(24).reshape(4, 6).float()
    agree(lambda x: (*x.topk(k, largest=largest), *x.topk(k, 0, largest=largest)), x)
    agree(lambda x: x.topk(k, largest=largest, sorted=False).values.sort().values, x)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_kthvalue(agree: Any, dtype: torch.dtype) -> None:
    x = torch.randperm(24).reshape(4, 6).to(dtype)
    agree(lambda x: (*x.kthvalue(2), *x.kthvalue(4, 0, keepdim=True)), x)


def with_nan(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[1, 2] = x[1, 4] = math.nan
    x[2, 1:] = math.nan
    return x


@pytest.mark.parametrize("size", [5, 6])
@pytest.mark.parametrize("median", [torch.median, torch.nanmedian], ids=["median", "nanmedian"])
def test_medians(agree: Any, median: Any, size: int) -> None:
    x = torch.randperm(4 * size).reshape(4, size).float()
    for given in (x, with_nan(x), x.long()):
        agree(lambda x: (median(x), *median(x, 1), *median(x, 0, keepdim=True)), given)
    agree(lambda x: (median(x, 0).values, median(x)), torch.full((3,), math.nan))


SELECTED = [torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int16, torch.int8, torch.uint8]


@pytest.mark.parametrize("dtype", SELECTED, ids=str)
@pytest.mark.parametrize("size", [1, 7, 64])
def test_elements_of_a_rank_are_selected(agree: Any, lower_one: Any, dtype: torch.dtype, size: int) -> None:
    """Of all bits of a type, with its extrema. Which of equal elements is found is left open, as torch leaves it."""
    g = torch.Generator().manual_seed(size)
    if dtype.is_floating_point:
        x = torch.randn(9, size, generator=g).mul(1e4).to(dtype)
        x[0, 0], x[1, -1], x[2, size // 2] = math.inf, -math.inf, torch.finfo(dtype).tiny / 2
    else:
        limits = torch.iinfo(dtype)
        x = torch.randint(limits.min, limits.max + 1, (9, size), generator=g).to(dtype)
        x[0, 0], x[1, -1] = limits.max, limits.min
    for k in {1, size // 2 + 1, size}:
        agree(lambda x, k=k: (x.kthvalue(k).values, x.kthvalue(min(k, 9), 0).values), x)
        agree(lambda x, k=k: x.gather(1, x.kthvalue(k, keepdim=True).indices), x)
    module = lower_one(lambda x: (*x.kthvalue(1), x.median(), x.median(0).values), x)
    assert not any(isinstance(made, Sort) for made in module.graph.definitions)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_mode(agree: Any, dtype: torch.dtype) -> None:
    x = torch.tensor([[2, 1, 2, 1, 0, 1, 2], [3, 0, 0, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1, 0]]).to(dtype)
    agree(lambda x: (*x.mode(1), x.mode(0, keepdim=True).values), x)


def test_a_nan_is_no_more_frequent_than_once(agree: Any) -> None:
    agree(lambda x: x.mode(0).values, torch.tensor([1.0, math.nan, math.nan, 1.0, math.nan]))


@pytest.mark.parametrize("shape", [(), (0, 3), (3, 0), (3, 1)])
def test_nothing_to_order(agree: Any, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    agree(lambda x: (*x.sort(), *x.sort(0, descending=True), x.argsort()), x)
    if shape == () or shape[-1]:
        agree(lambda x: tuple(x.topk(1)), x)
    if x.numel():
        agree(lambda x: (*x.kthvalue(1), *x.median(-1), *x.nanmedian(-1), *x.mode(-1), x.median()), x)


def test_only_what_is_asked_for_is_kept(lower_one: Any) -> None:
    module = lower_one(lambda x: x.topk(3)[0], torch.randn(4, 9))
    (sort,) = (made for made in module.graph.definitions if isinstance(made, Sort))
    assert sort.top == 3
    assert [value.type.shape for value in sort.results] == [(4, 3), (4, 3)]


def test_long_rows_are_library_calls(lower_one: Any) -> None:
    module = lower_one(lambda x: (*x.sort(), *x.median(1)), torch.randn(2, 8193))
    reason = "sorting rows of more than {} elements, or of a symbolic number"
    assert module.externs == (("aten.sort.default", reason.format(512)), ("aten.median.dim", reason.format(2048)))
    assert lower_one(lambda x: x.sort()[0], torch.randn(2, 1024).bfloat16()).externs == ()


def test_rows_that_the_library_sorts_faster_are_sorted_there_unless_more_is_made_of_them(lower_one: Any) -> None:
    module = lower_one(lambda x: (*x.sort(), x.argsort(), *x.topk(50), *x.kthvalue(3)), torch.randn(2, 2048))
    assert {name for name, _ in module.externs} == {"aten.sort.default"}
