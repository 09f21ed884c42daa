"""Products of a matrix with few rows of another one: memory is read for the matrix alone, all rows at a time.

A kernel of such a *contraction* has its rows on axis ``y``, all of them in one tile, and its columns on ``x``: each
element of the matrix on the right is read once, whatever the number of rows. Tensor cores multiply it with sixteen rows
for nothing while the next ones are on their way, float32 in parts; two to four rows of float32 cost less without
them. Every other contraction is a reduction of products.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ferrite_ir.language.dtypes import BF16, F8E4M3FN, F8E5M2, F16, F32, I8, I64, U8
from ferrite_ir.language.graph import Computed, Contract, Definition, Reduction, Segments
from ferrite_ir.language.index import Dim
from ferrite_ir.language.scalar import Scalar, apply, cast, const, index_value, substitute_dims
from ferrite_ir.language.sizes import is_static, product

from .axes import Axis
from .policy import Policy

LEAST_EXTENT = 16
"""Fewest rows, columns and reduction points of a tile that tensor cores multiply."""
HALVES = (BF16, F16)
"""Types that tensor cores multiply exactly and add in f32."""
FACTORS = (*HALVES, F32)
"""Types that products of few rows have kernels for."""
EIGHT_BIT_FLOATS = (F8E4M3FN, F8E5M2)
"""Types that tensor cores multiply, too, whatever the number of rows."""
CODES = (I8, U8)
"""Types of weights that a half type, and f32, holds exactly."""
PARTS = 3
"""Parts of bfloat16 that a number of float32 has; see `split_precision`."""
TF32_BITS = -(1 << 13)
"""The bits of a float32 number that are those of a TF32 one, which tensor cores multiply; they cut off the others."""
PART_PRODUCTS = 3
"""Products of parts that are added up for one of f32 factors that are split in two parts each."""
CUT_ROWS = 4
"""Most rows whose parts are multiplied together: each part has a quarter of the sixteen rows that tensor cores take."""


def is_narrow(contract: Contract, policy: Policy) -> bool:
    """Returns whether a contraction is of several rows, but few, of a type that has kernels, with a matrix."""
    most = policy.product_rows if contract.left.dtype in HALVES else policy.wide_product_rows
    sizes = _sizes((*contract.dims, *contract.reduction_dims))
    if contract.left.dtype not in FACTORS or contract.segments is not None or not all(map(is_static, sizes)):
        return False
    rows = row_dims(contract)
    columns = [dim for dim in contract.dims if dim not in rows]
    if any(dim in contract.left.dims for dim in columns):
        return False
    count = product(_sizes(rows))
    return bool(
        1 < count <= most
        and product(_sizes(columns)) >= LEAST_EXTENT
        and product(_sizes(contract.reduction_dims)) >= LEAST_EXTENT
    )


def uses_tensor_cores(body: Iterable[Definition], policy: Policy) -> bool:
    """Returns whether some of the definitions are contractions that are for tensor cores: then all of them are."""
    return any(_is_for_tensor_cores(definition, policy) for definition in body if isinstance(definition, Contract))


def _is_for_tensor_cores(contract: Contract, policy: Policy) -> bool:
    """Returns whether multiplications of its rows one by one would take longer than its weights take to come."""
    is_half = contract.left.dtype in HALVES or bool(part_loads(contract))
    return is_half or product(_sizes(row_dims(contract))) > policy.multiplied_rows


def part_loads(contract: Contract) -> tuple[Scalar, ...]:
    """Returns the loads of the parts that the rows of a contraction are the sums of, the first one first.

    There are none if its rows are not cut in parts, or its weights are not of eight bits.
    """
    right = contract.right
    if right.op != "cast" or right.args[0].dtype not in CODES:
        return ()
    terms, found = [contract.left], []
    while terms:
        term = terms.pop()
        if term.op == "add":
            terms += term.args
        elif term.op == "cast" and term.args[0].op == "load" and term.args[0].dtype is BF16:
            found.append(term.args[0])
        else:
            return ()
    numbered = {part.indices[0].const: part for part in found if part.indices and part.indices[0].is_constant}
    kinds = {(part.source, *part.indices[1:]) for part in found}
    is_cut = len(kinds) == 1 and len(found) == PARTS and numbered.keys() == {*range(PARTS)}
    return tuple(numbered[number] for number in range(PARTS)) if is_cut else ()


def right_parts(contract: Contract) -> tuple[Scalar, Scalar] | None:
    """Returns the loads of the parts that the right factor of a contraction is the sum of; None of a whole one.

    Of the first one only the bits that TF32 has are meant, the second is the rest; see `split_factors`.
    """
    right = contract.right
    if right.op != "add" or right.dtype is not F32 or right.args[1].op != "load":
        return None
    kept = _kept_load(right.args[0])
    return None if kept is None else (kept, right.args[1])


def part_products(contract: Contract) -> int:
    """Returns how many products of parts are added up for one of whole factors: 1 where these are multiplied."""
    return 1 if right_parts(contract) is None else PART_PRODUCTS


def _kept_load(node: Scalar) -> Scalar | None:
    """Returns the load of which a value is the bits that TF32 has, None if it is anything else."""
    if node.op != "bitcast" or node.args[0].op != "bitand":
        return None
    bits, mask = node.args[0].args
    is_load = bits.op == "bitcast" and bits.args[0].op == "load" and bits.args[0].dtype is F32
    return bits.args[0] if is_load and mask.op == "const" and mask.value == TF32_BITS else None


def row_dims(contract: Contract) -> tuple[Dim, ...]:
    """Returns the dims that the matrix on the right does not depend on, but for that of groups."""
    known = contract.right.dims if contract.segments is None else {*contract.right.dims, contract.segments.group}
    return tuple(dim for dim in contract.dims if dim not in known)


def as_reduction(contract: Contract) -> Reduction:
    """Returns the reduction that computes what a contraction does: over all groups, where only data knows which."""
    left, right = (cast(side, contract.result.type.dtype) for side in (contract.left, contract.right))
    body, dims = apply("mul", left, right), (*contract.locals, *contract.reduction_dims)
    if contract.segments is not None:
        body = apply("masked", _is_in_group(contract.segments), body, const(0, body.dtype))
    return Reduction((contract.result,), "sum", contract.dims, dims, (body,), contract.origins)


def _is_in_group(segments: Segments) -> Scalar:
    """Returns whether a point is in a group, at both."""
    point, group, zero = index_value(segments.of.index, I64), segments.group, const(0, I64)
    before = cast(substitute_dims(segments.ends, {group: group.index - 1}), I64)
    start = apply("masked", apply("gt", index_value(group.index, I64), zero), before, zero)
    return apply("bitand", apply("le", start, point), apply("lt", point, cast(segments.ends, I64)))


def same_groups(contracts: Iterable[Contract]) -> bool:
    """Returns whether points of contractions over the same dims are in the same groups."""
    segments = [contract.segments for contract in contracts]
    ends = {None if each is None else (each.group.size, _named(each)) for each in segments}
    return len(ends) < 2


def _named(segments: Segments) -> Scalar:
    """Returns where groups end, over a dim that is called the same for all."""
    return substitute_dims(segments.ends, {segments.group: Dim("group", segments.group.size).index})


def fits_axes(body: Iterable[Computed], axes: Iterable[Axis]) -> bool:
    """Returns whether all contractions have types with kernels, their rows on ``y``, and their columns on ``x``.

    A batch of them lies on ``z``. Others have no kernel text.
    """
    named = {axis.name: frozenset(axis.dims) for axis in axes}
    contracts = [definition for definition in body if isinstance(definition, Contract)]
    if not contracts:
        return True
    return (
        named.keys() - {"z"} == {"y", "x", "r"}
        and same_groups(contracts)
        and all(
            contract.left.dtype in (*FACTORS, *EIGHT_BIT_FLOATS)
            and named["x"].isdisjoint(contract.left.dims)
            and named["y"].isdisjoint(contract.right.dims)
            and _has_grouped_axis(contract, named)
            for contract in contracts
        )
    )


def _has_grouped_axis(contract: Contract, axes: Mapping[str, frozenset[Dim]]) -> bool:
    """Returns whether what is in groups, if anything is, has an axis of its own: rows, or what is summed over."""
    segments = contract.segments
    if segments is None:
        return True
    if contract.has_grouped_rows:
        return axes["y"] == {segments.of}
    return axes["r"] == {segments.of} and axes.get("z", frozenset()) == {segments.group}


def _sizes(dims: Iterable[Dim]) -> list[object]:
    return [dim.size for dim in dims]
