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
from collections.abc import Iterator

from ferrite_ir.language.dtypes import F32, F64
from ferrite_ir.language.graph import Loop, bodies_of
from ferrite_ir.language.ops import CONVERSIONS
from ferrite_ir.language.scalar import Scalar
from ferrite_triton.analysis.approximations import resolved, users_of
from ferrite_triton.analysis.flat import FlatKernel

_SUMS = ("add", "sub")


def shared_products(flat: FlatKernel) -> frozenset[Scalar]:
    """Returns the products of a kernel that are part of a sum and of something else, or are read as 16-bit elements.

    A product that is rounded to a half type and widened again is contracted with what is added to it as well: the
    compiler takes the three for one product of that type.
    """
    _, _, users = users_of(flat)
    count: Counter[frozenset[Scalar]] = Counter()
    summed: set[frozenset[Scalar]] = set()
    found: dict[frozenset[Scalar], set[Scalar]] = {}
    read = {resolved(flat, operand) for operand in users}
    for operand, readers in users.items():
        product = resolved(flat, operand)
        if product.op != "mul" or product.dtype not in (F32, F64) or _is_exact(product):
            continue
        factors = _factors(flat, product)
        found.setdefault(factors, set()).add(product)
        count[factors] += len(readers)
        if any(reader.op in _SUMS for reader in readers):
            summed.add(factors)
        if any(reader.op in CONVERSIONS and reader.dtype.is_half and reader in read for reader in readers):
            summed.add(factors)
            count[factors] += 1
    for body in _seen_bodies(flat):
        if body.op == "mul":
            count[_factors(flat, body)] += 1
    return frozenset(product for factors in summed if count[factors] > 1 for product in found[factors])


def _seen_bodies(flat: FlatKernel) -> Iterator[Scalar]:
    """Yields what is stored, and what is reduced; what lies in a register alone is seen by those that read it."""
    for definition in flat.definitions:
        if isinstance(definition, Loop):
            pairs = zip(definition.results, definition.bodies, strict=True)
            yield from (resolved(flat, body) for value, body in pairs if value.name in flat.kernel.stored)
        else:
            yield from (resolved(flat, body) for body in bodies_of(definition))


def _factors(flat: FlatKernel, product: Scalar) -> frozenset[Scalar]:
    """Returns what is multiplied: ``x * y`` and ``y * x`` are one number."""
    return frozenset(resolved(flat, operand) for operand in product.args)


def _is_exact(product: Scalar) -> bool:
    """Returns whether a product is not rounded at all: by a power of two."""
    return any(
        operand.op == "const" and operand.value != 0 and math.frexp(operand.value)[0] in (0.5, -0.5)
        for operand in product.args
    )
