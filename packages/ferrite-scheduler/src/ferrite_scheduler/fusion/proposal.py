"""A proposal to fuse two clusters: the best way to lay one into the other, and what that saves."""

from __future__ import annotations

from dataclasses import dataclass

from ferrite_scheduler.analysis.clusters import Cluster, Placement
from ferrite_scheduler.analysis.dependences import Dependences
from ferrite_scheduler.analysis.nodes import Access
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.target import Target

from .placement import levels, placements, space_owner


@dataclass(frozen=True, slots=True)
class Weighing:
    """What one placement is worth.

    Attributes:
        clash: a value made in one cluster that the other reads at another point, or None.
        saved: bytes of memory traffic that fusing saves.
        hidden: number of values that need no memory any more.
        shared: number of tensors read from memory by both.
        joined: number of values that one makes and the other reads.
    """

    clash: str | None
    saved: int
    hidden: int
    shared: int
    joined: int


@dataclass(slots=True)
class Proposal:
    """Two clusters to fuse; ``first`` begins earlier in program order.

    ``placement`` is None where the spaces cannot be matched; ``weighing`` is that of the best placement, or of the
    identity where all clash.
    """

    first: Cluster
    second: Cluster
    dependences: Dependences
    target: Target
    policy: Policy
    owner: Cluster
    guest: Cluster
    placement: Placement | None = None
    weighing: Weighing | None = None
    saved: int = 0

    @property
    def kinds(self) -> frozenset[str]:
        """Returns the reduction-level algorithms of both."""
        return self.first.kinds | self.second.kinds


def propose(a: Cluster, b: Cluster, dependences: Dependences, target: Target, policy: Policy) -> Proposal:
    """Returns the proposal for two clusters with its best placement."""
    first, second = (a, b) if a.first <= b.first else (b, a)
    owner, guest = space_owner(first, second)
    proposal = Proposal(first, second, dependences, target, policy, owner, guest)
    if not levels(owner, guest):
        return proposal
    shared = shared_names(owner, guest)
    wanted = sum(_bytes_of(name, owner, guest) for name in shared)
    best: Weighing | None = None

    def heaviest() -> list[str]:
        return sorted(shared, key=lambda name: -_bytes_of(name, owner, guest))

    for placement in placements(owner, guest, heaviest, policy):
        weighing = weigh(owner, guest, placement, shared, dependences)
        if best is None or (weighing.clash is None, weighing.saved) > (best.clash is None, best.saved):
            best = weighing
            proposal.placement, proposal.weighing, proposal.saved = placement, weighing, weighing.saved
        if weighing.clash is None and weighing.saved >= wanted:
            break
    return proposal


def shared_names(a: Cluster, b: Cluster) -> list[str]:
    """Returns the names that both touch or that one makes and the other reads."""
    small, large = (a, b) if len(a.touched) + len(a.made) <= len(b.touched) + len(b.made) else (b, a)
    touched, made = large.touched, large.made
    found = [name for name in small.touched if name in touched or name in made]
    found += [name for name in small.made if name in touched and name not in small.touched]
    return found


def _bytes_of(name: str, a: Cluster, b: Cluster) -> int:
    """Returns an estimate of the bytes saved when both access a name at the same points."""
    one, other = a.touched.get(name), b.touched.get(name)
    if one is None or other is None:
        return max((one or other or {}).values(), default=0)
    return min(max(one.values()), max(other.values()))


def weigh(
    owner: Cluster, guest: Cluster, placement: Placement, shared: list[str], dependences: Dependences
) -> Weighing:
    """Returns what a placement of ``guest`` in ``owner`` is worth; ``shared`` holds the names both know."""
    saved = hidden = common = joined = 0
    clash: str | None = None
    for name in shared:
        if name in owner.made or name in guest.made:
            joined += 1
            home, reads = _home_and_reads(owner, guest, placement, name)
            if home is None or any(access != home for access in reads):
                clash = clash or name
                continue
            saved += max(reads.values())
            uses = owner.uses.get(name, 0) + guest.uses.get(name, 0)
            if uses == len(dependences.readers[name]) and name not in dependences.kept:
                hidden += 1
                saved += (owner if name in owner.made else guest).made_bytes[name]
        else:
            common += 1
            mine = owner.touched[name]
            for access, count in guest.touched[name].items():
                moved = placement.moved(access)
                if moved in mine:
                    saved += min(count, mine[moved])
    return Weighing(clash, saved, hidden, common, joined)


def _home_and_reads(
    owner: Cluster, guest: Cluster, placement: Placement, name: str
) -> tuple[Access | None, dict[Access, int]]:
    if name in owner.made:
        return owner.made[name], {placement.moved(access): n for access, n in guest.touched[name].items()}
    home = guest.made[name]
    return (None if home is None else placement.moved(home)), owner.touched[name]
