"""Views and copies of views: index maps that leave no definition behind, with eager's strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

aten, prims = torch.ops.aten, torch.ops.prims

VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "view": lambda x: x.view(8, 3, 10),
    "view, size left open": lambda x: x.view(24, -1),
    "view across dims": lambda x: x.view(2, 2, 6, 5, 2),
    "view of one dim": lambda x: x.view(240),
    "view with dims of size 1": lambda x: x.view(1, 4, 1, 60),
    "permute": lambda x: x.permute(2, 0, 1),
    "transpose": lambda x: x.transpose(0, -1),
    "movedim": lambda x: x.movedim(0, 2),
    "movedim of two": lambda x: torch.movedim(x, (0, 1), (1, 2)),
    "t": lambda x: x[0].t(),
    "expand": lambda x: x[:1].expand(7, 6, 10),
    "expand to more dims": lambda x: x.expand(2, 4, 6, 10),
    "slice": lambda x: x[1:3, ::2, -3:],
    "select": lambda x: x[:, -2],
    "narrow": lambda x: x.narrow(1, 2, 3),
    "squeeze": lambda x: x[:, :1].squeeze(),
    "squeeze of some": lambda x: x[:1, :1].squeeze((0, 1)),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "split": lambda x: torch.split(x, 4, 1),
    "split with sizes": lambda x: torch.split(x, [1, 2, 3], 1),
    "chunk": lambda x: x.chunk(3, -1),
    "unbind": lambda x: x.unbind(1),
    "as_strided": lambda x: x.as_strided((3, 4), (20, 2), 5),
    "as_strided of a view": lambda x: x[1:].as_strided((3, 4), (20, 2), 7),
    "diagonal": lambda x: x.diagonal(1, 0, 2),
    "diagonal below": lambda x: torch.diagonal(x, -2, 1, 2),
    "unfold": lambda x: x.unfold(2, 4, 3),
    "broadcast_in_dim": lambda x: prims.broadcast_in_dim(x[0], [3, 6, 10], [1, 2]),
}
COPIES: dict[str, Callable[[torch.Tensor], Any]] = {
    "reshape that copies": lambda x: x.transpose(0, 1).reshape(6, 40),
    "view_copy": lambda x: aten.view_copy(x, (8, 30)),
    "expand_copy": lambda x: aten.expand_copy(x, (2, 4, 6, 10)),
    "squeeze_copy": lambda x: aten.squeeze_copy(x[:1]),
    "split_with_sizes_copy": lambda x: aten.split_with_sizes_copy(x, [1, 5], 1),
    "unbind_copy": aten.unbind_copy.int,
    "as_strided_copy": lambda x: aten.as_strided_copy(x, (3, 4), (20, 2), 5),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_copy_nothing(agree: Any, name: str) -> None:
    graph = agree(VIEWS[name], torch.randn(4, 6, 10))
    assert graph.definitions == ()


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_an_intermediate(agree: Any, name: str) -> None:
    """Only the intermediate itself is computed."""
    graph = agree(lambda x: VIEWS[name](x + 1), torch.randn(4, 6, 10))
    assert len(graph.definitions) <= 1 + len(graph.outputs)


@pytest.mark.parametrize("name", VIEWS)
def test_reads_through_views(agree: Any, name: str) -> None:
    agree(lambda x: [y * 2 for y in _listed(VIEWS[name](x))], torch.randn(4, 6, 10))


def _listed(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


@pytest.mark.parametrize("name", COPIES)
def test_copies(agree: Any, name: str) -> None:
    agree(COPIES[name], torch.randn(4, 6, 10))


def test_views_without_elements_or_dims(agree: Any) -> None:
    agree(lambda x: x.view(0, 5), torch.randn(5, 0))
    agree(lambda x: x.view(5, 0) + 1, torch.randn(0, 5))
    agree(lambda x: x.view(1, 1), torch.tensor(3.0))
    agree(lambda x: x.view(()) + 1, torch.randn(1, 1))


def test_as_strided_beyond_the_operand_is_a_library_call(lower_one: Any) -> None:
    base = torch.randn(10)
    module = lower_one(lambda x: torch.as_strided(x[:2], (5,), (1,), 0) + 1, base)
    assert not module.externs
    gaps = lower_one(lambda x: torch.as_strided(x, (2,), (1,), 0) + 1, torch.randn(4, 4)[:, :2])
    assert [op for op, _ in gaps.externs] == ["aten.as_strided.default"]
