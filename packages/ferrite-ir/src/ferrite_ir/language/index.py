"""Index expressions: interned quasi-affine integer functions of loop dims.

An `Index` is ``const + sum(coefficient * atom)`` in a normal form: like atoms merged, zero coefficients dropped, atoms
sorted, and floor-divisions and remainders simplified with the known extents of the dims. Equal expressions are the
same object, so equality is identity. An atom is a `Dim` (a loop variable that knows its extent), a `FloorDiv` or `Mod`
of an index by a positive size, or an `Indirect` (an integer computed by a scalar expression, with the bound it
promises).

The rules are those of integer arithmetic with floor division; each is tested against brute-force evaluation over all
points.
"""

from __future__ import annotations

from math import gcd
from typing import Any, TypeAlias

from . import sizes
from .interning import entered
from .sizes import Size
from .text_hooks import printed

Computed: TypeAlias = Any
"""A `scalar.Scalar`, of which indices need ``digest``, ``dims`` and ``with_dims`` only.

It is not named as that here, since scalars are made of indices."""

_INTERNED: dict[Any, Any] = {}


class Atom:
    """The base of what an index multiplies by coefficients; interned, compared by identity."""

    __slots__ = ("__weakref__", "hi", "index", "is_indirect", "lo", "order")

    lo: Size
    hi: Size
    order: tuple[Any, ...]
    index: Index
    is_indirect: bool

    def _settle(self, lo: Size, hi: Size, order: tuple[Any, ...], *, is_indirect: bool = False) -> None:
        self.lo, self.hi, self.order, self.is_indirect = lo, hi, order, is_indirect
        self.index = _intern_index(0, ((self, 1),))


class Dim(Atom):
    """A loop variable with its extent.

    ``0 <= name < size``. Two dims with one name and different sizes are different.
    """

    __slots__ = ("name", "size")

    name: str
    size: Size

    def __new__(cls, name: str, size: Size) -> Dim:  # noqa: D102, PYI034 - found, or made
        key = (cls, name, size)
        found = _INTERNED.get(key)
        if found is None:
            found = object.__new__(cls)
            found.name, found.size = name, size
            found._settle(0, sizes.add(size, -1), (0, len(name), name, sizes.text(size)))
            found = entered(_INTERNED, key, found)
        return found

    def __repr__(self) -> str:
        return f"Dim({self.name!r}, {self.size})"


class FloorDiv(Atom):
    """``floor(numerator / divisor)``. Made by `floordiv`, which simplifies first."""

    __slots__ = ("divisor", "numerator")

    numerator: Index
    divisor: Size

    def __new__(cls, numerator: Index, divisor: Size) -> FloorDiv:  # noqa: D102, PYI034 - found, or made
        key = (cls, numerator, divisor)
        found = _INTERNED.get(key)
        if found is None:
            found = object.__new__(cls)
            found.numerator, found.divisor = numerator, divisor
            lo = None if numerator.lo is None else sizes.floordiv(numerator.lo, divisor)
            hi = None if numerator.hi is None else sizes.floordiv(numerator.hi, divisor)
            found._settle(lo, hi, (1, order_text(numerator), sizes.text(divisor)), is_indirect=numerator.is_indirect)
            found = entered(_INTERNED, key, found)
        return found


class Mod(Atom):
    """``numerator mod divisor``, in ``[0, divisor)``. Made by `mod`, which simplifies first."""

    __slots__ = ("divisor", "numerator")

    numerator: Index
    divisor: Size

    def __new__(cls, numerator: Index, divisor: Size) -> Mod:  # noqa: D102, PYI034 - found, or made
        key = (cls, numerator, divisor)
        found = _INTERNED.get(key)
        if found is None:
            found = object.__new__(cls)
            found.numerator, found.divisor = numerator, divisor
            order = (2, order_text(numerator), sizes.text(divisor))
            found._settle(0, sizes.add(divisor, -1), order, is_indirect=numerator.is_indirect)
            found = entered(_INTERNED, key, found)
        return found


class Indirect(Atom):
    """An index computed at run time: the integer ``value``, promised to lie in ``[0, size)``.

    With ``wraps`` a negative value counts from the end (``value + size``). ``size`` is the extent of the dimension
    that it indexes.
    """

    __slots__ = ("size", "value", "wraps")

    value: Computed
    size: Size
    wraps: bool

    def __new__(  # noqa: D102, PYI034 - found, or made
        cls,
        value: Computed,
        size: Size,
        wraps: bool = False,  # noqa: FBT001, FBT002 - part of what the index is
    ) -> Indirect:
        key = (cls, value, size, wraps)
        found = _INTERNED.get(key)
        if found is None:
            found = object.__new__(cls)
            found.value, found.size, found.wraps = value, size, wraps
            found._settle(0, sizes.add(size, -1), (3, value.digest, sizes.text(size), wraps), is_indirect=True)
            found = entered(_INTERNED, key, found)
        return found


