"""Who reads what last: lets a store happen in place where nobody needs the old contents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from ferrite_torch.graphs.storages import Storages
from ferrite_torch.lowering.tensors import Tensor

COPY_BACK = "aten.copy_.default"


class Lifetimes:
    """The last reader of each storage in a graph that is being lowered.

    Values that share storage (views, versions, aliasing library results) have one *root*, the first of their names.
    Positions count nodes.
    """

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.storages = Storages(graph)
        self.position: dict[torch.fx.Node, int] = {node: position for position, node in enumerate(graph.nodes)}
        self.written_back: dict[torch.fx.Node, torch.fx.Node] = {
            node.args[0]: node for node in graph.nodes if node.op == "call_function" and str(node.target) == COPY_BACK
        }
        self._kept: set[torch.fx.Node] = set()
        self._roots: dict[str, str] = {}
        self._last: dict[str, int] = {}
        self._fixed: set[str] = set()
        self._sources: dict[str, torch.fx.Node] = {}
        self._chains: dict[torch.fx.Node, frozenset[torch.fx.Node]] = {
            target: frozenset(_chain(back.args[1])) for target, back in self.written_back.items()
        }
        self._readers: dict[str, list[torch.fx.Node]] = {}

    def keep(self, nodes: Iterable[torch.fx.Node]) -> None:
        """Records that the results of nodes are read at the end of the graph, too."""
        self._kept.update(nodes)

    def last_use(self, node: torch.fx.Node) -> int:
        """Returns the position of the last reader of a node; being overwritten is not being read."""
        if node in self._kept:
            return len(self.position)
        back = self.written_back.get(node)
        return max((self.position[user] for user in node.users if user is not back), default=-1)

    def root(self, name: str) -> str:
        """Returns the name that stands for the storage of a value."""
        return self._roots.get(name, name)

    def share(self, name: str, other: str) -> None:
        """Records that two values share storage."""
        self._roots[name] = self.root(other)

    def fix(self, name: str, node: torch.fx.Node) -> None:
        """Records that a value is the caller's: never stored to, except as the graph itself writes it back."""
        self._fixed.add(name)
        self._sources[name] = node

    def source(self, root: str) -> torch.fx.Node | None:
        """Returns the node that a value of the caller's came from, None for values that the graph makes."""
        return self._sources.get(root)

    def record(self, node: torch.fx.Node, result: Any) -> None:
        """Records that the tensors in a node's result are read until the node's last use."""
        last = self.last_use(node)
        for tensor in tensors_in(result):
            root = self.root(tensor.value.name)
            self._last[root] = max(last, self._last.get(root, -1))
            if tensor is result and self._sources.get(root) in self.written_back:
                self._readers.setdefault(root, []).append(node)

    def may_reuse(self, name: str, node: torch.fx.Node) -> bool:
        """Returns whether ``node`` may store into the storage of a value: all its readers are done.

        The caller's inputs qualify only where this node makes, perhaps with others after it, what is copied back to
        them in the end.
        """
        root = self.root(name)
        if self._last.get(root, -1) > self.position[node]:
            return False
        if root not in self._fixed:
            return True
        return node in self._chains.get(self._sources[root], ())

    def readers(self, root: str) -> tuple[torch.fx.Node, ...]:
        """Returns the nodes whose one result lies in an input that is written back, in order."""
        return tuple(self._readers.get(root, ()))


def _chain(node: Any) -> Iterator[torch.fx.Node]:
    """Yields a node, the node that is its first argument, and so on."""
    while isinstance(node, torch.fx.Node) and node.op == "call_function":
        yield node
        node = node.args[0] if node.args else None


def tensors_in(result: Any) -> Iterator[Tensor]:
    """Yields the tensors in a (nested) result."""
    stack = [result]
    while stack:
        item = stack.pop()
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, (tuple, list)):
            stack.extend(item)
        elif isinstance(item, Mapping):
            stack.extend(item.values())
