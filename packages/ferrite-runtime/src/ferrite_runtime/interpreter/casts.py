"""Conversions for the interpreter that round to nearest even, as GPUs do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as ti

Array = np.ndarray[Any, np.dtype[Any]]

_TORCH_EIGHT_BIT = {
    tl.float8e5: "float8_e5m2",
    tl.float8e5b16: "float8_e5m2fnuz",
    tl.float8e4nv: "float8_e4m3fn",
    tl.float8e4b8: "float8_e4m3fnuz",
}

_LARGEST_E4M3FN = 448.0


def bfloat16_to_float32(bits: Array) -> Array:
    """Returns the float32 values of bfloat16 bit patterns."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def float32_to_bfloat16(values: Array) -> Array:
    """Returns the bit patterns of float32 values rounded to bfloat16, ties to even, NaN kept quiet."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), (bits >> np.uint32(16)) | np.uint32(0x40), rounded).astype(np.uint16)


def is_encoded(handle: Any) -> bool:
    """Returns whether NumPy holds a handle's values as bit patterns; truth values come under the type compared."""
    dtype = handle.dtype.scalar
    return (dtype == tl.bfloat16 or dtype in _TORCH_EIGHT_BIT) and handle.data.dtype.kind == "u"


def _decode(handle: Any, dtype: Any) -> Array:
    """Returns a handle's values in a type that NumPy computes with."""
    if not is_encoded(handle):
        plain: Array = handle.data
        return plain
    if dtype == tl.bfloat16:
        return bfloat16_to_float32(handle.data)
    import torch

    bits = torch.from_numpy(np.ascontiguousarray(handle.data).view(np.uint8).copy())
    decoded: Array = bits.view(getattr(torch, _TORCH_EIGHT_BIT[dtype])).to(torch.float32).numpy()
    return decoded


def _encode_eight_bit(values: Array, dtype: Any) -> Array:
    import torch

    if dtype == tl.float8e4nv:  # too large numbers saturate on GPUs; in torch they do since 2.13
        values = np.clip(values, -_LARGEST_E4M3FN, _LARGEST_E4M3FN)
    rounded = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).to(
        getattr(torch, _TORCH_EIGHT_BIT[dtype])
    )
    encoded: Array = rounded.view(torch.uint8).numpy()
    return encoded


def cast_handle(source: Any, dtype: Any) -> Any:
    """Returns the handle ``source`` converted to the element type of ``dtype``."""
    old, new = source.dtype.scalar, dtype.scalar
    values = _decode(source, old)
    if new == tl.bfloat16:
        return ti.TensorHandle(float32_to_bfloat16(_through_float32(values)), new)
    if new in _TORCH_EIGHT_BIT:
        return ti.TensorHandle(_encode_eight_bit(values, new), new)
    return ti.TensorHandle(values.astype(ti._get_np_dtype(new)), new)


def all_ones_handle(dtype: Any) -> Any:
    """Returns the integer (or truth value) of a type with all bits set, as a scalar."""
    return ti.TensorHandle(np.full(1, -1).astype(ti._get_np_dtype(dtype)), dtype.scalar)


def splat_handle(block: Any, scalar: Any) -> Any:
    """Returns a tile of the shape of ``block`` filled with one element.

    The data keep their own type: a comparison's truth values come under the type of what was compared.
    """
    return ti.TensorHandle(np.full(block.shape, scalar.data.reshape(-1)[0]), scalar.dtype.scalar)


def _through_float32(values: Array) -> Array:
    """Returns float32 values from which rounding to bfloat16 is as from the original.

    Rounding float64 twice would move values beside a tie onto it; setting the last bit of an inexact float32
    (rounding to odd) keeps them on their side.
    """
    near = values.astype(np.float32)
    if values.dtype != np.float64:
        return near
    back = near.astype(np.float64)
    bits = near.view(np.uint32)
    towards_zero = np.where(np.abs(back) > np.abs(values), bits - np.uint32(1), bits)
    inexact = (back != values) & np.isfinite(values) & np.isfinite(back)
    return np.where(inexact, towards_zero | np.uint32(1), bits).astype(np.uint32).view(np.float32)


def make_arithmetic(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method that computes with handles, on the numbers of those that NumPy holds as bit patterns.

    What it returns under such a type is rounded to that; truth values stay what they are.
    """

    def compute(self: Any, *operands: Any) -> Any:
        encoded = [isinstance(x, ti.TensorHandle) and is_encoded(x) for x in operands]
        if not any(encoded):
            return original(self, *operands)
        wide = (cast_handle(x, tl.float32) if is_bits else x for x, is_bits in zip(operands, encoded, strict=True))
        result, narrow = original(self, *wide), operands[encoded.index(True)].dtype.scalar
        return result if result.data.dtype == np.bool_ else cast_handle(result, narrow)

    return compute


def make_dot(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a matrix product that understands bfloat16, which NumPy holds as bit patterns."""

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        operands = [cast_handle(x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b)]
        return original(self, *operands, d, *rest)

    return create_dot
