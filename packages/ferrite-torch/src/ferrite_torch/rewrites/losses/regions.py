"""Regions between a linear layer and a loss: everything that reads the logits, down to one number.

Ops are looked at in the order of the graph. Each has to be one that chunks of rows can be computed of (`readers`), and
only the last value may be read by anything else: then nobody needs the logits whole.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph, GraphModule, Node

from ferrite_torch.rewrites.losses.readers import read
from ferrite_torch.rewrites.losses.values import Divisor, Kind, Refusal, RowGraph, Selection, Value
from ferrite_torch.torch_private.nodes import argument_of, attribute_read, fake_at, fake_of

_PRODUCTS = frozenset((operator.matmul, torch.matmul, torch.mm, "matmul", "mm", "__matmul__"))


@dataclass(frozen=True, slots=True)
class Layer:
    """A linear layer: the nodes of its operands; the weight is ``[classes, width]``."""

    node: Node
    hidden: Node
    weight: Node
    bias: Node | None = None

    @property
    def operands(self) -> tuple[Node, ...]:
        """Returns those that there are."""
        return (self.hidden, self.weight) if self.bias is None else (self.hidden, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Region:
    """What is computed between a linear layer and one number.

    Attributes:
        layer: the layer.
        exit: the node of the number.
        inside: all nodes of the region, in order, the layer's and the exit among them.
        rows: computes the sum for a chunk of rows, as a graph.
        by_row: nodes that its inputs are rows of, and whether as a column.
        shared: nodes that all rows read.
        divisors: divisors that it reads.
        outer: what the sum is divided by afterwards.
        factor: what the sum is multiplied with afterwards.
        selected: how rows of the layer's operand were selected.
    """

    layer: Layer
    exit: Node
    inside: tuple[Node, ...]
    rows: GraphModule
    by_row: tuple[tuple[Node, bool], ...]
    shared: tuple[Node, ...]
    divisors: tuple[Divisor, ...]
    outer: Divisor | None
    factor: float
    selected: tuple[Selection, ...]

    def operands(self) -> Iterator[Node]:
        """Yields the nodes outside of the region that it reads."""
        yield from self.layer.operands
        yield from (node for node, _ in self.by_row)
        yield from self.shared
        for divisor in (*self.divisors, *((self.outer,) if self.outer else ())):
            yield divisor.labels
            if divisor.weight is not None:
                yield divisor.weight


def layer_at(node: Node) -> Layer | None:
    """Returns the linear layer whose result a node computes."""
    if node.target is F.linear:
        hidden, weight, bias = (
            argument_of(node, 0, "input", None),
            argument_of(node, 1, "weight", None),
            argument_of(node, 2, "bias", None),
        )
        layer = Layer(node, hidden, weight, bias)
    elif node.target in _PRODUCTS and len(node.args) == 2 and not node.kwargs and _transposed(node.args[1]) is not None:
        layer = Layer(node, node.args[0], _transposed(node.args[1]))  # type: ignore[arg-type]
    else:
        return None
    fakes = [fake_of(each) for each in (*layer.operands, node)]
    if any(fake is None for fake in fakes):
        return None
    is_layer = fakes[1].dim() == 2 and fakes[0].dim() >= 2 and fakes[-1].is_floating_point()  # type: ignore[union-attr]
    return layer if is_layer else None


def _transposed(node: Any) -> Node | None:
    """Returns the matrix that a node transposes."""
    if not isinstance(node, Node) or not node.args or not isinstance(node.args[0], Node):
        return None
    source, fake = node.args[0], fake_of(node.args[0])
    if fake is None or fake.dim() != 2:
        return None
    if node.target in ("t", torch.t) or attribute_read(node) in ("T", "mT"):
        return source
    places = node.args[1:]
    is_swap = node.target in ("transpose", torch.transpose) and all(type(each) is int for each in places)
    return source if is_swap and sorted(each % 2 for each in places) == [0, 1] else None  # type: ignore[operator]


def region_of(layer: Layer) -> Region:
    """Returns the region behind a linear layer.

    Raises:
        Refusal: its logits are needed whole.
    """
    fake = fake_at(layer.node)
    if not all(type(extent) is int for each in (layer.node, *layer.operands) for extent in fake_at(each).shape):
        raise Refusal("how many there are depends on the call")
    rows = RowGraph(Graph(), torch.float64 if fake.dtype is torch.float64 else torch.float32)
    values = {layer.node: Value(Kind.WIDE, rows.logits)}
    number = {node: position for position, node in enumerate(layer.node.graph.nodes)}
    waiting = set(layer.node.users)
    while waiting:
        if _exit(values) is not None:
            break
        node = min(waiting, key=number.__getitem__)
        waiting.remove(node)
        values[node] = read(node, values, rows)
        waiting |= set(node.users) - values.keys()
    found = _exit(values)
    if found is None:
        raise Refusal("nothing reads them" if len(values) == 1 else "what is computed of them is no single number")
    return _finished(layer, found, values, rows)


def _exit(values: dict[Node, Value]) -> Node | None:
    """Returns the only value that something outside reads, where it is a sum over all rows."""
    seen = [node for node in values if any(user not in values for user in node.users)]
    return seen[0] if len(seen) == 1 and values[seen[0]].kind is Kind.SUM else None


def _finished(layer: Layer, found: Node, values: dict[Node, Value], rows: RowGraph) -> Region:
    first, *others = values[found].terms
    if others:
        outer, factor, total = None, 1.0, _sum_of(values[found], rows)
    else:
        outer, factor, total = first.divisor, first.factor, first.sum
    rows.finish(total)
    module = GraphModule({}, rows.graph)
    inside = tuple(node for node in layer.node.graph.nodes if node in values)
    return Region(
        layer,
        found,
        inside,
        module,
        tuple(rows.by_row),
        tuple(rows.shared),
        tuple(rows.divisors),
        outer,
        factor,
        values[found].selected,
    )


def _sum_of(value: Value, rows: RowGraph) -> Any:
    """Returns what several terms come to for a chunk of rows."""
    total: Any = None
    for term in value.terms:
        part: Any = term.sum * term.factor
        part = part if term.divisor is None else part / rows.divisor(term.divisor)
        total = part if total is None else total + part
    return total
