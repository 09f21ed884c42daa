"""The whole of scheduling as one pure function."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ferrite_ir.language.graph import Graph
from ferrite_ir.passes import Dce
from ferrite_scheduler.analysis.clusters import Cluster, absorb, cluster_of, stored_names
from ferrite_scheduler.analysis.dependences import Dependences, Node, Stage, dependences_of, make_node, nodes_of
from ferrite_scheduler.analysis.kernel_forms import form_of
from ferrite_scheduler.fusion.combo_kernels import separate_parts
from ferrite_scheduler.fusion.execution_order import execution_order
from ferrite_scheduler.fusion.greedy import fuse
from ferrite_scheduler.fusion.proposal import propose
from ferrite_scheduler.fusion.rules import judge
from ferrite_scheduler.kernels.loop_nests import Layouts, Misfit, build_kernel
from ferrite_scheduler.memory.host_steps import Work, plan_memory
from ferrite_scheduler.model.annotations import ColumnReduction, as_reduction, unannotated
from ferrite_scheduler.model.contractions import keep_narrow_contractions
from ferrite_scheduler.model.schedule import Conditions, Decision, Kernel, Schedule
from ferrite_scheduler.model.target import DEFAULT_POLICY, DEFAULT_TARGET, Policy, Target
from ferrite_scheduler.refinements.grid_reductions import as_grid_reduction, with_workspaces
from ferrite_scheduler.refinements.last_uses import mark_last_uses
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
from ferrite_scheduler.refinements.prefetches import prefetch
from ferrite_scheduler.refinements.register_norms import hold_images
from ferrite_scheduler.refinements.reverse_traversal import reverse_traversal
from ferrite_scheduler.rewrites.accumulated_products import accumulate_products
from ferrite_scheduler.rewrites.column_scales import scale_sums
from ferrite_scheduler.rewrites.contiguous_inner import split_contiguous_inner
from ferrite_scheduler.rewrites.hoisted_terms import separate_terms
from ferrite_scheduler.rewrites.online_softmax import join_softmax
from ferrite_scheduler.rewrites.prologues import recompute_statistics
from ferrite_scheduler.rewrites.row_results import separate_row_results
from ferrite_scheduler.rewrites.segmented_reductions import reduce_segments
from ferrite_scheduler.rewrites.sorted_scatters import sort_scatters
from ferrite_scheduler.rewrites.split_precision import cut_rows
from ferrite_scheduler.rewrites.split_reductions import prepare_reductions
from ferrite_scheduler.rewrites.update_operands import separate_updates


def schedule(
    graph: Graph,
    target: Target = DEFAULT_TARGET,
    policy: Policy = DEFAULT_POLICY,
    donated: Collection[str] = (),
    held: Collection[str] = (),
) -> Schedule:
    """Returns the schedule of a graph: kernels, host steps in order, and the decisions behind them.

    Args:
        graph: what to schedule.
        target: the device.
        policy: thresholds.
        donated: names of inputs that nobody reads after the program and that share storage with nothing else: once
            dead, their storage may serve others.
        held: names of inputs that the caller holds until the program ends: dropping them would free nothing.

    Symbolic sizes stay symbolic: what is decided holds for all of their values; how well it does is judged by hints.
    """
    graph = accumulate_products(graph, policy)
    graph = cut_rows(scale_sums(keep_narrow_contractions(graph, policy), policy), policy)
    graph = separate_updates(recompute_statistics(Dce().run(graph), target, policy))
    graph = sort_scatters(reduce_segments(graph, target, policy), policy)
    graph = separate_row_results(join_softmax(graph, policy), policy)
    graph = separate_terms(split_contiguous_inner(graph, policy), policy)
    plan, single_passes = _with_versions(graph, _clustered(graph, target, policy), target, policy)
    graph, dependences = plan.graph, plan.dependences
    work = hold_images(_work(plan, target, policy, single_passes), dependences, target, policy)
    work = prefetch(work, target, policy)
    work, graph, dependences = with_workspaces(work, graph, dependences)
    work = reverse_traversal(mark_last_uses(work, graph, dependences, target), graph, dependences, target, policy)
    kernels, steps, outputs = plan_memory(work, graph, dependences, policy, donated, held)
    return Schedule(graph, kernels, steps, outputs, plan.decisions)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A graph cut into clusters, in execution order, with the decisions that led to them."""

    graph: Graph
    dependences: Dependences
    clusters: list[Cluster | Node]
    decisions: tuple[Decision, ...]


