"""Conversions between element types as Triton text, with torch's results."""

from __future__ import annotations

from ferrite_ir.language.dtypes import BF16, BOOL, F8E5M2, F16, F32, I8, I16, I32, U8, U32, U64, DType

from .literals import type_text


def widened(text: str, dtype: DType) -> str:
    """Returns the text of a value in the type it is computed in: f32 for narrow floats."""
    return f"{text}.to(tl.float32)" if dtype.is_narrow_float else text


def cast_text(text: str, source: DType, target: DType) -> str:
    """Returns the text of ``text``, a name or a postfix expression of type ``source``, converted to ``target``."""
    if source is target:
        return text
    if target is BOOL:
        return f"{widened(text, source)} != 0"
    if source is BOOL and not target.is_narrow_float:
        return f"{text}.to({type_text(target)})"
    if source in (I8, U8) and target in (F16, BF16):
        return f"{text}.to({type_text(target)})"  # exact, and a fraction of the instructions
    if target.is_narrow_float:
        # torch rounds everything to f32 on the way to a narrow float, and so must we for equal results.
        wide = text if source is F32 else f"{text}.to(tl.float32)"
        return f"fmath.to_float8e5({wide})" if target is F8E5M2 else f"{wide}.to({type_text(target)})"
    if source.is_float and target.is_integer and target.bits < 64 and target is not I32:
        # What is out of range wraps around, as through a wider signed integer; a direct conversion would saturate.
        wider = "tl.int64" if target.kind == "uint" else "tl.int32"
        return f"{widened(text, source)}.to({wider}).to({type_text(target)})"
    if source in (I8, I16) and target in (U32, U64):
        text = f"fmath.wide_unsigned({text}, {type_text(target)})"
    elif source.is_narrow_float and target is not F32:
        text = f"{text}.to(tl.float32).to({type_text(target)})"
    else:
        text = f"{text}.to({type_text(target)})"
    return text


def bitcast_text(text: str, source: DType, target: DType) -> str:
    """Returns the text of the bits of a value read as another type of the same width."""
    if source is BOOL:
        return f"{text}.to({type_text(target)})"
    if target is BOOL:
        return f"{text} != 0"
    return f"{text}.to({type_text(target)}, bitcast=True)"
