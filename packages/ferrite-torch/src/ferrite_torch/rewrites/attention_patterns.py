"""Attention spelled out as two products and a softmax becomes scaled dot product attention.

As two products and a softmax, all scores lie in memory; the attention kernels of the library never write
them. The rewriting happens on dynamo's graph, where a model's own words still stand, so the backward pass follows.

    before: torch.softmax(q @ k.transpose(-2, -1) / 8.0, dim=-1) @ v
    after:  scaled_dot_product_attention(q, k, v, scale=0.125)

Products may be written as sums of Einstein's (`einsum_products.py`). Around the scores there may be conversions,
factors, and masks: masked fill, `where` and added tensors (`pattern_masks.py`). Around the weights there may be
conversions and dropout. Then these hold, or the graph stays as it is:

- queries, keys and values are of one type and shape, but for the numbers of queries and keys, with extents that the
  fast kernels take; their storages and the masks' are not written to in the graph;
- nothing else reads scores or weights;
- masks are of a type that attention takes without rounding them. Where one is not known while compiling, or leaves a
  query no key to look at, what the written-out softmax gives there is what the call gives.

Numbers change as they do wherever compiled code skips roundings to half precision. Dropout draws as often, but other
numbers, as it does in any compiled graph. Gradients lie in memory as those of attention do, heads side by side.
"""

from __future__ import annotations

import logging
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Node

from ferrite_torch.rewrites.attention_masks import changing_storages, storage_of
from ferrite_torch.rewrites.einsum_products import take_einsums_apart
from ferrite_torch.rewrites.pattern_masks import Mask, MaskPlan, mask_plan, masked_by
from ferrite_torch.thresholds import ATTENTION
from ferrite_torch.torch_private.fake_tensors import without_modes
from ferrite_torch.torch_private.nodes import (
    add_method_call,
    argument_of,
    attribute_read,
    fake_of,
    target_name,
    with_fake,
)

log = logging.getLogger(__name__)


