"""Accumulated products: a sum of matrix products that are computed far apart is added up product by product.

    p0 = mm(a0, b0)              p0 = mm(a0, b0)
    …                            …
    p1 = mm(a1, b1)              p1 = addmm(p0, a1, b1)
    …                            …
    p2 = mm(a2, b2)              w  = addmm(p1, a2, b2)
    …
    w[i, j] = p0[i, j] + p1[i, j] + p2[i, j]

The gradient of a weight that a model uses several times is such a sum. One kernel that adds all products reads each of
them once, and so they all wait for the last one: as many matrices as there are uses. The library adds to a matrix while
it multiplies; then there is one. That costs it a read and a copy of that matrix, so it is done only where the products
that wait make up a part of the most memory that the program needs at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from ferrite_ir.language.graph import Definition, Extern, Graph, Loop, TensorType, Update, Value, names_read, whole
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar, apply, rewrite
from ferrite_scheduler.analysis.generic_sizes import storage_bytes
from ferrite_scheduler.model.policy import Policy

PRODUCT, ADDED_PRODUCT = "aten.mm.default", "aten.addmm.default"


@dataclass(frozen=True, slots=True)
class _Sum:
    """A loop that adds products.

    Attributes:
        reader: the position of the loop.
        products: positions of the products, in order.
        tree: the addition in the loop's body.
        kept: what is added besides the products, and the last one of these, in order.
    """

    reader: int
    products: tuple[int, ...]
    tree: Scalar
    kept: tuple[Scalar, ...]


def accumulate_products(graph: Graph, policy: Policy) -> Graph:
    """Returns the graph with sums of products accumulated where that lowers the peak of memory."""
    sums = list(_sums(graph, policy))
    if not sums:
        return graph
    lives = _Lives.of(graph)
    chosen = [each for each in sums if lives.shorten(each.products, each.reader, policy)]
    return _accumulated(graph, chosen) if chosen else graph


# --- which sums -------------------------------------------------------------------------------------------------------


def _sums(graph: Graph, policy: Policy) -> Iterator[_Sum]:
    """Yields the sums of products of a graph that nobody reads but the loop which adds them."""
    readers: Counter[str] = Counter(name for definition in graph.definitions for name in names_read(definition))
    readers.update(graph.output_names)
    readers.update(name for pair in graph.mutations for name in pair)
    made = {
        definition.results[0].name: index
        for index, definition in enumerate(graph.definitions)
        if isinstance(definition, Extern) and _is_product(definition) and definition.results[0] is not None
    }
    made = {name: index for name, index in made.items() if readers[name] == 1}
    if len(made) < policy.accumulated_products:
        return
    types = {name: value.type for name, value in graph.values.items()}
    for index, definition in enumerate(graph.definitions):
        if isinstance(definition, Loop) and len(definition.results) == 1:
            yield from _sums_of(index, definition.bodies[0], made, types, policy)


def _is_product(definition: Extern) -> bool:
    return definition.target == PRODUCT and not definition.kwargs and len(definition.results) == 1


def _sums_of(
    reader: int, body: Scalar, made: dict[str, int], types: dict[str, TensorType], policy: Policy
) -> Iterator[_Sum]:
    """Yields the sums in the body of a loop: of products of one type that it reads at one place."""
    for tree in _additions(body):
        leaves = list(_leaves(tree))
        groups: dict[tuple[str, tuple[Index, ...], TensorType], list[Scalar]] = {}
        for leaf in leaves:
            load = _load_in(leaf)
            if load is not None and load.source in made and body.loads.count(load) == 1:
                groups.setdefault((leaf.op, load.indices, types[load.source]), []).append(leaf)
        for (_, _, kind), group in groups.items():
            sources = {made[_source(leaf)]: leaf for leaf in group}
            if len(sources) != len(group) or len(group) < policy.accumulated_products:
                continue
            if storage_bytes(kind) < policy.accumulated_bytes:
                continue
            last = sources[max(sources)]
            kept = tuple(leaf for leaf in leaves if leaf is last or leaf not in group)
            yield _Sum(reader, tuple(sorted(sources)), tree, kept)
            break


def _additions(body: Scalar) -> Iterator[Scalar]:
    """Yields the additions of a body that are no part of another one."""
    pending = [body]
    while pending:
        node = pending.pop()
        if node.op == "add":
            yield node
            pending.extend(part for leaf in _leaves(node) for part in leaf.args if isinstance(part, Scalar))
        else:
            pending.extend(part for part in node.args if isinstance(part, Scalar))


def _leaves(node: Scalar) -> Iterator[Scalar]:
    """Yields what an addition adds, in order."""
    if node.op != "add":
        yield node
        return
    for part in node.args:
        yield from _leaves(part)


def _load_in(leaf: Scalar) -> Scalar | None:
    """Returns the load that a summand is, perhaps in a wider type."""
    inner = leaf.args[0] if leaf.op == "cast" else leaf
    return inner if isinstance(inner, Scalar) and inner.op == "load" else None


def _source(leaf: Scalar) -> str:
    load = _load_in(leaf)
    assert load is not None, "a summand of a group is a load"
    return load.source


# --- what waits -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Lives:
    """How many bytes are alive at each definition, in program order, and how many each product has."""

    live: list[int]
    sizes: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, graph: Graph) -> _Lives:
        """Returns the lives of a graph's storages: from where they are made until they are last read."""
        roots: dict[str, str] = {}
        first: dict[str, int] = {value.name: 0 for value in graph.inputs}
        last: dict[str, int] = {}
        for index, definition in enumerate(graph.definitions):
            for name, root in _shares(definition):
                roots[name] = roots.get(root, root)
            for value in _results(definition):
                first.setdefault(roots.get(value.name, value.name), index)
                last[roots.get(value.name, value.name)] = index
            for name in names_read(definition):
                last[roots.get(name, name)] = index
        end = len(graph.definitions)
        for name in graph.output_names:
            last[roots.get(name, name)] = end
        deltas = [0] * (end + 2)
        for name, index in last.items():
            size = storage_bytes(graph.values[name].type)
            deltas[first[name]] += size
            deltas[index + 1] -= size
        live, now = [], 0
        for delta in deltas:
            now += delta
            live.append(now)
        sizes = [max((storage_bytes(value.type) for value in _results(d)), default=0) for d in graph.definitions]
        return cls(live, sizes)

    def shorten(self, products: Sequence[int], reader: int, policy: Policy) -> bool:
        """Ends the lives of products where the next one is added to them, unless that gains too little.

        What counts is how many bytes fewer are alive where most are, on average. Returns whether it was done.
        """
        changed = list(self.live)
        for index, following in pairwise(products):
            for position in range(following + 1, reader + 1):
                changed[position] -= self.sizes[index]
        peak = max(self.live)
        near = policy.accumulated_near_peak * peak
        gains = [old - new for old, new in zip(self.live, changed, strict=True) if old >= near]
        if sum(gains) * policy.accumulated_share < peak * len(gains):
            return False
        self.live = changed
        return True


