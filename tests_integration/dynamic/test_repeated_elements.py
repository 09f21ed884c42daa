"""Operations over tensors that repeat elements, as expanded ones do, along axes whose length only the call tells."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from against_eager import compiled

OPERATIONS: dict[str, Callable[[Tensor], Tensor | tuple[Tensor, ...]]] = {
    "sum": lambda x: x.sum(1),
    "sum of all": lambda x: x.sum(),
    "mean": lambda x: x.mean(1),
    "variance": lambda x: x.var(1),
    "product": lambda x: (x / 2).prod(1),
    "maximum": lambda x: x.amax(1),
    "place of the maximum": lambda x: x.argmax(1),
    "softmax": lambda x: x.softmax(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=1),
    "count": lambda x: (x > 0).sum(1),
    "sum of differences": lambda x: (x - x[:, :1]).abs().sum(1),
    "sum beside another": lambda x: ((x.sum(1, keepdim=True) + x).sum(0), x.relu().sum(1)),
    "layer norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "running sum": lambda x: x.cumsum(1),
    "product of matrices": lambda x: x.flatten(1) @ x.flatten(1).T,
}

LAYOUTS: dict[str, Callable[[int], Tensor]] = {
    "rows": lambda n: torch.randn(4, 1, 3).expand(4, n, 3),
    "columns": lambda n: torch.randn(4, 3, 1).expand(4, 3, n).transpose(1, 2),
    "all": lambda n: torch.randn(1, 1, 1).expand(3, n, 7),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_elements_that_are_repeated(layout: str) -> None:
    def function(x: Tensor) -> list[Tensor | tuple[Tensor, ...]]:
        return [operation(x) for operation in OPERATIONS.values()]

    called = compiled(function, dynamic=True)
    for length in (5, 37, 16):
        x = LAYOUTS[layout](length)
        for name, actual, expected in zip(OPERATIONS, called(x), function(x), strict=True):
            torch.testing.assert_close(actual, expected, msg=lambda text, name=name: f"{name}: {text}")


def test_half_elements_that_are_repeated() -> None:
    called = compiled(lambda x: (x.sum(1), x.float().mean(1), x.logsumexp(1)), dynamic=True)
    for length in (5, 37):
        x = torch.randn(4, 1, 3).bfloat16().expand(4, length, 3)
        element = x[:, 0].double()
        expected = (element * length, element, element + torch.tensor(length).log())
        for actual, each in zip(called(x), expected, strict=True):
            torch.testing.assert_close(
                actual.double(), each, rtol=8e-3, atol=8e-3
            )  # half an epsilon of bfloat16, twice


def test_positions_among_elements_that_are_repeated() -> None:
    """A mask that is one element is loaded once; the positions that are counted by it go on past the end of the row."""

    def function(x: Tensor) -> Tensor:
        row = x.index_select(0, (torch.arange(1) * 2 + 4) % x.shape[0]).mT
        return row.float().masked_scatter(row, row.float().flip(0))

    called = compiled(function, dynamic=True)
    for length in (5, 8):
        x = torch.ones(length, 1, dtype=torch.bool).expand(length, length)
        torch.testing.assert_close(called(x), function(x))