_PRODUCTS = frozenset((operator.matmul, torch.matmul, torch.bmm, "matmul", "bmm", "__matmul__"))
_SOFTMAXES = frozenset((torch.softmax, F.softmax, "softmax"))
_CASTS = frozenset(("to", "double", "float", "half", "bfloat16", "type_as", "type"))
_SCALINGS: dict[Any, Callable[[float], float]] = {
    operator.mul: float,
    torch.mul: float,
    "mul": float,
    "__mul__": float,
    operator.truediv: lambda number: 1.0 / number,
    torch.div: lambda number: 1.0 / number,
    "div": lambda number: 1.0 / number,
    "__truediv__": lambda number: 1.0 / number,
}
_VIEWS = frozenset(
    (
        *("chunk", "detach", "expand", "flatten", "getitem", "movedim", "narrow", "permute", "reshape", "select"),
        *("split", "squeeze", "swapaxes", "transpose", "unbind", "unflatten", "unsqueeze"),
    )
)
_STRICT = frozenset(("view", "as_strided", "stride", "is_contiguous", "data_ptr", "untyped_storage", "storage_offset"))


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention found in a graph.

    Attributes:
        query, key, value: its operands.
        inside: the nodes that it replaces, users before what they use.
        scale: factor of the scores.
        dropout: share of the weights that are dropped.
        masks: how masks stand in the graph, the outermost first.
    """

    query: Node
    key: Node
    value: Node
    inside: tuple[Node, ...]
    scale: float = 1.0
    dropout: float = 0.0
    masks: tuple[Mask, ...] = ()


def rewrite_attention(module: GraphModule) -> int:
    """Rewrites the attention that is spelled out in a dynamo graph, in place; returns how often it was found."""
    changing: frozenset[int] | None = None
    found = 0
    has_softmax = any(node.target in _SOFTMAXES for node in module.graph.nodes)
    apart = take_einsums_apart(module.graph) if has_softmax else 0
    for node in list(module.graph.nodes):
        attention = _attention_at(node)
        if attention is None:
            continue
        if changing is None:
            changing = changing_storages(module.graph)
        plan = mask_plan(attention.masks, attention.query, attention.key, changing)
        if _is_fit(attention, node, changing) and plan is not None:
            _replace(node, attention, plan, changing)
            found += 1
    if found or apart:
        module.recompile()
    if found:
        log.info("%d times attention was spelled out, and is called now", found)
    return found


# --- finding ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Walk:
    """A way from the last product down to the first: where it has come to, and what was met."""

    node: Any
    inside: list[Node] = field(default_factory=list)

    def enter(self, operand: Any) -> None:
        """Goes on to an operand of the current node, which will be replaced."""
        self.inside.append(self.node)
        self.node = operand

    @property
    def is_alone(self) -> bool:
        """Returns whether only one node reads what the current one computes; another may ask for its type."""
        if not isinstance(self.node, Node):
            return False
        node, inside = self.node, [user for user in self.node.users if user in self.inside]
        askers = [user for user in inside if user.target == "type_as" and user.args[0] is not node]
        return len(node.users) - len(askers) == 1


def _attention_at(node: Node) -> Attention | None:
    """Returns the attention whose result a node computes."""
    operands = _product(node)
    if operands is None:
        return None
    walk = _Walk(node)
    walk.enter(operands[0])
    dropout = _through_weights(walk)
    if dropout is None or not _enter_softmax(walk):
        return None
    masks, scale = _through_scores(walk)
    scores = _product(walk.node) if walk.is_alone else None
    if scores is None:
        return None
    walk.enter(scores[0])
    query, key = walk.node, _transposed(scores[1])
    if isinstance(query, Node) and (factor := _factor(query)) is not None and len(query.users) == 1:
        walk.enter(factor[0])
        query, scale = factor[0], scale * factor[1]
    if not all(isinstance(part, Node) for part in (query, key, operands[1])) or not math.isfinite(scale):
        return None
    # What the transposed keys are made by stays if anything else reads it.
    inside = (*walk.inside, *((scores[1],) if len(scores[1].users) == 1 else ()))
    return Attention(query, key, operands[1], inside, scale, dropout, masks)  # type: ignore[arg-type]


def _product(node: Any) -> tuple[Any, Any] | None:
    if not isinstance(node, Node) or node.target not in _PRODUCTS or len(node.args) != 2 or node.kwargs:
        return None
    return node.args[0], node.args[1]


def _through_weights(walk: _Walk) -> float | None:
    """Walks from weights to the softmax; returns the share that is dropped, None if something else is in the way."""
    dropout = 0.0
    while walk.is_alone:
        node = walk.node
        if node.target is F.dropout and dropout == 0.0:
            share, training, inplace = (
                argument_of(node, *each) for each in ((1, "p", 0.5), (2, "training", True), (3, "inplace", False))
            )
            if inplace or not isinstance(share, float) or not 0.0 <= share < 1.0 or not isinstance(training, bool):
                return None
            dropout = share if training else 0.0
        elif not _is_cast(node):
            return dropout
        walk.enter(argument_of(node, 0, "input", None))
    return None


def _enter_softmax(walk: _Walk) -> bool:
    node = walk.node
    if not walk.is_alone or node.target not in _SOFTMAXES or fake_of(node) is None:
        return False
    dim = argument_of(node, 1, "dim", None)
    if dim not in (-1, fake_of(node).ndim - 1):  # type: ignore[union-attr]
        return False
    walk.enter(argument_of(node, 0, "input", None))
    return True


def _through_scores(walk: _Walk) -> tuple[tuple[Mask, ...], float]:
    """Walks from the softmax to the product of queries and keys; returns the masks and the factor of the scores."""
    masks: list[Mask] = []
    scale = 1.0
    while walk.is_alone:
        node = walk.node
        factor, masked = _factor(node), masked_by(node, _are_scores)
        if factor is not None:
            walk.enter(factor[0])
            scale *= factor[1]
        elif masked is not None and masked[1].stands(scale, masks):
            walk.enter(masked[0])
            masks.append(masked[1])
        elif _is_cast(node):
            walk.enter(node.args[0])
        else:
            break
    return tuple(masks), scale


def _are_scores(node: Any) -> bool:
    """Returns whether a node is made of a product of queries and keys as scores are."""
    while isinstance(node, Node):
        if (operands := _product(node)) is not None:
            return _transposed(operands[1]) is not None
        factor, masked = _factor(node), masked_by(node, _are_scores)
        if factor is not None:
            node = factor[0]
        elif masked is not None:
            node = masked[0]
        elif _is_cast(node):
            node = node.args[0]
        else:
            return False
    return False


def _factor(node: Any) -> tuple[Any, float] | None:
    """Returns what a node multiplies with a number, and the number."""
    if not isinstance(node, Node) or node.target not in _SCALINGS or len(node.args) != 2 or node.kwargs:
        return None
    operand, number = node.args
    if isinstance(operand, (int, float)) and _SCALINGS[node.target] is float:
        operand, number = number, operand
    if not isinstance(operand, Node) or isinstance(number, bool) or not isinstance(number, (int, float)) or number == 0:
        return None
    return operand, _SCALINGS[node.target](number)


def _is_cast(node: Node) -> bool:
    """Returns whether a node converts between floats, and does nothing else."""
    if node.op != "call_method" or node.target not in _CASTS:
        return False
    before, after = fake_of(node.args[0]), fake_of(node)
    if before is None or after is None or before.device != after.device:
        return False
    return before.is_floating_point() and after.is_floating_point()


def _transposed(node: Any) -> Node | None:
    """Returns the keys whose last two dims a node swaps."""
    args: Any = node.args if isinstance(node, Node) else ()
    source: Any = args[0] if args else None
    fake = fake_of(source)
    if fake is None or fake.ndim < 3:
        return None
    attribute = attribute_read(node)
    if attribute is not None:
        return source if attribute in ("mT", "mH") else None
    order = args[1] if len(args) == 2 and isinstance(args[1], (tuple, list)) else args[1:]
    if not all(isinstance(position, int) for position in order):
        return None
    positions, rank = [position % fake.ndim for position in order], fake.ndim
    match node.target:
        case "transpose" | torch.transpose:
            return source if sorted(positions) == [rank - 2, rank - 1] else None
        case "permute" | torch.permute:
            return source if positions == [*range(rank - 2), rank - 1, rank - 2] else None
    return None


# --- judging ----------------------------------------------------------------------------------------------------------


def _is_fit(attention: Attention, node: Node, changing: frozenset[int]) -> bool:
    """Returns whether the operands are what the fast kernels take, and stay what they are."""
    operands = (attention.query, attention.key, attention.value)
    fakes = [fake_of(each) for each in (*operands, node)]
    if any(fake is None or fake.ndim not in (3, 4) or not _is_static(fake) for fake in fakes):
        return False
    query, key, value, result = (fake for fake in fakes if fake is not None)
    if len({fake.dtype for fake in (query, key, value, result)}) > 1 or not query.is_floating_point():
        return False
    width, row_bytes = query.shape[-1], query.shape[-1] * query.dtype.itemsize
    if width > ATTENTION.library_head or row_bytes % ATTENTION.library_head_bytes or query.dtype is torch.float64:
        return False
    same = query.shape[:-2] == key.shape[:-2] == value.shape[:-2] and key.shape == value.shape
    return same and key.shape[-1] == width and not any(storage_of(each) in changing for each in operands)


def _is_static(fake: Tensor) -> bool:
    return all(isinstance(size, int) for size in fake.shape)


# --- replacing --------------------------------------------------------------------------------------------------------


def _replace(node: Node, attention: Attention, plan: MaskPlan, changing: frozenset[int]) -> None:
    """Puts the call in the place of attention; of a result that the graph writes to a copy, as autograd keeps its own.

    The product that was there before needs only its operands for its gradient.
    """
    graph, is_changed = node.graph, storage_of(node) in changing
    fake = fake_of(node)
    assert fake is not None, "judged before"
    with graph.inserting_before(node):
        mask, query = plan.write(attention.query)
        operands = [query, attention.key, attention.value]
        if fake.ndim == 3:  # the fast kernels want heads
            operands = [add_method_call(each, "unsqueeze", 0) for each in operands]
        kwargs: dict[str, Any] = {"attn_mask": mask, "dropout_p": attention.dropout, "scale": attention.scale}
        call = graph.call_function(F.scaled_dot_product_attention, tuple(operands), kwargs)
        call.meta.update(node.meta)  # the source lines
        result = with_fake(call, fake if fake.ndim == 4 else fake.unsqueeze(0))
        if fake.ndim == 3:
            result = with_fake(graph.call_method("squeeze", (result, 0)), fake)
        if is_changed or _minds_layout(node, changing):
            result = with_fake(graph.call_method("contiguous", (result,)), fake)
        if is_changed:
            result = with_fake(graph.call_method("clone", (result,)), fake)
    node.replace_all_uses_with(result)
    for each in attention.inside:
        if not each.users:
            graph.erase_node(each)


def _minds_layout(node: Node, changing: frozenset[int]) -> bool:
    """Returns whether somebody could tell that the result lies in memory with its heads side by side.

    That is so unless what else lies otherwise because of it is read by products alone, which lay out their own results.
    Whether a write to what is made of it reaches it, as through a ``reshape``, depends on how it lies, too.
    """
    fake = fake_of(node)
    assert fake is not None, "judged before"
    pending: list[tuple[Node, Any]] = [(node, _side_by_side(fake))]
    seen = {node}
    while pending:
        current, moved = pending.pop()
        for user in current.users:
            if user.op == "output" or target_name(user) in _STRICT or storage_of(user) in changing:
                return True
            if user in seen or _forgets(user, current):
                continue
            after = _moved(user, current, moved)
            if not _lies_as(after, fake_of(user)):
                seen.add(user)
                pending.append((user, after))
    return False


def _side_by_side(fake: Tensor) -> Tensor:
    """Returns a tensor without elements of its own that lies as results of the fast kernels do."""
    with without_modes():
        return torch.empty(fake.shape, device="meta").transpose(-3, -2).contiguous().transpose(-3, -2)


def _forgets(user: Node, operand: Node) -> bool:
    """Returns whether a result lies as it does however an operand lies."""
    if user.target in _PRODUCTS or user.target is F.linear:
        return argument_of(user, 0, "input", None) is operand  # the second one may be multiplied as its transpose
    return user.target == "contiguous"


def _moved(user: Node, operand: Node, moved: Any) -> Any:
    """Returns what is made of an operand that lies otherwise, ``moved``; None where that is not known."""
    before, after = fake_of(operand), fake_of(user)
    attribute = attribute_read(user)
    is_view = attribute is not None or target_name(user) in _VIEWS
    if moved is not None and is_view and user.args[:1] == (operand,) and user.all_input_nodes == [operand]:
        with without_modes():
            if attribute is not None:
                return getattr(moved, attribute)
            method = operator.getitem if user.target is operator.getitem else getattr(type(moved), target_name(user))
            return method(moved, *user.args[1:], **user.kwargs)
    if before is None or after is None or (before.shape, before.stride()) != (after.shape, after.stride()):
        return None
    return moved


def _lies_as(moved: Any, fake: Tensor | None) -> bool:
    """Returns whether two tensors lie alike, as far as elements depend on it."""
    if not isinstance(moved, Tensor) or fake is None:
        return False
    steps = [[step for step, size in zip(each.stride(), each.shape, strict=True) if size > 1] for each in (moved, fake)]
    return steps[0] == steps[1]
