"""Segmented reductions: rows combined into those of another matrix by programs that own destinations, not atomics.

Such an update needs, with atomics, a copy of its target in 32 bits, one addition in the cache for each element, and a
pass that rounds. The call ``ferrite.reduce_segments`` stands for the kernels of `ferrite_runtime.fmath.row_bins`
and `segmented_reductions`, which bin the row numbers by destination first: each row is read once, each destination
written once, in its own type. The rows of a destination are combined in their own order, so that results are the same
in every run.

What that costs besides is two small kernels, one that sets counters to zero and one that lists rows.

How many rows there are may be symbolic: the kernels are right for any number. How many destinations there are, how long
rows are and how far they are apart must be known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import TypeAlias

from ferrite_ir.language.dtypes import F32, F64, I32, I64, DType
from ferrite_ir.language.graph import (
    Definition,
    Extern,
    Graph,
    Loop,
    TensorType,
    Update,
    Value,
    View,
    names_read,
    row_major,
    whole,
)
from ferrite_ir.language.index import Atom, Dim, Index, Indirect, linearize
from ferrite_ir.language.ops import CONVERSIONS
from ferrite_ir.language.powers_of_two import next_power_of_two
from ferrite_ir.language.scalar import Number, Scalar, apply, cast, const, load
from ferrite_ir.language.sizes import Size, is_static, product
from ferrite_ir.passes import Dce
from ferrite_ir.passes.vectors import VECTOR_BYTES
from ferrite_scheduler.analysis.generic_sizes import generic, typical
from ferrite_scheduler.model.intermediates import new_value
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.segments import MOST_ROWS, MOST_SHARE, REDUCE_SEGMENTS
from ferrite_scheduler.model.target import Target

MODES = ("add", "max", "min")
MOST_DESTINATIONS = 1 << 18
"""Most destinations: one and the number of a row in its share, of at most `MOST_SHARE`, are sorted as 32 bits."""

Types: TypeAlias = dict[str, TensorType]


@dataclass(frozen=True, slots=True)
class Rows:
    """An update that combines whole rows.

    Attributes:
        destination: where a row goes.
        dims: of the rows.
        columns: dims of the elements of a row.
    """

    destination: Indirect
    dims: tuple[Dim, ...]
    columns: tuple[Dim, ...]

    @property
    def count(self) -> Size:
        """Returns the number of rows."""
        return product(dim.size for dim in self.dims)

    def typical(self, policy: Policy) -> int:
        """Returns the number of rows, or how many are expected where it is symbolic."""
        return typical(generic(self.count), policy)

    @property
    def width(self) -> int:
        """Returns the elements of a row."""
        return prod(int(dim.size) for dim in self.columns)


def plain_atom(index: Index) -> Atom | None:
    """Returns what an index is, if it is one thing and nothing else."""
    is_plain = len(index.terms) == 1 and index.const == 0 and index.terms[0][1] == 1
    return index.terms[0][0] if is_plain else None


def rows_of(update: Update, tensor: TensorType) -> Rows | None:
    """Returns what an update into a tensor of this type does, if it combines whole rows with its first dim's."""
    # Symbolic destinations would make lists, words for segments and what a program combines depend on two sizes:
    # shapes for both.
    if not update.indices or not all(map(is_static, tensor.shape)) or tensor.strides != row_major(tensor.shape):
        return None
    destination, *rest = map(plain_atom, update.indices)
    columns = tuple(atom for atom in rest if isinstance(atom, Dim))
    dims = tuple(dim for dim in update.dims if dim not in columns)
    if (
        not isinstance(destination, Indirect)
        or not isinstance(destination.value, Scalar)
        or destination.value.dims != frozenset(dims)
    ):
        return None
    if not is_static(destination.size):
        return None
    is_whole = len(columns) == len(rest) == len(set(columns)) and tuple(dim.size for dim in columns) == tensor.shape[1:]
    return Rows(destination, dims, columns) if is_whole and columns and dims else None


def reduce_segments(graph: Graph, target: Target, policy: Policy) -> Graph:
    """Returns the graph with such updates made calls; the same object where there are none."""
    updates = [definition for definition in graph.definitions if isinstance(definition, Update)]
    if not policy.reduce_segments or not updates:
        return graph
    types = {name: value.type for name, value in graph.values.items()}
    readers: dict[str, list[Definition]] = {}
    for definition in graph.definitions:
        for name in names_read(definition):
            readers.setdefault(name, []).append(definition)
    changes: dict[str, tuple[Definition, ...]] = {}
    for update in updates:
        rounding = _rounding(graph, update.result, readers)
        found = _as_call(graph, update, rounding, types, target, policy)
        if found:
            changes |= {update.result.name: found, **({rounding.results[0].name: ()} if rounding is not None else {})}
    if not changes:
        return graph
    definitions = tuple(new for old in graph.definitions for new in changes.get(_name_of(old), (old,)))
    return Dce().run(replace(graph, definitions=definitions))


