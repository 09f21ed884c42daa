"""Clusters: sets of definitions that will be one kernel, over one iteration space.

The space of a cluster is ``grid × reduction`` points, numbered row-major by one *flat position* ``p = g * reduction +
r``; a pointwise cluster has no reduction axis (``reduction == 0``) and ``p = g``. Each member is placed by a bijection
from its own flat position to that of the cluster (``None`` where they are equal); a member of a reduction cluster sits
at *full* level (once per grid × reduction point), at grid level (once per grid point) or, where blocks of the rows are
reduced too, at block level (once per block; see `row_blocks`).

All accesses of a cluster are kept as functions of ``p``. A load of a value made in the cluster is legal iff its
access equals the value's home.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ferrite_ir.language.graph import Attend, Computed, Contract, Reduction, Scan, Sort
from ferrite_scheduler.model.annotations import ColumnReduction, LookBackScan
from ferrite_scheduler.model.norm_spaces import NormSpace

from .dependences import Dependences, Stage
from .generic_sizes import hinted
from .mixed_radix import Digits, compose, grid_part, inverse, lifted
from .nodes import Access, Node, count_elements, is_opaque, readable_homes


@dataclass(frozen=True, slots=True)
class Member:
    """One definition in a cluster.

    Attributes:
        number: of its node.
        full: whether it runs at every grid × reduction point.
        position: bijection from the node's flat position to that of its level in the cluster; None for the identity.
        inner: reduction points for each of its points, if it sits at block level; 0 elsewhere.
    """

    number: int
    full: bool
    position: Digits | None = None
    inner: int = 0

    def share(self, reduction: int) -> int:
        """Returns how many points of a cluster with so long a reduction axis there are for each point of the member."""
        return 1 if self.full or not reduction else self.inner or reduction


@dataclass(slots=True)
class Cluster:
    """A growing kernel.

    Attributes:
        grid, reduction: the space; ``reduction`` is 0 without a reduction axis.
        members: by node number.
        touched: for each name loaded, each distinct access over the cluster's position and its bytes.
        uses: for each name read, the number of members that read it.
        made: for each name defined, where it may be read back, or None.
        made_bytes: for each name defined, the bytes of writing it (0 for an update, which always writes).
        updated: for each storage updated in place, the access of the update and its node.
        loads, stores: numbers of tensors it reads from memory and, as far as is known yet, must write.
        kinds: the reduction-level algorithms inside: "reduction", "scan", "look back", "sort", "contract"; "reverse"
            beside a scan from the end.
        device: of the results.
        ops: scalar operations.
        first, last: smallest and largest node number.
        along, across: in a reduction cluster, bytes of full-level accesses contiguous along the reduction, or along the
        grid.
        rows: in a reduction cluster, the number of distinct full-level loads from memory.
        chunks: in how many chunks its rows are cut, each for one program, for column reductions; 0 without any.
        columns: the number of column reductions.
        inner: length of the blocks of a row that are reduced by themselves; 0 without any.
        stage: which stage of which multi-versioned reductions it makes, None for none; see `Dependences.stages`.
        norm: the space of a register-resident norm; None for all others. Its members are of three levels, and only
            that says where they lie, or what they touch.
    """

    grid: int
    reduction: int
    members: dict[int, Member]
    touched: dict[str, dict[Access, int]] = field(default_factory=dict)
    uses: dict[str, int] = field(default_factory=dict)
    made: dict[str, Access | None] = field(default_factory=dict)
    made_bytes: dict[str, int] = field(default_factory=dict)
    updated: dict[str, tuple[Access, int]] = field(default_factory=dict)
    loads: int = 0
    stores: int = 0
    kinds: frozenset[str] = frozenset()
    device: str = ""
    ops: int = 0
    first: int = 0
    last: int = 0
    along: int = 0
    across: int = 0
    rows: int = 0
    chunks: int = 0
    columns: int = 0
    inner: int = 0
    stage: Stage | None = None
    norm: NormSpace | None = None

    @property
    def points(self) -> int:
        """Returns the number of grid × reduction points."""
        return self.grid * self.reduction if self.kinds else self.grid

    @property
    def full(self) -> set[int]:
        """Returns the members that run at every grid × reduction point."""
        return {number for number, member in self.members.items() if member.full}

    @property
    def direction(self) -> str:
        """Returns whether most full-level traffic runs along a ``row`` (which is reduced) or a ``column``, or ""."""
        if self.along >= 2 * self.across:
            return "row" if self.along else ""
        return "column" if self.across >= 2 * self.along else ""

    def tally(self, access: Access, count: int, loads: int) -> None:
        """Counts an access of a reduction cluster in ``along``, ``across`` and, ``loads`` times, in ``rows``."""
        if is_opaque(access):
            self.rows += loads
            return
        digits = access[1]
        if not digits or digits[0][0] >= self.reduction:
            return  # once per grid point
        step, extent, _ = digits[-1]
        if step * extent > self.reduction:
            self.rows += loads
        step = next((step for step, _, coefficient in digits if coefficient in (1, -1)), 0)
        if step >= self.reduction:
            self.across += count
        elif step:
            self.along += count


@dataclass(frozen=True, slots=True)
class Placement:
    """How a guest cluster lies in the space of an owner.

    Attributes:
        full: whether the guest's points are the owner's grid × reduction points (else its grid points, or its blocks).
        back: the guest's position as a function of the owner's position at that level; None for the identity.
        reduction: points of the owner's reduction per position of the guest: 1 at full level.
    """

    full: bool
    back: Digits | None
    reduction: int

    def moved(self, access: Access) -> Access:
        """Returns a guest's access as one of the owner."""
        return moved(access, self.back, self.reduction)


