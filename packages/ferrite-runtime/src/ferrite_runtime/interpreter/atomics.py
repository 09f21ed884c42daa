"""Atomics for the interpreter on bfloat16, which it lacks; programs run one at a time, so plain steps are atomic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as ti

from ferrite_runtime.interpreter.casts import bfloat16_to_float32, float32_to_bfloat16

_APPLY: dict[str, Callable[[Any, Any], Any]] = {
    "FADD": np.add,
    "MAX": np.maximum,
    "MIN": np.minimum,
    "XCHG": lambda _, b: b,
}


def make_atomic_rmw(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a read-modify-write that steps through bfloat16 elements and hands everything else to ``original``."""

    def create_atomic_rmw(self: Any, operation: Any, pointer: Any, value: Any, mask: Any, sem: Any, scope: Any) -> Any:
        apply = _APPLY.get(str(operation).rsplit(".", 1)[-1])
        if value.dtype.scalar != tl.bfloat16 or apply is None:
            return original(self, operation, pointer, value, mask, sem, scope)
        addresses, mask_data = np.broadcast_arrays(pointer.data, mask.data)
        values = np.broadcast_to(value.data, addresses.shape)
        old = np.zeros(addresses.shape, dtype=np.uint16)
        for index in zip(*np.nonzero(mask_data), strict=True):
            old[index] = _update_one(addresses[index], values[index], apply)
        return ti.TensorHandle(old, tl.bfloat16)

    return create_atomic_rmw


def _update_one(address: Any, value: Any, apply: Callable[[Any, Any], Any]) -> Any:
    where, on = np.array([address], dtype=np.uint64), np.ones(1, dtype=bool)
    before = ti._interpreter.load(where, on, np.zeros(1, dtype=np.uint16), np.dtype(np.uint16))
    after = apply(bfloat16_to_float32(before), bfloat16_to_float32(np.array([value], dtype=np.uint16)))
    ti._interpreter.store(where, float32_to_bfloat16(after), on)
    return before[0]
