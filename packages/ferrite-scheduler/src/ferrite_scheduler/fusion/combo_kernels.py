"""Horizontal fusion (combo kernels): independent definitions of one kernel get programs of their own.

An optimiser's step over a list of tensors is one kernel, so that it is launched once. Were a program to take one tensor
after the other, it would have a param for each of them and hold what all need. So the grid is a range of programs for
each tensor: a *part* of the kernel. What that saves is launches (``kernels.py --cases adam`` has a step of Adam).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from ferrite_ir.language.graph import Computed, TensorType, Update, names_read
from ferrite_ir.language.sizes import hint, product
from ferrite_scheduler.analysis.clusters import Cluster
from ferrite_scheduler.analysis.dependences import Dependences
from ferrite_scheduler.analysis.nodes import count_elements
from ferrite_scheduler.kernels.shared_launches import combined
from ferrite_scheduler.model.forms import (
    Combo,
    ComboPart,
    MixedCombo,
    Pointwise,
)
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.schedule import Kernel


def costs_no_memory(a: Cluster, b: Cluster, dependences: Dependences) -> bool:
    """Returns whether no value lives longer if two clusters are one kernel, whenever that runs.

    Both update in place all that they write, or both take all they read from the caller and leave all they write to it.
    """
    return all(map(_is_in_place, (a, b))) or all(_is_detached(cluster, dependences) for cluster in (a, b))


def _is_in_place(cluster: Cluster) -> bool:
    return not cluster.kinds and len(cluster.updated) == cluster.stores


def _is_detached(cluster: Cluster, dependences: Dependences) -> bool:
    if cluster.kinds or cluster.updated:
        return False
    return all(name in cluster.made or name not in dependences.definer for name in cluster.uses) and all(
        name in dependences.kept or cluster.uses.get(name, 0) == len(dependences.readers.get(name, ()))
        for name in cluster.made
    )


def separate_parts(kernel: Kernel, dependences: Dependences, policy: Policy) -> Kernel:
    """Returns a kernel whose definitions are independent groups as a combo kernel; the same where they are not.

    Pointwise ones are parts over one iteration space. Those that reduce or scan are kernels that share a launch: a
    program that did one after the other would leave the others' multiprocessors idle.
    """
    is_pointwise = isinstance(kernel.form, Pointwise)
    wanted = policy.combo if is_pointwise else policy.mixed_combos and kernel.form.separates
    if not wanted or len(kernel.body) < 2:
        return kernel
    groups = list(independent_groups(kernel.body, _small_inputs(kernel, dependences, policy), dependences))
    if len(groups) < 2:
        return kernel
    body = tuple(definition for group in groups for definition in group)
    if is_pointwise:
        return replace(kernel, body=body, form=Combo(tuple(map(len, groups))))
    parts = tuple(ComboPart(kernel.name, kernel.form, kernel.axes, len(group)) for group in groups)
    whole = replace(kernel, body=body, form=MixedCombo(parts), axes=())
    return combined([whole], policy)


def independent_groups(
    body: Sequence[Computed], ignored: AbstractSet[str], dependences: Dependences
) -> Iterator[list[Computed]]:
    """Yields the definitions that share a storage with each other, in order, groups by their first one.

    They may share those ``ignored``, and are independent yet.
    """
    leader = list(range(len(body)))

    def find(number: int) -> int:
        while leader[number] != number:
            leader[number] = number = leader[leader[number]]
        return number

    first: dict[str, int] = {}
    for number, definition in enumerate(body):
        names = (*names_read(definition), *(result.name for result in definition.results))
        for storage in {dependences.storage[name] for name in names} - ignored:
            one, other = sorted((find(first.setdefault(storage, number)), find(number)))
            leader[other] = one
    groups: dict[int, list[Computed]] = {}
    for number, definition in enumerate(body):
        groups.setdefault(find(number), []).append(definition)
    yield from groups.values()


def is_small(tensor: TensorType, points: int, policy: Policy) -> bool:
    """Returns whether parts over so many points may share what they read of a tensor, as it has few elements."""
    return count_elements(tensor) <= max(1, points // policy.combo_shared_share)


def _small_inputs(kernel: Kernel, dependences: Dependences, policy: Policy) -> set[str]:
    """Returns the storages that a kernel only reads, and that have few elements."""
    points = hint(product(axis.size for axis in kernel.axes))
    small = {
        dependences.storage[param.name]
        for param in kernel.params
        if param.access == "read" and is_small(param.type, points, policy)
    }
    written = {dependences.storage[param.name] for param in kernel.params if param.access != "read"}
    made = {dependences.storage[result.name] for definition in kernel.body for result in definition.results}
    targets = {dependences.storage[d.target] for d in kernel.body if isinstance(d, Update)}
    return small - written - made - targets