Term: TypeAlias = tuple[Atom, Size]


class Index:
    """A quasi-affine integer expression in normal form; build it with the operators and the functions of this module.

    Attributes:
        const: the constant part.
        terms: ``(atom, coefficient)`` pairs in a fixed order.
        lo, hi: inclusive bounds over all values of the dims, or None where nothing is known.
        is_indirect: whether an `Indirect` occurs anywhere inside.
    """

    __slots__ = ("__weakref__", "_dims", "_text", "const", "hi", "is_indirect", "lo", "terms")

    const: Size
    terms: tuple[Term, ...]
    lo: Size | None
    hi: Size | None
    is_indirect: bool
    _dims: frozenset[Dim] | None
    _text: str | None

    @property
    def is_constant(self) -> bool:
        """Returns whether no dim and no stored value takes part."""
        return not self.terms

    @property
    def dims(self) -> frozenset[Dim]:
        """Returns every dim the value depends on, those inside indirect values included."""
        if self._dims is None:
            self._dims = frozenset().union(*(atom_dims(atom) for atom, _ in self.terms))
        return self._dims

    def __add__(self, other: Index | Size) -> Index:
        if isinstance(other, Index):
            if not other.terms:
                return self._shift(other.const)
            if not self.terms:
                return other._shift(self.const)
            merged = dict(self.terms)
            for atom, coefficient in other.terms:
                merged[atom] = sizes.add(merged.get(atom, 0), coefficient)
            return _normal(sizes.add(self.const, other.const), merged)
        return self._shift(other)

    __radd__ = __add__

    def _shift(self, amount: Size) -> Index:
        return self if amount == 0 else _intern_index(sizes.add(self.const, amount), self.terms)

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: Index | Size) -> Index:
        return self + (-other)

    def __rsub__(self, other: Size) -> Index:
        difference: Index = -self + other
        return difference

    def __mul__(self, factor: Index | Size) -> Index:
        if isinstance(factor, Index):
            if factor.terms and self.terms:
                raise ValueError(f"not quasi-affine: ({self}) * ({factor})")
            product: Index = factor * self.const if factor.terms else self * factor.const
            return product
        if factor == 1:
            return self
        if factor == 0:
            return constant(0)
        scaled = tuple((atom, sizes.mul(coefficient, factor)) for atom, coefficient in self.terms)
        return _intern_index(sizes.mul(self.const, factor), scaled)

    __rmul__ = __mul__

    def __floordiv__(self, divisor: Size) -> Index:
        return floordiv(self, divisor)

    def __mod__(self, divisor: Size) -> Index:
        return mod(self, divisor)

    def __str__(self) -> str:
        if self._text is None:
            self._text = printed("index", self)
        return self._text

    __repr__ = __str__


def atom_dims(atom: Atom) -> frozenset[Dim]:
    """Returns every dim an atom depends on."""
    match atom:
        case Dim():
            return frozenset((atom,))
        case FloorDiv() | Mod():
            return atom.numerator.dims
        case Indirect():
            inside: frozenset[Dim] = atom.value.dims
            return inside
    raise TypeError(f"not an atom: {atom!r}")


def constant(value: Size) -> Index:
    """Returns the index that is always ``value``."""
    return _intern_index(value, ())


def indirect(value: Computed, size: Size, wraps: bool = False) -> Index:  # noqa: FBT001, FBT002 - as in Indirect
    """Returns the index computed by an integer scalar that promises to lie in ``[0, size)``; see `Indirect`."""
    return Indirect(value, size, wraps).index


def _intern_index(const: Size, terms: tuple[Term, ...]) -> Index:
    key = (const, terms)
    found = _INTERNED.get(key)
    if found is None:
        found = object.__new__(Index)
        found.const, found.terms, found._text, found._dims = const, terms, None, None
        found.lo, found.hi = _bounds(const, terms)
        found.is_indirect = any([atom.is_indirect for atom, _ in terms])  # noqa: C419 - a list is faster for so few
        found = entered(_INTERNED, key, found)
    return found


