"""Variants of `flex_attention` that public code uses: what is done to scores, which of them count, which heads share.

Each is a function of queries, keys, values and the tensors that it learns, at sizes that are given; lengths of windows,
prefixes and documents are shares of that of the keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

CAP, DOCUMENTS, SINKS, IMAGES = 20.0, 6, 4, 3
BUCKETS, EXACT_BUCKETS = 32, 16
"""Of T5's relative positions: how many, and how many of these hold one distance each."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to attend.

    Attributes:
        call: makes attention of queries, keys, values and what is learned.
        library: the library's form of it, where it has one that is as fast.
        density: share of the blocks of scores that are computed.
        group: heads of queries that share one of keys.
        head: elements of a head of queries and keys, ``width`` of one of values; None for the usual number.
        learned: shapes of the tensors that it learns.
        is_of_batch: whether a sequence has a mask of its own, or adds to a gradient that is of all.
    """

    call: Callable[..., Tensor]
    library: Callable[..., Tensor] | None = None
    density: float = 1.0
    group: int = 1
    head: int | None = None
    width: int | None = None
    learned: tuple[tuple[int, ...], ...] = ()
    is_of_batch: bool = False


@dataclass(frozen=True)
class Sizes:
    """What variants are made for.

    Attributes:
        queries, keys: of a sequence; where there are fewer queries they are the last ones.
        heads, batch: of queries.
        device: of captured tensors.
        block: queries and keys of a block of scores.
    """

    queries: int
    keys: int
    heads: int
    batch: int
    device: str
    block: int = 128

    @property
    def first(self) -> int:
        """Returns the place of the first query among the keys."""
        return self.keys - self.queries

    @property
    def window(self) -> int:
        """Returns how far a local query looks."""
        return max(1, self.keys // 8)

    @cached_property
    def places(self) -> Tensor:
        """Returns the places of keys."""
        return torch.arange(self.keys, device=self.device)

    @cached_property
    def documents(self) -> Tensor:
        """Returns the number of the document of each key: later ones are longer."""
        return (self.places * DOCUMENTS * DOCUMENTS // self.keys).float().sqrt().int()

    @cached_property
    def lengths(self) -> Tensor:
        """Returns how many keys of each sequence are no padding."""
        return self.keys - torch.arange(self.batch, device=self.device) * self.keys // (2 * self.batch) - 1

    @cached_property
    def slopes(self) -> Tensor:
        """Returns ALiBi's slope of each head."""
        return torch.exp2(-8.0 * torch.arange(1, self.heads + 1, device=self.device) / self.heads)


Places = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Says of batch, head, and the places of a query and a key among all keys whether a score counts."""


def causal(_b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def mask_of(sizes: Sizes, function: Places, *, by_batch: bool = False, by_head: bool = False) -> BlockMask:
    """Returns the block mask of a function."""
    first = sizes.first
    moved = lambda b, h, q, k: function(b, h, q + first if first else q, k)  # noqa: E731
    batch, heads = sizes.batch if by_batch else None, sizes.heads if by_head else None
    return create_block_mask(moved, batch, heads, sizes.queries, sizes.keys, sizes.device, sizes.block)


def masked(sizes: Sizes, function: Places, score: Any = None, *, by_batch: bool = False, **rest: Any) -> Variant:
    """Returns attention in which what a function says counts; ``score`` gets the place of a query among all keys."""
    mask, first = mask_of(sizes, function, by_batch=by_batch), sizes.first
    moved = None if score is None else lambda s, b, h, q, k: score(s, b, h, q + first if first else q, k)
    shares = rest.get("group", 1) != 1
    call = lambda q, k, v: flex_attention(q, k, v, moved, mask, enable_gqa=shares)  # noqa: E731
    return Variant(call, density=1.0 - mask.sparsity() / 100, is_of_batch=by_batch, **rest)


def learned(sizes: Sizes, score: Callable[..., Any], *shapes: tuple[int, ...], function: Any = causal) -> Variant:
    """Returns attention whose score modification is made of tensors that are learned."""
    mask = None if function is None else mask_of(sizes, function)
    call = lambda q, k, v, *given: flex_attention(q, k, v, score(*given), mask)  # noqa: E731
    density = 1.0 if mask is None else 1.0 - mask.sparsity() / 100
    return Variant(call, density=density, learned=shapes, is_of_batch=True)


def library(sizes: Sizes, **options: Any) -> Callable[..., Tensor] | None:
    """Returns the library's causal attention."""
    # There the first query looks at the first key alone; a single one looks at all keys here.
    if sizes.queries not in (1, sizes.keys):
        return None
    is_causal = sizes.queries == sizes.keys
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, **options)


