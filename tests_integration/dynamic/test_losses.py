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


class Model(torch.nn.Module):
    """An embedding and a layer, with the loss of the next word, or of the same."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = torch.nn.Embedding(37, 16), torch.nn.Linear(16, 37)

    def forward(self, tokens: Tensor, labels: Tensor, *, is_shifted: bool) -> Tensor:
        logits = self.layer(self.words(tokens))
        if is_shifted:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return F.cross_entropy(logits.reshape(-1, 37), labels.reshape(-1))


@pytest.mark.parametrize("is_shifted", [False, True])
def test_labels_whose_sizes_only_turn_out_to_be_those_of_the_tokens(*, is_shifted: bool) -> None:
    """As dynamo has it where it saw other sizes before: rows of labels are as many as those of logits by a guard."""
    torch._dynamo.reset()
    ferrite_torch.reset_statistics()
    torch.manual_seed(0)
    model = Model()
    compiled = torch.compile(model, backend="ferrite", dynamic=True, fullgraph=True, options={"fallback": False})
    for size in ((2, 9), (3, 9), (4, 12), (2, 31), (7, 7)):
        tokens, labels = torch.randint(37, size), torch.randint(37, size)
        for given in (tokens, labels):
            torch._dynamo.mark_dynamic(given, 0)
            torch._dynamo.mark_dynamic(given, 1)
        gradients = []
        for called in (compiled, model):
            model.zero_grad()
            loss = called(tokens, labels, is_shifted=is_shifted)
            loss.backward()
            gradients.append([loss.detach(), *(parameter.grad for parameter in model.parameters())])
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
    statistics = ferrite_torch.statistics()
    assert (statistics["graphs"], statistics["specialised"]) == (2, {})
    names = [kernel["name"] for program in ferrite_torch.compiled_programs() for kernel in program["kernels"]]
    assert not any(name.startswith("pointwise_set") for name in names), "no zeros with ones in them are written"
