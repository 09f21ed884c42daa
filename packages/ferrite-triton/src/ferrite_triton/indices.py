"""Index expressions as Triton text."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from ferrite_ir.dtypes import I32, I64, DType
from ferrite_ir.index import Atom, Dim, FloorDiv, Index, Indirect, Mod, Term, floordiv
from ferrite_ir.scalar import Scalar
from ferrite_ir.sizes import Size, hint, is_provably_at_most, is_static, maximum

from .errors import EmitError
from .size_text import magnitude
from .space import NO_AXES, POSITION, RANK, Space, flat_dim
from .writer import Tile, Writer

# Texts of 32-bit address arithmetic keep everything, lanes past the end included, below this.
INDEX_LIMIT = 2**31 - 2**16


def index_dtype(width: int) -> DType:
    """Returns the type of address arithmetic of this width."""
    return I64 if width == 64 else I32


def reaches_of(index: Index) -> list[Size]:
    """Returns upper bounds of the magnitude of an index and of everything computed on the way to it."""
    pending = [index]
    found: list[Size] = []
    while pending:
        current = pending.pop()
        found.append(_reach(current))
        pending += [atom.numerator for atom, _ in current.terms if isinstance(atom, (FloorDiv, Mod))]
    return found


def _reach(index: Index) -> Size:
    """Returns an upper bound of the magnitude of an index; indices nest as deeply as users write divisions."""
    largest = magnitude(index.const)
    for atom, coefficient in index.terms:
        low, high = atom.lo, atom.hi
        if isinstance(atom, FloorDiv) and (low is None or high is None):
            bound = _reach(atom.numerator)  # of unknown sign, such as that of a number that changes from call to call
        else:
            bound = maximum(magnitude(low), magnitude(high))
        largest = largest + bound * magnitude(coefficient)
    return largest


class IndexText:
    """Writes index expressions of one kernel, each distinct one once per nesting level.

    Args:
        writer: takes the lines.
        space: the axes.
        width: of the address arithmetic, 32 or 64.
        value: gives the tile of the scalar in an indirect index; it is computed already.
    """

    def __init__(self, writer: Writer, space: Space, width: int, value: Callable[[Scalar], Tile]) -> None:
        self._writer = writer
        self._space = space
        self._dtype = index_dtype(width)
        self._value = value

    def tile(self, index: Index, value: Callable[[Scalar], Tile] | None = None) -> Tile:
        """Returns the value of an index, named by a line unless it is a number or a flat position."""
        value = value or self._value
        if index.is_constant:
            return self._number(index.const)
        if len(index.terms) == 1 and index.const == 0 and index.terms[0][1] == 1:
            return self._atom(index.terms[0][0], value)
        key = ("index", index, self._values_of(index, value))
        found = self._writer.find(key)
        if found is not None:
            return found
        parts: list[str] = []
        axes = NO_AXES
        for atom, coefficient in sorted(index.terms, key=_descending_stride):
            tile = self._atom(atom, value)
            axes |= tile.axes
            parts.append(self._term(tile.text, coefficient))
        if index.const != 0:
            parts.append(self._space.params.text(index.const))
        expression = " + ".join(parts).replace("+ -", "- ")
        return self._writer.remember(key, self._writer.hold("i", expression, axes, self._dtype))

    def _number(self, size: Size) -> Tile:
        if is_static(size):
            return Tile(str(size), NO_AXES, self._dtype, size)
        text = self._space.params.text(size)
        if text.isidentifier():
            return Tile(text, NO_AXES, self._dtype)
        key = ("size", text)
        return self._writer.find(key) or self._writer.remember(key, self._writer.hold("i", text, NO_AXES, self._dtype))

    def _term(self, text: str, coefficient: Size) -> str:
        if coefficient == 1:
            return text
        return f"-{text}" if coefficient == -1 else f"{text} * {self._space.params.operand(coefficient)}"

    def _values_of(self, index: Index, value: Callable[[Scalar], Tile]) -> tuple[str, ...]:
        """Returns the names of the indirect values in an index: they differ under another guard."""
        names: list[str] = []
        pending = [index]
        while pending:
            for atom, _ in pending.pop().terms:
                if isinstance(atom, Indirect):
                    names.append(value(atom.value).text)
                elif isinstance(atom, (FloorDiv, Mod)):
                    pending.append(atom.numerator)
        return tuple(names)

    def _atom(self, atom: Atom, value: Callable[[Scalar], Tile]) -> Tile:
        if isinstance(atom, Dim):
            if atom.name == POSITION:
                return Tile(POSITION, frozenset("r"), self._dtype)
            if self._space.axis(atom.name) is None and atom.name not in RANK:
                raise EmitError(f"dim {atom.name} lies on no axis of the kernel")
            return Tile(atom.name, frozenset((atom.name,)), self._dtype)
        if isinstance(atom, Indirect):
            return self._indirect(atom, value(atom.value))
        if not isinstance(atom, (FloorDiv, Mod)):
            raise EmitError(f"not an index atom: {atom!r}")
        key = ("atom", atom, self._values_of(atom.index, value))
        found = self._writer.find(key)
        if found is not None:
            return found
        numerator = self.tile(atom.numerator, value)
        name, expression = _division(atom, numerator.text, self._space.params.operand(atom.divisor))
        return self._writer.remember(key, self._writer.hold(name, expression, numerator.axes, self._dtype))

    def _indirect(self, atom: Indirect, tile: Tile) -> Tile:
        if tile.literal is not None:
            number: Size = int(tile.literal)
            return self._number(number + atom.size if atom.wraps and number < 0 else number)
        key = ("indirect", tile.text, atom.size, atom.wraps)
        found = self._writer.find(key)
        if found is not None:
            return found
        kind = "tl.int64" if self._dtype is I64 else "tl.int32"
        converted = tile.text if tile.dtype is self._dtype else f"{tile.text}.to({kind})"
        if atom.wraps:
            size = self._space.params.operand(atom.size)
            converted = f"tl.where({tile.text} < 0, {tile.text} + {size}, {tile.text})"
            converted = converted if tile.dtype is self._dtype else f"{converted}.to({kind})"
        if converted == tile.text:
            return tile
        return self._writer.remember(key, self._writer.hold("at", converted, tile.axes, self._dtype))


def _descending_stride(term: Term) -> int:
    return -abs(hint(term[1]))


def _division(atom: FloorDiv | Mod, numerator: str, divisor: str) -> tuple[str, str]:
    """Returns a prefix for the name and the text; Triton's operators truncate, which only differs below zero."""
    low = atom.numerator.lo
    rounds = low is None or not is_provably_at_most(0, low)
    is_plain = numerator in "xyzr" and divisor.isalnum()
    prefix = f"{numerator}_{'over' if isinstance(atom, FloorDiv) else 'mod'}_{divisor}" if is_plain else "i"
    if isinstance(atom, FloorDiv):
        return prefix, f"fmath.floordiv({numerator}, {divisor})" if rounds else f"{numerator} // {divisor}"
    return prefix, f"fmath.floormod({numerator}, {divisor})" if rounds else f"{numerator} % {divisor}"


def run_atom(space: Space) -> Hashable:
    """Returns the key under which the number of a run of rows is known: the position along ``x`` over its length."""
    rows = space.axis("x")
    assert rows is not None, "a run without rows"
    number = floordiv(flat_dim(rows).index, space.run)
    return "atom", number.terms[0][0], ()