def _bounds(const: Size, terms: tuple[Term, ...]) -> tuple[Size | None, Size | None]:
    lo: Size | None = const
    hi: Size | None = const
    for atom, coefficient in terms:
        positive = sizes.is_provably_at_most(0, coefficient)
        if not positive and not sizes.is_provably_at_most(coefficient, 0):
            return None, None
        low, high = (atom.lo, atom.hi) if positive else (atom.hi, atom.lo)
        lo = None if lo is None or low is None else sizes.add(lo, sizes.mul(coefficient, low))
        hi = None if hi is None or high is None else sizes.add(hi, sizes.mul(coefficient, high))
    return lo, hi


def _normal(const: Size, coefficients: dict[Atom, Size]) -> Index:
    coefficients = {atom: c for atom, c in coefficients.items() if c != 0}
    if len(coefficients) > 1 and any(type(atom) is Mod for atom in coefficients):
        const, coefficients = _recombine(const, coefficients)
    if len(coefficients) == 1:
        terms = tuple(coefficients.items())
    else:
        terms = tuple(sorted(coefficients.items(), key=_term_order))
    return _intern_index(const, terms)


def _term_order(term: Term) -> tuple[Any, ...]:
    return term[0].order


def _recombine(const: Size, coefficients: dict[Atom, Size]) -> tuple[Size, dict[Atom, Size]]:
    """Joins quotients with their remainders.

    ``c*(e mod a) + c*a*(e // a)`` becomes ``c*e``; ``c*(e mod a) + c*a*((e // a) mod b)`` becomes ``c*(e mod a*b)``.
    """
    changed = True
    while changed:
        changed = False
        for atom in list(coefficients):
            if type(atom) is not Mod or atom not in coefficients:
                continue
            factor = coefficients[atom]
            wanted = sizes.mul(factor, atom.divisor)
            high = floordiv(atom.numerator, atom.divisor)
            partner, joined = _find_partner(coefficients, atom, high, wanted)
            if partner is None or joined is None:
                continue
            del coefficients[atom]
            for other, c in partner:
                coefficients[other] = sizes.add(coefficients.get(other, 0), sizes.mul(-1, c))
            for other, c in joined.terms:
                coefficients[other] = sizes.add(coefficients.get(other, 0), sizes.mul(factor, c))
            const = sizes.add(const, sizes.mul(factor, joined.const))
            coefficients = {a: c for a, c in coefficients.items() if c != 0}
            changed = True
    return const, coefficients


def _find_partner(
    coefficients: dict[Atom, Size], atom: Mod, high: Index, wanted: Size
) -> tuple[tuple[Term, ...] | None, Index | None]:
    if (
        high.const == 0
        and high.terms
        and all(coefficients.get(other) == sizes.mul(wanted, c) for other, c in high.terms)
    ):
        return tuple((other, sizes.mul(wanted, c)) for other, c in high.terms), atom.numerator
    for other, c in coefficients.items():
        if type(other) is Mod and other.numerator is high and c == wanted:
            return ((other, wanted),), mod(atom.numerator, sizes.mul(atom.divisor, other.divisor))
    return None, None


def _within(index: Index, divisor: Size) -> bool:
    return (
        index.lo is not None
        and index.hi is not None
        and sizes.is_provably_at_most(0, index.lo)
        and sizes.is_provably_at_most(sizes.add(index.hi, 1), divisor)
    )


def _split_multiples(index: Index, divisor: Size) -> tuple[Index, Index]:
    """Returns ``(q, rest)`` with ``index == q * divisor + rest`` and as much as possible in ``q``."""
    whole: list[Term] = []
    rest: list[Term] = []
    for atom, coefficient in index.terms:
        ratio = sizes.quotient(coefficient, divisor)
        if ratio is None:
            rest.append((atom, coefficient))
        else:
            whole.append((atom, ratio))
    if type(index.const) is int and type(divisor) is int:
        high, low = divmod(index.const, divisor)
    else:
        ratio = sizes.quotient(index.const, divisor)
        high, low = (0, index.const) if ratio is None else (ratio, 0)
    if not whole and high == 0:
        return constant(0), index
    return _intern_index(high, tuple(whole)), _normal(low, dict(rest))


def _split_small(rest: Index, divisor: Size) -> tuple[Size, Index, Index] | None:
    """Returns ``(g, big, small)`` with ``rest == g*big + small``, or None.

    ``g`` is greater than 1 and divides ``divisor``, and ``0 <= small < g``.
    """
    if type(divisor) is not int:
        candidates = {c for _, c in rest.terms if type(c) is not int and sizes.quotient(divisor, c) is not None}
        ordered: list[Size] = sorted(candidates, key=sizes.text)
    else:
        ordered = sorted({gcd(c, divisor) for _, c in rest.terms if type(c) is int} - {1, divisor}, reverse=True)
    for g in ordered:
        big, small = _split_multiples(rest, g)
        if big.terms and _within(small, g):
            return g, big, small
    return None


