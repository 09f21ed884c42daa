"""What a kernel reads and writes: the cost model behind fusion scores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .cluster import Cluster
from .dependences import Access, Dependences, is_opaque


@dataclass(frozen=True, slots=True)
class Flow:
    """Unit-stride traffic of a cluster, in bytes: along the fold axis, and along grid dims."""

    along: int
    across: int

    @property
    def direction(self) -> str:
        """Returns ``row``, ``column``, or "" where neither dominates."""
        if self.along >= 2 * self.across:
            return "row" if self.along else ""
        return "column" if self.across >= 2 * self.along else ""


def flow_of(cluster: Cluster, fold: int) -> Flow:
    """Returns the unit-stride traffic of a cluster that lies in a space with this fold axis."""
    along = across = 0
    for access, count in _accesses(cluster):
        for step, _, coefficient in () if is_opaque(access) else access[1]:
            if coefficient in (1, -1):
                along += count if step < fold else 0
                across += count if step >= fold else 0
    return Flow(along, across)


def _accesses(cluster: Cluster) -> Iterable[tuple[Access, int]]:
    for name, accesses in cluster.touched.items():
        if name not in cluster.made:
            yield from accesses.items()
    for name, home in cluster.made.items():
        if home is not None:
            yield home, cluster.made_bytes[name]
    for access, _ in cluster.updated.values():
        yield access, cluster.points


def live_tiles(cluster: Cluster) -> int:
    """Returns an estimate of the values alive at once at full level in one persistent tile: distinct rows loaded, and one being made."""
    rows = sum(
        1
        for name, accesses in cluster.touched.items()
        if name not in cluster.made
        for access, count in accesses.items()
        if is_opaque(access) or _is_full(access, cluster)
    )
    return max(1, rows) + 1


def _is_full(access: Access, cluster: Cluster) -> bool:
    extent = 1
    for step, width, _ in access[1]:
        extent *= width if step < cluster.fold else 1
        extent *= 1 if step >= cluster.fold or step * width <= cluster.fold else 1
    return any(step >= cluster.fold or step * width > cluster.fold for step, width, _ in access[1]) and extent > 1


def pass_traffic(numbers: Iterable[int], full: set[int], dependences: Dependences) -> int:
    """Returns the bytes that a looped kernel of these nodes moves.

    A looped kernel walks the fold axis once for each step in a chain of dependent folds, and computes full-level
    values anew in each pass that needs them, so their loads count once per pass. ``full`` holds the nodes that run at
    every point.
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
        loads = {touch.name: touch.bytes for touch in node.loads if dependences.definer.get(touch.name, -1) not in inside}
        for maker in here:
            if maker in full and maker in needs:
                loads.update(needs[maker])
        is_fold = bool(node.fold)
        stored = _stored(number, inside, dependences)
        if number in full:
            if is_fold or stored or node.stores is not None:
                passes.setdefault(start, {}).update(loads)
            if not is_fold:
                needs[number] = loads
        else:
            total += sum(loads.values())
        total += stored + (node.stores.bytes if node.stores is not None else 0)
        depth[number] = start + 1 if is_fold else start
    return total + sum(sum(loads.values()) for loads in passes.values())


def _stored(number: int, inside: set[int], dependences: Dependences) -> int:
    """Returns the bytes of the results that are needed outside."""
    node = dependences.nodes[number]
    if node.stores is not None:
        return 0
    from .dependences import count_elements

    return sum(
        count_elements(result.type) * result.type.dtype.bytes
        for result in node.definition.results
        if result is not None
        and (
            result.name in dependences.kept
            or any(reader not in inside for reader in dependences.readers.get(result.name, ()))
        )
    )


