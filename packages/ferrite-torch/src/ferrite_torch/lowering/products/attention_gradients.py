"""The gradients of attention as definitions of attention.

With ``p`` the share that a query gives to a key, ``c`` what shares are multiplied by (0 where dropout drops one), ``g``
the gradient of its result and ``dp = g * value`` summed up, the gradient of the exponent of a weight is
``p * (c * dp - delta)``, where ``delta`` is one number for each query, the sum of ``result * g``. What made the
exponent of a score makes of that the gradient ``ds`` of the score itself (`ScoreFunction.change`):

    of queries   sum over keys     of ds * key
    of keys      sum over queries  of ds * query
    of values    sum over queries  of c * p * g

So the scores are made once more in each of two kernels (Dao and others, "FlashAttention", 2022).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ferrite_ir.language import scalar as sc
from ferrite_ir.language.attend import SUM, Attend, ScoreProduct
from ferrite_ir.language.dtypes import F32
from ferrite_ir.language.graph import TensorType
from ferrite_ir.language.index import Dim, Index
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import Size, is_static
from ferrite_torch.lowering.builder import Builder, Unlowered
from ferrite_torch.lowering.elementwise import packed_strides
from ferrite_torch.lowering.products.attention import (
    Operands,
    Scores,
    depth_of,
    new_name,
    refuse_operands,
    scaled_score,
)
from ferrite_torch.lowering.tensors import Point, Shape, Tensor, grid_dims, whole_tensor

LOG2_E = math.log2(math.e)


@dataclass(frozen=True, slots=True)
class Outer:
    """What the results and their gradients are.

    Attributes:
        out, grad_out: the attention and its gradient.
        power, grad_power: of each query the logarithm to base 2 of the sum of its weights, and its gradient, or None.
    """

    out: Tensor
    power: Tensor
    grad_out: Tensor
    grad_power: Tensor | None


def gradients(b: Builder, given: Operands, outer: Outer, fakes: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of queries, keys and values, which lie as their fakes do.

    Raises:
        Unlowered: there is no kernel for them.
    """
    refuse_operands(given)
    if outer.grad_out.dtype is not given.query.dtype or outer.grad_out.device:
        raise Unlowered("the gradient of its result is of another type")
    rows = Rows.of(b, outer)
    queries = _gradient_of_queries(b, given, outer, rows)
    keys, values = _gradients_of_keys(b, given, outer, rows)
    return (
        _stored(b, queries, given.query, fakes[0], 1),
        _stored(b, keys, given.key, fakes[1], group_of(given)),
        _stored(b, values, given.value, fakes[2], group_of(given)),
    )


@dataclass(frozen=True, slots=True)
class Rows:
    """What there is one of for each query: the logarithm of its sum, 0 where all is masked, and ``delta``."""

    power: Tensor
    delta: Tensor

    @classmethod
    def of(cls, b: Builder, outer: Outer) -> Rows:
        """Returns what there is of each query, by the results and their gradients."""
        *shape, length = outer.out.shape

        def terms(point: Point, inside: Point) -> tuple[Scalar, ...]:
            position = (*point, *inside)
            return (sc.apply("mul", outer.out.value_at(position), outer.grad_out.value_at(position)),)

        (sums,) = b.reduce("sum", tuple(shape), (length,), terms)

        def delta(point: Point) -> Scalar:
            if outer.grad_power is None:
                return sums.at(point)
            other = sc.apply("mul", outer.grad_power.value_at(point), sc.const(LOG2_E, F32))
            return sc.apply("sub", sums.at(point), other)

        def power(point: Point) -> Scalar:
            found = outer.power.at(point)
            is_masked = sc.apply("eq", found, sc.const(-math.inf, F32))
            return sc.apply("where", is_masked, sc.const(0.0, F32), found)

        return cls(b.loop(tuple(shape), F32, power), b.loop(tuple(shape), F32, delta))


@dataclass(frozen=True, slots=True)
class Weights:
    """The products of which gradients are made.

    Attributes:
        products: of queries and keys, and of gradients and values.
        share: of a key, scaled as the result has it.
        exponent: the gradient of the exponent of its weight.
        scaled: its score before anything is made of it.
    """

    products: tuple[ScoreProduct, ScoreProduct]
    share: Scalar
    exponent: Scalar
    scaled: Scalar


def weights_of(b: Builder, given: Operands, outer: Outer, rows: Rows, scores: Scores, *, by_keys: bool) -> Weights:
    """Returns what scores and their gradients are; the rows of the score matrix are keys, or queries."""
    first, second = depth_of(given.query, 0), depth_of(given.value, 1)
    score, gradient = new_name(b), new_name(b)
    pairs = (
        (score, scores.of_query(given.query, first.index), scores.of_key(given.key, first.index), first),
        (gradient, scores.of_query(outer.grad_out, second.index), scores.of_key(given.value, second.index), second),
    )
    products = tuple(
        ScoreProduct(name, right, left, depth) if by_keys else ScoreProduct(name, left, right, depth)
        for name, left, right, depth in pairs
    )
    scaled = scaled_score(given, score)
    made = given.function.weight(b, scaled, scores)
    share = sc.apply("exp2", sc.apply("sub", _in_powers_of_two(made), scores.of_query(rows.power)))
    found, scale = sc.load(gradient, (), F32), given.function.share_scale(b, scores)
    found = found if scale is None else sc.apply("mul", found, scale)
    exponent = sc.apply("mul", share, sc.apply("sub", found, scores.of_query(rows.delta)))
    share = share if scale is None else sc.apply("mul", share, scale)
    return Weights((products[0], products[1]), share, exponent, scaled)


