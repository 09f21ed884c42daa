"""The least and the greatest of sizes, those left out that another provably beats."""

from __future__ import annotations

from .size_generators import GENERATORS, Extreme
from .size_polynomials import Size, Symbolic, bounds, is_at_most, settle, value_of


def extreme(function: str, *operands: Size) -> Size:
    """Returns the least (``min``) or greatest (``max``) of sizes, those left out that another provably beats."""
    kept: list[Size] = []
    for operand in operands:
        parts = operand_list(operand, function)
        kept.extend(part for part in parts if part not in kept)
    for operand in list(kept):
        others = [other for other in kept if other is not operand and other != operand]
        if function == "max":
            beaten = any(is_at_most(operand, other) for other in others)
        else:
            beaten = any(is_at_most(other, operand) for other in others)
        if beaten:
            kept.remove(operand)
    if len(kept) == 1:
        return kept[0]
    kept.sort(key=str)
    key = (Extreme, function, *kept)
    found = GENERATORS.get(key)
    if found is None:
        made = object.__new__(Extreme)
        made.function, made.operands = function, tuple(kept)
        settle(made, *_extreme_bounds(function, kept), f"{function}({', '.join(map(str, kept))})")
        found = GENERATORS.setdefault(key, made)
    return value_of(found)


def operand_list(size: Size, function: str) -> tuple[Size, ...]:
    """Returns the operands of a size that is such an extreme, else the size alone."""
    if isinstance(size, Symbolic) and len(size.terms) == 1:
        monomial, coefficient = size.terms[0]
        if coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1:
            generator = monomial[0][0]
            if isinstance(generator, Extreme) and generator.function == function:
                return generator.operands
    return (size,)


def _extreme_bounds(function: str, operands: list[Size]) -> tuple[int | None, int | None]:
    lows, highs = zip(*map(bounds, operands), strict=True)
    known_lows, known_highs = [x for x in lows if x is not None], [x for x in highs if x is not None]
    if function == "max":
        return max(known_lows, default=None), (max(known_highs) if len(known_highs) == len(highs) else None)
    return (min(known_lows) if len(known_lows) == len(lows) else None), min(known_highs, default=None)
