"""What each definition touches: its iteration space as one flat position, and its accesses as digits of that.

A `Node` is a definition with everything later stages ask of it precomputed once: its iteration space (grid dims, then
reduction dims) as one flat position, and each access as digits of that position (see `mixed_radix`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ferrite_ir.language.graph import (
    Attend,
    Computed,
    Contract,
    ControlFlow,
    Definition,
    Extern,
    Graph,
    Reduction,
    Scan,
    Sort,
    TensorType,
    Update,
    bodies_of,
    loads_of,
    names_read,
)
from ferrite_ir.language.index import Dim, Index, constant
from ferrite_ir.language.scalar import Scalar, indirects, indirects_of, postorder
from ferrite_ir.language.sizes import Size, hint
from ferrite_scheduler.model.annotations import ColumnReduction

from .generic_sizes import generic, hinted
from .mixed_radix import Digit, Digits, digits_of, is_injective, normalized

Access: TypeAlias = tuple[Any, ...]
"""``(constant, digits)`` of the element's address, or ``("opaque", dims, indices, …)``.

Equal accesses touch the same element at the same position.
"""


def is_opaque(access: Access) -> bool:
    """Returns whether the access is no sum of digits."""
    return bool(access[0] == "opaque")


@dataclass(frozen=True, slots=True)
class Touch:
    """One distinct access of a definition to a named value.

    Attributes:
        name: the value.
        access: address of the element (in elements, by the value's strides) as a function of the definition's own
            position.
        known: the digits of the address, those that are known where the access is opaque.
        rigid: dims that occur in parts of the index that are no digits.
        bytes: bytes of distinct elements touched, estimated.
        value_bytes: bytes of the whole value.
    """

    name: str
    access: Access
    known: Digits
    rigid: tuple[Dim, ...]
    bytes: int
    value_bytes: int


@dataclass(frozen=True, slots=True)
class Node:
    """A definition and what it touches.

    Attributes:
        number: position in program order.
        definition: the definition.
        grid_dims, reduction_dims: the dims without those of extent 1; for scans and sorts ``along`` is the reduction
            dim; for a column reduction the rows are the grid and the columns the reduction dims.
        grid, reduction: numbers of points, in general position (see `generic_sizes`), as all steps, extents and
            coefficients are; ``reduction`` is 0 for a definition that has no reduction axis.
        steps: step of each dim in the definition's own flat position.
        loads: distinct loads of bodies and indices.
        homes: for each result, where in memory it belongs.
        stores: the in-place store of an update, else None.
        expressions: digits of index expressions used as numbers.
        rigid: dims that occur in index expressions that are no digits.
        reads: names it reads, the target of an update included.
        result_names: names it defines.
        ops: number of scalar operations.
    """

    number: int
    definition: Definition
    grid_dims: tuple[Dim, ...] = ()
    reduction_dims: tuple[Dim, ...] = ()
    grid: int = 1
    reduction: int = 0
    steps: dict[Dim, int] = field(default_factory=dict)
    loads: tuple[Touch, ...] = ()
    homes: tuple[Access, ...] = ()
    stores: Touch | None = None
    expressions: tuple[Digits, ...] = ()
    rigid: tuple[Dim, ...] = ()
    reads: tuple[str, ...] = ()
    result_names: tuple[str, ...] = ()
    ops: int = 0

    @property
    def is_host(self) -> bool:
        """Returns whether the definition is a call on the host rather than a kernel."""
        return isinstance(self.definition, Extern | ControlFlow)

    @property
    def points(self) -> int:
        """Returns the number of grid × reduction points."""
        return self.grid * self.reduction if self.reduction_dims else self.grid


def nodes_of(graph: Graph) -> tuple[Node, ...]:
    """Returns the nodes of all definitions, in program order."""
    types = {name: value.type for name, value in graph.values.items()}
    memo: Memo = {}
    return tuple(make_node(number, definition, types, memo) for number, definition in enumerate(graph.definitions))


Memo: TypeAlias = dict[Any, Any]
"""What has been found for domains and indices; equal layers share it."""


def make_node(number: int, definition: Definition, types: dict[str, TensorType], memo: Memo) -> Node:
    """Returns the node of one definition; ``types`` has the type of every value it names."""
    names = tuple([result.name for result in definition.results if result is not None])
    if isinstance(definition, Extern | ControlFlow):
        return Node(number, definition, reads=names_read(definition), result_names=names)
    space = _space_of(definition, memo)
    if isinstance(definition, Attend):
        loads, expressions, rigid, ops = _scan_attention(definition, space, types)
    else:
        loads, expressions, rigid, ops = _scan_bodies(definition, space, types, memo)
    reads = dict.fromkeys([touch.name for touch in loads])
    stores = None
    if isinstance(definition, Update):
        reads[definition.target] = None
        stores = _touch(definition.target, definition.indices, space, types[definition.target], memo)
    return Node(
        number,
        definition,
        space.grid_dims,
        space.reduction_dims,
        space.grid,
        space.reduction,
        space.steps,
        loads,
        tuple([_home(definition, result.type, space, memo) for result in definition.results]),
        stores,
        expressions,
        rigid,
        tuple(reads),
        names,
        ops,
    )


@dataclass(frozen=True, slots=True)
class _Space:
    """The dims of a definition; see `Node`."""

    key: tuple[Any, ...]
    grid_dims: tuple[Dim, ...]
    reduction_dims: tuple[Dim, ...]
    grid: int
    reduction: int
    steps: dict[Dim, int]


def _space_of(definition: Computed, memo: Memo) -> _Space:
    match definition:
        case ColumnReduction():
            key: tuple[Any, ...] = (definition.by_row.dims, definition.by_row.reduction_dims, "rows")
        case Reduction() | Contract():
            key = (definition.dims, definition.reduction_dims, True)
        case Attend():
            key = (definition.dims, definition.along, "attend")
        case Scan() | Sort():
            key = (definition.dims, definition.along, False)
        case _:
            key = (definition.dims, None, False)
    found: _Space | None = memo.get(key)
    if found is None:
        found = memo[key] = _make_space(definition, key)
    return found


def _make_space(definition: Computed, key: tuple[Any, ...]) -> _Space:
    """Returns the grid dims and reduction dims without unit dims, and where they lie in the flat position."""
    reduction_dims: tuple[Dim, ...] = ()
    has_reduction = True
    match definition:
        case ColumnReduction():
            grid_dims, reduction_dims = _wide(definition.by_row.reduction_dims), _wide(definition.by_row.dims)
        case Reduction() | Contract():
            grid_dims, reduction_dims = _wide(definition.dims), _wide(definition.reduction_dims)
        case Attend():
            grid_dims, reduction_dims = _wide(definition.dims), (definition.along,)
        case Scan() | Sort():
            along = definition.along
            grid_dims, reduction_dims = _wide(dim for dim in definition.dims if dim is not along), (along,)
        case _:
            grid_dims, has_reduction = _wide(definition.dims), False
    reduction = _count(reduction_dims) if has_reduction else 0
    return _Space(key, grid_dims, reduction_dims, _count(grid_dims), reduction, _steps(grid_dims + reduction_dims))


def _wide(dims: Iterable[Dim]) -> tuple[Dim, ...]:
    return tuple(dim for dim in dims if dim.size != 1)


def _steps(dims: tuple[Dim, ...]) -> dict[Dim, int]:
    steps: dict[Dim, int] = {}
    step = 1
    for dim in reversed(dims):
        steps[dim] = step
        step *= generic(dim.size)
    return steps


def _count(dims: Iterable[Dim]) -> int:
    count = 1
    for dim in dims:
        count *= generic(dim.size)
    return count


def _home(definition: Computed, tensor: TensorType, space: _Space, memo: Memo) -> Access:
    """Returns the address of a result's element over the own position."""
    if isinstance(definition, Update):
        return ("opaque", "update")
    key = (space.key, tensor.strides)
    found: Access | None = memo.get(key)
    if found is None:
        steps = space.steps
        # What an attention has one of for a row has no column.
        dims = zip(definition.dims[: len(tensor.strides)], tensor.strides, strict=True)
        positions = ((steps[dim], generic(dim.size), generic(stride)) for dim, stride in dims if dim in steps)
        found = memo[key] = (0, normalized(positions))
    return found


def _scan_bodies(
    definition: Computed, space: _Space, types: dict[str, TensorType], memo: Memo
) -> tuple[tuple[Touch, ...], tuple[Digits, ...], tuple[Dim, ...], int]:
    loads: list[Touch] = []
    expressions: dict[Digits, None] = {}
    rigid: dict[Dim, None] = {}
    stack = list(bodies_of(definition.by_row if isinstance(definition, ColumnReduction) else definition))
    if isinstance(definition, (Scan, Update)):
        stack += definition.scalars_beside
    if isinstance(definition, Update):
        stack += indirects_of(definition.indices)
    inner = definition.locals if isinstance(definition, Contract) else ()
    seen = set(stack)
    ops = 0
    while stack:
        node = stack.pop()
        below = node.args
        if node.op == "load":
            touch = _touch(node.args[0], node.args[1:], space, types[node.args[0]], memo)
            loads.append(touch if node.dims.isdisjoint(inner) else _of_group(touch, node, types[node.args[0]]))
            below = indirects(node)
        elif node.op == "const":
            continue
        elif node.op == "index":
            _, found, stiff, _ = digits_of(node.args[0], space.steps)
            if found:
                expressions[normalized(found)] = None
            rigid.update(dict.fromkeys(stiff))
            below = indirects(node)
        else:
            ops += 1
        for child in below:
            if child not in seen:
                seen.add(child)
                stack.append(child)
    loads.reverse()
    return tuple(dict.fromkeys(loads)) if len(loads) > 1 else tuple(loads), tuple(expressions), tuple(rigid), ops


def _of_group(touch: Touch, node: Scalar, tensor: TensorType) -> Touch:
    """Returns the access of a contraction to what is of a group: where it lies only data knows, but for its digits."""
    access: Access = ("opaque", "group", node)
    return replace(touch, access=access, bytes=_bytes_of(tensor))


def _scan_attention(
    attend: Attend, space: _Space, types: dict[str, TensorType]
) -> tuple[tuple[Touch, ...], tuple[Digits, ...], tuple[Dim, ...], int]:
    """Returns what `_scan_bodies` does of an attention, whose accesses are no functions of its position alone.

    All of its dims are rigid: rows, columns and the points of the loop are what its programs cut into blocks.
    """
    loads = (
        Touch(found.source, ("opaque", "attend", found), (), (), count, count)
        for found in loads_of(attend)
        for count in (_bytes_of(types[found.source]),)
    )
    ops = sum(1 for node in postorder(attend.bodies) if node.op not in ("load", "const", "index"))
    return tuple(loads), (), (*space.grid_dims, *space.reduction_dims), ops


def _touch(name: str, indices: tuple[Index, ...], space: _Space, tensor: TensorType, memo: Memo) -> Touch:
    key = (indices, space.key, tensor.strides)
    found = memo.get(key)
    if found is None:
        found = memo[key] = _walk_of(indices, space, tensor.strides)
    access, known, rigid, reached = found
    whole = _bytes_of(tensor)
    return Touch(name, access, known, rigid, min(reached * tensor.dtype.bytes, whole), whole)


def _bytes_of(tensor: TensorType) -> int:
    return count_elements(tensor) * tensor.dtype.bytes


def _walk_of(
    indices: tuple[Index, ...], space: _Space, strides: tuple[Size, ...]
) -> tuple[Access, Digits, tuple[Dim, ...], int]:
    """Returns the access that indices are, the digits known of it, its rigid dims, and how many elements it reaches."""
    const: Size = 0
    exact = True
    parts: list[Digit] = []
    stiff: list[Dim] = []
    for index, stride in zip(indices, strides, strict=True):
        base, digits, rigid, whole = digits_of(index, space.steps)
        const = const + base * stride
        exact = exact and whole
        stiff.extend(rigid)
        parts.extend([(step, extent, factor * generic(stride)) for step, extent, factor in digits])
    if stiff:
        # Quotients and remainders of one number, as in the first stage of a split reduction, often add up to it in
        # memory.
        address = sum((index * stride for index, stride in zip(indices, strides, strict=True)), constant(0))
        base, digits, rigid, whole = digits_of(address, space.steps)
        if whole:
            const, exact, parts, stiff = base, True, digits, []
    known = normalized(parts)
    access: Access = (const, known) if exact else ("opaque", tuple(space.steps), indices)
    reached = 1
    if exact:
        for _, extent, _ in known:
            reached *= extent
    else:
        reached = space.grid * (space.reduction or 1)
    return access, known, tuple(dict.fromkeys(stiff)), hinted(reached)


def readable_homes(node: Node) -> tuple[Access | None, ...]:
    """Returns for each result where it may be read back in the same kernel, over the own position; None if nowhere."""
    definition = node.definition
    if isinstance(definition, Update):
        return (node.stores.access if node.stores is not None and overwrites_all(node) else None,)
    if isinstance(definition, ColumnReduction) or (isinstance(definition, Sort) and definition.top is not None):
        return tuple(None for _ in node.homes)
    return node.homes


def overwrites_all(node: Node) -> bool:
    """Returns whether an update sets every element of its target exactly once."""
    definition = node.definition
    if not isinstance(definition, Update) or definition.mode != "set" or definition.condition is not None:
        return False
    return stores_each_once(node) and node.points == _points_in(definition.result.type)


def stores_each_once(node: Node) -> bool:
    """Returns whether an update surely writes no element twice."""
    if node.stores is None or is_opaque(node.stores.access):
        return False
    return is_injective(node.stores.access[1], node.points)


def count_elements(tensor: TensorType) -> int:
    """Returns the number of elements of a tensor, by the hints of its sizes."""
    count = 1
    for size in tensor.shape:
        count *= hint(size)
    return count


def _points_in(tensor: TensorType) -> int:
    """Returns the number of elements of a tensor as a number in general position."""
    count = 1
    for size in tensor.shape:
        count *= generic(size)
    return count
