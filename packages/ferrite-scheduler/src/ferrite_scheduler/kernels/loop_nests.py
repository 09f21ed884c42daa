"""Clusters made kernels: dims cut, joined, ordered and put on axes, and every definition rewritten over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ferrite_ir.language.dtypes import I64
from ferrite_ir.language.graph import (
    Attend,
    Computed,
    Contract,
    Graph,
    Loop,
    Reduction,
    Scan,
    Sort,
    Update,
    loads_of,
    row_major,
)
from ferrite_ir.language.index import Dim, Index, constant, delinearize, floordiv, linearize, mod
from ferrite_ir.language.index_substitution import sole_dim, substitute
from ferrite_ir.language.scalar import Scalar, index_value, load, rewrite
from ferrite_ir.language.sizes import product
from ferrite_scheduler.analysis.clusters import Cluster, Member
from ferrite_scheduler.analysis.dependences import Dependences
from ferrite_scheduler.analysis.generic_sizes import size_of
from ferrite_scheduler.analysis.mixed_radix import Digits
from ferrite_scheduler.analysis.nodes import Node
from ferrite_scheduler.model.annotations import ColumnReduction
from ferrite_scheduler.model.axes import Axis
from ferrite_scheduler.model.contractions import fits_axes, row_dims
from ferrite_scheduler.model.forms import Form, RowColumnReduction
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.schedule import Kernel
from ferrite_scheduler.model.tiled_contractions import roles_of

from .access_strides import over_cluster, strides_of, touched_bases, traffic_of
from .iteration_space import Base, coefficients, cut, own_digits
from .kernel_names import kernel_name
from .kernel_params import params_of
from .tiling import Group, Tiles, apart, join_bases, place_groups


class Misfit(Exception):
    """A cluster whose loads of its own values do not land on their homes after rewriting; it must be decomposed."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The dims of a kernel, and what stands in them for the dims of each member.

    Attributes:
        axes: the axes.
        grid_dims, reduction_dims: their dims.
        mappings: for each member, the index over the kernel's dims that stands for each of its own dims.
        moved: for each member, indices already rewritten by its mapping.
        inner_dims: the last of the reduction dims, those of a block, where blocks are reduced.
    """

    axes: tuple[Axis, ...]
    grid_dims: tuple[Dim, ...]
    reduction_dims: tuple[Dim, ...]
    mappings: tuple[dict[Dim, Index], ...]
    moved: tuple[dict[Index, Index], ...]
    inner_dims: tuple[Dim, ...] = ()


Layouts: TypeAlias = dict[tuple[Any, ...], Layout]
"""Layouts found so far: equal layers of a model have equal ones."""


def build_kernel(
    cluster: Cluster,
    dependences: Dependences,
    graph: Graph,
    stored: frozenset[str],
    form: Form,
    policy: Policy,
    layouts: Layouts,
) -> Kernel:
    """Returns the kernel of a cluster; ``stored`` names the values made in it that something outside reads.

    Raises:
        Misfit: a load of a value made in the cluster is not at the value's home.
    """
    nodes = [dependences.nodes[number] for number in sorted(cluster.members)]
    members = [cluster.members[node.number] for node in nodes]
    key = _layout_key(cluster, nodes, members, stored)
    layout = layouts.get(key)
    if layout is None:
        found = _lay_out(cluster, nodes, members, stored, policy) if cluster.points else _lay_out_empty(nodes[0])
        layout = layouts[key] = found
    body: list[Computed] = []
    homes: dict[str, tuple[Index, ...]] = {}
    for node, member, mapping, moved in zip(nodes, members, layout.mappings, layout.moved, strict=True):
        rewritten = _rewrite(node, member, layout, mapping, _mover(mapping, moved))
        body.append(rewritten)
        home = _home_indices(node, mapping, rewritten, layout)
        homes.update((result.name, home[: len(result.type.shape)]) for result in rewritten.results)
    if not fits_axes(body, layout.axes):
        raise Misfit("factors of a contraction do not lie on axes of their own")
    reads = _check_homes(body, homes)
    kept = tuple([name for node in nodes for name in node.result_names if name in stored or node.stores is not None])
    params = params_of(body, reads, kept, graph, dependences)
    if isinstance(form, RowColumnReduction) and len(layout.axes) > 2:
        raise Misfit("rows that a program takes one after the other lie on two axes")
    return Kernel(kernel_name(form, body), form, layout.axes, tuple(body), homes, kept, params)


def _layout_key(
    cluster: Cluster, nodes: Sequence[Node], members: Sequence[Member], stored: frozenset[str]
) -> tuple[Any, ...]:
    """Returns everything that a layout depends on."""
    parts: list[Any] = [cluster.points, cluster.reduction, cluster.kinds, cluster.inner]
    numbers: dict[str, int] = {}  # which loads are of one value, whatever it is called
    for node, member in zip(nodes, members, strict=True):
        loads: list[Any] = [
            (touch.known, touch.bytes, touch.value_bytes, touch.rigid, numbers.setdefault(touch.name, len(numbers)))
            for touch in node.loads
            if touch.name not in cluster.made
        ]
        stores: list[Any] = [
            (home, cluster.made_bytes[name])
            for name, home in zip(node.result_names, node.homes, strict=True)
            if name in stored
        ]
        if node.stores is not None:
            stores.append((node.stores.known, node.stores.bytes, node.stores.rigid))
        dims = (_own_dims(node), _groups_of(node), node.grid_dims, node.reduction_dims)
        position = (member.full, member.position, member.inner)
        parts.append((dims, _rows_of(node), *position, node.expressions, node.rigid, *loads, None, *stores))
    return tuple(parts)


def _lay_out(
    cluster: Cluster, nodes: Sequence[Node], members: Sequence[Member], stored: frozenset[str], policy: Policy
) -> Layout:
    reduction = cluster.reduction
    whole_reduction = bool(cluster.kinds & {"scan", "look back", "sort", "attend"})
    own = [own_digits(node, member, reduction) for node, member in zip(nodes, members, strict=True)]
    traffic = list(traffic_of(cluster, nodes, members, stored))
    numbers = list(_numbers(cluster, nodes, members))
    wanted: list[Digits | None] = [digits for dims in own for digits in dims.values()]
    wanted += [access.digits for access in traffic] + numbers
    bases = cut(cluster.points, reduction, wanted, whole_reduction=whole_reduction, inner=cluster.inner)
    strides, rigid = strides_of(traffic, bases)
    vectors = {stride.coefficients for stride in strides}
    for digits in numbers:
        vector, exact = coefficients(digits, bases) if digits is not None else ((), False)
        if exact:
            vectors.add(vector)
        else:
            rigid |= touched_bases(digits, bases)
    rigid |= _rigid_bases(nodes, own, bases)
    grid, inside = join_bases(bases, max(1, reduction), sorted(vectors), rigid, cluster.inner, strides, policy)
    rows = _bases_of(_rows_of, nodes, own, bases)
    batch = _bases_of(_batch_of, nodes, own, bases)
    block = frozenset(number for number, base in enumerate(bases) if base.step < min(cluster.inner, reduction))
    tiles = place_groups(apart(grid, (rows, batch), bases), inside, strides, policy, rows, block, batch)
    positions, (grid_dims, reduction_dims) = _name_dims(tiles, bases, whole_reduction=whole_reduction)
    flat = linearize(tuple(positions), tuple(size_of(base.step) for base in bases))
    mappings = tuple(_mapping(node, digits, bases, positions, flat) for node, digits in zip(nodes, own, strict=True))
    axes = _axes(tiles, grid_dims, reduction_dims, has_reduction=bool(cluster.kinds))
    shared: dict[tuple[tuple[Dim, Index], ...], dict[Index, Index]] = {}
    moved = tuple(shared.setdefault(tuple(mapping.items()), {}) for mapping in mappings)
    return Layout(
        axes, grid_dims, reduction_dims, mappings, moved, _inner_dims(tiles, bases, reduction_dims, cluster.inner)
    )


def _bases_of(
    dims_of: Callable[[Node], tuple[Dim, ...]],
    nodes: Sequence[Node],
    own: Sequence[dict[object, Digits | None]],
    bases: tuple[Base, ...],
) -> frozenset[int]:
    """Returns the bases of some dims of each node."""
    return frozenset(
        base
        for node, digits in zip(nodes, own, strict=True)
        for dim in dims_of(node)
        for base in touched_bases(digits[dim], bases)
    )


def _rows_of(node: Node) -> tuple[Dim, ...]:
    """Returns the dims of the rows of a contraction or of scores, without those of extent 1; none of others."""
    if isinstance(node.definition, Attend):
        return tuple(dim for dim in (node.definition.row,) if dim in node.grid_dims)
    if not isinstance(node.definition, Contract):
        return ()
    return tuple(dim for dim in row_dims(node.definition) if dim in node.grid_dims)


def _batch_of(node: Node) -> tuple[Dim, ...]:
    """Returns the dims that all factors of a product depend on, without those of extent 1; none of others."""
    if isinstance(node.definition, Attend):
        return tuple(dim for dim in node.definition.batch if dim in node.grid_dims)
    if not isinstance(node.definition, Contract):
        return ()
    return tuple(dim for dim in roles_of(node.definition).batch if dim in node.grid_dims)


def _lay_out_empty(node: Node) -> Layout:
    """Returns the layout of a definition without points: its own dims."""
    grid_dims = tuple(Dim(f"x{position}", dim.size) for position, dim in enumerate(node.grid_dims))
    reduction_dims = tuple(Dim(f"r{position}", dim.size) for position, dim in enumerate(node.reduction_dims))
    named = dict(zip(node.grid_dims + node.reduction_dims, grid_dims + reduction_dims, strict=True))
    mapping = {dim: named[dim].index if dim in named else constant(0) for dim in _own_dims(node)}
    axes = (Axis("x", grid_dims), *((Axis("r", reduction_dims),) if reduction_dims else ()))
    return Layout(axes, grid_dims, reduction_dims, (mapping,), ({},))


def _own_dims(node: Node) -> tuple[Dim, ...]:
    definition = node.definition.by_row if isinstance(node.definition, ColumnReduction) else node.definition
    if isinstance(definition, Attend):
        return (*definition.dims, definition.along)
    return definition.dims + getattr(definition, "reduction_dims", ())  # type: ignore[union-attr]


def _groups_of(node: Node) -> tuple[Dim, ...]:
    """Returns the dims that only the factors of a contraction know."""
    return node.definition.locals if isinstance(node.definition, Contract) else ()


def _numbers(cluster: Cluster, nodes: Sequence[Node], members: Sequence[Member]) -> Iterable[Digits | None]:
    for node, member in zip(nodes, members, strict=True):
        for digits in node.expressions:
            yield over_cluster(digits, member, cluster.reduction)


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
            found |= touched_bases(digits[dim], bases)
    return found


def _name_dims(
    tiles: Tiles, bases: tuple[Base, ...], *, whole_reduction: bool
) -> tuple[list[Index], tuple[tuple[Dim, ...], tuple[Dim, ...]]]:
    """Returns each base as an index over the kernel's dims, and the grid and reduction dims."""
    positions: list[Index] = [constant(0)] * len(bases)
    named: dict[str, list[Dim]] = {"z": [], "y": [], "x": [], "r": []}
    for axis, groups in (("z", tiles.z), ("y", tiles.y), ("x", tiles.x), ("r", tiles.r)):
        for position, group in enumerate(groups):
            dim = Dim(f"{axis}{position}", size_of(group.extent))
            named[axis].append(dim)
            for base, index in zip(group.bases, _split(dim, group, bases), strict=True):
                positions[base] = index
    if whole_reduction and not named["r"]:
        named["r"].append(Dim("r0", 1))
    return positions, ((*named["z"], *named["y"], *named["x"]), tuple(named["r"]))


