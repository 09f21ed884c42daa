"""Clusters made kernels: dims cut, joined, ordered and put on axes, and every definition rewritten over them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ferrite_ir.graph import Computed, Contract, Fold, Graph, Loop, Scan, Sort, Update
from ferrite_ir.index import Dim, Index, constant, delinearize, floordiv, linearize, mod, substitute
from ferrite_ir.scalar import Scalar, substitute_dims

from .cluster import Cluster, Member
from .dependences import Dependences, Node
from .digits import Digits, compose, inverse, lifted
from .naming import kernel_name
from .schedule import Axis, Kernel, Param
from .space import Base, coefficients, cut, own_digits
from .target import Policy
from .tiling import Group, Stride, Tiles, join_bases, place_groups


class Misfit(Exception):
    """A cluster whose loads of its own values do not land on their homes after rewriting; it must be taken apart."""


def build_kernel(
    cluster: Cluster, dependences: Dependences, graph: Graph, stored: frozenset[str], strategy: str, policy: Policy
) -> Kernel:
    """Returns the kernel of a cluster; ``stored`` names the values made in it that something outside reads.

    Raises:
        Misfit: a load of a value made in the cluster is not at the value's home.
    """
    nodes = [dependences.nodes[number] for number in sorted(cluster.members)]
    members = [cluster.members[node.number] for node in nodes]
    mappings, tiles, dims = _lay_out(cluster, nodes, members, stored, policy)
    grid_dims, fold_dims = dims
    body: list[Computed] = []
    homes: dict[str, tuple[Index, ...]] = {}
    memos: dict[tuple[tuple[Dim, Index], ...], dict[Scalar, Scalar]] = {}
    for node, member, mapping in zip(nodes, members, mappings, strict=True):
        memo = memos.setdefault(tuple(mapping.items()), {})
        rewritten = _rewrite(node, member, mapping, grid_dims, fold_dims, memo)
        body.append(rewritten)
        home = _home_indices(node, mapping, rewritten)
        homes.update((result.name, home) for result in rewritten.results)
    _check_homes(body, homes)
    axes = _axes(tiles, grid_dims, fold_dims, bool(cluster.kinds))
    kept = tuple(name for node in nodes for name in node.result_names if name in stored or node.stores is not None)
    params = _params(body, homes, kept, graph, dependences)
    return Kernel(kernel_name(strategy, body), strategy, axes, tuple(body), homes, kept, params)


def _lay_out(
    cluster: Cluster,
    nodes: Sequence[Node],
    members: Sequence[Member],
    stored: frozenset[str],
    policy: Policy,
) -> tuple[list[dict[Dim, Index]], Tiles, tuple[tuple[Dim, ...], tuple[Dim, ...]]]:
    fold = cluster.fold
    whole_fold = bool(cluster.kinds & {"scan", "sort"})
    own = [own_digits(node, member, fold) for node, member in zip(nodes, members, strict=True)]
    traffic = list(_traffic(cluster, nodes, members, stored))
    numbers = list(_numbers(cluster, nodes, members))
    wanted: list[Digits | None] = [digits for dims in own for digits in dims.values()]
    wanted += [digits for digits, _, _ in traffic] + numbers
    bases = cut(cluster.points, fold, wanted, whole_fold)
    strides, rigid = _strides(traffic, bases)
    vectors = {stride.coefficients for stride in strides}
    for digits in numbers:
        vector, exact = coefficients(digits, bases) if digits is not None else ((), False)
        if exact:
            vectors.add(vector)
        else:
            rigid |= _touched_bases(digits, bases)
    rigid |= _rigid_bases(nodes, own, bases)
    grid, inside = join_bases(bases, max(1, fold), sorted(vectors), rigid)
    tiles = place_groups(grid, inside, strides, policy.max_tiled_axes)
    positions, dims = _name_dims(tiles, bases, len(bases), whole_fold)
    flat = linearize(tuple(positions), tuple(base.step for base in bases))
    mappings = [_mapping(node, digits, bases, positions, flat) for node, digits in zip(nodes, own, strict=True)]
    return mappings, tiles, dims


def _over_cluster(digits: Digits, member: Member, fold: int) -> Digits | None:
    """Returns digits over a node's own position as digits over the cluster's."""
    found: Digits | None = digits
    if member.place is not None:
        found = compose(digits, inverse(member.place))
    return None if found is None else lifted(found, fold if fold and not member.full else 1)


def _traffic(
    cluster: Cluster, nodes: Sequence[Node], members: Sequence[Member], stored: frozenset[str]
) -> Iterable[tuple[Digits | None, int, bool]]:
    """Yields the memory accesses of a kernel: digits of the address over the cluster's position, bytes, and whether it is a store."""
    for node, member in zip(nodes, members, strict=True):
        for touch in node.loads:
            if touch.name not in cluster.made:
                yield _over_cluster(touch.known, member, cluster.fold), touch.bytes, False
        if node.stores is not None:
            yield _over_cluster(node.stores.known, member, cluster.fold), node.stores.bytes, True
            continue
        for name, home in zip(node.result_names, node.homes, strict=True):
            if name in stored:
                yield _over_cluster(home[1], member, cluster.fold), cluster.made_bytes[name], True


