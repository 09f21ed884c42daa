"""Rows looked up in a table, alone and in bags.

A bag's rows are reduced where all bags are of one length, as they are when indices come as a matrix. Bags of any length
are read by the library, whose kernels loop as long as each needs; their gradients do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import I64
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar
from ferrite_torch.devices.dtypes import dtype_of
from ferrite_torch.lowering.builder import Builder, Lowered, Unlowered
from ferrite_torch.lowering.elementwise import refuse_opaque
from ferrite_torch.lowering.expressions import (
    absolute,
    both,
    call,
    choose,
    div,
    ge,
    gt,
    guarded,
    lt,
    mul,
    ne,
    number_of,
    sub,
)
from ferrite_torch.lowering.indexing.searching import insertion_position
from ferrite_torch.lowering.indexing.stores import accumulated, index_at
from ferrite_torch.lowering.known_contents import ramp
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.requirements import in_bounds
from ferrite_torch.lowering.shapes.creation import made
from ferrite_torch.lowering.tensors import Point, Tensor, grid_point
from ferrite_torch.sizes.symbolic_sizes import sizes_of

SUM, MEAN, MAX = 0, 1, 2


@lowers("aten.embedding.default")
def embedding(b: Builder, weight: Tensor, indices: Tensor, *_: Any, **__: Any) -> Tensor:
    refuse_opaque(weight.dtype)
    rows = weight.shape[0]

    def body(point: Point) -> Scalar:
        found = index_at(b, indices, point[:-1], rows), point[-1]
        return in_bounds(b, weight.at(found), found)

    return made(b, body)


@lowers("aten.embedding_dense_backward.default")
def embedding_dense_backward(
    b: Builder, grad: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    """Returns the rows of the gradient added up where the forward read them, in f32 or wider."""
    rows, width = sizes_of(b.fake.shape)
    frequency = _frequencies(b, indices, rows) if scale_grad_by_freq else None

    def body(point: Point) -> Scalar:
        value = grad.value_at(point)
        if frequency is None:
            return value
        return div(value, sc.cast(frequency.at((index_at(b, indices, point[:-1], rows),)), value.dtype))

    return accumulated(
        b,
        _zeros(b, (rows, width), grad),
        "add",
        (*indices.shape, width),
        lambda point: (index_at(b, indices, point[:-1], rows), point[-1]),
        body,
        None if padding_idx < 0 else lambda point: ne(sc.cast(indices.at(point[:-1]), I64), padding_idx),
    )


def _zeros(b: Builder, shape: tuple[int, ...], like: Tensor) -> Tensor:
    refuse_opaque(like.dtype)
    return b.loop(shape, like.dtype, lambda point: sc.const(0, like.dtype.compute))


def _frequencies(b: Builder, indices: Tensor, rows: int) -> Tensor:
    """Returns how often each row is named."""
    none = b.loop((rows,), I64, lambda point: sc.const(0, I64))
    one = sc.const(1, I64)
    return b.update(none, "add", indices.shape, lambda point: (index_at(b, indices, point, rows),), lambda point: one)


@lowers("aten.embedding_renorm.default")
def embedding_renorm(b: Builder, weight: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """Returns the table with the rows that are named, and are longer than ``max_norm``, shortened to it."""
    refuse_opaque(weight.dtype)
    rows, width = weight.shape
    power = float(norm_type)
    if power in (0.0, float("inf"), float("-inf")):
        raise Unlowered(f"rows measured by their {power}-norm")

    def bodies(point: Point, reduced: Point) -> tuple[Scalar]:
        value = absolute(weight.value_at((index_at(b, indices, point, rows), *reduced)))
        return (value if power == 1 else mul(value, value) if power == 2 else call("pow", value, power),)

    (sums,) = b.reduce("sum", indices.shape, (width,), bodies)

    def shortened(point: Point) -> Scalar:
        total = sums.at(point[:-1])
        norm = total if power == 1 else call("sqrt", total) if power == 2 else call("pow", total, 1 / power)
        value = weight.value_at((index_at(b, indices, point[:-1], rows), point[-1]))
        return choose(gt(norm, float(max_norm)), mul(value, div(float(max_norm), call("add", norm, 1e-7))), value)

    # Computed before any is stored: a row that is named twice must not be shortened twice.
    found = b.loop((*indices.shape, width), weight.dtype, shortened)
    return b.update(
        weight, "set", found.shape, lambda point: (index_at(b, indices, point[:-1], rows), point[-1]), found.at
    )


@dataclass(frozen=True, slots=True)
class Bags:
    """Which rows lie in which bag, for bags of one length.

    Attributes:
        indices: the rows, ``[count * length]``.
        count: of the bags.
        length: of each.
        rows: of the table.
        padding: a row that counts as none; negative if all count.
        builder: of the graph that the rows are named in.
    """

    indices: Tensor
    count: int
    length: int
    rows: int
    padding: int
    builder: Builder

    def flat(self, bag: Index, step: Index) -> Index:
        """Returns where a bag's row is named."""
        return bag * self.length + step

    def row(self, bag: Index, step: Index) -> Index:
        """Returns the row at a step in a bag."""
        return index_at(self.builder, self.indices, (self.flat(bag, step),), self.rows)

    def counts(self, bag: Index, step: Index) -> Scalar:
        """Returns whether the row at a step in a bag counts."""
        if self.padding < 0:
            return both()
        return ne(sc.cast(self.indices.at((self.flat(bag, step),)), I64), self.padding)