def _inner_dims(tiles: Tiles, bases: tuple[Base, ...], reduction_dims: tuple[Dim, ...], inner: int) -> tuple[Dim, ...]:
    """Returns the reduction dims of a block.

    Raises:
        Misfit: other reduction dims lie inside of them.
    """
    count = sum(bases[group.bases[0]].step < inner for group in tiles.r)
    if any(bases[group.bases[0]].step < inner for group in tiles.r[: len(tiles.r) - count]):
        raise Misfit("the points of a block do not lie next to each other")
    return reduction_dims[len(reduction_dims) - count :]


def _split(dim: Dim, group: Group, bases: tuple[Base, ...]) -> tuple[Index, ...]:
    return delinearize(dim.index, tuple(size_of(bases[position].extent) for position in group.bases))


def _mapping(
    node: Node, own: dict[object, Digits | None], bases: tuple[Base, ...], positions: list[Index], flat: Index
) -> dict[Dim, Index]:
    """Returns the index over the kernel's dims that stands for each dim of the node."""
    mapping: dict[Dim, Index] = {}
    for dim in _own_dims(node):
        digits = own.get(dim, ())
        if digits is None:
            raise Misfit(f"dim {dim.name} of {node.result_names} does not align with its kernel")
        vector, exact = coefficients(digits, bases)
        if exact:
            parts = (index * size_of(factor) for index, factor in zip(positions, vector, strict=True) if factor)
        else:
            parts = (
                mod(floordiv(flat, size_of(step)), size_of(extent)) * size_of(factor) for step, extent, factor in digits
            )
        mapping[dim] = sum(parts, constant(0))
    return mapping | {dim: Dim(f"g{number}", dim.size).index for number, dim in enumerate(_groups_of(node))}


