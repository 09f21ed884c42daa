"""Losses of linear layers are computed in chunks of rows, so that their logits never lie in memory whole.

    logits = linear(hidden, weight)                     total = ferrite_linear_loss(rows, hidden, weight, …)
    loss = cross_entropy(logits.float(), labels)   →    loss = total / (labels != -100).sum()

The call stands in dynamo's graph, so AOTAutograd traces the chunks and their gradients (`formulas.chunked_losses`).
What is left to do here: whether a region (`regions`) is taken, how many rows a chunk has, and the nodes around it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node, Proxy
from torch.fx.proxy import GraphAppendingTracer

from ferrite_torch.devices.facts import product_precision
from ferrite_torch.diagnostics.origins import origins_of
from ferrite_torch.diagnostics.statistics import record_loss
from ferrite_torch.formulas.row_losses import divided, divisor_of
from ferrite_torch.rewrites.attention_masks import storage_of, written_storages
from ferrite_torch.rewrites.losses.regions import Layer, Region, layer_at, region_of
from ferrite_torch.rewrites.losses.values import Refusal, Selection
from ferrite_torch.thresholds import LOSSES
from ferrite_torch.torch_private.fake_tensors import is_fake, mode_of
from ferrite_torch.torch_private.nodes import fake_at, fake_of, map_leaves
from ferrite_torch.torch_private.symbolic_shapes import present_value
from ferrite_torch.torch_private.whole_ops import linear_loss

log = logging.getLogger(__name__)

_NARROW = "gradients of float16 might overflow, as they are added up over all rows; chunk_losses='always' takes them"


@dataclass(frozen=True, slots=True)
class _Size:
    """How large logits are: their rows, and bytes of one."""

    rows: int
    row_bytes: int

    @property
    def bytes(self) -> int:
        return self.rows * self.row_bytes

    def chunk(self, dtype: torch.dtype) -> int:
        """Returns the rows of a chunk: few chunks, as each rounds the gradient of the weight, of bounded bytes."""
        is_half = dtype.itemsize < torch.float32.itemsize
        most = LOSSES.most_chunks if is_half else LOSSES.most_wide_chunks
        count = min(max(-(-self.bytes // LOSSES.chunk_bytes), LOSSES.least_chunks), most)
        rows, step = -(-self.rows // count), LOSSES.row_step
        return -(-rows // step) * step if rows >= step else rows


def chunk_losses(module: GraphModule, choice: str, *, pads: bool = True) -> int:
    """Computes the losses of linear layers in a dynamo graph in chunks of rows; returns how many.

    Args:
        module: the graph, which is changed.
        choice: ``auto`` takes logits of `LOSSES.logits_bytes` at least, but none of float16, whose gradients are added
            up before they are divided by the number of rows and may overflow; ``always`` all, ``never`` none.
        pads: add classes where products have slow extents (`Options.align_matmuls`).
    """
    found = 0
    for node in list(module.graph.nodes) if choice != "never" else ():
        layer = layer_at(node) if node.op in ("call_function", "call_method") else None
        size = None if layer is None else _size(layer)
        if layer is None or size is None or (choice == "auto" and size.bytes < LOSSES.logits_bytes):
            continue
        try:
            if not _ends_in_loss(layer):
                continue
            region = _judged(region_of(layer), choice)
        except Refusal as reason:
            _tell(layer, f"its logits ({_mebibytes(size.bytes)}) stay in memory: {reason}")
            continue
        chunk = size.chunk(fake_at(node).dtype)
        rows = _replace(module, region, chunk, found, pads=pads)
        count = -(-rows // chunk)
        _tell(layer, f"{rows} rows in {count} chunks: {_mebibytes(size.bytes)} of logits never lie in memory, but "
                     f"{_mebibytes(chunk * size.row_bytes)} of one chunk")  # fmt: skip
        found += 1
    if found:
        module.recompile()
    return found


def _size(layer: Layer) -> _Size | None:
    """Returns how large logits are in the present call; None where that depends on data, or there are none."""
    fake = fake_at(layer.node)
    if fake.layout is not torch.strided:
        return None  # rows of a nested tensor are of lengths that are no numbers
    extents = [present_value(extent) for extent in fake.shape]
    known = [extent for extent in extents if extent is not None]
    if len(known) < len(extents) or 0 in known or known[-1] == 1:
        return None
    return _Size(math.prod(known[:-1]), known[-1] * fake.dtype.itemsize)


def _ends_in_loss(layer: Layer) -> bool:
    """Returns whether anything computed of a layer's result is a loss, or might be written as one."""
    pending, seen = [layer.node], {layer.node}
    while pending:
        for user in pending.pop().users:
            name = getattr(user.target, "__name__", str(user.target))
            if name in _LOSSES:
                return True
            fake = fake_of(user)
            is_wide = fake is not None and fake.dim() > 0 and fake_at(layer.node).shape[-1] in fake.shape
            if is_wide and user not in seen:
                seen.add(user)
                pending.append(user)
    return False


