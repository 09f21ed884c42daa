"""Answers to "why are these two, or are they not, in one kernel?"."""

from __future__ import annotations

from ferrite_ir.language.graph import Definition, Extern, names_read
from ferrite_scheduler.model.schedule import Decision, Schedule


def explain(schedule: Schedule, a: str, b: str) -> str:
    """Returns why the definitions of two values are, or are not, in one kernel, with their source lines.

    Behind it stands what rewrites and refinements made of them.

    Raises:
        KeyError: the schedule has no such value, or it is a graph input.
    """
    changes = [f"  {change}" for change in schedule.changes if change.concerns(a) or change.concerns(b)]
    return "\n".join([_placed(schedule, a, b), *changes])


def _placed(schedule: Schedule, a: str, b: str) -> str:
    """Returns where the definitions of two values are, and what was decided between them."""
    first, second = _definition(schedule, a), _definition(schedule, b)
    header = f"{_described(a, first)} and {_described(b, second)}"
    if first is second:
        return f"{header}: one definition"
    kernels = {name: number for number, kernel in enumerate(schedule.kernels) for name in kernel.homes}
    if a in kernels and kernels.get(a) == kernels.get(b):
        where = f"together in kernel {kernels[a]}, {schedule.kernels[kernels[a]].name}"
        return f"{header}: {where}\n{_history(schedule, a, b)}".rstrip()
    for name, definition in ((a, first), (b, second)):
        if name not in kernels:
            return f"{header}: apart, because {name} is made by {_maker(definition)}, not by a kernel"
    found = _history(schedule, a, b)
    where = f"in kernels {kernels[a]} and {kernels[b]}"
    if found:
        return f"{header}: apart, {where}\n{found}"
    return f"{header}: apart, {where}; {_unasked(schedule, kernels, a, b)}"


def _definition(schedule: Schedule, name: str) -> Definition:
    found = schedule.graph.definer.get(name)
    if found is None:
        known = "a graph input" if name in schedule.graph.values else "no value of this graph"
        raise KeyError(f"{name} is {known}; explain takes names of computed values")
    return found


def _described(name: str, definition: Definition) -> str:
    origins = ", ".join(dict.fromkeys(origin.description for origin in definition.origins))
    return f"{name} [{origins}]" if origins else name


def _maker(definition: Definition) -> str:
    return f"the extern call {definition.target}" if isinstance(definition, Extern) else "a call of another graph"


def _history(schedule: Schedule, a: str, b: str) -> str:
    """Returns what was decided between the two kernels' definitions, the two themselves first."""
    groups = {name: number for number, kernel in enumerate(schedule.kernels) for name in kernel.homes}
    direct = [d for d in schedule.decisions if {d.first, d.second} == {a, b}]
    around = [
        d
        for d in schedule.decisions
        if d not in direct and {groups.get(d.first), groups.get(d.second)} == {groups[a], groups[b]}
    ]
    together = groups[a] == groups[b]
    chosen = [d for d in direct + around if d.fused == together]
    return "\n".join(f"  {_sentence(d)}" for d in chosen[-4:])


def _sentence(decision: Decision) -> str:
    if decision.fused:
        return f"{decision.first} with {decision.second}: {decision.description}"
    return f"{decision.first} with {decision.second}: refused by {decision.rule}: {decision.description}"


def _unasked(schedule: Schedule, kernels: dict[str, int], a: str, b: str) -> str:
    """Returns why a pair was never a candidate."""
    touched = [_touched(schedule, kernels[name]) for name in (a, b)]
    shared = sorted(touched[0] & touched[1])
    if not shared:
        return "they share no buffer, so fusing them would save no memory traffic"
    return f"they share {', '.join(shared)}, but nearer definitions that share it were tried instead"


def _touched(schedule: Schedule, kernel: int) -> set[str]:
    body = schedule.kernels[kernel].body
    return {name for definition in body for name in (*names_read(definition), *(r.name for r in definition.results))}
