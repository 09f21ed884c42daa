"""Expressions of tile programs as Triton text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from ferrite_ir.language.dtypes import F64
from ferrite_ir.language.scalar import Number
from ferrite_triton.tile.language import (
    Bitcast,
    BlockSize,
    Broadcast,
    Call,
    Cast,
    Constant,
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
    Name,
    Offset,
    ProgramCount,
    ProgramId,
    Reduce,
    Reshape,
    Scan,
    Shape,
    TileType,
    Transpose,
    operands_of,
    parts_of,
)
from ferrite_triton.tile.types import result_types

from .casts import bitcast_text, cast_text
from .combines import reduction_text, scan_text
from .literals import full_text, is_negative_zero, number_text, survives_bare, type_text
from .spellings import Operands, spelling_of, takes_literals

SELECTIONS = frozenset(("where", "masked"))
"""Operations whose first operand is a condition, and the others what it chooses between."""
REFLECTED = frozenset(("add", "sub", "mul", "div_fast"))
"""Operations whose left operand may be a bare number; comparisons and shifts of one are not everywhere."""


OF_POSITIONS = frozenset(("lesser", "greater"))
"""Functions of positions, which have 32 bits at least: a bare number, which Triton makes as wide, changes nothing."""

OPERATORS: dict[str, int] = {
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), 1),
    "|": 2,
    "^": 3,
    "&": 4,
    **dict.fromkeys(("<<", ">>"), 5),
    **dict.fromkeys(("+", "-"), 6),
    **dict.fromkeys(("*", "/", "//", "%"), 7),
}
"""How strongly Python's operators bind."""
LOOSE, SUM, ATOM = 0, OPERATORS["+"], 8


@dataclass(frozen=True, slots=True)
class Printed:
    """An expression as text.

    Attributes:
        text: Triton text.
        type: of its result, the first of several.
        level: how strongly its operator binds, see `OPERATORS`; `ATOM` of names, numbers and postfix expressions.
        literal: the number, of a literal.
        is_constant: whether it is known while compiling, and no literal.
    """

    text: str
    type: TileType
    level: int = ATOM
    literal: Number | None = None
    is_constant: bool = False

    @property
    def is_atom(self) -> bool:
        """Returns whether the text needs no parentheses anywhere."""
        return self.level == ATOM

    @property
    def atom(self) -> str:
        """Returns the text, in parentheses where a method is called on it."""
        return self.above(ATOM - 1)

    def above(self, level: int) -> str:
        """Returns the text, in parentheses unless its operator binds more strongly than those of a level."""
        return self.text if self.level > level else f"({self.text})"

    @property
    def tile(self) -> str:
        """Returns the text as an operand that has to be a tile: a number becomes one of its type."""
        return self.text if self.literal is None else full_text(self.literal, self.type.dtype)


def print_expression(root: Expression, types: Mapping[str, TileType], hold: Callable[[str, str], str]) -> str:
    """Returns the text of an expression.

    Args:
        root: the expression.
        types: of the names in it.
        hold: writes a line that names a text, before the line that this one goes to; takes a prefix for the name and
            the text, returns the name.

    Raises:
        UnsupportedDefinition: an operation has no text for its types.
    """
    if isinstance(root, Name):
        return root.name
    done: dict[int, Printed] = {}
    for part in parts_of(root):
        operands = [done[id(operand)] for operand in operands_of(part)]
        if isinstance(part, Name):
            done[id(part)] = Printed(part.name, types[part.name])
            continue
        results = result_types(part, [operand.type for operand in operands])
        made = _PRINTERS[type(part)](part, operands, hold)
        text, level = made if isinstance(made, tuple) else (made, ATOM)
        is_plain = isinstance(part, Literal) and not is_negative_zero(part.value)
        literal = part.value if isinstance(part, Literal) and is_plain else None
        done[id(part)] = Printed(
            text, results[0] if results else _NOTHING, level, literal, is_constant=_is_constant(part, operands)
        )
    return done[id(root)].text


def shape_text(shape: Shape) -> str:
    """Returns the text of a shape."""
    return f"[{', '.join(map(str, shape))}]"


