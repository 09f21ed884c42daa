"""Elements numbered where a mask holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

aten = torch.ops.aten


def mask_of(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(shape) % 3 != 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_masked_scatter(agree: Any, dtype: torch.dtype) -> None:
    x, source = torch.zeros(3, 4).to(dtype), torch.arange(1, 13).to(dtype)
    agree(lambda x, m, s: x.masked_scatter(m, s), x, mask_of(3, 4), source)
    agree(lambda x, m, s: x.t().masked_scatter(m.t(), s.reshape(2, 6)), x, mask_of(3, 4), source)


@pytest.mark.parametrize(
    ("shape", "mask"), [((3, 4), (1, 4)), ((3, 4), (3, 1)), ((4,), (3, 4)), ((), ()), ((0, 4), (4,))]
)
def test_masks_of_other_shapes(agree: Any, shape: tuple[int, ...], mask: tuple[int, ...]) -> None:
    agree(lambda x, m, s: x.masked_scatter(m, s), torch.zeros(shape), mask_of(*mask), torch.arange(1.0, 13.0))


def test_nothing_to_scatter(agree: Any) -> None:
    agree(lambda x, m, s: x.masked_scatter(m, s), torch.ones(4), torch.zeros(4).bool(), torch.ones(0))


@pytest.mark.parametrize("size", [8, 10])
def test_gradient_of_masked_scatter(agree: Any, size: int) -> None:
    agree(lambda g, m: aten.masked_scatter_backward(g, m, [2, size // 2]), torch.randn(3, 4), mask_of(3, 4))


@pytest.mark.parametrize("accumulate", [False, True])
def test_values_stored_one_after_the_other(agree: Any, *, accumulate: bool) -> None:
    x, mask, rows = torch.arange(12.0).reshape(3, 4), mask_of(3, 4), torch.tensor([True, False, True])
    put = lambda x, m, v: x.index_put((m,), v, accumulate=accumulate)  # noqa: E731
    agree(put, x, mask, torch.arange(100.0, 108.0))
    agree(put, x, rows, torch.arange(100.0, 108.0).reshape(2, 4))
    agree(put, x, rows, torch.tensor([[50.0], [60.0]]))
    agree(put, x, rows, torch.arange(4.0))


@pytest.mark.parametrize("size", [0, 3, 8, 20])
def test_points_that_are_not_zero(agree: Any, size: int) -> None:
    x = torch.tensor([[0.0, 2.0, 0.0, -1.0], [0.0, 0.0, 0.0, 0.0], [3.0, 4.0, 5.0, 0.0]])
    agree(lambda x: torch.nonzero_static(x, size=size, fill_value=-7), x)
    agree(lambda x: torch.nonzero_static(x, size=size), torch.stack([x, x.t().reshape(3, 4)]).long())
    agree(lambda x: torch.nonzero_static(x, size=size), x[0] > 0)
    agree(lambda x: torch.nonzero_static(x, size=size), x[:0])
