"""Memory traffic: the bytes that a kernel reads and writes, by which fusion judges what is profitable."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from .clusters import Cluster
from .dependences import Dependences
from .nodes import Access, count_elements


def live_tiles(cluster: Cluster) -> int:
    """Returns an estimate of the values alive at once in one persistent tile: rows loaded, and one being made."""
    return max(1, cluster.rows) + 1


def unit_step(access: Access, reduction: int) -> int | None:
    """Returns the step in the flat position along which a full-level access is contiguous, or None.

    Accesses that do not depend on the reduction position happen once per grid point, and do not matter.
    """
    if access[0] == "opaque" or not access[1] or access[1][0][0] >= reduction:
        return None
    return next((step for step, _, coefficient in access[1] if coefficient in (1, -1)), None)


def pass_traffic(numbers: Iterable[int], full: set[int], dependences: Dependences, *, once: bool) -> int:
    """Returns the bytes that a looped kernel of these nodes moves, or with ``once`` a kernel that loads all only once.

    A looped kernel walks the reduction axis once for each step in a chain of dependent reductions, and computes
    full-level values anew in each pass that needs them, so their loads count once per pass. ``full`` holds the nodes
    that run at every point.
    """
    ordered = sorted(numbers)
    inside = set(ordered)
    needs: dict[int, dict[str, int]] = {}
    depth: dict[int, int] = {}
    passes: dict[int, dict[str, int]] = {}
    total = 0
    for number in ordered:
        node = dependences.nodes[number]
        makers = [dependences.definer.get(name, -1) for name in node.reads]
        here = [maker for maker in makers if maker in inside]
        start = max((depth[maker] for maker in here), default=0)
        loads = {
            touch.name: touch.bytes for touch in node.loads if dependences.definer.get(touch.name, -1) not in inside
        }
        for maker in here:
            if maker in full and maker in needs:
                loads.update(needs[maker])
        is_reduction = bool(node.reduction)
        stored = _stored(number, inside, dependences)
        if number in full:
            if is_reduction or stored or node.stores is not None:
                passes.setdefault(start, {}).update(loads)
            if not is_reduction:
                needs[number] = loads
        else:
            total += sum(loads.values())
        total += stored + (node.stores.bytes if node.stores is not None else 0)
        depth[number] = start + 1 if is_reduction and not once else start
    return total + sum(sum(loads.values()) for loads in passes.values())


def loads_again(numbers: Collection[int], full: set[int], dependences: Dependences) -> bool:
    """Returns whether a looped kernel of these nodes loads more than one that holds its reduction axis in one tile."""
    looped, held = (pass_traffic(numbers, full, dependences, once=once) for once in (False, True))
    return looped > held


def _stored(number: int, inside: set[int], dependences: Dependences) -> int:
    """Returns the bytes of the results that are needed outside."""
    node = dependences.nodes[number]
    if node.stores is not None:
        return 0
    return sum(
        count_elements(result.type) * result.type.dtype.bytes
        for result in node.definition.results
        if result is not None
        and (
            result.name in dependences.kept
            or any(reader not in inside for reader in dependences.readers.get(result.name, ()))
        )
    )
