"""Symbolic sizes: interned polynomials with integer coefficients over generators (see `size_generators`).

A `Symbolic` is a sum of integer multiples of products of generators, with no zero coefficient, in lexicographic order;
it always has a generator, so whatever turns out to be a number is an ``int``. Equal polynomials are the same object.

Comparison operators answer what holds for every value of the symbols and raise `Undecided` where values differ;
``==`` compares polynomials. Nothing here looks at a hint.
"""

from __future__ import annotations

from math import gcd
from typing import Any, TypeAlias

from .size_generators import (
    GENERATORS,
    Floor,
    Generator,
    Monomial,
    Symbol,
    Terms,
    generators_in,
    monomial_order,
    monomial_product,
    monomial_quotient,
    terms_text,
)

Size: TypeAlias = "int | Symbolic"


class Undecided(Exception):
    """A question about a symbolic size has no one answer for all values of its symbols."""

    def __init__(self, question: str, *involved: Size) -> None:
        super().__init__(f"{question} depends on a size that is known only when the program runs")
        self.question = question
        self.sizes = tuple(size for size in involved if isinstance(size, Symbolic))


_POLYNOMIALS: dict[Any, Symbolic] = {}


def exist() -> bool:
    """Returns whether this process has made a symbolic size yet."""
    return bool(_POLYNOMIALS)


class Symbolic:
    """A polynomial in normal form; see the module. Compared by identity."""

    __slots__ = ("__weakref__", "_bounds", "_text", "terms")

    terms: tuple[tuple[Monomial, int], ...]
    _text: str | None
    _bounds: tuple[int | None, int | None] | None

    def __add__(self, other: Size) -> Size:
        if not isinstance(other, int | Symbolic):
            return NotImplemented
        if other == 0:
            return self
        merged = dict(self.terms)
        for monomial, coefficient in terms_of(other):
            merged[monomial] = merged.get(monomial, 0) + coefficient
        return polynomial(merged)

    __radd__ = __add__

    def __neg__(self) -> Size:
        return self * -1

    def __sub__(self, other: Size) -> Size:
        return self + -other

    def __rsub__(self, other: int) -> Size:
        return -self + other

    def __mul__(self, other: Size) -> Size:
        if not isinstance(other, int | Symbolic):
            return NotImplemented
        if type(other) is int and other in (0, 1):
            return self if other else 0
        key = (self, "*", other)
        found = _MEMO.get(key)
        if found is None:
            found = _MEMO[key] = _product(self, other)
        return found

    __rmul__ = __mul__

    def __pow__(self, power: int) -> Size:
        total: Size = 1
        for _ in range(power):
            total = self * total
        return total

    def __floordiv__(self, divisor: Size) -> Size:
        return floor_quotient(self, divisor)

    def __rfloordiv__(self, numerator: int) -> Size:
        return floor_quotient(numerator, self)

    def __mod__(self, divisor: Size) -> Size:
        return self - divisor * floor_quotient(self, divisor)

    def __rmod__(self, numerator: int) -> Size:
        return numerator - self * floor_quotient(numerator, self)

    def __le__(self, other: Size) -> bool:
        return _decided(self, other, "<=")

    def __lt__(self, other: Size) -> bool:
        return _decided(self + 1, other, "<")

    def __ge__(self, other: Size) -> bool:
        return _decided(other, self, ">=")

    def __gt__(self, other: Size) -> bool:
        return _decided(other + 1, self, ">")

    def __bool__(self) -> bool:
        low, high = bounds(self)
        if (low is not None and low > 0) or (high is not None and high < 0):
            return True
        raise Undecided(f"whether {self} is 0", self)

    def __int__(self) -> int:
        raise Undecided(f"the value of {self}", self)

    __index__ = __int__

    def __float__(self) -> float:
        raise Undecided(f"the value of {self}", self)

    def __str__(self) -> str:
        if self._text is None:
            self._text = terms_text(self.terms)
        return self._text

    __repr__ = __str__

    def __reduce__(self) -> tuple[Any, ...]:
        return polynomial_of, (self.terms,)

    def __copy__(self) -> Symbolic:
        return self

    def __deepcopy__(self, memo: object) -> Symbolic:
        return self


