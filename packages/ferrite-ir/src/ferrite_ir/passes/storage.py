"""Which values share storage, and where in a graph the contents of a storage change."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from ferrite_ir.language.graph import Attend, Call, Extern, For, Graph, If, Update, While, names_read
from ferrite_ir.language.scalar import Scalar

NEVER = 1 << 60


@dataclass(frozen=True, slots=True)
class Storage:
    """Roots of storages and the positions at which they are written to in place.

    Attributes:
        roots: for each value that shares storage with an earlier one, the first value of that storage.
        writes: for each root, the positions of the definitions that change its contents, ascending.
    """

    roots: dict[str, str]
    writes: dict[str, list[int]]

    def root(self, name: str) -> str:
        """Returns the first value in the storage of a value."""
        return self.roots.get(name, name)

    def next_write(self, name: str, position: int) -> int:
        """Returns the first position behind ``position`` where the contents of a value change, `NEVER` if none."""
        found = self.writes.get(self.root(name), ())
        at = bisect_right(found, position)
        return found[at] if at < len(found) else NEVER

    def version(self, name: str, position: int) -> int:
        """Returns how often the contents of a value have been changed before ``position``."""
        return bisect_right(self.writes.get(self.root(name), ()), position)

    def versions(self, bodies: Iterable[Scalar], position: int) -> tuple[int, ...]:
        """Returns the versions of all that bodies load: where two are equal, equal bodies have equal values."""
        return tuple([self.version(load.source, position) for body in bodies for load in body.loads])


def trace_storage(graph: Graph) -> Storage:
    """Returns what shares storage in a graph. A called graph changes none of its arguments."""
    roots: dict[str, str] = {}
    writes: dict[str, list[int]] = {}
    for position, definition in enumerate(graph.definitions):
        written: tuple[str, ...] = ()
        match definition:
            case Update():
                roots[definition.result.name] = roots.get(definition.target, definition.target)
                written = (definition.target,)
            case Extern():
                for result, operand in definition.aliases:
                    roots[result] = roots.get(operand, operand)
                written = definition.mutates
        for root in dict.fromkeys(roots.get(name, name) for name in written):
            writes.setdefault(root, []).append(position)
    return Storage(roots, writes)


def fixed_names(graph: Graph) -> set[str]:
    """Returns the values that must lie in memory under their own name.

    Outputs, mutations, and operands of updates' targets, of calls and of attention, whose programs read them often.
    """
    names = set(graph.output_names)
    for definition in graph.definitions:
        match definition:
            case Update():
                names.add(definition.target)
            case Extern() | Attend():
                names.update(names_read(definition))
            case Call() | While() | For():
                names.update(definition.args)
            case If():
                names.update((definition.condition, *definition.args))
    return names
