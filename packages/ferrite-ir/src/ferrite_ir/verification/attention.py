"""Rules of attention: what its expressions may depend on, and their types."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ferrite_ir.language.attend import FACTORS, Attend
from ferrite_ir.language.dtypes import BOOL, F32
from ferrite_ir.language.index import Dim
from ferrite_ir.language.scalar import Scalar

DEPENDS, TYPES = "V09", "V25"


def attend_problems(attend: Attend, defined: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """Yields what is wrong with an attention, beside its domain, its loads and its results: rule, message, spot.

    Args:
        attend: the definition.
        defined: names of the values that there are.
    """
    yield from _name_problems(attend, defined)
    if len(attend.weights) != len(attend.factors) or not attend.weights:
        counts = f"{len(attend.weights)} weights are multiplied by {len(attend.factors)} factors"
        yield TYPES, f"{counts}; there is one for each", "times"
    if attend.is_softmax and len(attend.weights) > 1:
        yield TYPES, "a softmax has one weight", "weigh"
    if attend.scale is not None and not attend.is_softmax:
        yield TYPES, "shares of a softmax are scaled; multiply the weights of a sum", " scaled by "
    yield from _type_problems(attend)
    for what, body, allowed in _bodies(attend):
        for dim in sorted(body.dims - allowed, key=lambda dim: dim.order):
            yield DEPENDS, f"{what} depends on {dim.name}, which it may not", dim.name
        if any(load.source in attend.names for load in body.loads) and what != "a weight":
            yield TYPES, f"{what} is made of products, which only weights are", "attend"


def _name_problems(attend: Attend, defined: Collection[str]) -> Iterator[tuple[str, str, str]]:
    names = [product.name for product in attend.products]
    for name in dict.fromkeys(names):
        if name in defined or names.count(name) > 1 or not name.isidentifier():
            yield "V01", f"{name!r} is defined before already, or no identifier; name the product something else", name


def _type_problems(attend: Attend) -> Iterator[tuple[str, str, str]]:
    for product in attend.products:
        if product.left.dtype is not product.right.dtype or product.left.dtype not in FACTORS:
            kinds = f"{product.left.dtype} and {product.right.dtype}"
            yield TYPES, f"{product.name} multiplies {kinds}; both are one of bf16, f16 and f32", " * "
    for weight in attend.weights:
        if weight.dtype is not F32:
            yield TYPES, f"a weight is {weight.dtype}; insert cast.f32", "weigh"
    for factor in attend.factors:
        if factor.dtype not in FACTORS:
            yield TYPES, f"a factor is {factor.dtype}, not one of bf16, f16 and f32", "times"
    if attend.scale is not None and attend.scale.dtype is not F32:
        yield TYPES, f"the scale is {attend.scale.dtype}; insert cast.f32", " scaled by "
    if attend.mask is not None and attend.mask.dtype is not BOOL:
        yield "V19", f"the mask is {attend.mask.dtype}; compare it with zero", " if "
    for each in () if attend.blocks is None else attend.blocks.lists:
        for part in (each.count, each.position):
            if not part.dtype.is_integer:
                yield TYPES, f"a list of blocks holds {part.dtype}, not integers", "blocks"


def _bodies(attend: Attend) -> Iterator[tuple[str, Scalar, frozenset[Dim]]]:
    """Yields every expression with what it is and the dims that it may depend on."""
    batch, row = frozenset(attend.batch), frozenset((attend.row,))
    along, column = frozenset((attend.along,)), frozenset((attend.column,))
    for product in attend.products:
        depth = frozenset((product.depth,))
        yield f"the left factor of {product.name}", product.left, batch | row | depth
        yield f"the right factor of {product.name}", product.right, batch | along | depth
    yield from (("a weight", weight, batch | row | along) for weight in attend.weights)
    yield from (("a factor", factor, batch | along | column) for factor in attend.factors)
    if attend.scale is not None:
        yield "the scale", attend.scale, batch | row | along
    if attend.mask is not None:
        yield "the mask", attend.mask, batch | row | along
    for each in () if attend.blocks is None else attend.blocks.lists:
        yield "the number of blocks", each.count, batch | row
        yield "the place of a block", each.position, batch | row | {each.slot}
