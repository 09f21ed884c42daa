"""Function multi-versioning of kernels: a reduction of symbolic length, in one pass and split in parts.

What LLVM and GCC do for functions and instruction sets is done here for kernels and sizes.

Which is better depends on the length: a few programs reduce a short axis faster than a second kernel starts, a long one
keeps them busy while most of the device idles. So both are scheduled. The graph gets the two stages of a split
reduction; where fusion leaves them kernels of their own, a third kernel does the work of both, and each is launched
only for the lengths for which its form is the better one (`Kernel.skip_guard`). Reductions that share a kernel where
they are whole are a *group*: their stages share kernels with each other alone (rule F13). A reduction that shares a
kernel with something else in the form that its hint asks for keeps that form. Loops that share the kernel of a whole
reduction, as those that apply what was found to its columns, belong to the third kernel, too; kernels of their own are
launched for the other lengths.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ferrite_ir.language.graph import (
    Computed,
    Definition,
    Graph,
    Loop,
    Reduction,
    TensorType,
    Update,
    domain_of,
    names_read,
    whole,
)
from ferrite_ir.language.powers_of_two import previous_power_of_two
from ferrite_ir.language.sizes import Size, ceildiv, is_static, product
from ferrite_scheduler.analysis.clusters import Cluster, stored_names
from ferrite_scheduler.analysis.dependences import Dependences, Stage
from ferrite_scheduler.analysis.generic_sizes import hinted, typical
from ferrite_scheduler.analysis.nodes import Node, make_node
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.schedule import Conditions
from ferrite_scheduler.model.target import Target
from ferrite_scheduler.rewrites.reductions.split_plans import Plan
from ferrite_scheduler.rewrites.reductions.split_reductions import is_outer, split

Domain = tuple[tuple[Size, ...], tuple[Size, ...]]


@dataclass(frozen=True, slots=True)
class Threshold:
    """From where on a reduction is better split.

    Attributes:
        length: points of the reduction axis, at most, that one program reduces.
        grid: points of the grid, at least, with which there are programs enough whatever the length; None if that is
            for the scheduler to know, as the grid is static.
        parts: how many parts it is split into.
    """

    length: int
    grid: int | None
    parts: int


@dataclass(frozen=True, slots=True)
class SplitCandidate:
    """A reduction in two forms.

    Attributes:
        reduction: as it was.
        first, second: names of the first results of its two stages.
        short: for what sizes it is better whole: conditions, of which all of one row hold.
        long: for what sizes it is better split.
    """

    reduction: Reduction
    first: str
    second: str
    short: tuple[Conditions, ...]
    long: tuple[Conditions, ...]


def find_split_candidates(
    graph: Graph, target: Target, policy: Policy, refused: Collection[str]
) -> tuple[Graph, tuple[SplitCandidate, ...]]:
    """Returns the graph with such reductions split, and what became of each; those ``refused`` by name stay whole."""
    reductions = [
        d for d in graph.definitions if isinstance(d, Reduction) and _is_open(d) and d.results[0].name not in refused
    ]
    if not reductions:
        return graph, ()
    types = {name: value.type for name, value in graph.values.items()}
    readers = _readers(graph)
    reductions = [reduction for reduction in reductions if _is_read_by_no_reduction(reduction, readers, graph)]
    thresholds = _thresholds(reductions, types, target, policy)
    candidates: list[SplitCandidate] = []
    definitions: list[Definition] = []
    wanted = {reduction.results[0].name for reduction in reductions}
    for definition in graph.definitions:
        threshold = thresholds.get(domain_sizes(definition)) if isinstance(definition, Reduction) else None
        if not isinstance(definition, Reduction) or threshold is None or definition.results[0].name not in wanted:
            definitions.append(definition)
            continue
        grid, points = (product(sizes) for sizes in domain_sizes(definition))
        chunk = ceildiv(points, threshold.parts)
        first, second = split(definition, Plan(threshold.parts, chunk, exact=False), types)
        definitions += [first, second]
        names = first.results[0].name, second.results[0].name
        candidates.append(SplitCandidate(definition, *names, *_conditions(points, grid, threshold)))
    return (replace(graph, definitions=tuple(definitions)), tuple(candidates)) if candidates else (graph, ())


def _conditions(points: Size, grid: Size, threshold: Threshold) -> tuple[tuple[Conditions, ...], ...]:
    """Returns for what sizes a reduction is better whole, and for what sizes it is better split."""
    is_short, is_long = (points, threshold.length), (-points, -threshold.length - 1)
    if threshold.grid is None:
        return ((is_short,),), ((is_long,),)
    return ((is_short,), ((-grid, -threshold.grid),)), ((is_long, (grid, threshold.grid - 1)),)


def _is_open(reduction: Reduction) -> bool:
    return not all(is_static(dim.size) for dim in reduction.reduction_dims)


def domain_sizes(definition: Definition) -> Domain:
    """Returns the sizes of the dims of a definition: those that its results keep, and those reduced over."""
    kept, reduced = domain_of(definition)
    return tuple(dim.size for dim in kept), tuple(dim.size for dim in reduced)


def _readers(graph: Graph) -> dict[str, list[Definition]]:
    readers: dict[str, list[Definition]] = {}
    for definition in graph.definitions:
        for name in names_read(definition):
            readers.setdefault(name, []).append(definition)
    return readers


def _is_read_by_no_reduction(reduction: Reduction, readers: Mapping[str, Sequence[Definition]], graph: Graph) -> bool:
    """Returns whether loops and updates alone read a reduction's results, and none of them is what an input becomes."""
    names = {result.name for result in reduction.results}
    if any(value in names for _, value in graph.mutations):
        return False
    return all(isinstance(reader, (Loop, Update)) for name in names for reader in readers.get(name, ()))