_LOSSES = frozenset(("cross_entropy", "nll_loss", "log_softmax", "logsumexp"))


def _judged(region: Region, choice: str) -> Region:
    """Returns the region.

    Raises:
        Refusal: what it reads is written to in between, lies elsewhere, or has parts that are no plain tensors; or its
            gradients have to be asked for.
    """
    if choice == "auto" and fake_at(region.layer.node).dtype is torch.float16:
        raise Refusal(_NARROW)
    device = fake_at(region.layer.node).device
    nodes = list(region.layer.node.graph.nodes)
    between = nodes[nodes.index(region.layer.node) : nodes.index(region.exit)]
    changing = written_storages(node for node in between if node not in region.inside)
    if not all(is_fake(fake_of(node)) for node in (*region.operands(), *region.inside)):
        raise Refusal("something among them is no plain tensor (a transform of torch.func, a tensor subclass)")
    for node in region.operands():
        fake = fake_at(node)
        if storage_of(node) in changing:
            raise Refusal("something that they are computed from is written to")
        if fake.device != device or fake.layout is not torch.strided:
            raise Refusal("something that they are computed from lies elsewhere")
        if not all(type(extent) is int for extent in fake.shape):
            raise Refusal("how many there are depends on the call")
    return region


def _tell(layer: Layer, text: str) -> None:
    place = ", ".join(origin.description for origin in origins_of(layer.node)) or layer.node.name
    record_loss(f"loss of {place}: {text}")
    log.info("loss of %s: %s", place, text)