def _bags(b: Builder, weight: Tensor, indices: Tensor, offsets: Tensor, padding: int) -> Bags:
    start = ramp(b.definitions, offsets)
    count, total = offsets.shape[0], indices.shape[0]
    length = total // max(count, 1)
    if not length or length * count != total or start is not grid_point(offsets.shape)[0] * length:
        raise Unlowered("bags whose lengths are only known at run time")
    return Bags(indices, count, length, weight.shape[0], padding, b)


@lowers("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
def embedding_bag(
    b: Builder,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Lowered:
    """Returns reduced rows of bags, each index's bag, the lengths of bags, and the rows of the largest elements."""
    refuse_opaque(weight.dtype)
    if include_last_offset:
        raise Unlowered("bags whose lengths are only known at run time")
    bags = _bags(b, weight, indices, offsets, int(padding_idx))
    fakes = b.fake
    sizes = _bag_sizes(b, bags)
    if mode == MAX:
        output, largest = _largest(b, weight, bags, sizes)
    else:
        output, largest = _totals(b, weight, bags, sizes, per_sample_weights, mode), None

    def filled(fake: Any, body: Callable[[Point], Scalar]) -> Tensor:
        return b.loop(sizes_of(fake.shape), dtype_of(fake.dtype), body)

    return (
        output,
        filled(fakes[1], lambda point: number_of(point[0] // bags.length)),
        filled(fakes[2], lambda point: sizes(point[0])),
        filled(fakes[3], lambda point: sc.const(0, I64) if largest is None else largest.at(point)),
    )


def _bag_sizes(b: Builder, bags: Bags) -> Callable[[Index], Scalar]:
    """Returns a function that gives how many rows of a bag count."""
    if bags.padding < 0:
        return lambda bag: sc.const(bags.length, I64)
    (found,) = b.reduce(
        "sum", (bags.count,), (bags.length,), lambda point, reduced: (sc.cast(bags.counts(point[0], reduced[0]), I64),)
    )
    return lambda bag: found.at((bag,))


def _totals(
    b: Builder, weight: Tensor, bags: Bags, sizes: Callable[[Index], Scalar], scales: Tensor | None, mode: int
) -> Tensor:
    def bodies(point: Point, reduced: Point) -> tuple[Scalar]:
        value = weight.value_at((bags.row(point[0], reduced[0]), point[1]))
        if scales is not None:
            value = mul(value, sc.cast(scales.at((bags.flat(point[0], reduced[0]),)), value.dtype))
        counts = bags.counts(point[0], reduced[0])
        return (guarded(counts, value, 0),)

    (total,) = b.reduce("sum", (bags.count, weight.shape[1]), (bags.length,), bodies)

    def body(point: Point) -> Scalar:
        value = total.at(point)
        if mode == SUM:
            return value
        size = sc.cast(sizes(point[0]), value.dtype)
        return choose(gt(size, 0), div(value, size), 0)

    return b.loop(total.shape, weight.dtype, body)


def _largest(b: Builder, weight: Tensor, bags: Bags, sizes: Callable[[Index], Scalar]) -> tuple[Tensor, Tensor]:
    """Returns the largest element of each column of a bag's rows, and its row; zeros for a bag of no rows."""
    compute = weight.dtype.compute

    def bodies(point: Point, reduced: Point) -> tuple[Scalar, Scalar]:
        value = weight.value_at((bags.row(point[0], reduced[0]), point[1]))
        counts, step = bags.counts(point[0], reduced[0]), number_of(reduced[0])
        if sc.is_constant(counts, True):
            return value, step
        return guarded(counts, value, compute.lowest), choose(counts, step, 1 << 62)

    shape = (bags.count, weight.shape[1])
    value, step = b.reduce("argmax", shape, (bags.length,), bodies)

    def row(point: Point) -> Scalar:
        known = lt(step.at(point), bags.length)
        found = bags.indices.at((bags.flat(point[0], ix.indirect(step.at(point), bags.length)),))
        return guarded(known, sc.cast(found, I64), 0)

    rows = b.loop(shape, I64, row)
    return b.loop(shape, weight.dtype, lambda p: choose(gt(sizes(p[0]), 0), value.at(p), 0)), rows


def _bag_of(position: Index, offsets: Tensor, offset2bag: Tensor, count: int) -> tuple[Index, Scalar]:
    """Returns the bag that a position among the indices lies in, and whether it lies in one."""
    if offset2bag.numel:
        found = sc.cast(offset2bag.at((position,)), I64)
    else:
        before = insertion_position(
            lambda bag: sc.cast(offsets.at((ix.indirect(bag, offsets.shape[0]),)), I64),
            offsets.shape[0],
            number_of(position),
            right=True,
        )
        found = sub(before, 1)
    return ix.indirect(found, count), both(ge(found, 0), lt(found, count))


@lowers("aten._embedding_bag_backward.default")
def embedding_bag_backward(
    b: Builder,
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    max_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    """Returns the gradients of the bags added up where the forward read them, in f32 or wider."""
    if sparse:
        raise Unlowered("a sparse gradient")
    if scale_grad_by_freq and b.device == "cpu":
        raise Unlowered("gradients scaled by how often a row was read, which torch counts otherwise on the CPU")
    rows, width = sizes_of(b.fake.shape)
    zeros = _zeros(b, (rows, width), grad)
    if mode == MAX:
        return _largest_backward(b, grad, zeros, bag_size, max_indices)
    frequency = _frequencies(b, indices, rows) if scale_grad_by_freq else None

    def body(point: Point) -> Scalar:
        bag, _ = _bag_of(point[0], offsets, offset2bag, grad.shape[0])
        value = grad.value_at((bag, point[1]))
        if per_sample_weights is not None:
            value = mul(value, sc.cast(per_sample_weights.at(point[:1]), value.dtype))
        if mode == MEAN:
            value = div(value, sc.cast(bag_size.at((bag,)), value.dtype))
        if frequency is not None:
            value = div(value, sc.cast(frequency.at((index_at(b, indices, point[:1], rows),)), value.dtype))
        return value

    def condition(point: Point) -> Scalar:
        _, exists = _bag_of(point[0], offsets, offset2bag, grad.shape[0])
        return both(exists, ne(sc.cast(indices.at(point[:1]), I64), padding_idx)) if padding_idx >= 0 else exists

    return accumulated(
        b,
        zeros,
        "add",
        (indices.shape[0], width),
        lambda point: (index_at(b, indices, point[:1], rows), point[1]),
        body,
        condition,
    )


def _largest_backward(b: Builder, grad: Tensor, zeros: Tensor, bag_size: Tensor, max_indices: Tensor) -> Tensor:
    def condition(point: Point) -> Scalar:
        return both(gt(bag_size.at(point[:1]), 0), ge(max_indices.at(point), 0))

    return accumulated(
        b,
        zeros,
        "add",
        grad.shape,
        lambda point: (index_at(b, max_indices, point, zeros.shape[0]), point[1]),
        grad.value_at,
        condition,
    )


@lowers("aten._embedding_bag_per_sample_weights_backward.default")
def per_sample_weights_backward(
    b: Builder,
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    mode: int,
    padding_idx: int = -1,
) -> Tensor:
    """Returns for each index the product of the row that it names and the gradient of its bag."""
    refuse_opaque(weight.dtype)

    def bodies(point: Point, reduced: Point) -> tuple[Scalar]:
        bag, exists = _bag_of(point[0], offsets, offset2bag, grad.shape[0])
        value = weight.value_at((index_at(b, indices, point, weight.shape[0]), reduced[0]))
        value = mul(value, sc.cast(grad.at((bag, reduced[0])), value.dtype))
        if padding_idx >= 0:
            exists = both(exists, ne(sc.cast(indices.at(point), I64), padding_idx))
        return (guarded(exists, value, 0),)

    (total,) = b.reduce("sum", indices.shape, (weight.shape[1],), bodies)
    return b.loop(total.shape, dtype_of(b.fake.dtype), total.at)
