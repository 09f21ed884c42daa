"""Tile programs under construction: statements, names, and what is already computed where."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ferrite_ir.language.dtypes import DType
from ferrite_ir.language.scalar import Number
from ferrite_triton.analysis.space import Axes
from ferrite_triton.tile.language import Call, Expression, Literal, Name, TileType, Variable
from ferrite_triton.tile.statements import Carried, Do, For, Function, If, Let, Statement
from ferrite_triton.tile.types import types_of


@dataclass(frozen=True, slots=True)
class Tile:
    """A value of the program.

    Attributes:
        expression: a name or a number; of an address, an expression over names.
        axes: the axes it varies along; its extent is 1 along the others, and it is a scalar if there are none.
        dtype: its type in the registers.
    """

    expression: Expression
    axes: Axes
    dtype: DType

    @property
    def literal(self) -> Number | None:
        """Returns the number, if it is one."""
        return self.expression.value if isinstance(self.expression, Literal) else None

    @property
    def key(self) -> Hashable:
        """Returns what tells values apart: equal expressions are one value."""
        return self.expression


@dataclass(frozen=True, slots=True)
class AxisPosition:
    """Where along an axis the elements of a tile lie.

    Attributes:
        position: their positions.
        mask: which of them are none past the end; None where none is.
        quartet: the numbers of the quartets of positions, where a tile holds whole ones.
    """

    position: Expression
    mask: Expression | None = None
    quartet: Expression | None = None


@dataclass(slots=True)
class Scope:
    """Statements of one nesting level and the values that are known there."""

    statements: list[Statement] = field(default_factory=list)
    known: dict[Hashable, Tile] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Loop(Scope):
    """The body of a loop: along which axes values vary from round to round, and what it carries, by name."""

    along: Axes = frozenset("r")
    carried: dict[str, Carried] = field(default_factory=dict)


class Builder:
    """Collects the statements of one program: those of the function and, while one is open, of a loop along an axis.

    A value that does not vary along the axis of the loop is computed before the loop, even if it is first needed
    inside.

    Attributes:
        positions: by axis, where the elements of tiles lie.
        functions: combines of the program's own.

    Args:
        sizes: the types of the symbolic sizes, among which there may be more from statement to statement.
        parameters: all other parameters.
    """

    def __init__(self, sizes: Mapping[str, TileType], parameters: Sequence[Variable]) -> None:
        self.function = Scope()
        self.loop: _Loop | None = None
        self.positions: dict[str, AxisPosition] = {}
        self.functions: list[Function] = []
        self._own: dict[str, TileType] = {parameter.name: parameter.type for parameter in parameters}
        # Sizes become parameters as they are first needed.
        self._types: Mapping[str, TileType] = ChainMap(self._own, sizes)  # type: ignore[arg-type]
        self._trunks: list[tuple[Scope, dict[str, AxisPosition]]] = []
        self._count = 0

    @property
    def types(self) -> Mapping[str, TileType]:
        """Returns the types of all names."""
        return self._types

    # --- names ------------------------------------------------------------------------------------------------------

    def fresh(self, prefix: str) -> str:
        """Returns a name that nothing else in the program has."""
        self._count += 1
        return f"{prefix}_{self._count}"

    def _free(self, name: str) -> str:
        return self.fresh(name) if name in self._types else name

    def type_of(self, expression: Expression) -> TileType:
        """Returns the type of an expression with one value."""
        (found,) = types_of(expression, self._types)
        return found

    def position(self, axis: str) -> Expression:
        """Returns the positions of a tile along an axis."""
        return self.positions[axis].position

    def mask(self, axis: str) -> Expression | None:
        """Returns which positions along an axis are none past the end; None where all are."""
        return self.positions[axis].mask

    # --- what is known ----------------------------------------------------------------------------------------------

    def scope_for(self, axes: Axes) -> Scope:
        """Returns where a value that varies along these axes is computed."""
        return self.loop if self.loop is not None and self.loop.along & axes else self.function

    def find(self, key: Hashable) -> Tile | None:
        """Returns the value known under a key here, or None."""
        if self.loop is not None:
            found = self.loop.known.get(key)
            if found is not None:
                return found
        return self.function.known.get(key)

    def remember(self, key: Hashable, tile: Tile) -> Tile:
        """Records what a key stands for, at the level that its axes belong to, and returns it."""
        self.scope_for(tile.axes).known[key] = tile
        return tile

    def forget(self, axes: Axes) -> None:
        """Forgets at the level of the function what varies along any of some axes."""
        self.function.known = {key: tile for key, tile in self.function.known.items() if not tile.axes & axes}

    def forget_inside(self, axes: Axes) -> None:
        """Forgets in the open loop what varies along any of some axes."""
        loop = self._open()
        loop.known = {key: tile for key, tile in loop.known.items() if not tile.axes & axes}

    def forget_if(self, condition: Callable[[Hashable, Tile], bool]) -> None:
        """Forgets at the level of the function what a condition holds for."""
        known = self.function.known
        self.function.known = {key: tile for key, tile in known.items() if not condition(key, tile)}

    # --- statements -------------------------------------------------------------------------------------------------

    def hold(self, prefix: str, expression: Expression, axes: Axes) -> Tile:
        """Names a value, at the level that its axes belong to."""
        return self.let(self.fresh(prefix), expression, axes)

    def let(self, name: str, expression: Expression, axes: Axes) -> Tile:
        """Names a value as asked for, unless something else has that name already."""
        (tile,) = self._let((self._free(name),), expression, axes)
        return tile

    def hold_all(self, prefixes: Sequence[str], expression: Expression, axes: Axes) -> tuple[Tile, ...]:
        """Names the values of a combine of several components, or of a call."""
        return self._let(tuple(self.fresh(prefix) for prefix in prefixes), expression, axes)

    def call(self, prefix: str, function: str, operands: Sequence[Expression], result: TileType, axes: Axes) -> Tile:
        """Names the result of a device function."""
        return self.hold(prefix, Call(function, tuple(operands), (result,)), axes)

    def _let(self, names: tuple[str, ...], expression: Expression, axes: Axes) -> tuple[Tile, ...]:
        types = types_of(expression, self._types)
        variables = tuple(map(Variable, names, types))
        self._own |= {variable.name: variable.type for variable in variables}
        scope = self.scope_for(axes)
        scope.names += names
        scope.statements.append(Let(variables, expression))
        return tuple(Tile(Name(variable.name), axes, variable.type.dtype) for variable in variables)

    def do(self, effect: Expression, axes: Axes) -> None:
        """Has an effect, at the level that the axes belong to."""
        self.scope_for(axes).statements.append(Do(effect))

    def do_if(self, condition: Expression, effect: Expression, axes: Axes) -> None:
        """Has an effect where a scalar condition holds."""
        self.scope_for(axes).statements.append(If(condition, (Do(effect),)))

    # --- loops ------------------------------------------------------------------------------------------------------

    def open_loop(self, counter: str, type_: TileType, along: Axes = frozenset("r")) -> Name:
        """Begins the body of a loop along some axes; returns its counter."""
        self.loop = _Loop(along=along)
        return self.declare(Variable(counter, type_))

    def declare(self, variable: Variable) -> Name:
        """Returns the name of a variable that a statement written later defines, such as the counter of a loop."""
        name = self._free(variable.name)
        self._own[name] = variable.type
        (self.loop or self.function).names.append(name)
        return Name(name)

    def carry(self, prefix: str, initial: Expression, axes: Axes) -> Tile:
        """Returns a value that the open loop hands from round to round, and on to what follows it."""
        loop, type_ = self._open(), self.type_of(initial)
        variable = Variable(self.fresh(prefix), type_)
        self._own[variable.name] = type_
        loop.carried[variable.name] = Carried(variable, initial, Name(variable.name))
        return Tile(Name(variable.name), axes, type_.dtype)

    def follow(self, tile: Tile, expression: Expression) -> None:
        """Says what a carried value is after a round; values are replaced in the order in which this is said."""
        loop, name = self._open(), tile.expression
        assert isinstance(name, Name), "what is carried has a name"
        loop.carried[name.name] = replace(loop.carried.pop(name.name), following=expression)

    def close_loop(self, counter: Name, bounds: tuple[Expression, Expression, Expression], stages: int = 0) -> None:
        """Ends the loop: what was known inside is forgotten."""
        loop = self._open()
        variable = Variable(counter.name, self._types[counter.name])
        carried = tuple(loop.carried.values())
        self.loop = None
        self._drop(loop)
        self.function.statements.append(For(variable, *bounds, carried, tuple(loop.statements), stages))

    def _open(self) -> _Loop:
        if self.loop is None:
            raise AssertionError("no loop is open")
        return self.loop

    # --- branches ---------------------------------------------------------------------------------------------------

    def open_branch(self) -> None:
        """Begins statements that only some programs run; what is known before is known there."""
        self._trunks.append((self.function, self.positions))
        self.function = Scope(known=dict(self.function.known))
        self.positions = dict(self.positions)

    def close_branch(self) -> tuple[Statement, ...]:
        """Ends such statements and returns them; what was known inside is forgotten."""
        branch = self.function
        self.function, self.positions = self._trunks.pop()
        self._drop(branch)
        return tuple(branch.statements)

    def _drop(self, scope: Scope) -> None:
        """Forgets the names of a scope that is closed: others may have them from here on."""
        for name in scope.names:
            del self._own[name]

    def finished(self) -> tuple[Statement, ...]:
        """Returns all statements."""
        return tuple(self.function.statements)

    def append(self, statement: Statement) -> None:
        """Adds a statement at the level of the function."""
        self.function.statements.append(statement)