def floordiv(index: Index, divisor: Size) -> Index:
    """Returns ``floor(index / divisor)`` for a positive divisor, simplified with what is known of the dims.

    Raises:
        ValueError: the divisor is zero or negative.
    """
    _check_divisor(divisor)
    if divisor == 1:
        return index
    key = ("//", index, divisor)
    found = _INTERNED.get(key)
    if found is None:
        found = _INTERNED[key] = _floordiv(index, divisor)
    return found


def _floordiv(index: Index, divisor: Size) -> Index:
    whole, rest = _split_multiples(index, divisor)
    if _within(rest, divisor):
        return whole
    if not rest.terms:
        total: Index = whole + sizes.floordiv(rest.const, divisor)
        return total
    split = _split_small(rest, divisor)
    if split is not None:
        g, big, _ = split
        return whole + floordiv(big, sizes.quotient(divisor, g))
    if len(rest.terms) == 1 and rest.const == 0 and rest.terms[0][1] == 1:
        atom = rest.terms[0][0]
        if type(atom) is FloorDiv:
            return whole + floordiv(atom.numerator, sizes.mul(atom.divisor, divisor))
        if type(atom) is Mod:
            ratio = sizes.quotient(atom.divisor, divisor)
            if ratio is not None:
                return whole + mod(floordiv(atom.numerator, divisor), ratio)
    return whole + FloorDiv(rest, divisor).index


def mod(index: Index, divisor: Size) -> Index:
    """Returns ``index`` modulo a positive divisor, in ``[0, divisor)``, simplified with what is known of the dims.

    Raises:
        ValueError: the divisor is zero or negative.
    """
    _check_divisor(divisor)
    if divisor == 1:
        return constant(0)
    key = ("%", index, divisor)
    found = _INTERNED.get(key)
    if found is None:
        found = _INTERNED[key] = _mod(index, divisor)
    return found


def _mod(index: Index, divisor: Size) -> Index:
    _, rest = _split_multiples(index, divisor)
    if _within(rest, divisor):
        return rest
    if not rest.terms:
        remainder: Index = rest - sizes.mul(divisor, sizes.floordiv(rest.const, divisor))
        return remainder
    split = _split_small(rest, divisor)
    if split is not None:
        g, big, small = split
        high: Index = mod(big, sizes.quotient(divisor, g)) * g
        return high + small
    if len(rest.terms) == 1 and rest.const == 0 and rest.terms[0][1] == 1:
        atom = rest.terms[0][0]
        if type(atom) is Mod and sizes.quotient(atom.divisor, divisor) is not None:
            return mod(atom.numerator, divisor)
    return Mod(rest, divisor).index


def _check_divisor(divisor: Size) -> None:
    if type(divisor) is int and divisor <= 0:
        raise ValueError(f"an index is divided by {divisor}; divisors are positive")


def linearize(indices: tuple[Index, ...], strides: tuple[Size, ...]) -> Index:
    """Returns ``sum(index * stride)``: the element offset of a point in a strided array."""
    total = constant(0)
    for index, stride in zip(indices, strides, strict=True):
        total = total + index * stride
    return total


def delinearize(flat: Index, shape: tuple[Size, ...]) -> tuple[Index, ...]:
    """Returns the point of a row-major array of this shape that has the flat position ``flat``."""
    point: list[Index] = []
    for position, size in enumerate(reversed(shape)):
        last = position == len(shape) - 1
        point.append(flat if last else mod(flat, size))
        if not last:
            flat = floordiv(flat, size)
    return tuple(reversed(point))


def order_text(index: Index) -> str:
    """Returns text that identifies an index; indirect values are not spelled out, since that could be very long."""
    parts = [sizes.text(index.const)]
    for atom, coefficient in index.terms:
        match atom:
            case Dim():
                body = f"{atom.name}:{sizes.text(atom.size)}"
            case Indirect():
                body = f"{atom.value.digest}:{sizes.text(atom.size)}:{atom.wraps}"
            case FloorDiv() | Mod():
                operator = "//" if type(atom) is FloorDiv else "%"
                body = f"({order_text(atom.numerator)}){operator}{sizes.text(atom.divisor)}"
            case _:
                raise TypeError(f"not an atom: {atom!r}")
        parts.append(f"{sizes.text(coefficient)}*{body}")
    return "+".join(parts)
