"""Tile programs as the text of Triton kernels."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence

from ferrite_ir.language.dtypes import F64
from ferrite_triton.tile.language import (
    Assert,
    Assume,
    AtomicUpdate,
    AwaitPredecessor,
    Barrier,
    Call,
    Expression,
    Full,
    Literal,
    Offset,
    Prefetch,
    Store,
    Variable,
)
from ferrite_triton.tile.statements import For, Function, Let, TileProgram, has_assertions
from ferrite_triton.tile.types import types_of

from .expressions import print_expression
from .statements import STEP, Hold, Types, print_body, print_function, print_statements

IMPORTS = ("import triton", "import triton.language as tl", "from ferrite_runtime import fmath")
DIGITS = 8
"""Of the digest in a name."""
STREAMING = ', cache_modifier=".cs"'
ORIGIN = "ORIGIN"
"""The constant that says where a kernel with assertions is from."""


def print_kernel(program: TileProgram, notes: Sequence[str], prefix: str) -> tuple[str, str]:
    """Returns the module with the kernel of a program, and the name of the kernel.

    Args:
        program: what it does; its name is not used.
        notes: comments with which the body begins.
        prefix: of the name; behind it is a digest of prefix and text.

    Raises:
        UnsupportedDefinition: an operation has no text for its types.
    """
    names = (*program.constants, *((ORIGIN,) if has_assertions(program.body) else ()))
    constants = [f"{constant}: tl.constexpr" for constant in names]
    signature = ", ".join([*(parameter.name for parameter in program.parameters), *constants])
    comments = [f"{STEP}# {note}" for note in notes]
    text = "\n".join([f"({signature}):", *comments, *print_statements(program, TritonLanguage()), ""])
    functions = [line for function in program.functions for line in _function_lines(function)]
    digest = hashlib.sha256("\n".join([prefix, *functions, text]).encode()).hexdigest()[:DIGITS]
    name = f"{prefix}_{digest}"
    return "\n".join([*IMPORTS, "", "", *functions, "@triton.jit", f"def {name}{text}"]), name


def _function_lines(function: Function) -> Iterator[str]:
    """Yields the lines of a combine, as a device function, and two empty ones behind them."""
    yield from ("@triton.jit", *print_function(function, TritonLanguage()), "", "")


def device_function(name: str, parameters: Sequence[Variable], body: tuple[Let, ...], result: Expression) -> str:
    """Returns the text of a device function of tiles, which names values and returns one.

    Raises:
        UnsupportedDefinition: an operation has no text for its types.
    """
    return "\n".join(("@triton.jit", *print_body(name, parameters, body, (result,), TritonLanguage())))


class TritonLanguage:
    """Triton, with the device functions of the runtime."""

    def expression(self, root: Expression, types: Types, hold: Hold) -> str:
        """Returns the text of a value, or of a call for its effect."""
        return print_expression(root, types, hold)

    def in_branch(self, number: str, branch: int) -> str:
        """Returns a number, by an instruction that no other branch has."""
        return f'fmath.in_branch({number}, "{branch}")'

    def rounds(self, loop: For, bounds: Sequence[str]) -> str:
        """Returns what a loop goes through."""
        stages = f", num_stages={loop.stages}" if loop.stages else ""
        flattens = ", flatten=True" if loop.flattens else ""
        return f"tl.range({', '.join(bounds)}{stages}{flattens})"

    def effect(self, effect: Expression, types: Types, hold: Hold) -> str:
        """Returns the line that has an effect."""

        def text(expression: Expression) -> str:
            return print_expression(expression, types, hold)

        match effect:
            case Store(pointer, value, mask, cache):
                streaming = STREAMING if cache == "streaming" else ""
                # A plain number takes the type of the memory, but for one of 64 bits.
                is_wide = isinstance(value, Literal) and value.dtype is F64
                stored = _tile(value, text) if is_wide else text(value)
                return f"tl.store({text(pointer)}, {stored}{_masked(mask, text)}{streaming})"
            case AtomicUpdate():
                return _atomic(effect, types, text)
            case Barrier():
                return "tl.debug_barrier()"
            case AwaitPredecessor():
                return "fmath.pdl_wait()"
            case Prefetch(pointer):
                return f"fmath.prefetch({text(pointer)})"
            case Assert(condition, message, mask):
                return f'fmath.require({_tile(condition, text)}, "{message}", {ORIGIN}{_masked(mask, text)})'
            case Assume(condition):
                return f"tl.assume({text(condition)})"
            case Call():
                return text(effect)
        raise AssertionError(f"{type(effect).__name__} is no effect, or one that a pass should have taken out")


Text = Callable[[Expression], str]


def _masked(mask: Expression | None, text: Text) -> str:
    return "" if mask is None else f", {text(mask)}"


def _tile(value: Expression, text: Text) -> str:
    """Returns a value as a tile: a number becomes one of its type."""
    return text(Full(value, ())) if isinstance(value, Literal) else text(value)


def _atomic(update: AtomicUpdate, types: Types, text: Text) -> str:
    (type_,) = types_of(update.value, types)
    value = _tile(update.value, text)
    if update.mode == "add" or (update.mode != "mul" and type_.dtype.is_integer):
        operands = f"{text(update.pointer)}, {value}{_masked(update.mask, text)}"
        return f'tl.atomic_{update.mode}({operands}, sem="relaxed")'
    function = "atomic_mul" if update.mode == "mul" else f"atomic_{update.mode}_nan"
    if not isinstance(update.pointer, Offset):
        raise AssertionError(f"an atomic {update.mode} takes a first element and offsets")  # noqa: TRY004
    first, offset = text(update.pointer.pointer), text(update.pointer.elements)
    mask = "None" if update.mask is None else text(update.mask)
    return f"fmath.{function}({first}, {offset}, {value}, {mask})"
