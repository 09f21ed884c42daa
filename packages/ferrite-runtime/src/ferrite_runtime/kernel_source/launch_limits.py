"""What one launch of a kernel from elsewhere may do in the interpreter: touch its tensors, and work in proportion.

A kernel's text says which addresses it reads and writes; nothing in a spec does. So the interpreter looks at each
access: an address outside of the memory of the launch's own tensors ends the launch before anything is read or written.

    launch(x, out)      x: [0x1000, 0x1400)   out: [0x2000, 0x2400)
    load  0x13fc .. 4 bytes    inside x
    store 0x2400 .. 4 bytes    MemoryOutOfBounds

Work is counted as the elements that operations make. What a launch may make depends on how much memory it is given, so
that a grid or an axis that has nothing to do with any buffer ends soon.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as ti

from ferrite_runtime.errors import MemoryOutOfBounds, TrustNeeded
from ferrite_runtime.kernel_source.confined_values import check_number

FREE_ELEMENTS = 1 << 24
ELEMENTS_PER_BYTE = 1 << 11
"""Elements that the operations of a launch may make: so many, and so many for each byte of its tensors."""
FREE_OPERATIONS = 1 << 13
BYTES_PER_OPERATION = 8
"""The same for operations, each of which costs time of its own, for programs, and for the steps of loops."""
MAX_TILE = 1 << 22
"""Elements that one operation may make. Triton has a limit of a quarter of that on the tiles of a kernel."""


class Fence:
    """The memory of one launch, and what is left of the work that it may do; does nothing about work if ``trusted``.

    Args:
        ranges: the first address of each tensor, and the one behind its last.
        is_trusted: whether a launch may take as long as it likes.
    """

    def __init__(self, ranges: Sequence[tuple[int, int]], *, is_trusted: bool) -> None:
        merged: list[list[int]] = []
        for start, end in sorted(ranges):
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            elif end > start:
                merged.append([start, end])
        self._starts = np.array([start for start, _ in merged], dtype=np.uint64)
        self._ends = np.array([end for _, end in merged], dtype=np.uint64)
        size = sum(end - start for start, end in merged)
        self._is_trusted = is_trusted
        self._elements = FREE_ELEMENTS + ELEMENTS_PER_BYTE * size
        self._operations = FREE_OPERATIONS + size // BYTES_PER_OPERATION

    def admit(self, addresses: Any, mask: Any, width: int) -> None:
        """Checks an access of ``width`` bytes at each address where the mask is set.

        Raises:
            MemoryOutOfBounds: if one is outside.
        """
        touched = np.asarray(addresses, dtype=np.uint64)
        if mask is not None:
            touched = touched[np.broadcast_to(mask, touched.shape)]
        if touched.size == 0:
            return
        if self._starts.size == 0:
            raise MemoryOutOfBounds("it touches memory, and none of its tensors has any")
        last = np.uint64(width)
        low, high = touched.min(), touched.max()
        position = int(np.searchsorted(self._starts, low, side="right")) - 1
        if position >= 0 and high + last <= self._ends[position] and high + last > high:
            return
        positions = np.searchsorted(self._starts, touched, side="right") - 1
        ends = self._ends[np.maximum(positions, 0)]
        is_outside = (positions < 0) | (touched + last > ends) | (touched + last < touched)
        if is_outside.any():
            raise MemoryOutOfBounds(
                f"{int(is_outside.sum())} of {touched.size} addresses of an access lie outside of its tensors"
            )

    def count(self, elements: int) -> None:
        """Counts an operation that makes so many elements.

        Raises:
            TrustNeeded: if it is one too many.
        """
        if self._is_trusted:
            return
        self._operations -= 1
        self._elements -= elements
        if self._operations < 0 or self._elements < 0 or elements > MAX_TILE:
            raise TrustNeeded("a kernel does far more work than its tensors have elements")

    def count_call(self, arguments: Iterable[Any]) -> None:
        """Counts a call of a function with these arguments.

        Raises:
            TrustNeeded: if it is one too many, or takes an integer larger than kernels have.
        """
        self.count(1)
        if not self._is_trusted:
            for argument in arguments:
                check_number(argument)


_current: list[Fence] = []


def count_call(arguments: Iterable[Any]) -> None:
    """Counts a call of a function of the kernel's own text, if the launch has a fence.

    Raises:
        TrustNeeded: if it is one too many, or takes an integer larger than kernels have.
    """
    if _current:
        _current[-1].count_call(arguments)


def limited_range(*bounds: Any) -> Iterator[int]:
    """Yields what ``range`` does, each step counted by the fence of the launch, if it has one."""
    for step in range(*(operator.index(bound) for bound in bounds)):
        if _current:
            _current[-1].count(1)
        yield step


def _limited_language_range(first: Any, last: Any = None, step: Any = None, **_: Any) -> Iterator[int]:
    """Stands in for ``tl.range`` and ``tl.static_range``."""
    start, end = (0, first) if last is None else (first, last)
    return limited_range(start, end, 1 if step is None else step)


class _FencedMemory:
    """Triton's access to memory, behind a fence."""

    def __init__(self, memory: Any, fence: Fence) -> None:
        self._memory = memory
        self._fence = fence

    def __getattr__(self, name: str) -> Any:
        return getattr(self._memory, name)

    def load(self, addresses: Any, mask: Any, other: Any, dtype: Any) -> Any:
        """Reads elements."""
        self._fence.admit(addresses, mask, np.dtype(dtype).itemsize)
        return self._memory.load(addresses, mask, other, dtype)

    def store(self, addresses: Any, values: Any, mask: Any) -> Any:
        """Writes elements."""
        self._fence.admit(addresses, mask, values.dtype.itemsize)
        return self._memory.store(addresses, values, mask)

    def atomic_rmw(self, operation: Any, addresses: Any, values: Any, mask: Any, order: Any) -> Any:
        """Reads and writes elements."""
        self._fence.admit(addresses, mask, values.dtype.itemsize)
        return self._memory.atomic_rmw(operation, addresses, values, mask, order)

    def atomic_cas(self, addresses: Any, compared: Any, values: Any, order: Any) -> Any:
        """Reads and perhaps writes elements."""
        self._fence.admit(addresses, None, values.dtype.itemsize)
        return self._memory.atomic_cas(addresses, compared, values, order)


