"""Attention: rows of scores that are never stored.

A score matrix has a row for each point of ``row`` and a column for each point of ``along``. An `Attend` makes it block
by block out of products of two factors, and at once multiplies what it makes of the scores by a third one, so that
nothing of the size of the matrix lies in memory:

    queries [row, d]   keys [along, d]     scores [row, along]         values [along, e]     result [row, e]
    · · ·              · · ·               weight(q·k, row, along)     · · · ·               · · · ·
    ▒ ▒ ▒       x      · · ·        =      ▒ ▒ ▒ ▒ ▒ ▒ ▒          x    · · · ·          =    █ █ █ █
    · · ·              · · ·                                           · · · ·               · · · ·

Its weights are either made a softmax of each row, in one pass (Milakov and Gimelshein, "Online normalizer calculation
for softmax", 2018; Dao and others, "FlashAttention", 2022), or multiplied as they are, which is what gradients need.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from .dtypes import BF16, F16, F32
from .index import Dim
from .scalar import Scalar
from .values import Origins, Value

SOFTMAX, SUM = "softmax", "sum"
KINDS = (SOFTMAX, SUM)
"""What becomes of the weights of a row: they are normalised, or they are not."""
FACTORS = (BF16, F16, F32)
"""Types that are multiplied."""


@dataclass(frozen=True, slots=True)
class ScoreProduct:
    """A matrix of sums of products, carried in f32; an element of it is the load ``name[]`` in weights.

    Attributes:
        name: known in the weights of this definition alone, and no name of a value of the graph.
        left: the factor that depends on the batch, the row and ``depth``.
        right: the factor that depends on the batch, ``along`` and ``depth``.
        depth: what is summed over.
    """

    name: str
    left: Scalar
    right: Scalar
    depth: Dim


@dataclass(frozen=True, slots=True)
class BlockList:
    """Which blocks of the columns a row attends to: those at ``position`` for the first ``count`` values of ``slot``.

    Attributes:
        slot: a position in the list.
        count: how many there are, an integer over the batch and the row.
        position: the number of a block, an integer over the batch, the row and ``slot``.
    """

    slot: Dim
    count: Scalar
    position: Scalar


@dataclass(frozen=True, slots=True)
class BlockSparsity:
    """The blocks of a score matrix that are computed; all others are masked.

    Rows of one block of ``rows`` have one list: what the lists say depends on ``row // rows`` alone.

    Attributes:
        rows, columns: points of ``row`` and of ``along`` of a block.
        masked: blocks in which the mask says what counts.
        whole: blocks in which everything counts, whatever the mask says; None for none.
    """

    rows: int
    columns: int
    masked: BlockList
    whole: BlockList | None = None

    @property
    def lists(self) -> tuple[BlockList, ...]:
        """Returns the lists of blocks."""
        return (self.masked,) if self.whole is None else (self.masked, self.whole)


@dataclass(frozen=True, slots=True)
class Attend:
    """Weighted sums over ``along``, with weights made of products: attention, and what its gradients are made of.

    At each point of ``dims``, which are those of the batch, the row and the column of the result, with ``w`` the weight
    where the mask and the blocks allow it:

    * of the kind ``sum`` result ``i`` is the sum of ``w_i * factor_i``, with ``w`` 0 where it is masked;
    * of the kind ``softmax`` the results are the sum of ``softmax(w) * factor``, with ``w`` -inf where it is masked (0
      for a row that is masked altogether); the logarithm to base 2 of the sum of ``exp(w)``; and the maximum of ``w``
      times ``log2(e)``. The last two have no column, and may be left out. With ``scale`` the sum is one of
      ``softmax(w) * scale * factor``: dropout, say, whose scale is 0 or one over the share that is kept.

    A weight is rounded to the type of its factor before they are multiplied; in a softmax, after a power of its row has
    been taken off. Sums are carried in f32.

    Attributes:
        kind: ``softmax`` or ``sum``.
        dims: batch, row and column; the last two are always there.
        along: the columns of the score matrix.
        products: of which weights are made.
        weights: over the batch, the row and ``along``; f32.
        factors: one for each weight, over the batch, ``along`` and the column.
        mask: over the batch, the row and ``along``; None where everything counts.
        blocks: which parts are computed at all; None for all.
        scale: what shares of a softmax are multiplied by once they are normalised, over the batch, the row and
            ``along``; f32. None for 1.
    """

    results: tuple[Value, ...]
    kind: str
    dims: tuple[Dim, ...]
    along: Dim
    products: tuple[ScoreProduct, ...]
    weights: tuple[Scalar, ...]
    factors: tuple[Scalar, ...]
    mask: Scalar | None = None
    blocks: BlockSparsity | None = None
    scale: Scalar | None = None
    origins: Origins = field(default=(), compare=False)

    @property
    def batch(self) -> tuple[Dim, ...]:
        """Returns the dims that all factors may depend on."""
        return self.dims[:-2]

    @property
    def row(self) -> Dim:
        """Returns the dim of the rows of the score matrix."""
        return self.dims[-2]

    @property
    def column(self) -> Dim:
        """Returns the dim of the columns of the result."""
        return self.dims[-1]

    @property
    def is_softmax(self) -> bool:
        """Returns whether the weights of a row are normalised."""
        return self.kind == SOFTMAX

    @property
    def locals(self) -> tuple[Dim, ...]:
        """Returns the dims that are summed over inside, and those of lists of blocks, without repeats."""
        lists = () if self.blocks is None else self.blocks.lists
        return tuple(dict.fromkeys([*(p.depth for p in self.products), *(each.slot for each in lists)]))

    @property
    def names(self) -> frozenset[str]:
        """Returns the names of the products, which are no values of the graph."""
        return frozenset(product.name for product in self.products)

    @property
    def bodies(self) -> tuple[Scalar, ...]:
        """Returns all expressions, in the order in which `with_bodies` takes them."""
        found = [side for product in self.products for side in (product.left, product.right)]
        found += [*self.weights, *self.factors]
        found += [each for each in (self.scale, self.mask) if each is not None]
        lists = () if self.blocks is None else self.blocks.lists
        return (*found, *(part for each in lists for part in (each.count, each.position)))

    def with_bodies(self, bodies: tuple[Scalar, ...]) -> Attend:
        """Returns the definition with other expressions, as many as `bodies` has; itself if they are the same."""
        if bodies == self.bodies:
            return self
        rest = iter(bodies)
        products = tuple(ScoreProduct(p.name, next(rest), next(rest), p.depth) for p in self.products)
        weights = tuple(next(rest) for _ in self.weights)
        factors = tuple(next(rest) for _ in self.factors)
        scale = None if self.scale is None else next(rest)
        mask = None if self.mask is None else next(rest)
        blocks = None
        if self.blocks is not None:
            lists = [BlockList(each.slot, next(rest), next(rest)) for each in self.blocks.lists]
            blocks = BlockSparsity(self.blocks.rows, self.blocks.columns, *lists)
        return replace(self, products=products, weights=weights, factors=factors, mask=mask, blocks=blocks, scale=scale)