def _numbers(cluster: Cluster, nodes: Sequence[Node], members: Sequence[Member]) -> Iterable[Digits | None]:
    for node, member in zip(nodes, members, strict=True):
        for digits in node.expressions:
            yield _over_cluster(digits, member, cluster.fold)


def _strides(
    traffic: Iterable[tuple[Digits | None, int, bool]], bases: tuple[Base, ...]
) -> tuple[list[Stride], frozenset[int]]:
    strides: list[Stride] = []
    rigid: frozenset[int] = frozenset()
    for digits, count, is_store in traffic:
        if digits is None:
            rigid |= frozenset(range(len(bases)))
            continue
        vector, exact = coefficients(digits, bases)
        strides.append(Stride(vector, count, is_store))
        if not exact:
            rigid |= _touched_bases(digits, bases)
    return strides, rigid


def _touched_bases(digits: Digits | None, bases: tuple[Base, ...]) -> frozenset[int]:
    if digits is None:
        return frozenset(range(len(bases)))
    return frozenset(
        position
        for position, base in enumerate(bases)
        if any(base.step < step * extent and base.step * base.extent > step for step, extent, _ in digits)
    )


def _rigid_bases(
    nodes: Sequence[Node], own: Sequence[dict[object, Digits | None]], bases: tuple[Base, ...]
) -> frozenset[int]:
    """Returns the bases of dims that occur in indices that are no digits: joining them would only add divisions."""
    found: frozenset[int] = frozenset()
    for node, digits in zip(nodes, own, strict=True):
        stiff = dict.fromkeys(node.rigid)
        for touch in (*node.loads, *((node.stores,) if node.stores is not None else ())):
            stiff.update(dict.fromkeys(touch.rigid))
        for dim in stiff:
            found |= _touched_bases(digits[dim], bases)
    return found


def _name_dims(
    tiles: Tiles, bases: tuple[Base, ...], count: int, whole_fold: bool
) -> tuple[list[Index], tuple[tuple[Dim, ...], tuple[Dim, ...]]]:
    """Returns each base as an index over the kernel's dims, and the grid and fold dims."""
    positions: list[Index] = [constant(0)] * count
    named: dict[str, list[Dim]] = {"y": [], "x": [], "r": []}
    for axis, groups in (("y", tiles.y), ("x", tiles.x), ("r", tiles.r)):
        for place, group in enumerate(groups):
            dim = Dim(f"{axis}{place}", group.extent)
            named[axis].append(dim)
            for base, index in zip(group.bases, _split(dim, group, bases), strict=True):
                positions[base] = index
    if whole_fold and not named["r"]:
        named["r"].append(Dim("r0", 1))
    return positions, ((*named["y"], *named["x"]), tuple(named["r"]))


def _split(dim: Dim, group: Group, bases: tuple[Base, ...]) -> tuple[Index, ...]:
    return delinearize(dim.index, tuple(bases[position].extent for position in group.bases))


def _mapping(
    node: Node, own: dict[object, Digits | None], bases: tuple[Base, ...], positions: list[Index], flat: Index
) -> dict[Dim, Index]:
    """Returns the index over the kernel's dims that stands for each dim of the node."""
    mapping: dict[Dim, Index] = {}
    for dim in node.definition.dims + getattr(node.definition, "fold_dims", ()):  # type: ignore[union-attr]
        digits = own.get(dim, ())
        if digits is None:
            raise Misfit(f"dim {dim.name} of {node.result_names} does not align with its kernel")
        vector, exact = coefficients(digits, bases)
        if exact:
            parts = (index * factor for index, factor in zip(positions, vector, strict=True) if factor)
        else:
            parts = (mod(floordiv(flat, step), extent) * factor for step, extent, factor in digits)
        mapping[dim] = sum(parts, constant(0))
    return mapping


