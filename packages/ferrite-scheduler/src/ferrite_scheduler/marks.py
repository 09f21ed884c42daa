"""Definitions that say more than those of the graph: how the scheduler wants them laid out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ferrite_ir.graph import Fold, Graph


@dataclass(frozen=True, slots=True)
class ColumnFold(Fold):
    """The first stage of a column fold, computed by a kernel over rows; see `columns`.

    In a graph it is the `Fold` that it looks like, with dims ``(run, columns…)`` and one fold dim, the rows of a run.
    In a kernel ``dims`` are the grid dims (the rows) and ``fold_dims`` those of the fold axis (the columns): all points
    with the same home are combined.
    """


def as_column_fold(fold: Fold) -> ColumnFold:
    """Returns the first stage of a split fold, to be laid out along rows."""
    return ColumnFold(fold.results, fold.combine, fold.dims, fold.fold_dims, fold.bodies, fold.origins)


def as_fold(fold: ColumnFold) -> Fold:
    """Returns the same fold without the mark: a kernel over columns."""
    return Fold(fold.results, fold.combine, fold.dims, fold.fold_dims, fold.bodies, fold.origins)


def unmarked(graph: Graph) -> Graph:
    """Returns the graph without marks, for all that is not about layout."""
    if not any(isinstance(definition, ColumnFold) for definition in graph.definitions):
        return graph
    plain = (as_fold(d) if isinstance(d, ColumnFold) else d for d in graph.definitions)
    return replace(graph, definitions=tuple(plain))