# --- masks ------------------------------------------------------------------------------------------------------------


def local(sizes: Sizes) -> Places:
    return lambda _b, _h, q, k: (q >= k) & (q - k <= sizes.window)


def with_sinks(sizes: Sizes) -> Places:
    return lambda _b, _h, q, k: (q >= k) & ((q - k <= sizes.window) | (k < SINKS))


def dilated(sizes: Sizes) -> Places:
    return lambda _b, _h, q, k: (q >= k) & ((q - k) % 2 == 0) & (q - k <= 2 * sizes.window)


def both_ways(sizes: Sizes) -> Places:
    return lambda _b, _h, q, k: (q - k).abs() <= sizes.window


def with_global_keys(sizes: Sizes) -> Places:
    """Returns Longformer's mask: neighbours, and some tokens that see and are seen by all."""
    return lambda _b, _h, q, k: ((q - k).abs() <= sizes.window) | (k < SINKS) | (q < SINKS)


def chunks(sizes: Sizes) -> Places:
    return lambda _b, _h, q, k: (q >= k) & (q // sizes.window == k // sizes.window)


def prefix(sizes: Sizes) -> Places:
    return lambda _b, _h, q, k: (k < sizes.keys // 16) | (q >= k)


def same_document(sizes: Sizes) -> Places:
    number = sizes.documents
    return lambda _b, _h, q, k: number[q] == number[k]


def earlier_in_document(sizes: Sizes) -> Places:
    number = sizes.documents
    return lambda _b, _h, q, k: (number[q] == number[k]) & (q >= k)


def images_in_text(sizes: Sizes) -> Places:
    """Returns Transfusion's mask: causal, but both ways within an image; every third document is one."""
    image = torch.where(sizes.documents % IMAGES == 1, sizes.documents, -1)
    return lambda _b, _h, q, k: (q >= k) | ((image[q] == image[k]) & (image[q] >= 0))


def neighbourhood(sizes: Sizes) -> Places:
    """Returns the mask of a picture, row by row: what is near in both directions."""
    side = max(1, int(sizes.keys**0.5))
    reach = max(1, side // 6)
    near = lambda one, other: (one - other).abs() <= reach  # noqa: E731
    return lambda _b, _h, q, k: near(q // side, k // side) & near(q % side, k % side)


def padded(sizes: Sizes) -> Places:
    lengths = sizes.lengths
    return lambda b, _h, _q, k: k < lengths[b]


def padded_rows(sizes: Sizes) -> Places:
    """Returns the mask of padded sequences in which queries that are padding see nothing."""
    lengths = sizes.lengths
    return lambda b, _h, q, k: (q < lengths[b]) & (k < lengths[b]) & (q >= k)


def ragged(sizes: Sizes) -> Places:
    """Returns the mask of sequences one after the other that are told apart by where they begin."""
    starts = torch.searchsorted(sizes.documents, sizes.documents)
    return lambda _b, _h, q, k: (starts[q] == starts[k]) & (q - starts[q] >= k - starts[k])


def tensor_of_booleans(sizes: Sizes) -> Places:
    """Returns a mask that lies in memory, of each sequence, in which each query sees itself."""
    generator = torch.Generator().manual_seed(0)
    shape = (sizes.batch, sizes.keys, sizes.keys)
    seen = (torch.rand(shape, generator=generator) < 0.5).to(sizes.device)
    return lambda b, _h, q, k: seen[b, q, k] | (q == k)


# --- scores -----------------------------------------------------------------------------------------------------------


def soft_cap(s: Tensor, *_: Tensor) -> Tensor:
    return CAP * torch.tanh(s / CAP)


def kept_by_hash(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Returns a score, or that of a key that is dropped: one in eight, by a hash of its place."""
    number = ((b * 31 + h) * 8191 + q) * 131071 + k
    number = (number ^ (number >> 7)) * 73244475
    return torch.where(((number >> 11) & 7 != 0) | (q == k), s, -float("inf"))


def bucket_of(distance: Tensor) -> Tensor:
    """Returns T5's bucket of how far a key lies before a query."""
    distance = torch.clamp(distance, min=0)
    far = torch.log(torch.clamp(distance, min=1).float() / EXACT_BUCKETS) * ((BUCKETS - EXACT_BUCKETS) / 2.0794415)
    return torch.where(distance < EXACT_BUCKETS, distance, torch.clamp(EXACT_BUCKETS + far.to(torch.int64), max=31))


def _scores(sizes: Sizes) -> dict[str, Callable[[], Variant]]:
    slopes, keys, heads = sizes.slopes, sizes.keys, sizes.heads
    table = torch.linspace(-1, 1, 2 * keys, device=sizes.device)
    return {
        "alibi": lambda: masked(sizes, causal, lambda s, b, h, q, k: s + slopes[h] * (k - q)),
        "alibi both ways": lambda: Variant(
            lambda q, k, v: flex_attention(q, k, v, lambda s, b, h, i, j: s - slopes[h] * (i + sizes.first - j).abs())
        ),
        "soft cap": lambda: masked(sizes, causal, soft_cap),
        "soft cap in a window": lambda: masked(sizes, local(sizes), soft_cap),
        "soft cap of alibi": lambda: masked(sizes, causal, lambda s, b, h, q, k: soft_cap(s + slopes[h] * (k - q))),
        "growing scale": lambda: masked(sizes, causal, lambda s, b, h, q, k: s * torch.log(q + 2.0)),
        "table": lambda: masked(sizes, causal, lambda s, b, h, q, k: s + table[q - k + keys]),
        "dropout by hash": lambda: masked(sizes, causal, kept_by_hash),
        "learned table": lambda: learned(
            sizes, lambda t: lambda s, b, h, q, k: s + t[h, q + sizes.first - k + keys], (heads, 2 * keys)
        ),
        "learned buckets": lambda: learned(
            sizes, lambda t: lambda s, b, h, q, k: s + t[bucket_of(q + sizes.first - k), h], (BUCKETS, heads)
        ),
        "learned bias": lambda: learned(
            sizes, lambda t: lambda s, b, h, q, k: s + t[h, q, k], (heads, sizes.queries, keys), function=None
        ),
        "learned temperature": lambda: learned(sizes, lambda t: lambda s, b, h, q, k: s * t[h], (heads,)),
    }


def _masks(sizes: Sizes) -> dict[str, Callable[[], Variant]]:
    names: dict[str, Callable[[Sizes], Places]] = {
        "window": local,
        "window with sinks": with_sinks,
        "dilated": dilated,
        "window both ways": both_ways,
        "global keys": with_global_keys,
        "chunks": chunks,
        "prefix": prefix,
        "document": earlier_in_document,
        "document both ways": same_document,
        "images in text": images_in_text,
        "neighbourhood": neighbourhood,
        "ragged": ragged,
    }
    by_batch = {"padding": padded, "padded rows": padded_rows, "mask in memory": tensor_of_booleans}
    return {
        **{name: lambda make=make: masked(sizes, make(sizes)) for name, make in names.items()},
        **{name: lambda make=make: masked(sizes, make(sizes), by_batch=True) for name, make in by_batch.items()},
    }


def _heads(sizes: Sizes) -> dict[str, Callable[[], Variant]]:
    shared = lambda group: masked(sizes, causal, group=group, library=library(sizes, enable_gqa=True))  # noqa: E731
    of_length = lambda head, width=None: masked(sizes, causal, head=head, width=width, library=library(sizes))  # noqa: E731
    return {
        "plain": lambda: Variant(flex_attention, F.scaled_dot_product_attention),
        "causal": lambda: of_length(None),
        "grouped": lambda: shared(4),
        "groups of eight": lambda: shared(8),
        "one head of keys": lambda: shared(sizes.heads),
        "heads of 64": lambda: of_length(64),
        "heads of 256": lambda: of_length(256),
        "narrower values": lambda: of_length(192, 128),
    }


def variants(sizes: Sizes) -> dict[str, Callable[[], Variant]]:
    """Returns what makes each variant at these sizes, by name."""
    return {**_heads(sizes), **_masks(sizes), **_scores(sizes)}


NAMES = tuple(variants(Sizes(16, 16, 8, 1, "cpu")))
