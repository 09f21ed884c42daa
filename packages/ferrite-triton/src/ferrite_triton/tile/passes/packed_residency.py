"""Packed register residency, by rematerialisation: what tiles are held for is made of them again where it is needed.

Programs that share rows hold their elements until they know what whole rows come to. 16-bit elements could wait two in
a register, but a compiler widens them once and keeps the floats, as it finds that they are widened again. So behind a
``hold_only`` what was made of the tiles element by element is made again, of an *opaque copy*: the compiler does not
know that it is equal (an optimisation barrier). See decision 0022. ::

    wide = cast(x)                 wide = cast(x)
    top = reduce(wide, max)        top = reduce(wide, max)
    hold_only(x)              ->   cast_1 = @opaque_floats(x)
    e = exp(sub(wide, top))        e = exp(sub(cast_1, top))

What reductions, loads and device functions give is held, as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from ferrite_ir.language.dtypes import BF16, F32
from ferrite_triton.tile.language import (
    Bitcast,
    BlockSize,
    Broadcast,
    Call,
    Cast,
    Constant,
    Elementwise,
    Expand,
    Expression,
    Full,
    Hint,
    HoldOnly,
    Literal,
    Name,
    Offset,
    Reshape,
    TileType,
    Transpose,
    Variable,
    names_in,
    parts_of,
)
from ferrite_triton.tile.rewriting import rewritten
from ferrite_triton.tile.statements import Do, For, If, Let, Statement, TileProgram, expressions_of, names_defined

_BY_ELEMENT = (
    Name, Literal, BlockSize, Constant, Elementwise, Cast, Bitcast, Full, Broadcast, Reshape, Transpose, Expand, Hint,
    Offset,
)  # fmt: skip
"""Expressions whose elements are each made of elements at one position, at the cost of an instruction or none."""

_FUNCTIONS = frozenset(("row_quotient", "share", "whole_to_half"))
"""Device functions of which the same holds."""


def keep_packed(program: TileProgram) -> TileProgram:
    """Returns a program without ``hold_only``, in which all that is behind one is made of the tiles that it names."""
    held = {
        operand
        for expression in expressions_of(program.body)
        if isinstance(expression, HoldOnly)
        for operand in names_in(expression)
    }
    if not held:
        return program
    taken = {*names_defined(program.body), *(each.name for each in program.parameters)}
    numbers = count(max(_stem_and_number(name)[1] for name in taken) + 1)
    block = _Block(frozenset(held), _widened(program.body, held), numbers)
    return replace(program, body=block.renewed(program.body))


def _stem_and_number(name: str) -> tuple[str, int]:
    """Returns what a name begins with, and the number that it ends in; 0 without one."""
    stem, _, number = name.rpartition("_")
    return (stem, int(number)) if stem and number.isdecimal() else (name, 0)


def _widened(body: tuple[Statement, ...], held: set[str]) -> frozenset[str]:
    """Returns those of the tiles of which only floats are made."""
    uses, casts = Counter[str](), Counter[str]()
    for expression in expressions_of(body):
        if isinstance(expression, HoldOnly):
            continue
        for part in parts_of(expression):
            match part:
                case Name(name):
                    uses[name] += 1
                case Cast(Name(name), to) if to is F32:
                    casts[name] += 1
    return frozenset(name for name in held if uses[name] == casts[name])


@dataclass(slots=True)
class _Block:
    """The statements of one block: what it knows to be made of held tiles, and what has been made again.

    Attributes:
        held: the tiles that are held somewhere.
        widened: those of which only floats are made.
        numbers: what new names end in.
        made: by name, the statements that make held tiles, and what is made of them element by element.
        sources: by name, the held tiles that it is made of.
        dropped: what no register holds, and has to be made again before it is used.
        current: what stands for a name since it was made again; of tiles that are ``widened``, for their floats.
        done: the statements so far.
    """

    held: frozenset[str]
    widened: frozenset[str]
    numbers: Iterator[int]
    made: dict[str, Let] = field(default_factory=dict)
    sources: dict[str, frozenset[str]] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    current: dict[str, Expression] = field(default_factory=dict)
    done: list[Statement] = field(default_factory=list)

    def renewed(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        """Returns the statements of the block, with what they need again before them."""
        for statement in body:
            match statement:
                case Do(HoldOnly() as holding):
                    self._drop(frozenset(names_in(holding)))
                case _:
                    self.make_again(expressions_of((statement,)))
                    self._take(statement)
        return tuple(self.done)

    def _take(self, statement: Statement) -> None:
        """Writes a statement, of what stands for its names now; one that names what has a name is left out."""
        match statement:
            case Let((variable, *_), value):
                self._note(statement)
                found = self.expression(value)
                if isinstance(found, Name) and found != value:
                    self.current[variable.name] = found
                else:
                    self.done.append(replace(statement, value=found))
            case Do(effect):
                self.done.append(Do(self.expression(effect)))
            case If(condition, then, otherwise):
                branches = (self._inner().renewed(each) for each in (then, otherwise))
                self.done.append(If(self.expression(condition), *branches))
            case For():
                self.done.append(self._loop(statement))

    def _loop(self, loop: For) -> For:
        inner = self._inner()
        inner.renewed(loop.body)
        inner.make_again(each.following for each in loop.carried)
        carried = (
            replace(each, initial=self.expression(each.initial), following=inner.expression(each.following))
            for each in loop.carried
        )
        start, stop, step = map(self.expression, (loop.start, loop.stop, loop.step))
        return replace(loop, start=start, stop=stop, step=step, carried=tuple(carried), body=tuple(inner.done))

    def _inner(self) -> _Block:
        """Returns a block inside this one, which knows what is known here."""
        known = dict(self.made), dict(self.sources), set(self.dropped), dict(self.current)
        return _Block(self.held, self.widened, self.numbers, *known)

    # --- what is made of held tiles ---------------------------------------------------------------------------------

    def _note(self, let: Let) -> None:
        """Notes what a statement names, if that is a held tile, or made of such element by element."""
        name = let.variables[0].name
        sources = frozenset((name,)) if name in self.held else self._sources(let.value)
        if sources and len(let.variables) == 1:
            self.made[name], self.sources[name] = let, sources

    def _sources(self, value: Expression) -> frozenset[str]:
        parts = parts_of(value)
        is_call = isinstance(value, Call) and value.function in _FUNCTIONS
        if not all(isinstance(part, _BY_ELEMENT) for part in (parts[:-1] if is_call else parts)):
            return frozenset()
        return frozenset().union(*(self.sources.get(part.name, ()) for part in parts if isinstance(part, Name)))

    def _drop(self, tiles: frozenset[str]) -> None:
        """Notes that registers hold only these tiles of all that is made of them."""
        for name, sources in self.sources.items():
            if not sources.isdisjoint(tiles):
                self.dropped.add(name)
                self.current.pop(name, None)

    # --- making it again --------------------------------------------------------------------------------------------

    def make_again(self, expressions: Iterable[Expression]) -> None:
        """Writes what has been dropped of what expressions name, and of what that is made of."""
        wanted: set[str] = set()
        pending = [each for each in expressions if not isinstance(each, HoldOnly)]
        while pending:
            for name in self.dropped.intersection(names_in(pending.pop())) - wanted:
                wanted.add(name)
                if name not in self.held:
                    pending.append(self.made[name].value)
        for name in [each for each in self.made if each in wanted] if wanted else ():
            self.dropped.discard(name)
            self.current[name] = self._copy(name) if name in self.held else self._made_of_copies(name)

    def _copy(self, name: str) -> Expression:
        """Writes an opaque copy of a tile, as floats where nothing else is made of it."""
        (variable,) = self.made[name].variables
        if self._is_floats(name):
            floats = replace(variable.type, dtype=F32)
            return self._let("cast", floats, Call("opaque_floats", (Name(name),), (floats,)))
        return self._let(name, variable.type, Call("opaque_value", (Name(name),), (variable.type,)))

    def _is_floats(self, name: str) -> bool:
        """Returns whether copies of a tile are its floats: of bfloat16 an instruction makes both."""
        return name in self.widened and name in self.made and self.made[name].variables[0].type.dtype is BF16

    def _made_of_copies(self, name: str) -> Expression:
        value, (variable,) = self.expression(self.made[name].value), self.made[name].variables
        return value if isinstance(value, Name) else self._let(name, variable.type, value)

    def _let(self, name: str, type_: TileType, value: Expression) -> Expression:
        """Names a value like another one, but for a number of its own."""
        variable = Variable(f"{_stem_and_number(name)[0]}_{next(self.numbers)}", type_)
        self.done.append(Let((variable,), value))
        return Name(variable.name)

    def expression(self, expression: Expression) -> Expression:
        """Returns an expression of what stands for its names now."""

        def change(part: Expression) -> Expression | None:
            match part:
                case Cast(Name(name), _) if self._is_floats(name):
                    return self.current.get(name, part)
                case Name(name):
                    return self.current.get(name, part)
            return None

        return rewritten(expression, change)
