"""Quotients that are rounded to a narrow type later: the fast division is exact enough for them."""

from __future__ import annotations

from ferrite_ir.dtypes import F32
from ferrite_ir.graph import bodies_of
from ferrite_ir.scalar import Scalar, postorder

from .flat import FlatKernel

KEEPING = frozenset(("minimum", "maximum"))
"""Operations whose result is one of their operands: they add no error to it."""


def clamped_quotients(flat: FlatKernel) -> frozenset[Scalar]:
    """Returns the f32 quotients of a kernel that are clamped, and used for nothing but rounding that to a narrow type.

    Quantisation is the model: ``cast.f8e4m3fn(minimum(maximum(x / scale, low), high))``.
    """
    roots = frozenset(body for definition in flat.definitions for body in bodies_of(definition))
    users: dict[Scalar, list[Scalar]] = {}
    nodes = list(postorder(roots))
    for node in nodes:
        for operand in node.args if node.op not in ("load", "const", "index") else ():
            users.setdefault(operand, []).append(node)
    clamps: set[Scalar] = set()
    found: set[Scalar] = set()
    for node in reversed(nodes):
        if node.dtype is not F32 or node in roots or node.op not in (*KEEPING, "div"):
            continue
        clamped = [user for user in users[node] if user in clamps]
        if not all(user in clamps or (user.op == "cast" and user.dtype.is_narrow_float) for user in users[node]):
            continue
        if node.op != "div":
            clamps.add(node)
        elif clamped:
            found.add(node)
    return frozenset(found)