def moved(access: Access, back: Digits | None, reduction: int = 1) -> Access:
    """Returns an access over another position.

    ``back`` gives the old position as a function of the new one (None: the same).
    With ``reduction`` above 1 the new position is that of a reduction cluster and the old one that of its grid.
    """
    if back is None and reduction == 1:
        return access
    if is_opaque(access):
        return (*access, back, reduction)
    digits: Digits | None = access[1] if back is None else compose(access[1], back)
    if digits is None:
        return ("opaque", "unaligned", access, back, reduction)
    return (access[0], lifted(digits, reduction))


def cluster_of(node: Node, dependences: Dependences) -> Cluster:
    """Returns the cluster that holds one node."""
    definition = node.definition
    kinds = _kinds(definition)  # type: ignore[arg-type]
    cluster = Cluster(node.grid, node.reduction, {node.number: Member(node.number, bool(kinds))}, kinds=kinds)
    for touch in node.loads:
        cluster.touched.setdefault(touch.name, {})[touch.access] = touch.bytes
    cluster.uses = dict.fromkeys(node.reads, 1)
    for result, home in zip(definition.results, readable_homes(node), strict=True):
        assert result is not None, "only extern calls drop results"
        cluster.made[result.name] = home
        is_store = node.stores is not None
        cluster.made_bytes[result.name] = 0 if is_store else count_elements(result.type) * result.type.dtype.bytes
        cluster.device = result.type.device
    if node.stores is not None:
        cluster.updated[dependences.storage[node.stores.name]] = (node.stores.access, node.number)
    cluster.loads, cluster.stores = len(cluster.touched), len(cluster.made)
    cluster.ops = node.ops + 1
    cluster.first = cluster.last = node.number
    cluster.stage = dependences.stages.get(node.number)
    if isinstance(definition, ColumnReduction):
        cluster.chunks, cluster.columns = definition.chunks, 1
    if kinds:
        _tally_all(cluster, cluster)
    return cluster


