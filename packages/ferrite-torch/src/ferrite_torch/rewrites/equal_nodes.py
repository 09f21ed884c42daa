"""Value numbering of captured graphs (Alpern, Wegman and Zadeck, 1988): which nodes compute the same from the same.

The partitioner merges such nodes before it splits a graph, and keeps the metadata of the first of them only.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

from ferrite_torch.torch_private.operators import Overload, schema_of


class EqualNodes:
    """The nodes of a graph, in classes of which each has the same value."""

    __slots__ = ("_classes", "_numbers")

    def __init__(self, graph: torch.fx.Graph) -> None:
        self._numbers: dict[torch.fx.Node, int] = {}
        self._classes: defaultdict[int, list[torch.fx.Node]] = defaultdict(list)
        known: dict[Any, int] = {}
        for node in graph.nodes:
            number = len(self._numbers)
            if node.op == "call_function" and _is_pure(node.target):
                number = known.setdefault((node.target, self._key(node.args), self._key(node.kwargs)), number)
            self._numbers[node] = number
            self._classes[number].append(node)

    def are_equal(self, first: Any, second: Any) -> bool:
        """Returns whether two operands have the same value, as far as the graph shows."""
        return bool(self._key(first) == self._key(second))

    def of(self, node: torch.fx.Node) -> list[torch.fx.Node]:
        """Returns a node and those that are equal to it."""
        return self._classes[self._numbers[node]]

    def _key(self, value: Any) -> Any:
        """Returns what is equal for equal operands, and may be looked up in tables."""
        if isinstance(value, torch.fx.Node):
            return ("node", self._numbers[value])
        if isinstance(value, list | tuple):
            return ("items", *map(self._key, value))
        if isinstance(value, dict):
            return ("named", *((name, self._key(each)) for name, each in sorted(value.items())))
        if isinstance(value, slice):
            return ("slice", *map(self._key, (value.start, value.stop, value.step)))
        if isinstance(value, str | int | bool | float | complex | torch.dtype | torch.device | None):
            return (type(value), repr(value))  # 0.0 equals -0.0, and 1 equals True
        return ("one", id(value))


def _is_pure(target: Any) -> bool:
    """Returns whether an op gives the same for the same operands, and writes to nothing."""
    return (
        isinstance(target, Overload)
        and not schema_of(target).is_mutable
        and torch.Tag.nondeterministic_seeded not in target.tags
    )
