"""Calls of a program whose parts are captured: all that is alike in these calls is settled once, before the first.

    frame    inputs │ results of section 0 │ lent, copied for section 1 │ results of section 1 │ …
    take     what a section is given, from the frame, in one step

Which value is lent or copied, where it lies and how, is looked at for each name of each call as long as parts are being
captured (`cuda_graphs`). From then on nothing of it changes: what is left for each tensor is to make it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ferrite_runtime.engines.graphed_part import GraphedPart
from ferrite_runtime.engines.handover import Handover
from ferrite_runtime.engines.lent_memory import GraphMemory, Loan, lent_view
from ferrite_runtime.engines.tensor_copies import Copies, Take, taker
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.steps import View


@dataclass(slots=True)
class Turn:
    """What a call does for one section.

    Attributes:
        part: the section.
        lent: takes from the frame what the section gets as tensors of their own over the same memory; None for nothing.
        copied: takes from the frame what it gets copies of, as somebody may keep them; None for nothing.
        given: takes from the frame what it is given.
        dying: places in the frame of what no section behind it needs.
        copies: makes the copies, once their layouts have been seen.
    """

    part: GraphedPart
    lent: Take | None
    copied: Take | None
    given: Take
    dying: tuple[int, ...]
    copies: Copies | None = None

    def complete(self, frame: list[Any]) -> None:
        """Adds to the frame what is made for the section."""
        if self.lent is not None:
            frame += map(lent_view, self.lent(frame))
        if self.copied is not None:
            tensors = self.copied(frame)
            copies = self.copies
            if copies is None:
                copies = self.copies = Copies(tensors)
            frame += copies.of(tensors)

    def taken(self, frame: list[Any]) -> list[Any]:
        """Returns what the section is given, from a frame that is complete."""
        return list(self.given(frame))


@dataclass(slots=True)
class Playback:
    """A call of a program, settled.

    Attributes:
        turns: what it does, section by section.
        memory: of the graphs.
        loan: what the call lends of it.
        played: launches that are played.
        from_host: launches that the host makes.
        handover: what the last section does, if it only names memory.
        is_fit: whether its views have the types of their bases, which the first call finds out.
    """

    turns: tuple[Turn, ...]
    memory: GraphMemory
    loan: Loan
    played: int
    from_host: int
    handover: Handover | None
    is_fit: bool | None = None

    def __call__(self, args: list[Any]) -> tuple[Any, ...]:
        """Runs the program; clears ``args``."""
        frame = args.copy()
        args.clear()
        self.memory.lend(self.loan)
        *turns, last = self.turns
        for turn in turns:
            turn.complete(frame)
            given = turn.taken(frame)
            for place in turn.dying:
                frame[place] = None
            frame += turn.part(given)
        last.complete(frame)
        handover = self.handover
        if handover is not None:
            if self.is_fit is None:
                self.is_fit = handover.fits(frame)
            return handover(frame, fits=self.is_fit)
        given = last.taken(frame)
        frame.clear()
        return last.part(given)


@dataclass(slots=True)
class PlaybackWriter:
    """Settles the calls of a program whose parts have been captured, or failed to be.

    Attributes:
        names: the inputs of the program.
        lendable: inputs of its last section that may be lent.
        memory: where results of graphs lie.
        places: where the memory of graphs begins that the results of parts lie in, None if they lie elsewhere.
        frame: places in the frame by name.
        length: of the frame, so far.
        fixed: values that lie where they lay at the capture.
        lasting: values that parts make.
        own: values that are the caller's own already.
        held: where memory begins that is lent.
        handover: what the last section does, if it only names memory.
    """

    names: Sequence[str]
    lendable: Collection[str]
    memory: GraphMemory
    places: Mapping[str, int | None]
    frame: dict[str, int] = field(default_factory=dict)
    length: int = 0
    fixed: set[str] = field(default_factory=set)
    lasting: dict[str, Any] = field(default_factory=dict)
    own: set[str] = field(default_factory=set)
    held: set[int] = field(default_factory=set)
    handover: Handover | None = None

    def write(self, parts: Sequence[GraphedPart]) -> Playback | None:
        """Returns the call; None where each call has to look in whose memory a value lies that the host makes."""
        self._enter(self.names)
        self.own.update(self.names)
        turns: list[Turn] = []
        for part in parts:
            escaping = sorted(part.section.escaping - self.own)
            if not self.fixed.issuperset(escaping):
                return None
            turns.append(self._turn(part, escaping, is_last=part is parts[-1]))
        played = sum(part.section.launches for part in parts if part.is_played)
        from_host = sum(part.section.launches for part in parts if not part.is_played)
        return Playback(tuple(turns), self.memory, self.memory.loan(self.held), played, from_host, self.handover)

    def _turn(self, part: GraphedPart, escaping: Sequence[str], *, is_last: bool) -> Turn:
        section = part.section
        located = {name: place for name in escaping if (place := self.places[name]) is not None}
        lent = [name for name in located if is_last and name in self.lendable and self.memory.owns(located[name])]
        copied = [name for name in located if name not in lent]
        self.held.update(located[name] for name in lent)
        # A view that is made of a graph's result is a tensor of its own as well.
        handed = [name for name in lent if _hands_on(section.program, name)]
        turn = Turn(part, self._taker(handed), self._taker(copied), taker(()), ())
        self._enter((*handed, *copied))
        self.own.update(copied)
        self.fixed.difference_update(copied)
        if is_last:
            self._hand_over(section.program, lent)
        turn.given = taker([self.frame[name] for name in part.inputs])
        turn.dying = tuple(self.frame[name] for name in part.inputs if name in section.dying)
        self._enter(part.outputs)
        if part.is_played:
            made = {name: each for name, each in zip(part.outputs, part.results, strict=True) if name is not None}
            self.fixed.update(made)
            self.lasting |= made
        return turn

    def _hand_over(self, last: Program, lent: Collection[str]) -> None:
        """Settles what the last section does, which is lent these values."""
        lasting = {name: self.lasting[name] for name in lent}
        self.handover = Handover.of(last, self.frame, self.length, lasting)
        if self.handover is not None:
            self.memory.keep(self.handover.kept)

    def _taker(self, names: Sequence[str]) -> Take | None:
        return taker([self.frame[name] for name in names]) if names else None

    def _enter(self, names: Sequence[str | None]) -> None:
        """Notes that a frame has these values from its end on."""
        self.frame |= {name: place for place, name in enumerate(names, self.length) if name is not None}
        self.length += len(names)


def _hands_on(last: Program, name: str) -> bool:
    """Tells whether a program hands on what it is given as it is, and does not only make views of it."""
    if any(output.value == name for output in last.outputs):
        return True
    return any(not isinstance(step, View) for step in last.steps)
