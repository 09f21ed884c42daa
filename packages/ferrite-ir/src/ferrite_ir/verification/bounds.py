"""Which loads of an expression are guarded, and what is known about indices being in bounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ferrite_ir.language import sizes
from ferrite_ir.language.index import Atom, Dim, Index, Indirect
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import Size


def unguarded(roots: Iterable[Scalar]) -> Iterator[Scalar]:
    """Yields the nodes that are evaluated at every point.

    All but those reached only as the guarded value of a ``masked``.
    """
    seen: set[Scalar] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        stack.extend((node.args[0], node.args[2]) if node.op == "masked" else node.below)


def is_surely_outside(index: Index, size: Size) -> bool:
    """Returns whether an index provably leaves ``[0, size)`` at some point of its domain.

    The bounds of an index are exact if it is a sum of different dims; otherwise they may be too wide, and only an
    index that lies outside altogether is refused. An empty domain has no points.
    """
    if index.lo is None or index.hi is None or any(sizes.is_provably_at_most(dim.size, 0) for dim in index.dims):
        return False
    last = sizes.add(size, -1)
    if all(_is_exact(atom) for atom, _ in index.terms):
        return sizes.is_provably_at_most(index.lo, -1) or sizes.is_provably_at_most(sizes.add(last, 1), index.hi)
    return sizes.is_provably_at_most(index.hi, -1) or sizes.is_provably_at_most(sizes.add(last, 1), index.lo)


def _is_exact(atom: Atom) -> bool:
    return isinstance(atom, (Dim, Indirect))
