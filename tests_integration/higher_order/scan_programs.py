"""Programs with `associative_scan`: by its op (pointwise), and as torch writes it out (generic)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.associative_scan import associative_scan, associative_scan_op

from program import Function, Program


def rows(combine: Any, *leaves: Tensor, reverse: bool = False, dim: int = 0) -> Sequence[Tensor]:
    """Returns the pointwise scan; torch's own function takes only a GPU's tensors, of which it makes this."""
    moved = [leaf.movedim(dim, 0) for leaf in leaves]
    moved = [leaf.flip(0) for leaf in moved] if reverse else moved
    found = associative_scan_op(combine, moved, ())
    found = [each.flip(0) for each in found] if reverse else found
    return [each.movedim(0, dim) for each in found]


def generic(combine: Any, leaves: Any, **options: Any) -> Any:
    """Returns the scan that torch writes out as slices and concatenations."""
    return associative_scan(combine, leaves, options.pop("dim", 0), combine_mode="generic", **options)


def affine(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> list[Tensor]:
    """Returns the composition of two maps ``y -> a y + b``."""
    return [a * c, b * c + d]


def segments(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> list[Tensor]:
    """Returns sums that begin anew where a mark is."""
    return [a | c, torch.where(c, d, b + d)]


POINTWISE: dict[str, Function] = {
    "sums": lambda x: rows(lambda a, b: [a + b], x * 2)[0].relu() + x,
    "products": lambda x: rows(lambda a, b: [a * b], x * 0.5)[0].relu() + x,
    "one of both": lambda x: rows(lambda a, b: [a * b + a + b], x * 0.5)[0].relu() + x,
    "maxima": lambda x: rows(lambda a, b: [torch.maximum(a, b)], x * 2)[0] - x,
    "minima in reverse": lambda x: rows(lambda a, b: [torch.minimum(a, b)], x * 2, reverse=True)[0] - x,
    "sums in reverse": lambda x: rows(lambda a, b: [a + b], x * 2, reverse=True)[0].sin(),
    "sums along columns": lambda x: rows(lambda a, b: [a + b], x * 2, dim=1)[0].sin(),
    "sums along columns in reverse": lambda x: rows(lambda a, b: [a + b], x * 2, dim=1, reverse=True)[0].sin(),
    "recurrence": lambda x: rows(affine, x.sigmoid(), x * 2)[1].relu() + x,
    "recurrence in reverse": lambda x: rows(affine, x.sigmoid(), x * 2, reverse=True)[1].relu() + x,
    "recurrence along columns": lambda x: rows(affine, x.sigmoid(), x * 2, dim=1)[1].relu() + x,
    "both of a recurrence": lambda x: sum(rows(affine, x.sigmoid(), x * 2)),
    "segments": lambda x: rows(segments, x > 0.5, x * 2)[1].sin(),
    "segments in reverse": lambda x: rows(segments, x > 0.5, x * 2, reverse=True)[1].sin(),
    "logarithms": lambda x: rows(lambda a, b: [torch.logaddexp(a, b)], x)[0] * 2,
    "of halves": lambda x: rows(lambda a, b: [a + b], x.half())[0].float() * x,
    "of doubles": lambda x: rows(lambda a, b: [a + b], x.double())[0].float() * x,
    "of integers": lambda x: rows(lambda a, b: [a + b], (x * 8).round().to(torch.int64))[0] * x,
    "of truth values": lambda x: rows(lambda a, b: [a ^ b], x > 0)[0] * x,
    "after a scan": lambda x: rows(lambda a, b: [a + b], rows(lambda a, b: [a * b + a + b], x * 0.1)[0])[0] * 2,
    "before a sum": lambda x: rows(lambda a, b: [a + b], x * 2)[0].sum(0) * x,
    "of a softmax": lambda x: rows(lambda a, b: [a + b], x.softmax(-1))[0].log(),
    "around a product": lambda x: rows(lambda a, b: [a + b], x @ torch.ones(8, 8))[0] @ torch.ones(8, 8),
    "in a cond": lambda x: torch.cond(
        x.sum() > 0, lambda y: rows(lambda a, b: [a + b], y)[0] + 1, lambda y: y.cos(), (x * 2,)
    ),
    "of what is captured": lambda x: rows(lambda a, b: [a + b + x[0].detach()], x * 2)[0].sin(),
}
GENERIC: dict[str, Function] = {
    "sums, decomposed": lambda x: generic(lambda a, b: a + b, x * 2).relu() + x,
    "one of both, decomposed": lambda x: generic(lambda a, b: a * b + a + b, x * 0.5).relu() + x,
    "maxima in reverse, decomposed": lambda x: generic(torch.maximum, x * 0.5, reverse=True).relu() + x,
    "recurrence, decomposed": lambda x: generic(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (x.sigmoid(), x * 2))[
        1
    ].relu(),
    "dictionary, decomposed": lambda x: (
        generic(lambda a, b: {"s": a["s"] + b["s"], "p": a["p"] * b["p"]}, {"s": x, "p": x.sigmoid()})["p"] * x
    ),
    "products of matrices, decomposed": lambda x: generic(
        lambda a, b: a @ b, x[:, :4].reshape(-1, 2, 2), reverse=False
    ).sin(),
    "columns, decomposed": lambda x: generic(lambda a, b: a + b, x * 2, dim=1).sin(),
}
NO_GRADIENT = frozenset(("of what is captured", "segments", "segments in reverse"))

PROGRAMS = {
    f"associative scan: {name}": Program(
        function,
        has_gradient=name not in NO_GRADIENT,
        is_dynamic=name not in GENERIC or "columns" in name,
        tolerance=1e-2 if "halves" in name else 1e-4,
        lies_as_told="along columns" not in name,
    )
    for name, function in {**POINTWISE, **GENERIC}.items()
}
