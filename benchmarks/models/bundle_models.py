"""The two models that `bundle_run.py` runs from bundles: ``python -m ferrite_torch export`` takes them.

python -m ferrite_torch export benchmarks/models/bundle_models.py:gpt2 -o gpt2.ferrite --targets sm_90
python -m ferrite_torch export benchmarks/models/bundle_models.py:resnet50 -o resnet50.ferrite --targets sm_90
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Logits(nn.Module):
    """GPT-2 small, weights of its initialisation: tokens to logits, nothing else."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        self.model = GPT2LMHeadModel(GPT2Config(use_cache=False, attn_implementation="sdpa"))

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(tokens, use_cache=False).logits
        return logits


def gpt2() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Returns GPT-2 small in bf16 and its inputs: 4 sequences of 512 tokens."""
    torch.manual_seed(0)
    return Logits().eval().bfloat16(), (torch.randint(0, 50257, (4, 512)),)


class Block(nn.Module):
    """Two convolutions around a wider one, beside a residual."""

    def __init__(self, width: int, inner: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, inner, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(inner)
        self.second = nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(inner)
        self.third = nn.Conv2d(inner, 4 * inner, 1, bias=False)
        self.third_norm = nn.BatchNorm2d(4 * inner)
        reshapes = stride != 1 or width != 4 * inner
        self.short: nn.Module = nn.Identity()
        if reshapes:
            self.short = nn.Sequential(nn.Conv2d(width, 4 * inner, 1, stride, bias=False), nn.BatchNorm2d(4 * inner))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first_norm(self.first(x)))
        y = torch.relu(self.second_norm(self.second(y)))
        return torch.relu(self.third_norm(self.third(y)) + self.short(x))


class ResNet50(nn.Module):
    """The residual network of 50 layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, 1)
        blocks: list[nn.Module] = []
        width = 64
        for inner, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for number in range(count):
                blocks.append(Block(width, inner, stride if number == 0 else 1))
                width = 4 * inner
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(self.pool(self.stem(x))).mean((2, 3)))
        return out


def resnet50() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Returns ResNet-50 in fp16, channels last, and 32 images."""
    torch.manual_seed(0)
    model: Any = ResNet50().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.8, 1.2)
    model = model.half().to(memory_format=torch.channels_last)
    return model, (torch.randn(32, 3, 224, 224).half().to(memory_format=torch.channels_last),)


def layers() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Returns a launch-bound model: batch 1, 12 transformer layers of width 256."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, 0.0, "gelu", batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).train(), (torch.randn(1, 64, 256),)
