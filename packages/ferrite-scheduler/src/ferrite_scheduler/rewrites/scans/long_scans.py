"""Reduce-then-scan: few long lines are scanned in three kernels: totals of parts, their scan, the parts from there.

Reductions take their operands in an order of their own. Products may leave the range of their type in it where no
prefix does, so theirs are the last elements of the scanned parts: scan, then propagate.

That is the reduce-then-scan scheme of Merrill and Grimshaw, "Parallel scan for stream architectures" (2009). It reads
the operands twice and writes the results once. A line that does not divide into equal parts is continued with neutral
operands; of its last part only the points on the line are stored, in place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ferrite_ir.language.combine_functions import CombineFunction
from ferrite_ir.language.dtypes import I64
from ferrite_ir.language.graph import Definition, Loop, Reduction, Scan, TensorType, Update, Value
from ferrite_ir.language.index import Dim, Index, constant, floordiv, linearize, mod
from ferrite_ir.language.powers_of_two import previous_power_of_two
from ferrite_ir.language.scalar import Scalar, apply, const, index_value, load, substitute_dims
from ferrite_ir.language.sizes import is_static
from ferrite_ir.passes.vectors import VECTOR_BYTES
from ferrite_scheduler.analysis.neutral_elements import neutral_state
from ferrite_scheduler.analysis.nodes import Node, make_node
from ferrite_scheduler.model.intermediates import empty_for, fresh_dim, partial_value
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.scan_positions import positions_rise
from ferrite_scheduler.model.scan_states import IN_ORDER, State, instructions_of, merged
from ferrite_scheduler.model.target import Target
from ferrite_scheduler.model.work import cost_of

Place: TypeAlias = tuple[Sequence[Index], Index, Index, Sequence[Index]]
"""A point of a scan in parts: where outside, which part, where in it, where inside."""


@dataclass(frozen=True, slots=True)
class Parts:
    """How the lines of a scan are cut: the number of parts, the points in each, and whether there is no rest."""

    count: int
    points: int
    exact: bool


def parts_of(
    scan: Scan, types: dict[str, TensorType], target: Target, policy: Policy, *, in_one_pass: bool
) -> Parts | None:
    """Returns how to cut the lines of a scan, or None if one kernel is as good, or a size is symbolic.

    ``in_one_pass`` says whether programs that wait for each other would scan the parts: then there is no other kernel.
    Lines that threads read in vectors are worth one pass before a kernel with a program for each, but not two more
    kernels, for the totals of parts (`benchmarks/RESULTS.md`, reversed sum of 49x50416). Other lines go by in smaller
    blocks, also where a multiprocessor has two of them: three kernels are sooner.

    Of equal values in different parts the one of the highest position is the last; a scan with others is not cut.
    """
    if not all(is_static(dim.size) for dim in scan.dims) or (_has_positions(scan) and not positions_rise(scan)):
        return None
    node = make_node(0, scan, types, {})
    length = int(scan.along.size)
    is_column = is_strided(scan, node)
    programs = math.ceil(node.grid / policy.column_block) if is_column else node.grid
    wanted = target.processors * policy.programs_per_processor
    if node.grid == 0 or programs >= wanted or length < policy.split_minimum:
        return None
    result_bytes = sum(result.type.dtype.bytes for result in scan.results) * node.points
    read = sum(touch.bytes for touch in node.loads)
    in_vectors = is_read_in_vectors(scan, types)
    operations, joining = _operations(scan, node, policy, in_vectors=in_vectors)
    together = target.seconds(2 * read + result_bytes, target.processors, operations + joining)
    alone = target.seconds(read + result_bytes, programs, operations)
    at_once = target.processors if in_vectors else 2 * target.processors
    if programs <= at_once and not is_column and (in_one_pass or not in_vectors):
        block = policy.scan_elements if in_vectors else max(1, policy.scan_elements // 2)
        alone = max(alone, math.ceil(length / block) * target.scan_seconds)
    if alone < policy.stages_gain * (together + 2 * target.launch_seconds):
        return None
    least = policy.scan_column_part if is_column else policy.scan_part
    if (
        not is_column
        and scan.combine in IN_ORDER
        and operations * target.bandwidth > ((read + result_bytes) * target.processors * target.lane_operations)
    ):
        # Combining takes longer than moving: parts that one tile holds, however many. They are stored in any case.
        points = min(2 * least, length)
        count = -(-length // points)
        return Parts(count, points, exact=count * points == length) if count <= policy.scan_parts else None
    most = min(policy.scan_parts, wanted // programs, length // least)
    parts = _even_parts(previous_power_of_two(most), length, policy) if most > 1 else None
    return None if parts is not None and _begins_with_nothing(scan, parts) else parts


def is_read_in_vectors(scan: Scan, types: dict[str, TensorType]) -> bool:
    """Returns whether what is scanned lies in memory from multiples of 16 bytes on, line by line."""
    for read in scan.bodies[0].loads:
        width = VECTOR_BYTES // read.dtype.bytes
        offset = linearize(read.indices, types[read.source].strides)
        rest = offset - scan.along.index if scan.along in offset.dims else offset
        numbers = [rest.const, *(coefficient for _, coefficient in rest.terms)]
        if not all(isinstance(number, int) and number % width == 0 for number in numbers):
            return False
    return True


def _operations(scan: Scan, node: Node, policy: Policy, *, in_vectors: bool) -> tuple[float, float]:
    """Returns the instructions of single lanes that a scan takes, and those that join each point to the part before.

    A point is combined twice: with those of its thread, and with what comes before the thread. Where a thread does not
    read neighbours, a point is the only one of its thread, and is combined with those of its warp, in five steps.
    """
    step = instructions_of(scan)
    read = cost_of(scan.bodies) + policy.access_operations * len(node.loads)
    return node.points * (read + (2.0 if in_vectors else 7.0) * step), node.points * float(step)


def _has_positions(scan: Scan) -> bool:
    return len(scan.bodies) > 1 and not isinstance(scan.combine, CombineFunction)


def _begins_with_nothing(scan: Scan, parts: Parts) -> bool:
    """Returns whether the first part begins past the end of the line, with what no operand of a combine stands for."""
    return scan.reverse and not parts.exact and isinstance(scan.combine, CombineFunction)


def is_strided(scan: Scan, node: Node) -> bool:
    """Returns whether no operand is contiguous along a line."""
    step = node.steps.get(scan.along, 1)
    strides = {
        abs(coefficient) for touch in node.loads for own, _, coefficient in touch.known if own == step and coefficient
    }
    return bool(strides) and 1 not in strides


def _even_parts(wanted: int, length: int, policy: Policy) -> Parts:
    """Returns about so many parts of a line, without a rest if there is a divisor near."""
    for count in sorted(range(max(2, wanted // 2), 2 * wanted + 1), key=lambda count: abs(count - wanted)):
        if length % count == 0 and count <= policy.scan_parts:
            return Parts(count, length // count, exact=True)
    return Parts(wanted, -(-length // wanted), exact=False)


def split_scan(scan: Scan, parts: Parts, types: dict[str, TensorType], device: str = "") -> tuple[Definition, ...]:
    """Returns the definitions of a scan in parts; ``device`` is the graph's, for results that do not name theirs."""
    position = scan.dims.index(scan.along)
    part, point = fresh_dim("s", parts.count, scan.dims), fresh_dim("r", parts.points, scan.dims)
    bodies = _operands(scan, part.index * parts.points + point.index, exact=parts.exact)
    outer = (*scan.dims[:position], part, *scan.dims[position + 1 :])
    totals = _values(scan, "total", outer, types)
    before = _values(scan, "before", outer, types)
    inner = (*scan.dims[:position], part, point, *scan.dims[position + 1 :])
    own = _values(scan, "own", inner, types)
    local = Scan(own, scan.combine, inner, point, bodies, scan.reverse, scan.origins)
    if isinstance(scan.combine, CombineFunction) or scan.combine in IN_ORDER:
        continued = _continued(scan, parts, position, before, own)
        end = 0 if scan.reverse else parts.points - 1
        ends = [*(dim.index for dim in outer[: position + 1]), constant(end)]
        ends += [dim.index for dim in outer[position + 1 :]]
        last = tuple(load(value.name, ends, value.type.dtype) for value in own)
        return local, Scan(before, scan.combine, outer, part, last, scan.reverse, scan.origins), continued
    reduction = Reduction(
        totals, _REDUCTIONS.get(scan.combine, scan.combine), outer, (point,), _reduced(bodies), scan.origins
    )
    turned = _reduced(_at(totals, outer))
    running = Scan(before, scan.combine, outer, part, turned, scan.reverse, scan.origins)
    if parts.exact:
        return reduction, running, local, _continued(scan, parts, position, before, own)
    return reduction, running, local, *_continued_in_place(local, scan, parts, part, before, types, device)


