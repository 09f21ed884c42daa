"""Evaluates one row of an attention."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ferrite_ir.language import sizes
from ferrite_ir.language.attend import Attend, BlockList
from ferrite_ir.language.dtypes import F32
from ferrite_ir.language.index import Dim

from .points import Point
from .rounding import round_to
from .tensors import Tensor, empty


class AttendedRow:
    """The weights of one row, at the points that its mask and its blocks allow.

    Args:
        attend: the definition.
        memory: tensors by name.
        position: the values of the dims of the batch and the row; others are ignored.
        symbols: values of the symbolic sizes.
    """

    def __init__(
        self, attend: Attend, memory: Mapping[str, Tensor], position: Mapping[Dim, int], symbols: dict[str, int]
    ) -> None:
        self._attend, self._symbols = attend, symbols
        self._position = {dim: position[dim] for dim in attend.dims[:-1]}
        self._products = {name: empty(F32, (), ()) for name in sorted(attend.names)}
        self._memory = {**memory, **self._products}
        self._weights = [(at, self._weights_at(at)) for at in self._allowed()]
        self._highest = max((weights[0] for _, weights in self._weights), default=-math.inf)

    def _at(self, extra: Mapping[Dim, int]) -> Point:
        return Point(self._memory, {**self._position, **extra}, self._symbols)

    def _size(self, dim: Dim) -> int:
        return sizes.evaluate(dim.size, self._symbols)

    def _allowed(self) -> Iterator[int]:
        """Yields the points of ``along`` that count, in order."""
        attend, blocks = self._attend, self._attend.blocks
        masked = whole = None
        if blocks is not None:
            masked = self._blocks(blocks.masked)
            whole = set() if blocks.whole is None else self._blocks(blocks.whole)
        for at in range(self._size(attend.along)):
            if blocks is not None and whole is not None and masked is not None:
                if at // blocks.columns in whole:
                    yield at
                    continue
                if at // blocks.columns not in masked:
                    continue
            if attend.mask is None or self._at({attend.along: at}).scalar(attend.mask):
                yield at

    def _blocks(self, found: BlockList) -> set[int]:
        count = int(self._at({}).scalar(found.count))
        return {int(self._at({found.slot: slot}).scalar(found.position)) for slot in range(count)}

    def _weights_at(self, at: int) -> tuple[float, ...]:
        attend = self._attend
        for product in attend.products:
            points = (self._at({attend.along: at, product.depth: d}) for d in range(self._size(product.depth)))
            total = sum(point.scalar(product.left) * point.scalar(product.right) for point in points)
            self._products[product.name].write((), round_to(total, F32))
        point = self._at({attend.along: at})
        return tuple(float(point.scalar(weight)) for weight in attend.weights)

    def _scale_at(self, at: int) -> float:
        attend = self._attend
        return 1.0 if attend.scale is None else float(self._at({attend.along: at}).scalar(attend.scale))

    def results(self, position: Mapping[Dim, int]) -> tuple[float, ...]:
        """Returns what a definition gives at a point of this row: all that its kind has, whatever is asked for."""
        attend = self._attend
        factors = [
            [
                float(self._at({attend.column: position[attend.column], attend.along: at}).scalar(f))
                for f in attend.factors
            ]
            for at, _ in self._weights
        ]
        if not attend.is_softmax:
            terms = [
                [w * f for w, f in zip(weights, row, strict=True)]
                for (_, weights), row in zip(self._weights, factors, strict=True)
            ]
            return tuple(sum(column) for column in zip(*terms, strict=True)) or (0.0,) * len(attend.weights)
        if self._highest == -math.inf:
            return 0.0, -math.inf, -math.inf
        powers = [math.exp(weights[0] - self._highest) for _, weights in self._weights]
        total = sum(powers)
        scales = [self._scale_at(at) for at, _ in self._weights]
        result = sum(p * s * row[0] for p, s, row in zip(powers, scales, factors, strict=True)) / total
        return result, math.log2(total) + self._highest * math.log2(math.e), self._highest * math.log2(math.e)