_MEMO: dict[Any, Any] = {}
"""What products, quotients and comparisons have given."""


def terms_of(size: Size) -> tuple[tuple[Monomial, int], ...]:
    """Returns the terms of a size, of a number one without generators."""
    return size.terms if isinstance(size, Symbolic) else (((), size),)


def polynomial(terms: Terms) -> Size:
    """Returns the sum of these multiples of monomials."""
    kept = [(monomial, coefficient) for monomial, coefficient in terms.items() if coefficient]
    if not kept:
        return 0
    if len(kept) == 1 and kept[0][0] == ():
        return kept[0][1]
    if len(kept) > 1:
        kept.sort(key=lambda term: monomial_order(term[0]))
    return polynomial_of(tuple(kept))


def polynomial_of(terms: tuple[tuple[Monomial, int], ...]) -> Symbolic:
    """Returns the polynomial with these terms, which are in normal form and hold a generator."""
    found = _POLYNOMIALS.get(terms)
    if found is None:
        found = object.__new__(Symbolic)
        found.terms, found._text, found._bounds = terms, None, None
        found = _POLYNOMIALS.setdefault(terms, found)  # see `index`: threads may make one thing at once
    return found


def _product(a: Symbolic, b: Size) -> Size:
    total: Terms = {}
    for left, x in a.terms:
        for right, y in terms_of(b):
            monomial = monomial_product(left, right)
            total[monomial] = total.get(monomial, 0) + x * y
    return polynomial(total)


# --- generators -----------------------------------------------------------------------------------------------------


def settle(generator: Generator, low: int | None, high: int | None, order: str) -> None:
    """Gives a new generator its bounds and its text, and makes the polynomial that it is."""
    generator.low, generator.high, generator.order = low, high, order
    generator.size = polynomial_of(((((generator, 1),), 1),))


def symbol(name: str, low: int | None = 1, high: int | None = None, hint: int | None = None) -> Symbolic:
    """Returns the symbolic size with this name and range.

    ``hint`` is a value that it had once. Symbols that differ in any of these are different.
    """
    key = (Symbol, name, low, high, hint)
    found = GENERATORS.get(key)
    if found is None:
        made = object.__new__(Symbol)
        made.name, made.hint = name, hint
        settle(made, low, high, name)
        found = GENERATORS.setdefault(key, made)
    size: Symbolic = found.size
    return size


def value_of(generator: Generator) -> Size:
    """Returns a generator as a size: a number where its bounds leave it no other."""
    is_number = generator.low is not None and generator.low == generator.high
    return generator.low if is_number else generator.size  # type: ignore[return-value]


def _floor(numerator: Symbolic, divisor: Size) -> Size:
    key = (Floor, numerator, divisor)
    found = GENERATORS.get(key)
    if found is None:
        made = object.__new__(Floor)
        made.numerator, made.divisor = numerator, divisor
        settle(made, *_floor_bounds(numerator, divisor), f"({_enclosed(numerator)}//{_enclosed(divisor)})")
        found = GENERATORS.setdefault(key, made)
    return value_of(found)


def _floor_bounds(numerator: Symbolic, divisor: Size) -> tuple[int | None, int | None]:
    low, high = bounds(numerator)
    least, most = bounds(divisor)
    if least is None or least < 1:  # it is no 0, but may be of either sign
        reach = None if low is None or high is None else max(abs(low), abs(high))
        return None if reach is None else -reach, reach
    if low is not None:
        low = low // least if low < 0 else 0 if most is None else low // most
    if high is not None:
        high = high // least if high >= 0 else -1 if most is None else high // most
    return low, high


# --- bounds and proofs ----------------------------------------------------------------------------------------------


