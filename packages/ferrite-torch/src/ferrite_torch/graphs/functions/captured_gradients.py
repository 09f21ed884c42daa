"""Gradients of tensors that a user's function of scores has captured: what all scores add at places of them.

bias[h, q - k + n]      a number of each score at a place of its own: added up by atomic updates
slopes[h]               the same place for all of a head: these are summed first, in one order
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import F32, I64
from ferrite_ir.language.graph import row_major
from ferrite_ir.language.index import Dim
from ferrite_ir.language.index_substitution import substitute
from ferrite_ir.language.scalar import Scalar
from ferrite_torch.devices.dtypes import dtype_of
from ferrite_torch.lowering.builder import Builder
from ferrite_torch.lowering.elementwise import packed_strides
from ferrite_torch.lowering.indexing.stores import accumulated
from ferrite_torch.lowering.products.scores_in_memory import EachScore
from ferrite_torch.lowering.tensors import Point, Shape, Tensor, grid_point
from ferrite_torch.sizes.symbolic_sizes import sizes_of


@dataclass(frozen=True, slots=True)
class Additions:
    """Numbers that are added at places of a tensor: of each the places along its axes, and the number."""

    shape: Shape
    parts: tuple[tuple[tuple[Scalar, ...], Scalar], ...]


def added_up(b: Builder, found: Scalar | Additions | None, each: EachScore, fake: Any) -> Tensor:
    """Returns the gradient of a captured tensor: of all scores, what is added at places of it.

    Where a place does not depend on a dim of scores, they are summed along it before.

    Raises:
        Unlowered: deterministic algorithms are asked for.
    """
    dtype, shape = dtype_of(fake.dtype), sizes_of(fake.shape)
    total = b.loop(shape, F32, lambda _: sc.const(0.0, F32), strides=row_major(shape))
    parts = () if found is None else found.parts if isinstance(found, Additions) else (((), found),)
    for places, number in parts:
        where = [ix.indirect(sc.cast(place, I64), size, wraps=True) for place, size in zip(places, shape, strict=True)]
        kept = tuple(dim for dim in each.dims if any(dim in index.dims for index in where))
        rest = tuple(dim for dim in each.dims if dim not in kept)
        sums = _summed(b, sc.cast(number, F32), kept, rest)
        own = dict(zip(kept, grid_point(sums.shape), strict=True))
        moved = [substitute(index, own) for index in where]
        total = accumulated(b, total, "add", sums.shape, lambda _, moved=moved: moved, sums.at)  # type: ignore[misc]
    return b.loop(shape, dtype, total.at, strides=packed_strides(fake))


def _summed(b: Builder, number: Scalar, kept: Sequence[Dim], rest: Sequence[Dim]) -> Tensor:
    """Returns the sums of a number of each score along some dims, by all others."""
    shape, lengths = (tuple(dim.size for dim in dims) for dims in (kept, rest))

    def at(point: Point, inside: Point) -> Scalar:
        return number.with_dims(dict(zip((*kept, *rest), (*point, *inside), strict=True)))

    if not rest:
        return b.loop(shape, F32, lambda point: at(point, ()))
    return b.reduce("sum", shape, lengths, lambda point, inside: (at(point, inside),))[0]
