"""The text form of indices: sums of products, quotients as ``(e // n)``, remainders as ``(e % n)``."""

from __future__ import annotations

from collections.abc import Callable

from ferrite_ir.language import sizes
from ferrite_ir.language.index import Atom, Computed, Dim, FloorDiv, Index, Indirect, Mod
from ferrite_ir.language.sizes import Size
from ferrite_ir.language.text_hooks import PRINTERS


def index_text(index: Index, spell: Callable[[Computed], str] = str) -> str:
    """Returns the text form of an index; ``spell`` writes the scalars inside indirect atoms."""
    if _is_division(index):
        return atom_text(index.terms[0][0], spell)[1:-1]
    parts = [_render_term(atom, coefficient, spell) for atom, coefficient in index.terms]
    if index.const != 0 or not parts:
        parts.append(sizes.text(index.const))
    first, *rest = parts
    return first + "".join(f" - {part[1:]}" if part.startswith("-") else f" + {part}" for part in rest)


def _is_division(index: Index) -> bool:
    """Returns whether an index is just one quotient or remainder, which needs no parentheses of its own."""
    return (
        len(index.terms) == 1
        and index.terms[0][1] == 1
        and index.const == 0
        and type(index.terms[0][0]) in (FloorDiv, Mod)
    )


def _render_term(atom: Atom, coefficient: Size, spell: Callable[[Computed], str]) -> str:
    body = atom_text(atom, spell)
    if coefficient == 1:
        return body
    if type(coefficient) is int and coefficient < 0:
        return f"-{body}" if coefficient == -1 else f"-{body}*{-coefficient}"
    factor = sizes.text(coefficient)
    return f"{body}*{factor}" if type(coefficient) is int or factor.isidentifier() else f"{body}*({factor})"


def atom_text(atom: Atom, spell: Callable[[Computed], str] = str) -> str:
    """Returns the text form of an atom; ``spell`` writes the scalars inside indirect atoms."""
    match atom:
        case Dim():
            return atom.name
        case FloorDiv():
            return f"({_numerator_text(atom.numerator, spell)} // {_divisor_text(atom.divisor)})"
        case Mod():
            return f"({_numerator_text(atom.numerator, spell)} % {_divisor_text(atom.divisor)})"
        case Indirect():
            return f"{'wrap' if atom.wraps else 'at'}({spell(atom.value)}, {sizes.text(atom.size)})"
    raise TypeError(f"not an atom: {atom!r}")


def _numerator_text(index: Index, spell: Callable[[Computed], str]) -> str:
    text = index_text(index, spell)
    is_sum = len(index.terms) + (index.const != 0) > 1
    return f"({text})" if is_sum or text.startswith("-") or _is_division(index) else text


def _divisor_text(divisor: Size) -> str:
    rendered = sizes.text(divisor)
    return rendered if rendered.isalnum() else f"({rendered})"


PRINTERS["index"] = index_text
