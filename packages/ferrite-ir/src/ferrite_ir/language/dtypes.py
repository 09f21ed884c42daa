"""The element types of the language."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type: its name in the text form, its storage width in bits and its kind.

    There is one object per type, so that equality is identity (a copied or unpickled type is that object again).
    ``kind`` is ``bool``, ``int``, ``uint``, ``float`` or ``opaque`` (complex and other types that only extern calls
    touch).
    """

    name: str
    bits: int
    kind: str

    @property
    def bytes(self) -> int:
        """Returns the width of one stored element in bytes."""
        return max(1, self.bits // 8)

    @property
    def is_float(self) -> bool:
        """Returns whether this is a floating-point type of any width."""
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """Returns whether this is a signed or unsigned integer (``bool`` is neither)."""
        return self.kind in ("int", "uint")

    @property
    def is_narrow_float(self) -> bool:
        """Returns whether arithmetic on this type is done in f32 and rounded where it is stored."""
        return self.kind == "float" and self.bits < 32

    @property
    def is_half(self) -> bool:
        """Returns whether this is a 16-bit float, whose values kernels may hold with excess precision."""
        return self.kind == "float" and self.bits == 16

    @property
    def compute(self) -> DType:
        """Returns the type in which values of this type are computed with."""
        return F32 if self.is_narrow_float else self

    @property
    def accumulate(self) -> DType:
        """Returns the type in which sums of this type are carried: f32 for narrow floats, i64 for integers and bool."""
        if self.kind == "float":
            return self.compute
        return U64 if self.name == "u64" else I64

    @property
    def lowest(self) -> int | float:
        """Returns what no number of this type is below; minus infinity for every float type."""
        if self.kind == "float":
            return -math.inf
        return -(1 << (self.bits - 1)) if self.kind == "int" else 0

    @property
    def highest(self) -> int | float:
        """Returns what no number of this type is above; infinity for every float type."""
        if self.kind == "float":
            return math.inf
        return 1 if self.kind == "bool" else (1 << (self.bits - (self.kind == "int"))) - 1

    def __reduce__(self) -> tuple[object, ...]:
        return dtype_named, (self.name,)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name


BOOL = DType("bool", 8, "bool")
I8, I16, I32, I64 = (DType(f"i{bits}", bits, "int") for bits in (8, 16, 32, 64))
U8, U16, U32, U64 = (DType(f"u{bits}", bits, "uint") for bits in (8, 16, 32, 64))
F16, BF16 = DType("f16", 16, "float"), DType("bf16", 16, "float")
F32, F64 = DType("f32", 32, "float"), DType("f64", 64, "float")
F8E4M3FN, F8E5M2 = DType("f8e4m3fn", 8, "float"), DType("f8e5m2", 8, "float")
F8E4M3FNUZ, F8E5M2FNUZ = DType("f8e4m3fnuz", 8, "float"), DType("f8e5m2fnuz", 8, "float")
C32, C64, C128 = (DType(f"c{bits}", bits, "opaque") for bits in (32, 64, 128))

DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        BOOL, I8, I16, I32, I64, U8, U16, U32, U64, F16, BF16, F32, F64,
        F8E4M3FN, F8E5M2, F8E4M3FNUZ, F8E5M2FNUZ, C32, C64, C128,
    )
}  # fmt: skip


def dtype_named(name: str) -> DType:
    """Returns the type with this name in the text form.

    Raises:
        ValueError: no such type; the message lists the known ones.
    """
    found = DTYPES.get(name)
    if found is None:
        raise ValueError(f"unknown dtype {name!r}; known: {', '.join(DTYPES)}")
    return found
