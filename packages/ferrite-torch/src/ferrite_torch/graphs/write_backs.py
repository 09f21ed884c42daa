"""Inputs that a graph writes to: stores into them, and what those who read them before and after see."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any

import torch

from ferrite_ir.language.graph import Definition, Extern, Update, Value
from ferrite_ir.language.scalar import cast
from ferrite_torch.diagnostics.origins import origins_of
from ferrite_torch.errors import Unsupported
from ferrite_torch.graphs.lifetimes import COPY_BACK, Lifetimes
from ferrite_torch.lowering.builder import Builder
from ferrite_torch.lowering.tensors import Tensor, grid_point


class WriteBacks:
    """The writes to inputs of one graph that is being lowered.

    Attributes:
        mutations: name of the value that each input written to becomes, by the input's name.
    """

    def __init__(self, builder: Builder, lifetimes: Lifetimes, results: MutableMapping[torch.fx.Node, Any]) -> None:
        self._builder, self._lifetimes, self._results = builder, lifetimes, results
        self.mutations: dict[str, str] = {}
        self._versions: dict[str, Value] = {}

    def note_sharing(self, definitions: Iterable[Definition]) -> None:
        """Records which of the values that definitions make share storage with older ones."""
        for definition in definitions:
            if isinstance(definition, Extern):
                for result, operand in definition.aliases:
                    self._lifetimes.share(result, operand)
            elif isinstance(definition, Update):
                self._lifetimes.share(definition.result.name, definition.target)
                self._versions[self._lifetimes.root(definition.target)] = definition.result

    def write(self, node: torch.fx.Node) -> Tensor:
        """Lowers ``copy_`` to an input: a store over all of it, unless its new contents were computed in place.

        Raises:
            Unsupported: the source is no tensor of the graph, or the input one that kernels cannot write.
        """
        source_node, target_node = node.args[1], node.args[0]
        old: Tensor = self._results[target_node]  # type: ignore[index]
        if not isinstance(source_node, torch.fx.Node):
            raise Unsupported(f"{origins_of(node)[0]}: copy_ of {source_node!r}")
        source: Tensor = self._results[source_node]
        root = self._lifetimes.root(old.value.name)
        if self._lifetimes.root(source.value.name) == root and source.is_whole:
            new = source
        else:
            new = self._store_over(node, old, source)
            self._lifetimes.share(new.value.name, root)
        if new.value.name != root:
            self._renew(node, new, root)
            self.mutations[root] = new.value.name
        elif root in self._versions:  # a library wrote over what was stored to a part of it
            self.mutations[root] = self._versions[root].name
        return new

    def _store_over(self, node: torch.fx.Node, old: Tensor, source: Tensor) -> Tensor:
        if old.device:
            raise Unsupported(f"writing to an input of type {old.dtype} on the CPU")
        point = grid_point(old.shape)
        missing = old.ndim - source.ndim
        spread = source.viewed(
            old.shape, lambda p: [p[missing + axis] * (size != 1) for axis, size in enumerate(source.shape)]
        )
        if self._lifetimes.root(source.value.name) == self._lifetimes.root(old.value.name):
            spread = self._builder.fresh_copy(spread)
        self._rescue(node, self._lifetimes.root(old.value.name))
        if old.numel == 0:
            return old
        if old.dtype.kind == "opaque":
            # Kernels cannot store such elements: the library writes all of them, and readers find them in the input.
            self._builder.extern(COPY_BACK, (old, spread), mutates=(0,), effects=True)
            return old
        # What was stored to it on the way to its new contents is overwritten now.
        latest = self._versions.get(self._lifetimes.root(old.value.name))
        if latest is not None:
            old = Tensor(latest, old.shape, old.indices)
        return self._builder.store(old, "set", old.shape, point, cast(spread.at(point), old.dtype))

    def _rescue(self, node: torch.fx.Node, root: str) -> None:
        """Copies results that still read the old contents of an input that is about to be overwritten."""
        key = self._lifetimes.storages.of(node.args[0])
        for reader in self._later_readers(node, root):
            if self._lifetimes.storages.of(reader) != key:
                self._results[reader] = self._builder.fresh_copy(self._results[reader])

    def _renew(self, node: torch.fx.Node, new: Tensor, root: str) -> None:
        """Makes the input, and views of it, views of its new contents.

        That is what torch shows to those who read them later. What a library made another type of, as the two real
        numbers of each complex one, is a value of its own in the same memory, and has the new contents by itself.
        """
        for reader in self._later_readers(node, root):
            result: Tensor = self._results[reader]
            if result.value.type.shape == new.value.type.shape and result.dtype == new.dtype:
                self._results[reader] = Tensor(new.value, result.shape, result.indices)

    def _later_readers(self, node: torch.fx.Node, root: str) -> list[torch.fx.Node]:
        """Returns the nodes read after ``node`` whose result lies in a storage."""
        position, last_use = self._lifetimes.position[node], self._lifetimes.last_use
        readers = (reader for reader in self._lifetimes.readers(root) if last_use(reader) > position)
        return [reader for reader in readers if self._lifetimes.root(self._results[reader].value.name) == root]
