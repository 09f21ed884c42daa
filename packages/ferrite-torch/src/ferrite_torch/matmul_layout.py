"""Row pitches that matrix-product libraries are fast with.

cuBLAS reads half-precision matrices in 16-byte pieces. Where rows start at other addresses (a vocabulary of 50257
columns) it falls back to kernels that move one element at a time, several times slower. What counts is where rows
start, not how long they are, so nothing is padded with zeros: a value that this graph computes gets a layout whose
rows start further apart, a product writes into a buffer of that layout, and what cannot move is copied where the
product is large enough to repay it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, ClassVar

from ferrite_ir.dtypes import BF16, F16
from ferrite_ir.graph import (
    Call,
    Definition,
    Extern,
    Fold,
    Graph,
    If,
    Loop,
    Output,
    Tag,
    TensorType,
    Update,
    Value,
    View,
    While,
    names_read,
    row_major,
    views_in,
    whole,
)
from ferrite_ir.passes.storage import Storage, trace_storage
from ferrite_ir.scalar import load
from ferrite_torch.pitches import Pitch, memory_order, shown_element, view_with_pitch, with_pitch
from ferrite_torch.tensors import grid_dims, grid_point

_FACTORS = {"aten.mm.default": 0, "aten.bmm.default": 0, "aten.addmm.default": 1, "aten.baddbmm.default": 1}
"""The library's matrix products, each with the position of its first factor; the second one follows."""

_MOVABLE = (Loop, Fold, Update)
"""Definitions whose results may lie anywhere: kernels take strides from the type."""