Hold = Callable[[str, str], str]
Made = str | tuple[str, int]
"""Text that needs no parentheses, or text and how strongly its operator binds."""

_NOTHING = TileType(F64)


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
        return made, ATOM if made.endswith(")") and made.startswith("tl.div_rn(") else LOOSE
    operator = _operator_of(spelling)
    if operator:
        level = OPERATORS[operator]
        left, right = operands
        texts = (_operand(left, bare=bare, above=level - 1), _operand(right, bare=bare, above=level))
        return spelling.format(*texts), level
    is_call = spelling.endswith(")") and spelling.count("(") == 1
    above = LOOSE - 1 if is_call else ATOM - 1
    return spelling.format(*(_operand(each, bare=bare, above=above) for each in operands)), ATOM if is_call else LOOSE


def _is_constant(part: Expression, operands: Sequence[Printed]) -> bool:
    if not isinstance(part, Elementwise):
        return isinstance(part, BlockSize)
    return _are_constants(operands)


def _are_constants(operands: Sequence[Printed]) -> bool:
    """Returns whether operands are block constants, and numbers at most beside them."""
    has_constant = any(operand.is_constant for operand in operands)
    return has_constant and all(operand.is_constant or operand.literal is not None for operand in operands)


@cache
def _operator_of(spelling: str) -> str:
    """Returns the operator of a spelling that is two operands around one, else ""."""
    words = spelling.split(" ")
    return words[1] if len(words) == 3 and words[0] == "{0}" and words[2] == "{1}" else ""


def _operand(printed: Printed, *, bare: bool, above: int = ATOM - 1) -> str:
    """Returns an operand; a number stands ``bare`` where another operand gives it its type and it keeps its value."""
    if printed.literal is None or (bare and survives_bare(printed.literal, printed.type.dtype)):
        return printed.above(above)
    return full_text(printed.literal, printed.type.dtype)


def _has_peer(op: str, operands: Sequence[Printed]) -> bool:
    """Returns whether the numbers among the operands take their type from a tile."""
    literal = [operand.literal is not None for operand in operands]
    if _are_constants(operands):
        return True  # computed while compiling
    if op in SELECTIONS:
        return not literal[0] and not all(literal[1:])
    return not literal[0] or (op in REFLECTED and not literal[-1])


def _cast(part: Cast, operands: Sequence[Printed], _: Hold) -> Made:
    (value,) = operands
    text = value.tile if value.is_atom else value.atom
    made = cast_text(text, value.type.dtype, part.to)
    return made, ATOM if made.endswith(")") else LOOSE


def _bitcast(part: Bitcast, operands: Sequence[Printed], _: Hold) -> Made:
    (value,) = operands
    made = bitcast_text(value.tile if value.is_atom else value.atom, value.type.dtype, part.to)
    return made, ATOM if made.endswith(")") else LOOSE


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


def _other(printed: Printed) -> str:
    """Returns what stands for elements that are not read: a plain number, but of f64, which Triton would make f32."""
    is_wide = printed.literal is not None and printed.type.dtype is F64
    return printed.tile if is_wide else printed.text


def _reduce(part: Reduce, operands: Sequence[Printed], _: Hold) -> Made:
    texts = [operand.atom for operand in operands]
    return reduction_text(part.combine, texts, operands[0].type.dtype, part.axis, keep=part.keep)


def _scan(part: Scan, operands: Sequence[Printed], _: Hold) -> Made:
    return scan_text(part.combine, [operand.atom for operand in operands], part.axis, reverse=part.reverse)


def _gather(part: Gather, operands: Sequence[Printed], _: Hold) -> Made:
    return f"tl.gather({operands[0].text}, {operands[1].text}, {part.axis})"


def _dot(_: Dot, operands: Sequence[Printed], __: Hold) -> Made:
    return f"tl.dot({', '.join(operand.text for operand in operands)})"


def _call(part: Call, operands: Sequence[Printed], _: Hold) -> Made:
    return f"fmath.{part.function}({', '.join(operand.tile for operand in operands)})"


_PRINTERS: dict[type[Expression], Callable[..., Made]] = {
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
    Reduce: _reduce,
    Scan: _scan,
    Gather: _gather,
    Dot: _dot,
    Call: _call,
}
