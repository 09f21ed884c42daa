"""Segmented reductions: calls that reduce rows into the rows of another matrix, and places where these go."""

from __future__ import annotations

import torch
from torch import Tensor

PLACES = 7


def added(target: Tensor, index: Tensor, x: Tensor) -> Tensor:
    return target.index_add(0, index, x)


def added_in_place(target: Tensor, index: Tensor, x: Tensor) -> Tensor:
    return target.clone().index_add_(0, index, x)


def summed(target: Tensor, index: Tensor, x: Tensor) -> Tensor:
    return torch.zeros_like(target).index_add(0, index, x)


def largest(target: Tensor, index: Tensor, x: Tensor) -> Tensor:
    return torch.full_like(target, -100.0).scatter_reduce(0, index[:, None].expand_as(x), x, "amax")


def smallest(target: Tensor, index: Tensor, x: Tensor) -> Tensor:
    return target.scatter_reduce(0, index[:, None].expand_as(x), x, "amin")


def put(target: Tensor, index: Tensor, x: Tensor) -> Tensor:
    return target.index_put((torch.where(index > 2, index - PLACES, index),), x, accumulate=True)


def looked_up(target: Tensor, index: Tensor, x: Tensor) -> Tensor:
    return torch.ops.aten.embedding_dense_backward(x, index, PLACES, -1, False)


def padded(target: Tensor, index: Tensor, x: Tensor) -> Tensor:
    return torch.ops.aten.embedding_dense_backward(x, index, PLACES, 3, False)


def scaled(target: Tensor, index: Tensor, x: Tensor) -> Tensor:
    return target.index_add(0, index, x, alpha=2)


def places(kind: str, count: int) -> Tensor:
    return {
        "any": torch.randint(PLACES, (count,)),
        "one": torch.full((count,), 3),
        "sorted": torch.arange(count) * (PLACES - 1) // count,
        "ends": torch.randint(2, (count,)) * (PLACES - 1),
        "skewed": torch.where(torch.rand(count) < 0.7, 2, torch.randint(PLACES, (count,))),
    }[kind]