@dataclass(frozen=True, slots=True)
class AlignMatmuls:
    """Gives the operands and results of large half-precision matrix products rows that start at aligned addresses.

    Attributes:
        free_outputs: positions of outputs of the graph whose strides may change, because whoever reads them is told.
        devices: device types whose library wants this.
        alignment: bytes that the starts of rows are multiples of.
        wide_alignment: the same for rows so long that whole cache lines cost next to nothing.
        max_growth, max_wide_growth: by how much a row may grow for the alignment's sake, as a fraction of it.
        min_flops: the smallest product, in multiplications and additions, that is worth a change.
        min_flops_per_byte: a matrix is copied for a product of at least this many operations for each byte that the
            copy reads or writes. An H200 gains about 6e-15 s per operation, and copies 4e12 bytes per second: 40 would
            break even.
    """

    name: ClassVar[str] = "align_matmuls"

    free_outputs: frozenset[int] = frozenset()
    devices: tuple[str, ...] = ("cuda",)
    alignment: int = 16
    wide_alignment: int = 128
    max_growth: float = 0.25
    max_wide_growth: float = 1 / 32
    min_flops: int = 2_000_000_000
    min_flops_per_byte: float = 100.0

    def run(self, graph: Graph) -> Graph:
        """Returns the graph with such layouts; the same object if it has no product that gains from one.

        A graph with symbolic sizes stays as it is.
        """
        if graph.device not in self.devices or not _is_static(graph):
            return graph
        products = tuple(_products(graph, self.min_flops))
        if all(self.is_aligned(view) for product in products for view in product.matrices):
            return graph
        plan = _Plan(self, graph, trace_storage(graph))
        _choose_pitches(plan, products)
        _choose_copies(plan, products)
        return _rewritten(plan) if plan.pitches or plan.copies else graph

    def is_aligned(self, view: View) -> bool:
        """Returns whether a matrix, or each of a batch, starts at aligned addresses and so do its rows.

        Those without a dim of stride 1 count as aligned: the library copies them anyway.
        """
        return 1 not in view.strides[-2:] or not any(self._is_off(place, view) for place in _places(view))

    def pitch_for(self, view: View) -> Pitch | None:
        """Returns the pitch that would align the rows of a view; None if moving rows apart would not."""
        width = view.dtype.bytes
        if self._is_off(view.offset, view):
            return None
        row = min(place for place in _places(view) if self._is_off(place, view))
        for alignment, growth in ((self.wide_alignment, self.max_wide_growth), (self.alignment, self.max_growth)):
            pitch = -(-row * width // alignment) * alignment // width
            if pitch <= row * (1 + growth):
                return Pitch(row, pitch)
        return None

    def _is_off(self, place: int, view: View) -> bool:
        return place * view.dtype.bytes % self.alignment != 0


def _is_static(graph: Graph) -> bool:
    return all(type(size) is int for value in graph.values.values() for size in value.type.shape)


def _places(view: View) -> Iterable[int]:
    """Returns the distances that must be aligned: the offset, and all strides but that along rows."""
    pairs = zip(view.shape, view.strides, strict=True)
    return [view.offset, *(stride for size, stride in pairs if size > 1 and stride > 1)]


@dataclass(frozen=True, slots=True)
class _Product:
    """A large product: its call, the views of its factors, its result, and its operations."""

    call: Extern
    position: int
    factors: tuple[View, View]
    result: Value
    flops: int

    @property
    def matrices(self) -> tuple[View, ...]:
        """Returns the three matrices as they lie in memory."""
        return (*self.factors, whole(self.result))


def _products(graph: Graph, min_flops: int) -> Iterable[_Product]:
    """Yields the half-precision products with at least so many operations."""
    for position, call in enumerate(graph.definitions):
        if not isinstance(call, Extern) or call.target not in _FACTORS:
            continue
        first = _FACTORS[call.target]
        left, right = call.args[first : first + 2]
        (result,) = call.results
        if result is None or not {left.dtype, right.dtype, result.type.dtype} <= {F16, BF16}:
            continue
        sizes = (*result.type.shape, left.shape[-1])
        flops = 2 * prod(sizes)
        if flops >= max(min_flops, 1) and min(sizes[-3:]) > 1:
            yield _Product(call, position, (left, right), result, flops)


@dataclass(slots=True)
class _Plan:
    """What is to change.

    Attributes:
        pitches: by the oldest value of a storage, the pitch of all its values.
        exact: for padded results of products, the copies for those who need the old layout.
        copies: the padded copies that products read in the place of factors, by ``(position of the product, view)``.
        made: the loops that make these, by the position of the product before which they stand.
        taken: names of new values.
    """

    rules: AlignMatmuls
    graph: Graph
    storage: Storage
    pitches: dict[str, Pitch] = field(default_factory=dict)
    exact: dict[str, Value] = field(default_factory=dict)
    copies: dict[tuple[int, View], View] = field(default_factory=dict)
    made: dict[int, list[Loop]] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def view(self, view: View, *, is_rigid: bool = False) -> View:
        """Returns a view in the chosen layouts; a rigid one, or one that cannot follow, shows a copy in the old one."""
        pitch = self.pitches.get(self.storage.root(view.name))
        if pitch is None:
            return view
        moved = None if is_rigid else _moved(view, self.graph.type_of(view.name), pitch)
        return moved if moved is not None else replace(view, name=self.exact[view.name].name)

    def type_of(self, name: str) -> TensorType:
        """Returns the type of a value in the chosen layouts."""
        for copy in self.exact.values():
            if copy.name == name:
                return copy.type
        kind = self.graph.type_of(name)
        pitch = self.pitches.get(self.storage.root(name))
        return kind if pitch is None else with_pitch(kind, pitch) or kind

    def fresh(self, wanted: str) -> str:
        """Returns an unused name."""
        name, number = wanted, 2
        while name in self.taken or name in self.graph.values:
            name, number = f"{wanted}_{number}", number + 1
        self.taken.add(name)
        return name

    def is_repaid(self, flops: int, elements: int, width: int) -> bool:
        """Returns whether products are large enough for a copy, which reads and writes so many elements."""
        return flops >= self.rules.min_flops_per_byte * 2 * elements * width


def _moved(view: View, kind: TensorType, pitch: Pitch) -> View | None:
    return view_with_pitch(view, pitch) if view.dtype is kind.dtype else None


# --- choosing ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Uses:
    """How the values of one storage are made and used.

    Attributes:
        names: of all its values.
        free: views that may change.
        rigid: views that may not: of other library calls, and outputs that the caller knows the strides of.
        is_fixed: whether something else prevents a change.
    """

    names: list[str] = field(default_factory=list)
    free: list[View] = field(default_factory=list)
    rigid: list[View] = field(default_factory=list)
    is_fixed: bool = False

    def add(self, view: View, *, is_free: bool) -> None:
        """Notes a view of one of the values."""
        (self.free if is_free else self.rigid).append(view)


def _choose_pitches(plan: _Plan, products: tuple[_Product, ...]) -> None:
    """Decides which storages get a pitch: no copy is made, except of results that somebody needs as they were."""
    uses = _trace_uses(plan)
    for root, (pitch, flops) in _wanted_pitches(plan, products).items():
        found = uses[root]
        if not _can_move(plan, found, pitch):
            continue
        definer = plan.graph.definer[root]
        passes = bool(found.rigid) + _has_bias_row(definer)
        if passes:
            # Values that kernels compute are rather copied for the product: the kernel may write both.
            kind = plan.graph.type_of(root)
            if not isinstance(definer, Extern) or len(found.names) > 1:
                continue
            if not plan.is_repaid(flops, passes * prod(kind.shape), kind.dtype.bytes):
                continue
        plan.pitches[root] = pitch
        if found.rigid:
            plan.exact[root] = Value(plan.fresh(f"{root}_exact"), plan.graph.type_of(root))


def _wanted_pitches(plan: _Plan, products: tuple[_Product, ...]) -> dict[str, tuple[Pitch, int]]:
    """Returns the pitch that the products want for a storage (the first one's), and the operations of all of them."""
    wanted: dict[str, tuple[Pitch, int]] = {}
    for product in products:
        for view in product.matrices:
            pitch = None if plan.rules.is_aligned(view) else plan.rules.pitch_for(view)
            if pitch is not None:
                root = plan.storage.root(view.name)
                first, flops = wanted.get(root, (pitch, 0))
                wanted[root] = (first, flops + product.flops)
    return wanted


def _has_bias_row(call: Definition) -> bool:
    """Returns whether a product adds a row to its result.

    The library does so while it computes, but only into a packed result: a padded one costs another pass over it.
    """
    return isinstance(call, Extern) and call.target == "aten.addmm.default" and len(call.args[0].shape) == 1


def _trace_uses(plan: _Plan) -> dict[str, _Uses]:
    """Returns how each storage is used, by its oldest value."""
    graph, root = plan.graph, plan.storage.root
    uses: dict[str, _Uses] = defaultdict(_Uses)
    for name in graph.values:
        uses[root(name)].names.append(name)
    for definition in graph.definitions:
        if isinstance(definition, Extern):
            pairs = [name for pair in definition.aliases for name in pair]
            for name in (*definition.mutates, *pairs):
                uses[root(name)].is_fixed = True
            for view in views_in((definition.args, tuple(value for _, value in definition.kwargs))):
                uses[root(view.name)].add(view, is_free=definition.target in _FACTORS)
        elif isinstance(definition, Call | If | While):
            for name in names_read(definition):
                uses[root(name)].is_fixed = True
    for position, output in enumerate(graph.outputs):
        if isinstance(output, View):
            uses[root(output.name)].add(output, is_free=position in plan.rules.free_outputs)
    return uses


def _can_move(plan: _Plan, uses: _Uses, pitch: Pitch) -> bool:
    """Returns whether all values of a storage can take a pitch, and all views of them that may change follow.

    A view that cannot follow becomes rigid.
    """
    if uses.is_fixed or not all(_is_movable(plan.graph, name) for name in uses.names):
        return False
    kinds = {plan.graph.type_of(name) for name in uses.names}
    if len(kinds) != 1 or any(kind.device or with_pitch(kind, pitch) is None for kind in kinds):
        return False
    (kind,) = kinds
    uses.rigid += [view for view in uses.free if _moved(view, kind, pitch) is None]
    return True


def _is_movable(graph: Graph, name: str) -> bool:
    match graph.definer.get(name):
        case Extern() as call:
            return call.target in _FACTORS and graph.type_of(name).is_row_major
        case definition:
            return isinstance(definition, _MOVABLE)


def _choose_copies(plan: _Plan, products: tuple[_Product, ...]) -> None:
    """Decides which factors are copied: those that stay unaligned, if the products that read them repay it."""
    readers: dict[tuple[View, int], list[tuple[_Product, View]]] = defaultdict(list)
    for product in products:
        for view in dict.fromkeys(product.factors):
            seen = plan.view(view)
            if not plan.rules.is_aligned(seen):
                version = plan.storage.version(view.name, product.position)
                readers[_in_memory_order(seen), version].append((product, view))
    for (packed, _), found in readers.items():
        if not plan.is_repaid(sum(product.flops for product, _ in found), prod(packed.shape), packed.dtype.bytes):
            continue
        first, _ = found[0]
        copy = _padded_copy(plan, packed, first)
        if copy is not None:
            plan.made.setdefault(first.position, []).append(copy)
            for product, view in found:
                plan.copies[product.position, view] = _over_copy(plan.view(view), copy.results[0])


def _in_memory_order(view: View) -> View:
    """Returns the view of the same elements, each once, in the order in which they lie: transposed ones become one."""
    axes = memory_order(view)
    shape = tuple(view.shape[axis] for axis in axes)
    return replace(view, shape=shape, strides=tuple(view.strides[axis] for axis in axes))


def _padded_copy(plan: _Plan, view: View, product: _Product) -> Loop | None:
    """Returns a loop that copies a matrix in memory order into rows that start aligned; None if none can."""
    kind = plan.type_of(view.name)
    if kind.device or kind.dtype is not view.dtype or view.strides[-1] != 1:
        return None
    packed = replace(view, strides=row_major(view.shape), offset=0)
    pitch = None if plan.rules.is_aligned(packed) else plan.rules.pitch_for(packed)
    indices = shown_element(view, kind, grid_point(view.shape))
    if indices is None or (pitch is None and not plan.rules.is_aligned(packed)):
        return None
    strides = packed.strides if pitch is None else tuple(map(pitch.scaled, packed.strides))
    value = Value(plan.fresh(f"{view.name}_padded"), TensorType(view.dtype, view.shape, strides))
    return Loop((value,), grid_dims(view.shape), (load(view.name, indices, view.dtype),), product.call.origins)


def _over_copy(view: View, copy: Value) -> View:
    """Returns the view of a copy in memory order that shows what ``view`` shows."""
    strides = [0 if size > 1 else copy.type.strides[0] * copy.type.shape[0] for size in view.shape]
    for position, axis in enumerate(memory_order(view)):
        strides[axis] = copy.type.strides[position]
    return View(copy.name, view.dtype, view.shape, tuple(strides))


# --- rewriting --------------------------------------------------------------------------------------------------------


def _rewritten(plan: _Plan) -> Graph:
    """Returns the graph in the chosen layouts."""
    definitions: list[Definition] = []
    for position, definition in enumerate(plan.graph.definitions):
        if isinstance(definition, Extern):
            definitions += _rewritten_call(plan, definition, position)
        else:
            definitions.append(_retyped(plan, definition))
    outputs = tuple(_rewritten_output(plan, *item) for item in enumerate(plan.graph.outputs))
    return replace(plan.graph, definitions=tuple(definitions), outputs=outputs)


def _retyped(plan: _Plan, definition: Definition) -> Definition:
    """Returns a definition whose results have their new types."""
    if not any(plan.storage.root(value.name) in plan.pitches for value in definition.results if value is not None):
        return definition
    if isinstance(definition, Update):
        return replace(definition, result=Value(definition.result.name, plan.type_of(definition.result.name)))
    assert isinstance(definition, Loop | Fold)
    return replace(definition, results=tuple(Value(v.name, plan.type_of(v.name)) for v in definition.results))


def _rewritten_call(plan: _Plan, call: Extern, position: int) -> list[Definition]:
    """Returns a call with its operands where they lie now; a product with a padded result writes into a buffer."""
    is_product = call.target in _FACTORS
    made: list[Definition] = [*plan.made.get(position, ())]

    def operand(view: View) -> View:
        return plan.copies.get((position, view)) or plan.view(view, is_rigid=not is_product)

    args = _mapped(call.args, operand)
    kwargs = tuple((name, _mapped(value, operand)) for name, value in call.kwargs)
    new = call if args == call.args and kwargs == call.kwargs else replace(call, args=args, kwargs=kwargs)
    result = call.results[0] if is_product else None
    if result is None or result.name not in plan.pitches:
        return [*made, new]
    made += _into_buffer(plan, new, result)
    if result.name in plan.exact:
        made.append(_exact_copy(plan, result, call))
    return made


def _into_buffer(plan: _Plan, call: Extern, result: Value) -> list[Definition]:
    """Returns the allocation of a padded buffer, and a product that writes into it."""
    kind = plan.type_of(result.name)
    buffer = Value(plan.fresh(f"{result.name}_buffer"), kind)
    like = (("dtype", Tag("dtype", kind.dtype.name)), ("device", Tag("device", plan.graph.device)))
    made = Extern((buffer,), "aten.empty_strided.default", (kind.shape, kind.strides), like, origins=call.origins)
    written = replace(
        call,
        results=(Value(result.name, kind),),
        target=call.target.replace(".default", ".out"),
        kwargs=(*call.kwargs, ("out", whole(buffer))),
        aliases=((result.name, buffer.name),),
        mutates=(buffer.name,),
    )
    return [made, written]


def _exact_copy(plan: _Plan, result: Value, call: Extern) -> Loop:
    shape = result.type.shape
    body = load(result.name, grid_point(shape), result.type.dtype)
    return Loop((plan.exact[result.name],), grid_dims(shape), (body,), call.origins)


def _rewritten_output(plan: _Plan, position: int, output: Output) -> Output:
    if not isinstance(output, View):
        return output
    return plan.view(output, is_rigid=position not in plan.rules.free_outputs)


def _mapped(argument: Any, change: Callable[[View], View]) -> Any:
    """Returns a (nested) argument of a call with its views changed."""
    match argument:
        case View():
            return change(argument)
        case tuple():
            return tuple(_mapped(item, change) for item in argument)
    return argument
