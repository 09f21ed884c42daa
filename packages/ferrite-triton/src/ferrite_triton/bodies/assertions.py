"""Assertions that indices which come from memory are in bounds, and that requirements of values hold.

They cost nothing unless the kernel is compiled with them: then, and in the interpreter, they stop it.
"""

from __future__ import annotations

from collections.abc import Callable

from ferrite_ir.language.dtypes import BOOL, DType
from ferrite_ir.language.graph import Loop, Reduction, Scan
from ferrite_ir.language.index import Index
from ferrite_ir.language.index_substitution import indirect_parts
from ferrite_ir.language.ops import REQUIREMENTS
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import is_static
from ferrite_triton.analysis.flat import FlatKernel
from ferrite_triton.analysis.space import Axes
from ferrite_triton.bodies.builder import Builder, Tile
from ferrite_triton.tile.build import apply, both, converted, sub
from ferrite_triton.tile.language import Assert, Expression, Literal
from ferrite_triton.tile.operations import SELECTIONS

# Operations whose result is what somebody stored, moved or chosen. A position that comes out of comparisons, as in a
# binary search, is in bounds by construction.
_ARITHMETIC = frozenset(["cast", "add", "sub", "mul", "neg", "floordiv", "truncdiv", "mod", "minimum", "maximum"])
_CHOICES = frozenset([*SELECTIONS, *REQUIREMENTS])


def assert_in_bounds(
    flat: FlatKernel,
    builder: Builder,
    indices: tuple[Index, ...],
    known: Callable[[Scalar], Tile],
    access: tuple[Expression | None, Axes],
    dtype: DType,
) -> None:
    """Writes assertions about the parts of indices that are computed from memory.

    Args:
        flat: the kernel.
        builder: takes the statements.
        indices: of one access.
        known: the tile of a value that is written already.
        access: the mask (None for none) under which the access happens, and the axes it varies along.
        dtype: of addresses, in which sizes are given.
    """
    mask, axes = access
    for atom in dict.fromkeys(indirect_parts(indices)):
        tile = known(atom.value)
        if tile.literal is not None or not _is_given(flat, atom.value):
            continue
        kind = tile.dtype if tile.dtype.bits >= dtype.bits or is_static(atom.size) else dtype
        given = converted(tile.expression, tile.dtype, kind)
        size = converted(flat.space.params.value(atom.size, dtype), dtype, kind)
        zero = Literal(0, kind)
        low = zero if not atom.wraps else Literal(-int(atom.size), kind) if is_static(atom.size) else sub(zero, size)
        test = both(apply("ge", given, low), apply("lt", given, size))
        shown = flat.space.params.text(atom.size)
        shown = f"({shown})" if " " in shown else shown
        inside = _inside(builder, mask, tile.axes - axes)
        _write(builder, test, f"index out of bounds of {shown} elements", inside, axes | tile.axes)


def _inside(builder: Builder, mask: Expression | None, axes: Axes) -> Expression | None:
    """Returns a mask without lanes past the end of axes that an index varies along and the access does not.

    A vector that is one element, again and again, is loaded once, whatever its index says past the end.
    """
    for axis in sorted(axes & builder.positions.keys()):
        own = builder.mask(axis)
        if own is not None:
            mask = own if mask is None else both(mask, own)
    return mask


def assert_required(builder: Builder, op: str, condition: Expression, access: tuple[Expression | None, Axes]) -> None:
    """Writes the assertion of an operation of `ferrite_ir.language.ops.REQUIREMENTS`, of which this is the condition.

    ``access`` is the mask (None for none) under which the operation counts, and the axes that it varies along.
    """
    message = REQUIREMENTS[op]
    _write(builder, condition, message if message.startswith("index out of bounds") else f"refused: {message}", *access)


def _write(builder: Builder, test: Expression, message: str, mask: Expression | None, axes: Axes) -> None:
    assertion = Assert(test, message, mask)
    if builder.find(assertion) is None:
        builder.do(assertion, axes)
        builder.remember(assertion, Tile(test, axes, BOOL))


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
            if produced is None or isinstance(produced[0], (Reduction, Scan)):
                return True
            if isinstance(produced[0], Loop):
                pending.append(produced[0].bodies[produced[1]])
        elif node.op in _ARITHMETIC:
            pending.extend(node.args)
        elif node.op in _CHOICES:
            pending.extend(node.args[1:])
    return False
