"""Element types, numbers and conversions as NumPy text.

NumPy has no bfloat16: such values are float32 arrays that hold nothing but numbers of bfloat16, and memory holds their
bits as uint16. Floats of eight bits are refused.
"""

from __future__ import annotations

from collections.abc import Callable

from ferrite_ir.language.dtypes import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, DType
from ferrite_ir.language.scalar import Number
from ferrite_ir.reference.rounding import round_to
from ferrite_triton.errors import UnsupportedDefinition
from ferrite_triton.printing.literals import number_text
from ferrite_triton.printing.printed import COMPARISON, Made, Printed

_VALUES: dict[DType, str] = {
    BOOL: "np.bool_",
    I8: "np.int8",
    I16: "np.int16",
    I32: "np.int32",
    I64: "np.int64",
    U8: "np.uint8",
    U16: "np.uint16",
    U32: "np.uint32",
    U64: "np.uint64",
    F16: "np.float16",
    BF16: "np.float32",
    F32: "np.float32",
    F64: "np.float64",
}

Use = Callable[..., str]
"""Returns a call of a function of the library, from name and operands, and notes that it is used."""


def type_text(dtype: DType) -> str:
    """Returns the type of arrays that hold values of an element type.

    Raises:
        UnsupportedDefinition: NumPy has no such numbers.
    """
    found = _VALUES.get(dtype)
    if found is None:
        raise UnsupportedDefinition(f"the NumPy target does not compute with {dtype}; run the Triton kernel instead")
    return found


def literal_text(value: Number, dtype: DType) -> str:
    """Returns a number of a type."""
    return f"{type_text(dtype)}({number_text(round_to(value, dtype), dtype)})"


def cast_text(value: Printed, target: DType, use: Use) -> Made:
    """Returns the text of a value converted as ``cast`` converts it."""
    source = value.type.dtype
    if source is target or (source is BF16 and target is F32):
        return value.text, value.level
    if target is BOOL:
        return f"{value.atom} != 0", COMPARISON
    if source.is_float and target.is_integer:
        return use("to_integer", value.text, type_text(target))
    if target is BF16:
        return use("round_bf16", value.text if source is F32 else f"{value.atom}.astype(np.float32)")
    return f"{value.atom}.astype({type_text(target)})"


def bitcast_text(value: Printed, target: DType, use: Use) -> Made:
    """Returns the text of the bits of a value read as another type of the same width."""
    source = value.type.dtype
    bits = value.atom if source is not BF16 else stored_text(value.text, source, use)
    if target is BF16:
        return loaded_text(bits if source is U16 else f"{bits}.view(np.uint16)", target, use)
    return (f"{bits} != 0", COMPARISON) if target is BOOL else f"{bits}.view({type_text(target)})"


def stored_text(text: str, dtype: DType, use: Use) -> str:
    """Returns a value as it lies in memory.

    Raises:
        UnsupportedDefinition: NumPy has no such numbers.
    """
    type_text(dtype)
    return use("bf16_bits", text) if dtype is BF16 else text


def loaded_text(text: str, dtype: DType, use: Use) -> str:
    """Returns what lies in memory as a value.

    Raises:
        UnsupportedDefinition: NumPy has no such numbers.
    """
    type_text(dtype)
    return use("bf16_values", text) if dtype is BF16 else text
