"""Says of two results whether the compiler's is right, eager's beside float64 being the measure.

The invariant is that of `against_eager`: the distance from float64 is at most twice eager's own, plus what rounding a
result explains. Here it is applied twice: to each tensor as a whole, and to each element, so that one wrong element
among large ones does not hide. Integers and booleans are equal, and so is a result that has eager's bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from against_eager import FACTOR, FLOOR, assert_same_type

ELEMENT_FACTOR = 8.0
"""An element may err as much as this times the typical error of eager's elements: the two round at different places."""


def mismatch(
    actual: Sequence[Tensor],
    eager: Sequence[Tensor],
    exact: Callable[[], Sequence[Tensor] | None],
    *,
    scale: float = 0.0,
    strides: bool = True,
) -> str | None:
    """Returns what is wrong with results, None if nothing is.

    ``exact`` gives the same results computed in float64, or None where there are none: then eager's count as exact.
    ``scale`` is the size of what the results were computed from, where cancellation leaves less than that.
    """
    if len(actual) != len(eager):
        return f"{len(actual)} results, eager has {len(eager)}"
    for number, (mine, theirs) in enumerate(zip(actual, eager, strict=True)):
        try:
            assert_same_type(mine, theirs, f"result {number}", strides=strides)
        except AssertionError as error:
            return str(error)
    wanted = [number for number in range(len(actual)) if not has_same_bits(actual[number], eager[number])]
    if not wanted:
        return None
    wides = exact()
    if wides is not None and [x.shape for x in wides] != [x.shape for x in eager]:
        wides = None
    for number in wanted:
        mine, theirs = dense(actual[number]), dense(eager[number])
        wide = theirs if wides is None else dense(wides[number])
        problem = element_mismatch(mine, theirs, wide, scale)
        if problem:
            return f"result {number}: {problem}"
    return None


def has_same_bits(mine: Tensor, theirs: Tensor) -> bool:
    """Returns whether two tensors of one type are equal, NaN counting as equal to NaN."""
    mine, theirs = dense(mine), dense(theirs)
    if mine.is_floating_point() or mine.is_complex():
        return bool(torch.equal(parts(mine).nan_to_num(7.25), parts(theirs).nan_to_num(7.25))) and bool(
            torch.equal(torch.isnan(parts(mine)), torch.isnan(parts(theirs)))
        )
    return torch.equal(mine, theirs)


def dense(x: Tensor) -> Tensor:
    x = x.detach()
    if x.layout != torch.strided:
        x = x.to_dense()
    if x.dtype.itemsize == 1 and x.is_floating_point():
        x = x.to(torch.float32)
    return x.resolve_conj().resolve_neg().cpu()


def parts(x: Tensor) -> Tensor:
    return torch.view_as_real(x).to(torch.float64) if x.is_complex() else x.to(torch.float64)


def element_mismatch(actual: Tensor, eager: Tensor, exact: Tensor, scale: float) -> str | None:
    """Returns why one result is too far from float64, None if it is not."""
    if not (eager.is_floating_point() or eager.is_complex()):
        wrong = (actual != eager).nonzero()
        place = tuple(wrong[0].tolist())
        return f"{len(wrong)} of {eager.numel()} elements differ, {place}: {actual[place]}, eager {eager[place]}"
    limits = torch.finfo(eager.dtype)
    mine, theirs, right = parts(actual), parts(eager), parts(exact)
    outside = ~torch.isfinite(theirs) | ~torch.isfinite(mine)
    wrong = outside & ~(mine.isnan() & theirs.isnan()) & (mine != theirs)
    # Where only eager overflowed on its way, the right number is right; near the largest number both are.
    wrong &= ~(torch.isfinite(right) & torch.isfinite(mine) & ~torch.isfinite(theirs))
    wrong &= ~(mine.isinf() & (right.abs() >= limits.max * (1 - limits.eps)) & (mine.sign() == right.sign()))
    if wrong.any():
        return first_of(wrong, "not finite", mine, theirs, right)
    inside = torch.isfinite(mine) & torch.isfinite(right)
    theirs = torch.where(torch.isfinite(theirs), theirs, right)
    mine, theirs, right = (torch.where(inside, x, 0.0) for x in (mine, theirs, right))
    eps = limits.eps
    floor = FLOOR.get(eager.dtype, 16.0)
    own, error = (theirs - right).abs(), (mine - right).abs()
    allowed = FACTOR * own.norm() + eps * (floor * right.norm() + scale) + limits.tiny
    if error.norm() > allowed:
        return f"error {error.norm():.3e}, allowed {allowed:.3e}, eager's own {own.norm():.3e}"
    typical = own.square().mean().sqrt() if own.numel() else own.sum()
    each = FACTOR * own + ELEMENT_FACTOR * typical + eps * (floor * (right.abs() + median(right)) + scale) + limits.tiny
    wrong = error > each
    return first_of(wrong, "far off", mine, theirs, right) if wrong.any() else None


def median(x: Tensor) -> Tensor:
    return x.abs().median() if x.numel() else x.abs().sum()


def first_of(wrong: Tensor, what: str, mine: Tensor, theirs: Tensor, right: Tensor) -> str:
    count = int(wrong.sum())
    place = tuple(wrong.nonzero()[0].tolist())
    values = ", ".join(f"{name} {float(x[place])!r}" for name, x in (("is", mine), ("eager", theirs), ("exact", right)))
    return f"{count} of {wrong.numel()} elements {what}, {place}: {values}"