def _values(scan: Scan, kind: str, dims: tuple[Dim, ...], types: dict[str, TensorType]) -> tuple[Value, ...]:
    shape = tuple(dim.size for dim in dims)
    return tuple(partial_value(result, kind, shape, types) for result in scan.results)


def _operands(scan: Scan, flat: Index, *, exact: bool) -> tuple[Scalar, ...]:
    bodies = tuple(substitute_dims(body, {scan.along: flat}) for body in scan.bodies)
    if exact:
        return bodies
    inside = apply("lt", index_value(flat, I64), const(scan.along.size, I64))
    neutrals = _neutrals(scan)
    return tuple(apply("masked", inside, body, other) for body, other in zip(bodies, neutrals, strict=True))


def _neutrals(scan: Scan) -> tuple[Scalar, ...]:
    """Returns operands that change nothing behind the end of a line; nobody looks at the positions there."""
    if isinstance(scan.combine, CombineFunction):
        return tuple(const(0, body.dtype) for body in scan.bodies)  # behind the end, where nobody looks
    first = scan.bodies[0].dtype
    worst = {"cummax": first.lowest, "cummin": first.highest}.get(scan.combine)
    if worst is None:
        return neutral_state(scan.combine, (first,))
    return const(worst, first), const(0, scan.bodies[1].dtype)


