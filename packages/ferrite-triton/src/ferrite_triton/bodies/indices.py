"""Index arithmetic: index expressions as integer values of tile programs."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from ferrite_ir.language.dtypes import I32, I64, DType
from ferrite_ir.language.index import Atom, Dim, FloorDiv, Index, Indirect, Mod, Term, floordiv
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import Size, hint, is_provably_at_most, is_static
from ferrite_ir.passes.vectors import VECTOR_BYTES
from ferrite_triton.analysis.accesses import unit_stride_axis
from ferrite_triton.analysis.rows import equal_neighbours, is_made_of_floats
from ferrite_triton.analysis.space import NO_AXES, POSITION, RANK, REDUCTION_AXES, Space, flat_dim
from ferrite_triton.bodies.builder import Builder, Tile
from ferrite_triton.errors import EmitError
from ferrite_triton.tile.build import add, apply, converted, mul, sub, where
from ferrite_triton.tile.language import Cast, Expression, Hint, Literal, Name


def index_dtype(width: int) -> DType:
    """Returns the type of address arithmetic of this width."""
    return I64 if width == 64 else I32


class Indices:
    """Writes index expressions of one kernel, each distinct one once per nesting level.

    Args:
        builder: takes the statements.
        space: the axes.
        width: of the address arithmetic, 32 or 64.
        value: gives the tile of the scalar in an indirect index; it is computed already.
    """

    def __init__(self, builder: Builder, space: Space, width: int, value: Callable[[Scalar], Tile]) -> None:
        self._builder = builder
        self._space = space
        self._dtype = index_dtype(width)
        self._value = value

    def tile(self, index: Index, value: Callable[[Scalar], Tile] | None = None) -> Tile:
        """Returns the value of an index, named by a statement unless it is a number or a flat position."""
        value = value or self._value
        if index.is_constant:
            return self._number(index.const)
        if len(index.terms) == 1 and index.const == 0 and index.terms[0][1] == 1:
            return self._atom(index.terms[0][0], value)
        key = ("index", index, self._values_of(index, value))
        found = self._builder.find(key)
        if found is not None:
            return found
        total: Expression | None = None
        axes, contiguous = NO_AXES, unit_stride_axis(index) if index.is_indirect else None
        for atom, coefficient in sorted(index.terms, key=_descending_stride):
            tile = self._atom(atom, value)
            if contiguous is not None and isinstance(atom, Indirect):
                tile = self._in_runs(atom, tile, contiguous)
            axes |= tile.axes
            total = self._plus(total, tile.expression, coefficient)
        assert total is not None, "an index that is no constant has terms"
        if is_static(index.const) and index.const < 0:
            total = sub(total, Literal(-index.const, self._dtype))
        elif index.const != 0:
            total = add(total, self._space.params.value(index.const, self._dtype))
        return self._builder.remember(key, self._builder.hold("i", total, axes))

    def _plus(self, total: Expression | None, atom: Expression, coefficient: Size) -> Expression:
        if coefficient == -1:
            return apply("neg", atom) if total is None else sub(total, atom)
        term = atom if coefficient == 1 else mul(atom, self._space.params.value(coefficient, self._dtype))
        return term if total is None else add(total, term)

    def _number(self, size: Size) -> Tile:
        value = self._space.params.value(size, self._dtype)
        if isinstance(value, (Literal, Name)):
            return Tile(value, NO_AXES, self._dtype)
        key = ("size", value)
        return self._builder.find(key) or self._builder.remember(key, self._builder.hold("i", value, NO_AXES))

    def _values_of(self, index: Index, value: Callable[[Scalar], Tile]) -> tuple[Expression, ...]:
        """Returns the indirect values in an index: they differ under another guard."""
        found: list[Expression] = []
        pending = [index]
        while pending:
            for atom, _ in pending.pop().terms:
                if isinstance(atom, Indirect):
                    found.append(value(atom.value).expression)
                elif isinstance(atom, (FloorDiv, Mod)):
                    pending.append(atom.numerator)
        return tuple(found)

    def _atom(self, atom: Atom, value: Callable[[Scalar], Tile]) -> Tile:
        if isinstance(atom, Dim):
            return self._position(atom.name)
        if isinstance(atom, Indirect):
            return self._indirect(atom, value(atom.value))
        if not isinstance(atom, (FloorDiv, Mod)):
            raise EmitError(f"not an index atom: {atom!r}")
        key = ("atom", atom, self._values_of(atom.index, value))
        found = self._builder.find(key)
        if found is not None:
            return found
        numerator = self.tile(atom.numerator, value)
        divisor = self._space.params.value(atom.divisor, self._dtype)
        expression = apply(_division(atom), numerator.expression, divisor)
        return self._builder.remember(key, self._builder.hold(_name_of(atom), expression, numerator.axes))

    def _position(self, name: str) -> Tile:
        if name not in (POSITION, *RANK) and self._space.axis(name) is None:
            raise EmitError(f"dim {name} lies on no axis of the kernel")
        axes = frozenset("r") if name == POSITION else frozenset((name,))
        position = self._builder.positions[name].position
        return self._as_index(Tile(position, axes, self._builder.type_of(position).dtype), "at")

    def _as_index(self, tile: Tile, prefix: str) -> Tile:
        """Returns a value in the type of addresses."""
        if tile.dtype is self._dtype:
            return tile
        key = ("as index", tile.expression)
        found = self._builder.find(key)
        if found is not None:
            return found
        expression = Cast(tile.expression, self._dtype)
        return self._builder.remember(key, self._builder.hold(prefix, expression, tile.axes))

    def _in_runs(self, atom: Indirect, tile: Tile, axis: str) -> Tile:
        """Returns an indirect value of which the compiler is told how many neighbours along an axis are equal.

        It follows integers, and what is loaded, but not what is converted from floats, as positions in an image that is
        resampled are. What is added to that and contiguous, such as channels, is contiguous for all it knows then.
        """
        if axis not in tile.axes or axis in REDUCTION_AXES or not is_made_of_floats(atom.value):
            return tile
        run = min(equal_neighbours(atom.value, axis), VECTOR_BYTES)
        if run == 1:
            return tile
        numbers = tuple(run if name == axis else 1 for name in self._space.order)
        return Tile(Hint(tile.expression, "max_constancy", numbers), tile.axes, tile.dtype)

    def _indirect(self, atom: Indirect, tile: Tile) -> Tile:
        if tile.literal is not None:
            number: Size = int(tile.literal)
            return self._number(number + atom.size if atom.wraps and number < 0 else number)
        if not atom.wraps:
            return self._as_index(tile, "at")
        key = ("indirect", tile.expression, atom.size)
        found = self._builder.find(key)
        if found is not None:
            return found
        kind = tile.dtype
        if kind.bits < self._dtype.bits:
            kind = self._dtype
        given = converted(tile.expression, tile.dtype, kind)
        size = converted(self._space.params.value(atom.size, self._dtype), self._dtype, kind)
        wrapped = where(apply("lt", given, Literal(0, kind)), add(given, size), given)
        held = self._builder.hold("at", converted(wrapped, kind, self._dtype), tile.axes)
        return self._builder.remember(key, held)


def _descending_stride(term: Term) -> int:
    return -abs(hint(term[1]))


def _division(atom: FloorDiv | Mod) -> str:
    """Returns the operation; a truncated one is the same where nothing is below zero."""
    low = atom.numerator.lo
    rounds = low is None or not is_provably_at_most(0, low)
    if isinstance(atom, FloorDiv):
        return "floor_quotient" if rounds else "quotient"
    return "floor_remainder" if rounds else "remainder"


def _name_of(atom: FloorDiv | Mod) -> str:
    """Returns a prefix for the name of such a part of an index: what is divided by what, where that is short."""
    numerator = atom.numerator
    is_plain = len(numerator.terms) == 1 and numerator.const == 0 and isinstance(numerator.terms[0][0], Dim)
    if not is_plain or numerator.terms[0][1] != 1 or not is_static(atom.divisor):
        return "i"
    dim = numerator.terms[0][0]
    assert isinstance(dim, Dim)
    return f"{dim.name}_{'over' if isinstance(atom, FloorDiv) else 'mod'}_{atom.divisor}"


def chunk_atom(space: Space) -> Hashable:
    """Returns the key under which the number of a chunk of rows is known: the position along ``x`` over its length."""
    rows = space.axis("x")
    assert rows is not None, "a chunk without rows"
    number = floordiv(flat_dim(rows).index, space.chunk_length)
    return "atom", number.terms[0][0], ()
