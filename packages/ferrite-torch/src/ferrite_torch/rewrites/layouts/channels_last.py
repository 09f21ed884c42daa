"""Whether strides say that images lie row-major or channels-last, as ATen asks it: in two ways, for some ops each.

`is_like_channels_last` is ``suggest_memory_format``, `is_contiguous` the method of that name; they differ about axes of
one element and about slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ferrite_torch.torch_private.symbolic_shapes import is_known

CHANNELS_LAST = {4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}
"""Axes of images from the outermost to the innermost, by their number."""


def is_like_channels_last(shape: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Returns whether strides grow from the channels over the last axes to the batch.

    What lies both ways, as images of one element do, counts as row-major.
    """
    least: Any = 0
    if is_known(strides[1] == 0):
        return False
    for axis in (1, *reversed(range(2, len(shape))), 0):
        if is_known(shape[axis] == 0) or not is_known(strides[axis] >= least):
            return False
        if axis == 0 and is_known(least == strides[1]):
            return False
        least = strides[axis] if is_known(shape[axis] == 1) else strides[axis] * shape[axis]
    return True


def is_contiguous(shape: Sequence[Any], strides: Sequence[Any], order: Sequence[int] | None = None) -> bool:
    """Returns whether elements lie one behind the other, axes from the outermost to the innermost in an order.

    Axes of one element do not count. Without an order that of their numbers is meant.
    """
    expected: Any = 1
    for axis in reversed(range(len(shape)) if order is None else order):
        if is_known(shape[axis] == 1):
            continue
        if not is_known(strides[axis] == expected):
            return False
        expected = expected * shape[axis]
    return True
