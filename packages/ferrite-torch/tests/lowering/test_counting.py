"""Histograms, repetitions and triangles."""

from __future__ import annotations

from typing import Any

import pytest
import torch

SHAPES = [(4, 5), (5, 4), (1, 1), (3, 7), (7, 3), (0, 3), (6, 2), (2, 6)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("offset", [-9, -3, -1, 0, 1, 3, 9])
def test_positions_in_triangles(agree: Any, shape: tuple[int, int], offset: int) -> None:
    agree(
        lambda x: (
            torch.tril_indices(*shape, offset),
            torch.triu_indices(*shape, offset, dtype=torch.int32),
            x + 1,
        ),
        torch.zeros(2),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("limits", [(-2, 2), (0, 0), (1, 1), (-1.5, 9)])
def test_histograms(agree: Any, dtype: torch.dtype, limits: tuple[float, float]) -> None:
    x = torch.arange(-8, 9).to(dtype) / 4
    agree(lambda x: torch.histc(x, 7, *limits), x)
    agree(lambda x: torch.histc(x.reshape(1, 17) * 0, 3, *limits), x)


def test_repetitions(agree: Any) -> None:
    agree(lambda r: torch.repeat_interleave(r, output_size=8), torch.tensor([0, 2, 0, 6]))
    agree(lambda x, r: x.repeat_interleave(r, 0, output_size=4), torch.randn(3, 2), torch.tensor([1, 0, 3]).int())
