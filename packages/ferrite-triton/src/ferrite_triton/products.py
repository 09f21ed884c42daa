"""Products of few rows with the columns of a matrix, block by block along the fold axis.

Half types are multiplied by tensor cores, and so is float32, in parts. For a few rows of float32 there is a
multiplication for each: a thread adds up what it has of the fold axis, which is added to what others have after the
loop.

Tiles have the axes ``y`` (all rows), ``x`` and ``r``. What is multiplied has no extent along one of the first two, and
becomes a matrix for tensor cores; the result has none along ``r``.

Rows that are multiplied as they lie in memory are read as a matrix at once. Of a tile ``[YBLOCK, 1, RBLOCK]`` the
compiler does not see where it goes, and keeps its rows in shared memory one after the other, all of them beginning in
one bank: eight threads that read as many rows wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable

from ferrite_ir.dtypes import BF16, F32
from ferrite_ir.graph import Contract
from ferrite_ir.index import Dim
from ferrite_ir.scalar import Scalar, cast
from ferrite_ir.sizes import Size
from ferrite_scheduler.contractions import CUT_ROWS, PARTS, part_loads, uses_tensor_cores

from .evaluate import Evaluator
from .flat import FlatKernel
from .folds import FoldText, R
from .space import Axes
from .writer import Tile, Writer

ROWS: Axes = frozenset("yr")
COLUMNS: Axes = frozenset("xr")


def open_product(
    definition: Contract, flat: FlatKernel, folds: FoldText, writer: Writer, evaluator: Evaluator, *, wide: bool
) -> Callable[[], tuple[Tile, ...]]:
    """Writes the part of a contraction inside the open loop; returns what writes the part after it.

    Rows and columns past the end hold anything, as what they come to is never stored. Points of the fold axis past its
    end hold zeros, on either side: one of the two may be no number. ``wide`` says that addresses have 64 bits.
    """
    if not uses_tensor_cores(flat.kernel.body):
        return _open_wide_product(definition, folds, writer, evaluator)
    in_parts = _open_product_of_parts(definition, flat, folds, writer, evaluator, wide=wide)
    if in_parts is not None:
        return in_parts
    rows = _rows_in_memory(definition.left, flat, writer, wide=wide)
    if rows is None:
        left = folds.full(evaluator.tile(definition.left), ROWS, "0.0")
        rows = f"tl.reshape({left.text}, [YBLOCK, RBLOCK])"
    right = folds.full(evaluator.tile(definition.right), COLUMNS, "0.0")
    total = writer.fresh("sum")
    writer.before_loop(f"{total} = tl.full([YBLOCK, XBLOCK], 0.0, tl.float32)")
    columns = f"tl.trans(tl.reshape({right.text}, [XBLOCK, RBLOCK]))"
    multiply = "fmath.dot_in_parts" if definition.left.dtype is F32 else "tl.dot"
    writer.line(f"{total} = {multiply}({rows}, {columns}, {total})", R)
    return lambda: (writer.hold("product", f"{total}[:, :, None]", frozenset("yx"), F32),)


def _open_wide_product(
    definition: Contract, folds: FoldText, writer: Writer, evaluator: Evaluator
) -> Callable[[], tuple[Tile, ...]]:
    left = folds.full(evaluator.tile(definition.left), ROWS, "0.0")
    right = folds.full(evaluator.tile(definition.right), COLUMNS, "0.0")
    total = writer.fresh("sum")
    writer.before_loop(f"{total} = tl.full([YBLOCK, XBLOCK, RBLOCK], 0.0, tl.float32)")
    writer.line(f"{total} = {total} + {left.text} * {right.text}", R)
    return lambda: (writer.hold("product", f"tl.sum({total}, 2, keep_dims=True)", frozenset("yx"), F32),)


def _open_product_of_parts(
    definition: Contract, flat: FlatKernel, folds: FoldText, writer: Writer, evaluator: Evaluator, *, wide: bool
) -> Callable[[], tuple[Tile, ...]] | None:
    """Writes a product of rows that are cut in parts: rows of one matrix, a quarter of its rows for each part.

    Returns what `open_product` does, None if the rows are whole or too many, or their parts do not lie in memory.
    """
    parts = part_loads(definition)
    count = next(axis.size for axis in flat.space.axes if axis.name == "y")
    if not parts or int(count) > CUT_ROWS:
        return None
    first, second = (flat.offset(part.source, part.indices) for part in parts[:2])
    rows = _rows_in_memory(parts[0], flat, writer, wide=wide, apart=second.const - first.const)
    if rows is None:
        return None
    right = folds.full(evaluator.tile(cast(definition.right.args[0], BF16)), COLUMNS, "0.0")
    total = writer.fresh("sum")
    writer.before_loop(f"{total} = tl.full([YBLOCK, XBLOCK], 0.0, tl.float32)")
    writer.line(f"{total} = fmath.add_dot({rows}, tl.trans(tl.reshape({right.text}, [XBLOCK, RBLOCK])), {total})", R)
    return lambda: (writer.hold("product", f"fmath.sum_of_parts({total})[:, :, None]", frozenset("yx"), F32),)


def _rows_in_memory(node: Scalar, flat: FlatKernel, writer: Writer, *, wide: bool, apart: Size = 0) -> str | None:
    """Writes the load of rows that lie at equal distances in memory; returns its name, None for other operands.

    ``apart`` is how many elements lie between the parts that the rows are cut in, 0 where they are whole.
    """
    if node.op != "load" or node.source in flat.producers or flat.param_of(node.source).param.host_scalar:
        return None
    offset, space = flat.offset(node.source, node.indices), flat.space
    places = {atom.name: coefficient for atom, coefficient in offset.terms if isinstance(atom, Dim)}
    if len(places) < len(offset.terms) or places.keys() != ROWS:
        return None
    key = ("matrix", node)
    found = writer.find(key)
    if found is not None:  # other products have the same rows
        return found.text
    suffix = ".to(tl.int64)" if wide else ""
    row, point = writer.fresh("row"), writer.fresh("point")
    writer.before_loop(f"{row} = tl.arange(0, YBLOCK){suffix}[:, None]")
    masks: list[str] = []
    part = writer.fresh("part") if apart != 0 else ""
    if part:
        writer.before_loop(f"{part} = {row} // (YBLOCK // 4)")
        writer.before_loop(f"{row} = {row} % (YBLOCK // 4)")
        masks.append(f"({part} < {PARTS})")
    writer.line(f"{point} = (rstart + tl.arange(0, RBLOCK)){suffix}[None, :]", R)
    texts = {"y": row, "r": point}
    terms = [
        texts[name] if coefficient == 1 else f"{texts[name]} * {space.params.operand(coefficient)}"
        for name, coefficient in sorted(places.items(), reverse=True)
    ]
    if part:
        terms.append(f"{part} * {space.params.operand(apart)}")
    if offset.const != 0:
        terms.append(space.params.text(offset.const))
    masks += [
        f"({texts[axis.name]} < {space.params.text(axis.size)})"
        for axis in space.axes
        if axis.name in texts and axis.masked
    ]
    arguments = [f"{flat.param_of(node.source).text} + ({' + '.join(terms)})"]
    if masks:
        arguments += [" & ".join(masks), "other=0.0"]
    load = writer.fresh("load")
    writer.line(f"{load} = tl.load({', '.join(arguments)})", R)
    return writer.remember(key, Tile(load, ROWS, node.dtype)).text