Mover: TypeAlias = Callable[[Scalar], Scalar]


def _mover(mapping: dict[Dim, Index], moved: dict[Index, Index]) -> Mover:
    """Returns a function that rewrites a body over the kernel's dims."""
    memo: dict[Scalar, Scalar] = {}

    def new_index(index: Index) -> Index:
        found = moved.get(index)
        if found is None:
            found = moved[index] = substitute(index, mapping)
        return found

    def step(node: Scalar) -> Scalar:
        if node.op == "load":
            return load(node.source, [new_index(index) for index in node.indices], node.dtype)
        if node.op == "index":
            return index_value(new_index(node.args[0]), node.dtype)
        return node

    return lambda body: rewrite(body, step, memo)


def _rewrite(node: Node, member: Member, layout: Layout, mapping: dict[Dim, Index], move: Mover) -> Computed:  # noqa: PLR0911  # a case for each
    definition = node.definition
    grid_dims, reduction_dims = layout.grid_dims, layout.reduction_dims
    outer = grid_dims + reduction_dims[: len(reduction_dims) - len(layout.inner_dims)]
    dims = grid_dims + reduction_dims if member.full else outer if member.inner else grid_dims
    match definition:
        case Loop():
            return Loop(definition.results, dims, tuple(map(move, definition.bodies)), definition.origins)
        case ColumnReduction():
            bodies = tuple(map(move, definition.by_row.bodies))
            return replace(definition, dims=grid_dims, reduction_dims=reduction_dims, bodies=bodies, whole=None)
        case Reduction():
            bodies = tuple(map(move, definition.bodies))
            if layout.inner_dims and node.reduction == product(dim.size for dim in layout.inner_dims):
                return replace(definition, dims=outer, reduction_dims=layout.inner_dims, bodies=bodies)
            return replace(definition, dims=grid_dims, reduction_dims=reduction_dims, bodies=bodies)
        case Scan():
            return replace(definition, dims=dims, along=reduction_dims[-1], bodies=tuple(map(move, definition.bodies)))
        case Sort():
            return replace(definition, dims=dims, along=reduction_dims[-1], body=move(definition.body))
        case Contract():
            return _contraction(definition, layout, mapping, move)
        case Attend():
            return _over_axes(definition.with_bodies(tuple(map(move, definition.bodies))), layout)
        case Update():
            condition = None if definition.condition is None else move(definition.condition)
            indices = tuple(move(index_value(index, I64)).args[0] for index in definition.indices)
            indices = tuple(index if isinstance(index, Index) else constant(index) for index in indices)
            return replace(definition, dims=dims, indices=indices, body=move(definition.body), condition=condition)
    raise TypeError(f"not a computed definition: {type(definition).__name__}")


