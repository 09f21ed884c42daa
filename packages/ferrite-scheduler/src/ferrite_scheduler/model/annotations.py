"""Annotations: definitions that also say how the scheduler wants them computed.

Each is a subclass of the definition that it looks like, so that passes and the evaluator take it as that; `plain` and
`unannotated` drop what it says besides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ferrite_ir.language.dtypes import I64
from ferrite_ir.language.graph import Contract, Definition, Graph, Loop, Reduction, Scan, Update
from ferrite_ir.language.index import constant
from ferrite_ir.language.scalar import Scalar, apply, const, index_value, indirects_of, load, replace_loads


@dataclass(frozen=True, slots=True)
class ColumnReduction(Reduction):
    """The first stage of a column reduction, computed by a kernel over rows; see `fused_columns`.

    In a graph it is the `Reduction` that it looks like, with dims ``(chunk, columns…)`` and one reduction dim, the
    rows of a chunk. In a kernel ``dims`` are the grid dims (the rows) and ``reduction_dims`` those of the reduction
    axis (the columns): all points with the same home are combined.

    Attributes:
        whole: the reduction that it is the first stage of, over all rows: no row is masked out there. None in a kernel.
    """

    whole: Reduction | None = None

    @property
    def by_row(self) -> Reduction:
        """Returns the reduction over all rows, in a graph."""
        assert self.whole is not None, "column reductions of graphs know their rows"
        return self.whole

    @property
    def chunks(self) -> int:
        """Returns in how many chunks the rows are cut."""
        return int(self.results[0].type.shape[0])


@dataclass(frozen=True, slots=True)
class PartialContract(Contract):
    """The first stage of a contraction in parts (`split_products`): its sums are no result yet, and are not rounded."""


@dataclass(frozen=True, slots=True)
class RowResult(Loop):
    """What is computed of the results of rows, by the kernel that reduces them; see `row_results`."""


@dataclass(frozen=True, slots=True)
class LookBackScan(Scan):
    """A scan by decoupled look-back: a program has one part of a line, and waits for those before it; see `look_back`.

    Attributes:
        workspace: the value (i64), kept from launch to launch, through which they tell each other; it reads that.
        points: length of a part, a power of two.
    """

    workspace: str = ""
    points: int = 0

    @property
    def operand(self) -> Scalar:
        """Returns what is scanned."""
        return self.bodies[0]

    @property
    def scalars_beside(self) -> tuple[Scalar, ...]:
        """Returns the load of the workspace."""
        return (load(self.workspace, [constant(0)], I64),)


@dataclass(frozen=True, slots=True)
class SortedScatter(Update):
    """An update whose points come in the order of the rows that they are combined into; see `sorted_scatters`.

    It reads the row of the next point, too: where another one begins, what a tile has combined is written.

    Attributes:
        points: how many points of one column there are; the row of each is loaded from a vector of that length.
    """

    points: int = 0

    @property
    def following(self) -> Scalar:
        """Returns the row (i64) of the next point, read as that of this one is; the lowest number at the end."""
        (row,) = indirects_of(self.indices)
        ((position,),) = (found.indices for found in row.loads)
        later = replace_loads(row, lambda found: load(found.source, (position + 1,), found.dtype), {})
        is_inside = apply("lt", index_value(position + 1, I64), const(self.points, I64))
        return apply("masked", is_inside, later, const(I64.lowest, I64))

    @property
    def scalars_beside(self) -> tuple[Scalar, ...]:
        """Returns the row of the next point."""
        return (self.following,)


HALF_BYTES = 2
"""Bytes of elements that wait two in a register."""


def sums_16_bit(operand: Scalar) -> bool:
    """Returns whether all that an operand is made of are floats of two bytes, and there are some."""
    return bool(operand.loads) and all(load.dtype.is_float and load.dtype.bytes == HALF_BYTES for load in operand.loads)


def as_scan(scan: LookBackScan) -> Scan:
    """Returns the same scan without the annotation."""
    return Scan(scan.results, scan.combine, scan.dims, scan.along, scan.bodies, scan.reverse, scan.origins)


def as_column_reduction(reduction: Reduction, whole: Reduction) -> ColumnReduction:
    """Returns the first stage of a split reduction, to be laid out along rows."""
    return ColumnReduction(
        reduction.results,
        reduction.combine,
        reduction.dims,
        reduction.reduction_dims,
        reduction.bodies,
        reduction.origins,
        whole,
    )


def as_reduction(reduction: ColumnReduction) -> Reduction:
    """Returns the same reduction without the annotation: a kernel over columns."""
    return Reduction(
        reduction.results,
        reduction.combine,
        reduction.dims,
        reduction.reduction_dims,
        reduction.bodies,
        reduction.origins,
    )


def unannotated(graph: Graph) -> Graph:
    """Returns the graph without annotations, for all that is not about layout; those that read something more stay."""
    annotated = (ColumnReduction, PartialContract, RowResult)
    if not any(isinstance(definition, annotated) for definition in graph.definitions):
        return graph
    return replace(graph, definitions=tuple(plain(d) if isinstance(d, annotated) else d for d in graph.definitions))


def plain(definition: Definition) -> Definition:
    """Returns a definition without what an annotation says beside it."""
    match definition:
        case ColumnReduction():
            return as_reduction(definition)
        case LookBackScan():
            return as_scan(definition)
        case PartialContract(result, dims, reduction_dims, left, right, origins, fast):
            return Contract(result, dims, reduction_dims, left, right, origins, fast)
        case RowResult():
            return Loop(definition.results, definition.dims, definition.bodies, definition.origins)
        case SortedScatter(result, target, mode, dims, indices, body, condition, origins):
            return Update(result, target, mode, dims, indices, body, condition, origins)
    return definition
