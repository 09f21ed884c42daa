"""Expressions of tile programs as NumPy text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ferrite_ir.language.combines import COMBINES
from ferrite_ir.language.dtypes import BF16
from ferrite_triton.errors import UnsupportedDefinition
from ferrite_triton.printing.printed import Made, Printed, Printers, fill
from ferrite_triton.printing.rows import row_of
from ferrite_triton.tile.language import (
    Bitcast,
    BlockSize,
    Broadcast,
    Call,
    Cast,
    Choose,
    Constant,
    Describe,
    Dot,
    Elementwise,
    Expand,
    Full,
    Gather,
    Hint,
    Lanes,
    Literal,
    Load,
    LoadBlock,
    Offset,
    ProgramCount,
    ProgramId,
    Reduce,
    Reshape,
    Scan,
    Shape,
    Transpose,
)
from ferrite_triton.tile.operations import meaning_of
from ferrite_triton.tile.types import result_types

from .elements import Use, bitcast_text, cast_text, literal_text, loaded_text, stored_text, type_text
from .library import LIBRARY
from .spellings import CALLS, ROWS, UFUNCS

NAME = "NumPy"


def shape_text(shape: Shape) -> str:
    """Returns the text of a shape."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _spelled(template: str, operands: Sequence[Printed], use: Use) -> Made:
    """Returns a template with its operands; notes a function of the library that it calls."""
    function = template.partition("(")[0]
    if function in LIBRARY:
        use(function)
    dtype = operands[0].type.dtype
    return fill(template, operands, type=type_text(dtype)) if "{type}" in template else fill(template, operands)


def _elementwise(part: Elementwise, operands: Sequence[Printed], use: Use) -> Made:
    op, types = meaning_of(part.op), [operand.type for operand in operands]
    made = _spelled(row_of(ROWS, op, types[0].dtype, NAME), operands, use)
    (result,) = result_types(part, types)
    if result.dtype is not BF16:
        return made
    if op == "nextafter":
        raise UnsupportedDefinition(f"no {NAME} text for {op} of {result.dtype}, which is held in float32")
    return use("round_bf16", made if isinstance(made, str) else made[0])


def _arranged(value: Printed, change: Callable[[str], str], use: Use) -> Made:
    """Returns a tile in another shape; of addresses, which are pairs, the numbers of their elements are."""
    if value.type.is_pointer:
        return use("rearranged", value.text, f"lambda element: {change('element')}")
    return change(value.text)


def _broadcast(part: Full | Broadcast, operands: Sequence[Printed], use: Use) -> Made:
    return _arranged(operands[0], lambda text: f"np.broadcast_to({text}, {shape_text(part.shape)})", use)


def _reshape(part: Reshape, operands: Sequence[Printed], use: Use) -> Made:
    return _arranged(operands[0], lambda text: f"np.reshape({text}, {shape_text(part.shape)})", use)


def _transpose(part: Transpose, operands: Sequence[Printed], use: Use) -> Made:
    return _arranged(operands[0], lambda text: f"np.transpose({text}, {part.order})", use)


def _expand(part: Expand, operands: Sequence[Printed], use: Use) -> Made:
    (value,) = operands
    rank = len(value.type.shape) + len(part.axes)
    subscripts = ", ".join("None" if axis in part.axes else ":" for axis in range(rank))
    return _arranged(replace(value, text=value.atom), lambda text: f"{text}[{subscripts}]", use)


def _offset(_: Offset, operands: Sequence[Printed], use: Use) -> Made:
    pointer, elements = operands
    return pointer.text if elements.literal == 0 else use("offset", pointer.text, elements.text)


def _load(part: Load, operands: Sequence[Printed], use: Use) -> Made:
    pointer, *given = operands
    dtype = pointer.type.dtype
    arguments = [pointer.text]
    if part.mask is not None:
        arguments.append(given.pop(0).text)
    if given:
        arguments.append(stored_text(given[0].text, dtype, use))
    return loaded_text(use("load", *arguments), dtype, use)


def _describe(part: Describe, operands: Sequence[Printed], __: Use) -> Made:
    pointer, *numbers = operands
    rank = len(part.shape)
    return f"({pointer.text}, {_tuple(numbers[:rank])}, {_tuple(numbers[rank:])}, {shape_text(part.shape)})"


