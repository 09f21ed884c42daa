"""Why two clusters may not, or should not, be one kernel.

`LEGALITY` is correctness: an ordered table of rules, each of which returns a `Refusal` or None. `PROFITABILITY` is
policy: what would be legal but slower. The last legality rule, F09 (no path through a third kernel), is asked by the
merge itself, see `topological_order`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from ferrite_ir.language.graph import Contract, Loop, Reduction, Update
from ferrite_ir.language.sizes import text
from ferrite_scheduler.analysis.clusters import Cluster, block_length
from ferrite_scheduler.analysis.form_choice import ACCUMULATOR_BYTES, holds_columns, is_persistent, is_persistent_alone
from ferrite_scheduler.analysis.generic_sizes import hinted, is_symbolic, size_of
from ferrite_scheduler.analysis.nodes import Access, is_opaque, stores_each_once
from ferrite_scheduler.analysis.traffic import live_tiles, loads_again, pass_traffic
from ferrite_scheduler.model.annotations import RowResult
from ferrite_scheduler.model.contractions import same_groups
from ferrite_scheduler.model.schedule import Numbers, with_numbers
from ferrite_scheduler.model.tiled_contractions import is_tiled

from .combo_kernels import costs_no_memory
from .proposal import Proposal
from .row_blocks import other_combine
from .scattered_stores import relayout_seconds, scattered_seconds, uncoalesced_bytes

WHOLE_REDUCTIONS = frozenset(("scan", "look back", "sort"))
"""Kinds of clusters whose reduction axis is walked as a whole, and along which order matters."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not: a reason in words, and by name the numbers it rests on; sizes that are no numbers are texts."""

    reason: str
    numbers: Numbers = ()

    def __str__(self) -> str:
        return with_numbers(self.reason, self.numbers)


Asked = TypeVar("Asked")
"""What rules are asked about: a `Proposal`, or one to make a norm."""


@dataclass(frozen=True, slots=True)
class Rule(Generic[Asked]):
    """A named test of a proposal."""

    number: str
    title: str
    check: Callable[[Asked], Refusal | None]


def refuse(reason: str, **numbers: int | str) -> Refusal:
    """Returns a refusal with named numbers."""
    return Refusal(reason, tuple(numbers.items()))


def _empty(proposal: Proposal) -> Refusal | None:
    for cluster in (proposal.first, proposal.second):
        if cluster.points == 0:
            return refuse("one of them has no points")
    return None


def _devices(proposal: Proposal) -> Refusal | None:
    a, b = proposal.first.device, proposal.second.device
    return None if a == b else refuse("results lie on different devices", first=a or "default", second=b or "default")


def _spaces(proposal: Proposal) -> Refusal | None:
    if proposal.placement is not None:
        return None
    a, b = proposal.first, proposal.second
    if a.kinds and b.kinds:
        return refuse("their reductions run over different domains", first=_space(a), second=_space(b))
    return refuse("their iteration spaces have different numbers of points", first=_space(a), second=_space(b))


def _space(cluster: Cluster) -> str:
    grid = text(size_of(cluster.grid))
    return f"{grid}|{text(size_of(cluster.reduction))}" if cluster.kinds else grid


def _points(proposal: Proposal) -> Refusal | None:
    weighing = proposal.weighing
    if weighing is None or weighing.clash is None:
        return None
    return refuse(f"{weighing.clash} is read at other points than those where it is made, so it must go through memory")


def _company(proposal: Proposal) -> Refusal | None:
    kinds = proposal.kinds
    if not kinds & WHOLE_REDUCTIONS:
        return None
    if kinds <= {"scan", "reverse"} and proposal.first.kinds == proposal.second.kinds:
        return None
    if proposal.first.kinds and proposal.second.kinds:
        return refuse("a scan or sort shares a kernel only with pointwise definitions")
    if proposal.placement is not None and not proposal.placement.full:
        return refuse("a scan or sort shares a kernel only with pointwise definitions over its whole domain")
    return None


def _updates(proposal: Proposal) -> Refusal | None:
    owner, guest, placement = proposal.owner, proposal.guest, proposal.placement
    if not (owner.updated or guest.updated) or placement is None:
        return None
    both = owner.updated.keys() & guest.updated.keys()
    if both:
        return refuse(f"both update the storage of {min(both)} in place")
    return _clashing_update(proposal, owner, guest, placement.moved) or _clashing_update(
        proposal, guest, owner, placement.moved
    )


