"""`flex_attention` as a definition of attention: what a user does to scores, and which of them count, as expressions.

Torch hands two functions to a compiler as graphs of ops on single numbers: ``score_mod(score, b, h, q, kv, *captured)``
and ``mask_mod(b, h, q, kv, *captured)``. A `BlockMask` beside them lists, for each block of queries, the blocks of keys
in which the mask has a say, and those in which every key counts; and for each block of keys the blocks of queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.attend import FACTORS, SOFTMAX, Attend, BlockList, BlockSparsity, ScoreProduct
from ferrite_ir.language.dtypes import BOOL, F32, I32
from ferrite_ir.language.graph import TensorType
from ferrite_ir.language.index import Dim, Index
from ferrite_ir.language.scalar import Scalar, is_constant, replace_loads
from ferrite_ir.language.sizes import Size, is_static
from ferrite_scheduler.model.contractions import LEAST_EXTENT
from ferrite_torch.graphs.functions.scalar_graphs import ScalarGraph
from ferrite_torch.lowering.builder import Builder, Unlowered
from ferrite_torch.lowering.elementwise import packed_strides
from ferrite_torch.lowering.requirements import existing
from ferrite_torch.lowering.tensors import Tensor, grid_dims, whole_tensor
from ferrite_torch.thresholds import ATTENTION

OF_QUERIES, OF_KEYS = slice(2, 6), slice(6, 10)
"""Places in torch's tuple of a block mask: lists of keys for blocks of queries, and of queries for blocks of keys."""


@dataclass(frozen=True, slots=True)
class BlockMask:
    """A block mask as torch hands it over.

    Attributes:
        lists: of blocks, torch's tuple from its begin.
        queries, keys: of a block.
        function: which scores count.
        captured: what the function takes besides.
    """

    lists: tuple[Any, ...]
    queries: Any
    keys: Any
    function: torch.fx.GraphModule
    captured: Sequence[Any]

    @classmethod
    def of(cls, blocks: Sequence[Any], function: torch.fx.GraphModule, captured: Sequence[Any]) -> BlockMask:
        """Returns the block mask in a call's tuple, whose last three items are sizes of blocks and the function."""
        *lists, queries, keys, _ = blocks
        return cls(tuple(lists), queries, keys, function, captured)


@dataclass(frozen=True, slots=True)
class Inputs:
    """What scores are made of.

    Attributes:
        query, key, value: ``[batch, heads, length, head]``, keys and values of one head for several of queries.
        scale: of scores.
        score: what a user makes of a score.
        captured: what that function takes besides.
        mask: which scores count.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    score: torch.fx.GraphModule
    captured: Sequence[Any]
    mask: BlockMask


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
    def of(cls, given: Inputs, query: Dim, key: Dim) -> Scores:
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


def lower_attention(b: Builder, given: Inputs) -> tuple[Tensor, ...]:
    """Returns the results of a call: the attention, and of each query the logarithm to base 2 of its sum, its maximum.

    Raises:
        Unlowered: there is no kernel for it.
    """
    refuse_operands(given)
    dims = grid_dims((*given.query.shape[:3], given.value.shape[3]))
    scores = Scores.of(given, dims[2], Dim("r0", given.key.shape[2]))
    depth = Dim("depth0", given.query.shape[3])
    name = new_name(b)
    left, right = scores.of_query(given.query, depth.index), scores.of_key(given.key, depth.index)
    product = ScoreProduct(name, left, right, depth)
    weight = score_of(b, given, name, scores)
    shapes = [tuple(dim.size for dim in dims), *[tuple(dim.size for dim in dims[:3])] * 2]
    values = b.new_values([TensorType(F32, shape) for shape in shapes], numbered=True)
    b.definitions.append(
        Attend(
            values,
            SOFTMAX,
            dims,
            scores.key,
            (product,),
            (weight,),
            (scores.of_key(given.value, dims[3].index),),
            mask_of(b, given.mask, scores),
            blocks_of(given.mask, scores, scores.query),
            b.origins,
        )
    )
    made, fakes = [whole_tensor(value) for value in values], b.fake
    out = b.loop(made[0].shape, given.query.dtype, made[0].at, strides=packed_strides(fakes[0]))
    return out, made[1], made[2]


def refuse_operands(given: Inputs) -> None:
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


def scaled_score(given: Inputs, name: str) -> Scalar:
    """Returns a score as a user's function gets it, of the product of a query and a key."""
    return sc.apply("mul", sc.load(name, (), F32), sc.const(given.scale, F32))


