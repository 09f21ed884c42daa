"""Fast division and exponentials: which quotients may be off by more than one rounding.

For those that are rounded to a narrow type later, or are terms of a sum, the fast division is exact enough, and so is
the fast exponential for what is divided, where the divisor is no small number. Those of a softmax are shares of a
whole, for which the exact division has no special cases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from ferrite_ir.language.dtypes import F32
from ferrite_ir.language.graph import Loop, Reduction, bodies_of
from ferrite_ir.language.ops import CONVERSIONS
from ferrite_ir.language.scalar import Scalar, postorder
from ferrite_triton.analysis.flat import FlatKernel

CARRYING = frozenset(("minimum", "maximum", "neg", "abs", "mul", "add", "sub", "where", "masked"))
"""Operations whose result is off by no more than its operands are: they have no jumps, and no steep places."""

TERMS = frozenset(("neg", "abs", "mul", "where", "masked"))
"""Those of them whose result is off by no larger part of itself than its operands are."""


def rounded_quotients(flat: FlatKernel) -> frozenset[Scalar]:
    """Returns the f32 quotients of a kernel of which nothing is seen but what is rounded to a narrow type, or summed.

    Quantisation is a model, ``cast.f8e4m3fn(minimum(maximum(x / scale, low), high))``, and a step of an optimiser,
    ``cast.bf16(old + rate * (mean / scale))``. Up to 2 ulp of f32 instead of half of one are lost there. Where the sum
    cancels, so that they show in a narrow result, its other terms' roundings to f32 show as well. So they do in the
    sum of a row: its additions lose as much of the terms, in an order that nobody promises. Quotients of such quotients
    lose as much twice.
    """
    seen, summed, nodes, users = _uses(flat)
    carried: set[Scalar] = set()
    terms: set[Scalar] = set()
    found: set[Scalar] = set()
    for node in reversed(nodes):
        if node.dtype is not F32 or node in seen or node.op not in (*CARRYING, "div"):
            continue
        read = users.get(node, [])
        if node.op in (*TERMS, "div") and all(user in terms for user in read) and (read or node in summed):
            terms.add(node)
            if node.op == "div":
                found.add(node)
        if node in summed or not all(user in carried or _narrows(user) for user in read):
            continue
        if node.op != "div":
            carried.add(node)
        elif not carried.isdisjoint(read):
            found.add(node)
    return frozenset(found)


def _uses(flat: FlatKernel) -> tuple[frozenset[Scalar], frozenset[Scalar], list[Scalar], dict[Scalar, list[Scalar]]]:
    """Returns what is seen as it is, the terms of sums, the nodes of a kernel, and for each those that it is part of.

    Nodes come before those that they are part of. What a loop computes for others in the kernel is part of theirs.
    """
    seen: set[Scalar] = set()
    summed: set[Scalar] = set()
    nodes: dict[Scalar, None] = {}
    for definition in flat.definitions:
        for body in bodies_of(definition):
            nodes.update(dict.fromkeys(postorder((body,))))
        if isinstance(definition, Reduction) and definition.combine == "sum":
            summed.update(definition.bodies)
        elif isinstance(definition, Loop):
            pairs = zip(definition.results, definition.bodies, strict=True)
            seen.update(body for result, body in pairs if result.name in flat.kernel.stored)
        else:
            seen.update(bodies_of(definition))
    users = _readers(nodes, lambda operand: resolved(flat, operand))
    seen |= {resolved(flat, node) for node in seen}
    return frozenset(seen), frozenset(resolved(flat, node) for node in summed), list(nodes), users


def weights(flat: FlatKernel) -> tuple[frozenset[Scalar], frozenset[Scalar]]:
    """Returns the f32 quotients by a sum of at least one that are rounded to a narrow type, and what is exp for them.

    Softmax is the model: ``cast.bf16(div(exp(x - max), sum))``. Multiplying by the reciprocal of such a sum neither
    overflows nor loses more than the fast division does, and an exponential too small for a normal number of f32 is
    nothing beside the largest of its row.
    """
    roots, nodes, users = users_of(flat)
    quotients = frozenset(node.args[0] for node in nodes if _narrows(node) and _is_weight(flat, node.args[0]))
    return quotients, frozenset(
        node
        for node in nodes
        if node.op == "exp"
        and node.dtype is F32
        and node not in roots
        and all(user in quotients and user not in roots and _is_rounded(users[user]) for user in users[node])
    )


def shares(flat: FlatKernel) -> dict[Scalar, Reduction]:
    """Returns the f32 quotients ``exp(x - max) / sum`` of softmaxes over ``x``: what is divided is at most one."""
    found = {}
    for node in postorder(body for definition in flat.definitions for body in bodies_of(definition)):
        reduction = _softmax_of(flat, node.args[1], 1) if node.op == "div" and node.dtype is F32 else None
        if reduction is not None and _is_power(flat, resolved(flat, node.args[0]), reduction):
            found[node] = reduction
    return found


def _is_power(flat: FlatKernel, node: Scalar, reduction: Reduction) -> bool:
    """Returns whether a value is ``exp(x - max)`` for an online softmax over ``x``."""
    if node.op != "exp":
        return False
    distance = resolved(flat, node.args[0])
    if distance.op != "sub" or _softmax_of(flat, distance.args[1], 0) is not reduction:
        return False
    return resolved(flat, distance.args[0]) == resolved(flat, reduction.bodies[0])


def _is_rounded(users: list[Scalar]) -> bool:
    """Returns whether a value is used for nothing but casts to narrow types."""
    return all(map(_narrows, users))


def _narrows(node: Scalar) -> bool:
    """Returns whether a node converts to a type narrower than f32."""
    return node.op in CONVERSIONS and node.dtype.is_narrow_float


def _is_weight(flat: FlatKernel, node: Scalar) -> bool:
    return node.op == "div" and node.dtype is F32 and _softmax_of(flat, node.args[1], 1) is not None


def _softmax_of(flat: FlatKernel, node: Scalar, position: int) -> Reduction | None:
    """Returns the online softmax whose maximum (0) or sum (1) a value is, but for rows whose results are NaN.

    Such a sum is at least one.
    """
    node = resolved(flat, node)
    while node.op == "where" and node.args[1].op == "const" and math.isnan(node.args[1].value):
        node = resolved(flat, node.args[2])
    definition, result = flat.producers.get(node.source, (None, 0)) if node.op == "load" else (None, 0)
    is_found = isinstance(definition, Reduction) and definition.combine == "online_softmax" and result == position
    return definition if is_found else None  # type: ignore[return-value]


def resolved(flat: FlatKernel, node: Scalar) -> Scalar:
    """Returns what a value is that a loop of the kernel computes at each point."""
    while node.op == "load":
        definition, position = flat.producers.get(node.source, (None, 0))
        if not isinstance(definition, Loop):
            break
        node = definition.bodies[position]
    return node


def users_of(flat: FlatKernel) -> tuple[frozenset[Scalar], list[Scalar], dict[Scalar, list[Scalar]]]:
    """Returns the bodies of a kernel, the nodes under them, operands first, and for each node those it is part of."""
    roots = frozenset(body for definition in flat.definitions for body in bodies_of(definition))
    nodes = list(postorder(roots))
    return roots, nodes, _readers(nodes, lambda operand: operand)


def _readers(nodes: Iterable[Scalar], key: Callable[[Scalar], Scalar]) -> dict[Scalar, list[Scalar]]:
    """Returns for the key of each operand the nodes that it is part of."""
    found: dict[Scalar, list[Scalar]] = {}
    for node in nodes:
        for operand in node.args if node.op not in ("load", "const", "index") else ():
            found.setdefault(key(operand), []).append(node)
    return found
