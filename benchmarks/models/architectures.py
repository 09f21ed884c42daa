"""Models written by hand: a Llama-style decoder, a vision transformer and a residual network.

They use plain torch, carry random weights, and follow the published shapes, so that a benchmark needs no download:
"Llama 2" (Touvron et al., 2023), "An Image is Worth 16x16 Words" (Dosovitskiy et al., 2020), "Deep Residual Learning"
(He et al., 2015, in the stride-on-3x3 variant that today's libraries use).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes of a Llama-style decoder; `hidden` is a multiple of `heads`, `heads` of `kv_heads`."""

    vocabulary: int = 32000
    hidden: int = 2048
    inner: int = 5632
    layers: int = 4
    heads: int = 16
    kv_heads: int = 4
    max_length: int = 2048
    rope_base: float = 10000.0


class RMSNorm(nn.Module):
    """Normalises the last dim by its root mean square, computed in float32."""

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * (wide * scale).to(x.dtype)


def rotary_table(length: int, head: int, base: float) -> tuple[Tensor, Tensor]:
    """Returns the cosines and sines `[length, head]` of rotary position embedding (Su et al., 2021)."""
    frequency = base ** (-torch.arange(0, head, 2, dtype=torch.float32) / head)
    angle = torch.outer(torch.arange(length, dtype=torch.float32), frequency)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns `x` `[..., length, head]` turned by the angles of its positions."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class DecoderAttention(nn.Module):
    """Causal self-attention with fewer key and value heads than query heads."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.head = config.hidden // config.heads
        self.query = nn.Linear(config.hidden, config.heads * self.head, bias=False)
        self.key = nn.Linear(config.hidden, config.kv_heads * self.head, bias=False)
        self.value = nn.Linear(config.hidden, config.kv_heads * self.head, bias=False)
        self.output = nn.Linear(config.heads * self.head, config.hidden, bias=False)

    def rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Returns heads `[batch, heads, length, head]` turned by the angles of their positions."""
        return rotate(x, cos, sin)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        query = self.query(x).view(batch, length, -1, self.head).transpose(1, 2)
        key = self.key(x).view(batch, length, -1, self.head).transpose(1, 2)
        value = self.value(x).view(batch, length, -1, self.head).transpose(1, 2)
        query, key = self.rotated(query, cos, sin), self.rotated(key, cos, sin)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.output(mixed.transpose(1, 2).reshape(batch, length, -1))


class SwiGLU(nn.Module):
    """Gated feed-forward layer (Shazeer, 2020)."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, inner, bias=False)
        self.up = nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class DecoderLayer(nn.Module):
    """Pre-norm attention and feed-forward with residuals, of the given kinds of norm and attention."""

    def __init__(self, config: DecoderConfig, norm: type[nn.Module], attention: type[nn.Module]) -> None:
        super().__init__()
        self.attention_norm = norm(config.hidden)
        self.attention = attention(config)
        self.inner_norm = norm(config.hidden)
        self.inner = SwiGLU(config.hidden, config.inner)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.inner(self.inner_norm(x))


class Decoder(nn.Module):
    """Maps token ids `[batch, length]` to logits `[batch, length, vocabulary]`."""

    def __init__(
        self,
        config: DecoderConfig,
        norm: type[nn.Module] = RMSNorm,
        attention: type[nn.Module] = DecoderAttention,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.hidden)
        self.layers = nn.ModuleList(DecoderLayer(config, norm, attention) for _ in range(config.layers))
        self.norm = norm(config.hidden)
        self.head = nn.Linear(config.hidden, config.vocabulary, bias=False)
        cos, sin = rotary_table(config.max_length, config.hidden // config.heads, config.rope_base)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """Sizes of a vision transformer over square images."""

    image: int = 224
    patch: int = 16
    hidden: int = 768
    inner: int = 3072
    layers: int = 12
    heads: int = 12
    classes: int = 1000


class VisionLayer(nn.Module):
    """Pre-norm encoder layer with one projection for query, key and value."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.attention_norm = nn.LayerNorm(config.hidden, eps=1e-6)
        self.mix = nn.Linear(config.hidden, 3 * config.hidden)
        self.output = nn.Linear(config.hidden, config.hidden)
        self.inner_norm = nn.LayerNorm(config.hidden, eps=1e-6)
        self.inner = nn.Sequential(
            nn.Linear(config.hidden, config.inner), nn.GELU(), nn.Linear(config.inner, config.hidden)
        )

    def attend(self, x: Tensor) -> Tensor:
        batch, length, hidden = x.shape
        mixed = self.mix(x).view(batch, length, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = mixed.unbind(0)
        out = F.scaled_dot_product_attention(query, key, value)
        return self.output(out.transpose(1, 2).reshape(batch, length, hidden))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.attention_norm(x))
        return x + self.inner(self.inner_norm(x))


class VisionTransformer(nn.Module):
    """Maps images `[batch, 3, image, image]` to logits `[batch, classes]`."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        patches = (config.image // config.patch) ** 2
        self.patches = nn.Conv2d(3, config.hidden, config.patch, stride=config.patch)
        self.token = nn.Parameter(torch.zeros(1, 1, config.hidden))
        self.position = nn.Parameter(torch.randn(1, patches + 1, config.hidden) * 0.02)
        self.layers = nn.ModuleList(VisionLayer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.hidden, eps=1e-6)
        self.head = nn.Linear(config.hidden, config.classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


class Bottleneck(nn.Module):
    """Residual block 1x1, 3x3, 1x1 with batch norms; the 3x3 convolution carries the stride."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


class ResidualNetwork(nn.Module):
    """Maps images `[batch, 3, h, w]` to logits `[batch, classes]`; `blocks` per stage (3, 4, 6, 3) is ResNet-50."""

    def __init__(self, blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        stages: list[nn.Module] = []
        inputs = width
        for stage, count in enumerate(blocks):
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                stages.append(Bottleneck(inputs, width << stage, stride))
                inputs = (width << stage) * Bottleneck.expansion
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(images)).mean((2, 3)))
