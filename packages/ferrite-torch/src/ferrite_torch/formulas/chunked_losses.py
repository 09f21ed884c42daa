"""The loss of a linear layer, a few rows at a time: its logits never lie in memory whole.

Source: Hsu et al., "Liger Kernel: efficient Triton kernels for LLM training" (2024), the fused linear cross entropy.

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

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Rows = Callable[..., Tensor]
"""``rows(logits, classes, *row_operands, *shared_operands)``: a sum over rows, a tensor of one number.

Logits are ``[rows, classes]``, in float32 at least; classes are ``0, 1, …``; the first dim of row operands is the rows.
"""
Tie = Callable[[Tensor, Sequence[Tensor]], Tensor]
"""Returns its first operand, and counts as needing the others."""


@dataclass(frozen=True, slots=True)
class Order:
    """What says of values in what order they are made, where nothing else does.

    Attributes:
        beside: ties what is computed for the backward to the forward, and gradients to what they are gradients of.
        after: ties the rows of a chunk to what the chunk before gives, so that they are not computed side by side.
    """

    beside: Tie
    after: Tie


def chunked_loss(
    rows: Rows,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    by_row: Sequence[Tensor],
    shared: Sequence[Tensor],
    cut: tuple[int, int],
    *,
    order: Order,
) -> Tensor:
    """Returns the sum of ``rows`` over a linear layer's results, computed chunk by chunk; a tensor of one number.

    Args:
        rows: computes the sum over some rows.
        hidden: ``[rows, width]``, of the type of the logits, as are the weight and the bias.
        weight: ``[classes, width]``.
        bias: ``[classes]`` or None.
        by_row: operands of ``rows`` whose first dim is the rows.
        shared: operands of ``rows`` that all rows share.
        cut: rows of a chunk, of which the last one may have fewer; and the number of classes with those that are added
            to have products with fast extents: their weights are zero, and ``rows`` does not see their logits.
        order: ties values to others that are to be made before.
    """
    sums = _Sums(rows, tuple(by_row), tuple(shared), weight.shape[0], *cut, order)
    with torch.autocast(hidden.device.type, enabled=False):
        wants = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (hidden, weight, bias))
        if not wants:
            return sums.total(hidden, *sums.pad(weight, bias))
        found: Tensor = _ChunkedLoss.apply(hidden, weight, bias, sums)  # type: ignore[no-untyped-call]
        return found


@dataclass(frozen=True, slots=True)
class _Sums:
    """What is added up over rows, and how many of them are a chunk; see `chunked_loss`."""

    rows: Rows
    by_row: tuple[Tensor, ...]
    shared: tuple[Tensor, ...]
    classes: int
    chunk: int
    padded: int
    order: Order

    def pad(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Returns the operands with zeros for the classes that are added."""
        more = self.padded - self.classes
        if not more:
            return weight, bias
        return F.pad(weight, (0, 0, 0, more)), None if bias is None else F.pad(bias, (0, more))

    def starts(self, hidden: Tensor) -> range:
        """Returns the first row of each chunk."""
        return range(0, hidden.shape[0], self.chunk)

    def part(self, hidden: Tensor, start: int, earlier: Sequence[Tensor]) -> Tensor:
        """Returns the rows of a chunk, once earlier results are there."""
        rows = self.order.after(hidden, earlier) if earlier else hidden
        return rows.narrow(0, start, min(self.chunk, hidden.shape[0] - start))

    def total(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Returns the sum over all rows."""
        totals: list[Tensor] = []
        for start in self.starts(hidden):
            totals.append(self.of(F.linear(self.part(hidden, start, totals[-1:]), weight, bias), start))
        return _sum(totals)

    def of(self, logits: Tensor, start: int) -> Tensor:
        """Returns the sum over a chunk of rows, the first of which is given."""
        count = logits.shape[0]
        seen = logits if logits.shape[1] == self.classes else logits.narrow(1, 0, self.classes)
        classes = torch.arange(self.classes, device=logits.device)
        own = (each.narrow(0, start, count) for each in self.by_row)
        return self.rows(seen.to(_accumulated(logits.dtype)), classes, *own, *self.shared)


class _ChunkedLoss(torch.autograd.Function):
    """The gradients of a chunked loss, computed with it; see the module."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, sums: _Sums) -> Tensor:
        wants = ctx.needs_input_grad[:3]
        totals: list[Tensor] = []
        wide, long = sums.pad(weight, bias)
        gradients = _Gradients(wide, wants)
        for start in sums.starts(hidden):
            part = sums.part(hidden, start, gradients.latest)
            leaf = F.linear(part, wide, long).detach().requires_grad_()
            with torch.enable_grad():
                total = sums.of(leaf, start)
            (slopes,) = torch.autograd.grad(total, leaf)
            totals.append(total.detach())
            gradients.add(slopes, part)
        found = gradients.finished(sums.classes, bias)
        kept = [each for each in found if each is not None]
        ctx.is_given, ctx.beside = [each is not None for each in found], sums.order.beside
        ctx.save_for_backward(
            *kept, *(x for x, is_wanted in zip((hidden, weight, bias), wants, strict=True) if is_wanted)
        )
        return sums.order.beside(_sum(totals), kept)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        count = sum(ctx.is_given)
        # What the gradients depend on is tied to them: torch learns from it that they have derivatives, and refuses.
        gradient = ctx.beside(gradient, ctx.saved_tensors[count:])
        kept = iter(ctx.saved_tensors[:count])
        found = [next(kept) if is_given else None for is_given in ctx.is_given]
        return (*(None if each is None else each * gradient for each in found), None)


class _Gradients:
    """The gradients of the operands of a linear layer, as far as the chunks have come."""

    def __init__(self, weight: Tensor, wants: Sequence[bool]) -> None:
        self.factor, self.wants = weight, wants
        self.hidden: list[Tensor] = []
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None

    @property
    def latest(self) -> list[Tensor]:
        """Returns what the chunks so far have given, which the next one waits for."""
        return [each for each in (self.weight, self.bias, *self.hidden[-1:]) if each is not None]

    def add(self, slopes: Tensor, hidden: Tensor) -> None:
        """Adds what a chunk of rows gives: ``slopes`` are the gradients of its logits."""
        wants_hidden, wants_weight, wants_bias = self.wants
        if wants_bias:
            sums = slopes.sum(0, dtype=_accumulated(slopes.dtype))
            self.bias = sums if self.bias is None else self.bias + sums
        if wants_hidden:
            self.hidden.append(slopes @ self.factor)
        if wants_weight:
            turned = slopes.t()
            self.weight = turned @ hidden if self.weight is None else torch.addmm(self.weight, turned, hidden)

    def finished(self, classes: int, bias: Tensor | None) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Returns the gradients of all rows and of so many classes, None for those that nobody wants."""
        hidden = torch.cat(self.hidden) if self.hidden else None
        weight, sums = self.weight, self.bias
        if weight is not None and weight.shape[0] > classes:
            weight = weight.narrow(0, 0, classes)
        if sums is not None and bias is not None:
            sums = sums.narrow(0, 0, classes).to(bias.dtype)
        return hidden, weight, sums


def _accumulated(dtype: torch.dtype) -> torch.dtype:
    """Returns the type in which numbers of a type are added up."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def _sum(totals: Iterable[Tensor]) -> Tensor:
    first, *others = totals
    for each in others:
        first = first + each
    return first
