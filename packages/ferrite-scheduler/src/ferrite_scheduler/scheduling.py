"""The whole of scheduling as one pure function."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from ferrite_ir.graph import Graph
from ferrite_ir.passes import Dce

from .cluster import Cluster, cluster_of
from .dependences import Dependences, Node, dependences_of, nodes_of
from .fusion import fuse
from .loops import Layouts, Misfit, build_kernel
from .memory import Work, plan_memory
from .ordering import execution_order
from .schedule import Kernel, Schedule
from .softmax import join_softmax
from .split import prepare_folds
from .strategy import persistent_limit, strategy_of
from .target import DEFAULT_POLICY, DEFAULT_TARGET, Policy, Target
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
    graph = join_softmax(separate_updates(Dce().run(graph)), policy)
    graph = prepare_folds(graph, target, policy)
    nodes = nodes_of(graph)
    dependences = dependences_of(graph, nodes)
    fusion = fuse(dependences, target, policy)
    clusters = [fusion.clusters.get(number, nodes[number]) for number in execution_order(fusion, graph)]
    work = _work(clusters, graph, dependences, policy)
    kernels, steps, outputs = plan_memory(work, graph, dependences, policy, donated)
    return Schedule(graph, kernels, steps, outputs, tuple(fusion.decisions))


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
        limit = persistent_limit(cluster, policy)
        return [replace(kernel, persistent_up_to=limit) if limit else kernel]
    except Misfit:
        if len(cluster.members) == 1:
            raise
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
