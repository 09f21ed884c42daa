"""The model of the example bundles, in plain torch: what they have to compute."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Example(nn.Module):
    """A little of everything: lookups, norms, attention, a scan, reductions along rows and columns, an argmax."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.words = nn.Parameter(torch.randn(50, 32, generator=generator))
        self.scale = nn.Parameter(torch.rand(32, generator=generator) + 0.5)
        self.shift = nn.Parameter(torch.randn(32, generator=generator))
        self.up = nn.Parameter(torch.randn(32, 96, generator=generator) / 6)
        self.down = nn.Parameter(torch.randn(96, 32, generator=generator) / 10)
        self.register_buffer("slope", torch.linspace(0.1, 0.9, 12), persistent=False)

    def forward(self, tokens: Tensor, *, gain: Tensor) -> dict[str, Tensor]:
        """Maps tokens `[4, 12]` and a gain `[32]` to several results."""
        x = self.words[tokens]
        normed = F.layer_norm(x, (32,), self.scale, self.shift)
        scores = normed @ normed.transpose(1, 2) * self.slope
        weights = torch.softmax(scores, dim=-1)
        mixed = weights @ normed * gain
        hidden = F.gelu(mixed.reshape(48, 32) @ self.up)
        x = x + torch.tanh((hidden @ self.down).view(4, 12, 32))
        columns = (x * x).sum(dim=(0, 1))
        spread = x.var(dim=-1)
        running = torch.cumsum(spread, dim=-1)
        wide = torch.repeat_interleave(x.amax(dim=-1), 3, dim=-1)
        return {
            "x": x,
            "columns": columns / columns.amax(),
            "running": running,
            "best": x.argmax(dim=-1),
            "wide": wide.t().contiguous() + wide.mean(),
            "logits": torch.log_softmax(x.mean(dim=1) @ self.words.t(), dim=-1),
        }


def example_inputs() -> tuple[tuple[Tensor], dict[str, Tensor]]:
    """Returns the arguments and keywords of a call."""
    generator = torch.Generator().manual_seed(11)
    tokens = torch.randint(0, 50, (4, 12), generator=generator)
    return (tokens,), {"gain": torch.rand(32, generator=generator) + 0.5}


class Regression(nn.Module):
    """A small model to train: a norm with running statistics, two layers, a loss."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.norm = nn.BatchNorm1d(16)
        self.inner = nn.Linear(16, 24)
        self.outer = nn.Linear(24, 1)
        with torch.no_grad():
            for parameter in (*self.inner.parameters(), *self.outer.parameters()):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 4)

    def forward(self, x: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Maps `[32, 16]` and `[32]` to a loss and the predictions `[32]`."""
        found = self.outer(F.silu(self.inner(self.norm(x)))).squeeze(-1)
        return F.mse_loss(found, wanted), found


def regression_inputs() -> tuple[Tensor, Tensor]:
    """Returns the arguments of a call."""
    generator = torch.Generator().manual_seed(5)
    return torch.randn(32, 16, generator=generator), torch.randn(32, generator=generator)