def _load_block(_: LoadBlock, operands: Sequence[Printed], use: Use) -> Made:
    return loaded_text(use("load_block", *(operand.text for operand in operands)), operands[0].type.dtype, use)


def _choose(part: Choose, operands: Sequence[Printed], _: Use) -> Made:
    chosen, otherwise = operands
    return f"({chosen.text} if {part.constant} > 1 else {otherwise.text})"


def _reduce(part: Reduce, operands: Sequence[Printed], use: Use) -> Made:
    ufunc, dtype = UFUNCS.get(part.combine), operands[0].type.dtype
    if ufunc is None:
        return use("reduce", _merge(part.combine, use), _tuple(operands), str(part.axis), str(part.keep))
    keeps = ", keepdims=True" if part.keep else ""
    # NumPy would make sums of narrow integers wide.
    made = f"{ufunc}.reduce({operands[0].text}, {part.axis}, dtype={type_text(dtype)}{keeps})"
    return use("round_bf16", made) if dtype is BF16 else made


def _scan(part: Scan, operands: Sequence[Printed], use: Use) -> Made:
    ufunc, dtype = UFUNCS.get(part.combine), operands[0].type.dtype
    if dtype is BF16:
        raise UnsupportedDefinition(f"the {NAME} target does not round between the steps of a scan; scan f32 instead")
    if ufunc is None:
        tiles = _tuple(operands)
        if not part.reverse:
            return use("accumulate", _merge(part.combine, use), tiles, str(part.axis))
        use("accumulate")
        scan = f"lambda tiles: accumulate({_merge(part.combine, use)}, tiles, {part.axis})"
        return use("backwards", scan, tiles, str(part.axis))
    value, axis = operands[0].text, part.axis
    if part.reverse:
        return f"np.flip({ufunc}.accumulate(np.flip({value}, {axis}), {axis}, dtype={type_text(dtype)}), {axis})"
    return f"{ufunc}.accumulate({value}, {axis}, dtype={type_text(dtype)})"


def _merge(combine: str, use: Use) -> str:
    """Returns a function of two states; one of the program's own takes their components."""
    if combine not in COMBINES:
        return f"(lambda a, b: {combine}(*a, *b))"
    if combine not in LIBRARY:
        raise UnsupportedDefinition(f"the {NAME} target does not combine by {combine}; add it to its library")
    use(combine)
    return combine


def _tuple(operands: Sequence[Printed]) -> str:
    return f"({', '.join(operand.text for operand in operands)},)"


def _dot(_: Dot, operands: Sequence[Printed], __: Use) -> Made:
    left, right, accumulator = operands
    wide = type_text(accumulator.type.dtype)
    return f"({accumulator.text} + np.matmul({left.text}, {right.text}, dtype={wide}))"


def _call(part: Call, operands: Sequence[Printed], use: Use) -> Made:
    template = CALLS.get(part.function)
    if template is None:
        raise UnsupportedDefinition(
            f"the {NAME} target has no device function {part.function}; add it to its spellings or run Triton"
        )
    return _spelled(template, operands, use)


def _constant(part: Constant, _: Sequence[Printed], __: Use) -> Made:
    return repr(part.value)


PRINTERS: Printers = {
    Literal: lambda part, _, __: literal_text(part.value, part.dtype),
    BlockSize: lambda part, _, __: f"{type_text(part.dtype)}({part.block})",
    Constant: _constant,
    Elementwise: _elementwise,
    Cast: lambda part, operands, use: cast_text(operands[0], part.to, use),
    Bitcast: lambda part, operands, use: bitcast_text(operands[0], part.to, use),
    ProgramId: lambda part, _, __: f"np.int32(program[{2 - part.axis}])",
    ProgramCount: lambda part, _, __: f"np.int32(grid[{part.axis}])",
    Lanes: lambda part, _, __: f"np.arange({part.extent}, dtype=np.int32)",
    Full: _broadcast,
    Broadcast: _broadcast,
    Reshape: _reshape,
    Transpose: _transpose,
    Expand: _expand,
    Hint: lambda _, operands, __: (operands[0].text, operands[0].level),
    Offset: _offset,
    Load: _load,
    Describe: _describe,
    LoadBlock: _load_block,
    Choose: _choose,
    Reduce: _reduce,
    Scan: _scan,
    Gather: lambda part, operands, _: f"np.take_along_axis({operands[0].text}, {operands[1].text}, {part.axis})",
    Dot: _dot,
    Call: _call,
}
