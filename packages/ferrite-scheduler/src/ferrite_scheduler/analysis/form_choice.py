"""Choice of a kernel form: which class of `model.forms` claims a cluster, such as rows in one tile, or in a loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ferrite_ir.language.powers_of_two import next_power_of_two, previous_power_of_two
from ferrite_scheduler.model.forms import FORMS, ClusterFacts, Form
from ferrite_scheduler.model.policy import Policy

from .clusters import Cluster
from .dependences import Dependences
from .generic_sizes import hinted, is_symbolic
from .traffic import live_tiles, loads_again

ACCUMULATOR_BYTES = 4
"""Bytes of one value in a tile: narrow floats are computed in f32."""


def form_of(cluster: Cluster, dependences: Dependences, policy: Policy) -> Form:
    """Returns the form of a cluster's kernel, before refinements: the first that claims it."""
    facts = ClusterFacts(
        definitions=tuple(dependences.nodes[number].definition for number in cluster.members),
        kinds=cluster.kinds,
        is_symbolic=is_symbolic(cluster.reduction),
        chunks=cluster.chunks,
        inner=cluster.inner,
        fits_tile=partial(is_persistent_alone, cluster, dependences, policy),
        tile_limit=partial(persistent_limit, cluster, policy),
        norm_block=0 if cluster.norm is None else cluster.norm.block_length,
        policy=policy,
    )
    for kind in FORMS.values():
        form = kind.of(facts)
        if form is not None:
            return form
    raise AssertionError("a kernel that no other form claims has loops")


def persistent_limit(cluster: Cluster, policy: Policy) -> int:
    """Returns how long a symbolic reduction axis may be for a cluster's kernel to hold it in one tile; 0 for never."""
    if cluster.kinds != {"reduction"}:
        return 0
    if cluster.direction == "column":
        return policy.persistent_elements_outer
    most = policy.persistent_bytes // (ACCUMULATOR_BYTES * live_tiles(cluster))
    return min(policy.persistent_elements, previous_power_of_two(most))


def is_persistent(cluster: Cluster, live: int, policy: Policy, again: Callable[[], bool]) -> bool:
    """Returns whether the reduction axis of a cluster fits in one tile with ``live`` values alive at once, by its hint.

    Args:
        cluster: whose axes and accesses count.
        live: values alive at once.
        policy: the limits.
        again: tells whether a loop over the reduction axis would load more than a tile does: asked about longer
        columns.
    """
    width = next_power_of_two(hinted(cluster.reduction))
    if cluster.direction == "column":
        if width <= policy.persistent_elements_outer:
            return True
        fits = (
            width <= policy.persistent_elements_again
            and width * ACCUMULATOR_BYTES * live <= policy.persistent_column_bytes
        )
        return fits and not is_symbolic(cluster.reduction) and again()
    return width <= policy.persistent_elements and width * ACCUMULATOR_BYTES * live <= policy.persistent_bytes


def is_persistent_alone(cluster: Cluster, dependences: Dependences, policy: Policy) -> bool:
    """Returns whether the reduction axis of a cluster fits in one tile with what the cluster itself has alive."""

    def again() -> bool:
        return loads_again(cluster.members, cluster.full, dependences)

    return is_persistent(cluster, live_tiles(cluster), policy, again)


def holds_columns(cluster: Cluster, live: int, policy: Policy) -> bool:
    """Returns whether a program that takes rows in turn holds one, with so many live values, accumulators included."""
    if is_symbolic(cluster.reduction):
        return False
    width = next_power_of_two(cluster.reduction)
    return width <= policy.persistent_elements and width * ACCUMULATOR_BYTES * live <= policy.chunk_bytes
