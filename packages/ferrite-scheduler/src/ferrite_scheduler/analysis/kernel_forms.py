"""Kernel forms: whether a kernel holds its reduction axis in one persistent tile, or loops over blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ferrite_ir.language.graph import Contract, Scan
from ferrite_ir.language.powers_of_two import next_power_of_two, previous_power_of_two
from ferrite_scheduler.model import forms
from ferrite_scheduler.model.annotations import LookBackScan
from ferrite_scheduler.model.forms import Form
from ferrite_scheduler.model.target import Policy
from ferrite_scheduler.model.tiled_contractions import is_tiled

from .clusters import Cluster
from .dependences import Dependences
from .generic_sizes import hinted, is_symbolic
from .traffic import live_tiles, loads_again

ACCUMULATOR_BYTES = 4
"""Bytes of one value in a tile: narrow floats are computed in f32."""
LIGHT_SCANS = frozenset(("sum", "prod"))
"""Scans of one value, with a combine of one instruction."""
WORD_BITS = 32


def form_of(cluster: Cluster, dependences: Dependences, policy: Policy) -> Form:
    """Returns the form of a cluster's kernel, before refinements."""
    if not cluster.kinds:
        return forms.Pointwise()
    definitions = [dependences.nodes[number].definition for number in cluster.members]
    if "sort" in cluster.kinds:
        return forms.Sort()
    shared = next((d for d in definitions if isinstance(d, LookBackScan)), None)
    if shared is not None:
        return forms.LookBackScan(shared.points)
    if "scan" in cluster.kinds:
        return forms.Scan(longest_line((d for d in definitions if isinstance(d, Scan)), policy))
    if "attend" in cluster.kinds:
        return forms.Attention()
    if "contract" in cluster.kinds:
        has_tiles = any(isinstance(d, Contract) and is_tiled(d, policy) for d in definitions)
        return forms.TiledContraction() if has_tiles else forms.Contraction()
    return _reduction_form(cluster, dependences, policy)


def _reduction_form(cluster: Cluster, dependences: Dependences, policy: Policy) -> Form:
    if cluster.chunks:
        return forms.RowColumnReduction(cluster.chunks)
    if cluster.inner:
        return forms.PersistentReduction(cluster.inner)
    if is_symbolic(cluster.reduction):
        return forms.LoopedReduction(persistent_limit(cluster, policy))
    is_persistent = is_persistent_alone(cluster, dependences, policy)
    return forms.PersistentReduction() if is_persistent else forms.LoopedReduction()


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


def longest_line(scans: Iterable[Scan], policy: Policy) -> int:
    """Returns the longest line that one tile holds of a kernel that scans: of light scans of words, the longest."""
    is_light = all(
        scan.combine in LIGHT_SCANS and result.type.dtype.compute.bits <= WORD_BITS
        for scan in scans
        for result in scan.results
    )
    return policy.scan_elements if is_light else min(policy.scan_elements, policy.heavy_scan_elements)
