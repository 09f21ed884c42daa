"""Positions that index tensors name, and elements stored at them or combined with what is there.

A position is an `indirect` index that carries the extent of the axis it goes into.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import F32, F64, I32, I64, U8, DType
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import is_provably_at_most
from ferrite_torch.lowering.builder import Builder, Unlowered
from ferrite_torch.lowering.elementwise import Element, refuse_opaque
from ferrite_torch.lowering.expressions import call, larger
from ferrite_torch.lowering.requirements import checked_index
from ferrite_torch.lowering.tensors import Point, Tensor


def index_at(b: Builder | None, index: Tensor, point: Point, size: int, *, wraps: bool = False) -> Index:
    """Returns the position that an index tensor names at a point, in an axis of this size.

    It is checked that there is such a position; without a builder that is known.
    """
    named = sc.cast(index.at(point), I64)
    return ix.indirect(named if b is None else checked_index(b, named, size, wraps=wraps), size, wraps)


def accumulated(
    b: Builder,
    x: Tensor,
    mode: str,
    shape: Sequence[int],
    indices: Callable[[Point], Sequence[Index]],
    body: Callable[[Point], Scalar],
    condition: Callable[[Point], Scalar] | None = None,
) -> Tensor:
    """Returns ``x`` with the body combined into it at each point of ``shape``.

    Raises:
        Unlowered: see `accumulated_widely`.
    """
    summed = accumulated_widely(b, x, mode, shape, indices, body, condition)
    return summed if summed.dtype is x.dtype else b.loop(x.shape, x.dtype, summed.at)


def accumulated_widely(
    b: Builder,
    x: Tensor,
    mode: str,
    shape: Sequence[int],
    indices: Callable[[Point], Sequence[Index]],
    body: Callable[[Point], Scalar],
    condition: Callable[[Point], Scalar] | None = None,
) -> Tensor:
    """Returns ``x`` with the body combined into it at each point of ``shape``, not rounded to its own type yet.

    It is done in a type wide enough for atomics and for the sum: f32, i32 or wider.

    Raises:
        Unlowered: torch is to be deterministic and the order of float operations is not, or the type has no atomics.
    """
    refuse_opaque(x.dtype)
    if x.dtype.is_float and mode in ("add", "mul"):
        refuse_disorder("atomic additions" if mode == "add" else "atomic multiplications")
    if x.dtype.kind == "uint" and x.dtype is not U8:
        raise Unlowered(f"an atomic {mode} of {x.dtype}")
    wide = x.dtype if x.dtype in (I64, F64) else F32 if x.dtype.is_float else I32
    start = x if wide is x.dtype else b.loop(x.shape, wide, x.at)
    return b.update(start, mode, shape, indices, lambda point: sc.cast(body(point), wide), condition)


def refuse_disorder(what: str) -> None:
    """Checks that results may depend on the order in which threads come.

    Raises:
        Unlowered: deterministic algorithms are asked for.
    """
    if torch.are_deterministic_algorithms_enabled():
        raise Unlowered(f"{what} have no fixed order, and deterministic algorithms are asked for")


def overwritten(
    b: Builder,
    x: Tensor,
    shape: Sequence[int],
    indices: Callable[[Point], Sequence[Index]],
    body: Callable[[Point], Scalar],
    source: Element,
) -> Tensor:
    """Returns ``x`` with the body, which reads ``source``, stored at each point of ``shape``.

    Raises:
        Unlowered: torch is to be deterministic, and two different elements may go to one position.
    """
    refuse_opaque(x.dtype)
    if isinstance(source, Tensor) and not is_provably_at_most(source.numel, 1):
        refuse_disorder("stores to one place")
    return b.update(x, "set", shape, indices, body)


@dataclass(frozen=True, slots=True)
class Stores:
    """Where elements go, and which: ``indices`` and ``body`` by the point of ``shape``."""

    shape: tuple[int, ...]
    indices: Callable[[Point], Sequence[Index]]
    body: Callable[[Point], Scalar]


_MODES = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}
"""How elements are combined in memory for each reduction."""


def reduced_into(b: Builder, x: Tensor, reduce: str, stores: Stores, *, includes_self: bool) -> Tensor:
    """Returns ``x`` with elements reduced into it; ``includes_self`` says whether what was there counts as one.

    Raises:
        Unlowered: see `accumulated_widely`.
    """
    refuse_opaque(x.dtype)
    mode = _MODES[reduce]
    target = x
    if not includes_self:
        # What was there gives way to a number that changes no result, wherever something is combined into it.
        neutral = _neutral(mode, x.dtype)
        copy = b.fresh_copy(x)  # the source may be x itself, and is read once more below
        target = b.update(copy, "set", stores.shape, stores.indices, lambda _: neutral)
    if reduce != "mean":
        return accumulated(b, target, mode, stores.shape, stores.indices, stores.body)
    # Sums of integers wrap around in their own type before they are divided.
    add_up = accumulated_widely if x.dtype.is_float else accumulated
    total = add_up(b, target, mode, stores.shape, stores.indices, stores.body)
    return _averaged(b, x, total, stores, includes_self=includes_self)


def _averaged(b: Builder, x: Tensor, total: Tensor, stores: Stores, *, includes_self: bool) -> Tensor:
    """Returns sums divided by how many elements went into each; those of integers are rounded down."""
    start = b.loop(x.shape, I32, lambda _: sc.const(int(includes_self), I32))
    counts = b.update(start, "add", stores.shape, stores.indices, lambda _: sc.const(1, I32))

    def quotient(point: Point) -> Scalar:
        summed = total.value_at(point)
        count = sc.cast(larger(counts.at(point), 1), summed.dtype)
        return call("div" if summed.dtype.is_float else "floordiv", summed, count)

    return b.loop(x.shape, x.dtype, quotient)


def _neutral(mode: str, dtype: DType) -> Scalar:
    """Returns the number that changes no result when it is combined with others."""
    if mode in ("add", "mul"):
        return sc.const(int(mode == "mul"), dtype.compute)
    return sc.const(dtype.lowest if mode == "max" else dtype.highest, dtype.compute)