@contextlib.contextmanager
def fenced(scope: Any, fence: Fence | None) -> Iterator[None]:
    """Keeps the interpreter inside of a fence while the context is open.

    Args:
        scope: what sets attributes and restores them: Triton's scope of patches.
        fence: the fence; None for kernels made here.
    """
    if fence is None:
        yield
        return
    scope.set_attr(ti, "_interpreter", _FencedMemory(ti._interpreter, fence))
    scope.set_attr(ti.TensorHandle, "__init__", _counting(ti.TensorHandle.__init__, fence))
    builder = type(ti.interpreter_builder)
    scope.set_attr(builder, "create_histogram", _counting_bins(builder.create_histogram, fence))
    for module in (tl, tl.core):
        for name in ("range", "static_range"):
            scope.set_attr(module, name, _limited_language_range)
    _current.append(fence)
    try:
        yield
    finally:
        _current.pop()


def _counting(original: Callable[..., None], fence: Fence) -> Callable[..., None]:
    def __init__(self: Any, data: Any, *rest: Any, **named: Any) -> None:  # noqa: N807
        fence.count(getattr(data, "size", 1))
        original(self, data, *rest, **named)

    return __init__


def _counting_bins(original: Callable[..., Any], fence: Fence) -> Callable[..., Any]:
    """Counts the bins of a histogram before they are made: of all operations it alone makes more than Triton allows."""

    def create_histogram(self: Any, data: Any, bins: int, *rest: Any) -> Any:
        fence.count(bins)
        return original(self, data, bins, *rest)

    return create_histogram
