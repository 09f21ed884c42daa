"""Mixed-radix access maps: integer functions of one flat position that are sums of its digits.

A *digit* ``(step, extent, coefficient)`` stands for ``coefficient * ((p // step) % extent)``. A tuple of digits, sorted
by step and with neighbours that continue each other joined, is a canonical form of an access: it does not depend on how
the iteration space was cut into dims, so that a reshaped use of a value is recognised by equality of plain tuples.
Permutations of dims are the digit tuples that are *bijections*.

Everything here is integer arithmetic; symbolic sizes take part as numbers in general position (see `generic_sizes`).
`None` stands for "not expressible".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from ferrite_ir.language.index import Dim, FloorDiv, Index, Mod
from ferrite_ir.language.sizes import Size

from .generic_sizes import generic, is_symbolic

Digit: TypeAlias = tuple[int, int, int]
Digits: TypeAlias = tuple[Digit, ...]


def identity(count: int) -> Digits:
    """Returns the digits of the position itself, over ``count`` points."""
    return ((1, count, 1),) if count > 1 else ()


def normalized(digits: Iterable[Digit]) -> Digits:
    """Returns the digits sorted by step, without zeros, and with neighbours that continue each other joined."""
    kept = sorted(digit for digit in digits if digit[1] > 1 and digit[2] != 0)
    if len(kept) < 2:
        return tuple(kept)
    joined = [kept[0]]
    for step, extent, coefficient in kept[1:]:
        last_step, last_extent, last_coefficient = joined[-1]
        if step == last_step * last_extent and coefficient == last_coefficient * last_extent:
            joined[-1] = (last_step, last_extent * extent, last_coefficient)
        else:
            joined.append((step, extent, coefficient))
    return tuple(joined)


def digits_of(index: Index, steps: Mapping[Dim, int]) -> tuple[Size, list[Digit], tuple[Dim, ...], bool]:
    """Returns ``(constant, digits, rigid, exact)`` of an index over dims that lie at ``steps`` in the flat position.

    Where the index is not ``exact``, some parts are no sum of digits (indirect, unaligned divisions): ``rigid`` holds
    the dims inside them, and the digits cover the rest only.
    """
    found: list[Digit] = []
    rigid: list[Dim] = []
    exact = True
    for atom, coefficient in index.terms:
        if type(atom) is Dim:
            if atom in steps:
                found.append((steps[atom], generic(atom.size), generic(coefficient)))
            continue
        digit = _atom_digit(atom, steps)
        if digit is None:
            exact = False
            rigid.extend(sorted((dim for dim in atom.index.dims if dim in steps), key=steps.__getitem__))
        else:
            found.append((digit[0], digit[1], digit[2] * generic(coefficient)))
    return index.const, found, tuple(rigid), exact


def _atom_digit(atom: object, steps: Mapping[Dim, int]) -> Digit | None:
    """Returns a division or remainder as one digit, if its numerator is one plain run of the position."""
    if type(atom) is not FloorDiv and type(atom) is not Mod:
        return None
    const, parts, _, exact = digits_of(atom.numerator, steps)
    run = normalized(parts)
    if const != 0 or not exact or len(run) != 1 or run[0][2] != 1:
        return None
    step, extent, _ = run[0]
    divisor = generic(atom.divisor)
    if extent % divisor:
        return None
    return (step * divisor, extent // divisor, 1) if type(atom) is FloorDiv else (step, divisor, 1)


def is_bijection(digits: Digits, count: int) -> bool:
    """Returns whether the digits map ``[0, count)`` onto itself one to one."""
    return _tiles(((step, extent) for step, extent, _ in digits), count) and _tiles(
        sorted((coefficient, extent) for _, extent, coefficient in digits), count
    )


def _tiles(pieces: Iterable[tuple[int, int]], count: int) -> bool:
    reached = 1
    for start, extent in pieces:
        if start != reached:
            return False
        reached *= extent
    return reached == count


def covers(digits: Digits, count: int) -> bool:
    """Returns whether the values of the digits are exactly ``[0, count)`` (each perhaps at many positions)."""
    return _tiles(sorted((coefficient, extent) for _, extent, coefficient in digits), count)


def is_injective(digits: Digits, count: int) -> bool:
    """Returns whether different positions in ``[0, count)`` surely give different values."""
    if not _tiles(((step, extent) for step, extent, _ in digits), count):
        return False
    reach, block = 0, 1
    for coefficient, extent in sorted((abs(coefficient), extent) for _, extent, coefficient in digits):
        if coefficient <= reach or (is_symbolic(reach) and coefficient % block):
            return False
        reach += coefficient * (extent - 1)
        block = coefficient * extent
    return True


def inverse(bijection: Digits) -> Digits:
    """Returns the inverse of a bijection."""
    return normalized((coefficient, extent, step) for step, extent, coefficient in bijection)


def compose(outer: Digits, inner: Digits) -> Digits | None:
    """Returns ``outer(inner(p))`` for a bijection ``inner``, or None where the cuts of the two do not align."""
    found: list[Digit] = []
    for step, extent, coefficient in outer:
        end = step * extent
        for inner_step, inner_extent, inner_coefficient in inner:
            inner_end = inner_coefficient * inner_extent
            low, high = max(step, inner_coefficient), min(end, inner_end)
            if low >= high:
                continue
            if low % step or low % inner_coefficient or high % low or inner_end % high:
                return None
            found.append((inner_step * (low // inner_coefficient), high // low, coefficient * (low // step)))
    return normalized(found)


def lifted(digits: Digits, reduction: int) -> Digits:
    """Returns digits over grid positions as digits over grid × reduction positions."""
    return (
        digits
        if reduction == 1
        else tuple((step * reduction, extent, coefficient) for step, extent, coefficient in digits)
    )


def lowered(digits: Digits, reduction: int) -> Digits | None:
    """Returns digits over grid × reduction positions as digits over grid positions, None if others matter."""
    if reduction == 1:
        return digits
    if any(step % reduction for step, _, _ in digits):
        return None
    return tuple((step // reduction, extent, coefficient) for step, extent, coefficient in digits)


def separates(bijection: Digits, reduction: int) -> bool:
    """Returns whether a bijection of grid × reduction positions maps grid points to grid points, others to others."""
    for step, extent, coefficient in bijection:
        if step < reduction < step * extent:
            if coefficient != step or reduction % step or step * extent % reduction:
                return False
        elif (step < reduction) != (coefficient * extent <= reduction):
            return False
    return True


def grid_part(bijection: Digits, reduction: int) -> Digits:
    """Returns a bijection that `separates` grid from reduction points as a bijection of grid positions alone."""
    found: list[Digit] = []
    for step, extent, coefficient in bijection:
        if step >= reduction:
            found.append((step // reduction, extent, coefficient // reduction))
        elif step * extent > reduction:
            found.append((1, step * extent // reduction, 1))
    return normalized(found)