def _clashing_update(
    proposal: Proposal, updater: Cluster, reader: Cluster, moved: Callable[[Access], Access]
) -> Refusal | None:
    """Returns why in-place updates of one cluster do not agree with what the other reads or makes."""
    nodes = proposal.dependences.nodes
    for storage, name in _reads_updated(proposal, updater, reader):
        access, number = updater.updated[storage]
        update = nodes[number].definition
        assert isinstance(update, Update), "only updates are recorded as updated"
        if update.target in reader.made:
            return refuse(f"{update.result.name} updates {name} in place, which must be complete in memory before")
        reads = reader.touched.get(name, {})
        if updater is proposal.guest:
            access = moved(access)
        else:
            reads = {moved(read): count for read, count in reads.items()}
        if any(read != access for read in reads):
            return refuse(f"{name} is read at other points than those where {update.result.name} overwrites it")
        if name == update.result.name or not reads:
            continue
        if name != update.target or is_opaque(access):
            return refuse(f"{name} is read at other points than those where {update.result.name} overwrites it")
        if not stores_each_once(nodes[number]):
            return refuse(f"{update.result.name} may store an element of {name} twice while it is read")
    return None


def _reads_updated(proposal: Proposal, updater: Cluster, reader: Cluster) -> Iterator[tuple[str, str]]:
    """Yields ``(storage, name)`` for what one cluster updates in place and the other reads or makes."""
    storage, versions = proposal.dependences.storage, proposal.dependences.versions
    if len(updater.updated) <= len(reader.touched):
        for root in updater.updated:
            yield from ((root, name) for name in versions[root] if name in reader.touched or name in reader.made)
        return
    for name in dict.fromkeys((*reader.touched, *reader.made)):
        if storage[name] in updater.updated:
            yield storage[name], name


def _directions(proposal: Proposal) -> Refusal | None:
    a, b = proposal.owner, proposal.guest
    if not a.kinds or not b.kinds or proposal.placement is None:
        return None
    one, other = a.direction, b.direction
    if one and other and one != other:
        return refuse(
            "a reduction along rows and a reduction along columns do not share a kernel", first=one, second=other
        )
    return None


def _runs(proposal: Proposal) -> Refusal | None:
    owner, guest, placement = proposal.owner, proposal.guest, proposal.placement
    if not (owner.chunks or guest.chunks):
        return None
    if owner.chunks and guest.chunks and owner.chunks != guest.chunks:
        return refuse("their rows are cut into chunks of different lengths", first=owner.chunks, second=guest.chunks)
    if guest.chunks and placement is not None and placement.back is not None:
        return refuse("the rows of a column reduction would be taken in another order")
    if owner.updated or guest.updated:
        return refuse("a kernel with column reductions updates nothing in place")
    if "row" not in (owner.direction, guest.direction):
        return refuse("partial column reductions are fused into what runs along rows")
    if all(cluster.columns == len(cluster.members) for cluster in (owner, guest)):
        return None  # as long as nothing else joins them, they are kernels over columns
    if not _stays_persistent(proposal):
        return refuse("a row and its column sums would not fit in a tile", columns=hinted(owner.reduction))
    return None


def _blocks(proposal: Proposal) -> Refusal | None:
    owner, guest = proposal.owner, proposal.guest
    added = block_length(owner, guest, proposal.placement) if proposal.placement is not None else 0
    block = hinted(added or owner.inner or guest.inner)
    if not block or not owner.kinds:
        return None
    if not guest.kinds and not owner.inner and owner.points * ACCUMULATOR_BYTES > proposal.policy.block_bytes:
        return refuse("rows are cut into blocks for what has a point for each where they are small", block=block)
    if block & (block - 1):
        return refuse("blocks of a row are reduced with it if their length is a power of two", block=block)
    if owner.updated or guest.updated or owner.chunks or guest.chunks:
        return refuse("a kernel that reduces blocks of rows sums no columns and updates nothing in place", block=block)
    for cluster in (owner, guest):
        other = other_combine(cluster, proposal.dependences)
        if other:
            return refuse(f"{other} does not share a kernel with a reduction over blocks of its rows", block=block)
        if cluster.kinds and cluster.direction == "column":
            return refuse("the points of a block do not lie next to each other", block=block)
    if not _stays_persistent(proposal):
        return refuse(
            "a row whose blocks are reduced would not fit in a tile", columns=hinted(owner.reduction), block=block
        )
    return None