def _name_of(definition: Definition) -> str:
    """Returns the name of the first result of a definition, "" if nobody uses that."""
    results = definition.results
    return results[0].name if results and results[0] is not None else ""


def _as_call(
    graph: Graph, update: Update, rounding: Loop | None, types: Types, target: Target, policy: Policy
) -> tuple[Definition, ...]:
    """Returns the call that does what an update and the rounding of its result do, behind what it reads; or nothing."""
    start, tensor = graph.definer.get(update.target), graph.values[update.target].type
    rows = rows_of(update, tensor)
    if rows is None or update.mode not in MODES or not isinstance(start, Loop) or not tensor.dtype.is_float:
        return ()
    if update.condition is not None and not update.condition.dims <= frozenset(rows.dims):
        return ()
    result = rounding.results[0] if rounding is not None else update.result
    source = _source(update, rows, types)
    if not _pays(rows, source, result.type.dtype, tensor, policy):
        return ()
    destinations, before = _destinations(update, rows, types)
    if source is None:
        shape = tuple(dim.size for dim in (*rows.dims, *rows.columns))
        kind = TensorType(update.body.dtype, shape, device=tensor.device)
        written = new_value(f"{update.result.name}_rows", kind, types)
        source = View(written.name, kind.dtype, (rows.count, rows.width), (rows.width, 1))
        before = (*before, Loop((written,), (*rows.dims, *rows.columns), (update.body,), update.origins))
    base = _base(start, types)
    is_copied = _is_copied(base, rows, result.type.dtype, policy)
    kwargs = (
        ("rows", int(rows.destination.size)),
        ("mode", update.mode),
        ("wraps", rows.destination.wraps),
        *_shares(rows, int(rows.destination.size), source.dtype, target, policy),
        ("prefetched", 0 if is_copied else _prefetched_bytes(base, policy)),
        ("copied", is_copied),
    )
    arguments = (destinations, source, base)
    return (*before, Extern((result,), REDUCE_SEGMENTS, arguments, kwargs, origins=update.origins))


def _pays(rows: Rows, source: View | None, dtype: DType, tensor: TensorType, policy: Policy) -> bool:
    """Returns whether the bytes that need not be moved in 32 bits are worth the kernels that find the order."""
    elements = rows.typical(policy) * rows.width
    scratch = 0 if dtype is tensor.dtype else 2 * int(tensor.numel)
    row_bytes = rows.width * (F32 if source is None else source.dtype).bytes
    if not is_static(rows.count) and int(rows.destination.size) * I32.bytes > MOST_SHARE * row_bytes:
        # Each destination has a word for each share of the rows: however many there are, these take no more than the
        # rows.
        return False
    # Rows that lie in no memory, or not as they are combined, have to be written, and read again.
    saved = (elements + scratch - (2 * elements if source is None else 0)) * F32.bytes
    is_counted = 0 < int(rows.destination.size) <= MOST_DESTINATIONS and 0 < rows.typical(policy) <= MOST_ROWS
    return is_counted and rows.width >= max(policy.segment_row, 1) and saved >= policy.segment_bytes


def _source(update: Update, rows: Rows, types: Types) -> View | None:
    """Returns the matrix of the rows that an update combines, if it lies in memory as it is combined."""
    body = update.body
    while body.op == "cast" and body.args[0].dtype.is_float and body.args[0].dtype.bytes <= body.dtype.bytes:
        (body,) = body.args
    if body.op != "load" or not body.dtype.is_float or body.dtype.bytes == 1:
        return None
    if types[body.source].device != types[update.target].device:
        return None
    found = _steps(body, types)
    if found is None:
        return None
    steps, first = found
    stride, step = _along(rows.dims, steps, rows.width), _along(rows.columns, steps, 1)
    if stride is None or step != 1 or set(steps) - {*rows.dims, *rows.columns}:
        return None
    return View(body.source, body.dtype, (rows.count, rows.width), (stride, 1), first)


def _steps(found: Scalar, types: Types) -> tuple[dict[Dim, Size], Size] | None:
    """Returns how many elements a load moves with each dim, and where it begins; None where that is not so simple."""
    offset = linearize(found.indices, types[found.source].strides)
    if not all(isinstance(atom, Dim) for atom, _ in offset.terms):
        return None
    return {atom: step for atom, step in offset.terms if isinstance(atom, Dim)}, offset.const


