"""Assertions that indices which come from memory are in bounds, and that requirements of values hold.

They cost nothing unless the kernel is compiled with them: then, and in the interpreter, they stop it.
"""

from __future__ import annotations

from collections.abc import Callable

from ferrite_ir.dtypes import BOOL
from ferrite_ir.graph import Fold, Loop, Scan
from ferrite_ir.index import Index, indirect_parts
from ferrite_ir.ops import REQUIREMENTS
from ferrite_ir.scalar import Scalar

from .flat import FlatKernel
from .space import Axes
from .writer import Tile, Writer

# Operations whose result is what somebody stored, moved or chosen. A position that comes out of comparisons, as in a
# binary search, is in bounds by construction.
_ARITHMETIC = frozenset(["cast", "add", "sub", "mul", "neg", "floordiv", "truncdiv", "mod", "minimum", "maximum"])
_CHOICES = frozenset(["where", "masked", *REQUIREMENTS])


def assert_in_bounds(
    flat: FlatKernel,
    writer: Writer,
    indices: tuple[Index, ...],
    known: Callable[[Scalar], Tile],
    access: tuple[str, Axes],
) -> None:
    """Writes assertions about the parts of indices that are computed from memory.

    Args:
        flat: the kernel.
        writer: takes the lines.
        indices: of one access.
        known: the tile of a value that is written already.
        access: the mask ("" for none) under which the access happens, and the axes it varies along.
    """
    mask, axes = access
    for atom in dict.fromkeys(indirect_parts(indices)):
        tile = known(atom.value)
        if tile.literal is not None or not _is_given(flat, atom.value):
            continue
        size = flat.space.params.operand(atom.size)
        low = f"-{size}" if atom.wraps else "0"
        test = f"({tile.text} >= {low}) & ({tile.text} < {size})"
        _write(writer, test, f"index out of bounds of {size} elements", mask, axes | tile.axes)


def assert_required(writer: Writer, op: str, condition: str, access: tuple[str, Axes]) -> None:
    """Writes the assertion of an operation of `ferrite_ir.ops.REQUIREMENTS`, whose condition is this text.

    ``access`` is the mask ("" for none) under which the operation counts, and the axes that it varies along.
    """
    message = REQUIREMENTS[op]
    _write(writer, condition, message if message.startswith("index out of bounds") else f"refused: {message}", *access)


def _write(writer: Writer, test: str, message: str, mask: str, axes: Axes) -> None:
    arguments = [test, f'"{message}"', *([mask] if mask else [])]
    line = f"tl.device_assert({', '.join(arguments)})"
    if writer.find(line) is None:
        writer.line(line, axes)
        writer.remember(line, Tile("", axes, BOOL))


def _is_given(flat: FlatKernel, value: Scalar) -> bool:
    """Returns whether a position is, but for arithmetic, a number that somebody stored, or a count."""
    pending, seen = [value], set[Scalar]()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "load":
            produced = flat.producer(node)
            if produced is None or isinstance(produced[0], (Fold, Scan)):
                return True
            if isinstance(produced[0], Loop):
                pending.append(produced[0].bodies[produced[1]])
        elif node.op in _ARITHMETIC:
            pending.extend(node.args)
        elif node.op in _CHOICES:
            pending.extend(node.args[1:])
    return False
