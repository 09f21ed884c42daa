"""Losses of single rows of logits, written so that a kernel may write gradients over the logits.

A kernel that walks a row twice, once to add up and once for gradients, may overwrite the row as it goes if it reads
each element only where it writes it. The logit of a label is read from another place, so it is found as the sum of a
row with all other logits left out: it costs no more, as the row is read for the others anyway.

Shapes: logits ``[rows, classes]``, in float32 or float64; labels ``[rows]`` of int64; ``classes`` is ``0, 1, …``.
Arguments may be nodes of a graph that is being written (`torch.fx.Proxy`) as well as tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Labelled:
    """What a loss by labels is asked for.

    Attributes:
        ignored: the label of rows that count as zero.
        smoothing: share of the loss that is that of all classes.
        classes: number of classes.
    """

    ignored: int
    smoothing: float
    classes: int


def cross_entropy_rows(logits: Any, classes: Any, labels: Any, weight: Any, asked: Labelled) -> Any:
    """Returns ``weight[label] * (logsumexp(logits) - logits[label])`` for each row, smoothed, zero where ignored.

    ``weight`` is ``[classes]`` or None. A label that is no class is refused, as an index of ``classes`` is.
    """
    total = torch.logsumexp(logits, -1)
    counts, label = _checked(classes, labels, asked)
    loss = total - picked(logits, classes, label)
    loss = loss if weight is None else loss * _looked_up(weight, label)
    if asked.smoothing:
        if weight is None:
            even = total * asked.classes - logits.sum(-1)
        else:
            even = total * weight.sum() - (logits * weight).sum(-1)
        loss = loss * (1.0 - asked.smoothing) + even * (asked.smoothing / asked.classes)
    return torch.where(counts, loss, 0.0)


def likelihood_rows(logarithms: Any, classes: Any, labels: Any, weight: Any, asked: Labelled) -> Any:
    """Returns ``-weight[label] * logarithms[label]`` for each row, zero where ignored."""
    counts, label = _checked(classes, labels, asked)
    loss = -picked(logarithms, classes, label)
    loss = loss if weight is None else loss * _looked_up(weight, label)
    return torch.where(counts, loss, 0.0)


def picked(logits: Any, classes: Any, labels: Any) -> Any:
    """Returns the logit of each row's label; labels are checked before."""
    return torch.where(classes == labels.unsqueeze(-1), logits, 0.0).sum(-1)


def checked_labels(classes: Any, labels: Any) -> Any:
    """Returns labels, looked up among the classes: one that is no class is refused as an index is."""
    return classes.index_select(0, labels)


def divisor_of(labels: Any, weight: Any, ignored: int) -> Any:
    """Returns what the mean of such losses is divided by: how many rows count, or the weights of their labels."""
    flat = labels.reshape(-1)
    counts = flat != ignored
    if weight is None:
        return counts.sum()
    return torch.where(counts, _looked_up(weight, torch.where(counts, flat, 0)), 0.0).sum()


def divided(total: Any, divisor: Any) -> Any:
    """Returns a total divided; not a number where nothing counts, with a gradient of zero as eager has it there."""
    is_none = divisor == 0
    return torch.where(is_none, float("nan"), total / torch.where(is_none, 1, divisor))


def _checked(classes: Any, labels: Any, asked: Labelled) -> tuple[Any, Any]:
    counts = labels != asked.ignored
    return counts, checked_labels(classes, torch.where(counts, labels, 0))


def _looked_up(weight: Any, labels: Any) -> Any:
    return weight.index_select(0, labels)
