"""Contractions that are computed tile by tile: a program has a tile of the result, and adds up its products in blocks.

    left [y, r]        right [r, x]            result [y, x]
    · · · · · · ·      · ▒ ▒ ·                 · · · ·
    ▒ ▒ ▒ ▒ ▒ ▒ ▒  x   · ▒ ▒ ·        =        · █ █ ·     one program: the strip of rows times the strip of columns,
    ▒ ▒ ▒ ▒ ▒ ▒ ▒      · ▒ ▒ ·                 · █ █ ·     block by block along r
    · · · · · · ·      · ▒ ▒ ·                 · · · ·

The dims of such a contraction fall into three sets, by which of its factors depend on them: *rows* (``y``, the left one
alone), *columns* (``x``, the right one alone) and *batch* (``z``, both). This is the classification of ``dot_general``
in XLA. A factor that is the same for a whole batch makes rows, or columns, of it. Groups that have a sum each
(`ferrite_ir.Segments`) are a batch, too; those of rows are no dim of the result: a tile has rows of one of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ferrite_ir.language.dtypes import F32
from ferrite_ir.language.graph import Contract, Graph
from ferrite_ir.language.index import Dim
from ferrite_ir.language.sizes import is_static, product

from .contractions import EIGHT_BIT_FLOATS, HALVES, LEAST_EXTENT, as_reduction, is_narrow, right_parts
from .policy import Policy

FACTORS = (*HALVES, *EIGHT_BIT_FLOATS)
"""Types that tiles are multiplied in; f32 is one where it may be rounded (`Contract.fast`), or is split in parts."""


@dataclass(frozen=True, slots=True)
class Roles:
    """The dims of the result of a contraction by which of its factors depend on them; ``others`` neither does."""

    batch: tuple[Dim, ...]
    rows: tuple[Dim, ...]
    columns: tuple[Dim, ...]
    others: tuple[Dim, ...]


def roles_of(contract: Contract) -> Roles:
    """Returns which factors the dims of a contraction belong to."""
    both = frozenset[Dim]() if contract.segments is None else frozenset((contract.segments.group,))
    left, right = contract.left.dims | both, contract.right.dims | both

    def those(*, in_left: bool, in_right: bool) -> tuple[Dim, ...]:
        return tuple(dim for dim in contract.dims if (dim in left, dim in right) == (in_left, in_right))

    return Roles(
        batch=those(in_left=True, in_right=True),
        rows=those(in_left=True, in_right=False),
        columns=those(in_left=False, in_right=True),
        others=those(in_left=False, in_right=False),
    )


def fits_tiles(contract: Contract, policy: Policy) -> bool:
    """Returns whether a contraction is of types that tiles are multiplied in, with rows and columns of its own."""
    roles, dtype = roles_of(contract), contract.left.dtype
    return (
        (dtype in FACTORS or (dtype is F32 and (contract.fast or is_in_parts(contract, policy))))
        and _has_several(roles.rows)
        and _has_several(roles.columns)
        and not _has_several(roles.others)
        and _has_several(contract.reduction_dims)
        and _has_groups_for_tiles(contract, roles)
    )


def is_in_parts(contract: Contract, policy: Policy) -> bool:
    """Returns whether factors of f32 that may not be rounded are multiplied in parts of TF32 (`split_factors`)."""
    if right_parts(contract) is not None:
        return True
    if contract.left.dtype is not F32 or contract.fast or contract.segments is not None or not policy.split_points:
        return False
    sizes = [dim.size for dim in (*contract.dims, *contract.reduction_dims)]
    roles, points = roles_of(contract), product(dim.size for dim in contract.reduction_dims)
    rows, columns = (product(dim.size for dim in dims) for dims in (roles.rows, roles.columns))
    return all(map(is_static, sizes)) and points >= policy.split_points and min(rows, columns) >= LEAST_EXTENT


def _has_groups_for_tiles(contract: Contract, roles: Roles) -> bool:
    """Returns whether what is in groups, if anything is, are all rows, or all that is summed over."""
    segments = contract.segments
    if segments is None:
        return True
    if 1 in (segments.of.size, segments.group.size) or not is_static(segments.group.size):
        return False
    if contract.has_grouped_rows:
        return roles.rows == (segments.of,) and not roles.batch
    return contract.reduction_dims == (segments.of,) and roles.batch == (segments.group,)


def _has_several(dims: Iterable[Dim]) -> bool:
    """Returns whether there is a dim with more than one point: dims of one point lie on no axis."""
    return any(dim.size != 1 for dim in dims)


def is_tiled(contract: Contract, policy: Policy) -> bool:
    """Returns whether a contraction becomes a kernel of tiles: it fits them, and does not have few rows."""
    return policy.tile_products and fits_tiles(contract, policy) and not is_narrow(contract, policy)


def keep_contractions(graph: Graph, policy: Policy) -> Graph:
    """Returns the graph with reductions in place of contractions that no kernel of contractions is for.

    The same object where there are none.
    """
    definitions = tuple(
        as_reduction(d) if isinstance(d, Contract) and not (is_narrow(d, policy) or is_tiled(d, policy)) else d
        for d in graph.definitions
    )
    return graph if definitions == graph.definitions else replace(graph, definitions=definitions)
