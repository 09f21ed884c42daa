"""Ops that move elements: joining, repeating, padding and writing into a part of a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

aten, prims = torch.ops.aten, torch.ops.prims

MOVES: dict[str, Callable[[torch.Tensor], Any]] = {
    "flip": lambda x: x.flip(0, 2),
    "rev": lambda x: prims.rev(x, [1]),
    "roll": lambda x: x.roll((1, -3), (0, 2)),
    "roll of all": lambda x: x.roll(7),
    "repeat": lambda x: x.repeat(2, 1, 2, 3),
    "pad": lambda x: F.pad(x, (1, 2, -1, 3), value=2.0),
    "pad of one dim": lambda x: F.pad(x, (0, 0, 1, 1)),
    "reflection pad": lambda x: F.pad(x, (3, 2), mode="reflect"),
    "reflection pad 2d": lambda x: F.pad(x, (3, 2, 1, 2), mode="reflect"),
    "replication pad": lambda x: F.pad(x, (3, 2, 1, 2), mode="replicate"),
    "stack": lambda x: torch.stack([x, x + 1, x * 2], 1),
    "stack of the last dim": lambda x: torch.stack([x, x + 1, x * 2], -1),
    "many of the last dim": lambda x: torch.stack([x * k for k in range(6)], -1),
    "columns": lambda x: torch.cat([x[..., :1], x[..., 3:4], torch.zeros(4, 6, 0), x[..., 1:2]], -1),
    "one column": lambda x: torch.cat([x[..., :1]], -1),
    "triu": lambda x: x.triu(1),
    "tril": lambda x: x.tril(-1),
    "slice_scatter": lambda x: torch.slice_scatter(x, x[:, :2] * 2, 1, 2, 4),
    "slice_scatter with a step": lambda x: torch.slice_scatter(x, x[:, :, :4] * 2, 2, 1, 9, 2),
    "select_scatter": lambda x: torch.select_scatter(x, x[:, 0] * 3, 1, -2),
    "diagonal_scatter": lambda x: torch.diagonal_scatter(x, torch.ones(10, 4), 0, 0, 1),
    "diagonal_scatter above": lambda x: torch.diagonal_scatter(x, torch.ones(4, 6), 1, 1, 2),
    "diagonal_scatter below": lambda x: torch.diagonal_scatter(x, torch.ones(10, 3), -1, 0, 1),
    "slice_backward": lambda x: aten.slice_backward(x, [4, 6, 30], 2, 5, 25, 2),
    "select_backward": lambda x: aten.select_backward(x, [4, 9, 6, 10], 1, 3),
    "diagonal_backward": lambda x: aten.diagonal_backward(x, [4, 6, 10, 12], 1, 2, 3),
    "cat": lambda x: torch.cat([x, x[:2] * 2, x[3:]], 0),
    "cat of the last dim": lambda x: torch.cat([x, x[..., :3]], -1),
    "cat with nothing": lambda x: torch.cat([torch.zeros(0), x[0, 0]]),
    "cat of several types": lambda x: torch.cat([x, (x * 3).to(torch.int32)]),
    "cat of one": lambda x: torch.cat([x]),
}


@pytest.mark.parametrize("name", MOVES)
def test_moves(agree: Any, name: str) -> None:
    agree(MOVES[name], torch.randn(4, 6, 10))


@pytest.mark.parametrize("name", ["flip", "repeat", "triu", "cat", "slice_scatter", "pad of one dim"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_moves_of_other_types(agree: Any, name: str, dtype: torch.dtype) -> None:
    if dtype is torch.bool and name == "slice_scatter":
        agree(lambda x: torch.slice_scatter(x, x[:, :2], 1, 2, 4), torch.rand(4, 6, 10) > 0.5)
        return
    change = {"cat": lambda x: torch.cat([x, x[:2], x[3:]], 0)}.get(name, MOVES[name])
    agree(change, torch.randint(0, 9, (4, 6, 10)).to(dtype))


def test_pairs_by_turns_are_loaded_once_and_without_conditions(agree: Any) -> None:
    """As of a rotary embedding: both results of a pair are made of both of its elements."""

    def rotate(x: torch.Tensor) -> torch.Tensor:
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * 0.6 - b * 0.8, a * 0.8 + b * 0.6), -1).flatten(-2)

    text = str(agree(rotate, torch.randn(4, 6, 10)))
    assert "masked" not in text
    assert "where(eq(" in text


def test_channels_in_squares(agree: Any) -> None:
    agree(lambda x: F.pixel_shuffle(x, 2), torch.randn(2, 8, 3, 3))
    agree(lambda x: F.pixel_unshuffle(x, 2), torch.randn(2, 3, 4, 4))
    agree(lambda x: aten.channel_shuffle(x, 2), torch.randn(2, 4, 3, 3))


def test_nothing_to_move(agree: Any) -> None:
    agree(lambda x: torch.cat([x, x]), torch.randn(0, 5))
    agree(lambda x: x.flip(0), torch.randn(0, 5))
    agree(lambda x: x.roll(2), torch.randn(0, 5))


def test_results_are_new_tensors(agree: Any) -> None:
    """A flip of nothing, a repeat by one: eager copies, and so must we."""
    for function in (lambda x: x.flip([]), lambda x: x.repeat(1, 1), lambda x: torch.cat([x])):
        graph = agree(function, torch.randn(2, 3))
        assert len(graph.definitions) == 1


def test_a_very_long_cat_is_a_library_call(lower_one: Any) -> None:
    module = lower_one(lambda x: torch.cat([x + i for i in range(70)]), torch.randn(2))
    assert [op for op, _ in module.externs] == ["aten.cat.default"]
