"""Torch's attention from kernels of ours where it is small.

It is an extern call otherwise: the library's kernels are at least as fast. But the host takes longer to call them than
the device takes for a small one, and kernels on both sides of an extern call are started apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.attend import BlockSparsity
from ferrite_ir.language.dtypes import BOOL, F32, I64
from ferrite_ir.language.index import Dim
from ferrite_ir.language.scalar import Scalar
from ferrite_scheduler.model.contractions import HALVES
from ferrite_torch.devices.dtypes import dtype_of
from ferrite_torch.lowering.builder import Builder, Unlowered
from ferrite_torch.lowering.elementwise import broadcast_point, packed_strides
from ferrite_torch.lowering.expressions import both, choose, ge, guarded, number_of
from ferrite_torch.lowering.products.attention import Operands, Scores, attend, positions_of, stored
from ferrite_torch.lowering.products.attention_gradients import LOG2_E, Outer, gradients
from ferrite_torch.lowering.products.scores_in_memory import scores_in_memory
from ferrite_torch.lowering.products.tiled_products import is_small
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.tensors import Point, Shape, Tensor, flat_position
from ferrite_torch.sizes.symbolic_sizes import sizes_of
from ferrite_torch.thresholds import ATTENTION
from ferrite_torch.torch_private.operators import arguments_by_name
from ferrite_torch.torch_private.seeded_ops import HOST_RESULTS


@dataclass(frozen=True, slots=True)
class Dropout:
    """Which shares are dropped: a pure function of a seed, so that forward and backward drop the same.

    Attributes:
        probability: of a share to be dropped, above 0; those that are kept are divided by the probability of that.
        seed: of all random numbers, i64; a share's is that of its place among all scores.
    """

    probability: float
    seed: Scalar


@dataclass(frozen=True, slots=True)
class PlainScores:
    """Scores are exponents as they are, or with a number added: a `ScoreFunction`.

    Attributes:
        is_causal: a query attends to the key of its own place and those before it.
        given: a mask of all scores, or of what is broadcast to them: numbers to add, or True where a score counts.
        shape: of all scores.
        dropout: of shares; None where all are kept.
    """

    is_causal: bool
    given: Tensor | None
    shape: Shape
    dropout: Dropout | None = None

    def weight(self, b: Builder, score: Scalar, scores: Scores) -> Scalar:
        """As in `ScoreFunction`."""
        if self.given is None or self.given.dtype is BOOL:
            return score
        return sc.apply("add", score, sc.cast(self._given_at(self.given, scores), F32))

    def change(self, b: Builder, score: Scalar, scores: Scores, gradient: Scalar) -> Scalar:
        """As in `ScoreFunction`."""
        return gradient

    def mask(self, b: Builder, scores: Scores) -> Scalar | None:
        """As in `ScoreFunction`."""
        *_, query, key = positions_of(scores)
        conditions = [sc.apply("ge", query, key)] if self.is_causal else []
        if self.given is not None and self.given.dtype is BOOL:
            conditions.append(self._given_at(self.given, scores))
        return both(*conditions) if conditions else None

    def share_scale(self, b: Builder, scores: Scores) -> Scalar | None:
        """As in `ScoreFunction`."""
        if self.dropout is None:
            return None
        p = self.dropout.probability
        number = sc.apply("rand", self.dropout.seed, number_of(flat_position(scores.position, self.shape)))
        return choose(ge(number, p), sc.const(0.0 if p >= 1 else 1 / (1 - p), F32), 0.0)

    def blocks(self, scores: Scores, row: Dim) -> BlockSparsity | None:
        """As in `ScoreFunction`."""
        return None

    def _given_at(self, mask: Tensor, scores: Scores) -> Scalar:
        return mask.at(broadcast_point(mask.shape, self.shape, scores.position))


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
ENDS = "_flash_attention.default", "_flash_attention_backward.default"
"""Ends of the names of those whose causal queries are the last ones of as many as there are keys, not the first."""


@lowers(*FORWARD)
def attention(b: Builder, *args: Any, **named: Any) -> Tensor | Sequence[Tensor | None]:
    """Returns the results of a forward op: attention, logarithms of sums, and for states of a generator the seed.

    Raises:
        Unlowered: it is left to the library, as where the logarithms lie otherwise than those of all queries.
    """
    call = arguments_by_name(b.node.target, args, named)
    _refuse_call(b, call)
    seed = b.seed() if call["dropout_p"] else sc.const(0, I64)
    given, fakes = _operands(call, seed), b.fake
    if isinstance(fakes, torch.Tensor):
        return stored(b, attend(b, given)[0], given, fakes)
    shape = sizes_of(fakes[1].shape)
    is_read = fakes[1].numel() != 0
    if is_read:
        _refuse_logarithms(shape, given)
    out, power, _ = attend(b, given)

    def natural(point: Point) -> Scalar:
        found = sc.apply("mul", power.at(point[:3]), sc.const(1 / LOG2_E, F32))
        if shape[2] == power.shape[2]:
            return found
        inside = sc.apply("lt", sc.index_value(point[2], I64), sc.const(power.shape[2], I64))
        return guarded(inside, found, math.inf)

    logarithms = b.loop(shape, F32, natural) if is_read else _zeros(b, fakes[1])
    rest = [_state(b, fake, seed) if isinstance(fake, torch.Tensor) else None for fake in fakes[2:]]
    return (stored(b, out, given, fakes[0]), logarithms, *rest)


@lowers(*BACKWARD)
def attention_backward(b: Builder, *args: Any, **named: Any) -> Sequence[Tensor | None]:
    """Returns the gradients of queries, keys and values, and of a mask where it is asked for.

    Raises:
        Unlowered: they are left to the library.
    """
    call, fakes = arguments_by_name(b.node.target, args, named), b.fake
    _refuse_call(b, call)
    seed = sc.const(0, I64)
    if call["dropout_p"]:
        state: Tensor = call["philox_seed"]
        seed = sc.cast(state.at(tuple(ix.constant(0) for _ in state.shape)), I64)
    given, logarithms = _operands(call, seed), call["logsumexp"]
    trailing = logarithms.shape[3:]
    _refuse_logarithms(logarithms.shape, given)

    def power(point: Point) -> Scalar:
        position = (*point, *(index * 0 for index in point[: len(trailing)]))
        return sc.apply("mul", logarithms.at(position), sc.const(LOG2_E, F32))

    (grad_out,) = (call[name] for name in ("grad_out", "grad_out_") if name in call)
    outer = Outer(call["out"], b.loop(given.query.shape[:3], F32, power), grad_out, None)
    found: list[Tensor | None] = [None] * (len(fakes) - 3)
    if any(call.get("grad_input_mask", ())[3:]):
        found = [_gradient_of_mask(b, given, outer, fakes)]
    return (*gradients(b, given, outer, fakes), *found)


def _gradient_of_mask(b: Builder, given: Operands, outer: Outer, fakes: Sequence[Any]) -> Tensor:
    """Returns the gradient of what is added to each score, which is that of the exponent of its weight."""
    each = scores_in_memory(b, given, outer, fakes)
    shape, kind = tuple(dim.size for dim in each.dims), dtype_of(fakes[3].dtype)
    return b.loop(shape, kind, lambda _: each.gradient, strides=packed_strides(fakes[3]))


def _refuse_call(b: Builder, call: Mapping[str, Any]) -> None:
    """Raises `Unlowered` where an op with these arguments is left to the library.

    Forward and backward decide alike, though they are compiled apart: by shapes and numbers alone.
    """
    query, key = call["query"], call["key"]
    if not (
        b.choices.products == "small"
        and query.dtype in HALVES
        and is_small(b, (*query.shape, key.shape[2]), 4, ATTENTION.small_flops)
        and not (call["dropout_p"] and (not b.choices.draws_numbers or _has_state_on_host(b)))
        and not (call["is_causal"] and str(b.node.target).endswith(ENDS) and query.shape[2] != key.shape[2])
    ):
        raise Unlowered("a library attention")


def _has_state_on_host(b: Builder) -> bool:
    """Returns whether the states of the generator that an op gives lie on the CPU: kernels make no such results."""
    return str(b.node.target).removesuffix(".default").removesuffix("_backward") + ".default" in HOST_RESULTS


def _operands(call: Mapping[str, Any], seed: Scalar) -> Operands:
    """Returns what scores are made of, by the arguments of an op; the seed is that of a dropout."""
    query, key, value, is_causal, scale = (call[name] for name in ("query", "key", "value", "is_causal", "scale"))
    dropout = Dropout(float(call["dropout_p"]), seed) if call["dropout_p"] else None
    mask: Tensor | None = next(filter(None, (call.get(name) for name in ("attn_mask", "attn_bias"))), None)
    function = PlainScores(is_causal, mask, (*query.shape[:3], key.shape[2]), dropout)
    return Operands(query, key, value, query.shape[3] ** -0.5 if scale is None else scale, function)


def _refuse_logarithms(shape: Shape, given: Operands) -> None:
    """Raises `Unlowered` unless logarithms of this shape are those of all queries, and maybe of some beyond them."""
    *batch, length = given.query.shape[:3]
    if shape[:2] != tuple(batch) or shape[2] < length:
        raise Unlowered("a library attention")


def _state(b: Builder, fake: torch.Tensor, seed: Scalar) -> Tensor:
    """Returns what stands for a state of a generator, or for what else nobody reads: the seed where it has room."""
    dtype = dtype_of(fake.dtype)
    if fake.dtype not in (torch.int64, torch.uint64):
        return _zeros(b, fake)
    return b.loop(sizes_of(fake.shape), dtype, lambda _: sc.cast(seed, dtype))


def _zeros(b: Builder, fake: Any) -> Tensor:
    dtype = dtype_of(fake.dtype)
    return b.loop(sizes_of(fake.shape), dtype, lambda _: sc.const(0, dtype))
