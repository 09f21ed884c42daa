"""The order of execution as positions: what could run where, and the bytes alive at each position.

An order is valid as long as nothing runs before what it needs. Here single items move through one, so that it is valid
all the time: an item may go as far as the next one that touches a storage that either of the two writes. Positions
keep their numbers: where an item was, nothing is left.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate
from operator import add

from ferrite_ir.language.bindings import STEPS, bindings_of
from ferrite_ir.language.graph import Definition, Extern, Graph, Update
from ferrite_scheduler.analysis.dependences import Dependences, written_names
from ferrite_scheduler.analysis.generic_sizes import storage_bytes
from ferrite_scheduler.analysis.nodes import Node
from ferrite_scheduler.model.schedule import Kernel

from .host_steps import Work


class Positions:
    """Work in the order of execution, with what each item touches, and the bytes alive while it runs.

    Args:
        work: in a valid order.
        graph: whose sizes and results count.
        dependences: of the graph.
        released: inputs whose storage is freed after their last use; that of the others stays.
    """

    def __init__(
        self, work: Sequence[Work], graph: Graph, dependences: Dependences, released: Collection[str] = ()
    ) -> None:
        self._count = len(work)
        self._storage = dependences.storage
        self._definer = dependences.definer
        kept = {self._storage[name] for name in dependences.kept}
        inputs = {value.name for value in graph.inputs} - set(released)
        self._stays = kept | {self._storage[name] for name in inputs}
        self._bytes = {
            root: storage_bytes(graph.values[root].type) for name, root in self._storage.items() if name == root
        }
        self._touched: list[dict[str, bool]] = [self._touches(item) for item in work]
        self._at: dict[str, dict[int, bool]] = {}
        for position, touched in enumerate(self._touched):
            for storage, writes in touched.items():
                self._at.setdefault(storage, {})[position] = writes
        binding = {_names(graph.definitions[index]) for index in bindings_of(graph)}
        self._walls = [index for index, item in enumerate(work) if _is_wall(item, binding)]
        self._alive = [0] * (self._count + 1)
        for storage in self._at:
            begin, end = self._life(storage, self._at[storage])
            for position in range(begin, end + 1):
                self._alive[position] += self._bytes[storage]

    @property
    def peak(self) -> int:
        """Returns the most bytes alive at once."""
        return max(self._alive, default=0)

    def earliest(self, position: int) -> int:
        """Returns the first position at which what runs at one could, behind all that it needs."""
        return 1 + max(
            (
                index
                for storage, writes in self._touched[position].items()
                for index, other in self._at[storage].items()
                if index < position and (writes or other)
            ),
            default=-1,
        )

    def latest(self, position: int) -> int:
        """Returns the last position at which what runs at one could, before all that needs it."""
        return -1 + min(
            (
                index
                for storage, writes in self._touched[position].items()
                for index, other in self._at[storage].items()
                if index > position and (writes or other)
            ),
            default=self._count,
        )

    def crosses_wall(self, one: int, other: int) -> bool:
        """Returns whether something between two positions binds sizes or checks them: kernels stay on their side."""
        return any(min(one, other) < wall < max(one, other) for wall in self._walls)

    def peak_after(self, source: int, target: int) -> int:
        """Returns the most bytes alive at once between two positions if what runs at one ran at the other instead."""
        low, high = min(source, target), max(source, target)
        changes = [0] * (high - low + 2)
        for storage in self._touched[source]:
            indices = self._at[storage]
            moved = {target if index == source else index for index in indices}
            for (begin, end), sign in ((self._life(storage, indices), -1), (self._life(storage, moved), 1)):
                if begin <= high and end >= low:
                    changes[max(begin, low) - low] += sign * self._bytes[storage]
                    changes[min(end, high) - low + 1] -= sign * self._bytes[storage]
        return int(max(map(add, self._alive[low : high + 1], accumulate(changes))))

    def move(self, source: int, target: int) -> None:
        """Moves what runs at one position to another, beside what runs there."""
        for storage, writes in self._touched[source].items():
            indices = self._at[storage]
            begin, end = self._life(storage, indices)
            del indices[source]
            indices[target] = indices.get(target, False) or writes
            new_begin, new_end = self._life(storage, indices)
            self._shift(begin, new_begin, self._bytes[storage])
            self._shift(new_end + 1, end + 1, self._bytes[storage])
            self._touched[target][storage] = self._touched[target].get(storage, False) or writes
        self._touched[source] = {}

    def _shift(self, old: int, new: int, count: int) -> None:
        """Has so many bytes alive from another position on."""
        for position in range(min(old, new), max(old, new)):
            self._alive[position] += count if new < old else -count

    def _life(self, storage: str, indices: Collection[int]) -> tuple[int, int]:
        """Returns the first and the last position at which a storage is alive."""
        begin = min(indices) if storage in self._definer else 0
        return begin, self._count if storage in self._stays else max(indices)

    def _touches(self, item: Work) -> dict[str, bool]:
        """Returns the storages that an item touches, each with whether it writes there."""
        if isinstance(item, Node):
            found = dict.fromkeys((self._storage[name] for name in item.reads), False)
            names = (*item.result_names, *written_names(item.definition))
            return found | dict.fromkeys((self._storage[name] for name in names), True)
        found = {}
        for param in item.params:
            storage = self._storage[param.name]
            found[storage] = found.get(storage, False) or param.access != "read"
        updated = (definition.target for definition in item.body if isinstance(definition, Update))
        return found | {self._storage[name]: True for name in updated}


def _names(definition: Definition) -> tuple[str, ...]:
    return tuple("" if result is None else result.name for result in definition.results)


def _is_wall(item: Work, binding: Collection[tuple[str, ...]]) -> bool:
    """Returns whether an item gives a size a value, or checks one."""
    if isinstance(item, Kernel):
        return False
    definition = item.definition
    return _names(definition) in binding or (isinstance(definition, Extern) and definition.target in STEPS)