def _tally_all(owner: Cluster, guest: Cluster, placement: Placement | None = None) -> None:
    """Counts the accesses of a guest that ``owner`` does not know yet."""
    for name, accesses in guest.touched.items():
        if name in owner.made or name in guest.made:
            continue
        mine = owner.touched.get(name, {}) if owner is not guest else {}
        for access, count in accesses.items():
            placed = access if placement is None else placement.moved(access)
            if placed not in mine:
                owner.tally(placed, count, 1)
    for name, home in guest.made.items():
        if home is not None:
            owner.tally(home if placement is None else placement.moved(home), guest.made_bytes[name], 0)
        for access, count in owner.touched.get(name, {}).items() if owner is not guest else ():
            owner.tally(access, -count, -1)
    for access, _ in guest.updated.values():
        owner.tally(access if placement is None else placement.moved(access), hinted(guest.points), 0)


def _kinds(definition: Computed) -> frozenset[str]:
    match definition:
        case Scan():
            kind = "look back" if isinstance(definition, LookBackScan) else "scan"
            return frozenset((kind, "reverse") if definition.reverse else (kind,))
        case Contract():
            return frozenset(("contract",))
        case Reduction() | Sort() | Attend():
            return frozenset((type(definition).__name__.lower(),))
    return frozenset()


def absorb(owner: Cluster, guest: Cluster, placement: Placement) -> None:
    """Adds the members of ``guest`` to ``owner`` as placed; the guest must not be used afterwards."""
    owner.members.update(placed_members(owner, guest, placement) or {})
    if owner.kinds:
        _tally_all(owner, guest, placement)
    for name, accesses in guest.touched.items():
        mine = owner.touched.setdefault(name, {})
        for access, count in accesses.items():
            mine[placement.moved(access)] = count
    for name, count in guest.uses.items():
        owner.uses[name] = owner.uses.get(name, 0) + count
    for name, home in guest.made.items():
        owner.made[name] = None if home is None else placement.moved(home)
    owner.made_bytes.update(guest.made_bytes)
    for storage, (access, number) in guest.updated.items():
        owner.updated[storage] = (placement.moved(access), number)
    owner.kinds |= guest.kinds
    owner.ops += guest.ops
    owner.chunks = max(owner.chunks, guest.chunks)
    owner.columns += guest.columns
    owner.stage = owner.stage or guest.stage
    owner.inner = max(owner.inner, guest.inner, block_length(owner, guest, placement))
    owner.first, owner.last = min(owner.first, guest.first), max(owner.last, guest.last)


def block_length(owner: Cluster, guest: Cluster, placement: Placement) -> int:
    """Returns the length of the blocks of an owner's rows that a guest reduces or has a point for each of, or 0."""
    if not owner.kinds:
        return 0
    block = guest.reduction if guest.kinds else placement.reduction
    return block if block not in (1, owner.reduction) else 0


def placed_members(owner: Cluster, guest: Cluster, placement: Placement) -> dict[int, Member] | None:
    """Returns the members of ``guest`` as they would lie in ``owner``, or None where their cuts do not align."""
    full_owner = placement.full and bool(owner.kinds)
    inner = block_length(owner, guest, placement)
    if placement.back is None:
        if guest.kinds or not full_owner:
            if not inner:
                return guest.members
            return {number: m if m.full else replace(m, inner=inner) for number, m in guest.members.items()}
        return {number: replace(member, full=True) for number, member in guest.members.items()}
    forward = inverse(placement.back)
    forward_grid = grid_part(forward, owner.reduction) if guest.kinds else forward
    found: dict[int, Member] = {}
    for number, member in guest.members.items():
        step = forward if member.full or not guest.kinds else forward_grid
        position = step if member.position is None else compose(step, member.position)
        if position is None:
            return None
        found[number] = Member(number, member.full or full_owner, position, inner or member.inner)
    return found


def stored_names(cluster: Cluster, dependences: Dependences) -> frozenset[str]:
    """Returns the names made in a cluster that something outside reads."""
    return frozenset(
        name
        for name in cluster.made
        if name in dependences.kept
        or any(reader not in cluster.members for reader in dependences.readers.get(name, ()))
    )