def _rewrite(
    node: Node,
    member: Member,
    mapping: dict[Dim, Index],
    grid_dims: tuple[Dim, ...],
    fold_dims: tuple[Dim, ...],
    memo: dict[Scalar, Scalar],
) -> Computed:
    definition = node.definition
    dims = grid_dims + fold_dims if member.full else grid_dims
    match definition:
        case Loop():
            return Loop(definition.results, dims, _moved(definition.bodies, mapping, memo), definition.origins)
        case Fold():
            bodies = _moved(definition.bodies, mapping, memo)
            return replace(definition, dims=grid_dims, fold_dims=fold_dims, bodies=bodies)
        case Scan():
            return replace(definition, dims=dims, along=fold_dims[-1], bodies=_moved(definition.bodies, mapping, memo))
        case Sort():
            (body,) = _moved((definition.body,), mapping, memo)
            return replace(definition, dims=dims, along=fold_dims[-1], body=body)
        case Contract():
            left, right = _moved((definition.left, definition.right), mapping, memo)
            return replace(definition, dims=grid_dims, fold_dims=fold_dims, left=left, right=right)
        case Update():
            (body,) = _moved((definition.body,), mapping, memo)
            condition = definition.condition
            if condition is not None:
                (condition,) = _moved((condition,), mapping, memo)
            indices = tuple(substitute(index, mapping) for index in definition.indices)
            return replace(definition, dims=dims, indices=indices, body=body, condition=condition)
    raise TypeError(f"not a computed definition: {type(definition).__name__}")


def _moved(
    bodies: tuple[Scalar, ...], mapping: dict[Dim, Index], memo: dict[Scalar, Scalar]
) -> tuple[Scalar, ...]:
    return tuple(substitute_dims(body, mapping, memo) for body in bodies)


def _home_indices(node: Node, mapping: dict[Dim, Index], rewritten: Computed) -> tuple[Index, ...]:
    if isinstance(rewritten, Update):
        return rewritten.indices
    return tuple(mapping[dim] for dim in node.definition.dims)  # type: ignore[union-attr]


def _check_homes(body: Sequence[Computed], homes: dict[str, tuple[Index, ...]]) -> None:
    from ferrite_ir.graph import bodies_of, index_loads

    for definition in body:
        loads = [load for scalar in bodies_of(definition) for load in scalar.loads]
        if isinstance(definition, Update):
            loads += index_loads(definition.indices)
        for load in loads:
            home = homes.get(load.source)
            if home is not None and load.indices != home:
                raise Misfit(f"{load} is not at home {home}")


def _axes(tiles: Tiles, grid_dims: tuple[Dim, ...], fold_dims: tuple[Dim, ...], has_fold: bool) -> tuple[Axis, ...]:
    outer = len(tiles.y)
    axes = [Axis("y", grid_dims[:outer])] if outer else []
    axes.append(Axis("x", grid_dims[outer:]))
    if has_fold:
        axes.append(Axis("r", fold_dims))
    return tuple(axes)


def _params(
    body: Sequence[Computed],
    homes: dict[str, tuple[Index, ...]],
    stored: tuple[str, ...],
    graph: Graph,
    dependences: Dependences,
) -> tuple[Param, ...]:
    from ferrite_ir.graph import bodies_of, index_loads

    reads: dict[str, None] = {}
    modes: dict[str, Update] = {}
    for definition in body:
        for scalar in bodies_of(definition):
            reads.update(dict.fromkeys(load.source for load in scalar.loads if load.source not in homes))
        if isinstance(definition, Update):
            modes[definition.result.name] = definition
            loads = index_loads(definition.indices)
            reads.update(dict.fromkeys(load.source for load in loads if load.source not in homes))
    read_storages = {dependences.storage[name] for name in reads}
    params = [_read_param(name, graph) for name in reads]
    for name in stored:
        access = "write"
        if name in modes:
            access = _update_access(name, modes[name], read_storages, dependences)
        params.append(Param(name, graph.values[name].type, access))
    return tuple(params)


def _read_param(name: str, graph: Graph) -> Param:
    tensor = graph.values[name].type
    on_host = tensor.device == "cpu" and tensor.device != graph.device and tensor.shape == ()
    return Param(name, tensor, "read", on_host)


def _update_access(name: str, update: Update, read_storages: set[str], dependences: Dependences) -> str:
    if update.mode != "set":
        return "atomic"
    return "readwrite" if dependences.storage[name] in read_storages else "write"

