"""Variants of `flex_attention`: what users do to scores, and which of them count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

Attention = Callable[[Tensor, Tensor, Tensor], Any]

HEADS = 4


def causal(_batch: Tensor, _head: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def window(_batch: Tensor, _head: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q >= k) & (q - k < 100)


def prefix(_batch: Tensor, _head: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (k < 30) | (q >= k)


def few(_batch: Tensor, _head: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Rows from 40 on are masked altogether."""
    return q + k < 40


def by_head(_batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q >= k) | (head % 2 == 0)


def blocks(
    function: Any, queries: int, keys: int, device: str, size: int | tuple[int, int] = 128, **lists: Any
) -> BlockMask:
    return create_block_mask(function, lists.get("batch"), lists.get("heads"), queries, keys, device, BLOCK_SIZE=size)


def masked(
    function: Any, queries: int, keys: int, device: str, size: int | tuple[int, int] = 128, **lists: Any
) -> Attention:
    mask = blocks(function, queries, keys, device, size, **lists)
    return lambda q, k, v: flex_attention(q, k, v, block_mask=mask)


def documents(queries: int, keys: int, device: str) -> Attention:
    number = (torch.arange(max(queries, keys), device=device) * 3) // max(queries, keys)

    def same(_batch: Tensor, _head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (number[q] == number[k]) & (q >= k)

    return masked(same, queries, keys, device)


def alibi(_queries: int, _keys: int, device: str) -> Attention:
    slopes = torch.exp2(-torch.arange(1.0, HEADS + 1, device=device))
    return lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + slopes[h] * (j - i))


def relative(queries: int, keys: int, device: str) -> Attention:
    """Adds an element of a table, by the distance of query and key."""
    table = torch.linspace(-1, 1, queries + keys, device=device)
    return lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + table[i - j + keys])


def soft_cap(queries: int, keys: int, device: str) -> Attention:
    mask = blocks(causal, queries, keys, device)
    return lambda q, k, v: flex_attention(q, k, v, lambda s, b, h, i, j: 5 * torch.tanh(s / 5), mask)


def plain(*_: Any) -> Attention:
    return flex_attention  # type: ignore[return-value]


def scaled(*_: Any) -> Attention:
    return lambda q, k, v: flex_attention(q, k, v, scale=-0.3)


def with_power(queries: int, keys: int, device: str) -> Attention:
    """Returns the logarithm of the sum of weights, too."""
    mask = blocks(few, queries, keys, device, 32)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, aux = flex_attention(q, k, v, block_mask=mask, return_aux=AuxRequest(lse=True))
        return out, aux.lse

    return attend


VARIANTS: dict[str, Callable[[int, int, str], Attention]] = {
    "plain": plain,
    "scaled": scaled,
    "causal": lambda *sizes: masked(causal, *sizes),
    "window": lambda *sizes: masked(window, *sizes),
    "window in small blocks": lambda *sizes: masked(window, *sizes, size=32),
    "window in odd blocks": lambda *sizes: masked(window, *sizes, size=(64, 48)),
    "window in blocks of no tile": lambda *sizes: masked(window, *sizes, size=40),
    "prefix": lambda *sizes: masked(prefix, *sizes),
    "mask of each head": lambda *sizes: masked(by_head, *sizes, heads=HEADS, batch=2),
    "few": lambda *sizes: masked(few, *sizes),
    "documents": documents,
    "alibi": alibi,
    "relative": relative,
    "soft cap": soft_cap,
    "with its power": with_power,
}
