"""Attention spelled out as two products and a softmax becomes scaled dot product attention.

Written out, the scores of all queries with all keys lie in memory; the attention kernels of the library never write
them. The rewriting happens on dynamo's graph, where a model's own words still stand, so the backward pass follows.

    before: torch.softmax(q @ k.transpose(-2, -1) / 8.0, dim=-1) @ v
    after:  scaled_dot_product_attention(q, k, v, scale=0.125)

Around the scores there may be conversions, factors, and one mask: masked fill, `where` or an added tensor. Around the
weights there may be conversions and dropout. Then these hold, or the graph stays as it is:

- queries, keys and values are of one type and shape, but for the numbers of queries and keys, with extents that the
  fast kernels take; their storages and the mask's are not written to in the graph;
- nothing else reads scores or weights;
- a mask is known while compiling, and leaves every query a key to look at. Where it does not, the written-out softmax
  gives NaN, and attention zero. Of a mask that only the call knows, nobody can say.

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
from torch.fx import GraphModule, Node

from ferrite_torch.rewrites.attention_masks import changing_storages, known_value, storage_of
from ferrite_torch.torch_private.nodes import attribute_read, target_name

log = logging.getLogger(__name__)

WIDEST_HEAD = 256
"""Longest query that the fast kernels take."""
HEAD_BYTES = 16
"""Queries of other multiples are padded, or computed by no fast kernel."""

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
_SUMS = frozenset((operator.add, torch.add, "add", "__add__"))
_VIEWS = frozenset(("transpose", "permute", "unsqueeze", "squeeze", "expand", "chunk", "split", "detach", "getitem"))
_STRICT = frozenset(("view", "as_strided", "stride", "is_contiguous", "data_ptr", "untyped_storage", "storage_offset"))


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention found in a graph.

    Attributes:
        query, key, value: its operands.
        inside: the nodes that it replaces, users before what they use.
        scale: factor of the scores.
        dropout: share of the weights that are dropped.
        mask: how a mask stands in the graph, or None.
    """

    query: Node
    key: Node
    value: Node
    inside: tuple[Node, ...]
    scale: float = 1.0
    dropout: float = 0.0
    mask: Mask | None = None


@dataclass(frozen=True, slots=True)
class Mask:
    """A mask: the node, and whether it holds numbers to add, or is true where a key is hidden, or where it is seen."""

    node: Node
    kind: str


def rewrite_attention(module: GraphModule) -> int:
    """Rewrites the attention that is spelled out in a dynamo graph, in place; returns how often it was found."""
    changing: frozenset[int] | None = None
    found = 0
    for node in list(module.graph.nodes):
        attention = _attention_at(node)
        if attention is None:
            continue
        if changing is None:
            changing = changing_storages(module.graph)
        if _is_fit(attention, node, changing) and _leaves_something(attention, changing):
            _replace(node, attention, is_changed=storage_of(node) in changing)
            found += 1
    if found:
        module.recompile()
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
        """Returns whether only one node reads what the current one computes."""
        return isinstance(self.node, Node) and len(self.node.users) == 1


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
    mask, scale = _through_scores(walk)
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
    return Attention(query, key, operands[1], inside, scale, dropout, mask)  # type: ignore[arg-type]


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
                _given(node, *each) for each in ((1, "p", 0.5), (2, "training", True), (3, "inplace", False))
            )
            if inplace or not isinstance(share, float) or not 0.0 <= share < 1.0 or not isinstance(training, bool):
                return None
            dropout = share if training else 0.0
        elif not _is_cast(node):
            return dropout
        walk.enter(node.args[0])
    return None


def _enter_softmax(walk: _Walk) -> bool:
    node = walk.node
    if not walk.is_alone or node.target not in _SOFTMAXES or _fake(node) is None:
        return False
    dim = _given(node, 1, "dim", None)
    if dim not in (-1, _fake(node).ndim - 1):  # type: ignore[union-attr]
        return False
    walk.enter(node.args[0])
    return True


def _through_scores(walk: _Walk) -> tuple[Mask | None, float]:
    """Walks from the softmax to the product of queries and keys; returns the mask and the factor of the scores."""
    mask, scale = None, 1.0
    while walk.is_alone:
        node = walk.node
        factor, masked = _factor(node), _masked(node)
        if factor is not None:
            walk.enter(factor[0])
            scale *= factor[1]
        # What is added is not scaled by a factor inside of it, and would be by one outside.
        elif masked is not None and mask is None and (masked[1].kind != "added" or scale == 1.0) and scale > 0:
            walk.enter(masked[0])
            mask = masked[1]
        elif _is_cast(node):
            walk.enter(node.args[0])
        else:
            break
    return mask, scale


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


def _masked(node: Node) -> tuple[Any, Mask] | None:
    """Returns the scores that a node masks, and how."""
    args = node.args
    if node.target in (torch.masked_fill, "masked_fill") and len(args) == 3 and _is_hiding(args[2]):
        return (args[0], Mask(args[1], "hidden")) if isinstance(args[1], Node) else None
    if node.target in (torch.where, "where") and len(args) == 3 and not node.kwargs:
        condition, yes, no = args if node.target is torch.where else (args[1], args[0], args[2])
        if isinstance(condition, Node) and _is_hiding(no):
            return yes, Mask(condition, "seen")
        if isinstance(condition, Node) and _is_hiding(yes):
            return no, Mask(condition, "hidden")
    if node.target in _SUMS and len(args) == 2 and not node.kwargs and all(isinstance(arg, Node) for arg in args):
        scores = [arg for arg in args if not _is_constant(arg)]
        if len(scores) == 1:
            return scores[0], Mask(next(arg for arg in args if arg is not scores[0]), "added")  # type: ignore[arg-type]
    return None


