"""NumPy stand-ins, used in Triton's interpreter, for the functions of `fmath` that bind to the device library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from ferrite_runtime.errors import DeviceUnavailable

Array = np.ndarray[Any, np.dtype[Any]]


def _array_of(value: Any) -> Any:
    if isinstance(value, tl.tensor):
        return value.handle.data
    return value.value if isinstance(value, tl.constexpr) else value


def _lift(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes an array function out of one on tiles: the result has the promoted type of the floating operands."""

    def apply(*operands: Any) -> Any:
        tiles = [operand for operand in operands if isinstance(operand, tl.tensor)]
        floats = [tile.dtype for tile in tiles if tile.dtype.is_floating()]
        dtype = tl.float64 if tl.float64 in floats else tl.float32
        result = np.asarray(function(*(_array_of(operand) for operand in operands)))
        data = result.astype(np.float64 if dtype is tl.float64 else np.float32)
        shape = list(np.broadcast_shapes(*(tuple(map(int, tile.shape)) for tile in tiles)))
        return tl.tensor(TensorHandle(data, dtype), tl.block_type(dtype, shape) if shape else dtype)

    return apply


def _torch_special(name: str) -> Callable[[Array], Array]:
    """Borrows a special function from torch's CPU kernels; NumPy has none of them."""

    def apply(x: Array) -> Array:
        try:
            import torch
        except ImportError as error:
            raise DeviceUnavailable(f"interpreting fmath.{name} needs torch for its special functions") from error
        result: Array = getattr(torch.special, name)(torch.from_numpy(np.ascontiguousarray(x))).numpy()
        return result

    return apply


def _pow(x: Array, y: Array) -> Array:
    # With integer exponents in an integer array NumPy would refuse negative ones.
    result: Array = np.power(x, np.asarray(y, dtype=np.asarray(x).dtype))
    return result


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "atanh": np.arctanh,
    "copysign": np.copysign,
    "cos": np.cos,
    "cosh": np.cosh,
    "erf": _torch_special("erf"),
    "erfc": _torch_special("erfc"),
    "erfcx": _torch_special("erfcx"),
    "erfinv": _torch_special("erfinv"),
    "exp": np.exp,
    "divide_by": lambda x, count, _: x / count,
    "quotient": np.divide,
    "reciprocal": np.reciprocal,
    "rounded_inverse": np.reciprocal,
    "row_quotient": lambda x, divisor, scale, _: x * scale / divisor,
    "fast_divide": np.divide,
    "fast_reciprocal": np.reciprocal,
    "fast_exp": np.exp,
    "expm1": np.expm1,
    "fmod": np.fmod,
    "hypot": np.hypot,
    "i0": _torch_special("i0"),
    "i1": _torch_special("i1"),
    "ldexp": np.ldexp,
    "lgamma": _torch_special("gammaln"),
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "nextafter": np.nextafter,
    "pow": _pow,
    "round": np.rint,
    "sin": np.sin,
    "sinh": np.sinh,
    "tan": np.tan,
    "tanh": np.tanh,
    "trunc": np.trunc,
}

STAND_INS: dict[str, Callable[..., Any]] = {name: _lift(function) for name, function in _FUNCTIONS.items()}
