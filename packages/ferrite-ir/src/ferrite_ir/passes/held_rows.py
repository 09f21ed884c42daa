"""Values that are made of a row which the kernel that reduces it holds.

A softmax divides exponentials by their sum. One kernel computes a row of exponentials, sums it while the row lies in
registers, and divides: it stores nothing but the quotients. If a reader divides instead, as each point of a pooling
window may, then the exponentials must lie in memory, and the readers load these and the sums.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from ferrite_ir.language import sizes
from ferrite_ir.language.graph import Definition, Graph, Loop, Reduction, Value, loads_of
from ferrite_ir.language.index import Dim
from ferrite_ir.language.index_substitution import sole_dim
from ferrite_ir.language.scalar import Scalar


class HeldRows:
    """The rows of a graph that reductions read, and who reads what."""

    __slots__ = ("_definitions", "_fixed", "_makers", "_most", "_readers", "_values")

    def __init__(self, graph: Graph, fixed: Collection[str], most: int) -> None:
        """Looks through a graph once.

        Args:
            graph: the graph as it is before anything moves.
            fixed: its values that must lie in memory.
            most: elements of the longest row that a kernel holds.
        """
        self._definitions, self._values, self._most = graph.definitions, graph.values, most
        self._fixed = fixed
        self._readers: dict[str, set[int]] = {}
        self._makers: dict[str, Definition] = {}
        for position, definition in enumerate(graph.definitions):
            if isinstance(definition, Loop | Reduction):
                self._makers |= {value.name: definition for value in definition.results}
            for load in loads_of(definition):
                self._readers.setdefault(load.source, set()).add(position)

    def holds(self, value: Value, body: Scalar, moved: Collection[str]) -> bool:
        """Returns whether readers of a value had better load it than what it is made of.

        So it is if they take other points than the kernel that makes it, and if that holds a row of as many bytes or
        more which nobody else reads: this must be stored if they compute the value themselves.

        Args:
            value: the value.
            body: what it is computed from.
            moved: loops that their readers compute, as those whose bodies are in ``body``.
        """
        numel, bytes_each = sizes.hint(value.type.numel), value.type.dtype.bytes
        few = [load.source for load in body.loads if 2 * self._numel(load.source) <= numel]
        for load in body.loads if few else ():
            if load.dtype.bytes < bytes_each or load.source in self._fixed or not _is_each_once(load, numel):
                continue
            axes = self._axes_of_rows(load.source, few, value.name, moved)
            if axes and any(not self._fits(reader, value.name, axes) for reader in self._readers_of(value.name)):
                return True
        return False

    def _numel(self, name: str) -> int:
        return sizes.hint(self._values[name].type.numel)

    def _readers_of(self, name: str) -> list[Definition]:
        return [self._definitions[position] for position in self._readers.get(name, ())]

    def _axes_of_rows(self, name: str, few: Collection[str], wanted: str, moved: Collection[str]) -> frozenset[int]:
        """Returns the axes along which a loop's value is reduced; none if it is wanted for anything else as well.

        Args:
            name: the value.
            few: values that are computed from the results of reductions.
            wanted: a loop that may read it as well.
            moved: others that may.
        """
        found: set[frozenset[int]] = set()
        for reader in self._readers_of(name) if isinstance(self._makers.get(name), Loop) else ():
            if isinstance(reader, Reduction):
                results = {result.name for result in reader.results}
                if not any(self._comes_from(each, results) for each in few):
                    return frozenset()
                found.add(_reduced_axes(reader, name))
            elif not isinstance(reader, Loop) or not all(r.name == wanted or r.name in moved for r in reader.results):
                return frozenset()
        axes = found.pop() if len(found) == 1 else frozenset[int]()
        shape = self._values[name].type.shape
        return axes if math.prod(sizes.hint(shape[axis]) for axis in axes) <= self._most else frozenset()

    def _comes_from(self, name: str, results: Collection[str], depth: int = 4) -> bool:
        """Returns whether a value is one of some reductions' results, or computed from one by a few loops."""
        if name in results:
            return True
        maker = self._makers.get(name)
        if depth == 0 or not isinstance(maker, Loop):
            return False
        return any(self._comes_from(load.source, results, depth - 1) for load in loads_of(maker))

    def _fits(self, reader: Definition, name: str, axes: frozenset[int]) -> bool:
        """Returns whether a reader can be computed where rows along these axes are held, or has rules of its own."""
        if isinstance(reader, Reduction):
            return _reduced_axes(reader, name) == axes
        numel = self._numel(name)
        loads = [load for load in loads_of(reader) if load.source == name]
        return not isinstance(reader, Loop) or all(_is_each_once(load, numel) for load in loads)


def _is_each_once(load: Scalar, numel: int) -> bool:
    """Returns whether a load takes each element of its tensor at one point of its dims."""
    dims = [sole_dim(index) for index in load.indices]
    found = {dim for dim in dims if dim is not None}
    return len(found) == len(dims) and math.prod(sizes.hint(dim.size) for dim in found) == numel


def _reduced_axes(reduction: Reduction, name: str) -> frozenset[int]:
    """Returns the axes of a tensor over which a reduction takes it; none if it does not take each element once."""
    found: set[frozenset[int]] = set()
    for load in loads_of(reduction):
        if load.source == name:
            dims: list[Dim | None] = [sole_dim(index) for index in load.indices]
            if None in dims or set(dims) != {*reduction.dims, *reduction.reduction_dims}:
                return frozenset()
            found.add(frozenset(axis for axis, dim in enumerate(dims) if dim in reduction.reduction_dims))
    return found.pop() if len(found) == 1 else frozenset()
