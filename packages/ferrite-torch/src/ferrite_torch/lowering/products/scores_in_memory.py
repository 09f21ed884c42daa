"""Gradients of what is made of scores one by one, as numbers that are added to them: there is one for each score.

No sum of a row or a column gives these, so that both products of which scores and their gradients are made lie in
memory, in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.attend import ScoreProduct
from ferrite_ir.language.dtypes import F32
from ferrite_ir.language.index import Dim
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import Size
from ferrite_torch.devices.facts import product_precision
from ferrite_torch.lowering.builder import Builder
from ferrite_torch.lowering.expressions import guarded
from ferrite_torch.lowering.products.attention import Operands, Scores
from ferrite_torch.lowering.products.attention_gradients import Outer, Rows, group_of, weights_of
from ferrite_torch.lowering.tensors import Point, Shape, Tensor, grid_dims


@dataclass(frozen=True, slots=True)
class EachScore:
    """What there is of each score.

    Attributes:
        dims: batch, head, query and key.
        score: before anything is made of it.
        gradient: of the exponent of its weight; 0 where it does not count.
    """

    dims: tuple[Dim, ...]
    score: Scalar
    gradient: Scalar


def scores_in_memory(b: Builder, given: Operands, outer: Outer, fakes: Sequence[Any]) -> EachScore:
    """Returns each score and its gradient; ``fakes`` begin with those of queries and keys."""
    dims = grid_dims((*given.query.shape[:3], given.key.shape[2]))
    scores = Scores.of(given, dims[2], dims[3])
    weights = weights_of(b, given, outer, Rows.of(b, outer), scores, by_keys=False)
    known = {each.name: _sums(b, each, dims, group_of(given), fakes).at(scores.position) for each in weights.products}
    mask = given.function.mask(b, scores)
    score, gradient = (
        sc.replace_loads(each, lambda load: known.get(load.source)) for each in (weights.scaled, weights.exponent)
    )
    return EachScore(dims, score, gradient if mask is None else guarded(mask, gradient, 0.0))


def _sums(b: Builder, product: ScoreProduct, dims: tuple[Dim, ...], group: Size, fakes: Sequence[Any]) -> Tensor:
    """Returns all sums of a product: from a kernel of tiles, of float32 that is not to be rounded by the library.

    Heads of queries that share one of keys are rows of one matrix.
    """
    (batch, heads, queries, keys), points = tuple(dim.size for dim in dims), product.depth.size
    shape = (batch, heads if group == 1 else int(heads) // int(group), group, queries, keys)

    def left(point: Point, inside: Point) -> Scalar:
        place = (point[0], point[1] * group + point[2], point[3], *inside)
        return product.left.with_dims(dict(zip((*dims[:3], product.depth), place, strict=True)))

    def right(point: Point, inside: Point) -> Scalar:
        place = (point[0], point[1] * group, point[4], *inside)
        return product.right.with_dims(dict(zip((*dims[:2], dims[3], product.depth), place, strict=True)))

    if product.left.dtype is not F32 or product_precision() == "tf32":
        total = b.contract(shape, (points,), left, right, fast=product.left.dtype is F32)
    else:
        total = _library_sums(b, shape, points, (left, right), fakes)
    return total.viewed(
        (batch, heads, queries, keys),
        lambda point: (point[0], ix.floordiv(point[1], group), ix.mod(point[1], group), *point[2:]),
    )


def _library_sums(
    b: Builder, shape: Shape, points: Size, factors: tuple[Callable[[Point, Point], Scalar], ...], fakes: Sequence[Any]
) -> Tensor:
    """Returns what `Builder.contract` does of float32, with the members of groups as rows, by a call of the library."""
    batch, heads, group, queries, keys = shape
    left, right = factors
    none = ix.constant(0)

    def row(p: Point) -> Scalar:
        place = (ix.floordiv(p[0], heads), ix.mod(p[0], heads), ix.floordiv(p[1], queries), ix.mod(p[1], queries), none)
        return left(place, p[2:])

    def column(p: Point) -> Scalar:
        return right((ix.floordiv(p[0], heads), ix.mod(p[0], heads), none, none, p[2]), p[1:2])

    operands = (
        b.loop((batch * heads, group * queries, points), F32, row),
        b.loop((batch * heads, points, keys), F32, column),
    )
    (first, second, third), last = fakes[0].shape[:3], fakes[1].shape[2]
    fake = fakes[0].new_empty((first * second // group, group * third, last), dtype=torch.float32)
    found: Tensor = b.extern("aten.bmm.default", operands, None, fake)
    return found.viewed(shape, lambda p: (p[0] * heads + p[1], p[2] * queries + p[3], p[4]))
