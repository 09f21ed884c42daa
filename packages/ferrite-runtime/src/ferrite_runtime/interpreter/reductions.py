"""Reductions and scans for the interpreter: any associative combine, applied to whole arrays in log(n) rounds.

Scans are those of Hillis and Steele, "Data parallel algorithms" (1986).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from ferrite_runtime.fmath.combines import maximum_nan, minimum_nan
from ferrite_runtime.interpreter.casts import is_encoded

Array = np.ndarray[Any, np.dtype[Any]]


def _tile(data: Array, dtype: Any) -> Any:
    return tl.tensor(TensorHandle(data, dtype), tl.block_type(dtype, list(data.shape)) if data.shape else dtype)


def _scalar(data: Array, dtype: Any) -> Any:
    return tl.tensor(TensorHandle(data.reshape(1), dtype), dtype)


def _wide_sum(data: Array, axis: int) -> Array:
    wide = np.float64 if data.dtype == np.float32 else data.dtype
    total: Array = np.add.reduce(data, axis=axis, dtype=wide).astype(data.dtype)
    return total


# Combines with one NumPy call of the same meaning. Triton's own maximum ignores NaN, as its compiled code does.
_DIRECT: dict[int, Callable[[Array, int], Array]] = {
    id(tl.standard._sum_combine): _wide_sum,
    id(tl.standard._elementwise_max): lambda data, axis: np.fmax.reduce(data, axis=axis),
    id(tl.standard._elementwise_min): lambda data, axis: np.fmin.reduce(data, axis=axis),
    id(maximum_nan): lambda data, axis: np.maximum.reduce(data, axis=axis),
    id(minimum_nan): lambda data, axis: np.minimum.reduce(data, axis=axis),
}


def _combine(function: Any, left: list[Array], right: list[Array], dtypes: list[Any]) -> list[Array]:
    tiles = [_tile(data, dtype) for data, dtype in zip((*left, *right), (*dtypes, *dtypes), strict=True)]
    results = function(*tiles)
    results = tuple(results) if isinstance(results, (tuple, list, tl.tuple)) else (results,)
    return [result.handle.data.astype(old.dtype) for result, old in zip(results, left, strict=True)]


def _tree(function: Any, arrays: list[Array], dtypes: list[Any]) -> list[Array]:
    """Reduces the last axis: neighbours are combined in order, so the combine need not commute."""
    while arrays[0].shape[-1] > 1:
        left = [np.ascontiguousarray(data[..., 0::2]) for data in arrays]
        right = [np.ascontiguousarray(data[..., 1::2]) for data in arrays]
        arrays = _combine(function, left, right, dtypes)
    return [data[..., 0] for data in arrays]


def reduce_tiles(input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False, **_: Any) -> Any:  # noqa: A002, FBT002
    """Reduces one tile, or a tuple of tiles, along ``axis`` (all of it for None); stands in for ``tl.reduce``."""
    tiles = tuple(input) if isinstance(input, (tuple, list, tl.tuple)) else (input,)
    axis, keep_dims = _plain(axis), bool(_plain(keep_dims))
    arrays, dtypes = [tile.handle.data for tile in tiles], [tile.dtype for tile in tiles]
    rank = arrays[0].ndim
    if axis is None:
        arrays, axis = [data.reshape(-1) for data in arrays], 0
        kept = [1] * rank
    else:
        axis %= rank
        kept = [1 if i == axis else size for i, size in enumerate(arrays[0].shape)]
    direct = _DIRECT.get(id(combine_fn)) if len(tiles) == 1 and not is_encoded(tiles[0].handle) else None
    if direct is not None:
        reduced = [direct(arrays[0], axis)]
    else:
        reduced = _tree(combine_fn, [np.moveaxis(data, axis, -1) for data in arrays], dtypes)
    results = tuple(
        _finish(data, dtype, kept if keep_dims else None) for data, dtype in zip(reduced, dtypes, strict=True)
    )
    return results if isinstance(input, (tuple, list, tl.tuple)) else results[0]


def _finish(data: Array, dtype: Any, kept: list[int] | None) -> Any:
    data = np.asarray(data)
    if kept is not None:
        return _tile(np.ascontiguousarray(data).reshape(kept), dtype)
    return _tile(np.ascontiguousarray(data), dtype) if data.ndim else _scalar(data, dtype)


def scan_tiles(input: Any, axis: Any, combine_fn: Any, reverse: Any = False, **_: Any) -> Any:  # noqa: A002, FBT002
    """Scans one tile, or a tuple of tiles, along ``axis``, inclusively; stands in for ``tl.associative_scan``.

    Source: Hillis, Steele, "Data parallel algorithms" (1986).
    """
    tiles = tuple(input) if isinstance(input, (tuple, list, tl.tuple)) else (input,)
    axis = _plain(axis) % tiles[0].handle.data.ndim
    dtypes = [tile.dtype for tile in tiles]
    arrays = [np.moveaxis(tile.handle.data, axis, -1) for tile in tiles]
    if _plain(reverse):
        arrays = [data[..., ::-1] for data in arrays]
    arrays = _scan_last(combine_fn, [np.ascontiguousarray(data) for data in arrays], dtypes)
    if _plain(reverse):
        arrays = [data[..., ::-1] for data in arrays]
    results = tuple(
        _tile(np.ascontiguousarray(np.moveaxis(data, -1, axis)), dtype)
        for data, dtype in zip(arrays, dtypes, strict=True)
    )
    return results if isinstance(input, (tuple, list, tl.tuple)) else results[0]


def _scan_last(function: Any, arrays: list[Array], dtypes: list[Any]) -> list[Array]:
    size, distance = arrays[0].shape[-1], 1
    while distance < size:
        # Tiles keep their power-of-two shape: the lanes that have no neighbour are combined with anything, then kept.
        earlier = [np.roll(data, distance, axis=-1) for data in arrays]
        combined = _combine(function, earlier, arrays, dtypes)
        for data, new in zip(arrays, combined, strict=True):
            new[..., :distance] = data[..., :distance]
        arrays, distance = combined, 2 * distance
    return arrays


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else value
