"""Contractions: sums of products of two factors, as of matrices, the points of one dim in groups if need be.

Groups are runs of points of one dim, one behind the other, of lengths that only data knows ("ragged" in
``ragged_dot_general`` of XLA and in torch's ``_grouped_mm``; tokens sorted by expert in a mixture of experts):

    ends = 3 3 7         points     0 1 2 | 3 4 5 6 | 7 8
                         group        0   |    2    | none

If they are rows of the result, each row is multiplied with what its group has; if they are summed over, each group has
a sum of its own:

    left [m, k]   right [g, k, n]     result [m, n]        left [m, k]   right [k, n]      result [g, m, n]
    a a a         a a  b b  c c       a a                  a a a c c     a a               a a  0 0  c c
    a a a    x    a a  b b  c c   =   a a                  a a a c c  x  a a        =      a a  0 0  c c
    c c c         a a  b b  c c       c c                                a a
                                                                         c c
                                                                         c c
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from .dtypes import DType
from .index import Dim
from .scalar import Scalar
from .values import Origins, Value


@dataclass(frozen=True, slots=True)
class Segments:
    """Which group a point of a dim belongs to: point p to group g if ``ends`` is at most p at g - 1 and above p at g.

    Points from the last end on belong to no group.

    Attributes:
        of: the dim whose points are grouped, one of the result or one that is summed over.
        group: the dim of the groups: one of the result where ``of`` is summed over, otherwise known in factors alone.
        ends: where each group ends, an integer over ``group``, not negative and nowhere less than before.
    """

    of: Dim
    group: Dim
    ends: Scalar


@dataclass(frozen=True, slots=True)
class Contract:
    """Matrix-multiply-like: at each point of ``dims`` the sum over ``reduction_dims`` of ``left * right``.

    The sum is carried in f32 or wider.

    Attributes:
        fast: whether tensor cores may do so as fast as they can: round factors of f32 to TF32, and carry sums of 8-bit
            floats with the fewer digits that they keep.
        segments: the groups that points of one dim are in, None of most. Where a dim of the result is grouped, factors
            are those of its group, and the sum is 0 at points of none. Where a dim that is summed over is grouped,
            the result at a group is the sum over its points.
        stored: a narrower float type that the sums may be rounded to on their way through memory, as the op that they
            are of gives its result in that type; None where they count as they are.
    """

    result: Value
    dims: tuple[Dim, ...]
    reduction_dims: tuple[Dim, ...]
    left: Scalar
    right: Scalar
    origins: Origins = field(default=(), compare=False)
    fast: bool = False
    segments: Segments | None = None
    stored: DType | None = None

    @property
    def results(self) -> tuple[Value, ...]:
        """Returns the one result, as other definitions hold theirs."""
        return (self.result,)

    @property
    def bodies(self) -> tuple[Scalar, ...]:
        """Returns both factors and, where points are grouped, where groups end."""
        return (self.left, self.right) if self.segments is None else (self.left, self.right, self.segments.ends)

    def with_bodies(self, bodies: tuple[Scalar, ...]) -> Contract:
        """Returns the definition with other expressions, as many as `bodies` has; itself if they are the same."""
        if bodies == self.bodies:
            return self
        left, right, *ends = bodies
        segments = None if self.segments is None else replace(self.segments, ends=ends[0])
        return replace(self, left=left, right=right, segments=segments)

    @property
    def has_grouped_rows(self) -> bool:
        """Returns whether points of the result are grouped, and not those that are summed over."""
        return self.segments is not None and self.segments.of in self.dims

    @property
    def locals(self) -> tuple[Dim, ...]:
        """Returns the dims that factors know besides those of the domain: that of the groups of rows."""
        return () if self.segments is None or self.segments.group in self.dims else (self.segments.group,)


def segment_problems(contract: Contract) -> Iterator[tuple[str, str]]:
    """Yields what is wrong with the groups of a contraction: message, spot."""
    segments = contract.segments
    if segments is None:
        return
    of, group, ends = segments.of, segments.group, segments.ends
    if of not in (*contract.dims, *contract.reduction_dims):
        yield f"points of {of.name} are grouped, which is no dim of the domain", "segments"
    elif of in contract.dims and group in (*contract.dims, *contract.reduction_dims):
        yield (
            f"groups of {of.name}, a dim of the result, are a dim behind a second '|', as {group.name} is not",
            group.name,
        )
    elif of in contract.reduction_dims and group not in contract.dims:
        yield f"groups of {of.name}, which is summed over, are a dim of the result, as {group.name} is not", group.name
    if not ends.dtype.is_integer:
        yield f"groups end at {ends.dtype}, not at integers; insert cast.i32", "until"
    for dim in sorted(ends.dims - {group}, key=lambda dim: dim.order):
        yield f"the end of a group depends on {dim.name}, which it may not", "until"