def _change(b: Builder, given: Operands, scores: Scores, weights: Weights) -> Scalar:
    """Returns the gradient of a product of a query and a key."""
    change = given.function.change(b, weights.scaled, scores, weights.exponent)
    return sc.apply("mul", change, sc.const(given.scale, F32))


def _in_powers_of_two(weight: Scalar) -> Scalar:
    """Returns a weight times ``log2(e)``, which a constant factor takes in."""
    if weight.op == "mul" and weight.args[1].op == "const":
        return sc.apply("mul", weight.args[0], sc.const(weight.args[1].value * LOG2_E, F32))
    return sc.apply("mul", weight, sc.const(LOG2_E, F32))


def _gradient_of_queries(b: Builder, given: Operands, outer: Outer, rows: Rows) -> Tensor:
    dims = grid_dims(given.query.shape)
    scores = Scores.of(given, dims[2], Dim("r0", given.key.shape[2]))
    weights = weights_of(b, given, outer, rows, scores, by_keys=False)
    factor = scores.of_key(given.key, dims[3].index)
    (found,) = _sums(
        b, given, scores, scores.query, dims, weights.products, [(_change(b, given, scores, weights), factor)]
    )
    return found


def _gradients_of_keys(b: Builder, given: Operands, outer: Outer, rows: Rows) -> tuple[Tensor, Tensor]:
    """Returns the gradients of keys and values, for each head of queries: in one definition if they are as long."""
    lead = (*given.query.shape[:2], given.key.shape[2])
    key_dims, value_dims = (grid_dims((*lead, tensor.shape[3])) for tensor in (given.key, given.value))
    scores = Scores.of(given, Dim("r0", given.query.shape[2]), key_dims[2])
    weights = weights_of(b, given, outer, rows, scores, by_keys=True)
    of_keys = (_change(b, given, scores, weights), scores.of_query(given.query, key_dims[3].index))
    of_values = (weights.share, scores.of_query(outer.grad_out, value_dims[3].index))
    if key_dims == value_dims:
        keys, values = _sums(b, given, scores, scores.key, key_dims, weights.products, [of_keys, of_values])
        return keys, values
    (keys,) = _sums(b, given, scores, scores.key, key_dims, weights.products, [of_keys])
    (values,) = _sums(b, given, scores, scores.key, value_dims, weights.products[:1], [of_values])
    return keys, values


def _sums(
    b: Builder,
    given: Operands,
    scores: Scores,
    row: Dim,
    dims: Sequence[Dim],
    products: Sequence[ScoreProduct],
    terms: Sequence[tuple[Scalar, Scalar]],
) -> list[Tensor]:
    """Returns the sums of weights times factors along what is not the row of the score matrix, one for each term."""
    along = scores.key if row is scores.query else scores.query
    kind = TensorType(F32, tuple(dim.size for dim in dims))
    values = b.new_values([kind] * len(terms), numbered=True)
    weights, factors = zip(*terms, strict=True)
    condition, blocks = given.function.mask(b, scores), given.function.blocks(scores, row)
    b.definitions.append(
        Attend(values, SUM, tuple(dims), along, tuple(products), weights, factors, condition, blocks, None, b.origins)
    )
    return [whole_tensor(value) for value in values]


def group_of(given: Operands) -> Size:
    """Returns how many heads of queries share one of keys."""
    queries, keys = given.query.shape[1], given.key.shape[1]
    return 1 if queries == keys else int(queries) // int(keys)


def _stored(b: Builder, found: Tensor, like: Tensor, fake: Any, group: Size) -> Tensor:
    """Returns a gradient as its caller gets it: added up over heads, or batches, that share a key."""
    shape: Shape = like.shape
    is_shared = shape[0] == 1 and found.shape[0] != 1
    if group != 1 or is_shared:
        batches: Size = found.shape[0] if is_shared else 1
        sizes = tuple(size for size in (batches, group) if size != 1)
        if not all(is_static(size) for size in sizes[1:]):
            raise Unlowered("how many heads of queries share one of keys is not known")

        def terms(point: Point, inside: Point) -> tuple[Scalar, ...]:
            batch: Index = inside[0] if is_shared else point[0]
            head = point[1] * group + inside[-1] if group != 1 else point[1]
            return (found.at((batch, head, *point[2:])),)

        (found,) = b.reduce("sum", shape, sizes, terms)
    return b.loop(shape, like.dtype, found.at, strides=packed_strides(fake))
