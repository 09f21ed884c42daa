"""A program in sections: rows of steps that a CUDA graph can hold, the *parts*, and what runs from the host between.

Each section is a program of its own, over values that those before it have made. Only what has memory of its own
crosses from one to the next, never a view: a section that needs one makes it again, so that two names of one memory
are so in every section. Steps keep their order, but for those that only name memory: a buffer is made in the first
section that uses it, so that a part has its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from ferrite_runtime.engines.graph_obstacles import (
    Obstacle,
    ProgramFacts,
    is_floating,
    layout_names,
    made_names,
    obstacles,
    runs_user_code,
    used_names,
)
from ferrite_runtime.formats.expressions import expr_names
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.steps import (
    Alloc,
    Check,
    Free,
    Input,
    Keep,
    Output,
    Reuse,
    Step,
)
from ferrite_runtime.host.thresholds import GRAPHS


@dataclass(frozen=True, slots=True)
class Section:
    """A row of steps of a program, as a program.

    Attributes:
        program: its inputs are what it takes of the sections before it, its outputs what those behind it need.
        is_part: whether a graph can hold it.
        launches: how many launches and extern calls it has.
        dying: those of its inputs that no section behind it needs.
        escaping: those of its inputs that somebody may keep beyond the call: what the user's functions are given, and
            what the program returns.
    """

    program: Program
    is_part: bool
    launches: int
    dying: frozenset[str] = frozenset()
    escaping: frozenset[str] = frozenset()

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names that it takes."""
        return tuple(value.name for value in self.program.inputs)

    @property
    def outputs(self) -> tuple[str | None, ...]:
        """The names that it makes for those behind it; of the last section, what the program returns."""
        return tuple(output.value for output in self.program.outputs)


@dataclass(frozen=True, slots=True)
class Partition:
    """The sections of a program, the last of which returns its results, and why steps are in no part."""

    sections: tuple[Section, ...]
    obstacles: tuple[Obstacle, ...]

    @property
    def parts(self) -> int:
        """How many sections are parts."""
        return sum(section.is_part for section in self.sections)


@dataclass(frozen=True, slots=True)
class _Run:
    positions: tuple[int, ...]
    is_part: bool


def partition(program: Program, least: int = GRAPHS.launches) -> Partition:
    """Returns a program in sections; a part has at least ``least`` launches."""
    facts = ProgramFacts.of(program)
    found = obstacles(program, facts)
    runs = _runs(facts, found, least)
    while True:
        sections = _Sections(program, facts).made(runs)
        refused = _refused(sections, runs, facts)
        if not refused:
            return Partition(sections, tuple(found[position] for position in sorted(found)))
        for position, values, reason in refused:
            found[position] = Obstacle(position, values, reason)
        bad = {position for position, _, _ in refused}
        runs = _joined(_Run(run.positions, run.is_part and run.positions[0] not in bad) for run in runs)


def _runs(facts: ProgramFacts, found: dict[int, Obstacle], least: int) -> tuple[_Run, ...]:
    """Returns maximal runs of steps; notes in ``found`` those that would be parts but for their length."""
    program = facts.program
    fixed = [
        position
        for position, step in enumerate(program.steps)
        if not is_floating(step) and not (isinstance(step, Free) or (isinstance(step, Check) and position not in found))
    ]
    runs: list[_Run] = []
    for can_be, group in groupby(fixed, lambda position: position not in found):
        positions = tuple(group)
        count = facts.launches(program.steps[position] for position in positions)
        if can_be and count < least:
            values = tuple(sorted(used_names(program.steps[positions[0]])))
            found[positions[0]] = Obstacle(
                positions[0], values, f"begins a row of {count}, where a part has at least {least}"
            )
        runs.append(_Run(positions, can_be and count >= least))
    return _joined(runs)


def _joined(runs: Iterable[_Run]) -> tuple[_Run, ...]:
    """Returns runs with those joined that follow each other and run from the host."""
    joined: list[_Run] = []
    for run in runs:
        if joined and not run.is_part and not joined[-1].is_part:
            joined[-1] = _Run((*joined[-1].positions, *run.positions), is_part=False)
        else:
            joined.append(run)
    return tuple(joined)


