"""Accesses to memory in the interpreter, with tiles that lie packed.

Triton's interpreter hands NumPy arrays to native functions that walk them from the first byte on, whatever their
strides. A tile that was broadcast has elements of stride 0, and is read beyond its end:

    addresses  (4, 1), strides (0, 8)     one element in memory, four are read
"""

from __future__ import annotations

from typing import Any

import numpy as np


class PackedMemory:
    """Triton's native access to memory, given arrays that lie packed and may be written."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def __getattr__(self, name: str) -> Any:
        return getattr(self._memory, name)

    def load(self, addresses: Any, mask: Any, other: Any, dtype: Any) -> Any:
        """Reads elements."""
        return self._memory.load(_packed(addresses), _packed(mask), _packed(other), dtype)

    def store(self, addresses: Any, values: Any, mask: Any) -> Any:
        """Writes elements."""
        return self._memory.store(_packed(addresses), _packed(values), _packed(mask))

    def atomic_rmw(self, operation: Any, addresses: Any, values: Any, mask: Any, order: Any) -> Any:
        """Reads and writes elements."""
        return self._memory.atomic_rmw(operation, _packed(addresses), _packed(values), _packed(mask), order)

    def atomic_cas(self, addresses: Any, compared: Any, values: Any, order: Any) -> Any:
        """Reads and perhaps writes elements."""
        return self._memory.atomic_cas(_packed(addresses), _packed(compared), _packed(values), order)


def _packed(tile: Any) -> Any:
    return np.require(tile, requirements=("C", "W")) if isinstance(tile, np.ndarray) else tile