def _along(dims: tuple[Dim, ...], steps: dict[Dim, Size], default: int) -> int | None:
    """Returns how many elements lie between neighbours along dims that are walked as one.

    None if they are not walked as one, or that is no number.
    """
    walked = [(dim.size, steps.get(dim, 0)) for dim in dims if dim.size != 1]
    if any(outer != size * inner for (_, outer), (size, inner) in pairwise(walked)):
        return None
    step = walked[-1][1] if walked else default
    return int(step) if is_static(step) and step > 0 else None


def _destinations(update: Update, rows: Rows, types: Types) -> tuple[View, tuple[Definition, ...]]:
    """Returns the destinations of all rows, and what computes them unless they lie in memory."""
    value = rows.destination.value
    if not isinstance(value, Scalar):
        raise TypeError(f"a place that is no scalar: {value!r}")
    plain = value
    while plain.op == "cast" and plain.dtype is I64:
        (plain,) = plain.args
    if update.condition is None and plain.op == "load" and plain.dtype in (I32, I64):
        found = _steps(plain, types)
        if found is not None and _along(rows.dims, found[0], 1) == 1:
            return View(plain.source, plain.dtype, (rows.count,), (1,), found[1]), ()
    wide = cast(value, I64)
    body = wide if update.condition is None else apply("where", update.condition, wide, const(I64.lowest, I64))
    kind = TensorType(I64, tuple(dim.size for dim in rows.dims), device=types[update.target].device)
    destinations = new_value(f"{update.result.name}_destinations", kind, types)
    view = View(destinations.name, I64, (rows.count,), (1,))
    return view, (Loop((destinations,), rows.dims, (body,), update.origins),)


def _base(start: Loop, types: Types) -> View | Number:
    """Returns what destinations hold before anything is combined into them: a number, or a tensor."""
    body, (result,) = start.bodies[0], start.results
    if body.op == "const":
        number: Number = body.args[0]
        return number
    while body.op == "cast" and body.args[0].dtype.is_float and body.args[0].dtype.bytes <= body.dtype.bytes:
        (body,) = body.args
    home = tuple(dim.index for dim in start.dims)
    if body.op == "load" and body.indices == home and types[body.source] == replace(result.type, dtype=body.dtype):
        return whole(Value(body.source, types[body.source]))
    return whole(result)


def _is_copied(base: View | Number, rows: Rows, dtype: DType, policy: Policy) -> bool:
    """Returns whether all destinations are copied first, as so few get rows that combining goes by these alone."""
    if not isinstance(base, View) or base.dtype is not dtype:
        return False
    return rows.typical(policy) * policy.segment_copied_share <= int(rows.destination.size)


def _prefetched_bytes(base: View | Number, policy: Policy) -> int:
    """Returns how many bytes of what destinations are before are asked for while rows are listed (decision 0027)."""
    if not isinstance(base, View) or not policy.prefetch:
        return 0
    return min(prod(int(size) for size in base.shape) * base.dtype.bytes, policy.segment_prefetch_target)


def _rounding(graph: Graph, result: Value, readers: dict[str, list[Definition]]) -> Loop | None:
    """Returns the only definition that reads a value, if it rounds it and does nothing else.

    None for one of 64 bits: its type is what says that sums have as many.
    """
    own = readers.get(result.name, [])
    if len(own) != 1 or result.name in graph.output_names or result.type.dtype is F64:
        return None
    (reader,) = own
    if not isinstance(reader, Loop) or len(reader.results) != 1:
        return None
    (rounded,), (body,) = reader.results, reader.bodies
    expected = load(result.name, [dim.index for dim in reader.dims], result.type.dtype)
    is_same = rounded.type == replace(result.type, dtype=rounded.type.dtype) and rounded.type.dtype.is_float
    is_same = is_same and rounded.type.dtype.bytes > 1
    return reader if is_same and body.op in CONVERSIONS and body.args[0] is expected else None


def _shares(rows: Rows, destinations: int, dtype: DType, target: Target, policy: Policy) -> tuple[tuple[str, int], ...]:
    """Returns how many rows and columns a program has on their way, and how many programs do so at once.

    Few destinations have narrow blocks of columns: a program waits for rows after rows, and there are others meanwhile.
    """
    block = min(next_power_of_two(rows.width), VECTOR_BYTES * target.warp_size // dtype.bytes)
    busy = policy.segment_programs * target.processors
    while block > 2 * target.warp_size and destinations * -(-rows.width // block) < busy:
        block //= 2
    batch = min(policy.segment_batch, max(1, policy.segment_prefetch // (block * dtype.bytes)))
    resident = policy.combined_flight // (batch * block * dtype.bytes)
    programs = target.processors * max(1, min(resident, target.resident_programs))
    return ("batch", batch), ("block", block), ("programs", programs)
