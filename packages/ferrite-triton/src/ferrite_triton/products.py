"""Products of few rows with the columns of a matrix, block by block along the fold axis, on tensor cores.

Tiles have the axes ``y`` (all rows), ``x`` and ``r``. What is multiplied has no extent along one of the first two, and
becomes a matrix for the instruction; its result has none along ``r``.
"""

from __future__ import annotations

from collections.abc import Callable

from ferrite_ir.dtypes import F32
from ferrite_ir.graph import Contract

from .evaluate import Evaluator
from .folds import FoldText, R
from .space import Axes
from .writer import Tile, Writer

ROWS: Axes = frozenset("yr")
COLUMNS: Axes = frozenset("xr")


def open_product(
    definition: Contract, folds: FoldText, writer: Writer, evaluator: Evaluator
) -> Callable[[], tuple[Tile, ...]]:
    """Writes the part of a contraction inside the open loop; returns what writes the part after it.

    Rows and columns past the end hold anything, as what they come to is never stored. Points of the fold axis past its
    end hold zeros, on either side: one of the two may be no number.
    """
    left = folds.full(evaluator.tile(definition.left), ROWS, "0.0")
    right = folds.full(evaluator.tile(definition.right), COLUMNS, "0.0")
    total = writer.fresh("sum")
    writer.before_loop(f"{total} = tl.full([YBLOCK, XBLOCK], 0.0, tl.float32)")
    rows = f"tl.reshape({left.text}, [YBLOCK, RBLOCK])"
    columns = f"tl.trans(tl.reshape({right.text}, [XBLOCK, RBLOCK]))"
    writer.line(f"{total} = tl.dot({rows}, {columns}, {total})", R)
    return lambda: (writer.hold("product", f"{total}[:, :, None]", frozenset("yx"), F32),)
