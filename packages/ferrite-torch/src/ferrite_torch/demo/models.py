"""The two models of the demo, written by hand: a small GPT and a small residual network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class TextSizes:
    """Sizes of the GPT and of its batch."""

    vocabulary: int
    hidden: int
    heads: int
    layers: int
    length: int
    batch: int


@dataclass(frozen=True, slots=True)
class ImageSizes:
    """Sizes of the residual network and of its batch."""

    width: int
    classes: int
    edge: int
    batch: int


class Attention(nn.Module):
    """Mixes positions: causal self-attention, spelled out so that its softmax is there to be fused."""

    def __init__(self, sizes: TextSizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.mix = nn.Linear(sizes.hidden, 3 * sizes.hidden)
        self.output = nn.Linear(sizes.hidden, sizes.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Maps `[batch, length, hidden]` to the same shape."""
        batch, length, hidden = x.shape
        mixed = self.mix(x).view(batch, length, 3, self.heads, hidden // self.heads)
        query, key, value = mixed.permute(2, 0, 3, 1, 4).unbind(0)
        scores = query @ key.transpose(-1, -2) * (hidden // self.heads) ** -0.5
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = torch.softmax(scores.masked_fill(future, float("-inf")), dim=-1)
        out: Tensor = self.output((weights @ value).transpose(1, 2).reshape(batch, length, hidden))
        return out


class Layer(nn.Module):
    """Applies attention and a feed-forward network, each behind a norm and beside a residual."""

    def __init__(self, sizes: TextSizes) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(sizes.hidden)
        self.attention = Attention(sizes)
        self.inner_norm = nn.LayerNorm(sizes.hidden)
        self.inner = nn.Sequential(
            nn.Linear(sizes.hidden, 4 * sizes.hidden),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * sizes.hidden, sizes.hidden),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps `[batch, length, hidden]` to the same shape."""
        x = x + self.attention(self.attention_norm(x))
        out: Tensor = x + self.inner(self.inner_norm(x))
        return out


class GPT(nn.Module):
    """Maps token ids `[batch, length]` to logits `[batch, length, vocabulary]` with tied embeddings."""

    def __init__(self, sizes: TextSizes) -> None:
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.positions = nn.Embedding(sizes.length, sizes.hidden)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns the logits."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x), self.tokens.weight)


class Block(nn.Module):
    """Adds two convolutions with batch norms to a projected shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Maps `[batch, inputs, h, w]` to `[batch, outputs, h / stride, w / stride]`."""
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """Maps images `[batch, 3, edge, edge]` to logits `[batch, classes]`."""

    def __init__(self, sizes: ImageSizes) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, sizes.width, 3, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(sizes.width)
        self.blocks = nn.Sequential(Block(sizes.width, sizes.width, 1), Block(sizes.width, 2 * sizes.width, 2))
        self.head = nn.Linear(2 * sizes.width, sizes.classes)

    def forward(self, images: Tensor) -> Tensor:
        """Returns the logits."""
        x = F.max_pool2d(F.relu(self.stem_norm(self.stem(images))), 2)
        out: Tensor = self.head(self.blocks(x).mean((2, 3)))
        return out


class Loss(nn.Module):
    """Maps a batch and its labels to the mean cross entropy of the model's logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Tensor, labels: Tensor) -> Tensor:
        """Returns the loss, a scalar."""
        logits = self.model(batch)
        return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


@dataclass(frozen=True, slots=True)
class DemoModel:
    """One model with a batch and labels, made at random on a device."""

    title: str
    build: Callable[[], nn.Module]
    feed: Callable[[], tuple[Tensor, Tensor]]


SMALL = (TextSizes(64, 32, 4, 2, 8, 2), ImageSizes(8, 10, 12, 2))
LARGE = (TextSizes(32000, 768, 12, 2, 512, 8), ImageSizes(64, 1000, 64, 32))


def demo_models(text: TextSizes, image: ImageSizes) -> tuple[DemoModel, ...]:
    """Returns the demo's models at the given sizes."""

    def words() -> tuple[Tensor, Tensor]:
        shape = (text.batch, text.length)
        return torch.randint(text.vocabulary, shape), torch.randint(text.vocabulary, shape)

    def pictures() -> tuple[Tensor, Tensor]:
        images = torch.randn(image.batch, 3, image.edge, image.edge)
        return images, torch.randint(image.classes, (image.batch,))

    return (
        DemoModel(f"GPT, {text.layers} layers", lambda: GPT(text), words),
        DemoModel("ResNet, 2 blocks", lambda: ResNet(image), pictures),
    )
