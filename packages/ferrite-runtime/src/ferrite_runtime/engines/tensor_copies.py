"""Copies of many tensors at once: for each call anew, or settled for calls whose tensors lie alike."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from ferrite_runtime.host.tensors import make_allocator

Take = Callable[[Sequence[Any]], tuple[Any, ...]]
"""Takes some values out of many."""


class Writes:
    """Copies of elements between tensors of one shape, pair by pair, that lie and are typed alike each time.

    Where torch can, it copies all of one type by one kernel. It does so for none of those that it is given together if
    one of them is of another type or has gaps, so they are sorted here.
    """

    def __init__(self, to: Sequence[Any], source: Sequence[Any]) -> None:
        together: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
        self._repeated: list[int] = []
        self._marked: list[int] = []
        for place, (one, other) in enumerate(zip(to, source, strict=True)):
            shape, strides = one.shape, one.stride()
            if 0 in strides and one.numel() > 0:
                self._repeated.append(place)
            elif other.is_conj() or other.is_neg():
                self._marked.append(place)
            else:
                together[one.dtype, other.dtype, _has_gaps(shape, strides)].append(place)
        self._together = tuple(map(taker, together.values()))

    def __call__(self, to: Sequence[Any], source: Sequence[Any]) -> None:
        """Copies; elements in one place are copied once."""
        import torch

        for take in self._together:
            torch._foreach_copy_(take(to), take(source))
        for place in self._marked:
            to[place].copy_(source[place])
        for place in self._repeated:
            one, other = to[place], source[place]
            shape = tuple(1 if stride == 0 else size for size, stride in zip(one.shape, one.stride(), strict=True))
            one.as_strided(shape, one.stride()).copy_(other.as_strided(shape, other.stride()))


class Refills:
    """Copies into tensors that stay, of others that lie and are typed alike each time but for marks, as `conj` sets."""

    def __init__(self, to: Sequence[Any]) -> None:
        self._to = to
        self._write: Writes | None = None

    def __call__(self, source: Sequence[Any]) -> None:
        """Copies."""
        if any(each.is_conj() or each.is_neg() for each in source):
            Writes(self._to, source)(self._to, source)
            return
        if self._write is None:
            self._write = Writes(self._to, source)
        self._write(self._to, source)


class Copies:
    """Copies with the same strides, of tensors of one device that lie and are typed alike each time."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._allocate = make_allocator(tensors[0].device) if tensors else None
        self._shapes = [tuple(each.shape) for each in tensors]
        self._strides = [each.stride() for each in tensors]
        self._dtypes = [each.dtype for each in tensors]
        self._write: Writes | None = None

    def of(self, tensors: Sequence[Any]) -> list[Any]:
        """Returns copies of these tensors."""
        if self._allocate is None:
            return []
        made = list(map(self._allocate, self._shapes, self._strides, self._dtypes))
        if self._write is None:
            self._write = Writes(made, tensors)
        self._write(made, tensors)
        return made


def copies(tensors: Sequence[Any]) -> list[Any]:
    """Returns copies with the same strides, of tensors of one device; elements in one place are copied once."""
    return Copies(tensors).of(tensors)


def write(to: Sequence[Any], source: Sequence[Any]) -> None:
    """Copies elements between tensors of one shape, pair by pair; where torch can, all of one type by one kernel."""
    Writes(to, source)(to, source)


def taker(places: Sequence[int]) -> Take:
    """Returns what takes the values at some places: for the hundreds of a backward in one step."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    return lambda values: tuple(values[place] for place in places)


def _has_gaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Tells whether a tensor has not each place of its memory once, from the first to the last."""
    end = 1
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size != 1):
        if stride != end:
            return True
        end *= size
    return False
