"""Sorting in the interpreter: one call of NumPy in place of a network."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

Array = np.ndarray[Any, np.dtype[Any]]

# The bits of infinity: what is larger without its sign is NaN.
_INFINITY = {tl.float16: 0x7C00, tl.bfloat16: 0x7F80, tl.float32: 0x7F800000, tl.float64: 0x7FF << 52}


def sort_tile(x: Any, size: Any, axis: Any, descending: Any) -> tuple[Any, Any]:
    """Sorts the first ``size`` elements of each row; stands in for ``fmath.sort_stable``."""
    size, axis, descending = (getattr(value, "value", value) for value in (size, axis, descending))
    data = x.handle.data
    keys = _ordered(data, x.dtype)
    if descending:
        keys = ~keys
    lanes = np.arange(data.shape[axis]).reshape([-1 if position == axis else 1 for position in range(data.ndim)])
    keys = np.where(lanes < size, keys, np.iinfo(keys.dtype).max)
    order = np.argsort(keys, axis=axis, kind="stable")
    return _tile(np.take_along_axis(data, order, axis), x.dtype), _tile(order.astype(np.int32), tl.int32)


def sort_tile_first(x: Any, kept: Any, size: Any, axis: Any, descending: Any) -> tuple[Any, Any]:
    """Sorts rows and keeps the first ``kept`` elements of each; stands in for ``fmath.sort_first``."""
    kept, axis = (getattr(value, "value", value) for value in (kept, axis))
    chosen = (slice(None),) * axis + (slice(kept),)
    values, positions = (
        _tile(tile.handle.data[chosen], tile.dtype.scalar) for tile in sort_tile(x, size, axis, descending)
    )
    return values, positions


def _ordered(data: Array, dtype: Any) -> Array:
    """Returns integers in the order that torch sorts by: NaN is the largest, the two zeros are equal."""
    infinity = _INFINITY.get(dtype)
    if infinity is None:
        return data.astype(np.int8) if data.dtype == np.bool_ else data
    bits = data.view(f"i{data.dtype.itemsize}")
    largest = np.iinfo(bits.dtype).max
    magnitude = bits & largest
    keys = np.where(bits < 0, -magnitude, magnitude)
    keys[magnitude > infinity] = largest
    return keys


def _tile(data: Array, dtype: Any) -> Any:
    return tl.tensor(TensorHandle(np.ascontiguousarray(data), dtype), tl.block_type(dtype, list(data.shape)))
