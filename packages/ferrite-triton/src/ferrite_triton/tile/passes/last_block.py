"""Loop peeling of the last block: of a flat kernel of an odd number of elements only the last program has a mask.

The compiler reads several elements at once where it knows that a mask is the same for them. A mask ``x < 1001`` is not:
1001 is no multiple of what 16 bytes hold, and each element is loaded, and stored, by itself. All programs but the last
have no use for the mask::

    x = program_id(0) * XBLOCK + lanes             x = program_id(0) * XBLOCK + lanes
    xmask = x < 1001                               xmask = x < 1001
    store(out + x, load(in + x, xmask), xmask)     if program_id(0) * XBLOCK <= 1001 - XBLOCK:
                                                       store(out + x, load(in + x))
                                                   else:
                                                       store(out + x, load(in + x, xmask), xmask)

So are the parts of a combo kernel, each of which goes over its only block in a loop.

It is what a vectorising compiler does to a loop whose trip count is no multiple of the vector length (Allen, Kennedy,
"Optimizing Compilers for Modern Architectures", 2001, section 5.8).
"""

from __future__ import annotations

from dataclasses import replace

from ferrite_ir.passes.vectors import VECTOR_BYTES
from ferrite_triton.tile.build import apply, mul, sub
from ferrite_triton.tile.language import (
    AtomicUpdate,
    Block,
    BlockSize,
    Elementwise,
    Expression,
    Lanes,
    Literal,
    Load,
    Name,
    ProgramId,
    Store,
    names_in,
    parts_of,
)
from ferrite_triton.tile.rewriting import unmasked
from ferrite_triton.tile.statements import Do, For, If, Let, Statement, TileProgram, expressions_of


def peel_last_block(program: TileProgram) -> TileProgram:
    """Returns a program whose statements behind a mask that keeps accesses from being vectors stand twice.

    Only of flat programs and parts of such, with one mask, of a number of elements that is known; others are returned
    as they are.
    """
    body = _peeled(program, program.body, None)
    return program if body == program.body else replace(program, body=body)


def _peeled(program: TileProgram, body: tuple[Statement, ...], counter: str | None) -> tuple[Statement, ...]:
    """Returns a block whose statements behind such a mask stand twice; ``counter`` is that of the loop it is in."""
    for number, statement in enumerate(body):
        if isinstance(statement, Let) and (found := _mask(statement)) is not None:
            position, size = found
            rest = body[number + 1 :]
            whole = _is_whole(body[:number], position, size, counter)
            if whole is None or not _splits_vectors(program, rest, size):
                return body
            unmasked = tuple(_without_mask(each, statement.variables[0].name) for each in rest)
            if any(each is None for each in unmasked):
                return body
            return (*body[: number + 1], If(whole, tuple(each for each in unmasked if each is not None), rest))
    return tuple(_inside(program, statement) for statement in body)


def _inside(program: TileProgram, statement: Statement) -> Statement:
    """Returns a statement with the parts of a combo kernel in it peeled."""
    match statement:
        case If(condition, then, otherwise):
            return If(condition, _peeled(program, then, None), _peeled(program, otherwise, None))
        case For(start=start, stop=Elementwise("lesser", (Elementwise("add", (first, block)), _))) if (
            first,
            block,
        ) == (start, statement.step) and not statement.carried:
            return replace(statement, body=_peeled(program, statement.body, statement.counter.name))
    return statement


def _mask(statement: Let) -> tuple[str, Literal] | None:
    """Returns the positions and the number of elements of which a statement says that they lie before it."""
    match statement.value:
        case Elementwise("lt", (Name(position), Literal() as size)) if len(statement.variables[0].type.shape) == 1:
            return position, size
    return None


def _is_whole(before: tuple[Statement, ...], position: str, size: Literal, counter: str | None) -> Expression | None:
    """Returns the condition that a program's positions all lie before the end; None where these are no flat block.

    A block begins where the number of the program says, or at the ``counter`` of a loop over one.
    """
    values = {each.variables[0].name: each.value for each in before if isinstance(each, Let)}
    match values.get(position):
        case Elementwise(
            "add", (Elementwise("mul", (ProgramId() as program, BlockSize() as block)), Lanes(extent))
        ) if block.block == extent and isinstance(extent, Block):
            return apply("le", mul(program, block), sub(size, block))  # and not block + 1, which may not fit the type
        case Elementwise("add", (Name(name), Lanes(Block() as extent))) if name == counter:
            return apply("le", Name(name), sub(size, BlockSize(extent, size.dtype)))
    return None


def _splits_vectors(program: TileProgram, rest: tuple[Statement, ...], size: Literal) -> bool:
    """Returns whether the number of elements is no multiple of what a thread reads or writes at once."""
    pointers = {each.name: each.type.dtype.bytes for each in program.parameters if each.type.is_pointer}
    widths = [
        pointers[name]
        for expression in expressions_of(rest)
        for part in parts_of(expression)
        if isinstance(part, (Load, Store))
        for name in names_in(part.pointer)
        if name in pointers
    ]
    return any(int(size.value) % (VECTOR_BYTES // width) for width in widths if width < VECTOR_BYTES)


def _without_mask(statement: Statement, mask: str) -> Statement | None:
    """Returns a statement without a mask; None where it takes the mask for something else, or is a loop or branch."""
    match statement:
        case Let(variables, value):
            found = _unmasked(value, mask)
            return None if found is None else Let(variables, found)
        case Do(effect):
            found = _unmasked(effect, mask)
            return None if found is None else Do(found)
    return None


def _unmasked(value: Expression, mask: str) -> Expression | None:
    if mask not in names_in(value):
        return value
    if isinstance(value, (Load, Store, AtomicUpdate)):
        free = unmasked(value, {mask})
        return None if mask in names_in(free) else free
    return None