def _contraction(contract: Contract, layout: Layout, mapping: dict[Dim, Index], move: Mover) -> Contract:
    """Returns a contraction over the dims of its kernel.

    Raises:
        Misfit: what is in groups, or the groups, are not one of these dims.
    """
    moved = contract.with_bodies(tuple(map(move, contract.bodies)))
    segments = moved.segments
    if segments is not None:
        of, group = (sole_dim(mapping[dim]) for dim in (segments.of, segments.group))
        if of is None or group is None:
            raise Misfit("what is in groups does not have an axis of its own")
        segments = replace(segments, of=of, group=group)
    dims = layout.grid_dims, layout.reduction_dims
    return Contract(moved.result, *dims, moved.left, moved.right, moved.origins, moved.fast, segments, moved.stored)


def _over_axes(attend: Attend, layout: Layout) -> Attend:
    """Returns an attention whose expressions are over the dims of a kernel with these as its own.

    Where what reads its results cuts its rows, all dims of the axis of rows but the last are among its batch: nothing
    but what depends on rows depends on them.

    Raises:
        Misfit: its rows, its columns or what it goes through do not have an axis of their own, or not one dim of it.
    """
    named = {axis.name: axis.dims for axis in layout.axes}
    rows, *single = axes = [named.get(name, ()) for name in "yxr"]
    sizes = (attend.row.size, attend.column.size, attend.along.size)
    fits = [product(dim.size for dim in dims) == size for dims, size in zip(axes, sizes, strict=True)]
    if not all(fits) or any(len(dims) > 1 for dims in single):
        raise Misfit("an attention does not have its rows, columns and points on axes of their own")
    column, along = (dims[0] if dims else Dim(f"{name}0", 1) for name, dims in zip("xr", single, strict=True))
    return replace(attend, dims=(*named.get("z", ()), *(rows or (Dim("y0", 1),)), column), along=along)


