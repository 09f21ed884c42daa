"""Attention as a definition: a user's own (`graphs.functions.flex_attention`) and torch's op (`small_attention`).

They differ in what is made of scores, and which of them count: a `ScoreFunction`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.attend import FACTORS, SOFTMAX, Attend, BlockSparsity, ScoreProduct
from ferrite_ir.language.dtypes import F32, I32
from ferrite_ir.language.graph import TensorType
from ferrite_ir.language.index import Dim, Index
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import is_static
from ferrite_torch.lowering.builder import Builder, Unlowered
from ferrite_torch.lowering.elementwise import packed_strides
from ferrite_torch.lowering.tensors import Tensor, grid_dims, whole_tensor
from ferrite_torch.thresholds import ATTENTION


class ScoreFunction(Protocol):
    """What is made of scores, and which of them count."""

    def weight(self, b: Builder, score: Scalar, scores: Scores) -> Scalar:
        """Returns the exponent of a weight, in f32, of a score that is scaled."""

    def change(self, b: Builder, score: Scalar, scores: Scores, gradient: Scalar) -> Scalar:
        """Returns the gradient of a score, in f32, of that of its weight's exponent."""

    def mask(self, b: Builder, scores: Scores) -> Scalar | None:
        """Returns which scores count; None where all do."""

    def share_scale(self, b: Builder, scores: Scores) -> Scalar | None:
        """Returns what the share of a key is multiplied by, in f32, once shares are normalised; None for 1."""

    def blocks(self, scores: Scores, row: Dim) -> BlockSparsity | None:
        """Returns the blocks in which any counts, listed for blocks of queries or of keys; None for all."""


@dataclass(frozen=True, slots=True)
class Operands:
    """What scores are made of.

    Attributes:
        query, key, value: ``[batch, heads, length, head]``, keys and values of one head for several of queries.
        scale: of scores.
        function: what is made of them.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    function: ScoreFunction


@dataclass(frozen=True, slots=True)
class Scores:
    """The dims of scores: ``batch``, ``head`` and ``query``, and ``key``, whose batch and head are given as indices."""

    batch: Dim
    head: Dim
    query: Dim
    key: Dim
    key_batch: Index
    key_head: Index

    @classmethod
    def of(cls, given: Operands, query: Dim, key: Dim) -> Scores:
        """Returns the scores of queries and keys that are counted by these dims.

        Raises:
            Unlowered: which keys belong to which queries is known only when the graph runs.
        """
        queries, keys = given.query.shape, given.key.shape
        batch, head = grid_dims(queries[:2])
        key_batch = batch.index if keys[0] != 1 or queries[0] == 1 else ix.constant(0)
        if queries[1] == keys[1]:
            return cls(batch, head, query, key, key_batch, head.index)
        if not is_static(queries[1]) or not is_static(keys[1]):
            raise Unlowered("how many heads of queries share one of keys is not known")
        return cls(batch, head, query, key, key_batch, ix.floordiv(head.index, int(queries[1]) // int(keys[1])))

    @property
    def position(self) -> tuple[Index, Index, Index, Index]:
        """Returns batch, head, query and key of a score."""
        return self.batch.index, self.head.index, self.query.index, self.key.index

    def of_query(self, tensor: Tensor, *rest: Index) -> Scalar:
        """Returns an element of what there is for each query."""
        return tensor.at((*self.position[:3], *rest))

    def of_key(self, tensor: Tensor, rest: Index) -> Scalar:
        """Returns an element of what there is for each key."""
        return tensor.at((self.key_batch, self.key_head, self.key.index, rest))


def attend(b: Builder, given: Operands) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the attention, and of each query the logarithm to base 2 of its sum, and its maximum, all in f32.

    Raises:
        Unlowered: there is no kernel for it.
    """
    refuse_operands(given)
    dims = grid_dims((*given.query.shape[:3], given.value.shape[3]))
    scores = Scores.of(given, dims[2], Dim("r0", given.key.shape[2]))
    depth, name = depth_of(given.query, 0), new_name(b)
    left, right = scores.of_query(given.query, depth.index), scores.of_key(given.key, depth.index)
    weight = given.function.weight(b, scaled_score(given, name), scores)
    shapes = [tuple(dim.size for dim in dims), *[tuple(dim.size for dim in dims[:3])] * 2]
    values = b.new_values([TensorType(F32, shape) for shape in shapes], numbered=True)
    b.definitions.append(
        Attend(
            values,
            SOFTMAX,
            dims,
            scores.key,
            (ScoreProduct(name, left, right, depth),),
            (weight,),
            (scores.of_key(given.value, dims[3].index),),
            given.function.mask(b, scores),
            given.function.blocks(scores, scores.query),
            given.function.share_scale(b, scores),
            b.origins,
        )
    )
    out, power, greatest = map(whole_tensor, values)
    return out, power, greatest


def stored(b: Builder, out: Tensor, given: Operands, fake: Any) -> Tensor:
    """Returns an attention in the type of its operands, which lies as its fake does."""
    return b.loop(out.shape, given.query.dtype, out.at, strides=packed_strides(fake))


def refuse_operands(given: Operands) -> None:
    """Raises `Unlowered` unless there are kernels for these queries, keys and values."""
    tensors = (given.query, given.key, given.value)
    if any(tensor.dtype is not given.query.dtype or tensor.device for tensor in tensors):
        raise Unlowered("its operands are of several types, or on several devices")
    if given.query.dtype not in FACTORS:
        raise Unlowered(f"there are kernels for bf16, f16 and f32, not for {given.query.dtype}")
    for size in (given.query.shape[3], given.value.shape[3]):
        if not is_static(size) or not 0 < size <= ATTENTION.longest_head:
            raise Unlowered(f"heads have {size} elements, of which a program holds {ATTENTION.longest_head} at most")
    if any(size == 0 for tensor in tensors for size in tensor.shape):
        raise Unlowered("it has no queries, or no keys")


def new_name(b: Builder) -> str:
    """Returns a name for what a definition makes inside, which no value has."""
    (value,) = b.new_values((TensorType(F32, ()),))
    return value.name


def depth_of(tensor: Tensor, number: int) -> Dim:
    """Returns the dim that a product is summed along: that of a head."""
    return Dim(f"depth{number}", tensor.shape[3])


def positions_of(scores: Scores) -> tuple[Scalar, ...]:
    """Returns batch, head, query and key of a score as numbers."""
    return tuple(sc.index_value(index, I32) for index in scores.position)


def scaled_score(given: Operands, name: str) -> Scalar:
    """Returns a score before anything is made of it, of the product of a query and a key."""
    return sc.apply("mul", sc.load(name, (), F32), sc.const(given.scale, F32))
