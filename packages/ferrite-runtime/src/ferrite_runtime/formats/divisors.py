"""What is promised to the compiler of the sizes of a launch: the powers of two that divide them.

A kernel reads rows of a symbolic length in vectors only where the compiler knows that each row begins at a multiple of
the vector's length: 16 bytes are eight elements of two bytes, or four of four.
"""

from __future__ import annotations

from typing import TypeAlias

from ferrite_runtime.errors import SpecError
from ferrite_runtime.formats.json_fields import Fields

Divisors: TypeAlias = tuple[tuple[int, int], ...]
"""Position of a size param and what divides it, in the order of positions; where nothing is promised, no pair."""

PROMISES = (4, 8, 16)
"""What is told apart. Each is a build of its own, so two is not: a row of elements of four bytes gains little by it."""

_MASK = sum(PROMISES)


def divisor_of(size: int) -> int:
    """Returns the greatest promise that a size keeps, 1 for none."""
    return (size | PROMISES[-1]) & -(size | PROMISES[-1]) & _MASK or 1


def divisor_text(size: str) -> str:
    """Returns text that computes `divisor_of` for the text of a size."""
    top = PROMISES[-1]
    return f"((({size}) | {top}) & -(({size}) | {top}) & {_MASK} or 1)"


def take_divisors(fields: Fields) -> Divisors:
    """Returns the field ``divisors`` of an object, taking it; raises `SpecError` naming what is wrong in it."""
    pairs = fields.array("divisors")
    for index, pair in enumerate(pairs):
        is_pair = isinstance(pair, list) and [type(number) for number in pair] == [int, int]
        if not is_pair or pair[1] not in PROMISES:
            at = f"{fields.at('divisors')}[{index}]"
            raise SpecError(at, f"a position and one of {PROMISES} are needed, not {pair!r}")
    return tuple((position, divisor) for position, divisor in pairs)
