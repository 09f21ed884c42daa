"""Tables looked up in bags, distances, grids of integers, products with vectors, losses that count pairs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ferrite_torch.graphs.lowered_module import LoweredModule

aten = torch.ops.aten


@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_one_length(agree: Any, mode: str, padding: int | None) -> None:
    def bagged(rows: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(rows, table, mode=mode, padding_idx=padding)

    agree(bagged, torch.randint(5, (4, 3)), torch.randn(5, 2))


def test_bags_of_any_length_are_read_by_the_library(lower_one: Any) -> None:
    given = torch.randint(5, (7,)), torch.randn(5, 2), torch.tensor([0, 2, 2])
    lowered: LoweredModule = lower_one(F.embedding_bag, *given)
    assert [reason for _, reason in lowered.externs] == ["bags whose lengths are only known at run time"]


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("knows_bags", [False, True])
def test_gradients_of_bags(agree: Any, mode: int, *, knows_bags: bool) -> None:
    indices, offsets = torch.tensor([1, 0, 3, 3, 4]), torch.tensor([0, 2, 2])
    bags = torch.tensor([0, 0, 2, 2, 2]) if knows_bags else torch.empty(0, dtype=torch.int64)
    sizes, grad = torch.tensor([2, 0, 3]), torch.randn(3, 2)
    none = torch.empty(0, dtype=torch.int64)
    agree(
        lambda *given: aten._embedding_bag_backward(*given, 5, False, mode, False, None, -1),
        grad, indices, offsets, bags, sizes, none,
    )  # fmt: skip


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, float("inf")])
def test_distances(agree: Any, p: float) -> None:
    x, y = torch.randn(3, 4), torch.randn(2, 4)
    found = aten._cdist_forward(x, y, p, None)
    agree(lambda x, y: aten._cdist_forward(x, y, p, None), x, y)
    agree(lambda g, x, y, d: aten._cdist_backward(g, x, y, p, d), torch.randn(3, 2), x, y, found)
    agree(lambda x: aten._pdist_forward(x, p), x)
    agree(lambda g, x, d: aten._pdist_backward(g, x, p, d), torch.randn(3), x, aten._pdist_forward(x, p))


def test_numbers_on_a_grid_of_integers(agree: Any) -> None:
    x = torch.tensor([-1e9, -2.04, -0.25, 0.15, 0.25, 2.66, 1e9, float("nan"), float("inf")])
    agree(lambda x: aten.fake_quantize_per_tensor_affine_cachemask(x, 0.1, 3, -20, 27), x)
    scale, zero = torch.tensor([0.1, 0.2, 0.5]), torch.tensor([0, 3, -2], dtype=torch.int32)
    agree(
        lambda *a: aten.fake_quantize_per_channel_affine_cachemask(*a, 1, -20, 27), torch.randn(4, 3) * 4, scale, zero
    )


def test_products_with_vectors(agree: Any) -> None:
    matrix, vector, bias = torch.randn(3, 4), torch.randn(4), torch.randn(3)
    agree(torch.mv, matrix, vector)
    agree(torch.dot, vector, vector + 1)
    agree(lambda b, m, v: torch.addmv(b, m, v, beta=0.5, alpha=2), bias, matrix, vector)
    agree(lambda b, m, v: torch.addmv(b * float("nan"), m, v, beta=0), bias, matrix, vector)
    agree(torch.mv, torch.randint(9, (2, 3)), torch.randint(9, (3,)))


@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_labels_end_with_the_first_negative_one(agree: Any, reduction: int) -> None:
    x, labels = torch.randn(3, 4), torch.tensor([[0, 2, -1, 1], [3, -1, 0, 0], [1, 1, 3, 0]])
    agree(lambda x, y: aten.multilabel_margin_loss_forward(x, y, reduction), x, labels)
    loss, named = aten.multilabel_margin_loss_forward(x, labels, reduction)
    agree(lambda g, x, y, n: aten.multilabel_margin_loss_backward(g, x, y, reduction, n), loss + 1, x, labels, named)


def test_repeats_by_a_tensor(agree: Any) -> None:
    agree(lambda n: torch.repeat_interleave(n, output_size=6), torch.tensor([0, 2, 0, 3, 1, 0]))
