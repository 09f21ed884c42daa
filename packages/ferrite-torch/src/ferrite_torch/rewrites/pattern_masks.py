"""Masks of attention that is spelled out: how they stand in a graph, and what they are for a call of attention.

    scores + numbers                        numbers, of the queries' type
    scores.masked_fill(hidden, -inf)        booleans; `where` as well
    scores.masked_fill(hidden, -1e9)        booleans

Attention gives zero where a query has no key to look at; a softmax of infinities gives NaN, and one of a finite number
in place of all scores weighs all keys alike. A mask that is known while compiling may leave every query a key. Of
others, the call is asked for the same as was there:

    infinities      query * nan where nothing is seen: the result is NaN, and so are gradients of all keys, which those
                    of values were
    numbers         all keys are seen by a query of zeros, which weighs them alike, and gets no gradient
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from ferrite_torch.rewrites.attention_masks import known_value, storage_of
from ferrite_torch.torch_private.nodes import add_call, add_method_call, fake_at, fake_of

HIDES = -1e8
"""A number from here on hides a key in whose place it stands: f32 has no two scores near it that a softmax tells apart
by less than a factor of e**8."""

_SUMS = frozenset((operator.add, torch.add, "add", "__add__"))


@dataclass(frozen=True, slots=True)
class Mask:
    """A mask in a graph.

    Attributes:
        node: the mask.
        kind: whether it holds numbers that are ``added``, or is true where a key is ``hidden``, or ``seen``.
        fill: what stands in the place of hidden scores.
    """

    node: Node
    kind: str
    fill: float = -math.inf

    def stands(self, scale: float, outside: Sequence[Mask]) -> bool:
        """Returns whether the mask may stand inside a factor and other masks.

        What is added is not scaled by a factor inside of it, and would be by one outside. What is added to a finite
        number in the place of scores would tell hidden keys apart.
        """
        if self.kind == "added":
            return scale == 1.0
        return scale > 0 and self.fill * scale <= HIDES and (self.fill == -math.inf or not outside)


@dataclass(frozen=True, slots=True)
class MaskPlan:
    """What is to become of the masks of attention.

    Attributes:
        masks: the outermost first.
        is_sure: whether they are known to leave every query a key.
    """

    masks: tuple[Mask, ...]
    is_sure: bool

    def write(self, query: Node) -> tuple[Node | None, Node]:
        """Writes the mask as attention takes it, None for none, and the queries; at the graph's point of insertion."""
        added = [mask.node for mask in self.masks if mask.kind == "added"]
        covers = [mask for mask in self.masks if mask.kind != "added"]
        numbers = _summed([_of_type(node, query) for node in added])
        seen = _all_of([_seen(mask) for mask in covers])
        if not self.is_sure:
            blind = _not(_rows_that_see(numbers, seen))
            if all(mask.fill == -math.inf for mask in covers):
                if numbers is None and seen is not None:  # in the place of a score a mask would hide NaN
                    hidden = _not(seen)
                    numbers, seen = _filled(_of_type(hidden, query), hidden, -math.inf), None
                query = add_call(torch.mul, query, _filled(_of_type(_not(blind), query), blind, math.nan))
            else:
                query = _filled(query, blind, 0.0)
                seen = blind if seen is None else add_call(torch.logical_or, seen, blind)
                numbers = None if numbers is None else _filled(numbers, blind, 0.0)
        if numbers is not None and seen is not None:
            numbers, seen = _filled(numbers, _not(seen), -math.inf), None
        found = seen if numbers is None else numbers
        if found is not None and fake_at(found).ndim < 2:
            found = add_method_call(found, "unsqueeze", 0)
        return found, query


