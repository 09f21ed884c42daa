"""Models of plain torch that no library of the wide set has: recommendation, segmentation, diffusion, images, sound.

They follow the shapes of "Deep Learning Recommendation Model" (Naumov et al., 2019), "U-Net" (Ronneberger et al.,
2015), "Denoising Diffusion Probabilistic Models" (Ho et al., 2020), "DCGAN" (Radford et al., 2015) and "WaveNet" (van
den Oord et al., 2016); weights are random.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Interactions(nn.Module):
    """Maps 13 numbers `[batch, 13]` and 26 categories `[batch, 26]` to two logits, by products of all their vectors."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(26))
        self.bottom = nn.Sequential(
            nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU()
        )
        self.top = nn.Sequential(
            nn.Linear(width + 27 * 26 // 2, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 2)
        )
        self.register_buffer("pairs", torch.tril_indices(27, 27, -1), persistent=False)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        looked_up = [table(categories[:, place]).to(dense.dtype) for place, table in enumerate(self.tables)]
        vectors = torch.stack((dense, *looked_up), dim=1)
        products = vectors @ vectors.transpose(1, 2)
        return self.top(torch.cat((dense, products[:, self.pairs[0], self.pairs[1]]), dim=1))


def twice(inputs: int, outputs: int) -> nn.Sequential:
    """Returns two 3x3 convolutions with batch norms and activations."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """Maps images `[batch, 3, h, w]` to a logit of each class at each point, `[batch, h, w, classes]`."""

    def __init__(self, width: int, depth: int, classes: int = 21) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.down = nn.ModuleList(
            twice(inputs, outputs) for inputs, outputs in zip([3, *widths[:-1]], widths, strict=True)
        )
        self.rise = nn.ModuleList(nn.ConvTranspose2d(w * 2, w, 2, stride=2) for w in reversed(widths[:-1]))
        self.up = nn.ModuleList(twice(w * 2, w) for w in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for level in self.down[:-1]:
            x = level(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = self.down[-1](x)
        for rise, level, skipped in zip(self.rise, self.up, reversed(kept), strict=True):
            x = level(torch.cat((skipped, rise(x)), dim=1))
        return self.head(x).permute(0, 2, 3, 1)


class DenoisingBlock(nn.Module):
    """Residual block with group norms, told the time by a shift of its channels."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.first_norm, self.first = nn.GroupNorm(32, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs)
        self.second_norm, self.second = nn.GroupNorm(32, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.first(F.silu(self.first_norm(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.second(F.silu(self.second_norm(y)))


class PointAttention(nn.Module):
    """Attention among the points of an image, with a group norm before and a residual around it."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(32, channels)
        self.mix, self.output = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        mixed = self.mix(self.norm(x)).reshape(batch, 3, self.heads, channels // self.heads, height * width)
        query, key, value = mixed.transpose(-1, -2).unbind(1)
        attended = F.scaled_dot_product_attention(query, key, value)
        return x + self.output(attended.transpose(-1, -2).reshape(batch, channels, height, width))


class Denoiser(nn.Module):
    """Two levels of a diffusion model's U-Net: maps noisy images `[batch, 4, h, w]`, times `[batch]` to the noise."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width))
        self.stem = nn.Conv2d(4, width, 3, padding=1)
        self.outer = DenoisingBlock(width, width, 4 * width)
        self.shrink = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.inner = DenoisingBlock(width, 2 * width, 4 * width)
        self.attention = PointAttention(2 * width, width // 32)
        self.last_inner = DenoisingBlock(2 * width, 2 * width, 4 * width)
        self.grow = nn.Conv2d(2 * width, width, 3, padding=1)
        self.last_outer = DenoisingBlock(2 * width, width, 4 * width)
        self.norm, self.head = nn.GroupNorm(32, width), nn.Conv2d(width, 4, 3, padding=1)

    def told(self, times: Tensor) -> Tensor:
        """Returns times `[batch]` as waves of many lengths, `[batch, 4 * width]`."""
        half = self.width // 2
        rates = torch.exp(torch.arange(half, device=times.device) * (-math.log(10000.0) / half))
        angles = times[:, None].float() * rates
        waves = torch.cat((angles.sin(), angles.cos()), dim=1).to(self.stem.weight.dtype)
        return self.time(waves)

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        time = self.told(times)
        outer = self.outer(self.stem(x), time)
        inner = self.last_inner(self.attention(self.inner(self.shrink(outer), time)), time)
        grown = self.grow(F.interpolate(inner, scale_factor=2.0, mode="nearest"))
        return self.head(F.silu(self.norm(self.last_outer(torch.cat((outer, grown), dim=1), time))))


class Generator(nn.Module):
    """Maps noise `[batch, 100, 1, 1]` to images `[batch, 3, 64, 64]` by transposed convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.ConvTranspose2d(100, width * 8, 4, bias=False)]
        for inputs, outputs in ((8, 4), (4, 2), (2, 1)):
            layers += [nn.BatchNorm2d(width * inputs), nn.ReLU(inplace=True)]
            layers.append(nn.ConvTranspose2d(width * inputs, width * outputs, 4, stride=2, padding=1, bias=False))
        layers += [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        layers += [nn.ConvTranspose2d(width, 3, 4, stride=2, padding=1, bias=False), nn.Tanh()]
        self.layers = nn.Sequential(*layers)

    def forward(self, noise: Tensor) -> Tensor:
        return self.layers(noise)


class WaveNet(nn.Module):
    """Maps quantised sound `[batch, length]` to logits of what follows each sample, `[batch, length, 256]`."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.dilated = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=1 << layer) for layer in range(layers))
        self.mixed = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(layers))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, 256, 1))

    def forward(self, sound: Tensor) -> Tensor:
        x = self.embedding(sound).transpose(1, 2)
        total = torch.zeros_like(x)
        for layer, (dilated, mixed) in enumerate(zip(self.dilated, self.mixed, strict=True)):
            filtered, gate = dilated(F.pad(x, (1 << layer, 0))).chunk(2, dim=1)
            onward, skipped = mixed(filtered.tanh() * gate.sigmoid()).chunk(2, dim=1)
            x, total = x + onward, total + skipped
        return self.head(total).transpose(1, 2)
