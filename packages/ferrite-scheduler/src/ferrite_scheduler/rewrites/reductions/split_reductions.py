"""Split (two-stage) reductions: those with too few grid points are cut in parts; those of one point become loops.

A split reduction over ``r`` becomes a reduction of ``chunk`` points for each of ``s`` parts, whose states lie in memory
as ``[s, grid…]``, and a second reduction over the parts. Reductions over equal domains are split alike, so that they
still fuse side by side.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from ferrite_ir.language.dtypes import F32, I64, DType
from ferrite_ir.language.graph import (
    Definition,
    Graph,
    Loop,
    Reduction,
    Scan,
    TensorType,
    bodies_of,
    loads_of,
    names_read,
)
from ferrite_ir.language.index import Dim, Index, constant, delinearize
from ferrite_ir.language.powers_of_two import previous_power_of_two
from ferrite_ir.language.scalar import (
    Scalar,
    apply,
    cast,
    const,
    index_value,
    load,
    substitute_dims,
)
from ferrite_ir.language.sizes import Size, ceildiv, product
from ferrite_scheduler.analysis.dim_orders import is_in_one_piece
from ferrite_scheduler.analysis.generic_sizes import hinted, is_symbolic, reckoned
from ferrite_scheduler.analysis.neutral_elements import neutral_state
from ferrite_scheduler.analysis.nodes import Node, Touch, is_opaque, make_node
from ferrite_scheduler.model.annotations import as_column_reduction
from ferrite_scheduler.model.intermediates import fresh_dim, partial_value
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.target import SECTOR_BYTES, Target
from ferrite_scheduler.model.work import Work, cost_of
from ferrite_scheduler.rewrites.scans.long_scans import parts_of, split_scan
from ferrite_scheduler.rewrites.scans.look_back import look_back_scan, looks_back
from ferrite_scheduler.rewrites.scans.scan_followers import store_followers

from .fused_columns import Chunks, find_column_sums
from .merged_partials import combines_parts_of, merge_parts, readers_of_states
from .row_partials import Rows, find_row_partials
from .split_plans import Domain, Piece, Plan, domain_of, even_plan, in_vectors, plan_for

NOTHING = Work(0.0)


def prepare_reductions(graph: Graph, target: Target, policy: Policy, settled: Collection[str] = ()) -> Graph:
    """Returns the graph with its reductions and scans rewritten; the same object where nothing changes.

    Reductions whose results are ``settled`` are not split.
    """
    types = {name: value.type for name, value in graph.values.items()}
    readers = readers_of_states(graph)
    plans = _plans(graph, types, target, policy, settled)
    columns = find_column_sums(graph, types, target, policy, settled)
    rows = find_row_partials(graph, settled)
    definitions: list[Definition] = []
    merging: dict[str, Reduction] = {}  # second stages by the states of which a reader combines what they would
    changed = False
    for definition in graph.definitions:
        if isinstance(definition, Reduction) and definition.bodies[0].op == "load":
            second = merging.get(definition.bodies[0].source)
            if second is not None:
                definitions.append(merge_parts(definition, second))
                continue
        is_settled = any(result is not None and result.name in settled for result in definition.results)
        if not is_settled and isinstance(definition, Reduction) and definition.results[0].name in rows:
            rewritten = _split_by_rows(definition, rows[definition.results[0].name], plans, types, target, policy)
        else:
            open_plans = {} if is_settled else plans
            rewritten = _prepared(definition, open_plans, columns, types, target, policy, graph.device)
        changed = changed or rewritten != (definition,)
        match rewritten:
            case (Reduction(), Reduction() as second):
                reader = readers.get(second.results[0].name)
                if reader is not None and domain_of(reader) not in plans and combines_parts_of(reader, second, policy):
                    merging[second.results[0].name] = second
                    rewritten = rewritten[:1]
        definitions.extend(rewritten)
    scanned = {value.name for old in graph.definitions if isinstance(old, Scan) for value in old.results}
    return store_followers(replace(graph, definitions=tuple(definitions)), scanned) if changed else graph


def _prepared(
    definition: Definition,
    plans: dict[Domain, Plan],
    columns: dict[str, Chunks],
    types: dict[str, TensorType],
    target: Target,
    policy: Policy,
    device: str,
) -> tuple[Definition, ...]:
    match definition:
        case Reduction() if all(dim.size == 1 for dim in definition.reduction_dims):
            return (_unit_reduction(definition),)
        case Scan() if definition.along.size == 1:
            return (_unit_loop(definition, definition.dims, {}),)
        case Scan():
            in_one_pass = looks_back(definition, types, policy)
            parts = parts_of(definition, types, target, policy, in_one_pass=in_one_pass)
            if parts is not None and in_one_pass:
                return look_back_scan(definition, types, policy)
            if parts is not None:
                return split_scan(definition, parts, types, device)
        case Reduction() if definition.results[0].name in columns:
            chunks = columns[definition.results[0].name]
            chunk = ceildiv(product(dim.size for dim in definition.reduction_dims), chunks.count)
            first, second = split(definition, Plan(chunks.count, chunk, exact=chunks.exact), types)
            return as_column_reduction(first, definition), second
        case Reduction():
            plan = plans.get(domain_of(definition))
            if plan is not None:
                return split(definition, in_vectors(definition, plan, types), types)
    return (definition,)


def _split_by_rows(
    reduction: Reduction,
    rows: Rows,
    plans: dict[Domain, Plan],
    types: dict[str, TensorType],
    target: Target,
    policy: Policy,
) -> tuple[Definition, ...]:
    """Returns the stages of a reduction: of each row, and of what the rows come to, which may be many.

    Rows that are cut for their statistics are cut alike, and the last stage combines parts of rows.
    """
    first, second = split(reduction, Plan(rows.count, rows.length, exact=True), types)
    plan = plans.get(domain_of(first))
    if plan is not None:
        parts_of_rows, combined = split(first, plan, types)
        if combines_parts_of(second, combined, policy):
            return parts_of_rows, merge_parts(second, combined)
        return parts_of_rows, combined, second
    made = types | {result.name: result.type for result in first.results}
    node = make_node(0, second, made, {})
    parts = _parts(_work(node, policy), node, target, policy, is_image=False)
    if parts < 2:
        return first, second
    return first, *split(second, even_plan(parts, (rows.count,), policy), made)


def _unit_reduction(reduction: Reduction) -> Loop:
    """Returns a reduction over one point as a loop: the state is the operand itself."""
    return _unit_loop(reduction, reduction.dims, {dim: constant(0) for dim in reduction.reduction_dims})


def _unit_loop(definition: Reduction | Scan, dims: tuple[Dim, ...], mapping: dict[Dim, Index]) -> Loop:
    bodies = tuple(substitute_dims(body, mapping) for body in definition.bodies)
    if isinstance(definition.combine, str):
        bodies = _lifted(definition.combine, bodies)
    return Loop(definition.results, dims, bodies, definition.origins)


def _lifted(combine: str, bodies: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    """Returns a state for each point that a reduction combines, where its operand may be all that there is of it."""
    rest = {"welford": (0, 1), "online_softmax": (1,)}.get(combine, ())
    if len(bodies) > 1:
        return bodies
    return (bodies[0], *(const(number, bodies[0].dtype) for number in rest))


def _plans(
    graph: Graph,
    types: dict[str, TensorType],
    target: Target,
    policy: Policy,
    settled: Collection[str],
) -> dict[Domain, Plan]:
    """Returns the plan for each domain that is to be split; the reduction over it that moves most bytes decides."""
    loops = [definition for definition in graph.definitions if isinstance(definition, Loop)]
    makers = _loops_of_no_reduction(graph.definitions)
    pieces = _pieces(graph, types)
    heaviest: dict[Domain, tuple[Work, Work, Node]] = {}
    joined: set[Domain] = set()
    for position, definition in enumerate(graph.definitions):
        if not isinstance(definition, Reduction):
            continue
        if definition.results[0].name in settled:
            continue
        node = make_node(0, definition, types, {})
        length = _length(node, policy)
        if length < policy.split_minimum:
            continue
        work, after = _work(node, policy, length / max(1, hinted(node.reduction))), NOTHING
        work = _with_makers(work, node, makers, types, policy)
        if _has_few_programs(node, target, policy):
            later = graph.definitions[position + 1 : position + 1 + policy.chunk_search]
            for loop in _following(definition, later):
                after += replace(_work(make_node(0, loop, types, {}), policy), loops=1)
        domain = domain_of(definition)
        if domain not in heaviest or work.read > heaviest[domain][0].read:
            heaviest[domain] = (work, after, node)
        if is_outer(node) and domain not in joined and _is_joined(definition, loops, graph):
            joined.add(domain)
    looped = {load.source for loop in loops for body in loop.bodies for load in body.loads}
    plans: dict[Domain, Plan] = {}
    for domain, (work, after, node) in heaviest.items():
        again = _read_again(node, looped, target, policy)
        has_images = any(_has_images(touch, node) for touch in again)
        parts = _parts(work, node, target, policy, after, is_image=has_images, is_joined=domain in joined)
        if parts >= 2:
            plan = plan_for(parts, domain[1], pieces.get(domain, Piece.NONE), target, policy)
            is_large = any(touch.bytes > target.l2_bytes for touch in again)
            plans[domain] = replace(plan, takes_turns=is_large and not has_images and plan.exact)
    return plans


def _pieces(graph: Graph, types: dict[str, TensorType]) -> dict[Domain, Piece]:
    """Returns whether all that is reduced over each domain lies in order, without gaps, and is in memory anyway."""
    lasting = {value.name for value in graph.inputs}.union(graph.output_names)
    found: dict[Domain, Piece] = {}
    for definition in graph.definitions:
        if isinstance(definition, Reduction):
            is_lasting, is_one = (is_in_one_piece(definition, types, names) for names in (lasting, types))
            own = Piece.IN_MEMORY if is_lasting else Piece.ONE if is_one else Piece.NONE
            found[domain_of(definition)] = min(own, found.get(domain_of(definition), own))
    return found


def _work(node: Node, policy: Policy, times: float = 1.0) -> Work:
    """Returns what a definition moves and computes, of an axis that is taken for so many times its points."""
    # A reduction that loads little still computes something at each point.
    points = hinted(node.points) * times
    read = max(points, sum(touch.bytes for touch in node.loads) * times)
    steps = cost_of(bodies_of(node.definition))
    results = (result.type.dtype.bytes for result in node.definition.results if result is not None)
    written = 0 if node.reduction_dims else points * sum(results)
    return Work(read, written, points * (steps + policy.access_operations * len(node.loads)))


def _loops_of_no_reduction(definitions: Sequence[Definition]) -> dict[str, Loop]:
    """Returns loops by their results, but those that wait for a reduction of as many points: its kernel has them."""
    points: dict[str, Size] = {}
    found: dict[str, Loop] = {}
    for definition in definitions:
        if isinstance(definition, Reduction):
            number = product(dim.size for dim in (*definition.dims, *definition.reduction_dims))
            points |= {result.name: number for result in definition.results}
        elif isinstance(definition, Loop):
            number = product(dim.size for dim in definition.dims)
            if all(points.get(read.source) != number for read in loads_of(definition)):
                found |= {result.name: definition for result in definition.results}
    return found


def _with_makers(
    work: Work, node: Node, makers: Mapping[str, Loop], types: dict[str, TensorType], policy: Policy
) -> Work:
    """Returns the work of a reduction of rows, with that of the loops that make what it reads: its kernel does both."""
    for name in () if is_outer(node) else {touch.name for touch in node.loads}:
        maker = makers.get(name)
        if maker is not None and product(dim.size for dim in maker.dims) == node.points:
            made, loaded = _work(make_node(0, maker, types, {}), policy), hinted(node.points) * types[name].dtype.bytes
            work = replace(work + made, read=max(0.0, work.read - loaded) + made.read)
    return work


def _waiting_for(reduction: Reduction, definitions: Sequence[Definition]) -> Iterator[Definition]:
    """Yields what needs the result of a reduction, by way of others, too."""
    waiting = {result.name for result in reduction.results}
    for definition in definitions:
        if not waiting.isdisjoint(names_read(definition)):
            waiting.update(result.name for result in definition.results if result is not None)
            yield definition


def _following(reduction: Reduction, later: Sequence[Definition]) -> Iterator[Loop]:
    """Yields the loops among later definitions that wait for a reduction and read again all that it has reduced."""
    reduced = {load.source for load in loads_of(reduction)}
    points = product(dim.size for dim in (*reduction.dims, *reduction.reduction_dims))
    for definition in _waiting_for(reduction, later):
        if not isinstance(definition, Loop) or reduced.isdisjoint(names_read(definition)):
            continue
        if product(dim.size for dim in definition.dims) == points:
            yield definition


def _read_again(node: Node, looped: Collection[str], target: Target, policy: Policy) -> list[Touch]:
    """Returns what a reduction over columns reads of tensors that are read again by loops, and fill half the cache.

    Of those that are larger than the cache, the end is to be there when all parts are done, rather than that of each
    part: the parts take turns. Where each image of several is reduced by itself they cannot, and are shorter.
    """
    if not policy.reverse_traversal or not is_outer(node):
        return []
    return [touch for touch in node.loads if 2 * touch.bytes > target.l2_bytes and touch.name in looped]


def _has_images(touch: Touch, node: Node) -> bool:
    """Returns whether the points that one result combines lie together, those of another one behind them."""
    farthest = {True: 0, False: 0}
    for step, _, coefficient in touch.known:
        is_reduced = step < node.reduction
        farthest[is_reduced] = max(farthest[is_reduced], abs(coefficient))
    return farthest[False] > farthest[True]


def _length(node: Node, policy: Policy) -> int:
    """Returns the length of a reduction axis to decide by: columns are many programs' work sooner than rows are."""
    return reckoned(node.reduction, policy) if is_outer(node) else hinted(node.reduction)