def _with_versions(
    graph: Graph, plan: _Plan, target: Target, policy: Policy
) -> tuple[_Plan, list[tuple[SinglePass, _Plan]]]:
    """Returns a plan with both forms of reductions that have two, and what does the work of both stages of some.

    ``plan`` has the form that the hint asks for. What shares a kernel with the reduction in it, or does not, still
    does: sums of columns that ride with rows have the form that is right for all lengths.
    """
    definitions = [node.definition for node in plan.dependences.nodes]
    refused = frozenset(d.by_row.results[0].name for d in definitions if isinstance(d, ColumnReduction))
    candidates_found, candidates = find_split_candidates(graph, target, policy, refused)
    unfit = sharing_reductions(candidates, graph, plan.clusters, plan.dependences)
    while True:
        if unfit:
            refused |= unfit
            candidates_found, candidates = find_split_candidates(graph, target, policy, refused)
        if not candidates:
            return plan, []
        whole = _clustered(graph, target, policy, {candidate.second for candidate in candidates})
        stages = group_stages(candidates, whole.clusters)
        both = _clustered(candidates_found, target, policy, {candidate.first for candidate in candidates}, stages)
        single_passes, unfit = single_pass_versions(both.clusters, both.graph, both.dependences, candidates)
        pairs = _made_alone(single_passes, whole, both, candidates, target, policy)
        unfit = unfit.union(*(form.reductions for form, single in pairs if len(single.clusters) != 1))
        if not unfit:
            return both, pairs


def _made_alone(
    single_passes: Iterable[SinglePass],
    whole: _Plan,
    both: _Plan,
    candidates: Sequence[SplitCandidate],
    target: Target,
    policy: Policy,
) -> list[tuple[SinglePass, _Plan]]:
    """Returns what does the work of both stages, with loops beside them where one kernel does all of it, and its plan.

    ``whole`` is the plan in which all reductions are whole, ``both`` that with their stages.
    """
    pairs: list[tuple[SinglePass, _Plan]] = []
    taken: set[int] = set()
    for form in single_passes:
        wider = with_loops(form, whole.clusters, both.clusters, both.graph, both.dependences, candidates, taken)
        plan = None if wider is None else _clustered(wider.graph, target, policy, form.reductions)
        if wider is not None and plan is not None and len(plan.clusters) == 1:
            pairs.append((wider, plan))
            taken.update(wider.loops)
        else:
            pairs.append((form, _clustered(form.graph, target, policy, form.reductions)))
    return pairs


def _clustered(
    graph: Graph,
    target: Target,
    policy: Policy,
    settled: Collection[str] = (),
    stages: Mapping[str, Stage] | None = None,
) -> _Plan:
    """Returns a graph cut into clusters, its reductions prepared but for those, by result, whose form is ``settled``.

    ``stages`` says, by result, which definitions are stages of reductions in two forms.
    """
    graph = prepare_reductions(graph, target, policy, settled)
    nodes = nodes_of(graph)
    graph = unannotated(graph)
    dependences = dependences_of(graph, nodes)
    if stages:
        numbers = {dependences.definer[name]: stage for name, stage in stages.items()}
        dependences = replace(dependences, stages=numbers)
    fusion = fuse(dependences, target, policy)
    clusters = [fusion.clusters.get(number, nodes[number]) for number in execution_order(fusion, graph)]
    clusters, dependences = _without_lonely_columns(clusters, graph, dependences, target, policy)
    return _Plan(graph, dependences, clusters, tuple(fusion.decisions))


