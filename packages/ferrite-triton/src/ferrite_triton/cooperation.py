"""Folds of kernels whose programs hold a block of the fold axis each: blocks folded, published, and combined by all."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ferrite_ir.dtypes import F32
from ferrite_ir.graph import Fold

from .combines import neutrals_of
from .flat import FlatKernel
from .folds import FoldText, R
from .halves import HalvesText, waits_in_halves
from .space import next_power_of_two
from .writer import Tile, Writer

REGISTERS, MORE_REGISTERS = 128, 168
"""Registers of a thread: a multiprocessor holds four programs of four warps, so that some load while others wait.

More, for three, where fewer would spill: if no elements wait in halves, of columns, or where lanes lie past the end.
"""


def waiting_registers(flat: FlatKernel) -> int:
    """Returns how many registers a thread of a kernel may have whose programs share rows."""
    fold = flat.space.fold
    is_easy = fold is not None and not fold.masked and flat.space.order[-1] == "r"
    return REGISTERS if is_easy or waits_in_halves(flat, flat.definitions) else MORE_REGISTERS


@dataclass(frozen=True, slots=True)
class CooperativeFoldText:
    """Writes the folds of one kernel, whose states are words of its status: f32 in the lower half, a flag above."""

    flat: FlatKernel
    writer: Writer
    folds: FoldText

    @property
    def halves(self) -> HalvesText:
        """Returns what keeps elements of two bytes narrow."""
        return HalvesText(self.writer, self.flat.param_of(self.flat.kernel.status).text)

    def write(self, definitions: list[Fold]) -> list[tuple[Tile, ...]]:
        """Writes folds of which none waits for another; returns for each of them one tile per result.

        All of a program's states are published, and all that it needs are asked for, before it waits for any.
        """
        for line in self._places():
            self.writer.line(line, R)
        axes = R.union(self.flat.space.order)
        words: list[list[str]] = []
        for definition, places in self._words(definitions):
            self._publish(self._states(definition), places)
            words.append(places)
            self._renew()
        asked = [[self._lanes(f"fmath.asked_states({place} + members, told)") for place in places] for places in words]
        found: list[tuple[Tile, ...]] = []
        for definition, places, states in zip(definitions, words, asked, strict=True):
            lanes = [
                self._lanes(f"fmath.awaited_states({state}, {place} + members, told, {neutral})")
                for state, place, neutral in zip(states, places, neutrals_of(definition.combine, F32), strict=True)
            ]
            found.append(self.folds.merged(definition, tuple(lanes), axes, F32))
        return found

    def _words(self, definitions: list[Fold]) -> Iterator[tuple[Fold, list[str]]]:
        """Yields each fold with where the components of its states lie: of each a word for every row and block."""
        space, count = self.flat.space, 0
        words = math.prod(int(axis.size) for axis in space.grid) * space.parts
        for definition in definitions:
            numbers = range(count, count + len(definition.results))
            yield definition, [f"words + {number * words}" if number else "words" for number in numbers]
            count = numbers.stop

    def _states(self, definition: Fold) -> tuple[Tile, ...]:
        """Returns the state of a program's block."""
        if definition.combine != "online_softmax":
            return self.folds.states(definition)
        top, safe = self.folds.highest(*self.folds.softmax_lanes(definition))
        self._renew()
        return top, self.folds.mass(*self.folds.softmax_lanes(definition), safe)

    def _renew(self) -> None:
        """Has what was loaded in two bytes widened again where it is used next."""
        if loaded := self.halves.loaded():
            self.halves.keep(loaded, self.halves.zero())

    def _publish(self, states: tuple[Tile, ...], places: list[str]) -> None:
        mask = f", {self._rows_mask}" if self._rows_mask else ""
        axes = R.union(self.flat.space.order)
        for state, place in zip(states, places, strict=True):
            value = self.folds.spread(state, axes - R)
            self.writer.line(f"fmath.publish_state({place} + member, {value}{mask})", axes)

    def _places(self) -> list[str]:
        """Returns the lines that say where the states of a row lie, and of which blocks and rows there are any."""
        space, row = self.flat.space, ""
        for axis in space.grid:
            if axis.size != 1:
                row = f"({row} * {axis.size} + {axis.name})" if row else axis.name
        status = self.flat.param_of(self.flat.kernel.status).text
        lanes = f"tl.arange(0, {next_power_of_two(space.parts)}){space.expand('r')}"
        lines = [f"words = {status} + 1" + (f" + {row} * {space.parts}" if row else "")]
        lines += [f"members = {lanes}", f"told = members < {space.parts}"]
        return [*lines, f"told = told & {self._rows_mask}"] if self._rows_mask else lines

    @property
    def _rows_mask(self) -> str:
        """Returns the mask of rows, "" where there is none."""
        return next((f"{axis.name}mask" for axis in self.flat.space.grid if axis.masked), "")

    def _lanes(self, expression: str) -> str:
        """Returns the name of a tile with a lane for each block of a row."""
        return self.writer.hold("lanes", expression, R.union(self.flat.space.order), F32).text
