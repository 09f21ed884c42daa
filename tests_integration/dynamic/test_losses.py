"""Gradients whose pieces, or whose look, torch works out with numbers: at other sizes, and of no elements."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ferrite_torch
from against_eager import own_only

pytestmark = own_only("it counts ferrite's own graphs")

SIZES = ((4, 5), (7, 9), (3, 16), (2, 2), (31, 3))


def check(loss: Callable[[Tensor, Tensor], Tensor], calls: list[tuple[Tensor, Tensor]]) -> None:
    """Checks a loss and its gradient by its first argument, which one compilation computes for all calls."""
    ferrite_torch.reset_statistics()
    called = torch.compile(loss, backend="ferrite", dynamic=True, fullgraph=True, options={"fallback": False})
    for x, target in calls:
        mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        for function, leaf in ((called, mine), (loss, theirs)):
            result = function(leaf, target)
            result.backward(torch.linspace(1, 2, result.numel()).reshape(result.shape))
        torch.testing.assert_close(mine.grad, theirs.grad)
    assert ferrite_torch.statistics()["graphs"] == 2
    assert ferrite_torch.statistics()["specialised"] == {}


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_multilabel_margin(reduction: str) -> None:
    def targets(rows: int, classes: int) -> Tensor:
        """Returns for each row so many different classes as it has place for, then -1."""
        shuffled = torch.rand(rows, classes).argsort(1)
        return torch.where(torch.arange(classes) <= torch.arange(rows)[:, None] % classes, shuffled, -1)

    check(
        lambda x, y: F.multilabel_margin_loss(x, y, reduction=reduction),
        [(torch.randn(size), targets(*size)) for size in SIZES],
    )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.soft_margin_loss])
def test_means_of_nothing(loss: Callable[..., Tensor], reduction: str) -> None:
    check(lambda x, y: loss(x, y, reduction=reduction), [(torch.randn(0, 7), torch.randn(0, 7))])


def test_resampling_of_no_images() -> None:
    check(
        lambda x, y: F.interpolate(x, scale_factor=1.7, mode="nearest") * y,
        [(torch.randn(0, 2, size), torch.ones(1)) for size in (7, 9, 12)],
    )


def test_distances_of_no_rows() -> None:
    check(torch.cdist, [(torch.randn(0, 1, 4, 5), torch.randn(0, 6, 5))])