def _looped_updates(proposal: Proposal) -> Refusal | None:
    if not proposal.kinds or not (proposal.owner.updated or proposal.guest.updated):
        return None
    if _stays_persistent(proposal) and not is_symbolic(proposal.owner.reduction):
        return None
    for _, number in (*proposal.owner.updated.values(), *proposal.guest.updated.values()):
        update = proposal.dependences.nodes[number].definition
        assert isinstance(update, Update), "only updates are recorded as updated"
        if any(_is_full(proposal, reader) for reader in _readers_inside(proposal, update.target)):
            return refuse("a looped kernel would read again, in a later pass, what it has overwritten in place")
        readers = [reader for reader in _readers_inside(proposal, update.result.name) if _is_full(proposal, reader)]
        nodes = proposal.dependences.nodes
        if len(readers) > 1 or any(not isinstance(nodes[reader].definition, Reduction) for reader in readers):
            return refuse("a looped kernel has what an update stores in one pass only", reads=len(readers))
    return None


def _readers_inside(proposal: Proposal, name: str) -> Iterator[int]:
    """Yields the nodes in either cluster that load a value."""
    for number in proposal.dependences.readers.get(name, ()):
        inside = number in proposal.owner.members or number in proposal.guest.members
        if inside and any(touch.name == name for touch in proposal.dependences.nodes[number].loads):
            yield number


def _is_full(proposal: Proposal, number: int) -> bool:
    """Returns whether a member of either cluster would run at every grid × reduction point."""
    if number in proposal.owner.members:
        return proposal.owner.members[number].full
    assert proposal.placement is not None, "legal proposals are placed"
    return proposal.guest.members[number].full or (proposal.placement.full and bool(proposal.owner.kinds))


def _stays_persistent(proposal: Proposal) -> bool:
    """Returns whether the fused reduction axis would fit in one tile."""
    owner, guest = proposal.owner, proposal.guest
    live = live_tiles(owner)
    if guest.kinds or (proposal.placement is not None and proposal.placement.full):
        live += _fresh_rows(proposal)
    if owner.chunks or guest.chunks:
        return holds_columns(owner, live + owner.columns + guest.columns, proposal.policy)

    def again() -> bool:
        return loads_again(*_together(proposal), proposal.dependences)

    return is_persistent(owner, live, proposal.policy, again)


def _together(proposal: Proposal) -> tuple[tuple[int, ...], set[int]]:
    """Returns the members of both clusters, and those of them that would run at every point of a looped kernel."""
    owner, guest = proposal.owner, proposal.guest
    lifts = proposal.placement is not None and proposal.placement.full
    full = owner.full | (set(guest.members) if lifts and not guest.kinds else guest.full)
    return (*owner.members, *guest.members), full


def _fresh_rows(proposal: Proposal) -> int:
    """Returns how many tensors a guest reads at most points that its owner neither reads nor makes."""
    owner, guest = proposal.owner, proposal.guest
    fresh = [name for name in guest.touched if name not in owner.touched and name not in owner.made]
    return sum(max(guest.touched[name].values()) * 2 > hinted(guest.points) for name in fresh)


def _contractions(proposal: Proposal) -> Refusal | None:
    if not proposal.kinds & {"contract", "attend"}:
        return None
    if proposal.first.kinds and proposal.second.kinds and "attend" in proposal.kinds:
        return refuse("an attention shares a kernel only with pointwise definitions over its result")
    if proposal.first.kinds and proposal.second.kinds and proposal.first.kinds != proposal.second.kinds:
        return refuse("a contraction shares a kernel only with its like and with pointwise definitions")
    if proposal.guest.kinds:
        return _pairs(proposal)
    if proposal.placement is not None and not proposal.placement.full:
        return None
    return refuse("a contraction shares a kernel only with pointwise definitions over its result")


def _roundings(proposal: Proposal) -> Refusal | None:
    """Returns why what rounds a product would be in a kernel without it, to which the product would go in f32."""
    if not proposal.policy.tile_products:
        return None
    inside = proposal.owner.members.keys() | proposal.guest.members.keys()
    for number in inside:
        product = _rounded_product(proposal, number)
        if product is not None and product not in inside:
            return refuse("a product is rounded in the kernel that computes it")
    return None


