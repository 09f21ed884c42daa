"""Delayed stores: stores go behind the loads after them, so that these are under way together.

A compiler moves no load before a store, as it does not know that they touch different memory. A tile program does:

    load a; store x; load b; store y      ->      load a; load b; store x; store y
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ferrite_triton.tile.language import (
    Assert,
    Assume,
    Broadcast,
    Call,
    Expand,
    Expression,
    Hint,
    Load,
    Name,
    Offset,
    Prefetch,
    Reshape,
    Store,
    Transpose,
    operands_of,
    parts_of,
)
from ferrite_triton.tile.statements import Do, For, If, Let, Statement, TileProgram, expressions_of

_PASSED = (Assert, Assume, Prefetch)
"""Effects that a store may go behind: what they see is no memory that it has changed."""

_ADDRESSES = (Offset, Broadcast, Reshape, Expand, Transpose, Hint)
"""Operations whose result is an address where their first operand is one."""


def delay_stores(program: TileProgram, most: int) -> TileProgram:
    """Returns a program whose stores stand behind the loads after them in the same block of statements.

    A store stays before loads of the parameter that it stores into, before other effects, loops and branches, and
    before calls of device functions that take addresses.

    Args:
        program: the program. Parameters hold different memory, or elements that each instance reads before it stores.
        most: stores that wait at once; one more, and all of them are written. Each holds registers.
    """
    pointers = {each.name: frozenset((each.name,)) for each in program.parameters if each.type.is_pointer}
    return replace(program, body=_Block(most, pointers).moved(program.body))


@dataclass(slots=True)
class _Block:
    """The statements of one block: which parameters its names point to, and the stores that wait."""

    most: int
    pointers: dict[str, frozenset[str]]
    waiting: list[Store] = field(default_factory=list)
    moved_to: list[Statement] = field(default_factory=list)

    def moved(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        """Returns the statements of the block in their new order."""
        for statement in body:
            match statement:
                case Do(Store() as store):
                    self.waiting.append(store)
                    if len(self.waiting) > self.most:
                        self._flush()
                    continue
                case Let(variables, value):
                    addresses = [each.name for each in variables if each.type.is_pointer]
                    self.pointers |= dict.fromkeys(addresses, self._memory(value))
            if self._must_follow(statement):
                self._flush()
            self.moved_to.append(self._inside(statement))
        self._flush()
        return tuple(self.moved_to)

    def _inside(self, statement: Statement) -> Statement:
        match statement:
            case For():
                return replace(statement, body=_Block(self.most, dict(self.pointers)).moved(statement.body))
            case If():
                then, otherwise = (
                    _Block(self.most, dict(self.pointers)).moved(body) for body in (statement.then, statement.otherwise)
                )
                return replace(statement, then=then, otherwise=otherwise)
        return statement

    def _must_follow(self, statement: Statement) -> bool:
        """Returns whether a statement has to stay behind the stores that wait."""
        if isinstance(statement, For | If) or (isinstance(statement, Do) and not isinstance(statement.effect, _PASSED)):
            return True
        stored = frozenset().union(*(self._memory(store.pointer) for store in self.waiting))
        parts = (part for expression in expressions_of((statement,)) for part in parts_of(expression))
        return any(self._touches(part, stored) for part in parts)

    def _touches(self, part: Expression, stored: frozenset[str]) -> bool:
        match part:
            case Load(pointer):
                return not stored.isdisjoint(self._memory(pointer))
            case Call(_, operands):
                return any(self._memory(operand) for operand in operands)
        return False

    def _memory(self, address: Expression) -> frozenset[str]:
        """Returns the parameters that an expression points to; none if it is no address."""
        while not isinstance(address, Name):
            if not isinstance(address, _ADDRESSES):
                return frozenset()
            address = operands_of(address)[0]
        return self.pointers.get(address.name, frozenset())

    def _flush(self) -> None:
        self.moved_to += map(Do, self.waiting)
        self.waiting.clear()
