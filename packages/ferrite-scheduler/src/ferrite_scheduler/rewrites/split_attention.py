"""Attention of few rows: heads that share keys are rows of one program, and keys are split over programs.

A program of attention goes through keys and values with a block of rows. A few queries, as in decoding, make few
programs; and heads of queries that share a head of keys, ``g`` of them, go through the same ones each for itself.

    packed    [h, i | j]   becomes   [h // g, (h % g, i) | j]             keys are read once for all of a group
    split     [h, i | j]   becomes   [s, h, i | blocks s, s + parts, … of j]

Parts leave the attention over their own keys, and the logarithm of the sum of their weights, which says what each
counts for; they are combined in order (Dao and others, "Flash-Decoding for long-context inference", 2023). Every part
takes one block in so many, so that all have as much to do whatever a list of blocks leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ferrite_ir.language import index as ix
from ferrite_ir.language.attend import Attend, BlockList, BlockSparsity
from ferrite_ir.language.dtypes import F32, I32
from ferrite_ir.language.graph import Definition, Graph, Loop, Reduction, TensorType, Value
from ferrite_ir.language.index import Dim, Index
from ferrite_ir.language.powers_of_two import next_power_of_two, previous_power_of_two
from ferrite_ir.language.scalar import Scalar, apply, cast, const, index_value, load, substitute_dims
from ferrite_ir.language.sizes import ceildiv, hint, is_static, product
from ferrite_ir.language.values import Origins
from ferrite_scheduler.model.contractions import LEAST_EXTENT
from ferrite_scheduler.model.intermediates import fresh_dim, new_value, partial_value
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.target import Target


def split_attention(graph: Graph, target: Target, policy: Policy) -> Graph:
    """Returns the graph with such attention packed and split; the same object where nothing changes."""
    if not any(isinstance(definition, Attend) and definition.is_softmax for definition in graph.definitions):
        return graph
    types = {name: value.type for name, value in graph.values.items()}
    definitions: list[Definition] = []
    for definition in graph.definitions:
        is_candidate = isinstance(definition, Attend) and definition.is_softmax and is_static(definition.row.size)
        definitions += _rewritten(definition, types, target, policy) if is_candidate else (definition,)  # type: ignore[arg-type]
    return graph if definitions == list(graph.definitions) else replace(graph, definitions=tuple(definitions))


def _rewritten(attend: Attend, types: dict[str, TensorType], target: Target, policy: Policy) -> Iterator[Definition]:
    """Yields an attention, or what computes the same."""
    packed, points = _packed(attend, policy)
    parts = _parts(packed, target, policy)
    if parts < 2 and packed is attend:
        yield attend
        return
    part = fresh_dim("s", parts, _names(packed))
    if parts > 1:
        blocks = _blocks_of_part(packed, part, policy)
        packed, points = replace(packed, dims=(part, *packed.dims), blocks=blocks), (part.index, *points)
    result, *of_rows = attend.results
    shape = [dim.size for dim in packed.dims]
    values = [partial_value(result, "part", shape, types)]
    values += [partial_value(value, "part", shape[:-1], types) for value in of_rows]
    if parts > 1 and not of_rows:  # what parts are combined by
        values.append(partial_value(result, "log", shape[:-1], types))
    yield replace(packed, results=tuple(values))
    reads = [load(values[0].name, points, F32), *(load(value.name, points[:-1], F32) for value in values[1:])]
    yield from _combined(attend, part, reads, types) if parts > 1 else _read(attend, reads)


# --- heads that share keys --------------------------------------------------------------------------------------------


def _packed(attend: Attend, policy: Policy) -> tuple[Attend, tuple[Index, ...]]:
    """Returns an attention with the heads of a group as rows, and where a point of the one before lies in its results.

    It is the same one where no heads share keys, or rows of one head are enough for a program.
    """
    same = attend, tuple(dim.index for dim in attend.dims)
    if attend.row.size >= policy.attention_rows:
        return same
    for head in reversed(attend.batch):
        group = _group(attend, head)
        if group > 1:
            return _with_rows_of(attend, head, group)
    return same


def _group(attend: Attend, head: Dim) -> int:
    """Returns how many neighbours along a dim have the same keys and values, and the same lists of blocks.

    1 also where lists differ from row to row, so that rows of two heads would not have one.
    """
    lists = () if attend.blocks is None else attend.blocks.lists
    of_rows = [part for each in lists for part in (each.count, each.position)]
    if not is_static(head.size) or any(attend.row in part.dims for part in of_rows):
        return 1
    shared = [*(product.right for product in attend.products), *attend.factors, *of_rows]
    for group in range(int(head.size), 1, -1):
        if head.size % group == 0:
            member = fresh_dim("g", group, _names(attend))
            mapping = {head: _head_of(attend, head, group).index * group + member.index}
            if not any(member in substitute_dims(body, mapping).dims for body in shared):
                return group
    return 1


def _head_of(attend: Attend, head: Dim, group: int) -> Dim:
    """Returns the dim of the groups of heads."""
    return fresh_dim("h", head.size // group, _names(attend))


def _with_rows_of(attend: Attend, head: Dim, group: int) -> tuple[Attend, tuple[Index, ...]]:
    """Returns what `_packed` does, with groups of so many heads."""
    rows = attend.row.size
    outer, row = _head_of(attend, head, group), fresh_dim("i", group * rows, _names(attend))
    mapping = {head: outer.index * group + ix.floordiv(row.index, rows), attend.row: ix.mod(row.index, rows)}
    memo: dict[Scalar, Scalar] = {}
    packed = attend.with_bodies(tuple(substitute_dims(body, mapping, memo) for body in attend.bodies))
    blocks = packed.blocks
    if blocks is not None:
        blocks = replace(blocks, rows=max(LEAST_EXTENT, next_power_of_two(int(row.size))))  # all have one list
    batch = tuple(outer if dim is head else dim for dim in attend.batch)
    packed = replace(packed, dims=(*batch, row, attend.column), blocks=blocks)
    lead = (ix.floordiv(head.index, group) if dim is head else dim.index for dim in attend.batch)
    return packed, (*lead, ix.mod(head.index, group) * rows + attend.row.index, attend.column.index)


def _names(attend: Attend) -> tuple[Dim, ...]:
    return (*attend.dims, attend.along, *attend.locals)


# --- parts of the keys ------------------------------------------------------------------------------------------------


def _parts(attend: Attend, target: Target, policy: Policy) -> int:
    """Returns over how many programs the keys of a row are split, a power of two; 1 where there are enough of them."""
    programs = hint(product(dim.size for dim in attend.batch)) * -(-int(attend.row.size) // policy.attention_rows)
    wanted = target.processors * policy.attention_programs
    shortest = max(policy.attention_keys, 0 if attend.blocks is None else attend.blocks.columns)
    most = min(wanted // max(1, programs), hint(attend.along.size) // shortest, policy.attention_parts)
    return previous_power_of_two(most) if most > 1 else 1


def _blocks_of_part(attend: Attend, part: Dim, policy: Policy) -> BlockSparsity:
    """Returns the blocks of one part: of each list those whose places leave its number when divided by the parts."""
    parts, blocks = part.size, attend.blocks
    if blocks is None:
        columns = policy.attention_key_block
        number = ceildiv(attend.along.size, columns)
        slot = fresh_dim("k", ceildiv(number, parts), (*_names(attend), part))
        count = ix.floordiv(ix.constant(number) - part.index + (parts - 1), parts)
        position = slot.index * parts + part.index
        rows = max(LEAST_EXTENT, next_power_of_two(int(attend.row.size)))
        return BlockSparsity(rows, columns, BlockList(slot, index_value(count, I32), index_value(position, I32)))
    masked, *whole = (_every_so_many(attend, each, part, name) for each, name in zip(blocks.lists, "kw", strict=False))
    return replace(blocks, masked=masked, whole=whole[0] if whole else None)


def _every_so_many(attend: Attend, listed: BlockList, part: Dim, letter: str) -> BlockList:
    """Returns the part of a list that one program has."""
    parts, length = int(part.size), listed.slot.size
    slot = fresh_dim(letter, ceildiv(length, parts), (*_names(attend), part))
    behind = apply("sub", cast(listed.count, I32), index_value(part.index, I32))
    count = apply("truncdiv", apply("add", behind, const(parts - 1, I32)), const(parts, I32))
    # Places behind the end, which only the last round of some parts would have, are not counted.
    place = ix.mod(slot.index * parts + part.index, length)
    return BlockList(slot, count, substitute_dims(listed.position, {listed.slot: place}))


# --- what becomes of them ---------------------------------------------------------------------------------------------


def _read(attend: Attend, found: Sequence[Scalar]) -> Iterator[Definition]:
    """Yields loops that put the results where they were before."""
    for number, (result, body) in enumerate(zip(attend.results, found, strict=True)):
        dims = attend.dims if number == 0 else attend.dims[:-1]
        yield Loop((result,), dims, (body,), attend.origins)


class _Weights:
    """What parts count for: powers of the logarithms of their sums, relative to the greatest of these.

    Args:
        like: names what is made after itself, and says where it lies.
        dims: at whose points.
        part: counts the parts.
        log: the logarithm of a part, to base 2.
        types: of all values; what is made is entered.
        origins: of what is made.
    """

    def __init__(
        self, like: Value, dims: tuple[Dim, ...], part: Dim, log: Scalar, types: dict[str, TensorType], origins: Origins
    ) -> None:
        self._like, self._dims, self._part, self._types, self._origins = like, dims, part, types, origins
        self.definitions: list[Reduction] = []
        top = self.reduced("top", "max", log)
        self.base = apply("where", apply("eq", top, const(-math.inf, F32)), const(0.0, F32), top)
        self.weight = apply("exp2", apply("sub", log, self.base))
        self.total = self.reduced("total", "sum", self.weight)

    def reduced(self, name: str, combine: str, body: Scalar) -> Scalar:
        """Returns what is combined of all parts."""
        shape = tuple(dim.size for dim in self._dims)
        value = new_value(
            f"{self._like.name}_{name}", TensorType(F32, shape, device=self._like.type.device), self._types
        )
        self.definitions.append(Reduction((value,), combine, self._dims, (self._part,), (body,), self._origins))
        return load(value.name, [dim.index for dim in self._dims], F32)


def _combined(attend: Attend, part: Dim, reads: Sequence[Scalar], types: dict[str, TensorType]) -> Iterator[Definition]:
    """Yields what combines the results of parts.

    Every column adds up for itself what they count for, so that all of it is one kernel; of a row these are few.
    """
    result, *of_rows = attend.results
    weights = _Weights(result, attend.dims, part, reads[1], types, attend.origins)
    mixed = weights.reduced("mixed", "sum", apply("mul", reads[0], weights.weight))
    is_empty = apply("eq", weights.total, const(0.0, F32))
    share = apply("where", is_empty, const(0.0, F32), apply("div", mixed, weights.total))
    yield from weights.definitions
    yield Loop((result,), attend.dims, (share,), attend.origins)
    if of_rows:
        weights = _Weights(of_rows[0], attend.dims[:-1], part, reads[1], types, attend.origins)
        power = apply("add", weights.base, apply("log2", weights.total))
        yield from weights.definitions
        yield Loop((of_rows[0],), attend.dims[:-1], (power,), attend.origins)
    if len(of_rows) > 1:
        yield Reduction((of_rows[1],), "max", attend.dims[:-1], (part,), (reads[2],), attend.origins)