def _is_joined(reduction: Reduction, loops: Sequence[Loop], graph: Graph) -> bool:
    """Returns whether a loop shares a kernel with a reduction, in the same pass: it does not wait for its result."""
    alike = [loop for loop in loops if _joins(loop, reduction)]
    if not alike:
        return False
    waiting = {id(definition) for definition in _waiting_for(reduction, graph.definitions)}
    return any(id(loop) not in waiting for loop in alike)


def _joins(loop: Loop, reduction: Reduction) -> bool:
    """Returns whether a loop has a point for each of a reduction's, reads what it reads, and so shares its kernel."""
    points = sorted(str(dim.size) for dim in (*reduction.dims, *reduction.reduction_dims) if dim.size != 1)
    if sorted(str(dim.size) for dim in loop.dims if dim.size != 1) != points:
        return False
    read = {load.source for load in loads_of(reduction)}
    return any(load.source in read for load in loads_of(loop))


def _parts(
    work: Work,
    node: Node,
    target: Target,
    policy: Policy,
    after: Work = NOTHING,
    *,
    is_image: bool = False,
    is_joined: bool = False,
) -> int:
    """Returns in how many parts a reduction that has so much to do goes best, about; 0 or 1 where it stays whole.

    Where loops are joined to a reduction of columns its kernel stores as many bytes as it reads: narrow pieces of
    columns, with a program for each multiprocessor, are too few. Loops ``after`` it read again what it has read, with
    as few programs as reduce it.
    """
    grid, points = hinted(node.grid), _length(node, policy)
    if grid == 0 or node.reduction == 0:
        return 0
    programs = math.ceil(grid / policy.column_block) if is_outer(node) else grid
    wanted = target.processors * (policy.programs_for_images if is_image else policy.programs_per_processor)
    if programs >= wanted:
        return 0
    together = work.seconds(target.processors, target)
    if not is_outer(node):
        waiting = (work + after).waiting(grid, target, target.program_bytes)
        is_slower = _stages_lose(work + after, grid, waiting, target, policy)
    else:
        alone = math.ceil(grid / _columns_alone(grid, target, policy))
        turns = 0 if after.loops or alone > target.processors else math.ceil(points / policy.column_turn) - 1
        is_slower = _stages_lose(work, alone, turns * target.latency_seconds, target, policy)
        if after.loops and is_slower:
            again = _programs_reading_again(node)
            waiting = (work + after).waiting(again, target, policy.column_flight)
            is_slower = _stages_lose(work + after, again, waiting, target, policy)
    if is_slower and not (is_joined and together > target.launch_seconds):
        return 0
    # The nearest power of two in proportion, so that as many programs as wanted are missed or exceeded by few.
    near = 1 << round(math.log2(wanted / programs))
    shortest = policy.split_symbolic_chunk if is_symbolic(node.reduction) else policy.split_chunk
    most = min(policy.split_parts, points // shortest)
    return min(near, previous_power_of_two(most)) if most > 0 else 0


def _stages_lose(work: Work, programs: int, waiting: float, target: Target, policy: Policy) -> bool:
    """Returns whether so many programs that do all of some work take less time than its stages.

    ``waiting`` are the seconds for which each of them has nothing to do; see `Work.waiting`.
    """
    alone = work.seconds(programs, target) + waiting
    together = work.seconds(target.processors, target)
    return alone < policy.stages_gain * (together + (1 + work.loops) * target.launch_seconds)


def _has_few_programs(node: Node, target: Target, policy: Policy) -> bool:
    """Returns whether loops that read again what a reduction has read would have too few programs in its kernel."""
    if is_outer(node):
        return _programs_reading_again(node) < target.processors
    return hinted(node.grid) < target.processors * policy.programs_per_processor


def _programs_reading_again(node: Node) -> int:
    """Returns how many programs read columns twice, if few do: each takes as many as memory is read in at once."""
    width = min((load.dtype.bytes for load in loads_of(node.definition)), default=F32.bytes)
    return math.ceil(hinted(node.grid) * width / SECTOR_BYTES)


def _columns_alone(grid: int, target: Target, policy: Policy) -> int:
    """Returns how many columns a program reduces where they are not split."""
    narrow = policy.narrow_column_block
    return narrow if math.ceil(grid / narrow) < target.processors else policy.column_block


def is_outer(node: Node) -> bool:
    """Returns whether most of what a reduction loads is contiguous along its grid, not along the dims it reduces."""
    along = across = 0
    for touch in node.loads:
        if is_opaque(touch.access):
            continue
        for step, _, coefficient in touch.known:
            if coefficient in (1, -1):
                along += touch.bytes if step < node.reduction else 0
                across += touch.bytes if step >= node.reduction else 0
    return across > along


def split(reduction: Reduction, plan: Plan, types: dict[str, TensorType]) -> tuple[Reduction, Reduction]:
    """Returns the two stages of a split reduction."""
    part, point = fresh_dim("s", plan.parts, reduction.dims), fresh_dim("r", plan.chunk, reduction.dims)
    flat = point.index * plan.parts + part.index if plan.takes_turns else part.index * plan.chunk + point.index
    extents = tuple(dim.size for dim in reduction.reduction_dims)
    mapping = dict(zip(reduction.reduction_dims, delinearize(flat, extents), strict=True))
    bodies = tuple(substitute_dims(body, mapping) for body in reduction.bodies)
    if not plan.exact:
        inside = apply("lt", index_value(flat, I64), index_value(constant(product(extents)), I64))
        bodies = _guarded(reduction.combine, bodies, inside)
    partials = tuple(
        partial_value(result, "part", (plan.parts, *result.type.shape), types) for result in reduction.results
    )
    first = Reduction(partials, reduction.combine, (part, *reduction.dims), (point,), bodies, reduction.origins)
    where = [dim.index for dim in (part, *reduction.dims)]
    states = tuple(load(value.name, where, value.type.dtype) for value in partials)
    if reduction.combine == "welford" and len(reduction.bodies) == 1:
        states = (*states[:2], _points_of(part, plan, product(extents), states[2].dtype))
    if plan.left_over:
        return first, _with_left_over(reduction, plan, part, states)
    second = Reduction(reduction.results, reduction.combine, reduction.dims, (part,), states, reduction.origins)
    return first, second


def _points_of(part: Dim, plan: Plan, points: Size, dtype: DType) -> Scalar:
    """Returns how many points a part has, as a float: all the same, or those up to the end of all."""
    if plan.exact:
        return const(plan.chunk, dtype)
    left = index_value(constant(points) - part.index * plan.chunk, I64)
    fewest = apply("maximum", left, const(0, I64))
    return cast(apply("minimum", fewest, index_value(constant(plan.chunk), I64)), dtype)


def _with_left_over(reduction: Reduction, plan: Plan, part: Dim, states: tuple[Scalar, ...]) -> Reduction:
    """Returns the second stage of a reduction of everything: of the states of its parts, and the points behind them."""
    position = fresh_dim("q", plan.parts + plan.left_over, reduction.dims)
    is_part = apply("lt", index_value(position.index, I64), const(plan.parts, I64))
    is_point = apply("logical_not", is_part)
    extents = tuple(dim.size for dim in reduction.reduction_dims)
    flat = position.index + plan.parts * (int(plan.chunk) - 1)
    points = dict(zip(reduction.reduction_dims, delinearize(flat, extents), strict=True))
    neutrals = neutral_state(str(reduction.combine), tuple(state.dtype for state in states))
    operands = []
    for state, body, neutral in zip(states, _lifted(str(reduction.combine), reduction.bodies), neutrals, strict=True):
        own = apply("masked", is_part, substitute_dims(state, {part: position.index}), neutral)
        left = apply("masked", is_point, cast(substitute_dims(body, points), state.dtype), neutral)
        operands.append(apply("where", is_part, own, left))
    return Reduction(reduction.results, reduction.combine, (), (position,), tuple(operands), reduction.origins)


def _guarded(combine: str, bodies: tuple[Scalar, ...], inside: Scalar) -> tuple[Scalar, ...]:
    """Returns operands that are the combine's neutral element outside."""
    bodies = _lifted(combine, bodies) if combine == "welford" else bodies
    neutrals = neutral_state(combine, tuple(body.dtype for body in bodies))
    return tuple(apply("masked", inside, body, neutral) for body, neutral in zip(bodies, neutrals, strict=True))