def _rounded_product(proposal: Proposal, number: int) -> int | None:
    """Returns the contraction, computed tile by tile, of which a node does nothing but round the result, or None."""
    definition = proposal.dependences.nodes[number].definition
    if not isinstance(definition, Loop) or len(definition.bodies) != 1 or definition.bodies[0].op != "cast":
        return None
    (source,) = definition.bodies[0].args
    maker = proposal.dependences.definer.get(source.source) if source.op == "load" else None
    if maker is None:
        return None
    product = proposal.dependences.nodes[maker].definition
    return maker if isinstance(product, Contract) and is_tiled(product, proposal.policy) else None


def _pairs(proposal: Proposal) -> Refusal | None:
    """Returns why the tiles of two sets of contractions are not in one program, as those of a gate are."""
    clusters, nodes = (proposal.first, proposal.second), proposal.dependences.nodes
    products = [nodes[number].definition for cluster in clusters for number in cluster.members]
    tiled = [d for d in products if isinstance(d, Contract) and is_tiled(d, proposal.policy)]
    if not tiled:
        return None
    most = proposal.policy.product_tiles
    if len(tiled) > most:
        return refuse("a program has no registers for so many tiles", products=len(tiled), limit=most)
    if not same_groups(tiled):
        return refuse("products share a kernel only where their rows are in the same groups")
    if proposal.weighing is None or proposal.weighing.joined:
        return None
    return refuse("products share a kernel only where something reads both at the same points")


def _stages(proposal: Proposal) -> Refusal | None:
    owner, guest, weighing = proposal.owner, proposal.guest, proposal.weighing
    if owner.stage == guest.stage:
        return None
    other, staged = (owner, guest) if owner.stage is None else (guest, owner)
    _, is_second = staged.stage or (0, False)
    if is_second and other.stage is None and not other.kinds and weighing is not None and weighing.joined:
        return None  # what follows a reduction point by point follows it in both of its forms
    return refuse("stages of a reduction that is launched whole for some sizes share a kernel with their like alone")


LEGALITY: tuple[Rule[Proposal], ...] = (
    Rule("F01", "both are kernels with points", _empty),
    Rule("F02", "same device", _devices),
    Rule("F03", "iteration spaces match", _spaces),
    Rule("F04", "values are read where they are made", _points),
    Rule("F05", "in-place updates meet only reads at the same points", _updates),
    Rule("F06", "scans and sorts keep pointwise company", _company),
    Rule("F07", "reductions run in one direction", _directions),
    Rule("F08", "no in-place update under a repeated read", _looped_updates),
    Rule("F10", "partial column reductions are fused into kernels whose rows fit in a tile", _runs),
    Rule("F11", "blocks of rows are reduced with rows that fit in a tile", _blocks),
    Rule("F12", "contractions and attention keep company with what reads their results", _contractions),
    Rule("F13", "stages of reductions in two forms keep to themselves", _stages),
    Rule("F14", "products are rounded where they are computed", _roundings),
)


def _size(proposal: Proposal) -> Refusal | None:
    a, b, weighing, policy = proposal.first, proposal.second, proposal.weighing, proposal.policy
    assert weighing is not None, "legality comes first"
    params = a.loads + b.loads - weighing.shared - weighing.joined + a.stores + b.stores - weighing.hidden
    if params <= policy.max_kernel_params:
        return None
    limit = policy.max_combo_params if _makes_parts(proposal) else policy.max_kernel_params
    return refuse("the kernel would have too many tensors", tensors=params, limit=limit) if params > limit else None


def _makes_parts(proposal: Proposal) -> bool:
    """Returns whether two clusters would be parts of a combo kernel, whose programs take either one or other."""
    a, b, weighing, policy = proposal.first, proposal.second, proposal.weighing, proposal.policy
    if weighing is None or weighing.joined or not policy.combo:
        return False
    if proposal.saved * proposal.policy.combo_shared_share > min(_traffic(a), _traffic(b)):
        return False
    return costs_no_memory(a, b, proposal.dependences)


