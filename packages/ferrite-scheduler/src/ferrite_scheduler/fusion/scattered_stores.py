"""What a kernel loses by what it is fused with, where that lies otherwise in memory.

The axes of a contraction end with what its factors walk along, so that blocks are loaded in vectors. A result that lies
otherwise is stored with gaps between a tile's neighbours, as the gradient of filters [f, c, h, w] is that has channels
c last among its columns: h * w elements apart. Each of the 32-byte sectors of memory is then written in many parts, by
different programs. A kernel that lays the result out anew reads it with gaps instead, which caches serve.

    columns of a tile    (h, w, c):  . . . . . . . .|        stored at  c * h * w:  .   .   .   .   .   .   .   .

A reduction's threads lie along what is contiguous for it; what is fused with it may be contiguous the other way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from ferrite_ir.language.graph import Contract, Loop
from ferrite_ir.language.index import Dim
from ferrite_scheduler.analysis.generic_sizes import hinted
from ferrite_scheduler.analysis.nodes import Access, Node, is_opaque
from ferrite_scheduler.analysis.traffic import unit_step
from ferrite_scheduler.model.target import SECTOR_BYTES
from ferrite_scheduler.model.tiled_contractions import is_tiled, roles_of

from .proposal import Proposal


def uncoalesced_bytes(proposal: Proposal, is_persistent: Callable[[], bool]) -> int:
    """Returns the extra bytes moved because a guest's accesses run across the direction of a reduction kernel.

    None for columns that a tile holds whole (which ``is_persistent`` tells) where a column is contiguous for the guest,
    a sector of memory or more at once: the tile is read along the columns, and transposed by way of shared memory.
    """
    owner, guest, placement = proposal.owner, proposal.guest, proposal.placement
    if not owner.kinds or guest.kinds or placement is None or not placement.full:
        return 0
    accesses = [touch for name, touched in guest.touched.items() if name not in owner.made for touch in touched.items()]
    accesses += [(home, guest.made_bytes[name]) for name, home in guest.made.items() if home is not None]
    steps = [(unit_step(placement.moved(access), owner.reduction), moved) for access, moved in accesses]
    wrong = 0
    if owner.direction == "row":
        wrong = sum(moved for step, moved in steps if step is not None and step >= owner.reduction)
    elif owner.direction == "column":
        along = [moved for step, moved in steps if step is not None and step < owner.reduction]
        least = SECTOR_BYTES * max(1, hinted(owner.points))
        few = [moved for moved in along if hinted(owner.reduction) * moved < least]
        wrong = sum(few if len(few) < len(along) and is_persistent() else along)
    return wrong * (proposal.policy.uncoalesced_factor - 1)


def scattered_seconds(proposal: Proposal) -> float:
    """Returns about what is lost in a kernel of tiles by storing what a guest makes, beside storing the product."""
    owner, nodes = proposal.owner, proposal.dependences.nodes
    if "contract" not in owner.kinds or proposal.guest.kinds or proposal.placement is None or proposal.placement.full:
        return 0.0
    products = [nodes[number] for number in owner.members if _is_tiled(nodes[number], proposal)]
    inside = owner.members.keys() | proposal.guest.members.keys()
    sectors = 0.0
    for product in products:
        innermost = _innermost(product)
        own = _gap(product, product.homes[0], innermost)
        for name, home in proposal.guest.made.items():
            if home is None or not _is_stored(proposal, name, inside):
                continue
            gap = _gap(product, proposal.placement.moved(home), innermost)
            width = proposal.guest.made_bytes[name] / max(1, hinted(proposal.guest.points))
            share = (min(SECTOR_BYTES, gap * width) - min(SECTOR_BYTES, own * width)) / SECTOR_BYTES
            sectors += max(0.0, share) * hinted(proposal.guest.points)
    return sectors * proposal.policy.sector_seconds


def relayout_seconds(proposal: Proposal) -> float:
    """Returns about what a kernel takes that reads a product, rounded, and stores as much."""
    moved = 2 * sum(proposal.guest.made_bytes.values())
    return proposal.target.launch_seconds + moved / proposal.target.bandwidth


def _is_tiled(node: Node, proposal: Proposal) -> bool:
    return isinstance(node.definition, Contract) and is_tiled(node.definition, proposal.policy)


def _is_stored(proposal: Proposal, name: str, inside: Collection[int]) -> bool:
    """Returns whether a value surely goes to memory: what else reads it is no loop, which may join both clusters."""
    dependences = proposal.dependences
    outside = [number for number in dependences.readers.get(name, ()) if number not in inside]
    is_last = name in dependences.kept
    return is_last or not all(isinstance(dependences.nodes[number].definition, Loop) for number in outside)


def _innermost(product: Node) -> tuple[Dim, ...]:
    """Returns the last dims of the axes of rows and columns: those that most bytes of factors walk along."""
    assert isinstance(product.definition, Contract), "only contractions have roles"
    roles = roles_of(product.definition)

    def walked(dim: Dim) -> int:
        return sum(touch.bytes for touch in product.loads if _coefficient(touch.known, product.steps[dim]) == 1)

    axes = ([dim for dim in dims if dim in product.steps] for dims in (roles.rows, roles.columns))
    return tuple(max(reversed(dims), key=walked) for dims in axes if dims)


def _gap(product: Node, access: Access, dims: Iterable[Dim]) -> int:
    """Returns how many elements neighbours of a tile lie apart in memory, along the axis where these are fewest."""
    if is_opaque(access):
        return 1
    found = (abs(_coefficient(access[1], product.steps[dim])) for dim in dims)
    return min((gap for gap in found if gap), default=1)


def _coefficient(digits: Iterable[tuple[int, int, int]], step: int) -> int:
    """Returns by how many elements an access moves along the dim that lies at a step; 0 where it does not."""
    for start, extent, coefficient in digits:
        if start <= step < start * extent and step % start == 0:
            return hinted(coefficient * (step // start))
    return 0
