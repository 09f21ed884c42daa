"""Expressions of tile programs as Triton text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ferrite_ir.language.dtypes import BOOL, F32, F64, DType
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
    Expression,
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
    TileType,
    Transpose,
)
from ferrite_triton.tile.operations import SELECTIONS, is_negative_zero

from .casts import bitcast_text, cast_text
from .combines import reduction_text, scan_text
from .literals import full_text, number_text, survives_bare, type_text
from .printed import ATOM, LOOSE, OPERATORS, SUM, Made, Printed, Printers, are_constants, fill, print_with
from .spellings import Operands, spelling_of, takes_literals
from .statements import Hold

REFLECTED = frozenset(("add", "sub", "mul", "div_fast"))
"""Operations whose left operand may be a bare number; comparisons and shifts of one are not everywhere."""
OF_POSITIONS = frozenset(("lesser", "greater"))
"""Functions of positions, which have 32 bits at least: a bare number, which Triton makes as wide, changes nothing."""


def print_expression(root: Expression, types: Mapping[str, TileType], hold: Hold) -> str:
    """Returns the Triton text of an expression; see `print_with`.

    Raises:
        UnsupportedDefinition: an operation has no text for its types.
    """
    return print_with(_PRINTERS, root, types, hold)


def _tile(printed: Printed) -> str:
    """Returns the text as an operand that has to be a tile: a number becomes one of its type."""
    return printed.text if printed.literal is None else full_text(printed.literal, printed.type.dtype)


def shape_text(shape: Shape) -> str:
    """Returns the text of a shape."""
    return f"[{', '.join(map(str, shape))}]"


def _literal(part: Literal, _: Sequence[Printed], __: Hold) -> Made:
    # Triton's plain numbers lose the sign of a zero.
    spell = full_text if is_negative_zero(part.value) else number_text
    return spell(part.value, part.dtype)


def _block_size(part: BlockSize, _: Sequence[Printed], __: Hold) -> Made:
    return str(part.block), ATOM if part.block.parts == 1 else OPERATORS["//"]


def _constant(part: Constant, _: Sequence[Printed], __: Hold) -> Made:
    value = part.value
    if isinstance(value, str):
        return f'"{value}"'
    return number_text(value, F64) if isinstance(value, float) else str(value)


def _elementwise(part: Elementwise, operands: Sequence[Printed], hold: Hold) -> Made:
    dtype = operands[0].type.dtype
    spelling = spelling_of(part.op, dtype)
    bare = (takes_literals(spelling) or part.op in OF_POSITIONS) and _has_peer(part.op, operands)
    if not isinstance(spelling, str):
        texts = tuple(_operand(each, bare=bare) if each.is_atom else hold("part", each.text) for each in operands)
        literals = tuple(each.literal for each in operands)
        made = spelling(Operands(texts, dtype, literals, lambda text: hold(part.op, text)))
        return made if isinstance(made, tuple) else (made, LOOSE)
    return fill(spelling, operands, lambda each, above: _operand(each, bare=bare, above=above))


def _operand(printed: Printed, *, bare: bool, above: int = ATOM - 1) -> str:
    """Returns an operand; a number stands ``bare`` where another operand gives it its type and it keeps its value."""
    if printed.literal is None or (bare and survives_bare(printed.literal, printed.type.dtype)):
        return printed.above(above)
    return full_text(printed.literal, printed.type.dtype)


def _has_peer(op: str, operands: Sequence[Printed]) -> bool:
    """Returns whether the numbers among the operands take their type from a tile."""
    literal = [operand.literal is not None for operand in operands]
    if are_constants(operands):
        return True  # computed while compiling
    if op in SELECTIONS:
        return not literal[0] and not all(literal[1:])
    return not literal[0] or (op in REFLECTED and not literal[-1])


def _cast(part: Cast, operands: Sequence[Printed], _: Hold) -> Made:
    (value,) = operands
    text = _tile(value) if value.is_atom else value.atom
    return cast_text(text, value.type.dtype, part.to), _level_of_cast(value.type.dtype, part.to)


def _bitcast(part: Bitcast, operands: Sequence[Printed], _: Hold) -> Made:
    (value,) = operands
    made = bitcast_text(_tile(value) if value.is_atom else value.atom, value.type.dtype, part.to)
    return made, _level_of_cast(value.type.dtype, part.to)


def _level_of_cast(source: DType, target: DType) -> int:
    """Returns how strongly the text of a conversion binds: one to bool compares with 0, all others are calls."""
    return LOOSE if target is BOOL and source is not BOOL else ATOM


def _full(part: Full, operands: Sequence[Printed], _: Hold) -> Made:
    return f"tl.full({shape_text(part.shape)}, {operands[0].text}, {type_text(operands[0].type.dtype)})"


def _broadcast(part: Broadcast, operands: Sequence[Printed], _: Hold) -> Made:
    (value,) = operands
    if value.literal is not None:
        return f"tl.full({shape_text(part.shape)}, {value.text}, {type_text(value.type.dtype)})"
    return f"tl.broadcast_to({value.text}, {shape_text(part.shape)})"


def _reshape(part: Reshape, operands: Sequence[Printed], _: Hold) -> Made:
    return f"tl.reshape({operands[0].text}, {shape_text(part.shape)})"


def _transpose(part: Transpose, operands: Sequence[Printed], _: Hold) -> Made:
    return f"tl.trans({operands[0].text}, {', '.join(map(str, part.order))})"


def _expand(part: Expand, operands: Sequence[Printed], _: Hold) -> Made:
    rank = len(operands[0].type.shape) + len(part.axes)
    subscripts = ("None" if axis in part.axes else ":" for axis in range(rank))
    return f"{operands[0].atom}[{', '.join(subscripts)}]"


def _hint(part: Hint, operands: Sequence[Printed], _: Hold) -> Made:
    along = [axis for axis, number in enumerate(part.numbers) if number > 1]
    if part.says == "max_constancy" and len(along) == 1:
        return f"fmath.equal_neighbours({operands[0].text}, {along[0]}, {part.numbers[along[0]]})"
    return f"tl.{part.says}({operands[0].text}, [{', '.join(map(str, part.numbers))}])"


def _offset(_: Offset, operands: Sequence[Printed], __: Hold) -> Made:
    pointer, elements = operands
    if elements.literal == 0:
        return pointer.text, pointer.level
    return f"{pointer.above(SUM - 1)} + {elements.above(SUM)}", SUM


def _load(part: Load, operands: Sequence[Printed], _: Hold) -> Made:
    pointer, *given = operands
    mask = given.pop(0).text if part.mask is not None else ""
    other = _other(given.pop(0)) if given else None
    if part.row_per_thread:
        return f'fmath.load_rows({pointer.text}, {mask}, {other}, "{part.eviction}")'
    arguments = [pointer.text, *([mask] if mask else []), *([f"other={other}"] if other is not None else [])]
    if part.eviction:
        arguments.append(f'eviction_policy="{part.eviction}"')
    return f"tl.load({', '.join(arguments)})"


def _describe(part: Describe, operands: Sequence[Printed], _: Hold) -> Made:
    pointer, *numbers = (operand.text for operand in operands)
    rank = len(part.shape)
    extents, steps = ", ".join(numbers[:rank]), ", ".join(numbers[rank:])
    return f"tl.make_tensor_descriptor({pointer}, [{extents}], [{steps}], {shape_text(part.shape)})"


def _load_block(_: LoadBlock, operands: Sequence[Printed], __: Hold) -> Made:
    descriptor, *positions = operands
    return f"{descriptor.atom}.load([{', '.join(position.text for position in positions)}])"


def _choose(part: Choose, operands: Sequence[Printed], _: Hold) -> Made:
    chosen, otherwise = operands
    return f"{chosen.text} if {part.constant} > 1 else {otherwise.text}", LOOSE


def _other(printed: Printed) -> str:
    """Returns what stands for elements that are not read: a plain number, but of f64, which Triton would make f32."""
    is_wide = printed.literal is not None and printed.type.dtype is F64
    return _tile(printed) if is_wide else printed.text


def _reduce(part: Reduce, operands: Sequence[Printed], _: Hold) -> Made:
    texts = [operand.atom for operand in operands]
    return reduction_text(part.combine, texts, operands[0].type.dtype, part.axis, keep=part.keep)


def _scan(part: Scan, operands: Sequence[Printed], _: Hold) -> Made:
    return scan_text(part.combine, [operand.atom for operand in operands], part.axis, reverse=part.reverse)


def _gather(part: Gather, operands: Sequence[Printed], _: Hold) -> Made:
    return f"tl.gather({operands[0].text}, {operands[1].text}, {part.axis})"


def _dot(part: Dot, operands: Sequence[Printed], __: Hold) -> Made:
    left, precision = operands[0].type, ""
    texts = [operand.text for operand in operands]
    if left.dtype is F32 and part.fast:
        # Triton hands factors to tensor cores as they are, and these cut off what TF32 has no digits for.
        texts[:2] = (f"fmath.to_tf32({factor})" for factor in texts[:2])
        precision = ', input_precision="tf32"'
    elif left.dtype is F32:
        precision = ', input_precision="ieee"'
    elif part.few_digits:
        precision = f", max_num_imprecise_acc=min({part.few_digits}, {left.shape[1]})"
    return f"tl.dot({', '.join(texts)}{precision})"


def _call(part: Call, operands: Sequence[Printed], _: Hold) -> Made:
    return f"fmath.{part.function}({', '.join(_tile(operand) for operand in operands)})"


_PRINTERS: Printers = {
    Literal: _literal,
    BlockSize: _block_size,
    Constant: _constant,
    Elementwise: _elementwise,
    Cast: _cast,
    Bitcast: _bitcast,
    ProgramId: lambda part, _, __: f"tl.program_id({part.axis})",
    ProgramCount: lambda part, _, __: f"tl.num_programs({part.axis})",
    Lanes: lambda part, _, __: f"tl.arange(0, {part.extent})",
    Full: _full,
    Broadcast: _broadcast,
    Reshape: _reshape,
    Transpose: _transpose,
    Expand: _expand,
    Hint: _hint,
    Offset: _offset,
    Load: _load,
    Describe: _describe,
    LoadBlock: _load_block,
    Choose: _choose,
    Reduce: _reduce,
    Scan: _scan,
    Gather: _gather,
    Dot: _dot,
    Call: _call,
}