def masked_by(node: Node, are_scores: Callable[[Any], bool]) -> tuple[Any, Mask] | None:
    """Returns the scores that a node masks, and how; ``are_scores`` tells them from numbers that are added to them."""
    args = node.args
    if node.target in (torch.masked_fill, "masked_fill") and len(args) == 3:
        fill = _hiding(args[2])
        return None if fill is None or not isinstance(args[1], Node) else (args[0], Mask(args[1], "hidden", fill))
    if node.target in (torch.where, "where") and len(args) == 3 and not node.kwargs:
        condition, yes, no = args if node.target is torch.where else (args[1], args[0], args[2])
        if isinstance(condition, Node) and (fill := _hiding(no)) is not None:
            return yes, Mask(condition, "seen", fill)
        if isinstance(condition, Node) and (fill := _hiding(yes)) is not None:
            return no, Mask(condition, "hidden", fill)
    if node.target in _SUMS and len(args) == 2 and not node.kwargs and all(isinstance(arg, Node) for arg in args):
        scores = [arg for arg in args if are_scores(arg)]
        if len(scores) == 1:
            return scores[0], Mask(next(arg for arg in args if arg is not scores[0]), "added")  # type: ignore[arg-type]
    return None


def mask_plan(masks: tuple[Mask, ...], query: Node, key: Node, changing: frozenset[int]) -> MaskPlan | None:
    """Returns what is to become of masks, None where attention takes them in no form; ``changing`` are storages."""
    queries, keys = fake_of(query), fake_of(key)
    if queries is None or keys is None:
        return None
    wanted = torch.Size((*queries.shape[:-1], keys.shape[-2]))
    for mask in masks:
        fake = fake_of(mask.node)
        if fake is None or not 1 <= fake.ndim <= len(wanted) or storage_of(mask.node) in changing:
            return None
        if not _spreads(fake.shape, wanted):
            return None
        if mask.kind != "added" and fake.dtype is not torch.bool:
            return None
        is_known = known_value(mask.node, changing) is not None
        if mask.kind == "added" and not (fake.is_floating_point() and (is_known or fake.dtype is queries.dtype)):
            return None
    return MaskPlan(masks, not masks or (len(masks) == 1 and _leaves_something(masks[0], wanted, changing)))


def _spreads(shape: torch.Size, wanted: torch.Size) -> bool:
    """Returns whether a shape is broadcast to another one."""
    return all(size in (1, whole) for size, whole in zip(reversed(shape), reversed(wanted), strict=False))


def _leaves_something(mask: Mask, wanted: torch.Size, changing: frozenset[int]) -> bool:
    """Returns whether a mask is known to leave every query a key, and adds nothing but numbers."""
    value = known_value(mask.node, changing)
    if value is None:
        return False
    if mask.kind == "added":
        if bool(value.isnan().any()) or bool((value == math.inf).any()):
            return False
        value = value > -math.inf
    visible = (~value if mask.kind == "hidden" else value).expand(wanted)
    return bool(visible.any(-1).all())


def _hiding(number: Any) -> float | None:
    """Returns the number that stands in the place of scores, if it hides them; it may be a tensor that is known."""
    if isinstance(number, Node):
        value = known_value(number, frozenset())
        number = float(value) if value is not None and value.numel() == 1 else None
    is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
    return float(number) if is_number and number <= HIDES else None


# --- writing ----------------------------------------------------------------------------------------------------------


def _not(node: Node) -> Node:
    return add_call(torch.logical_not, node)


def _filled(node: Node, where: Node, number: float) -> Node:
    """Returns what a node holds, a number in some places, of the shape that both are broadcast to."""
    return add_method_call(node, "masked_fill", where, number)


def _seen(mask: Mask) -> Node:
    return _not(mask.node) if mask.kind == "hidden" else mask.node


def _all_of(masks: Sequence[Node]) -> Node | None:
    found: Node | None = None
    for mask in masks:
        found = mask if found is None else add_call(torch.logical_and, found, mask)
    return found


def _summed(numbers: Sequence[Node]) -> Node | None:
    found: Node | None = None
    for each in numbers:
        found = each if found is None else add_call(torch.add, found, each)
    return found


def _rows_that_see(numbers: Node | None, seen: Node | None) -> Node:
    """Returns whether each query has a key to look at, with one element along the keys."""
    parts = [] if seen is None else [seen]
    if numbers is not None:
        # What is no number counts: it makes of the row what it was.
        parts.append(add_call(torch.ne, numbers, -math.inf))
    every = _all_of(parts)
    assert every is not None, "there is a mask"
    return add_method_call(every, "any", -1, True)


def _of_type(node: Node, like: Node) -> Node:
    dtype = fake_at(like).dtype
    return node if fake_at(node).dtype is dtype else add_method_call(node, "to", dtype)
