"""Torch's attention from kernels of ours where it is small.

It is an extern call otherwise: the library's kernels are at least as fast. But the host takes longer to call them than
the device takes for a small one, and kernels on both sides of an extern call are started apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ferrite_ir.language import scalar as sc
from ferrite_ir.language.attend import BlockSparsity
from ferrite_ir.language.dtypes import F32
from ferrite_ir.language.index import Dim
from ferrite_ir.language.scalar import Scalar
from ferrite_scheduler.model.contractions import HALVES
from ferrite_torch.devices.dtypes import dtype_of
from ferrite_torch.lowering.builder import Builder, Unlowered
from ferrite_torch.lowering.elementwise import packed_strides
from ferrite_torch.lowering.products.attention import Operands, Scores, attend, positions_of
from ferrite_torch.lowering.products.attention_gradients import LOG2_E, Outer, gradients
from ferrite_torch.lowering.products.tiled_products import is_small
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.tensors import Point, Tensor
from ferrite_torch.sizes.symbolic_sizes import sizes_of
from ferrite_torch.thresholds import ATTENTION


@dataclass(frozen=True, slots=True)
class PlainScores:
    """Scores are exponents as they are: a `ScoreFunction`.

    Attributes:
        is_causal: a query attends to its own key and those before it.
    """

    is_causal: bool

    def weight(self, b: Builder, score: Scalar, scores: Scores) -> Scalar:
        """As in `ScoreFunction`."""
        return score

    def change(self, b: Builder, score: Scalar, scores: Scores, gradient: Scalar) -> Scalar:
        """As in `ScoreFunction`."""
        return gradient

    def mask(self, b: Builder, scores: Scores) -> Scalar | None:
        """As in `ScoreFunction`."""
        *_, query, key = positions_of(scores)
        return sc.apply("ge", query, key) if self.is_causal else None

    def blocks(self, scores: Scores, row: Dim) -> BlockSparsity | None:
        """As in `ScoreFunction`."""
        return None


@lowers("aten.scaled_dot_product_attention.default")
def whole_attention(
    b: Builder,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    given = _operands(b, (query, key, value), attn_mask, dropout_p, scale, is_causal=is_causal)
    return _stored(b, attend(b, given)[0], query, b.fake)


@lowers(
    "aten._scaled_dot_product_flash_attention.default",
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
)
def flash_attention(
    b: Builder,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *_: object,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Sequence[Tensor | None]:
    return _results(b, _operands(b, (query, key, value), attn_mask, dropout_p, scale, is_causal=is_causal))


@lowers(
    "aten._scaled_dot_product_cudnn_attention.default",
    "aten._scaled_dot_product_efficient_attention.default",
)
def biased_attention(
    b: Builder,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *_: object,
    scale: float | None = None,
) -> Sequence[Tensor | None]:
    return _results(b, _operands(b, (query, key, value), attn_bias, dropout_p, scale, is_causal=is_causal))


@lowers("aten._scaled_dot_product_flash_attention_backward.default")
def flash_gradients(
    b: Builder,
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: object,
    max_k: object,
    dropout_p: float,
    is_causal: bool,
    *_: object,
    scale: float | None = None,
) -> Sequence[Tensor | None]:
    given = _operands(b, (query, key, value), None, dropout_p, scale, is_causal=is_causal)
    return _gradients(b, given, grad_out, out, logsumexp)


@lowers("aten._scaled_dot_product_flash_attention_for_cpu_backward.default")
def flash_gradients_for_cpu(
    b: Builder,
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Sequence[Tensor | None]:
    given = _operands(b, (query, key, value), attn_mask, dropout_p, scale, is_causal=is_causal)
    return _gradients(b, given, grad_out, out, logsumexp)


@lowers("aten._scaled_dot_product_cudnn_attention_backward.default")
def cudnn_gradients(
    b: Builder,
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    philox_seed: Tensor,
    philox_offset: Tensor,
    attn_bias: Tensor | None,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: object,
    max_k: object,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None = None,
) -> Sequence[Tensor | None]:
    given = _operands(b, (query, key, value), attn_bias, dropout_p, scale, is_causal=is_causal)
    return _gradients(b, given, grad_out, out, logsumexp)


@lowers("aten._scaled_dot_product_efficient_attention_backward.default")
def efficient_gradients(
    b: Builder,
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    philox_seed: Tensor,
    philox_offset: Tensor,
    dropout_p: float,
    grad_input_mask: object,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Sequence[Tensor | None]:
    given = _operands(b, (query, key, value), attn_bias, dropout_p, scale, is_causal=is_causal)
    return (*_gradients(b, given, grad_out, out, logsumexp), None)


def _operands(
    b: Builder,
    operands: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    dropout: float,
    scale: float | None,
    *,
    is_causal: bool,
) -> Operands:
    """Returns what scores are made of.

    Forward and backward decide alike, though they are compiled apart: by shapes and numbers alone.

    Raises:
        Unlowered: they are left to the library.
    """
    query, key, value = operands
    if not (
        b.choices.products == "small"
        and query.dtype in HALVES
        and is_small(b, (*query.shape, key.shape[2]), 4, ATTENTION.small_flops)
        and mask is None
        and not dropout
        and not (is_causal and query.shape[2] != key.shape[2])
    ):
        raise Unlowered("a library attention")
    return Operands(query, key, value, query.shape[3] ** -0.5 if scale is None else scale, PlainScores(is_causal))


def _results(b: Builder, given: Operands) -> Sequence[Tensor | None]:
    """Returns the results of a forward op: attention, logarithms of sums, and states of a dropout that drops nothing.

    Raises:
        Unlowered: there is no kernel for it, or the logarithms lie otherwise than those of all queries.
    """
    fakes = b.fake
    shape = sizes_of(fakes[1].shape)
    is_read = fakes[1].numel() != 0
    if is_read and shape[:3] != given.query.shape[:3]:
        raise Unlowered("a library attention")
    out, power, _ = attend(b, given)

    def natural(point: Point) -> Scalar:
        return sc.apply("mul", power.at(point[:3]), sc.const(1 / LOG2_E, F32))

    logarithms = b.loop(shape, F32, natural) if is_read else _zeros(b, fakes[1])
    rest = [_zeros(b, fake) if isinstance(fake, torch.Tensor) else None for fake in fakes[2:]]
    return (_stored(b, out, given.query, fakes[0]), logarithms, *rest)


def _gradients(b: Builder, given: Operands, grad_out: Tensor, out: Tensor, logsumexp: Tensor) -> tuple[Tensor, ...]:
    """Returns the gradients of queries, keys and values.

    Raises:
        Unlowered: there is no kernel for them.
    """
    fakes = b.fake
    trailing = logsumexp.shape[3:]
    if logsumexp.shape[:3] != given.query.shape[:3]:
        raise Unlowered("a library attention")

    def power(point: Point) -> Scalar:
        position = (*point, *(index * 0 for index in point[: len(trailing)]))
        return sc.apply("mul", logsumexp.at(position), sc.const(LOG2_E, F32))

    outer = Outer(out, b.loop(given.query.shape[:3], F32, power), grad_out, None)
    return gradients(b, given, outer, fakes)


def _zeros(b: Builder, fake: Any) -> Tensor:
    dtype = dtype_of(fake.dtype)
    return b.loop(tuple(fake.shape), dtype, lambda point: sc.const(0, dtype))


def _stored(b: Builder, out: Tensor, like: Tensor, fake: Any) -> Tensor:
    return b.loop(out.shape, like.dtype, out.at, strides=packed_strides(fake))
