"""Where in memory the elements of strided tensors lie, and whether two tensors have a byte in common.

Two tensors overlap where sums of steps are equal: ``begin + i0 * s0 + i1 * s1 + … = other + j0 * t0 + …``, each factor
below its extent. That is a linear equation in bounded integers. It is solved from the largest step on: what all smaller
ones reach together leaves a factor few values, one or two for tensors without gaps.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import torch

from ferrite_torch.thresholds import SEARCHES
from ferrite_torch.torch_private.symbolic_shapes import present_value


class DataDependent(Exception):
    """Sizes, strides or the offset of a tensor depend on the contents of another one."""


class Place(NamedTuple):
    """The bytes of a tensor: where they begin in their storage, and extents and steps of its dims, in bytes.

    The bytes of an element are a dim of step 1; dims of one element are left out.
    """

    begin: int
    dims: tuple[tuple[int, int], ...]


def place_of(shape: tuple[int, ...], strides: tuple[int, ...], offset: int, itemsize: int) -> Place | None:
    """Returns the place of a tensor; None for one without elements."""
    if 0 in shape:
        return None
    dims = [(size, step * itemsize) for size, step in zip(shape, strides, strict=True) if size > 1]
    return Place(offset * itemsize, (*dims, (itemsize, 1)) if itemsize > 1 else tuple(dims))


def present_place(x: torch.Tensor) -> Place | None:
    """Returns where a strided tensor lies in the present call, its symbolic sizes as they are now.

    None for one without elements.

    Raises:
        DataDependent: that is not known before the graph has run.
    """
    values = [present_value(value) for value in (*x.shape, *x.stride(), x.storage_offset())]
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values):
        raise DataDependent
    return place_of(tuple(numbers[: x.dim()]), tuple(numbers[x.dim() : -1]), numbers[-1], x.element_size())


def overlap(one: Place, other: Place) -> bool:
    """Returns whether tensors of one storage have a byte in common, or may have one (`CompileSearchThresholds`)."""
    reach: defaultdict[int, list[int]] = defaultdict(
        lambda: [0, 0]
    )  # by step: least and greatest difference of factors
    for sign, (_, dims) in ((1, one), (-1, other)):
        for size, step in dims:
            reach[step][0 if sign < 0 else 1] += sign * (size - 1)
    reach.pop(0, None)
    steps = sorted(reach, reverse=True)
    ends = [(0, 0)]  # of what the smaller steps reach together
    for step in reversed(steps):
        low, high = reach[step]
        ends.append((ends[-1][0] + low * step, ends[-1][1] + high * step))
    pending = [(0, other.begin - one.begin)]
    for _ in range(SEARCHES.factors):
        if not pending:
            return False
        position, rest = pending.pop()
        low, high = ends[len(steps) - position]
        if not low <= rest <= high:
            continue
        if position == len(steps):
            return True
        step, (least, greatest) = steps[position], reach[steps[position]]
        below, above = ends[len(steps) - position - 1]
        first, last = max(least, -((above - rest) // step)), min(greatest, (rest - below) // step)
        pending.extend(
            (position + 1, rest - factor * step) for factor in range(first, min(last, first + SEARCHES.factors) + 1)
        )
    return True