_REDUCTIONS = {"cummax": "argmax", "cummin": "argmin"}
"""The reduction that gives the last state of a scan, where it is not the one of the same name."""


def _reduced(states: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    """Returns operands with their positions negated, or back: reductions let the lowest win a tie, scans the last."""
    return (states[0], *(apply("neg", state) for state in states[1:]))


def _at(values: tuple[Value, ...], dims: tuple[Dim, ...]) -> tuple[Scalar, ...]:
    where = [dim.index for dim in dims]
    return tuple(load(value.name, where, value.type.dtype) for value in values)


def _continued(scan: Scan, parts: Parts, position: int, before: tuple[Value, ...], own: tuple[Value, ...]) -> Loop:
    """Returns the scanned parts, each continued from the end of the one before it."""
    along = scan.along.index
    number, within = floordiv(along, parts.points), mod(along, parts.points)
    rest = [dim.index for dim in scan.dims]
    bodies = _joined(scan, parts, (rest[:position], number, within, rest[position + 1 :]), before, own)
    return Loop(scan.results, scan.dims, bodies, scan.origins)


def _continued_in_place(
    local: Scan,
    scan: Scan,
    parts: Parts,
    part: Dim,
    before: tuple[Value, ...],
    types: dict[str, TensorType],
    device: str,
) -> Iterator[Definition]:
    """Yields the scanned parts continued at the points of ``local``, so that they stay in registers.

    Those of the last part that lie past the end of the line are stored nowhere.
    """
    position, point = local.dims.index(part), local.along
    outside, inside = [dim.index for dim in local.dims[:position]], [dim.index for dim in local.dims[position + 2 :]]
    flat = part.index * parts.points + point.index
    bodies = _joined(scan, parts, (outside, part.index, point.index, inside), before, local.results)
    exists = apply("lt", index_value(flat, I64), const(scan.along.size, I64))
    for result, body in zip(scan.results, bodies, strict=True):
        home, empty = empty_for(result, types, device)
        indices = (*outside, flat, *inside)
        yield empty
        yield Update(result, home.name, "set", local.dims, indices, body, exists, scan.origins)


def _joined(scan: Scan, parts: Parts, where: Place, before: tuple[Value, ...], own: tuple[Value, ...]) -> State:
    """Returns the scanned parts at a place, each joined to the end of the one before it."""
    outside, number, within, inside = where
    earlier = number + 1 if scan.reverse else number - 1
    here = tuple(load(value.name, [*outside, number, within, *inside], value.type.dtype) for value in own)
    ended = tuple(load(value.name, [*outside, earlier, *inside], value.type.dtype) for value in before)
    follows = apply("ge", index_value(number, I64), const(1, I64))
    if scan.reverse:
        follows = apply("lt", index_value(number, I64), const(parts.count - 1, I64))
    return tuple(
        apply("masked", follows, joined, alone)
        for joined, alone in zip(merged(scan.combine, ended, here), here, strict=True)
    )
