"""Element types: one table from the spec's names to everybody else's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DType:
    """One element type under all of its names.

    ``pack`` is the ``struct`` code of a scalar argument of this type, None where a scalar cannot be passed;
    half types are passed as f32.
    """

    name: str
    torch: str
    triton: str | None
    itemsize: int
    pack: str | None = None

    @property
    def is_float(self) -> bool:
        """Tells whether this is a floating-point type."""
        return self.name[0] == "f" or self.name == "bf16"

    @property
    def is_integer(self) -> bool:
        """Tells whether a number of this type is an integer, or a truth value, which counts as one."""
        return not self.is_float and self.name[0] != "c"


_TABLE = (
    DType("bool", "bool", "i1", 1, "?"),
    DType("i8", "int8", "i8", 1, "b"),
    DType("i16", "int16", "i16", 2, "h"),
    DType("i32", "int32", "i32", 4, "i"),
    DType("i64", "int64", "i64", 8, "q"),
    DType("u8", "uint8", "u8", 1, "B"),
    DType("u16", "uint16", "u16", 2, "H"),
    DType("u32", "uint32", "u32", 4, "I"),
    DType("u64", "uint64", "u64", 8, "Q"),
    DType("f16", "float16", "fp16", 2, "f"),
    DType("bf16", "bfloat16", "bf16", 2, "f"),
    DType("f32", "float32", "fp32", 4, "f"),
    DType("f64", "float64", "fp64", 8, "d"),
    DType("f8e4m3fn", "float8_e4m3fn", "fp8e4nv", 1),
    DType("f8e5m2", "float8_e5m2", "fp8e5", 1),
    DType("f8e4m3fnuz", "float8_e4m3fnuz", "fp8e4b8", 1),
    DType("f8e5m2fnuz", "float8_e5m2fnuz", "fp8e5b16", 1),
    DType("c32", "complex32", None, 4),
    DType("c64", "complex64", None, 8),
    DType("c128", "complex128", None, 16),
)

DTYPES = {dtype.name: dtype for dtype in _TABLE}

# A scalar of a half type travels as f32, so that the kernel sees the value unrounded by the call.
SCALAR_TRITON = {"f16": "fp32", "bf16": "fp32", "bool": "u1"}


OTHERS = frozenset(
    f"torch.{name}"
    for name in (
        *("bits8", "bits16", "bits1x8", "bits2x4", "bits4x2", "float4_e2m1fn_x2", "float8_e8m0fnu"),
        *("qint8", "qint32", "quint8", "quint2x4", "quint4x2"),
        *(f"{kind}{width}" for kind in ("int", "uint") for width in range(1, 8)),
        *(dtype.torch for dtype in _TABLE),
    )
)
"""Element types by torch's names; tensors of those that the table lacks only extern calls touch."""


def is_dtype(name: str) -> bool:
    """Tells whether ``name`` is a dtype that a tensor of a program may have."""
    return name in DTYPES or name in OTHERS


def torch_name(name: str) -> str:
    """Returns the attribute of the ``torch`` module that is the dtype ``name``."""
    return name.removeprefix("torch.") if name.startswith("torch.") else DTYPES[name].torch


def scalar_triton(name: str) -> str:
    """Returns the Triton type of a by-value argument of dtype ``name``."""
    return SCALAR_TRITON.get(name) or str(DTYPES[name].triton)
