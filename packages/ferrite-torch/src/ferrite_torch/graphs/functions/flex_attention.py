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
from ferrite_ir.language.attend import BlockList, BlockSparsity
from ferrite_ir.language.dtypes import BOOL, F32, I32
from ferrite_ir.language.index import Dim, Index
from ferrite_ir.language.scalar import Scalar, is_constant, replace_loads
from ferrite_ir.language.sizes import Size
from ferrite_scheduler.model.contractions import LEAST_EXTENT
from ferrite_torch.graphs.functions.captured_gradients import Additions, added_up
from ferrite_torch.graphs.functions.scalar_graphs import ScalarGraph, Scattered
from ferrite_torch.lowering.builder import Builder, Unlowered
from ferrite_torch.lowering.products.attention import Operands, Scores, attend, positions_of, stored
from ferrite_torch.lowering.products.attention_gradients import Outer, gradients
from ferrite_torch.lowering.products.scores_in_memory import scores_in_memory
from ferrite_torch.lowering.requirements import existing
from ferrite_torch.lowering.tensors import Tensor

OF_QUERIES, OF_KEYS = slice(2, 6), slice(6, 10)
"""Places in torch's tuple of a block mask: lists of keys for blocks of queries, and of queries for blocks of keys."""
OF_SCORE, OF_CAPTURED = 0, 5
"""Places among what a derivative gives: the gradient of a score, and the first of those of what is captured."""


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
class UsersFunction:
    """What a user's functions make of scores: a `ScoreFunction`.

    Attributes:
        score: makes of a score the exponent of its weight.
        derivative: makes of a score, its place and the gradient of what became of it, that of the score.
        captured: what both take besides.
        block_mask: which scores count.
    """

    score: torch.fx.GraphModule
    derivative: torch.fx.GraphModule | None
    captured: Sequence[Any]
    block_mask: BlockMask

    def weight(self, b: Builder, score: Scalar, scores: Scores) -> Scalar:
        """As in `ScoreFunction`.

        Raises:
            Unlowered: there is no expression for it.
        """
        numbers = (score, *positions_of(scores))
        (found,) = read_numbers(b, "score modification", self.score, numbers, self.captured)
        if not isinstance(found, Scalar):
            raise Unlowered("its score modification gives no number")
        return sc.cast(found, F32)

    def change(self, b: Builder, score: Scalar, scores: Scores, gradient: Scalar) -> Scalar:
        """As in `ScoreFunction`.

        Raises:
            Unlowered: there is no expression for it.
        """
        (found,) = self.derivatives(b, score, positions_of(scores), gradient, (OF_SCORE,))
        return _unrounded(found) if isinstance(found, Scalar) else sc.const(0.0, F32)

    def derivatives(
        self, b: Builder, score: Scalar, positions: Sequence[Scalar], gradient: Scalar, asked: Sequence[int]
    ) -> list[Scalar | Additions | None]:
        """Returns those that are asked for of the gradients of a score, of its place, and of what is captured.

        Raises:
            Unlowered: there is no expression for one of them.
        """
        assert self.derivative is not None
        return read_numbers(b, "derivative", self.derivative, (score, *positions, gradient), self.captured, asked)

    def mask(self, b: Builder, scores: Scores) -> Scalar | None:
        """As in `ScoreFunction`.

        Raises:
            Unlowered: there is no expression for it.
        """
        mask = self.block_mask
        (found,) = read_numbers(b, "mask", mask.function, positions_of(scores), mask.captured)
        if not isinstance(found, Scalar):
            raise Unlowered("its mask gives no number")
        found = sc.cast(found, BOOL)
        return None if is_constant(found, value=True) else found

    def share_scale(self, b: Builder, scores: Scores) -> Scalar | None:
        """As in `ScoreFunction`."""
        return None

    def blocks(self, scores: Scores, row: Dim) -> BlockSparsity | None:
        """Returns the blocks of scores that the block mask lists for blocks of queries, or of keys; None for all.

        Blocks that programs do not fit in are left out of account, and so is a mask of one block: the function says the
        same of each score.
        """
        mask, of_queries = self.block_mask, row is scores.query
        rows, columns = (mask.queries, mask.keys) if of_queries else (mask.keys, mask.queries)
        count, positions, whole_count, whole_places = mask.lists[OF_QUERIES if of_queries else OF_KEYS]
        if not isinstance(rows, int) or not isinstance(columns, int) or rows % LEAST_EXTENT or columns % LEAST_EXTENT:
            return None
        if count is None or tuple(positions.shape[2:]) == (1, 1):
            return None
        masked = _list_of(count, positions, rows, scores, row, "slot0")
        whole = None if whole_count is None else _list_of(whole_count, whole_places, rows, scores, row, "slot1")
        return BlockSparsity(rows, columns, masked, whole)