def bounds(size: Size) -> tuple[int | None, int | None]:
    """Returns the least and the greatest value that a size can have, as far as is known; None for no bound."""
    if not isinstance(size, Symbolic):
        return size, size
    if size._bounds is None:  # noqa: SLF001 - memoised here
        low: int | None = 0
        high: int | None = 0
        for monomial, coefficient in size.terms:
            least, most = _monomial_bounds(monomial)
            if coefficient < 0:
                least, most = most, least
            low = None if low is None or least is None else low + coefficient * least
            high = None if high is None or most is None else high + coefficient * most
        size._bounds = (low, high)  # noqa: SLF001
    return size._bounds  # noqa: SLF001


def _monomial_bounds(monomial: Monomial) -> tuple[int | None, int | None]:
    low: int = 1
    high: int | None = 1
    for generator, power in monomial:
        if generator.low is None or generator.low < 0:
            return (generator.low, generator.high) if len(monomial) == power == 1 else (None, None)
        low *= generator.low**power
        high = None if high is None or generator.high is None else high * generator.high**power
    return low, high


def is_at_most(a: Size, b: Size) -> bool:
    """Returns whether ``a <= b`` is proved for every value of the symbols; False where it is not known."""
    if type(a) is int and type(b) is int:
        return a <= b
    key = (a, "<=", b)
    found = _MEMO.get(key)
    if found is None:
        found = _MEMO[key] = _is_nonnegative(b - a)
    return found


def _decided(a: Size, b: Size, sign: str) -> bool:
    """Returns whether ``a <= b``.

    Raises:
        Undecided: it does for some values of the symbols only.
    """
    if is_at_most(a, b):
        return True
    if is_at_most(b + 1, a):
        return False
    raise Undecided(f"whether {b - a} is at least 0 (in a comparison by {sign})", a, b)


_ROUNDS = 3


def _is_nonnegative(size: Size) -> bool:
    """Returns whether a size is proved nonnegative.

    By bounds, by shifting each generator to start at 0, and by both after floor quotients were replaced by what bounds
    them.
    """
    for _ in range(_ROUNDS):
        low, _ = bounds(size)
        if low is not None and low >= 0:
            return True
        if not isinstance(size, Symbolic):
            return False
        if _has_no_negative(_shifted(size)):
            return True
        weaker = _without_floor(size)
        if weaker is None:
            return False
        size = weaker
    return False


def _has_no_negative(size: Size) -> bool:
    return all(coefficient >= 0 for _, coefficient in terms_of(size))


def _shifted(size: Symbolic) -> Size:
    """Returns the polynomial in ``generator - low``: nonnegative coefficients then prove that it is nonnegative."""
    total: Size = 0
    for monomial, coefficient in size.terms:
        part: Size = coefficient
        for generator, power in monomial:
            if generator.low is None:
                return -1
            part = part * (generator.size + generator.low) ** power
        total = total + part
    return total


def _without_floor(size: Symbolic) -> Size | None:
    """Returns a multiple of something at most as large as ``size`` with one floor quotient fewer; None if it has none.

    ``a//b`` lies between ``(a - b + 1)/b`` and ``a/b``, for a positive ``b``. It must occur to the first power, with
    one sign, beside nonnegative generators.
    """
    for generator in generators_in(size):
        if not isinstance(generator, Floor) or not is_at_most(1, generator.divisor):
            continue
        within, others, signs = _parts_with(size, generator)
        if within is None or len(signs) != 1:
            continue
        divisor = generator.divisor
        bound = generator.numerator if signs == {-1} else generator.numerator - divisor + 1
        multiple: Size = others * divisor + within * bound
        return multiple
    return None


def _parts_with(size: Symbolic, generator: Generator) -> tuple[Size | None, Size, set[int]]:
    """Returns ``(factor, rest, signs)`` with ``size == factor * generator + rest``; None for a factor that is none."""
    within: Terms = {}
    others: Terms = {}
    signs: set[int] = set()
    for monomial, coefficient in size.terms:
        powers = dict(monomial)
        power = powers.pop(generator, 0)
        if not power:
            others[monomial] = coefficient
            continue
        if power > 1 or any(g.low is None or g.low < 0 for g in powers):
            return None, 0, set()
        within[tuple(powers.items())] = coefficient
        signs.add(1 if coefficient > 0 else -1)
    return polynomial(within), polynomial(others), signs


# --- division -------------------------------------------------------------------------------------------------------


