"""The whole of scheduling as one pure function."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from ferrite_ir.graph import Graph
from ferrite_ir.passes import Dce

from .branches import separate_branches
from .cluster import Cluster, absorb, cluster_of
from .column_scales import scale_sums
from .combined_rows import combine_rows
from .contractions import keep_narrow_contractions
from .dependences import Dependences, Node, dependences_of, make_node, nodes_of
from .fusion import fuse
from .last_reads import mark_last_reads
from .loops import Layouts, Misfit, build_kernel
from .marks import ColumnFold, as_fold, unmarked
from .memory import Work, plan_memory
from .ordering import execution_order
from .prologues import repeat_statistics
from .proposal import propose
from .rules import judge
from .schedule import Kernel, Schedule
from .short_runs import separate_short_runs
from .softmax import join_softmax
from .sorted_updates import sort_updates
from .split import prepare_folds
from .strategy import longest_line, persistent_limit, strategy_of
from .target import DEFAULT_POLICY, DEFAULT_TARGET, Policy, Target
from .terms import separate_terms
from .updates import separate_updates


def schedule(
    graph: Graph,
    target: Target = DEFAULT_TARGET,
    policy: Policy = DEFAULT_POLICY,
    donated: Collection[str] = (),
) -> Schedule:
    """Returns the schedule of a graph: kernels, host steps in order, and the decisions behind them.

    Args:
        graph: what to schedule.
        target: the device.
        policy: thresholds.
        donated: names of inputs that nobody reads after the program and that share storage with nothing else: once
            dead, their storage may serve others.

    Symbolic sizes stay symbolic: what is decided holds for all of their values; how well it does is judged by hints.
    """
    graph = scale_sums(keep_narrow_contractions(graph, policy), policy)
    graph = separate_updates(repeat_statistics(Dce().run(graph), target, policy))
    graph = sort_updates(combine_rows(graph, target, policy), policy)
    graph = join_softmax(graph, policy)
    graph = separate_terms(separate_short_runs(graph, policy), policy)
    graph = prepare_folds(graph, target, policy)
    nodes = nodes_of(graph)
    graph = unmarked(graph)
    dependences = dependences_of(graph, nodes)
    fusion = fuse(dependences, target, policy)
    clusters = [fusion.clusters.get(number, nodes[number]) for number in execution_order(fusion, graph)]
    clusters, dependences = _without_lonely_columns(clusters, graph, dependences, target, policy)
    work = mark_last_reads(_work(clusters, graph, dependences, policy), graph, dependences, target)
    kernels, steps, outputs = plan_memory(work, graph, dependences, policy, donated)
    return Schedule(graph, kernels, steps, outputs, tuple(fusion.decisions))


def _without_lonely_columns(
    clusters: Sequence[Cluster | Node], graph: Graph, dependences: Dependences, target: Target, policy: Policy
) -> tuple[list[Cluster | Node], Dependences]:
    """Returns the clusters with column folds that found nothing along rows to ride with made kernels over columns."""
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
    """Returns the dependences with the column folds among these nodes made folds like any other."""
    nodes = list(dependences.nodes)
    types = {name: value.type for name, value in graph.values.items()}
    for number in numbers:
        definition = nodes[number].definition
        if isinstance(definition, ColumnFold):
            nodes[number] = make_node(number, as_fold(definition), types, {})
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


def _work(clusters: Sequence[Cluster | Node], graph: Graph, dependences: Dependences, policy: Policy) -> list[Work]:
    work: list[Work] = []
    layouts: Layouts = {}
    for item in clusters:
        if isinstance(item, Node):
            work.append(item)
        else:
            work.extend(_kernels(item, graph, dependences, policy, layouts))
    return work


def _kernels(
    cluster: Cluster, graph: Graph, dependences: Dependences, policy: Policy, layouts: Layouts
) -> list[Kernel]:
    """Returns the kernel of a cluster, or one for each member if the members' dims turn out not to fit together."""
    stored = stored_names(cluster, dependences)
    strategy = strategy_of(cluster, policy)
    try:
        kernel = build_kernel(cluster, dependences, graph, stored, strategy, policy, layouts)
        if strategy == "scan":
            kernel = replace(kernel, tile=longest_line(kernel.body, policy))
        kernel = separate_branches(kernel, dependences, policy)
        limit = persistent_limit(cluster, policy)
        return [replace(kernel, persistent_up_to=limit) if limit else kernel]
    except Misfit:
        if len(cluster.members) == 1:
            raise
    dependences = _over_columns(dependences, cluster.members, graph)
    singles = [cluster_of(dependences.nodes[number], dependences) for number in sorted(cluster.members)]
    return [kernel for single in singles for kernel in _kernels(single, graph, dependences, policy, layouts)]


def stored_names(cluster: Cluster, dependences: Dependences) -> frozenset[str]:
    """Returns the names made in a cluster that something outside reads."""
    return frozenset(
        name
        for name in cluster.made
        if name in dependences.kept
        or any(reader not in cluster.members for reader in dependences.readers.get(name, ()))
    )
