"""Definitions that say more than those of the graph: how the scheduler wants them laid out."""

from __future__ import annotations

from dataclasses import dataclass

from ferrite_ir.graph import Fold


@dataclass(frozen=True, slots=True)
class ColumnFold(Fold):
    """The first stage of a column fold, computed by a kernel over rows; see `columns`.

    In a graph it is the `Fold` that it looks like, with dims ``(run, columns…)`` and one fold dim, the rows of a run.
    In a kernel ``dims`` are the grid dims (the rows) and ``fold_dims`` those of the fold axis (the columns): all points
    with the same home are combined.
    """
