"""Schedules of compiled programs parse back from their text, print the same, and emit the same program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ferrite_scheduler import Schedule, parse_schedule
from ferrite_torch import compilation
from ferrite_triton import emit_program


class Block(nn.Module):
    """A layer of a transformer, with an embedding before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        h = self.norm(x).view(*x.shape[:2], 4, 8).transpose(1, 2)
        x = x + F.scaled_dot_product_attention(h, h, h, is_causal=True).transpose(1, 2).flatten(2)
        result: Tensor = x + F.dropout(self.down(F.gelu(self.up(x))), 0.1)
        return result.logsumexp(-1).sum()


class Images(nn.Module):
    """Convolutions, norms of batches and groups, and pools."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.second, self.groups = nn.Conv2d(16, 8, 1), nn.GroupNorm(2, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        result: Tensor = F.interpolate(self.groups(self.second(x)), scale_factor=2).square().mean()
        return result


def scattered(x: Tensor, index: Tensor) -> Tensor:
    sums = torch.zeros(20, 8, device=x.device).index_add(0, index, x)
    return sums.cumsum(0).sort(1).values.sum() + x.roll(1).topk(3).values.sum()


def with_calls(x: Tensor, y: Tensor) -> Tensor:
    return torch.linalg.inv(x @ x.mT + 10 * torch.eye(6, device=x.device)).diagonal().sum() + y[y > 0].sum()


def ids(*shape: int) -> Tensor:
    return torch.randint(20, shape)


PROGRAMS: dict[str, tuple[Callable[..., Tensor], tuple[Any, ...]]] = {
    "block": (Block(), (ids(2, 6),)),
    "images": (Images(), (torch.randn(2, 3, 8, 8),)),
    "scattered": (scattered, (torch.randn(30, 8), ids(30))),
    "with calls": (with_calls, (torch.randn(6, 6), torch.randn(9))),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_schedules_parse_back_and_emit_the_same(name: str, *, dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Schedule] = []
    make = compilation.schedule_module

    def recorded(*args: Any, **options: Any) -> Schedule:
        made.append(make(*args, **options))
        return made[-1]

    monkeypatch.setattr(compilation, "schedule_module", recorded)
    function, inputs = PROGRAMS[name]
    given = [x.requires_grad_() if x.is_floating_point() else x for x in inputs]
    torch.compile(function, backend="ferrite", dynamic=dynamic)(*given).backward()
    assert len(made) >= 2, "forward and backward"
    for found in made:
        text = str(found)
        again = parse_schedule(text, f"{name}.schedule")
        assert str(again) == text
        assert emit_program(again).to_mapping() == emit_program(found).to_mapping()
