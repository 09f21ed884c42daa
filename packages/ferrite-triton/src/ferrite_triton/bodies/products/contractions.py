"""Products of few rows with the columns of a matrix, block by block along the reduction axis.

Half types are multiplied by tensor cores, and so is float32, in parts. For a few rows of float32 there is a
multiplication for each: a thread adds up what it has of the reduction axis, which is added to what others have after
the loop.

Tiles have the axes ``y`` (all rows), ``x`` and ``r``. What is multiplied has no extent along one of the first two, and
becomes a matrix for tensor cores; the result has none along ``r``.

Rows that are multiplied as they lie in memory are read as a matrix at once. Of a tile ``[YBLOCK, 1, RBLOCK]`` the
compiler does not see where it goes, and keeps its rows in shared memory one after the other, all of them beginning in
one bank: eight threads that read as many rows wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable

from ferrite_ir.language.dtypes import BF16, F32, I32
from ferrite_ir.language.graph import Contract
from ferrite_ir.language.index import Dim
from ferrite_ir.language.scalar import Scalar, cast
from ferrite_ir.language.sizes import Size
from ferrite_scheduler.model.contractions import CUT_ROWS, PARTS, part_loads
from ferrite_scheduler.model.forms import Contraction
from ferrite_triton.analysis.flat import FlatKernel
from ferrite_triton.analysis.space import NO_AXES, Axes
from ferrite_triton.bodies.builder import Builder, Tile
from ferrite_triton.bodies.reductions import R, Reductions
from ferrite_triton.bodies.scalar_values import ScalarValues
from ferrite_triton.tile.build import (
    add,
    all_of,
    apply,
    block_size,
    converted,
    full,
    lanes,
    literal,
    mul,
    quotient,
    remainder,
)
from ferrite_triton.tile.language import (
    Block,
    Dot,
    Expand,
    Expression,
    Literal,
    Load,
    Name,
    Offset,
    Reduce,
    Reshape,
    TileType,
    Transpose,
)

MATRIX = (Block("YBLOCK"), Block("XBLOCK"))
MATRIX_OF_ROWS = (Block("YBLOCK"), Block("RBLOCK"))
PARTS_OF_ROWS = 4
"""Equal parts of a tile of rows, one for each part that the rows are cut in, and one that is empty."""

ROWS: Axes = frozenset("yr")
COLUMNS: Axes = frozenset("xr")


def open_product(
    definition: Contract, flat: FlatKernel, reductions: Reductions, builder: Builder, evaluator: ScalarValues
) -> Callable[[], tuple[Tile, ...]]:
    """Writes the part of a contraction inside the open loop; returns what writes the part after it.

    Rows and columns past the end hold anything, as what they come to is never stored. Points of the reduction axis past
    its
    end hold zeros, on either side: one of the two may be no number.
    """
    form = flat.kernel.form
    assert isinstance(form, Contraction), "other forms have no such products"
    if not form.tensor_cores:
        return _open_wide_product(definition, reductions, builder, evaluator)
    in_parts = _open_product_of_parts(definition, flat, builder, evaluator, reductions)
    if in_parts is not None:
        return in_parts
    rows = _rows_in_memory(definition.left, flat, builder, evaluator)
    if rows is None:
        left = reductions.full(evaluator.tile(definition.left), ROWS, 0.0)
        rows = Reshape(left.expression, MATRIX_OF_ROWS)
    right = reductions.full(evaluator.tile(definition.right), COLUMNS, 0.0)
    total = builder.carry("sum", full(MATRIX, 0.0, F32), R)
    columns = _columns(right)
    if definition.left.dtype is F32:
        operands = (rows, columns, total.expression)
        kind = TileType(F32, MATRIX)
        builder.follow(total, builder.call("sum", "dot_in_parts", operands, kind, R).expression)
    else:
        builder.follow(total, Dot(rows, columns, total.expression))
    return lambda: (builder.hold("product", Expand(total.expression, (2,)), frozenset("yx")),)


def _columns(right: Tile) -> Expression:
    return Transpose(Reshape(right.expression, (Block("XBLOCK"), Block("RBLOCK"))), (1, 0))


def _open_wide_product(
    definition: Contract, reductions: Reductions, builder: Builder, evaluator: ScalarValues
) -> Callable[[], tuple[Tile, ...]]:
    left = reductions.full(evaluator.tile(definition.left), ROWS, 0.0)
    right = reductions.full(evaluator.tile(definition.right), COLUMNS, 0.0)
    total = builder.carry("sum", full((Block("YBLOCK"), Block("XBLOCK"), Block("RBLOCK")), 0.0, F32), R)
    builder.follow(total, add(total.expression, mul(left.expression, right.expression)))
    return lambda: (builder.hold("product", Reduce((total.expression,), "sum", 2, True), frozenset("yx")),)


def _open_product_of_parts(
    definition: Contract, flat: FlatKernel, builder: Builder, evaluator: ScalarValues, reductions: Reductions
) -> Callable[[], tuple[Tile, ...]] | None:
    """Writes a product of rows that are cut in parts: rows of one matrix, a quarter of its rows for each part.

    Returns what `open_product` does, None if the rows are whole or too many, or their parts do not lie in memory.
    """
    parts = part_loads(definition)
    count = next(axis.size for axis in flat.space.axes if axis.name == "y")
    if not parts or int(count) > CUT_ROWS:
        return None
    first, second = (flat.offset(part.source, part.indices) for part in parts[:2])
    rows = _rows_in_memory(parts[0], flat, builder, evaluator, apart=second.const - first.const)
    if rows is None:
        return None
    right = reductions.full(evaluator.tile(cast(definition.right.args[0], BF16)), COLUMNS, 0.0)
    total = builder.carry("sum", full(MATRIX, 0.0, F32), R)
    kind = TileType(F32, MATRIX)
    builder.follow(total, builder.call("sum", "add_dot", (rows, _columns(right), total.expression), kind, R).expression)

    def finish() -> tuple[Tile, ...]:
        summed = builder.call("sums", "sum_of_parts", (total.expression,), kind, frozenset("yx"))
        return (builder.hold("product", Expand(summed.expression, (2,)), frozenset("yx")),)

    return finish


def _rows_in_memory(
    node: Scalar, flat: FlatKernel, builder: Builder, evaluator: ScalarValues, *, apart: Size = 0
) -> Expression | None:
    """Writes the load of rows that lie at equal distances in memory; returns their name, None for other operands.

    ``apart`` is how many elements lie between the parts that the rows are cut in, 0 where they are whole.
    """
    if node.op != "load" or node.source in flat.producers or flat.param_of(node.source).param.host_scalar:
        return None
    offset, space = flat.offset(node.source, node.indices), flat.space
    positions = {atom.name: coefficient for atom, coefficient in offset.terms if isinstance(atom, Dim)}
    if len(positions) < len(offset.terms) or positions.keys() != ROWS:
        return None
    key = ("matrix", node)
    found = builder.find(key)
    if found is not None:  # other products have the same rows
        return found.expression
    dtype = evaluator.index_dtype
    row = builder.hold("row", Expand(converted(lanes("YBLOCK"), I32, dtype), (1,)), NO_AXES).expression
    masks: list[Expression] = []
    part: Expression | None = None
    if apart != 0:
        rows = block_size("YBLOCK", dtype, PARTS_OF_ROWS)
        part = builder.hold("part", quotient(row, rows), NO_AXES).expression
        row = builder.hold("row", remainder(row, rows), NO_AXES).expression
        masks.append(apply("lt", part, Literal(PARTS, dtype)))
    start = builder.position("rstart")
    points = add(start, converted(lanes("RBLOCK"), I32, builder.type_of(start).dtype))
    points = converted(points, builder.type_of(start).dtype, dtype)
    point = builder.hold("point", Expand(points, (0,)), R).expression
    at = {"y": row, "r": point}

    def number(size: Size) -> Expression:
        return space.params.value(size, dtype)

    terms = [
        at[name] if coefficient == 1 else mul(at[name], number(coefficient))
        for name, coefficient in sorted(positions.items(), reverse=True)
    ]
    if part is not None:
        terms.append(mul(part, number(apart)))
    if offset.const != 0:
        terms.append(number(offset.const))
    masks += [apply("lt", at[axis.name], number(axis.size)) for axis in space.axes if axis.name in at and axis.masked]
    pointer = Offset(Name(flat.param_of(node.source).text), add(*terms))
    mask = all_of(masks)
    load = builder.hold("load", Load(pointer, mask, None if mask is None else literal(0.0, node.dtype)), R)
    return builder.remember(key, Tile(load.expression, ROWS, node.dtype)).expression
