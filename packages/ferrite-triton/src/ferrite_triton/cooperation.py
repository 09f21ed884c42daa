"""Folds of kernels whose programs hold a block of the fold axis each: blocks folded, published, and combined by all."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ferrite_ir.dtypes import F32
from ferrite_ir.graph import Fold
from ferrite_ir.scalar import Scalar

from .combines import neutrals_of
from .evaluate import Evaluator
from .flat import FlatKernel
from .folds import FoldText, R
from .space import next_power_of_two
from .writer import Tile, Writer

REGISTERS, REGISTERS_OF_HALVES = 128, 72
"""Registers of a thread, half of which hold elements: a multiprocessor holds four programs of four warps, or two of
eight, so that some load while others wait. Two elements of two bytes wait in a register: seven programs of four warps.
"""


@dataclass(frozen=True, slots=True)
class CooperativeFoldText:
    """Writes the folds of one kernel, whose states are words of its status."""

    flat: FlatKernel
    writer: Writer
    folds: FoldText
    evaluator: Evaluator

    def write(self, definitions: list[Fold]) -> None:
        """Writes folds of which none waits for another, and the shares of softmaxes; all is known afterwards.

        All of a program's states are published before it waits, once, for the others of its rows.
        """
        kept = frozenset(fold.results[0].name for fold in self.evaluator.shares.values())
        for line in self._places():
            self.writer.line(line, R)
        axes = R.union(self.flat.space.order)
        words: list[list[str]] = []
        own: dict[str, Tile] = {}
        for number, (definition, places) in enumerate(self._words(definitions)):
            if number:
                self.evaluator.renew()
            states = self.folds.states(definition, kept)
            self._publish(states, places)
            own[definition.results[0].name] = states[0]
            words.append(places)
        self.writer.line(f"fmath.meet({self._status} + 1 + group, {self.flat.space.parts})", axes)
        for definition, places in zip(definitions, words, strict=True):
            lanes = [
                self._lanes(f"fmath.published_states({place} + members, told, {neutral})")
                for place, neutral in zip(places, neutrals_of(definition.combine, F32), strict=True)
            ]
            merged = self.folds.merged(definition, tuple(lanes), axes, F32)
            self.evaluator.publish(definition, merged)
        self.evaluator.renew()
        for quotient, fold in self.evaluator.shares.items():
            self._write_share(quotient, fold, own[fold.results[0].name])

    def _write_share(self, quotient: Scalar, fold: Fold, own: Tile) -> None:
        """Writes the shares of elements in a softmax's sum: terms, relative to the block's maximum, times a factor.

        So no exponential is taken twice, and elements lie in no register but as terms. An exponential and a quotient of
        each row are rounded for all its elements, so that results are off by two roundings more than exact quotients.
        """
        top = self.evaluator.results[fold.results[0].name]
        whole = self.evaluator.tile(quotient.args[1])
        scale = self.writer.hold("scale", f"fmath.exp({own.text} - {top.text})", top.axes, F32)
        factor = self.writer.hold("factor", f"tl.div_rn({scale.text}, {whole.text})", scale.axes | whole.axes, F32)
        terms = self.folds.terms[fold.results[0].name]
        axes = terms.axes | factor.axes
        self.evaluator.know(quotient, self.writer.hold("div", f"{terms.text} * {factor.text}", axes, F32))

    @property
    def _status(self) -> str:
        return self.flat.param_of(self.flat.kernel.status).text

    @property
    def _rows(self) -> int:
        return math.prod(int(axis.size) for axis in self.flat.space.grid)

    def _words(self, definitions: list[Fold]) -> Iterator[tuple[Fold, list[str]]]:
        """Yields each fold with where the components of its states lie: of each a word for every row and block."""
        count, words = 0, self._rows * self.flat.space.parts
        for definition in definitions:
            numbers = range(count, count + len(definition.results))
            yield definition, [f"words + {number * words}" if number else "words" for number in numbers]
            count = numbers.stop

    def _publish(self, states: tuple[Tile, ...], places: list[str]) -> None:
        mask = f", {self._rows_mask}" if self._rows_mask else ""
        axes = R.union(self.flat.space.order)
        for state, place in zip(states, places, strict=True):
            value = self.folds.spread(state, axes - R)
            self.writer.line(f"fmath.publish_state({place} + member, {value}{mask})", axes)

    def _places(self) -> list[str]:
        """Returns the lines that say where the states of a row lie, and of which blocks and rows there are any.

        Before them are the counters: one of programs, and one for each group of rows, of which there is none for more.
        """
        space, row = self.flat.space, ""
        for axis in space.grid:
            if axis.size != 1:
                row = f"({row} * {axis.size} + {axis.name})" if row else axis.name
        lanes = f"tl.arange(0, {next_power_of_two(space.parts)}){space.expand('r')}"
        lines = [f"words = {self._status} + {1 + self._rows}" + (f" + {row} * {space.parts}" if row else "")]
        lines += [f"members = {lanes}", f"told = members < {space.parts}"]
        return [*lines, f"told = told & {self._rows_mask}"] if self._rows_mask else lines

    @property
    def _rows_mask(self) -> str:
        """Returns the mask of rows, "" where there is none."""
        return next((f"{axis.name}mask" for axis in self.flat.space.grid if axis.masked), "")

    def _lanes(self, expression: str) -> str:
        """Returns the name of a tile with a lane for each block of a row."""
        return self.writer.hold("lanes", expression, R.union(self.flat.space.order), F32).text
