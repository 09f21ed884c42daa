"""Warp match in the interpreter: rows of one warp with one destination, as threads would find them."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

_WARP = 32


def match_in_warp(destination: Any) -> Any:
    """Returns how many rows of its warp go where each row goes; stands in for ``matches_in_warp``."""
    return _tile(_alike(destination).sum(-1))


def count_in_warps(counter: Any, destination: Any, known: Any) -> tuple[Any, Any, Any]:
    """Counts the rows of a warp with one destination by one addition; stands in for ``count_together``."""
    alike = _alike(destination)
    leader, length = alike.argmax(-1), alike.sum(-1)
    rank = np.tril(alike, -1).sum(-1)
    leads = tl.tensor(TensorHandle(known.handle.data & (rank.ravel() == 0), tl.int1), known.type)
    before = tl.atomic_add(counter, _tile(length), mask=leads, sem="relaxed").handle.data
    return _tile(np.take_along_axis(before.reshape(leader.shape), leader, -1)), _tile(rank), _tile(length)


def _alike(destination: Any) -> Any:
    """Returns which rows of each warp go to one destination: ``[warps, rows, rows]``."""
    data = destination.handle.data
    rows = data.reshape(-1, min(_WARP, data.size))
    return rows[:, :, None] == rows[:, None, :]


def _tile(data: Any) -> Any:
    flat = np.ascontiguousarray(data.ravel().astype(np.int32))
    return tl.tensor(TensorHandle(flat, tl.int32), tl.block_type(tl.int32, [flat.size]))
