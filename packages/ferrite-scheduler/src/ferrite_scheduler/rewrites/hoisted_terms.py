"""Loop-invariant code motion: what a pointwise loop computes from few of its dims becomes a value of its own.

Source of the term: Muchnick, "Advanced compiler design and implementation" (1997), section 13.2.

A group norm of channels-last images scales each channel of each image: the factor depends on the outermost and the
innermost dim, and is the same for thousands of positions between them. A kernel over rows computes it once a row, and
one over tiles once for each column of a tile; but here every element is a new one for both. So it is in a kernel that
transposes on its way, where the threads that read hold a few elements of each of many rows.

Of one image the factor depends on the innermost dim alone, which is for a tile to compute once. But what is read
through a divided index, the moments of a channel's group, cuts that dim in two, and the tile with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import prod
from typing import Any

from ferrite_ir.language.graph import Definition, Graph, Loop, TensorType, Value
from ferrite_ir.language.index import Dim, FloorDiv, Index, Mod, constant
from ferrite_ir.language.ops import OPS, RANDOM, REQUIREMENTS
from ferrite_ir.language.scalar import Scalar, load, postorder, rewrite, substitute_dims
from ferrite_ir.language.sizes import is_static
from ferrite_scheduler.analysis.dim_orders import in_memory_order, operand_orders
from ferrite_scheduler.model.policy import Policy

OPAQUE = ("masked", *RANDOM, *REQUIREMENTS)
"""Operations of bodies that stay as they are: some loads must not happen everywhere, random numbers are drawn once."""


def separate_terms(graph: Graph, policy: Policy) -> Graph:
    """Returns the graph with such values defined by loops of their own; the same object where there are none."""
    types = {name: value.type for name, value in graph.values.items()}
    definitions: list[Definition] = []
    for definition in graph.definitions:
        if isinstance(definition, Loop) and _is_large(definition, policy):
            definitions.extend(_separated(definition, types, policy))
        else:
            definitions.append(definition)
    return graph if len(definitions) == len(graph.definitions) else replace(graph, definitions=tuple(definitions))


def _is_large(loop: Loop, policy: Policy) -> bool:
    if len(loop.results) != 1 or not all(is_static(dim.size) for dim in loop.dims):
        return False
    return prod(int(dim.size) for dim in loop.dims) * loop.results[0].type.dtype.bytes > policy.small_kernel_bytes


def _separated(loop: Loop, types: dict[str, TensorType], policy: Policy) -> Iterator[Definition]:
    """Yields the loops of a body's terms, and the loop that reads them."""
    body, result = loop.bodies[0], loop.results[0]
    if any(node.op in OPAQUE for node in postorder((body,))):
        yield loop
        return
    terms: dict[Scalar, Scalar] = {}
    units: dict[Dim, Index] = {dim: constant(0) for dim in loop.dims if dim.size == 1}
    for node, dims in _terms(body, _memory_orders(loop, types), policy):
        value = _value(result, node, dims, types)
        terms[node] = load(value.name, [dim.index for dim in dims], node.dtype)
        yield Loop((value,), dims, (substitute_dims(node, units),), loop.origins)
    yield replace(loop, bodies=(rewrite(body, lambda leaf: leaf, dict(terms)),)) if terms else loop


def _memory_orders(loop: Loop, types: dict[str, TensorType]) -> tuple[tuple[Dim, ...], ...]:
    """Returns the dims of a loop, those of extent 1 left out, in the orders in which tensors of its size lie in memory.

    These are its result, the first one, and the operands that it reads point by point.
    """
    order = in_memory_order(loop.dims, loop.results[0].type)
    return tuple(dict.fromkeys((order, *operand_orders(loop, types))))


def _terms(
    body: Scalar, orders: tuple[tuple[Dim, ...], ...], policy: Policy
) -> Iterator[tuple[Scalar, tuple[Dim, ...]]]:
    """Yields the largest parts of a body that are worth a value of their own, with the dims they depend on."""
    found: dict[Scalar, frozenset[Dim]] = {}
    cost: dict[Scalar, int] = {}
    divided: set[Scalar] = set()
    for node in postorder((body,)):
        below = [found[part] for part in node.args if isinstance(part, Scalar)]
        own = (dim for index in _indices(node) for dim in index.dims)
        found[node] = frozenset(own).union(*below)
        divisions = _divisions(node)
        own_cost = OPS[node.op].cost if node.op in OPS else policy.division_cost * divisions
        if divisions or not divided.isdisjoint(part for part in node.args if isinstance(part, Scalar)):
            divided.add(node)
        cost[node] = own_cost + sum(cost[part] for part in node.args if isinstance(part, Scalar))
    pending, seen = [body], {body}
    while pending:
        node = pending.pop()
        repeats = (_repeated(found[node], order, is_divided=node in divided) for order in orders)
        if cost[node] >= policy.hoisted_cost and any(points >= policy.hoisted_points for points in repeats):
            yield node, tuple(dim for dim in orders[0] if dim in found[node])
            continue
        for part in node.args:
            if isinstance(part, Scalar) and part not in seen:
                seen.add(part)
                pending.append(part)


def _divisions(node: Scalar) -> int:
    """Returns how many indices of a load are no mere sums of multiples of dims."""
    indices = (index for index in _indices(node) if isinstance(index, Index))
    return sum(any(isinstance(atom, (FloorDiv, Mod)) for atom, _ in index.terms) for index in indices)


def _indices(node: Scalar) -> Iterable[Any]:
    if node.op == "load":
        return node.indices
    return (node.args[0],) if node.op == "index" else ()


def _repeated(own: frozenset[Dim], dims: tuple[Dim, ...], *, is_divided: bool) -> int:
    """Returns how many points share what depends on these dims alone, if wherever a kernel puts them; 0 if not.

    They are some outermost and some innermost ones with many points between them, or, of what is read through divided
    indices, some innermost ones.
    """
    present = [dim in own for dim in dims]
    others = prod(int(dim.size) for dim, there in zip(dims, present, strict=True) if not there)
    return others if present and (present[0] or is_divided) and present[-1] else 0


def _value(result: Value, node: Scalar, dims: tuple[Dim, ...], types: dict[str, TensorType]) -> Value:
    name = f"{result.name}_term"
    while name in types:
        name += "_"
    types[name] = TensorType(node.dtype, tuple(dim.size for dim in dims), None, result.type.device)  # type: ignore[arg-type]
    return Value(name, types[name])
