"""What the dims of a norm's definitions are over the axes of one kernel, found from how they read each other.

Moments of groups combine those of parts: where they read these, says which image, group, channel and part the dims of
the parts are.

    p: reduce welford [s, n, g, c | r] x[n, g*10 + c, (s*128 + r) // 64, r % 64]
    m: reduce welford [n, g | c, s] p[s, n, g, c]                y0: n   x0: g   x1: c   r0: s*128 + r

What is computed of groups and of elements is placed by the flat positions of its clusters, as digits of these
(`mixed_radix`): that of groups follows from the dims of the moments, that of elements from where they read the images.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ferrite_ir.language.graph import Graph, Loop, Reduction, loads_of
from ferrite_ir.language.index import Dim, FloorDiv, Index, Mod, constant, floordiv, linearize, mod
from ferrite_ir.language.index_substitution import substitute
from ferrite_ir.language.scalar import Scalar, substitute_dims
from ferrite_ir.language.sizes import is_static
from ferrite_scheduler.analysis.clusters import Cluster
from ferrite_scheduler.analysis.dependences import Dependences
from ferrite_scheduler.analysis.mixed_radix import Digits
from ferrite_scheduler.analysis.nodes import Node
from ferrite_scheduler.model.axes import Axis
from ferrite_scheduler.model.intermediates import fresh_dim
from ferrite_scheduler.model.norm_spaces import NormSpace, Positions

from .iteration_space import own_digits


def space_of_groups(parts: Cluster, groups: Cluster, dependences: Dependences, graph: Graph) -> NormSpace | None:
    """Returns the space of what reduces the channels of images in parts, and of what is made of them for groups.

    None where the dims of the parts do not follow from those of the groups, or groups have no neighbouring channels.
    """
    (part,) = (dependences.nodes[number] for number in parts.members)
    numbers = sorted(groups.members)
    whole = next(n for n in map(dependences.nodes.__getitem__, numbers) if isinstance(n.definition, Reduction))
    reduction, moments = (reduction_at(node.number, dependences) for node in (part, whole))
    state = moments.bodies[0]
    split = _split((*moments.dims, *moments.reduction_dims), state.indices)
    of_parts = dict(zip(reduction.dims, _placed(state.indices, split), strict=True))
    of_parts |= {dim: dim.index if dim.size != 1 else constant(0) for dim in reduction.reduction_dims}
    images = _images_of(reduction, of_parts, [dim for dim in reduction.reduction_dims if dim.size != 1])
    if images is None:
        return None
    found = _axes(images, moments, split, part.reduction_dims, graph)
    if found is None:
        return None
    axes, new = found
    positions = {part.number: {dim: substitute(index, new) for dim, index in of_parts.items()}}
    positions[whole.number] = {dim: substitute(index, new) for dim, index in split.items()}
    others = tuple(number for number in numbers if number != whole.number)
    flat = _at(groups.members[whole.number].position, _own_position(whole, positions[whole.number]))
    for number in others:
        placed = _dims_at(flat, number, groups, dependences)
        if placed is None:
            return None
        positions[number] = placed
    return NormSpace(axes, substitute_dims(images, new, {}), part.number, whole.number, others, (), positions)


def with_elements(space: NormSpace, points: Cluster, dependences: Dependences) -> NormSpace | None:
    """Returns the space with what is computed of each element.

    None where that reads other elements than are reduced, or moments of another group: a program has what its own
    elements need.
    """
    numbers = tuple(sorted(points.members))
    flat = next(filter(None, (_position_of(space, points, dependences.nodes[number]) for number in numbers)), None)
    if flat is None:
        return None
    positions = dict(space.positions)
    for number in numbers:
        placed = _dims_at(flat, number, points, dependences)
        if placed is None:
            return None
        positions[number] = placed
    whole = replace(space, elements=numbers, positions=positions)
    return whole if _reads_at_home(whole, dependences) else None


def homes_of(space: NormSpace, dependences: Dependences) -> dict[str, tuple[Index, ...]]:
    """Returns where the kernel of a norm has the elements of each value that it makes."""
    homes: dict[str, tuple[Index, ...]] = {}
    definitions: dict[int, Loop | Reduction] = {space.moments: reduction_at(space.moments, dependences)}
    definitions |= {number: loop_at(number, dependences) for number in (*space.channels, *space.elements)}
    for number, definition in definitions.items():
        home = tuple(space.positions[number][dim] for dim in definition.dims)
        homes.update((result.name, home) for result in definition.results)
    return homes


def reduction_at(number: int, dependences: Dependences) -> Reduction:
    """Returns one of the two reductions of a norm."""
    found = dependences.nodes[number].definition
    assert isinstance(found, Reduction), "parts and moments are reduced"
    return found


def loop_at(number: int, dependences: Dependences) -> Loop:
    """Returns another definition of a norm."""
    found = dependences.nodes[number].definition
    assert isinstance(found, Loop), "norms have loops besides their reductions"
    return found


def _reads_at_home(space: NormSpace, dependences: Dependences) -> bool:
    """Returns whether values are read where they are made, and images where they are reduced."""
    homes = {space.images.source: space.images.indices, **homes_of(space, dependences)}
    for number in (*space.channels, *space.elements):
        for load in loads_of(dependences.nodes[number].definition):
            home = homes.get(load.source)
            if home is not None and _placed(load.indices, space.positions[number]) != home:
                return False
    return True


def _images_of(reduction: Reduction, of_parts: Positions, inside: Sequence[Dim]) -> Scalar | None:
    """Returns what is loaded of each position that a part has, over the dims of groups; None for several such loads."""
    body = substitute_dims(reduction.bodies[0], of_parts, {})
    found = [load for load in body.loads if any(dim in index.dims for dim in inside for index in load.indices)]
    return found[0] if len(found) == 1 else None


def _axes(
    images: Scalar, moments: Reduction, split: Positions, inside: Sequence[Dim], graph: Graph
) -> tuple[tuple[Axis, ...], Positions] | None:
    """Returns the axes of a norm, and what the dims of groups and those ``inside`` of parts are over theirs.

    Channels are the reduced dim whose points lie side by side in memory, and so do groups of them.
    """
    steps = dict(linearize(images.indices, graph.values[images.source].type.strides).terms)
    grid = [dim for old in moments.dims for dim in _counted(split[old]) or ()]
    reduced = [dim for old in moments.reduction_dims for dim in _counted(split[old]) or ()]
    member = next((dim for dim in reduced if steps.get(dim) == 1), None)
    group = next((dim for dim in grid if member is not None and steps.get(dim) == member.size), None)
    if member is None or group is None:
        return None
    counted = sorted([*(dim for dim in reduced if dim is not member), *inside], key=lambda dim: -int(steps.get(dim, 0)))
    images_dims = [dim for dim in grid if dim is not group]
    y = tuple(Dim(f"y{number}", dim.size) for number, dim in enumerate(images_dims))
    x0, x1 = Dim("x0", group.size), Dim("x1", member.size)
    r0 = Dim("r0", math.prod(int(dim.size) for dim in counted))
    new: Positions = {old: dim.index for old, dim in zip((*images_dims, group, member), (*y, x0, x1), strict=True)}
    axes = (*((Axis("y", y),) if y else ()), Axis("x", (x0, x1)), Axis("r", (r0,)))
    return axes, new | _cut(r0.index, counted)


def _own_position(node: Node, positions: Positions) -> Index:
    """Returns the flat position of a definition whose dims are these."""
    return sum((positions[dim] * step for dim, step in node.steps.items()), constant(0))


def _position_of(space: NormSpace, points: Cluster, node: Node) -> Index | None:
    """Returns the flat position of a cluster, by where one of its definitions reads the images; None if it does not."""
    for load in loads_of(node.definition):
        if load.source != space.images.source:
            continue
        found = _solved(zip(load.indices, space.images.indices, strict=True))
        if found is not None and found.keys() >= node.steps.keys():
            return _at(points.members[node.number].position, _own_position(node, found))
    return None


def _dims_at(flat: Index, number: int, cluster: Cluster, dependences: Dependences) -> Positions | None:
    """Returns what the dims of a loop are at a flat position of its cluster; None where cuts do not align."""
    found: Positions = dict.fromkeys(loop_at(number, dependences).dims, constant(0))
    for dim, digits in own_digits(dependences.nodes[number], cluster.members[number], cluster.reduction).items():
        if digits is None or not isinstance(dim, Dim):
            return None
        found[dim] = _at(digits, flat)
    return found


def _at(digits: Digits | None, flat: Index) -> Index:
    """Returns the sum of some digits of a position; None for the position itself."""
    if digits is None:
        return flat
    return sum((mod(floordiv(flat, step), extent) * factor for step, extent, factor in digits), constant(0))


def _placed(indices: Sequence[Index], positions: Positions) -> tuple[Index, ...]:
    return tuple(substitute(index, positions) for index in indices)


def _split(dims: Sequence[Dim], indices: Sequence[Index]) -> Positions:
    """Returns dims over dims of which indices take no quotients and remainders, and none of one point."""
    positions: Positions = {dim: dim.index if dim.size != 1 else constant(0) for dim in dims}
    taken = list(dims)
    while True:
        atoms = (atom for index in _placed(indices, positions) for atom, _ in index.terms)
        divided = next((found for atom in atoms if (found := _divided(atom)) is not None), None)
        if divided is None or int(divided[0].size) % divided[1]:
            return positions
        dim, divisor = divided
        outer = fresh_dim("s", int(dim.size) // divisor, taken)
        inner = fresh_dim("s", divisor, (*taken, outer))
        taken += [outer, inner]
        change = {dim: outer.index * divisor + inner.index}
        positions = {old: substitute(index, change) for old, index in positions.items()}


def _counted(index: Index) -> list[Dim] | None:
    """Returns the dims of an index that counts over them, the outermost first; None for another index."""
    terms = sorted(index.terms, key=lambda term: -int(term[1]))
    dims = [atom for atom, _ in terms if isinstance(atom, Dim)]
    steps = [math.prod(int(dim.size) for dim in dims[number + 1 :]) for number in range(len(dims))]
    return dims if index.const == 0 and [step for _, step in terms] == steps else None


def _solved(pairs: Iterable[tuple[Index, Index]]) -> Positions | None:
    """Returns what dims are, if indices of them are those beside them; None where that does not say it.

    Of an index that neither counts over dims nor is a quotient or a remainder of one nothing is understood.
    """
    found: Positions = {}
    quotients: dict[tuple[Dim, int], Index] = {}
    remainders: dict[tuple[Dim, int], Index] = {}
    for index, wanted in pairs:
        dims = _counted(index)
        if dims is not None:
            found |= _cut(wanted, dims)
            continue
        atom = index.terms[0][0] if len(index.terms) == 1 and index.terms[0][1] == 1 and index.const == 0 else None
        divided = _divided(atom)
        if divided is None:
            return None
        (quotients if isinstance(atom, FloorDiv) else remainders)[divided] = wanted
    if quotients.keys() != remainders.keys():
        return None
    whole = {divided: quotient * divided[1] + remainders[divided] for divided, quotient in quotients.items()}
    return found | {dim: index for (dim, _), index in whole.items()}


def _divided(atom: object) -> tuple[Dim, int] | None:
    """Returns the dim that a quotient or a remainder is of, and the divisor."""
    if not isinstance(atom, (FloorDiv, Mod)) or not is_static(atom.divisor) or len(atom.numerator.terms) != 1:
        return None
    (dim, step), rest = atom.numerator.terms[0], atom.numerator.const
    return (dim, int(atom.divisor)) if isinstance(dim, Dim) and step == 1 and rest == 0 else None


def _cut(position: Index, dims: Sequence[Dim]) -> Positions:
    """Returns dims, outermost first, as what they are of a position that counts over all of them."""
    found: Positions = {}
    inner = 1
    for number, dim in reversed(list(enumerate(dims))):
        outer = floordiv(position, inner)
        found[dim] = mod(outer, int(dim.size)) if number else outer
        inner *= int(dim.size)
    return found
