"""Expressions of tile programs in Python's syntax: the walk, and how strongly operators bind.

What an operation is called is the target's business. A target hands `print_with` a table from classes of expressions to
functions that make text of the texts of the operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from ferrite_ir.language.dtypes import F64
from ferrite_ir.language.scalar import Number
from ferrite_triton.errors import UnsupportedDefinition
from ferrite_triton.tile.language import (
    BlockSize,
    Elementwise,
    Expression,
    Literal,
    Name,
    TileType,
    operands_of,
    parts_of,
)
from ferrite_triton.tile.operations import is_negative_zero
from ferrite_triton.tile.types import result_types

COMPARISON = 1
OPERATORS: dict[str, int] = {
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), COMPARISON),
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
        text: in the target's words.
        type: of its result, the first of several.
        level: how strongly its operator binds, see `OPERATORS`; `ATOM` of names, numbers and postfix expressions.
        literal: the number, of a literal; None of a negative zero, whose sign a plain number may lose.
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


Made: TypeAlias = "str | tuple[str, int]"
"""Text that needs no parentheses, or text and how strongly its operator binds."""
Printers: TypeAlias = "Mapping[type[Expression], Callable[[Any, Sequence[Printed], Any], Made]]"
"""For each class of expressions what makes its text: of the expression, its operands, and what the target passes on."""

_NOTHING = TileType(F64)


def print_with(printers: Printers, root: Expression, types: Mapping[str, TileType], context: object) -> str:
    """Returns the text of an expression.

    Args:
        printers: the words of the target.
        root: the expression.
        types: of the names in it.
        context: what each function of the table gets.

    Raises:
        UnsupportedDefinition: the target has no text for an operation, or not for its types.
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
        made = _printer_of(printers, part)(part, operands, context)
        text, level = made if isinstance(made, tuple) else (made, ATOM)
        is_plain = isinstance(part, Literal) and not is_negative_zero(part.value)
        literal = part.value if isinstance(part, Literal) and is_plain else None
        done[id(part)] = Printed(
            text, results[0] if results else _NOTHING, level, literal, is_constant=_is_constant(part, operands)
        )
    return done[id(root)].text


def _printer_of(printers: Printers, part: Expression) -> Callable[[Any, Sequence[Printed], Any], Made]:
    found = printers.get(type(part))
    if found is None:
        word = type(part).WORD or type(part).__name__
        raise UnsupportedDefinition(f"this target has no text for {word}; add it to the target's table of expressions")
    return found


def _is_constant(part: Expression, operands: Sequence[Printed]) -> bool:
    return are_constants(operands) if isinstance(part, Elementwise) else isinstance(part, BlockSize)


def are_constants(operands: Sequence[Printed]) -> bool:
    """Returns whether operands are block constants, and numbers at most beside them."""
    has_constant = any(operand.is_constant for operand in operands)
    return has_constant and all(operand.is_constant or operand.literal is not None for operand in operands)


def fill(
    template: str, operands: Sequence[Printed], text_of: Callable[[Printed, int], str] = Printed.above, **words: str
) -> Made:
    """Returns a template with the texts of operands for ``{0}``, ``{1}``, …, in parentheses where they are needed.

    Args:
        template: two operands around an operator, one call, or anything else.
        operands: what stands in it.
        text_of: the text of an operand whose operator has to bind more strongly than a level.
        words: further fields of the template.
    """
    operator = _operator_of(template)
    if operator:
        level = OPERATORS[operator]
        left, right = operands
        # Python reads `a < b == c` as one chain, not as an operation of an operation.
        below = level if level == COMPARISON else level - 1
        return template.format(text_of(left, below), text_of(right, level)), level
    is_call = template.endswith(")") and template.count("(") == 1 and _is_dotted_name(template.partition("(")[0])
    above = LOOSE - 1 if is_call else ATOM - 1
    return template.format(*(text_of(each, above) for each in operands), **words), ATOM if is_call else LOOSE


def _is_dotted_name(text: str) -> bool:
    return all(word.isidentifier() for word in text.split("."))


@cache
def _operator_of(template: str) -> str:
    """Returns the operator of a template that is two operands around one, else ""."""
    words = template.split(" ")
    return words[1] if len(words) == 3 and words[0] == "{0}" and words[2] == "{1}" else ""
