"""Torch's attention from kernels of ours where it is small.

It is an extern call otherwise: the library's kernels are at least as fast. But the host takes longer to call them than
the device takes for a small one, and kernels on both sides of an extern call are started apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from ferrite_torch.lowering.products.attention import Operands, Scores, attend, positions_of, stored
from ferrite_torch.lowering.products.attention_gradients import LOG2_E, Outer, gradients
from ferrite_torch.lowering.products.tiled_products import is_small
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.tensors import Point, Tensor
from ferrite_torch.sizes.symbolic_sizes import sizes_of
from ferrite_torch.thresholds import ATTENTION
from ferrite_torch.torch_private.operators import arguments_by_name


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


FORWARD = (
    "aten.scaled_dot_product_attention.default",
    "aten._scaled_dot_product_flash_attention.default",
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
    "aten._scaled_dot_product_cudnn_attention.default",
    "aten._scaled_dot_product_efficient_attention.default",
)
BACKWARD = (
    "aten._scaled_dot_product_flash_attention_backward.default",
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
    "aten._scaled_dot_product_cudnn_attention_backward.default",
    "aten._scaled_dot_product_efficient_attention_backward.default",
)
"""Torch's ops, which differ in the order of their arguments, and in what they give besides."""


@lowers(*FORWARD)
def attention(b: Builder, *args: Any, **named: Any) -> Tensor | Sequence[Tensor | None]:
    """Returns the results of a forward op: attention, logarithms of sums, and states of a dropout that drops nothing.

    Raises:
        Unlowered: it is left to the library, as where the logarithms lie otherwise than those of all queries.
    """
    given, fakes = _operands(b, arguments_by_name(b.node.target, args, named)), b.fake
    if isinstance(fakes, torch.Tensor):
        return stored(b, attend(b, given)[0], given, fakes)
    shape = sizes_of(fakes[1].shape)
    is_read = fakes[1].numel() != 0
    if is_read and shape[:3] != given.query.shape[:3]:
        raise Unlowered("a library attention")
    out, power, _ = attend(b, given)

    def natural(point: Point) -> Scalar:
        return sc.apply("mul", power.at(point[:3]), sc.const(1 / LOG2_E, F32))

    logarithms = b.loop(shape, F32, natural) if is_read else _zeros(b, fakes[1])
    rest = [_zeros(b, fake) if isinstance(fake, torch.Tensor) else None for fake in fakes[2:]]
    return (stored(b, out, given, fakes[0]), logarithms, *rest)


@lowers(*BACKWARD)
def attention_backward(b: Builder, *args: Any, **named: Any) -> Sequence[Tensor | None]:
    """Returns the gradients of queries, keys and values; there is none of a mask.

    Raises:
        Unlowered: they are left to the library.
    """
    call, fakes = arguments_by_name(b.node.target, args, named), b.fake
    given, logarithms = _operands(b, call), call["logsumexp"]
    trailing = logarithms.shape[3:]
    if logarithms.shape[:3] != given.query.shape[:3]:
        raise Unlowered("a library attention")

    def power(point: Point) -> Scalar:
        position = (*point, *(index * 0 for index in point[: len(trailing)]))
        return sc.apply("mul", logarithms.at(position), sc.const(LOG2_E, F32))

    (grad_out,) = (call[name] for name in ("grad_out", "grad_out_") if name in call)
    outer = Outer(call["out"], b.loop(given.query.shape[:3], F32, power), grad_out, None)
    return (*gradients(b, given, outer, fakes), *[None] * (len(fakes) - 3))


def _operands(b: Builder, call: Mapping[str, Any]) -> Operands:
    """Returns what scores are made of, by the arguments of an op.

    Forward and backward decide alike, though they are compiled apart: by shapes and numbers alone.

    Raises:
        Unlowered: they are left to the library.
    """
    query, key, value, is_causal, scale = (call[name] for name in ("query", "key", "value", "is_causal", "scale"))
    if not (
        b.choices.products == "small"
        and query.dtype in HALVES
        and is_small(b, (*query.shape, key.shape[2]), 4, ATTENTION.small_flops)
        and all(call.get(name) is None for name in ("attn_mask", "attn_bias"))
        and not call["dropout_p"]
        and not (is_causal and query.shape[2] != key.shape[2])
    ):
        raise Unlowered("a library attention")
    return Operands(query, key, value, query.shape[3] ** -0.5 if scale is None else scale, PlainScores(is_causal))


def _zeros(b: Builder, fake: Any) -> Tensor:
    dtype = dtype_of(fake.dtype)
    return b.loop(sizes_of(fake.shape), dtype, lambda _: sc.const(0, dtype))
