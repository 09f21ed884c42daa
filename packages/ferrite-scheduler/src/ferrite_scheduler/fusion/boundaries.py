"""Where a schedule puts memory between two kernels, and which rule kept them apart: "why is this not one kernel?"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ferrite_ir.language.graph import Definition, Extern, Origin, names_read
from ferrite_scheduler.model.launch_rules import LAUNCH_RULES
from ferrite_scheduler.model.schedule import Decision, Numbers, Schedule, with_numbers

from .norm_rules import NORM_RULES
from .rules import LEGALITY, PROFITABILITY

KEPT = 3
"""Refusals that one boundary tells, the last ones: they were about what the kernels had become."""

_FUSION = {rule.number: rule.title for rule in (*LEGALITY, *PROFITABILITY)} | {"F09": "no path through a third kernel"}
_TITLES = _FUSION | NORM_RULES | LAUNCH_RULES


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a boundary.

    Attributes:
        maker: the kernel's name, or the target of an extern call.
        value: the result of the definition next to the boundary.
        origins: where that definition came from.
        kernel: position of the kernel in the schedule, None for an extern call.
    """

    maker: str
    value: str
    origins: tuple[Origin, ...]
    kernel: int | None = None

    def __str__(self) -> str:
        origins = ", ".join(dict.fromkeys(origin.description for origin in self.origins if origin.op))
        return f"{self.value} in {self.maker}{f', from {origins}' if origins else ''}"


@dataclass(frozen=True, slots=True)
class Boundary:
    """Two kernels, or a kernel and an extern call, with values in common.

    Attributes:
        first: the side that runs first.
        second: the other.
        values: names of what the first makes and the second reads; none where both read the same.
        rule: number of the rule that refused last, "" where none was asked.
        reason: in words.
        others: what refused before, about parts of these kernels.
        numbers: what the reason rests on, by name; sizes that are no numbers are texts.
    """

    first: Side
    second: Side
    values: tuple[str, ...]
    rule: str
    reason: str
    others: tuple[Decision, ...] = ()
    numbers: Numbers = ()

    @property
    def title(self) -> str:
        """What the rule asks for, in words."""
        return _TITLES.get(self.rule, "")

    def __str__(self) -> str:
        through = f" (through {', '.join(self.values)})" if self.values else ""
        named = f"{self.rule}, {self.title}: " if self.rule else ""
        description = with_numbers(self.reason, self.numbers)
        lines = [f"between {self.first.maker} and {self.second.maker}{through}: {named}{description}"]
        lines += [f"  {side}" for side in (self.first, self.second)]
        lines += [f"  before, {each.rule}, {_TITLES.get(each.rule, '')}: {each.description}" for each in self.others]
        return "\n".join(lines)


def boundaries(schedule: Schedule) -> tuple[Boundary, ...]:
    """Returns the boundaries of a schedule, in the order in which its kernels read: near-linear in its size.

    Two kernels that only read the same have one where a rule was asked about them.
    """
    homes = {name: number for number, kernel in enumerate(schedule.kernels) for name in kernel.homes}
    refused: dict[tuple[int, int], list[Decision]] = {}
    for decision in schedule.decisions:
        first, second = homes.get(decision.first), homes.get(decision.second)
        if not decision.fused and first is not None and second is not None and first != second:
            refused.setdefault((min(first, second), max(first, second)), []).append(decision)
    found = [*_through_memory(schedule, homes, refused), *_through_library(schedule, homes)]
    reported = {frozenset((boundary.first.kernel, boundary.second.kernel)) for boundary in found}
    for (low, high), decisions in refused.items():
        if frozenset((low, high)) not in reported:
            found.append(_boundary(schedule, (low, high), (), decisions))
    return tuple(found)


def _through_memory(
    schedule: Schedule, homes: dict[str, int], refused: dict[tuple[int, int], list[Decision]]
) -> Iterator[Boundary]:
    passed: dict[tuple[int, int], dict[str, None]] = {}
    for number, kernel in enumerate(schedule.kernels):
        for definition in kernel.body:
            for name in names_read(definition):
                if homes.get(name, number) != number:
                    passed.setdefault((homes[name], number), {})[name] = None
    for (low, high), names in passed.items():
        yield _boundary(schedule, (low, high), tuple(names), refused.get((min(low, high), max(low, high)), []))


def _boundary(schedule: Schedule, pair: tuple[int, int], names: tuple[str, ...], decisions: list[Decision]) -> Boundary:
    first, second = (schedule.kernels[number] for number in pair)
    if decisions:
        # What kept them from being fused says more than what kept them from sharing a launch afterwards.
        decisions = sorted(decisions, key=lambda decision: decision.rule in _FUSION)
        last = decisions[-1]
        ends = (last.first, last.second) if last.first in first.homes else (last.second, last.first)
        kinds = {(each.rule, each.reason, each.numbers): each for each in decisions[:-1]}
        kinds.pop((last.rule, last.reason, last.numbers), None)
        others = tuple(kinds.values())[-KEPT:]
        rule, reason, numbers = last.rule, last.reason, last.numbers
    else:
        reader = next(each for each in second.body if set(names) & set(names_read(each)))
        made = next((result.name for result in reader.results), names[0])
        ends, rule, others, numbers = (names[0], made), "", (), ()
        reason = "no rule was asked: nearer definitions that share a buffer were tried instead"
    low, high = (
        Side(schedule.kernels[number].name, end, _origins(schedule, end), number)
        for number, end in zip(pair, ends, strict=True)
    )
    return Boundary(low, high, names, rule, reason, others, numbers)


def _origins(schedule: Schedule, name: str) -> tuple[Origin, ...]:
    definition = schedule.graph.definer.get(name)
    return () if definition is None else definition.origins


def _through_library(schedule: Schedule, homes: dict[str, int]) -> Iterator[Boundary]:
    """Yields the boundaries between kernels and extern calls, once for each pair."""
    seen: set[tuple[str, int]] = set()
    for number, kernel in enumerate(schedule.kernels):
        for definition in kernel.body:
            for name in names_read(definition):
                maker = schedule.graph.definer.get(name)
                if isinstance(maker, Extern) and name not in homes and (name, number) not in seen:
                    seen.add((name, number))
                    first = Side(maker.target, name, maker.origins)
                    yield _library(first, _side(definition, kernel.name, number), name, maker)
    for call in schedule.graph.definitions:
        if isinstance(call, Extern):
            for name in dict.fromkeys(names_read(call)):
                if name in homes:
                    number = homes[name]
                    first = Side(schedule.kernels[number].name, name, _origins(schedule, name), number)
                    yield _library(first, _side(call, call.target, None), name, call)


def _side(definition: Definition, maker: str, kernel: int | None) -> Side:
    made = next((result.name for result in definition.results if result is not None), "")
    return Side(maker, made, definition.origins, kernel)


def _library(first: Side, second: Side, name: str, call: Extern) -> Boundary:
    return Boundary(first, second, (name,), "", f"{call.target} is an extern call, which no kernel joins")
