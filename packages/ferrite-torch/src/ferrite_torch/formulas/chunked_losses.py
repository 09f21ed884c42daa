"""The loss of a linear layer, a few rows at a time: its logits never lie in memory whole.

    for each chunk of rows:
        logits_c = hidden_c weight^T + bias
        total   += rows(logits_c)                        a sum over rows, as the graph at hand computes it
        slopes_c = d rows / d logits_c                   where gradients are wanted
        d hidden_c = slopes_c weight
        d weight  += slopes_c^T hidden_c                 the library adds while it multiplies

What is kept for the backward are the gradients for a total whose own gradient is one; the backward multiplies them with
what comes in, a number. So each product is computed once, as without chunks. That takes a total: of losses of single
rows each gradient would be needed before the products that add rows up.

The gradient of the weight is rounded to its type once for each chunk. With n chunks whose parts are independent the sum
of these roundings is sqrt((n + 1) / 2) times that of one: 1.6 with four, 2.1 with eight. The logits' gradients, which
are rounded as well, with chunks or without, add the same to both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Rows = Callable[..., Tensor]
"""``rows(logits, classes, *row_operands, *shared_operands)``: a sum over rows, a tensor of one number.

Logits are ``[rows, classes]``, in float32 at least; classes are ``0, 1, …``; the first dim of row operands is the rows.
"""
Beside = Callable[[Tensor, Sequence[Tensor]], Tensor]
"""Returns its first operand, and counts as needing the others: what a forward computes for a backward is its own."""


def chunked_loss(
    rows: Rows,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    by_row: Sequence[Tensor],
    shared: Sequence[Tensor],
    chunk: int,
    beside: Beside,
) -> Tensor:
    """Returns the sum of ``rows`` over a linear layer's results, computed chunk by chunk; a tensor of one number.

    Args:
        rows: computes the sum over some rows.
        hidden: ``[rows, width]``, of the type of the logits, as are the weight and the bias.
        weight: ``[classes, width]``.
        bias: ``[classes]`` or None.
        by_row: operands of ``rows`` whose first dim is the rows.
        shared: operands of ``rows`` that all rows share.
        chunk: rows of a chunk; the last one may have fewer.
        beside: ties what is computed for the backward to the forward.
    """
    parts = rows, by_row, shared, chunk, beside
    with torch.autocast(hidden.device.type, enabled=False):
        wants = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (hidden, weight, bias))
        if not wants:
            totals = (_total(rows, *each) for each in _chunks(hidden, weight, bias, by_row, shared, chunk))
            return _sum(totals)
        found: Tensor = _ChunkedLoss.apply(hidden, weight, bias, parts)  # type: ignore[no-untyped-call]
        return found


class _ChunkedLoss(torch.autograd.Function):
    """The gradients of a chunked loss, computed with it; see the module."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, parts: Any) -> Tensor:
        rows, by_row, shared, chunk, beside = parts
        wants = ctx.needs_input_grad[:3]
        totals: list[Tensor] = []
        gradients = _Gradients(hidden, weight, wants)
        for logits, hidden_c, *operands in _chunks_with_hidden(hidden, weight, bias, by_row, shared, chunk):
            leaf = logits.detach().requires_grad_()
            with torch.enable_grad():
                total = _total(rows, leaf, *operands)
            (slopes,) = torch.autograd.grad(total, leaf)
            totals.append(total.detach())
            gradients.add(slopes, hidden_c)
        found = gradients.finished(bias)
        kept = [each for each in found if each is not None]
        ctx.is_given = [each is not None for each in found]
        ctx.save_for_backward(*kept)
        return beside(_sum(totals), kept)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[misc]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        kept = iter(ctx.saved_tensors)
        found = [next(kept) if is_given else None for is_given in ctx.is_given]
        return (*(None if each is None else each * gradient for each in found), None)


class _Gradients:
    """The gradients of the operands of a linear layer, as far as the chunks have come."""

    def __init__(self, hidden: Tensor, weight: Tensor, wants: Sequence[bool]) -> None:
        self.operands, self.wants = (hidden, weight), wants
        self.hidden: list[Tensor] = []
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None

    def add(self, slopes: Tensor, hidden: Tensor) -> None:
        """Adds what a chunk of rows gives: ``slopes`` are the gradients of its logits."""
        wants_hidden, wants_weight, wants_bias = self.wants
        if wants_bias:
            sums = slopes.sum(0, dtype=_accumulated(slopes.dtype))
            self.bias = sums if self.bias is None else self.bias + sums
        if wants_hidden:
            self.hidden.append(slopes @ self.operands[1])
        if wants_weight:
            turned = slopes.t()
            self.weight = turned @ hidden if self.weight is None else torch.addmm(self.weight, turned, hidden)

    def finished(self, bias: Tensor | None) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Returns the gradients of all rows, None for those that nobody wants."""
        whole = torch.cat(self.hidden) if self.hidden else None
        return whole, self.weight, None if self.bias is None or bias is None else self.bias.to(bias.dtype)


def _chunks(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    by_row: Sequence[Tensor],
    shared: Sequence[Tensor],
    chunk: int,
) -> Iterator[tuple[Any, ...]]:
    for logits, _, *operands in _chunks_with_hidden(hidden, weight, bias, by_row, shared, chunk):
        yield logits, *operands


def _chunks_with_hidden(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    by_row: Sequence[Tensor],
    shared: Sequence[Tensor],
    chunk: int,
) -> Iterator[tuple[Any, ...]]:
    """Yields for each chunk its logits, its rows of ``hidden``, and the operands of the sum over them."""
    classes = torch.arange(weight.shape[0], device=hidden.device)
    for start in range(0, hidden.shape[0], chunk):
        count = min(chunk, hidden.shape[0] - start)
        part = hidden.narrow(0, start, count)
        yield F.linear(part, weight, bias), part, classes, *(x.narrow(0, start, count) for x in by_row), *shared


def _total(rows: Rows, logits: Tensor, *operands: Tensor) -> Tensor:
    return rows(logits.to(_accumulated(logits.dtype)), *operands)


def _accumulated(dtype: torch.dtype) -> torch.dtype:
    """Returns the type in which numbers of a type are added up."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def _sum(totals: Any) -> Tensor:
    first, *others = totals
    for each in others:
        first = first + each
    return first  # type: ignore[no-any-return]