def score_of(b: Builder, given: Inputs, name: str, scores: Scores) -> Scalar:
    """Returns what a user makes of a score, in f32; ``name`` is that of the product of queries and keys.

    Raises:
        Unlowered: there is no expression for it.
    """
    numbers = (scaled_score(given, name), *positions_of(scores))
    (found,) = read_numbers(b, "score modification", given.score, numbers, given.captured)[:1]
    if found is None:
        raise Unlowered("its score modification gives no number")
    return sc.cast(found, F32)


def mask_of(b: Builder, mask: BlockMask, scores: Scores) -> Scalar | None:
    """Returns which scores count; None where all do.

    Raises:
        Unlowered: there is no expression for it.
    """
    (found,) = read_numbers(b, "mask", mask.function, positions_of(scores), mask.captured)[:1]
    if found is None:
        raise Unlowered("its mask gives no number")
    found = sc.cast(found, BOOL)
    return None if is_constant(found, value=True) else found


def positions_of(scores: Scores) -> tuple[Scalar, ...]:
    """Returns batch, head, query and key of a score as numbers."""
    return tuple(sc.index_value(index, I32) for index in scores.position)


def read_numbers(
    b: Builder, what: str, function: torch.fx.GraphModule, numbers: Sequence[Scalar], captured: Sequence[Any]
) -> list[Scalar | None]:
    """Returns what a function of single numbers gives, None where it gives nothing.

    Args:
        b: the graph that it stands in.
        what: what to call it in messages.
        function: takes the numbers, and then what it has captured.
        numbers: expressions of the graph.
        captured: tensors and numbers of the graph.

    Raises:
        Unlowered: there is no expression for a number, or it is no number.
    """
    graph = ScalarGraph(b.device, what)
    operands = [graph.operand(f"number{position}", number.dtype, ()) for position, number in enumerate(numbers)]
    known = {operand.value.name: number for operand, number in zip(operands, numbers, strict=True)}
    results = graph.results(function, [*operands, *map(graph.captured, captured)])

    def number(result: Any) -> Scalar | None:
        if result is None:
            return None
        if not isinstance(result, Tensor):
            raise Unlowered(f"its {what} gives {result}, which is no tensor")
        if result.shape != ():
            return None
        # A place is one that a load gives, which a kernel checks, only as long as the numbers are such loads.
        element = replace_loads(graph.outer(graph.element(result, ())), lambda load: existing(b, load, known))
        return replace_loads(element, lambda load: known.get(load.source))

    return [number(result) for result in results]


def blocks_of(mask: BlockMask, scores: Scores, row: Dim) -> BlockSparsity | None:
    """Returns the blocks of scores that a block mask lists for blocks of queries, or of keys; None for all.

    Blocks that programs do not fit in are left out of account, and so is a mask of one block: the function says the
    same of each score.

    Args:
        mask: the block mask.
        scores: the dims of scores.
        row: the dim of them that lists are for: queries or keys.
    """
    of_queries = row is scores.query
    rows, columns = (mask.queries, mask.keys) if of_queries else (mask.keys, mask.queries)
    count, positions, whole_count, whole_places = mask.lists[OF_QUERIES if of_queries else OF_KEYS]
    if not isinstance(rows, int) or not isinstance(columns, int) or rows % LEAST_EXTENT or columns % LEAST_EXTENT:
        return None
    if count is None or tuple(positions.shape[2:]) == (1, 1):
        return None
    masked = _list_of(count, positions, rows, scores, row, "slot0")
    whole = None if whole_count is None else _list_of(whole_count, whole_places, rows, scores, row, "slot1")
    return BlockSparsity(rows, columns, masked, whole)


def _list_of(count: Tensor, positions: Tensor, rows: int, scores: Scores, row: Dim, name: str) -> BlockList:
    batch, head = (_along(dim, size) for dim, size in zip((scores.batch, scores.head), count.shape, strict=False))
    at = (batch, head, ix.floordiv(row.index, rows))
    slot = Dim(name, positions.shape[3])
    return BlockList(slot, count.at(at), positions.at((*at, slot.index)))


def _along(dim: Dim, size: Size) -> Index:
    """Returns the place in lists of this extent that are for all points of a dim, or for each one of them.

    Raises:
        Unlowered: they are for other points.
    """
    if size == dim.size:
        return dim.index
    if size != 1:
        raise Unlowered(f"its block mask has lists for {size} batches or heads, of which there are {dim.size}")
    return ix.constant(0)
