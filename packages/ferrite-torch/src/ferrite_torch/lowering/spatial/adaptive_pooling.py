"""Pooling to a given size: windows of nearly equal length that cover the input, and windows set at random."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import I64, DType
from ferrite_ir.language.graph import row_major
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import Size, Symbolic, floordiv, quotient
from ferrite_torch.lowering.builder import Builder, Lowered
from ferrite_torch.lowering.elementwise import refuse_opaque
from ferrite_torch.lowering.expressions import (
    add,
    both,
    choose,
    div,
    eq,
    guarded,
    is_between,
    mul,
    number_of,
    smaller,
    sub,
)
from ferrite_torch.lowering.indexing.stores import accumulated, index_at
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.spatial.pooling import largest_of_places, per_axis
from ferrite_torch.lowering.tensors import Point, Tensor
from ferrite_torch.sizes.symbolic_sizes import sizes_of


@dataclass(frozen=True, slots=True)
class Shares:
    """How ``inputs`` positions are shared out among ``outputs`` windows of nearly equal length that cover them.

    The positions of output ``o`` are those from ``floor(o * inputs / outputs)`` up to, and without,
    ``ceil((o + 1) * inputs / outputs)``.
    """

    inputs: Size
    outputs: Size

    def start(self, output: Index) -> Index:
        """Returns the first position of an output."""
        return ix.floordiv(output * self.inputs, self.outputs)

    def end(self, output: Index) -> Index:
        """Returns the position behind the last one of an output."""
        return ix.floordiv((output + 1) * self.inputs + (self.outputs - 1), self.outputs)

    @property
    def longest(self) -> Size:
        """Returns the length of the longest window, or what none is longer than where sizes are symbolic."""
        whole = quotient(self.inputs, self.outputs)
        if whole is not None:
            return whole
        if isinstance(self.inputs, Symbolic) or isinstance(self.outputs, Symbolic):
            # A window starts less than one position early and ends less than one late.
            return floordiv(self.inputs, self.outputs) + 2
        ends = (-(-(o + 1) * self.inputs // self.outputs) for o in range(self.outputs))
        return max(end - o * self.inputs // self.outputs for o, end in enumerate(ends))

    @property
    def reversed(self) -> Shares:
        """Returns the outputs that each input position goes to: the same rule the other way round."""
        return Shares(self.outputs, self.inputs)


def _shares(inputs: Sequence[int], outputs: Sequence[int], rank: int) -> tuple[Shares, ...]:
    # Where there is no output nothing is shared out, but what says how is written down all the same.
    return tuple(Shares(i, 1 if o == 0 else o) for i, o in zip(inputs[-rank:], outputs[-rank:], strict=True))


def _shared(
    shares: Sequence[Shares], window: Sequence[Index], reduced: Sequence[Index]
) -> tuple[tuple[Index, ...], Scalar]:
    """Returns the positions in windows and whether all belong to them."""
    positions: list[Index] = []
    tests: list[Scalar] = []
    for share, output, step in zip(shares, window, reduced, strict=True):
        position = share.start(output) + step
        positions.append(position)
        if quotient(share.inputs, share.outputs) is None:
            tests.append(is_between(share.end(output) - position, 1, None))
    return tuple(positions), both(*tests)


def _share_size(shares: Sequence[Shares], window: Sequence[Index], dtype: DType) -> Scalar:
    lengths = [number_of(share.end(output) - share.start(output)) for share, output in zip(shares, window, strict=True)]
    return sc.cast(reduce(mul, lengths), dtype)


@lowers("aten._adaptive_avg_pool2d.default")
def adaptive_avg_pool2d(b: Builder, x: Tensor, output_size: Any) -> Tensor:
    return _mean(b, x, 2)


@lowers("aten._adaptive_avg_pool3d.default")
def adaptive_avg_pool3d(b: Builder, x: Tensor, output_size: Any) -> Tensor:
    return _mean(b, x, 3)


def _mean(b: Builder, x: Tensor, rank: int) -> Tensor:
    shape = sizes_of(b.fake.shape)
    refuse_opaque(x.dtype)
    shares = _shares(x.shape, shape, rank)

    def bodies(point: Point, reduced: Point) -> tuple[Scalar]:
        positions, inside = _shared(shares, point[-rank:], reduced)
        value = x.value_at((*point[:-rank], *positions))
        return (guarded(inside, value, 0),)

    (total,) = b.reduce("sum", shape, tuple(share.longest for share in shares), bodies)
    return b.loop(
        shape, x.dtype, lambda point: div(total.at(point), _share_size(shares, point[-rank:], x.dtype.compute))
    )


@lowers("aten._adaptive_avg_pool2d_backward.default")
def adaptive_avg_pool2d_backward(b: Builder, grad: Tensor, x: Tensor) -> Tensor:
    return _mean_backward(b, grad, x, 2)


@lowers("aten._adaptive_avg_pool3d_backward.default")
def adaptive_avg_pool3d_backward(b: Builder, grad: Tensor, x: Tensor) -> Tensor:
    return _mean_backward(b, grad, x, 3)


def _mean_backward(b: Builder, grad: Tensor, x: Tensor, rank: int) -> Tensor:
    refuse_opaque(x.dtype)
    shares = _shares(x.shape, grad.shape, rank)
    there = tuple(share.reversed for share in shares)

    def bodies(point: Point, reduced: Point) -> tuple[Scalar]:
        window, inside = _shared(there, point[-rank:], reduced)
        value = grad.value_at((*point[:-rank], *window))
        value = div(value, _share_size(shares, window, value.dtype))
        return (guarded(inside, value, 0),)

    (total,) = b.reduce("sum", x.shape, tuple(share.longest for share in there), bodies)
    return b.loop(x.shape, x.dtype, total.at)


@lowers("aten.adaptive_max_pool2d.default")
def adaptive_max_pool2d(b: Builder, x: Tensor, output_size: Any) -> Lowered:
    return _largest(b, x, 2)


@lowers("aten.adaptive_max_pool3d.default")
def adaptive_max_pool3d(b: Builder, x: Tensor, output_size: Any) -> Lowered:
    return _largest(b, x, 3)


def _largest(b: Builder, x: Tensor, rank: int) -> Lowered:
    shares = _shares(x.shape, sizes_of(b.fake[0].shape), rank)
    return largest_of_places(
        b, x, tuple(share.longest for share in shares), lambda point, step: _shared(shares, point[-rank:], step)
    )


@lowers("aten.adaptive_max_pool2d_backward.default")
def adaptive_max_pool2d_backward(b: Builder, grad: Tensor, x: Tensor, indices: Tensor) -> Tensor:
    return _largest_backward(b, grad, x, indices, 2)


@lowers("aten.adaptive_max_pool3d_backward.default")
def adaptive_max_pool3d_backward(b: Builder, grad: Tensor, x: Tensor, indices: Tensor) -> Tensor:
    return _largest_backward(b, grad, x, indices, 3)


def _largest_backward(b: Builder, grad: Tensor, x: Tensor, indices: Tensor, rank: int) -> Tensor:
    """Returns for each input position the gradients of those of its windows that it is the largest of."""
    refuse_opaque(grad.dtype)
    there = tuple(share.reversed for share in _shares(x.shape, grad.shape, rank))
    strides = row_major(x.shape[-rank:])

    def bodies(point: Point, reduced: Point) -> tuple[Scalar]:
        window, inside = _shared(there, point[-rank:], reduced)
        position = (*point[:-rank], *window)
        mine = eq(indices.at(position), number_of(ix.linearize(point[-rank:], strides)))
        value = choose(mine, grad.value_at(position), 0)
        return (guarded(inside, value, 0),)

    (total,) = b.reduce("sum", x.shape, tuple(share.longest for share in there), bodies)
    return b.loop(x.shape, grad.dtype, total.at)


def _random_start(sample: Scalar, output: Index, inputs: int, outputs: int, size: int) -> Index:
    """Returns where a window set at random starts.

    The last one ends with the input; the others start at ``floor((output + sample) * spacing) - floor(sample *
    spacing)``, where ``spacing`` lies the starts evenly (Graham, "Fractional max-pooling", arXiv 1412.6071).
    """
    last = inputs - size
    if outputs == 1:
        return ix.constant(last)
    spacing = div(sc.const(float(last), sample.dtype), float(outputs - 1))
    moved = mul(add(sc.cast(number_of(output), sample.dtype), sample), spacing)
    start = sub(sc.cast(moved, I64), sc.cast(mul(sample, spacing), I64))
    start = choose(eq(number_of(output), outputs - 1), last, smaller(start, last))
    return ix.indirect(start, last + 1)


def _fractional(b: Builder, x: Tensor, rank: int, kernel_size: Any, samples: Tensor, order: Sequence[int]) -> Lowered:
    """Returns the pooling whose windows start at random; ``order`` names the sample of each pooled axis."""
    refuse_opaque(x.dtype, samples.dtype)
    size = per_axis(kernel_size, rank)
    outputs = sizes_of(b.fake[0].shape)[-rank:]
    inputs = x.shape[-rank:]

    def pool(point: Point) -> tuple[Index, ...]:
        image = point[:-rank] if x.ndim == rank + 2 else (ix.constant(0), *point[:-rank])
        return tuple(
            _random_start(samples.value_at((*image, ix.constant(order[axis]))), point[axis - rank], *sizes)
            for axis, sizes in enumerate(zip(inputs, outputs, size, strict=True))
        )

    def positions(point: Point, step: Sequence[Index]) -> tuple[tuple[Index, ...], Scalar]:
        return tuple(start + s for start, s in zip(pool(point), step, strict=True)), both()

    return largest_of_places(b, x, size, positions)


@lowers("aten.fractional_max_pool2d.default")
def fractional_max_pool2d(b: Builder, x: Tensor, kernel_size: Any, output_size: Any, samples: Tensor) -> Lowered:
    return _fractional(b, x, 2, kernel_size, samples, (1, 0))


@lowers("aten.fractional_max_pool3d.default")
def fractional_max_pool3d(b: Builder, x: Tensor, kernel_size: Any, output_size: Any, samples: Tensor) -> Lowered:
    return _fractional(b, x, 3, kernel_size, samples, (0, 1, 2))


@lowers("aten.fractional_max_pool2d_backward.default", "aten.fractional_max_pool3d_backward.default")
def fractional_max_pool_backward(
    b: Builder, grad: Tensor, x: Tensor, kernel_size: Any, output_size: Any, indices: Tensor
) -> Tensor:
    """Returns the gradients added up where the largest elements were: windows set at random may overlap anyhow."""
    refuse_opaque(grad.dtype)
    rank = len(output_size)
    pooled = x.shape[-rank:]
    zeros = b.loop(x.shape, grad.dtype, lambda point: sc.const(0, grad.dtype.compute))

    def positions(point: Point) -> Point:
        return (*point[:-rank], *ix.delinearize(index_at(b, indices, point, math.prod(pooled)), pooled))

    return accumulated(b, zeros, "add", grad.shape, positions, grad.value_at)
