"""Folds over rows so short, and of such a length, that they are better written out."""

from __future__ import annotations

from collections.abc import Iterable

from ferrite_ir import sizes
from ferrite_ir.graph import Definition, Fold, Graph, Loop, TensorType
from ferrite_ir.index import Dim, atom_dims
from ferrite_ir.scalar import Scalar

from .readings import loads_of, points_of, smallest_step

ACCESS_BYTES = 8
"""What a thread reads at once of rows of which a tile of a power of two is worth its padding, at least."""
ROW_BYTES = 88
"""Of a row at most: those of all threads stay in the cache next to them until each has been read to its end."""


def short_rows(graph: Graph, folds: Iterable[Fold]) -> list[Fold]:
    """Returns those of the folds that run over short rows, one behind the other, and that nothing ties to their points.

    A row of three or seventeen elements leaves a part of a tile idle, which holds powers of two, and begins where
    nothing larger than an element is aligned. Rows of a power of two, or of whole accesses, do neither.

    A fold stays if what it reads is needed at all points by a definition that stays, or is made at all of them: one
    kernel has both then. So it does if such a definition needs its result at all points.
    """
    chosen = [fold for fold in folds if _runs_over_rows(fold, graph) and not _is_made_beside(fold, graph)]
    while chosen:
        ids = {id(fold) for fold in chosen}
        staying = [definition for definition in graph.definitions if id(definition) not in ids]
        kept = [fold for fold in chosen if not any(_ties(fold, definition) for definition in staying)]
        if len(kept) == len(chosen):
            break
        chosen = kept
    return chosen


def _runs_over_rows(fold: Fold, graph: Graph) -> bool:
    loads = _row_loads(fold)
    return bool(loads) and all(_is_row(load, fold, graph.type_of(load.source)) for load in loads)


def _row_loads(fold: Fold) -> list[Scalar]:
    """Returns the loads of a fold that are of another element at each of its points, results and folded dims alike."""
    inner, outer = frozenset(fold.fold_dims), frozenset(fold.dims)
    return [load for load in loads_of(fold) if load.dims & inner and load.dims & outer]


def _is_row(load: Scalar, fold: Fold, read: TensorType) -> bool:
    """Returns whether the points of a fold lie side by side, those of its results likewise, in rows of odd sizes."""
    inner = frozenset(dim for dim in fold.fold_dims if dim.size != 1)
    steps: dict[Dim, int] = {}
    for index, stride in zip(load.indices, read.strides, strict=True):
        for atom, coefficient in index.terms:
            if atom_dims(atom) & inner:
                if not (isinstance(atom, Dim) and isinstance(stride, int) and isinstance(coefficient, int)):
                    return False
                steps[atom] = steps.get(atom, 0) + stride * coefficient
    length = 1
    for dim, step in sorted(steps.items(), key=lambda item: item[1]):
        if step != length:
            return False
        length *= int(dim.size)
    row = length * read.dtype.bytes
    if len(steps) != len(inner) or length & (length - 1) == 0 or row % ACCESS_BYTES == 0 or row > ROW_BYTES:
        return False
    return smallest_step(load.indices, read, frozenset(fold.dims)) == length


def _is_made_beside(fold: Fold, graph: Graph) -> bool:
    """Returns whether a loop makes what a fold reads, at all points of it."""
    made = (graph.definer.get(load.source) for load in _row_loads(fold))
    return any(isinstance(definition, Loop) for definition in made)


def _ties(fold: Fold, definition: Definition) -> bool:
    """Returns whether a definition that stays reads what a fold reads or makes, at more points than it has results."""
    named = {load.source for load in _row_loads(fold)} | {value.name for value in fold.results}
    if not any(load.source in named for load in loads_of(definition)):
        return False
    return not sizes.is_provably_at_most(points_of(definition), fold.results[0].type.numel)
