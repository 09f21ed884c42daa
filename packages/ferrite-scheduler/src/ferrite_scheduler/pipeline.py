"""The whole of scheduling as one pure function."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeGuard

from ferrite_ir.language.calls import called_first
from ferrite_ir.language.graph import Contract, Definition, Graph, Module
from ferrite_scheduler.analysis.clusters import Cluster, cluster_of, stored_names
from ferrite_scheduler.analysis.dependences import Dependences, Stage, dependences_of
from ferrite_scheduler.analysis.form_choice import form_of
from ferrite_scheduler.analysis.nodes import Node, make_node, nodes_of
from ferrite_scheduler.fusion.combo_kernels import separate_parts
from ferrite_scheduler.fusion.execution_order import in_execution_order
from ferrite_scheduler.fusion.greedy import fuse
from ferrite_scheduler.fusion.joining import clusters_of
from ferrite_scheduler.fusion.norm_fusion import join_norms
from ferrite_scheduler.kernels.loop_nests import Layouts, Misfit, build_kernel
from ferrite_scheduler.kernels.register_norms import build_register_norm
from ferrite_scheduler.memory.destinations import loop_bodies, with_destinations
from ferrite_scheduler.memory.host_steps import Work, plan_memory
from ferrite_scheduler.model.annotations import ColumnReduction, PartialContract, as_reduction, unannotated
from ferrite_scheduler.model.changes import Change, changes_between
from ferrite_scheduler.model.policy import DEFAULT_POLICY, Policy
from ferrite_scheduler.model.schedule import Conditions, Decision, Kernel, Schedule
from ferrite_scheduler.model.target import DEFAULT_TARGET, Target
from ferrite_scheduler.model.tiled_contractions import is_tiled
from ferrite_scheduler.refinements.grid_reductions import as_grid_reduction
from ferrite_scheduler.refinements.multi_versioning import (
    SinglePass,
    SplitCandidate,
    find_split_candidates,
    group_stages,
    made_in,
    sharing_reductions,
    single_pass_versions,
    with_loops,
)
from ferrite_scheduler.refinements.pipeline import Ordered, kernel_changes, refine
from ferrite_scheduler.rewrites.pipeline import rewrite
from ferrite_scheduler.rewrites.reductions.split_reductions import prepare_reductions
from ferrite_scheduler.rewrites.stored_products import store_rounded

STAGES = "one program for each result would leave the device idle, or read too little at once"
"""Why reductions and scans get stages."""
NARROW = "another kernel reads the product as eager mode stores it"
"""Why products are rounded."""
COMBO = "independent work of one launch has programs of its own"
"""Why kernels are combo kernels."""
SHARED = "a row that is too long for the cache is read once"
"""Why programs share rows."""


def schedule(
    graph: Graph,
    target: Target = DEFAULT_TARGET,
    policy: Policy = DEFAULT_POLICY,
    donated: Collection[str] = (),
    held: Collection[str] = (),
    *,
    has_destinations: bool = False,
) -> Schedule:
    """Returns the schedule of a graph: kernels, host steps in order, and the decisions behind them.

    Args:
        graph: what to schedule.
        target: the device.
        policy: thresholds.
        donated: names of inputs that nobody reads after the program and that share storage with nothing else: once
            dead, their storage may serve others.
        held: names of inputs that the caller holds until the program ends: dropping them would free nothing.
        has_destinations: the caller gives storage for the results, see `Schedule.destinations`.

    Symbolic sizes stay symbolic: what is decided holds for all of their values; how well it does is judged by hints.
    """
    graph, rewritten = rewrite(graph, target, policy)
    setting = _Setting(target, policy, frozenset(held))
    graph, plan, narrowed = _with_narrow_products(graph, _clustered(graph, setting), setting)
    plan, single_passes = _with_versions(graph, plan, setting)
    making = _Making(target, policy)
    work = _work(plan, making, single_passes)
    released = {value.name for value in plan.graph.inputs} - set(held)
    refined, changed = refine(Ordered(work, plan.graph, plan.dependences, released), target, policy)
    graph, dependences = refined.graph, refined.dependences
    destinations: dict[str, str] = {}
    if has_destinations:
        graph, destinations = with_destinations(graph)
        storage = {**dependences.storage, **{name: name for name in destinations.values()}}
        dependences = replace(dependences, storage=storage)
    kernels, steps, outputs = plan_memory(refined.work, graph, dependences, policy, donated, held, destinations)
    changes = (*rewritten, *narrowed, *plan.changes, *making.changes, *changed)
    positions = tuple(destinations.values())
    return Schedule(
        graph, kernels, steps, outputs, (*plan.decisions, *refined.decisions), changes, destinations=positions
    )


def schedule_module(
    module: Module,
    target: Target = DEFAULT_TARGET,
    policy: Policy = DEFAULT_POLICY,
    donated: Collection[str] = (),
    held: Collection[str] = (),
) -> Schedule:
    """Returns the schedule of a module's first graph, with those of the graphs that it calls.

    ``donated`` and ``held`` are about the first graph, see `schedule`. Inputs of called graphs are held by the caller.
    A graph that is nothing but the body of loops gets storage for its results: loops have two of each that they carry.
    """
    bodies = loop_bodies(module)
    callees = tuple(
        schedule(
            graph,
            target,
            policy,
            held=[value.name for value in graph.inputs],
            has_destinations=graph.name in bodies,
        )
        for graph in called_first(module)
    )
    return replace(schedule(module.graphs[0], target, policy, donated, held), callees=callees)


@dataclass(frozen=True, slots=True)
class _Setting:
    """What a graph is scheduled for: the device, the thresholds, and the inputs whose memory the caller holds."""

    target: Target
    policy: Policy
    held: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Plan:
    """A graph cut into clusters, in execution order, with the decisions that led to them."""

    graph: Graph
    dependences: Dependences
    clusters: list[Cluster | Node]
    decisions: tuple[Decision, ...]
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class _Making:
    """What making kernels of clusters goes by, and what it leaves: layouts found so far, and changes of forms."""

    target: Target
    policy: Policy
    layouts: Layouts = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)


def _with_narrow_products(graph: Graph, plan: _Plan, setting: _Setting) -> tuple[Graph, _Plan, tuple[Change, ...]]:
    """Returns a graph and its plan with products of tiles rounded where another kernel reads them, and what changed."""
    inside: dict[str, frozenset[str]] = {}
    for cluster in plan.clusters:
        if not isinstance(cluster, Cluster) or "contract" not in cluster.kinds:
            continue
        stored = stored_names(cluster, plan.dependences)
        definitions = (plan.dependences.nodes[number].definition for number in cluster.members)
        products = [d.result.name for d in definitions if _is_rounded(d, setting.policy)]
        inside |= dict.fromkeys(stored.intersection(products), frozenset(cluster.made))
    if not inside:
        return graph, plan, ()
    narrow = store_rounded(graph, inside)
    changes = tuple(changes_between("stored_products", graph, narrow, NARROW))
    return narrow, _clustered(narrow, setting), changes


def _is_rounded(definition: Definition, policy: Policy) -> TypeGuard[Contract]:
    """Returns whether a definition is a product of tiles that may be stored rounded, and not a part of its sums."""
    if not isinstance(definition, Contract) or isinstance(definition, PartialContract):
        return False
    return definition.stored is not None and is_tiled(definition, policy)


def _with_versions(graph: Graph, plan: _Plan, setting: _Setting) -> tuple[_Plan, list[tuple[SinglePass, _Plan]]]:
    """Returns a plan with both forms of reductions that have two, and what does the work of both stages of some.

    ``plan`` has the form that the hint asks for. What shares a kernel with the reduction in it, or does not, still
    does: partial column reductions in row kernels have the form that is right for all lengths.
    """
    definitions = [node.definition for node in plan.dependences.nodes]
    refused = frozenset(d.by_row.results[0].name for d in definitions if isinstance(d, ColumnReduction))
    candidates_found, candidates = find_split_candidates(graph, setting.target, setting.policy, refused)
    unfit = sharing_reductions(candidates, graph, plan.clusters, plan.dependences)
    while True:
        if unfit:
            refused |= unfit
            candidates_found, candidates = find_split_candidates(graph, setting.target, setting.policy, refused)
        if not candidates:
            return plan, []
        whole = _clustered(graph, setting, {candidate.second for candidate in candidates})
        stages = group_stages(candidates, whole.clusters)
        both = _clustered(candidates_found, setting, {candidate.first for candidate in candidates}, stages)
        single_passes, unfit = single_pass_versions(both.clusters, both.graph, both.dependences, candidates)
        pairs = _made_alone(single_passes, whole, both, candidates, setting)
        unfit = unfit.union(*(form.reductions for form, single in pairs if len(single.clusters) != 1))
        if not unfit:
            return both, pairs


def _made_alone(
    single_passes: Iterable[SinglePass],
    whole: _Plan,
    both: _Plan,
    candidates: Sequence[SplitCandidate],
    setting: _Setting,
) -> list[tuple[SinglePass, _Plan]]:
    """Returns what does the work of both stages, with loops beside them where one kernel does all of it, and its plan.

    ``whole`` is the plan in which all reductions are whole, ``both`` that with their stages.
    """
    pairs: list[tuple[SinglePass, _Plan]] = []
    taken: dict[int, int] = {}
    forms = tuple(single_passes)
    for form in forms:
        others = [other for other in forms if other is not form]
        wider = with_loops(form, whole.clusters, both.clusters, both.graph, both.dependences, candidates, taken, others)
        plan = None if wider is None else _clustered(wider.graph, setting, form.reductions)
        if wider is not None and plan is not None and len(plan.clusters) == 1:
            pairs.append((wider, plan))
            taken |= dict.fromkeys(wider.loops, wider.stages[-1])
        else:
            pairs.append((form, _clustered(form.graph, setting, form.reductions)))
    return pairs


def _clustered(
    graph: Graph,
    setting: _Setting,
    settled: Collection[str] = (),
    stages: Mapping[str, Stage] | None = None,
) -> _Plan:
    """Returns a graph cut into clusters, its reductions prepared but for those, by result, whose form is ``settled``.

    ``stages`` says, by result, which definitions are stages of reductions in two forms.
    """
    target, policy = setting.target, setting.policy
    prepared = prepare_reductions(graph, target, policy, settled)
    changes = tuple(changes_between("split_reductions", graph, prepared, STAGES))
    graph = prepared
    nodes = nodes_of(graph)
    graph = unannotated(graph)
    dependences = replace(dependences_of(graph, nodes), held=setting.held)
    if stages:
        numbers = {dependences.definer[name]: stage for name, stage in stages.items()}
        dependences = replace(dependences, stages=numbers)
    fusion = join_norms(fuse(dependences, target, policy), graph)
    clusters = in_execution_order(fusion, graph, target)
    clusters, dependences = _without_lonely_columns(clusters, graph, dependences, target, policy)
    return _Plan(graph, dependences, clusters, tuple(fusion.decisions), changes)


def _without_lonely_columns(
    clusters: Sequence[Cluster | Node], graph: Graph, dependences: Dependences, target: Target, policy: Policy
) -> tuple[list[Cluster | Node], Dependences]:
    """Returns the clusters; column reductions that no row kernel holds become kernels over columns."""
    lonely = [item for item in clusters if isinstance(item, Cluster) and item.columns == len(item.members)]
    if not lonely:
        return list(clusters), dependences
    dependences = _over_columns(dependences, (number for cluster in lonely for number in cluster.members), graph)
    found: list[Cluster | Node] = []
    for item in clusters:
        if not isinstance(item, Cluster) or item.columns < len(item.members):
            found.append(item)
            continue
        found.extend(clusters_of(sorted(item.members), dependences, target, policy))
    return found, dependences


def _over_columns(dependences: Dependences, numbers: Iterable[int], graph: Graph) -> Dependences:
    """Returns the dependences with the column reductions among these nodes made reductions like any other."""
    nodes = list(dependences.nodes)
    types = {name: value.type for name, value in graph.values.items()}
    for number in numbers:
        definition = nodes[number].definition
        if isinstance(definition, ColumnReduction):
            nodes[number] = make_node(number, as_reduction(definition), types, {})
    return replace(dependences, nodes=tuple(nodes))


def _work(plan: _Plan, making: _Making, single_passes: Sequence[tuple[SinglePass, _Plan]]) -> list[Work]:
    """Returns the kernels and calls of a plan, with those that do the work of several for some sizes."""
    skip_guard: dict[int, tuple[Conditions, ...]] = {}
    before: dict[int, list[Kernel]] = {}
    later: set[int] = set()
    for form, alone in single_passes:
        (cluster,) = alone.clusters
        found = _kernels_of(cluster, alone, making)
        last = form.stages[-1]
        made = {name for position in form.loops if position < last for name in made_in(plan.clusters[position])}
        before[last] = [_overwriting(replace(kernel, skip_guard=form.skip_guard), made) for kernel in found]
        skip_guard |= dict.fromkeys((*form.stages, *form.loops), form.replaced)
        later.update(position for position in form.loops if position > last)
    work: list[Work] = []
    for position, item in enumerate(plan.clusters):
        if isinstance(item, Node):
            work.append(item)
            continue
        kernels = _kernels_of(item, plan, making)
        if position in skip_guard:
            kernels = [replace(kernel, skip_guard=skip_guard[position]) for kernel in kernels]
        if position in before or position in later:
            kernels = [*before.get(position, ()), *map(_overwriting, kernels)]
        work.extend(kernels)
    return work


def _overwriting(kernel: Kernel, names: Collection[str] | None = None) -> Kernel:
    """Returns a kernel of whose results another, before it, makes these, or all of them, for some sizes."""
    params = tuple(
        replace(p, access="readwrite") if p.access == "write" and (names is None or p.name in names) else p
        for p in kernel.params
    )
    return replace(kernel, params=params)


def _kernels_of(item: Cluster | Node, plan: _Plan, making: _Making) -> list[Kernel]:
    assert isinstance(item, Cluster)
    return _kernels(item, plan.graph, plan.dependences, making)


def _kernels(cluster: Cluster, graph: Graph, dependences: Dependences, making: _Making) -> list[Kernel]:
    """Returns the kernel of a cluster, or one for each member if the members' dims turn out not to fit together."""
    stored = stored_names(cluster, dependences)
    policy = making.policy
    form = form_of(cluster, dependences, policy)
    if cluster.norm is not None:
        return [build_register_norm(cluster.norm, dependences, graph, stored, form, policy)]
    try:
        kernel = build_kernel(cluster, dependences, graph, stored, form, policy, making.layouts)
        shared = as_grid_reduction(kernel, cluster, making.target, policy)
        parted = separate_parts(shared, dependences, policy)
        making.changes.extend(kernel_changes("grid_reductions", [kernel], [shared], SHARED))
        making.changes.extend(kernel_changes("combo_kernels", [shared], [parted], COMBO))
        return [parted]
    except Misfit:
        if len(cluster.members) == 1:
            raise
    dependences = _over_columns(dependences, cluster.members, graph)
    singles = [cluster_of(dependences.nodes[number], dependences) for number in sorted(cluster.members)]
    return [kernel for single in singles for kernel in _kernels(single, graph, dependences, making)]