def _without_lonely_columns(
    clusters: Sequence[Cluster | Node], graph: Graph, dependences: Dependences, target: Target, policy: Policy
) -> tuple[list[Cluster | Node], Dependences]:
    """Returns the clusters; column reductions that found no rows to ride with become kernels over columns."""
    lonely = [item for item in clusters if isinstance(item, Cluster) and item.columns == len(item.members)]
    if not lonely:
        return list(clusters), dependences
    dependences = _over_columns(dependences, (number for cluster in lonely for number in cluster.members), graph)
    found: list[Cluster | Node] = []
    for item in clusters:
        if not isinstance(item, Cluster) or item.columns < len(item.members):
            found.append(item)
            continue
        together: list[Cluster] = []
        for number in sorted(item.members):
            _join(together, cluster_of(dependences.nodes[number], dependences), dependences, target, policy)
        found.extend(together)
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


def _join(together: list[Cluster], single: Cluster, dependences: Dependences, target: Target, policy: Policy) -> None:
    """Adds a cluster to the first that takes it, or to the list; nothing lies between them."""
    for place, cluster in enumerate(together):
        proposal = propose(cluster, single, dependences, target, policy)
        if judge(proposal) is None and proposal.placement is not None:
            absorb(proposal.owner, proposal.guest, proposal.placement)
            together[place] = proposal.owner
            return
    together.append(single)


def _work(plan: _Plan, target: Target, policy: Policy, single_passes: Sequence[tuple[SinglePass, _Plan]]) -> list[Work]:
    """Returns the kernels and calls of a plan, with those that do the work of several for some sizes."""
    layouts: Layouts = {}
    skip_guard: dict[int, tuple[Conditions, ...]] = {}
    before: dict[int, list[Kernel]] = {}
    later: set[int] = set()
    for form, alone in single_passes:
        (cluster,) = alone.clusters
        found = _kernels_of(cluster, alone, target, policy, layouts)
        last = form.stages[-1]
        made = {name for place in form.loops if place < last for name in made_in(plan.clusters[place])}
        before[last] = [_overwriting(replace(kernel, skip_guard=form.skip_guard), made) for kernel in found]
        skip_guard |= dict.fromkeys((*form.stages, *form.loops), form.replaced)
        later.update(place for place in form.loops if place > last)
    work: list[Work] = []
    for place, item in enumerate(plan.clusters):
        if isinstance(item, Node):
            work.append(item)
            continue
        kernels = _kernels_of(item, plan, target, policy, layouts)
        if place in skip_guard:
            kernels = [replace(kernel, skip_guard=skip_guard[place]) for kernel in kernels]
        if place in before or place in later:
            kernels = [*before.get(place, ()), *map(_overwriting, kernels)]
        work.extend(kernels)
    return work


def _overwriting(kernel: Kernel, names: Collection[str] | None = None) -> Kernel:
    """Returns a kernel of whose results another, before it, makes these, or all of them, for some sizes."""
    params = tuple(
        replace(p, access="readwrite") if p.access == "write" and (names is None or p.name in names) else p
        for p in kernel.params
    )
    return replace(kernel, params=params)


def _kernels_of(item: Cluster | Node, plan: _Plan, target: Target, policy: Policy, layouts: Layouts) -> list[Kernel]:
    assert isinstance(item, Cluster)
    return _kernels(item, plan.graph, plan.dependences, target, policy, layouts)


def _kernels(
    cluster: Cluster, graph: Graph, dependences: Dependences, target: Target, policy: Policy, layouts: Layouts
) -> list[Kernel]:
    """Returns the kernel of a cluster, or one for each member if the members' dims turn out not to fit together."""
    stored = stored_names(cluster, dependences)
    form = form_of(cluster, dependences, policy)
    try:
        kernel = build_kernel(cluster, dependences, graph, stored, form, policy, layouts)
        return [as_grid_reduction(separate_parts(kernel, dependences, policy), cluster, target, policy)]
    except Misfit:
        if len(cluster.members) == 1:
            raise
    dependences = _over_columns(dependences, cluster.members, graph)
    singles = [cluster_of(dependences.nodes[number], dependences) for number in sorted(cluster.members)]
    return [kernel for single in singles for kernel in _kernels(single, graph, dependences, target, policy, layouts)]
