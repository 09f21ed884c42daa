"""Reverse traversal for L2 reuse: kernels that find the end of what they read in the cache begin there.

A kernel that makes or reads a tensor larger than the cache leaves the end of it there, since its programs begin in the
order of their numbers. One that reads the tensor from its beginning then finds nothing of it, and what it brings in
takes the place of what was there. Backwards it finds as much as the cache holds.

Tensors that fit in the cache are there whichever way they are read. What has to be read twice is read in such an order
that its end is left there, too (`Plan.takes_turns`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ferrite_ir.language.graph import Graph
from ferrite_scheduler.analysis.dependences import Dependences
from ferrite_scheduler.memory.host_steps import Work
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.schedule import Kernel
from ferrite_scheduler.model.target import Target

from .last_uses import storages_of


def reverse_traversal(
    work: Sequence[Work], graph: Graph, dependences: Dependences, target: Target, policy: Policy
) -> list[Work]:
    """Returns the work, in order, with the kernels marked that begin at the end of what they read."""
    if not policy.reverse_traversal:
        return list(work)
    moved = 0  # bytes, by all before
    touched: dict[str, tuple[int, bool]] = {}  # by storage: what had been moved after it, and whether backwards
    turned: list[Work] = []
    for item in work:
        storages = _touched(item, graph, dependences)
        is_backwards = isinstance(item, Kernel) and _finds_more_backwards(item, storages, touched, moved, target)
        turned.append(replace(item, backwards=True) if isinstance(item, Kernel) and is_backwards else item)
        moved += sum(storages.values())
        touched.update(dict.fromkeys(storages, (moved, is_backwards)))
    return turned


def _touched(item: Work, graph: Graph, dependences: Dependences) -> dict[str, int]:
    """Returns the storages that a kernel or a call touches, with the bytes of each that it does, at most."""
    whole = storages_of(item, graph, dependences)
    if not isinstance(item, Kernel):
        return whole
    most = {dependences.storage[param.name]: item.points * param.type.dtype.bytes for param in item.params}
    return {storage: min(size, most[storage]) for storage, size in whole.items()}


def _finds_more_backwards(
    kernel: Kernel, storages: Mapping[str, int], touched: Mapping[str, tuple[int, bool]], moved: int, target: Target
) -> bool:
    """Returns whether most of what is still in the cache of the large storages that a kernel touches is at their end.

    What it only writes nobody has touched before.
    """
    if not kernel.form.turns:
        return False
    balance = 0
    for storage in (name for name, size in storages.items() if name in touched and size > target.l2_bytes):
        since, was_backwards = touched[storage]
        left = max(0, target.l2_bytes - (moved - since))
        balance += -left if was_backwards else left
    return balance > 0