def exact_quotient(a: Size, b: Size) -> Size | None:
    """Returns ``a / b`` if ``b`` divides ``a`` as a polynomial with integer coefficients, else None."""
    if type(a) is int and type(b) is int:
        return a // b if b != 0 and a % b == 0 else None
    key = (a, "/", b)
    if key not in _MEMO:
        _MEMO[key] = _divided(a, b)
    return _MEMO[key]  # type: ignore[no-any-return]


def _divided(a: Size, b: Size) -> Size | None:
    """Returns the exact quotient by long division: the leading term of what is left, by that of the divisor."""
    if b == 0:
        return None
    (lead, factor), *_ = terms_of(b)
    total: Terms = {}
    rest = a
    while rest != 0:
        (monomial, coefficient), *_ = terms_of(rest)
        part = monomial_quotient(monomial, lead)
        if part is None or coefficient % factor:
            return None
        total[part] = coefficient // factor
        rest = rest - b * polynomial({part: coefficient // factor})
    return polynomial(total)


def floor_quotient(a: Size, b: Size) -> Size:
    """Returns ``floor(a / b)`` for a divisor that is 0 for no values of its symbols.

    One that is negative for all of them is written as a positive one: ``a // -b`` is ``-a // b``.
    """
    if type(a) is int and type(b) is int:
        return a // b
    if is_at_most(b, -1):
        return floor_quotient(-a, -b)
    key = (a, "//", b)
    found = _MEMO.get(key)
    if found is None:
        found = _MEMO[key] = _floor_quotient(a, b)
    return found


def _floor_quotient(a: Size, b: Size) -> Size:
    whole: Size = 0
    rest: Size = 0
    for monomial, coefficient in terms_of(a):
        term = polynomial({monomial: coefficient})
        exact = exact_quotient(term, b)
        if exact is not None:
            whole = whole + exact
        elif not monomial and type(b) is int:
            whole, rest = whole + coefficient // b, rest + coefficient % b
        else:
            rest = rest + term
    exact = exact_quotient(rest, b)
    if exact is not None:
        return whole + exact
    if is_at_most(0, rest) and is_at_most(rest + 1, b):
        return whole
    if is_at_most(rest, -1) and is_at_most(-b, rest):
        return whole - 1
    return whole + _floor_of_rest(rest, b)


def _floor_of_rest(rest: Size, divisor: Size) -> Size:
    common = gcd(_content(rest), _content(divisor))
    if common > 1:
        reduced, smaller = exact_quotient(rest, common), exact_quotient(divisor, common)
        assert reduced is not None
        assert smaller is not None
        return floor_quotient(reduced, smaller)
    if not isinstance(rest, Symbolic):
        # A number over a symbolic divisor that it may reach.
        return _floor_of_number(rest, divisor)
    if len(rest.terms) == 1 and type(divisor) is int:  # a positive number
        monomial, coefficient = rest.terms[0]
        inner = monomial[0][0]
        if coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1 and isinstance(inner, Floor):
            return floor_quotient(inner.numerator, divisor * inner.divisor)
    return _floor(rest, divisor)


def _floor_of_number(number: int, divisor: Size) -> Size:
    assert isinstance(divisor, Symbolic)
    # Written over a numerator that has a generator, as all floor quotients are.
    key = (Floor, number, divisor)
    found = GENERATORS.get(key)
    if found is None:
        made = object.__new__(Floor)
        made.numerator, made.divisor = number, divisor
        low, high = (0, number) if number >= 0 else (number, -1)
        if not is_at_most(1, divisor):
            low, high = -abs(number), abs(number)
        settle(made, low, high, f"({_enclosed(number)}//{_enclosed(divisor)})")
        found = GENERATORS.setdefault(key, made)
    size: Symbolic = found.size
    return size


def _content(size: Size) -> int:
    """Returns the greatest number that divides all coefficients."""
    return gcd(*(coefficient for _, coefficient in terms_of(size)))


def _enclosed(size: Size) -> str:
    text = str(size)
    return text if text.isidentifier() or text.isdigit() else f"({text})"
