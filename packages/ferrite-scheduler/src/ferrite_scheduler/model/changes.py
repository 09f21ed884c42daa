"""What became of definitions and kernels on their way through the pipelines, and why: one record for each change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ferrite_ir.language.graph import Definition, Graph, names_read


@dataclass(frozen=True, slots=True)
class Change:
    """What a step of a pipeline made of some definitions, or of a kernel.

    Attributes:
        step: its name in the pipeline.
        names: results of the definitions that were there before, or of the kernel.
        became: results of the definitions in their place; of a kernel, what is new about it, in words of its text form.
        reason: why the step does it.
    """

    step: str
    names: tuple[str, ...]
    became: tuple[str, ...]
    reason: str

    def concerns(self, name: str) -> bool:
        """Returns whether a value was changed, or came of it."""
        return name in self.names or name in self.became

    def __str__(self) -> str:
        before, after = ", ".join(self.names), ", ".join(self.became) or "nothing"
        return (
            f"{self.step}: {before} became {after}: {self.reason}" if before else f"{self.step}: {after}: {self.reason}"
        )


def changes_between(step: str, before: Graph, after: Graph, reason: str) -> Iterator[Change]:
    """Yields what a step made of the definitions of a graph: those that read each other are one change."""
    if before is after:
        return
    old = {_names(definition): definition for definition in before.definitions}
    new = {_names(definition): definition for definition in after.definitions}
    gone = [d for names, d in old.items() if new.get(names) is not d and not _is_same(d, new.get(names))]
    made = [d for names, d in new.items() if old.get(names) is not d and not _is_same(d, old.get(names))]
    for group in _together([*gone, *made]):
        ours = {id(definition) for definition in group}
        names = tuple(name for d in gone if id(d) in ours for name in _names(d))
        became = tuple(name for d in made if id(d) in ours for name in _names(d))
        yield Change(step, names, became, reason)


def _is_same(one: Definition, other: Definition | None) -> bool:
    return other is not None and type(one) is type(other) and one == other


def _names(definition: Definition) -> tuple[str, ...]:
    return tuple(value.name for value in definition.results if value is not None)


def _together(definitions: Sequence[Definition]) -> Iterable[list[Definition]]:
    """Returns definitions in groups of those that define, or read, what others of their group define."""
    leader = list(range(len(definitions)))

    def find(number: int) -> int:
        while leader[number] != number:
            leader[number] = number = leader[leader[number]]
        return number

    first: dict[str, int] = {}
    for number, definition in enumerate(definitions):
        for name in _names(definition):
            one, other = sorted((find(first.setdefault(name, number)), find(number)))
            leader[other] = one
    for number, definition in enumerate(definitions):
        for name in names_read(definition):
            if name in first:
                one, other = sorted((find(first[name]), find(number)))
                leader[other] = one
    groups: dict[int, list[Definition]] = {}
    for number, definition in enumerate(definitions):
        groups.setdefault(find(number), []).append(definition)
    return groups.values()