def _operations(proposal: Proposal) -> Refusal | None:
    ops, limit = proposal.first.ops + proposal.second.ops, proposal.policy.max_kernel_ops
    return refuse("the kernel would be too long", operations=ops, limit=limit) if ops > limit else None


def _distance(proposal: Proposal) -> Refusal | None:
    weighing = proposal.weighing
    if weighing is None or weighing.joined:
        return None
    if not proposal.policy.horizontal:
        return refuse("neither reads what the other makes, and horizontal fusion is off")
    gap = proposal.second.first - proposal.first.last
    limit = proposal.policy.horizontal_distance
    return refuse("too far apart: values would live longer", definitions=gap, limit=limit) if gap > limit else None


def _saving(proposal: Proposal) -> Refusal | None:
    """Refuses what moves more bytes fused than apart; sets the proposal's final ``saved``."""
    if proposal.kinds and not proposal.kinds & WHOLE_REDUCTIONS and not _stays_persistent(proposal):
        proposal.saved = _looped_saving(proposal)
    penalty = uncoalesced_bytes(proposal, lambda: _stays_persistent(proposal))
    proposal.saved -= penalty
    if proposal.saved > 0 and (proposal.weighing is None or proposal.weighing.joined):
        return None
    a, b, policy = proposal.first, proposal.second, proposal.policy
    traffic = min(_traffic(a), _traffic(b))
    if proposal.saved > 0 and proposal.saved * policy.horizontal_share >= traffic:
        return None
    is_free = max(_traffic(a), _traffic(b)) <= policy.small_kernel_bytes
    is_free = is_free or costs_no_memory(a, b, proposal.dependences)
    if proposal.saved >= 0 and penalty == 0 and is_free:
        return None
    return refuse("it would not save memory traffic", saved=proposal.saved, of=traffic, uncoalesced=penalty)


def _row_results(proposal: Proposal) -> Refusal | None:
    placement, guest = proposal.placement, proposal.guest
    if not proposal.owner.kinds or placement is None or not placement.full:
        return None
    nodes = proposal.dependences.nodes
    if any(isinstance(nodes[number].definition, RowResult) for number in guest.members):
        return refuse("what is computed of the result of each row is computed where rows are reduced")
    return None


def _scattered(proposal: Proposal) -> Refusal | None:
    lost = scattered_seconds(proposal)
    if not lost or lost <= (apart := relayout_seconds(proposal)):
        return None
    numbers = {"nanoseconds": round(lost * 1e9), "apart": round(apart * 1e9)}
    return refuse("tiles of a product would be stored element by element", **numbers)


def _traffic(cluster: Cluster) -> int:
    read = sum(sum(accesses.values()) for name, accesses in cluster.touched.items() if name not in cluster.made)
    return read + sum(cluster.made_bytes.values())


def _looped_saving(proposal: Proposal) -> int:
    """Returns the bytes saved by fusing into a looped kernel, whose later passes compute full-level values again."""
    owner, guest, dependences = proposal.owner, proposal.guest, proposal.dependences
    apart = 0
    for cluster in (owner, guest):
        once = not cluster.kinds or is_persistent_alone(cluster, dependences, proposal.policy)
        full = set(cluster.members) if once else cluster.full
        apart += pass_traffic(cluster.members, full, dependences, once=once)
    together = pass_traffic(*_together(proposal), dependences, once=False)
    return apart - together + min(proposal.saved, 1)


PROFITABILITY: tuple[Rule[Proposal], ...] = (
    Rule("P01", "not too many tensors", _size),
    Rule("P02", "not too many operations", _operations),
    Rule("P03", "not far apart", _distance),
    Rule("P04", "memory traffic is saved", _saving),
    Rule("P05", "results of rows stay with their rows", _row_results),
    Rule("P06", "tiles of products are stored in runs", _scattered),
)


_ALL = (*LEGALITY, *PROFITABILITY)


def judge(proposal: Proposal) -> tuple[str, Refusal] | None:
    """Returns the number and refusal of the first rule that refuses, or None."""
    return first_refusal(_ALL, proposal)


def first_refusal(rules: Iterable[Rule[Asked]], proposal: Asked) -> tuple[str, Refusal] | None:
    """Returns the number and refusal of the first of some rules that refuses a proposal, or None."""
    for rule in rules:
        refusal = rule.check(proposal)
        if refusal is not None:
            return rule.number, refusal
    return None
