"""Partial column reductions in a kernel over rows: memory is read once for a row statistic and a column sum.

A sum over the rows of a matrix goes along its columns; a row statistic, or a pointwise result, along its rows. They
still share a kernel if each program takes a *chunk* of neighbouring rows, one after the other, and meanwhile keeps a
partial sum of every column in registers. The partial sums lie in memory as ``[programs, columns]`` until a second stage
combines them, so the result depends on no order of programs. The backward pass of a layer norm is the model: a gradient
by row, and those of weight and bias by column.

    rows 0..63    program 0: row statistics, and a row of partial sums |
    rows 64..127  program 1: row statistics, and a row of partial sums | second stage: column sums

A symbolic number of rows is cut into as many chunks as keep a device busy, however many rows each has then: the last
chunks may be short or empty, and leave the neutral element.

In the graph the first stage is a `Reduction` like that of any split reduction; `ColumnReduction` marks it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from ferrite_ir.language.graph import Definition, Graph, Loop, Reduction, TensorType, names_read
from ferrite_ir.language.powers_of_two import next_power_of_two
from ferrite_ir.language.sizes import hint, is_static, product
from ferrite_scheduler.analysis.nodes import Node, Touch, make_node
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.target import Target


@dataclass(frozen=True, slots=True)
class Chunks:
    """How rows are cut into chunks: their number, and whether all have equally many rows."""

    count: int
    exact: bool


def find_column_sums(
    graph: Graph, types: dict[str, TensorType], target: Target, policy: Policy, settled: Collection[str] = ()
) -> dict[str, Chunks]:
    """Returns for each sum over rows, by its result, how to cut it, where something could share its read of them.

    Sums whose results are ``settled`` stay as they are.
    """
    reductions = [d for d in graph.definitions if isinstance(d, Reduction) and _is_column_sum(d, policy)]
    sums = [reduction for reduction in reductions if reduction.results[0].name not in settled]
    if not sums:
        return {}
    makers = {result.name: d for d in graph.definitions for result in d.results if result is not None}
    readers: dict[str, list[Definition]] = {}
    for definition in graph.definitions:
        for name in names_read(definition):
            readers.setdefault(name, []).append(definition)
    found: dict[str, Chunks] = {}
    for reduction in sums:
        node = make_node(0, reduction, types, {})
        chunks = chunks_of(reduction, node, target, policy)
        if chunks is not None and _has_company(reduction, node, makers, readers, policy):
            found[reduction.results[0].name] = chunks
    return found


def _is_column_sum(reduction: Reduction, policy: Policy) -> bool:
    columns = product(dim.size for dim in reduction.dims)
    if reduction.combine != "sum" or not is_static(columns) or not reduction.bodies[0].dtype.is_float:
        return False
    return policy.chunk_columns <= columns and next_power_of_two(columns) <= policy.persistent_elements


def chunks_of(reduction: Reduction, node: Node, target: Target, policy: Policy) -> Chunks | None:
    """Returns how to cut the rows of a column sum, or None if the sum is another way round, or small."""
    heavy = [touch for touch in node.loads if _is_heavy(touch, reduction, policy)]
    if not heavy or not all(_is_by_row(node, touch.known) for touch in heavy):
        return None
    rows, extents = (
        product(dim.size for dim in reduction.reduction_dims),
        [dim.size for dim in reduction.reduction_dims],
    )
    if not is_static(rows):
        return Chunks(target.processors * policy.chunk_least_programs, exact=False)
    for share in _shares(product(dim.size for dim in reduction.dims), policy):
        programs = target.processors * share
        least = policy.chunk_rows if share > policy.chunk_least_programs else 1
        for count in range(programs, int(programs * policy.chunk_filling), -1):
            if rows % count == 0 and rows // count >= least and cuts_evenly(rows // count, extents):
                return Chunks(count, exact=True)
    return None


def _is_heavy(touch: Touch, reduction: Reduction, policy: Policy) -> bool:
    """Returns whether what a column sum reads is too large, or may be, to be found in the cache again."""
    rows = product(dim.size for dim in reduction.reduction_dims)
    scale = 1 if is_static(rows) else max(1, policy.chunk_symbolic_rows / max(1, hint(rows)))
    return touch.bytes * scale >= policy.chunk_minimum


def _shares(columns: int, policy: Policy) -> Iterator[int]:
    """Yields how many programs a multiprocessor may have, the most first: the shorter the rows, the more."""
    share = max(
        1, min(policy.chunk_elements // max(policy.chunk_tile, next_power_of_two(columns)), policy.chunk_programs)
    )
    yield share
    while share > policy.chunk_least_programs:
        share //= 2
        yield share


def _is_by_row(node: Node, known: Iterable[tuple[int, int, int]]) -> bool:
    """Returns whether neighbours in memory are neighbours along the grid."""
    return any(step >= node.reduction and coefficient == 1 for step, _, coefficient in known)


def cuts_evenly(chunk: int, reduced: Iterable[int]) -> bool:
    """Returns whether chunks of ``chunk`` points begin and end at the borders of dims of these sizes."""
    inner = 1
    for size in reversed(tuple(reduced)):
        if chunk % inner and inner % chunk:
            return False
        inner *= size
    return True


def _has_company(
    reduction: Reduction,
    node: Node,
    makers: dict[str, Definition],
    readers: dict[str, list[Definition]],
    policy: Policy,
) -> bool:
    """Returns whether something over the same rows reads or makes what a column sum reads most of."""
    later = _descendants(reduction, readers, policy)
    if later is None:
        return False
    for touch in node.loads:
        if not _is_heavy(touch, reduction, policy):
            continue
        makes = [makers[touch.name]] if touch.name in makers else []
        for other in (*makes, *readers[touch.name]):
            if id(other) not in later and _is_along_rows(other, reduction):
                return True
    return False


def _is_along_rows(other: Definition, reduction: Reduction) -> bool:
    rows, columns = product(dim.size for dim in reduction.reduction_dims), product(dim.size for dim in reduction.dims)
    match other:
        case Reduction():
            grid, reduced = product(dim.size for dim in other.dims), product(dim.size for dim in other.reduction_dims)
            return bool(grid == rows and reduced == columns)
        case Loop():
            return bool(product(dim.size for dim in other.dims) == rows * columns)
    return False


def _descendants(reduction: Reduction, readers: dict[str, list[Definition]], policy: Policy) -> set[int] | None:
    """Returns a reduction and what depends on it, by identity; None if that is much."""
    found = {id(reduction)}
    pending = list(_result_names(reduction))
    while pending:
        for reader in readers.get(pending.pop(), ()):
            if id(reader) in found:
                continue
            found.add(id(reader))
            if len(found) > policy.chunk_search:
                return None
            pending.extend(_result_names(reader))
    return found


def _result_names(definition: Definition) -> Iterator[str]:
    return (result.name for result in definition.results if result is not None)
