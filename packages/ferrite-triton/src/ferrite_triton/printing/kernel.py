"""Tile programs as the text of Triton kernels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from ferrite_ir.language.dtypes import F64
from ferrite_triton.tile.language import (
    Assert,
    Assume,
    AtomicUpdate,
    AwaitPredecessor,
    Barrier,
    Call,
    Do,
    Expression,
    For,
    Full,
    If,
    Let,
    Literal,
    Name,
    Offset,
    Prefetch,
    Statement,
    Store,
    TileProgram,
    TileType,
    names_in,
)
from ferrite_triton.tile.types import types_of

from .expressions import print_expression

IMPORTS = ("import triton", "import triton.language as tl", "from ferrite_runtime import fmath")
DIGITS = 8
"""Of the digest in a name."""
STEP = "    "
STREAMING = ', cache_modifier=".cs"'


def print_kernel(program: TileProgram, notes: Sequence[str], prefix: str) -> tuple[str, str]:
    """Returns the module with the kernel of a program, and the name of the kernel.

    Args:
        program: what it does; its name is not used.
        notes: comments with which the body begins.
        prefix: of the name; behind it is a digest of prefix and text.

    Raises:
        UnsupportedDefinition: an operation has no text for its types.
    """
    constants = [f"{constant}: tl.constexpr" for constant in program.constants]
    signature = ", ".join([*(parameter.name for parameter in program.parameters), *constants])
    comments = [f"{STEP}# {note}" for note in notes]
    text = "\n".join([f"({signature}):", *comments, *_Printer(program).lines(), ""])
    digest = hashlib.sha256(f"{prefix}\n{text}".encode()).hexdigest()[:DIGITS]
    name = f"{prefix}_{digest}"
    return "\n".join([*IMPORTS, "", "", "@triton.jit", f"def {name}{text}"]), name


class _Printer:
    """Prints one program; ``_types`` are those of the names known so far, which are never two for one name."""

    def __init__(self, program: TileProgram) -> None:
        self._program = program
        self._types: dict[str, TileType] = {each.name: each.type for each in program.parameters}
        self._held = 0
        self._pending: list[str] = []

    def lines(self) -> Iterator[str]:
        """Yields the lines of the body."""
        return self._block(self._program.body, STEP)

    def _block(self, body: tuple[Statement, ...], indent: str) -> Iterator[str]:
        for statement in body:
            match statement:
                case Let(variables, value):
                    text = self._text(value)
                    yield from self._drained(indent)
                    yield f"{indent}{', '.join(variable.name for variable in variables)} = {text}"
                    self._types |= {variable.name: variable.type for variable in variables}
                case Do(effect):
                    text = self._effect(effect)
                    yield from self._drained(indent)
                    yield f"{indent}{text}"
                case For():
                    yield from self._loop(statement, indent)
                case If(condition, then, otherwise):
                    text = self._text(condition)
                    yield from self._drained(indent)
                    yield f"{indent}if {text}:"
                    yield from self._block(then, indent + STEP)
                    if otherwise:
                        yield f"{indent}else:"
                        yield from self._block(otherwise, indent + STEP)

    def _loop(self, loop: For, indent: str) -> Iterator[str]:
        for carried in loop.carried:
            text = self._text(carried.initial)
            yield from self._drained(indent)
            yield f"{indent}{carried.variable.name} = {text}"
            self._types[carried.variable.name] = carried.variable.type
        self._types[loop.counter.name] = loop.counter.type
        bounds = ", ".join(map(self._text, (loop.start, loop.stop, loop.step)))
        stages = f", num_stages={loop.stages}" if loop.stages else ""
        yield from self._drained(indent)
        yield f"{indent}for {loop.counter.name} in tl.range({bounds}{stages}):"
        inside = indent + STEP
        yield from self._block(loop.body, inside)
        yield from self._follow(loop, inside)

    def _follow(self, loop: For, indent: str) -> Iterator[str]:
        """Yields the lines that replace what a loop carries: at once, where one of them is made of another."""
        moved = [each for each in loop.carried if each.following != Name(each.variable.name)]
        for number, carried in enumerate(moved):
            later = {name for other in moved[number + 1 :] for name in names_in(other.following)}
            text = self._text(carried.following)
            yield from self._drained(indent)
            if carried.variable.name not in later:
                yield f"{indent}{carried.variable.name} = {text}"
                continue
            rest = moved[number:]
            texts = [text, *(self._text(other.following) for other in rest[1:])]
            yield from self._drained(indent)
            yield f"{indent}{', '.join(other.variable.name for other in rest)} = {', '.join(texts)}"
            return

    def _hold(self, prefix: str, text: str) -> str:
        self._held += 1
        name = f"{prefix}_part{self._held}"
        self._pending.append(f"{name} = {text}")
        return name

    def _drained(self, indent: str) -> Iterator[str]:
        pending, self._pending = self._pending, []
        return (indent + line for line in pending)

    def _text(self, expression: Expression) -> str:
        return print_expression(expression, self._types, self._hold)

    def _effect(self, effect: Expression) -> str:
        match effect:
            case Store(pointer, value, mask, cache):
                streaming = STREAMING if cache == "streaming" else ""
                stored = self._stored(value)
                return f"tl.store({self._text(pointer)}, {stored}{self._masked(mask)}{streaming})"
            case AtomicUpdate():
                return self._atomic(effect)
            case Barrier():
                return "tl.debug_barrier()"
            case AwaitPredecessor():
                return "fmath.pdl_wait()"
            case Prefetch(pointer):
                return f"fmath.prefetch({self._text(pointer)})"
            case Assert(condition, message, mask):
                return f'tl.device_assert({self._tile(condition)}, "{message}"{self._masked(mask)})'
            case Assume(condition):
                return f"tl.assume({self._text(condition)})"
            case Call():
                return self._text(effect)
        raise AssertionError(f"{type(effect).__name__} is no effect")

    def _masked(self, mask: Expression | None) -> str:
        return "" if mask is None else f", {self._text(mask)}"

    def _stored(self, value: Expression) -> str:
        """Returns what is stored: a plain number takes the type of the memory, but for one of 64 bits."""
        is_wide = isinstance(value, Literal) and value.dtype is F64
        return self._tile(value) if is_wide else self._text(value)

    def _tile(self, value: Expression) -> str:
        """Returns a value as a tile: a number becomes one of its type."""
        return self._text(Full(value, ())) if isinstance(value, Literal) else self._text(value)

    def _atomic(self, update: AtomicUpdate) -> str:
        (type_,) = types_of(update.value, self._types)
        value = self._tile(update.value)
        if update.mode == "add" or (update.mode != "mul" and type_.dtype.is_integer):
            operands = f"{self._text(update.pointer)}, {value}{self._masked(update.mask)}"
            return f'tl.atomic_{update.mode}({operands}, sem="relaxed")'
        function = "atomic_mul" if update.mode == "mul" else f"atomic_{update.mode}_nan"
        if not isinstance(update.pointer, Offset):
            raise AssertionError(f"an atomic {update.mode} takes a first element and offsets")  # noqa: TRY004
        first, offset = self._text(update.pointer.pointer), self._text(update.pointer.elements)
        mask = "None" if update.mask is None else self._text(update.mask)
        return f"fmath.{function}({first}, {offset}, {value}, {mask})"
