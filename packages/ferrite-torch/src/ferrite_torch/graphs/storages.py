"""Which nodes of a graph lie in one storage for torch, and the results that are seen to share one.

    v = x / 3                       a storage, made by ``div``: the base
    return v[1:], v.view(torch.uint8)       both lie in it

Fake tensors tell by the storage that they hold; where a pass of torch has made a node anew, and with it a storage that
its views do not know of, the schemas of the view ops tell the rest.

Which results share memory is visible: a write to one is seen in the others. The base, the first node whose result lies
in the storage, is laid out as torch lays it out; each result is a view of it, at torch's offset, by torch's strides and
in torch's element type, whatever way its elements were computed. One that is conjugated or negated when it is read, as
``v.conj()`` and its ``imag`` are, is such a view with a mark (see `lazy_results`).
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch

from ferrite_torch.graphs.extern_calls import traits_of
from ferrite_torch.rewrites.overlapping_targets import has_windows
from ferrite_torch.torch_private.fake_tensors import storage_key
from ferrite_torch.torch_private.operators import Overload, schema_of


class Storages:
    """The storages of a graph's tensors, each known by a number."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self._graph = graph
        self._same: dict[int, int] = {}
        for node in graph.nodes:
            for operand in _viewed_by(node):
                self._unite(node, operand)

    def of(self, node: Any) -> int | None:
        """Returns the number of the storage that the one result of a node lies in, None for other values."""
        fake = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
        if not isinstance(fake, torch.Tensor) or fake.layout != torch.strided:
            return None
        return self._root(storage_key(fake))

    def shared_bases(self, unseen: Collection[int]) -> Mapping[int, torch.fx.Node]:
        """Returns the base of each storage that the graph makes and whose elements results share, by its number.

        Those are several results, windows of one that lie on each other, or one that is conjugated or negated when it
        is read. ``unseen`` has the positions of results whose storage nobody sees.
        """
        seen = [item for position, item in enumerate(returned_by(self._graph)) if position not in unseen]
        keys = Counter(map(self.of, seen))
        keys.update(self.of(item) for item in seen if self._is_always_a_view(item))
        shared = {key for key, count in keys.items() if key is not None and count > 1}
        return {key: node for key, node in self._first_nodes(shared).items() if node.op == "call_function"}

    def _is_always_a_view(self, item: Any) -> bool:
        """Returns whether a result is one of a storage even if no other result lies there."""
        return self.of(item) is not None and (is_lazy(item) or has_windows(item.meta["val"]))

    def bases_of(self, positions: Collection[int]) -> Mapping[int, torch.fx.Node]:
        """Returns the base of each storage that results at some positions lie in: an argument, or what makes it."""
        keys = [self.of(item) for position, item in enumerate(returned_by(self._graph)) if position in positions]
        return self._first_nodes({key for key in keys if key is not None})

    def _first_nodes(self, keys: Collection[int]) -> dict[int, torch.fx.Node]:
        """Returns the first node whose tensor lies in each of some storages, just as the storage holds it."""
        if not keys:
            return {}
        found: dict[int, torch.fx.Node] = {}
        for node in self._graph.nodes:
            key = self.of(node)
            if key is not None and key in keys:
                found.setdefault(key, node)
        return {key: node for key, node in found.items() if not is_lazy(node)}

    def _unite(self, node: torch.fx.Node, operand: torch.fx.Node) -> None:
        one, other = self.of(node), self.of(operand)
        if one is not None and other is not None and one != other:
            self._same[one] = other

    def _root(self, key: int) -> int:
        while key in self._same:
            key = self._same[key]
        return key


def returned_by(graph: torch.fx.Graph) -> tuple[Any, ...]:
    """Returns what a graph returns, one item for each result."""
    returned = graph.output_node().args[0]
    return tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)


def _viewed_by(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Yields the operands that share storage with the one result of a node, as its op's schema says."""
    made = node.args[0] if node.target is operator.getitem else node
    if not isinstance(made, torch.fx.Node) or not isinstance(made.target, Overload):
        return
    aliased = traits_of(made.target).aliased
    if not aliased or len(schema_of(made.target).returns) > 1:
        return
    for argument, value in zip(schema_of(made.target).arguments, made.args, strict=False):
        if argument.name in aliased and isinstance(value, torch.fx.Node):
            yield value


def is_lazy(node: Any) -> bool:
    """Returns whether a node's result is a tensor that is conjugated or negated when it is read."""
    fake = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return isinstance(fake, torch.Tensor) and fake.layout == torch.strided and (fake.is_neg() or fake.is_conj())