@dataclass(frozen=True, slots=True)
class _Row:
    """The steps of a section by their positions, and the names that it takes of others and makes itself."""

    positions: tuple[int, ...]
    taken: frozenset[str]
    made: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Sections:
    program: Program
    facts: ProgramFacts

    def made(self, runs: Sequence[_Run]) -> tuple[Section, ...]:
        """Returns the sections of these runs, and a last one that returns the program's results."""
        steps = self.program.steps
        makers = {name: position for position, step in enumerate(steps) for name in made_names(step)}
        crossing = {value.name for value in self.program.inputs}  # what the next section may take
        rows: list[_Row] = []
        for run in (*runs, _Run((), is_part=False)):
            needs = {name for position in run.positions for name in used_names(steps[position])}
            needs |= set() if run.positions else _output_names(self.program.outputs)
            row = self._row(run.positions, needs, makers, crossing)
            crossing |= {
                name
                for position in row.positions
                if not _is_remade(steps[position])
                for name in made_names(steps[position])
            }
            rows.append(row)
        later: set[str] = set()
        sections: list[Section] = []
        flags = (*(run.is_part for run in runs), False)
        for row, is_part in zip(reversed(rows), reversed(flags), strict=True):
            sections.append(self._section(row, later, is_part=is_part, is_last=not sections))
            later |= row.taken
        return tuple(reversed(sections))

    def _row(
        self, positions: Iterable[int], needs: Collection[str], makers: Mapping[str, int], crossing: Collection[str]
    ) -> _Row:
        """Returns a section of the steps at some positions and those that make what it needs and cannot take."""
        chosen = set(positions)
        made = {name for position in chosen for name in made_names(self.program.steps[position])}
        taken: set[str] = set()
        pending = sorted(needs)
        while pending:
            name = pending.pop()
            if name in made or name in taken:
                continue
            if name in crossing:
                taken.add(name)
                continue
            step = self.program.steps[makers[name]]
            chosen.add(makers[name])
            made.add(name)
            pending += sorted(used_names(step))
        return _Row(tuple(sorted(chosen)), frozenset(taken), frozenset(made))

    def _section(self, row: _Row, later: Collection[str], *, is_part: bool, is_last: bool) -> Section:
        steps = self._with_frees(row, later)
        outputs = tuple(Output(name) for name in sorted(row.made.intersection(later)))
        inputs = tuple(self._input(name) for name in sorted(row.taken))
        body = replace(self.program, inputs=inputs, steps=steps, outputs=self.program.outputs if is_last else outputs)
        tensors = row.taken.intersection(self.facts.layouts)
        escaping = tensors if is_last else tensors & self._kept_by_users(steps)
        return Section(body, is_part, self.facts.launches(steps), row.taken.difference(later), escaping)

    def _kept_by_users(self, steps: Iterable[Step]) -> frozenset[str]:
        """Returns what the user's functions are given, whole."""
        names = (name for step in steps if runs_user_code(step) for name in used_names(step))
        return frozenset(self.facts.root(name) for name in names)

    def _with_frees(self, row: _Row, later: Collection[str]) -> tuple[Step, ...]:
        """Returns the steps of a section, with what is freed before the last of them and not needed behind it."""
        alive = set(row.taken)
        kept: list[Step] = []
        for position, step in enumerate(self.program.steps[: row.positions[-1]] if row.positions else ()):
            if position in row.positions:
                kept.append(step)
                alive |= set(made_names(step))
                alive -= {step.source} if isinstance(step, Reuse) else set()
            elif isinstance(step, Free):
                names = tuple(name for name in step.names if name in alive and name not in later)
                alive -= set(names)
                kept += [Free(names)] if names else []
        return (*kept, *(self.program.steps[position] for position in row.positions[-1:]))

    def _input(self, name: str) -> Input:
        """Returns a value as the input of a section; it is opaque where its layout is not known as numbers."""
        if name not in self.facts.layouts:
            return Input(name, "scalar", "f64")
        layout = self.facts.layouts[name]
        if layout is None or layout_names(layout):
            return Input(name, "opaque")
        return Input(name, "tensor", layout=layout, device=self.facts.devices[name] or self.program.device)


def _is_remade(step: Step) -> bool:
    """Tells whether each section that needs what a step makes has such a step of its own."""
    return is_floating(step) and not isinstance(step, (Alloc, Reuse))


def _output_names(outputs: Iterable[Output]) -> set[str]:
    """Returns the names that outputs need."""
    names = {output.value for output in outputs if output.value is not None}
    scalars = (output.scalar for output in outputs if isinstance(output.scalar, (str, tuple)))
    return names | {name for scalar in scalars for name in expr_names(scalar)}


def _refused(
    sections: Sequence[Section], runs: Sequence[_Run], facts: ProgramFacts
) -> list[tuple[int, tuple[str, ...], str]]:
    """Returns the parts that cannot be, for the sake of what they share with others: their first step, values, and why.

    An input that moves is copied where a part reads it, and a result that users may keep behind it. Of two values in
    one memory each would be, apart from the other: so a part neither takes two such values, nor makes one in the memory
    of one that others see after it. They do not see an input again whose memory the program was given to reuse. A
    buffer that is kept from call to call is one for all kernels that use it: they are in one section.
    """
    given = {value.name for value in facts.program.inputs}
    kept = _between_keeps(sections)
    escaping = {facts.memory[name] for section in sections[:-1] for name in section.escaping}
    refused: list[tuple[int, tuple[str, ...], str]] = []
    for number, (section, run) in enumerate(zip(sections, runs, strict=False)):
        if not section.is_part:
            continue
        consumed = {step.source for step in section.program.steps if isinstance(step, Reuse)}  # nobody else has them
        lasting = (n for n in section.inputs if (n in given and n not in consumed) or n not in section.dying)
        made = tuple(name for name in section.outputs if name is not None)
        pair = _first_shared(section.inputs, facts) or _first_shared((*lasting, *made), facts)
        pair = pair or next(((n, n) for n in made if facts.memory[n] in escaping & facts.aliased), None)
        if pair is not None:
            reason = f"begins a row with {' and '.join(dict.fromkeys(pair))}, whose memory others may know as well"
            refused.append((run.positions[0], pair, reason))
        elif number in kept:
            refused.append((run.positions[0], (), "begins a row among kernels with a common buffer that is kept"))
    return refused


def _between_keeps(sections: Sequence[Section]) -> set[int]:
    """Returns the sections from the first to the last that use a buffer which is kept, where these are several."""
    users: dict[str, list[int]] = {}
    for number, section in enumerate(sections):
        for step in section.program.steps:
            if isinstance(step, Keep):
                users.setdefault(step.name, []).append(number)
    return {number for each in users.values() if len(each) > 1 for number in range(each[0], each[-1] + 1)}


def _first_shared(names: Iterable[str], facts: ProgramFacts) -> tuple[str, str] | None:
    """Returns two of these values that may lie in one memory."""
    seen: dict[str, str] = {}
    for name in names:
        memory = facts.memory.get(name)
        if memory is not None and seen.setdefault(memory, name) != name:
            return seen[memory], name
    return None
