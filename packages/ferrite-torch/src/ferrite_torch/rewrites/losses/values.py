"""Values between logits and a loss: for a chunk of rows, written as nodes of a graph of its own (`RowGraph`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch.fx import Graph, Node, Proxy
from torch.fx.proxy import GraphAppendingTracer

Selection: TypeAlias = tuple[tuple[int, ...], tuple[Any, ...]]
"""An index that takes some of the rows, and the dims of the rows that it is used on."""


class Refusal(Exception):
    """Logits that stay in memory whole; the message says why, after "their logits stay in memory:"."""


class Kind(Enum):
    """What a value has for a row.

    Attributes:
        WIDE: a number for each class, along the last dim.
        TURNED: the same along the second dim, as a loss over pixels has it.
        COLUMN: one number, along a last dim of one element.
        ROW: one number.
        SUM: nothing: it is made of sums over all rows.
    """

    WIDE = auto()
    TURNED = auto()
    COLUMN = auto()
    ROW = auto()
    SUM = auto()


@dataclass(frozen=True, slots=True)
class Divisor:
    """What the mean of a loss by labels is divided by: the number of rows that count, or the weights of their labels.

    Attributes:
        labels: the node of the labels.
        weight: that of the weights of classes, or None.
        ignored: the label of rows that do not count.
    """

    labels: Node
    weight: Node | None
    ignored: int


@dataclass(frozen=True, slots=True)
class Term:
    """A sum over rows, a node of the row graph, times a number, over a divisor."""

    sum: Any
    factor: float = 1.0
    divisor: Divisor | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the region.

    Attributes:
        kind: what it has for a row.
        written: its node in the row graph; None for a `Kind.SUM`.
        selected: how rows were selected so far.
        terms: of a `Kind.SUM`, what it adds up.
    """

    kind: Kind
    written: Proxy | None = None
    selected: tuple[Selection, ...] = ()
    terms: tuple[Term, ...] = ()

    @property
    def rows(self) -> Any:
        """Returns its node in the row graph, which all but sums have."""
        assert self.written is not None, "a sum over rows is no value of rows"
        return self.written


@dataclass(slots=True)
class RowGraph:
    """The graph that computes sums for a chunk of rows, while it is written.

    Its inputs are the logits of the chunk, the classes, operands of which each row has its own, and shared ones.

    Attributes:
        graph: the graph.
        dtype: the type of the logits in it.
        by_row: inputs by the nodes of the captured graph that they are rows of, and whether as a column.
        shared: inputs by the nodes that they are.
        divisors: inputs by the divisors that they are.
    """

    graph: Graph
    dtype: torch.dtype
    tracer: GraphAppendingTracer = field(init=False)
    logits: Proxy = field(init=False)
    classes: Proxy = field(init=False)
    by_row: dict[tuple[Node, bool], Proxy] = field(default_factory=dict)
    shared: dict[Node, Proxy] = field(default_factory=dict)
    divisors: dict[Divisor, Proxy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tracer = GraphAppendingTracer(self.graph)
        self.logits, self.classes = self._input("logits"), self._input("classes")

    def _input(self, name: str) -> Proxy:
        return Proxy(self.graph.placeholder(name), self.tracer)

    def row_operand(self, node: Node, *, is_column: bool = False) -> Proxy:
        """Returns the input for a chunk of the elements of a node, one for each row."""
        key = node, is_column
        if key not in self.by_row:
            self.by_row[key] = self._input(f"row_operand_{len(self.by_row)}")
        return self.by_row[key]

    def shared_operand(self, node: Node) -> Proxy:
        """Returns the input for a node that all rows read."""
        if node not in self.shared:
            self.shared[node] = self._input(f"shared_{len(self.shared)}")
        return self.shared[node]

    def divisor(self, divisor: Divisor) -> Proxy:
        """Returns the input for a divisor."""
        if divisor not in self.divisors:
            self.divisors[divisor] = self._input(f"divisor_{len(self.divisors)}")
        return self.divisors[divisor]

    def finish(self, total: Any) -> None:
        """Makes a node the result, and puts the inputs in order."""
        self.graph.output(total.node)
        inputs = (
            self.logits,
            self.classes,
            *self.by_row.values(),
            *self.shared.values(),
            *self.divisors.values(),
        )
        first = next(iter(self.graph.nodes))
        for each in inputs:
            first.prepend(each.node) if each.node is not first else None
        for before, after in pairwise(inputs):
            before.node.append(after.node)