def _thresholds(
    reductions: Sequence[Reduction], types: dict[str, TensorType], target: Target, policy: Policy
) -> dict[Domain, Threshold]:
    """Returns the threshold of each domain; reductions over it are split alike, and the heaviest decides."""
    heaviest: dict[Domain, tuple[float, Node]] = {}
    for reduction in reductions:
        node = make_node(0, reduction, types, {})
        found = _bytes_of_point(node), node
        domain = domain_sizes(reduction)
        if domain not in heaviest or found[0] > heaviest[domain][0]:
            heaviest[domain] = found
    thresholds = {domain: _threshold(*found, target, policy) for domain, found in heaviest.items()}
    return {domain: threshold for domain, threshold in thresholds.items() if threshold is not None}


def _bytes_of_point(node: Node) -> float:
    """Returns the bytes that a reduction reads for each of its points; one that reads little still computes."""
    return max(1.0, sum(touch.bytes for touch in node.loads) / max(1, hinted(node.points)))


def _threshold(bytes_: float, node: Node, target: Target, policy: Policy) -> Threshold | None:
    """Returns from where on a reduction is better split, None for nowhere."""
    if node.grid == 0:
        return None
    alone, together = (policy.narrow_column_block, policy.column_block) if is_outer(node) else (1, 1)
    grid = typical(node.grid, policy)
    programs, row = math.ceil(grid / alone), bytes_ * grid
    gained = target.seconds(row, programs) - policy.stages_gain * row / target.bandwidth
    wanted = target.processors * policy.programs_per_processor / math.ceil(grid / together)
    if gained <= 0 or wanted < 2:
        return None
    length = max(policy.split_minimum, math.ceil(policy.stages_gain * target.launch_seconds / gained))
    most = min(policy.split_parts, length // policy.split_symbolic_chunk)
    parts = min(1 << round(math.log2(wanted)), previous_power_of_two(most))
    is_known = is_static(product(dim.size for dim in node.grid_dims))
    least = None if is_known else int(alone * target.processors / policy.stages_gain)
    return Threshold(length, least, parts) if parts >= 2 else None


# --- kernels ----------------------------------------------------------------------------------------------------------


def sharing_reductions(
    candidates: Sequence[SplitCandidate], graph: Graph, clusters: Sequence[Cluster | Node], dependences: Dependences
) -> frozenset[str]:
    """Returns the names of the reductions that share a kernel with something else where each has one form.

    Args:
        candidates: the reductions.
        graph: with all of them whole.
        clusters: the kernels of a plan in which each is whole or split, as its hint asks for.
        dependences: those of that plan.
    """
    names = {candidate.second for candidate in candidates}
    made = {name: item for item in clusters for name in made_in(item)}
    stages = {name: _first_stages(name, graph, dependences) for name in names}
    alike = names.union(*stages.values())
    items = {name: [made[stage] for stage in (name, *stages[name])] for name in names}
    return frozenset(name for name in names if not all(_is_apart(item, alike, dependences) for item in items[name]))


def _first_stages(name: str, graph: Graph, dependences: Dependences) -> list[str]:
    """Returns what the definition of a reduction's result reads that is no value of the graph with whole reductions."""
    read = names_read(dependences.nodes[dependences.definer[name]].definition)
    return [other for other in read if other not in graph.values]


def _is_apart(item: Cluster | Node, names: Collection[str], dependences: Dependences) -> bool:
    """Returns whether a kernel makes nothing but reductions of these names and what follows them.

    That is what is computed of their results, point by point, or for all elements of columns that they reduce, and what
    these elements are computed of.
    """
    if not isinstance(item, Cluster):
        return False
    found: set[str] = set()
    reductions = [definition for definition in _body(item, dependences) if isinstance(definition, Reduction)]
    reduced = {name for reduction in reductions for name in names_read(reduction)}
    for number in sorted(item.members):
        node = dependences.nodes[number]
        definition, is_full = node.definition, item.members[number].full
        match definition:
            case Reduction():
                is_apart, is_found = definition.results[0].name in names, is_outer(node)
            case Loop() | Update():
                is_found = not found.isdisjoint(names_read(definition))
                is_beside = is_found or not reduced.isdisjoint(node.result_names)
                is_apart = not is_full or (is_beside and isinstance(definition, Loop))
            case _:
                return False
        if not is_apart:
            return False
        if is_found:
            found.update(node.result_names)
    return True


def group_stages(candidates: Sequence[SplitCandidate], clusters: Sequence[Cluster | Node]) -> dict[str, Stage]:
    """Returns the stage that each stage of reductions is, by the name of its result.

    Reductions of one group share a kernel where all are whole, which ``clusters`` are, and change form at one length.
    """
    made = {name: position for position, item in enumerate(clusters) for name in made_in(item)}
    groups: dict[object, int] = {}
    found: dict[str, Stage] = {}
    for candidate in candidates:
        position = made[candidate.second]
        group = groups.setdefault((position, candidate.short), len(groups))
        found[candidate.first], found[candidate.second] = (group, False), (group, True)
    return found


@dataclass(frozen=True, slots=True)
class SinglePass:
    """What does the work of both stages of reductions.

    Attributes:
        graph: its definitions alone.
        stages: places of the clusters with the first stages and, last, of that with the second.
        skip_guard: for what sizes it is not launched.
        replaced: for what sizes its stages are not.
        reductions: names of the reductions.
        loops: places of the clusters of loops whose work it does, too.
    """

    graph: Graph
    stages: tuple[int, ...]
    skip_guard: tuple[Conditions, ...]
    replaced: tuple[Conditions, ...]
    reductions: frozenset[str]
    loops: tuple[int, ...] = ()


def single_pass_versions(
    clusters: Sequence[Cluster | Node], graph: Graph, dependences: Dependences, candidates: Sequence[SplitCandidate]
) -> tuple[tuple[SinglePass, ...], frozenset[str]]:
    """Returns the kernels that there have to be beside the stages of reductions in two forms.

    Last come the names of the reductions that cannot have them as they read what changes: what does the work of both
    stages runs in the place of the second.
    """
    made = {name: position for position, item in enumerate(clusters) for name in made_in(item)}
    firsts = {candidate.first: candidate for candidate in candidates}
    seconds = {candidate.second: candidate for candidate in candidates}
    single_passes: list[SinglePass] = []
    unfit: set[str] = set()
    for last in dict.fromkeys(made[name] for name in seconds):
        item = clusters[last]
        own = [seconds[name] for name in made_in(item) if name in seconds]
        before = tuple(dict.fromkeys(made[candidate.first] for candidate in own))
        along = [firsts[name] for position in before for name in made_in(clusters[position]) if name in firsts]
        names = frozenset(candidate.second for candidate in (*own, *along))
        read = [name for candidate in own for name in names_read(candidate.reduction)]
        if any(dependences.storage[name] in dependences.versions for name in read):
            unfit |= names
            continue
        alone = _alone([item], seconds, graph, dependences)
        single_passes.append(SinglePass(alone, (*before, last), own[0].long, own[0].short, names))
    return tuple(single_passes), frozenset(unfit)


def with_loops(
    form: SinglePass,
    together: Sequence[Cluster | Node],
    clusters: Sequence[Cluster | Node],
    graph: Graph,
    dependences: Dependences,
    candidates: Sequence[SplitCandidate],
    taken: Mapping[int, int],
    others: Sequence[SinglePass],
) -> SinglePass | None:
    """Returns what does the work of loops beside the reductions as well; None where there are no such loops.

    They share its kernel in ``together``, a plan in which all these reductions are whole, and none finds anything
    changed where it runs: those that come before are read by nothing else until then, those that come after read
    nothing that is made later. Loops in the places ``taken`` are others', and run in the places given there. First
    stages are not launched where this is, but what does the work of ``others`` may be, and reads what they read.
    """
    last = form.stages[-1]
    shared = next(set(made_in(item)) for item in together if not form.reductions.isdisjoint(made_in(item)))
    made = {name: position for position, item in enumerate(clusters) for name in made_in(item)}
    reads = [_read_by(item, dependences) for item in clusters]
    becomes = {value for _, value in graph.mutations}
    loops = [
        position
        for position, item in enumerate(clusters)
        if position not in taken
        and shared.issuperset(made_in(item))
        and becomes.isdisjoint(made_in(item))
        and all(isinstance(definition, Loop) for definition in _body(item, dependences))
        and not any(dependences.storage[name] in dependences.versions for name in reads[position])
    ]

    def readers(position: int) -> Iterator[int]:
        names = set(made_in(clusters[position]))
        return (other for other in range(position + 1, len(clusters)) if not names.isdisjoint(reads[other]))

    joined = [last]
    for position in reversed(loops):
        is_read_later = all(place > last for place in _places_reading(made_in(clusters[position]), others)) and all(
            other in joined or other in form.stages or other > last for other in readers(position)
        )
        if position < last and is_read_later:
            joined.append(position)
    ahead = tuple(joined[1:])
    places = {name: taken.get(position, position) for name, position in made.items()}
    for position in loops:
        if position > last and all(places.get(name, 0) <= last or made[name] in joined for name in reads[position]):
            joined.append(position)
    if joined == [last]:
        return None
    seconds = {candidate.second: candidate for candidate in candidates}
    own = {*joined, *form.stages}
    unread = {
        name
        for position in ahead
        if own.issuperset(readers(position)) and not _places_reading(made_in(clusters[position]), others)
        for name in made_in(clusters[position])
    } - set(graph.output_names)
    alone = _alone([clusters[position] for position in sorted(joined)], seconds, graph, dependences, unread)
    return replace(form, graph=alone, loops=tuple(joined[1:]))


def _places_reading(names: Collection[str], forms: Iterable[SinglePass]) -> list[int]:
    """Returns the places of what does the work of both stages of reductions and reads some of these values."""
    return [form.stages[-1] for form in forms if any(value.name in names for value in form.graph.inputs)]


def _read_by(item: Cluster | Node, dependences: Dependences) -> set[str]:
    """Returns the names of the values that a cluster or a call reads and does not make."""
    if isinstance(item, Node):
        return set(item.reads)
    return {name for definition in _body(item, dependences) for name in names_read(definition)} - {*made_in(item)}


def made_in(item: Cluster | Node) -> tuple[str, ...]:
    """Returns the names of the values that a cluster or a call makes."""
    return tuple(item.made) if isinstance(item, Cluster) else item.result_names


def _body(item: Cluster | Node, dependences: Dependences) -> list[Computed]:
    numbers = sorted(item.members) if isinstance(item, Cluster) else []
    return [dependences.nodes[number].definition for number in numbers]  # type: ignore[misc]


def _alone(
    items: Sequence[Cluster | Node],
    seconds: Mapping[str, SplitCandidate],
    graph: Graph,
    dependences: Dependences,
    unread: Collection[str] = (),
) -> Graph:
    """Returns a graph of the definitions of clusters alone, with whole reductions for second stages.

    What is stored of them is a result, but for what is ``unread`` after them.
    """
    body = [definition for item in items for definition in _body(item, dependences)]
    definitions = tuple(seconds[d.results[0].name].reduction if d.results[0].name in seconds else d for d in body)
    made = {result.name: result for d in definitions for result in d.results}
    read = dict.fromkeys(name for d in definitions for name in names_read(d) if name not in made)
    kept = {name for item in items if isinstance(item, Cluster) for name in stored_names(item, dependences)}
    outputs = tuple(whole(value) for name, value in made.items() if name in kept and name not in unread)
    inputs = tuple(graph.values[name] for name in read)
    return Graph(graph.name, inputs, definitions, outputs, device=graph.device)