def lower_attention(b: Builder, given: Operands) -> tuple[Tensor, ...]:
    """Returns the results of a call: the attention, and of each query the logarithm to base 2 of its sum, its maximum.

    Raises:
        Unlowered: there is no kernel for it.
    """
    fakes = b.fake
    out, power, greatest = attend(b, given)
    return stored(b, out, given, fakes[0]), power, greatest


def lower_gradients(b: Builder, given: Operands, outer: Outer, wanted: Sequence[int]) -> tuple[Any, ...]:
    """Returns the gradients of queries, keys and values, and those of what the score modification has captured.

    Args:
        b: the graph.
        given: what scores are made of.
        outer: the results and their gradients.
        wanted: places of captured tensors whose gradients are read; there are none of others.

    Raises:
        Unlowered: there is no kernel for them.
    """
    fakes = b.fake
    captured: list[Tensor | None] = [None] * len(fakes[3])
    if wanted:
        each, function = scores_in_memory(b, given, outer, fakes), given.function
        assert isinstance(function, UsersFunction), "users' functions capture tensors"
        positions = tuple(sc.index_value(dim.index, I32) for dim in each.dims)
        asked = [OF_CAPTURED + place for place in wanted]
        found = function.derivatives(b, each.score, positions, each.gradient, asked)
        for place, added in zip(wanted, found, strict=True):
            captured[place] = added_up(b, added, each, fakes[3][place])
    return (*gradients(b, given, outer, fakes), tuple(captured))


def read_numbers(
    b: Builder,
    what: str,
    function: torch.fx.GraphModule,
    numbers: Sequence[Scalar],
    captured: Sequence[Any],
    asked: Sequence[int] = (0,),
) -> list[Scalar | Additions | None]:
    """Returns what a function of single numbers gives: numbers, additions to zeros, or None where it gives nothing.

    Args:
        b: the graph that it stands in.
        what: what to call it in messages.
        function: takes the numbers, and then what it has captured.
        numbers: expressions of the graph.
        captured: tensors and numbers of the graph.
        asked: places among the results.

    Raises:
        Unlowered: there is no expression for a number, or it is no number.
    """
    graph = ScalarGraph(b.device, what)
    operands = [graph.operand(f"number{position}", number.dtype, ()) for position, number in enumerate(numbers)]
    known = {operand.value.name: number for operand, number in zip(operands, numbers, strict=True)}
    results = graph.results(function, [*operands, *map(graph.captured, captured)])

    def number(result: Tensor) -> Scalar:
        # A place is one that a load gives, which a kernel checks, only as long as the numbers are such loads.
        element = replace_loads(graph.outer(graph.element(result, ())), lambda load: existing(b, load, known))
        return replace_loads(element, lambda load: known.get(load.source))

    def read(result: Any) -> Scalar | Additions | None:
        match result:
            case None:
                return None
            case Scattered():
                parts = ((tuple(map(number, places)), number(added)) for places, added in result.parts)
                return Additions(result.shape, tuple(parts))
            case Tensor() if result.shape == ():
                return number(result)
        raise Unlowered(f"its {what} gives {result}, which is no number")

    return [read(results[place]) for place in asked]


def _unrounded(change: Scalar) -> Scalar:
    """Returns the gradient of a score in f32; it is rounded once more where it meets its factor."""
    if change.op in ("cast", "rounded") and change.dtype.is_narrow_float and change.args[0].dtype is F32:
        exact: Scalar = change.args[0]
        return exact
    return sc.cast(change, F32)


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