def _home_indices(node: Node, mapping: dict[Dim, Index], rewritten: Computed, layout: Layout) -> tuple[Index, ...]:
    if isinstance(rewritten, Update):
        return rewritten.indices
    if isinstance(node.definition, ColumnReduction):
        return _run_indices(node.definition, mapping, layout)
    return tuple(mapping[dim] for dim in node.definition.dims)  # type: ignore[union-attr]


def _run_indices(reduction: ColumnReduction, mapping: dict[Dim, Index], layout: Layout) -> tuple[Index, ...]:
    """Returns where a column reduction has the sum of a chunk: the number of the chunk, and the column.

    Raises:
        Misfit: the kernel takes the rows in another order.
    """
    whole = reduction.by_row
    row = _position(whole.reduction_dims, [mapping[dim] for dim in whole.reduction_dims])
    if row != _position(layout.grid_dims, [dim.index for dim in layout.grid_dims]):
        raise Misfit("rows of a column reduction are taken in another order")
    return floordiv(row, reduction.reduction_dims[0].size), *(mapping[dim] for dim in whole.dims)


def _position(dims: Sequence[Dim], indices: Sequence[Index]) -> Index:
    """Returns the position of a point among those of dims, the last of them fastest."""
    return linearize(tuple(indices), row_major(tuple(dim.size for dim in dims)))


def _check_homes(body: Sequence[Computed], homes: dict[str, tuple[Index, ...]]) -> tuple[str, ...]:
    """Checks that values made in the body are loaded at their homes; returns the names of the others that it loads.

    Raises:
        Misfit: one is not.
    """
    outside: dict[str, None] = {}
    for definition in body:
        for found in loads_of(definition):
            home = homes.get(found.source)
            if home is None:
                outside[found.source] = None
            elif found.indices != home:
                raise Misfit(f"{found} is not at home {home}")
    return tuple(outside)


def _axes(
    tiles: Tiles, grid_dims: tuple[Dim, ...], reduction_dims: tuple[Dim, ...], *, has_reduction: bool
) -> tuple[Axis, ...]:
    first, second = len(tiles.z), len(tiles.z) + len(tiles.y)
    axes = [Axis("z", grid_dims[:first])] if tiles.z else []
    axes += [Axis("y", grid_dims[first:second])] if tiles.y else []
    axes.append(Axis("x", grid_dims[second:]))
    if has_reduction:
        axes.append(Axis("r", reduction_dims))
    return tuple(axes)
