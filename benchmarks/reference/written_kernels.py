"""Triton kernels of the kind that kernel libraries ship, and a decoder that is trained with them.

A root-mean-square norm, rotary position embedding and a cross entropy, each with its derivative, as people write them
by hand: one program for each row, the derivative of the loss in the place of the logits, queries and keys turned where
they lie. Each is a ``torch.autograd.Function`` that launches its kernels.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from benchmarks.models.architectures import Decoder, DecoderAttention, DecoderConfig

NORM_PROGRAMS = 128
"""Programs among which the derivative of the norm shares out its rows: about as many as a GPU has multiprocessors."""
VOCABULARY_BLOCK = 8192
"""Most logits of a row that a program of the cross entropy has at once."""


@triton.jit
def norm_forward(x_ptr, weight_ptr, out_ptr, scale_ptr, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    x = tl.load(x_ptr + row * columns + at, inside, other=0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(x * x, 0) / columns + eps)
    tl.store(scale_ptr + row, scale)
    weight = tl.load(weight_ptr + at, inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * columns + at, x * scale * weight, inside)


@triton.jit
def norm_backward(dy_ptr, x_ptr, weight_ptr, scale_ptr, dx_ptr, parts_ptr, rows, columns, each, BLOCK: tl.constexpr):
    part = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    weight = tl.load(weight_ptr + at, inside, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for number in range(each):
        row = (part * each + number).to(tl.int64)
        mask = inside & (row < rows)
        x = tl.load(x_ptr + row * columns + at, mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * columns + at, mask, other=0.0).to(tl.float32)
        scale = tl.load(scale_ptr + row, row < rows, other=0.0)
        normed = x * scale
        weighted = dy * weight
        dx = scale * (weighted - normed * (tl.sum(weighted * normed, 0) / columns))
        tl.store(dx_ptr + row * columns + at, dx, mask)
        total += dy * normed
    tl.store(parts_ptr + part * columns + at, total, inside)


@triton.jit
def turn(x, y, cos, sin, INVERSE: tl.constexpr):
    """Returns pairs turned by an angle, or back."""
    if INVERSE:
        return x * cos + y * sin, y * cos - x * sin
    return x * cos - y * sin, y * cos + x * sin


@triton.jit
def rotate_in_place(
    x_ptr, cos_ptr, sin_ptr, length, heads, HEAD: tl.constexpr, HEADS: tl.constexpr, INVERSE: tl.constexpr
):
    """Turns all heads ``[batch, length, heads, HEAD]`` of one position: the first half of each with the second."""
    place = tl.program_id(0).to(tl.int64)
    half: tl.constexpr = HEAD // 2
    at = tl.arange(0, half)
    angle = (place % length) * HEAD + at
    cos = tl.load(cos_ptr + angle)[None, :]
    sin = tl.load(sin_ptr + angle)[None, :]
    head = tl.arange(0, HEADS)[:, None]
    first = x_ptr + place * heads * HEAD + head * HEAD + at[None, :]
    inside = head < heads
    x = tl.load(first, inside, other=0.0).to(tl.float32)
    y = tl.load(first + half, inside, other=0.0).to(tl.float32)
    turned, other = turn(x, y, cos, sin, INVERSE)
    tl.store(first, turned, inside)
    tl.store(first + half, other, inside)


@triton.jit
def cross_entropy(logits_ptr, target_ptr, loss_ptr, columns, rows, BLOCK: tl.constexpr):
    """Leaves in the place of a row of logits what the mean of all losses is derived to."""
    row = tl.program_id(0).to(tl.int64)
    first = logits_ptr + row * columns
    target = tl.load(target_ptr + row)
    wanted = tl.load(first + target).to(tl.float32)
    most = float("-inf")
    total = 0.0
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(first + at, at < columns, other=float("-inf")).to(tl.float32)
        new = tl.maximum(most, tl.max(x, 0))
        total = total * tl.exp(most - new) + tl.sum(tl.exp(x - new), 0)
        most = new
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(first + at, at < columns, other=float("-inf")).to(tl.float32)
        gradient = tl.exp(x - most) / total
        gradient = tl.where(at == target, gradient - 1, gradient) / rows
        tl.store(first + at, gradient, at < columns)
    tl.store(loss_ptr + row, most + tl.log(total) - wanted)


def _block(columns: int) -> dict[str, int]:
    block = triton.next_power_of_2(columns)
    return {"BLOCK": block, "num_warps": 4 if block < 2048 else 8 if block < 8192 else 16}


class Norm(torch.autograd.Function):
    """Root-mean-square norm of rows ``[rows, columns]`` with a weight ``[columns]``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Returns the normalised rows."""
        rows, columns = x.shape
        out, scale = torch.empty_like(x), x.new_empty(rows, dtype=torch.float32)
        norm_forward[(rows,)](x, weight, out, scale, columns, eps, **_block(columns))
        ctx.save_for_backward(x, weight, scale)
        return out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        """Returns the gradients of the rows and of the weight."""
        x, weight, scale = ctx.saved_tensors
        rows, columns = x.shape
        programs = min(NORM_PROGRAMS, rows)
        each = triton.cdiv(rows, programs)
        dx, parts = torch.empty_like(x), x.new_empty(programs, columns, dtype=torch.float32)
        norm_backward[(programs,)](dy.contiguous(), x, weight, scale, dx, parts, rows, columns, each, **_block(columns))
        return dx, parts.sum(0).to(weight.dtype), None


def _turned(x: Tensor, cos: Tensor, sin: Tensor, *, inverse: bool) -> Tensor:
    batch, length, heads, head = x.shape
    rotate_in_place[(batch * length,)](
        x, cos, sin, length, heads, HEAD=head, HEADS=triton.next_power_of_2(heads), INVERSE=inverse, num_warps=4
    )
    return x


class Rotary(torch.autograd.Function):
    """Rotary position embedding of ``[batch, length, heads, head]`` with tables ``[length, head]``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Returns heads turned by the angles of their positions."""
        ctx.save_for_backward(cos, sin)
        return _turned(x.clone(memory_format=torch.contiguous_format), cos, sin, inverse=False)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        """Returns gradients turned back."""
        cos, sin = ctx.saved_tensors
        return _turned(dy.clone(memory_format=torch.contiguous_format), cos, sin, inverse=True), None, None


class CrossEntropy(torch.autograd.Function):
    """Mean cross entropy of logits ``[rows, columns]``, which it overwrites, and targets ``[rows]``."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        """Returns the mean of the losses of all rows."""
        rows, columns = logits.shape
        losses = logits.new_empty(rows, dtype=torch.float32)
        block = min(VOCABULARY_BLOCK, triton.next_power_of_2(columns))
        gradient = logits.detach()
        cross_entropy[(rows,)](gradient, targets, losses, columns, rows, BLOCK=block, num_warps=16)
        ctx.save_for_backward(gradient)
        return losses.mean()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        """Returns the gradient of the logits."""
        (gradient,) = ctx.saved_tensors
        return gradient * dy, None


class KernelNorm(nn.Module):
    """The norm as a module."""

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return Norm.apply(x.reshape(-1, x.shape[-1]), self.weight, self.eps).view(x.shape)


class KernelAttention(DecoderAttention):
    """Causal self-attention whose queries and keys the kernel turns."""

    def rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Returns heads ``[batch, heads, length, head]`` that the kernel turned where their projection left them."""
        return Rotary.apply(x.transpose(1, 2), cos, sin).transpose(1, 2)


class KernelDecoder(Decoder):
    """Maps token ids and targets ``[batch, length]`` to the mean loss."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config, KernelNorm, KernelAttention)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return CrossEntropy.apply(super().forward(tokens).flatten(0, 1), targets.flatten())
