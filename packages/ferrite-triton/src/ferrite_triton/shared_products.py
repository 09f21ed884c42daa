"""Products that several values are made of, which are rounded before anything is added to them (no contraction).

GPUs compute ``x * y + z`` with one rounding (*fused multiply-add*), and compilers contract a product and a sum into it,
unless told not to. That is more exact, so it is done where the sum is all that the product is for. Where something else
reads the product too, the two would see different numbers::

    p = x * y;  p - p                     fma(x, y, -p): the rounding error of p, where eager has 0
    p = x * y;  h = rounded.bf16(p);  p - h

What such a product is to C, ``#pragma STDC FP_CONTRACT`` (ISO/IEC 9899, 6.5 and 7.12.2) says for a whole block.
"""

from __future__ import annotations

import math
from collections import Counter

from ferrite_ir.dtypes import F32, F64
from ferrite_ir.graph import Loop, bodies_of
from ferrite_ir.scalar import Scalar

from .flat import FlatKernel
from .quotients import resolved, users_of

_SUMS = ("add", "sub")


def shared_products(flat: FlatKernel) -> frozenset[Scalar]:
    """Returns the products of a kernel that are part of a sum, and of something else besides."""
    _, _, users = users_of(flat)
    count: Counter[Scalar] = Counter()
    summed: set[Scalar] = set()
    for operand, readers in users.items():
        product = resolved(flat, operand)
        if product.op == "mul" and product.dtype in (F32, F64) and not _is_exact(product):
            count[product] += len(readers)
            if any(reader.op in _SUMS for reader in readers):
                summed.add(product)
    for definition in flat.definitions:
        if isinstance(definition, Loop):  # what lies in a register alone is read by nobody but the users above
            pairs = zip(definition.results, definition.bodies, strict=True)
            count.update(resolved(flat, body) for value, body in pairs if value.name in flat.kernel.stored)
        else:
            count.update(resolved(flat, body) for body in bodies_of(definition))
    return frozenset(product for product in summed if count[product] > 1)


def _is_exact(product: Scalar) -> bool:
    """Returns whether a product is not rounded at all: by a power of two."""
    return any(
        operand.op == "const" and operand.value != 0 and math.frexp(operand.value)[0] in (0.5, -0.5)
        for operand in product.args
    )