def _shares(definition: Definition) -> Iterable[tuple[str, str]]:
    """Returns the results that lie in the storage of an older value, with that value."""
    if isinstance(definition, Update):
        return [(definition.result.name, definition.target)]
    return definition.aliases if isinstance(definition, Extern) else ()


def _results(definition: Definition) -> Iterator[Value]:
    return (value for value in definition.results if value is not None)


# --- the graph --------------------------------------------------------------------------------------------------------


def _accumulated(graph: Graph, sums: Sequence[_Sum]) -> Graph:
    definitions: list[Definition | None] = list(graph.definitions)
    for each in sums:
        total: Value | None = None
        for index in each.products:
            product = definitions[index]
            assert isinstance(product, Extern), "products are extern calls"
            if total is not None:
                product = replace(product, target=ADDED_PRODUCT, args=(whole(total), *product.args))
            (total,) = product.results
            definitions[index] = product
        assert total is not None, "a sum has products"
        loop = definitions[each.reader]
        assert isinstance(loop, Loop), "products are added by a loop"
        definitions[each.reader] = _with_sum(loop, each)
        _take_over(definitions, each, total)
    return replace(graph, definitions=tuple(d for d in definitions if d is not None))


def _with_sum(loop: Loop, each: _Sum) -> Loop:
    """Returns the loop that adds what is left: the last product has all of them."""
    rest = each.kept[0]
    for leaf in each.kept[1:]:
        rest = apply("add", rest, leaf)
    return replace(loop, bodies=(rewrite(loop.bodies[0], lambda node: node, {each.tree: rest}),))


def _take_over(definitions: list[Definition | None], each: _Sum, total: Value) -> None:
    """Makes the last product the result of the loop, where that would only copy it."""
    loop, last = definitions[each.reader], definitions[each.products[-1]]
    assert isinstance(loop, Loop)
    assert isinstance(last, Extern)
    body, (result,) = _uncast(loop.bodies[0]), loop.results
    is_copy = body.op == "load" and body.source == total.name and body.indices == tuple(d.index for d in loop.dims)
    if is_copy and result.type == total.type:
        origins = tuple(dict.fromkeys((*last.origins, *loop.origins)))
        definitions[each.products[-1]] = replace(last, results=(result,), origins=origins)
        definitions[each.reader] = None


def _uncast(body: Scalar) -> Scalar:
    """Returns a body without casts there and back: into a type of at least as many bytes, and out of it."""
    inner, narrowest = body, body.dtype.bytes
    while inner.op == "cast" and isinstance(inner.args[0], Scalar):
        narrowest = min(narrowest, inner.dtype.bytes)
        inner = inner.args[0]
    return inner if inner.dtype is body.dtype and narrowest >= body.dtype.bytes else body