def _mebibytes(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB"


# --- writing ----------------------------------------------------------------------------------------------------------


def _replace(module: GraphModule, region: Region, chunk: int, number: int, *, pads: bool) -> int:
    """Puts the call in the place of a region; returns how many rows it takes."""
    graph, layer, name = module.graph, region.layer, f"loss_rows_{number}"
    setattr(module, name, region.rows)
    dtype = fake_at(layer.node).dtype
    with graph.inserting_before(region.exit):
        rows = graph.create_node("get_attr", name)
        hidden = _written(graph, lambda x: _selected(x, region.selected).to(dtype), layer.hidden)
        weight = _written(graph, lambda x: x.to(dtype), layer.weight)
        bias = None if layer.bias is None else _written(graph, lambda x: x.to(dtype), layer.bias)
        by_row = tuple(_written(graph, _flat_column if c else _flat, node) for node, c in region.by_row)
        divisors = {each: _divisor(graph, each) for each in (*region.divisors, *_some(region.outer))}
        shared = (*region.shared, *(divisors[each] for each in region.divisors))
        total = graph.call_function(
            linear_loss, (rows, hidden, weight, bias, by_row, shared, (chunk, _padded(weight, pads=pads)))
        )
        loss = fake_at(region.exit)
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        total.meta = {**region.exit.meta, "example_value": loss.to(wide)}
        _with_fakes(total, region.rows)
        scaled = total if region.factor == 1.0 else _written(graph, lambda x: x * region.factor, total)
        if region.outer is not None:
            scaled = _written(graph, divided, scaled, divisors[region.outer])
        result = _written(graph, lambda x: x.to(loss.dtype), scaled)
    region.exit.replace_all_uses_with(result)
    for node in reversed(region.inside):
        graph.erase_node(node)
    return int(fake_at(hidden).shape[0])


def _padded(weight: Node, *, pads: bool) -> int:
    """Returns the number of classes with those that are added: products are slow with rows of no whole 16 bytes."""
    fake = fake_at(weight)
    classes = int(fake.shape[0])
    is_aligned = classes * fake.dtype.itemsize % LOSSES.aligned_bytes == 0
    is_tf32 = fake.dtype is torch.float32 and product_precision() == "tf32"
    if not pads or is_aligned or not (is_tf32 or fake.dtype.itemsize < torch.float32.itemsize):
        return classes
    return -(-classes // LOSSES.padded_classes) * LOSSES.padded_classes


def _some(value: Any) -> tuple[Any, ...]:
    return () if value is None else (value,)


def _selected(hidden: Any, selections: tuple[Selection, ...]) -> Any:
    """Returns rows as a matrix, selected as their logits were."""
    for lead, index in selections:
        is_cut_behind = Ellipsis in index and index[-1] is not Ellipsis
        hidden = hidden.reshape(*lead, -1)[(*index, slice(None)) if is_cut_behind else index]
    return hidden.flatten(0, -2)


def _flat(x: Any) -> Any:
    return x.reshape(-1)


def _flat_column(x: Any) -> Any:
    return x.reshape(-1, 1)


def _divisor(graph: Graph, divisor: Any) -> Node:
    if divisor.weight is None:
        return _written(graph, lambda labels: divisor_of(labels, None, divisor.ignored), divisor.labels)
    return _written(graph, lambda x, w: divisor_of(x, w, divisor.ignored), divisor.labels, divisor.weight)


def _written(graph: Graph, formula: Callable[..., Any], *nodes: Node) -> Node:
    """Writes a formula of nodes into a graph, with the fake tensors of what it gives; returns its result."""
    before, tracer = set(graph.nodes), GraphAppendingTracer(graph)
    result: Node = formula(*(Proxy(node, tracer) for node in nodes)).node
    with mode_of(graph):
        for node in graph.nodes:
            if node not in before:
                node.meta = {"example_value": _fake_result(node)}
    return result


def _fake_result(node: Node) -> Any:
    """Returns the fake tensor that a node computes of those of its operands."""
    fakes = map_leaves((node.args, dict(node.kwargs)), lambda leaf: fake_of(leaf) if isinstance(leaf, Node) else leaf)
    args, named = fakes
    call: Any = node.target if node.op == "call_function" else getattr(type(args[0]), str(node.target))
    return call(*args, **named)


def _with_fakes(call: Node, rows: GraphModule) -> None:
    """Gives the nodes of the graph of rows the fake tensors of a chunk: torch stores no graph without."""
    arguments: Any = call.args
    _, hidden, weight, _, by_row, shared, (chunk, _) = arguments
    width = fake_at(weight)
    count = min(chunk, fake_at(hidden).shape[0])
    with mode_of(call.graph), torch.no_grad():
        wide = torch.float64 if width.dtype is torch.float64 else torch.float32
        logits = width.new_empty((count, width.shape[0]), dtype=wide)
        classes = torch.arange(width.shape[0], device=width.device)
        given = [logits, classes, *(fake_at(each)[:count] for each in by_row), *map(fake_at, shared)]
        for node, fake in zip(rows.graph.find_nodes(op="placeholder"), given, strict=True):
            node.meta["example_value"] = fake
        for node in rows.graph.nodes:
            if node.op.startswith("call"):
                node.meta["example_value"] = _fake_result(node)