def _is_hiding(number: Any) -> bool:
    return isinstance(number, float) and number == -math.inf


def _is_constant(node: Any) -> bool:
    return isinstance(node, Node) and known_value(node, frozenset()) is not None


def _is_cast(node: Node) -> bool:
    """Returns whether a node converts between floats, and does nothing else."""
    if node.op != "call_method" or node.target not in _CASTS:
        return False
    before, after = _fake(node.args[0]), _fake(node)
    if before is None or after is None or before.device != after.device:
        return False
    return before.is_floating_point() and after.is_floating_point()


def _transposed(node: Any) -> Node | None:
    """Returns the keys whose last two dims a node swaps."""
    args: Any = node.args if isinstance(node, Node) else ()
    source: Any = args[0] if args else None
    fake = _fake(source)
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


def _given(node: Node, position: int, name: str, default: Any) -> Any:
    return node.args[position] if position < len(node.args) else node.kwargs.get(name, default)


def _fake(node: Any) -> torch.Tensor | None:
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None


# --- judging ----------------------------------------------------------------------------------------------------------


def _is_fit(attention: Attention, node: Node, changing: frozenset[int]) -> bool:
    """Returns whether the operands are what the fast kernels take, and stay what they are."""
    operands = (attention.query, attention.key, attention.value)
    fakes = [_fake(each) for each in (*operands, node)]
    if any(fake is None or fake.ndim not in (3, 4) or not _is_static(fake) for fake in fakes):
        return False
    query, key, value, result = (fake for fake in fakes if fake is not None)
    if len({fake.dtype for fake in (query, key, value, result)}) > 1 or not query.is_floating_point():
        return False
    width = query.shape[-1]
    if width > WIDEST_HEAD or width * query.dtype.itemsize % HEAD_BYTES or query.dtype is torch.float64:
        return False
    same = query.shape[:-2] == key.shape[:-2] == value.shape[:-2] and key.shape == value.shape
    return same and key.shape[-1] == width and not any(storage_of(each) in changing for each in operands)


def _is_static(fake: torch.Tensor) -> bool:
    return all(isinstance(size, int) for size in fake.shape)


def _leaves_something(attention: Attention, changing: frozenset[int]) -> bool:
    """Returns whether a mask is known to leave every query a key; there may be none."""
    if attention.mask is None:
        return True
    value = known_value(attention.mask.node, changing)
    scores = _fake(attention.query), _fake(attention.key)
    if value is None or scores[0] is None or scores[1] is None or not 1 <= value.ndim <= scores[0].ndim:
        return False
    wanted = torch.Size((*scores[0].shape[:-1], scores[1].shape[-2]))
    if attention.mask.kind == "added":
        if not value.is_floating_point() or bool(value.isnan().any()) or bool((value == math.inf).any()):
            return False
        value = value > -math.inf
    elif value.dtype is not torch.bool:
        return False
    try:
        visible = (~value if attention.mask.kind == "hidden" else value).expand(wanted)
    except RuntimeError:
        return False
    return bool(visible.any(-1).all())


# --- replacing --------------------------------------------------------------------------------------------------------


def _replace(node: Node, attention: Attention, *, is_changed: bool) -> None:
    """Puts the call in the place of attention; of a result that the graph writes to a copy, as autograd keeps its own.

    The product that was there before needs only its operands for its gradient.
    """
    graph = node.graph
    fake = _fake(node)
    assert fake is not None, "judged before"
    with graph.inserting_before(node):
        operands = [attention.query, attention.key, attention.value]
        mask = None if attention.mask is None else _mask_node(attention.mask, fake)
        if fake.ndim == 3:  # the fast kernels want heads
            operands = [_made(graph.call_method("unsqueeze", (each, 0)), _fake(each).unsqueeze(0)) for each in operands]  # type: ignore[union-attr]
        kwargs: dict[str, Any] = {"attn_mask": mask, "dropout_p": attention.dropout, "scale": attention.scale}
        call = graph.call_function(F.scaled_dot_product_attention, tuple(operands), kwargs)
        call.meta.update(node.meta)  # the source lines
        result = _made(call, fake if fake.ndim == 4 else fake.unsqueeze(0))
        if fake.ndim == 3:
            result = _made(graph.call_method("squeeze", (result, 0)), fake)
        if _minds_layout(node):
            result = _made(graph.call_method("contiguous", (result,)), fake)
        if is_changed:
            result = _made(graph.call_method("clone", (result,)), fake)
    node.replace_all_uses_with(result)
    for each in attention.inside:
        if not each.users:
            graph.erase_node(each)


def _mask_node(mask: Mask, result: torch.Tensor) -> Node:
    """Returns the node of a mask as attention takes it: true where a key is seen, or numbers of the queries' type."""
    graph, fake = mask.node.graph, _fake(mask.node)
    assert fake is not None, "its value is known"
    node = mask.node
    if mask.kind == "hidden":
        node = _made(graph.call_function(torch.logical_not, (node,)), fake)
    if mask.kind == "added" and fake.dtype is not result.dtype:
        fake = fake.to(result.dtype)
        node = _made(graph.call_method("to", (node, result.dtype)), fake)
    return node if fake.ndim > 1 else _made(graph.call_method("unsqueeze", (node, 0)), fake.unsqueeze(0))


def _made(node: Node, fake: torch.Tensor) -> Node:
    node.meta["example_value"] = fake
    return node


def _minds_layout(node: Node) -> bool:
    """Returns whether somebody could tell that the result lies in memory in another order."""
    pending, seen = [node], {node}
    while pending:
        for user in pending.pop().users:
            name = target_name(user)
            if user.op == "output" or name in _STRICT:
                return True
            if (name in _VIEWS or attribute_read(user)) and user not in seen:
                seen.add(user)
                pending.append(user)
    return False
