"""Grid-cooperative reductions: each program reduces one block of a row, publishes its state, and combines all states.

Which kernels are such, and why: `ferrite_scheduler.refinements.grid_reductions`; the barrier: `fmath.grid_sync`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ferrite_ir.language.dtypes import F32, I32, DType
from ferrite_ir.language.graph import Reduction
from ferrite_ir.language.powers_of_two import next_power_of_two
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.reference.combine_semantics import neutral
from ferrite_scheduler.model.forms import GridReduction
from ferrite_triton.analysis.flat import FlatKernel
from ferrite_triton.bodies.builder import Builder, Tile
from ferrite_triton.bodies.reductions import R, Reductions
from ferrite_triton.bodies.scalar_values import ScalarValues
from ferrite_triton.tile.build import add, apply, both, mul, sub
from ferrite_triton.tile.language import Call, Constant, Expression, Lanes, Literal, Name, Offset, TileType
from ferrite_triton.tile.types import broadcast_shapes

REGISTERS, REGISTERS_OF_16_BIT = 128, 72
"""Registers of a thread, half of which hold elements: a multiprocessor holds four programs of four warps, or two of
eight, so that some load while others wait. Two elements of two bytes wait in a register: seven programs of four warps.
"""


@dataclass(frozen=True, slots=True)
class GridReductions:
    """Writes the reductions of one kernel, whose states are words of its workspace."""

    flat: FlatKernel
    builder: Builder
    reductions: Reductions
    evaluator: ScalarValues

    def write(self, definitions: list[Reduction]) -> None:
        """Writes reductions of which none waits for another, and the shares of softmaxes; all is known afterwards.

        All of a program's states are published before it waits, once, for the others of its rows.
        """
        kept = frozenset(reduction.results[0].name for reduction in self.evaluator.shares.values())
        words, members, valid = self._positions()
        axes = R.union(self.flat.space.order)
        positions: list[list[Expression]] = []
        own: dict[str, Tile] = {}
        for number, (definition, states_at) in enumerate(self._words(definitions, words)):
            if number:
                self.evaluator.hold_only()
            states = self.reductions.states(definition, kept)
            self._publish(states, states_at)
            own[definition.results[0].name] = states[0]
            positions.append(states_at)
        group = add(Literal(1, self._index), Name("group"))
        barrier = Call("grid_barrier", (Offset(self._workspace, group), Constant(self.flat.space.splits)))
        self.builder.do(barrier, axes)
        for definition, states_at in zip(definitions, positions, strict=True):
            lanes_ = [
                self._lanes((Offset(position, members), valid, Constant(neutral)))
                for position, neutral in zip(states_at, neutral_state(definition.combine), strict=True)
            ]
            self.evaluator.publish(definition, self.reductions.merged(definition, tuple(lanes_), axes))
        self.evaluator.hold_only()
        for quotient, reduction in self.evaluator.shares.items():
            self._write_share(quotient, reduction, own[reduction.results[0].name])

    def _write_share(self, quotient: Scalar, reduction: Reduction, own: Tile) -> None:
        """Writes the shares of elements in a softmax's sum: terms, relative to the block's maximum, times a factor.

        So no exponential is taken twice, and elements lie in no register but as terms. An exponential and a quotient of
        each row are rounded for all its elements, so that results are off by two roundings more than exact quotients.
        """
        top = self.evaluator.results[reduction.results[0].name]
        whole = self.evaluator.tile(quotient.args[1])
        distance = sub(own.expression, top.expression)
        scale = self.builder.hold("scale", apply("exp", distance), top.axes)
        divided = apply("div", scale.expression, whole.expression)
        factor = self.builder.hold("factor", divided, scale.axes | whole.axes)
        terms = self.reductions.terms[reduction.results[0].name]
        share = self.builder.hold("div", mul(terms.expression, factor.expression), terms.axes | factor.axes)
        self.evaluator.know(quotient, share)

    @property
    def _index(self) -> DType:
        return self.evaluator.index_dtype

    @property
    def _form(self) -> GridReduction:
        assert isinstance(self.flat.kernel.form, GridReduction), "only grid reductions have such a workspace"
        return self.flat.kernel.form

    @property
    def _workspace(self) -> Name:
        return Name(self.flat.param_of(self._form.workspace).text)

    @property
    def _rows(self) -> int:
        return math.prod(int(axis.size) for axis in self.flat.space.grid)

    def _words(self, definitions: list[Reduction], words: Expression) -> Iterator[tuple[Reduction, list[Expression]]]:
        """Yields each reduction with where the components of its states lie: of each a word for every row and block."""
        count, size = 0, self._rows * self.flat.space.splits
        for definition in definitions:
            numbers = range(count, count + len(definition.results))
            yield definition, [Offset(words, Literal(number * size, self._index)) for number in numbers]
            count = numbers.stop

    def _publish(self, states: tuple[Tile, ...], positions: list[Expression]) -> None:
        mask = () if self._rows_mask is None else (self._rows_mask,)
        axes = R.union(self.flat.space.order)
        for state, position in zip(states, positions, strict=True):
            value = self.reductions.spread(state, axes - R)
            self.builder.do(Call("publish_state", (Offset(position, Name("member")), value, *mask)), axes)

    def _positions(self) -> tuple[Expression, Expression, Expression]:
        """Returns where the states of a row lie, the numbers of its blocks, and of which of them there are any.

        Before the states are the counters: one of programs, and one for each group of rows, of which there is none for
        more.
        """
        space, row = self.flat.space, None
        for axis in space.grid:
            if axis.size != 1:
                position = self.builder.position(axis.name)
                row = position if row is None else add(mul(row, self._number(int(axis.size))), position)
        first: Expression = Offset(self._workspace, self._number(1 + self._rows))
        if row is not None:
            first = Offset(first, mul(row, self._number(space.splits)))
        words = self.builder.let("words", first, R).expression
        blocks = space.expand("r", Lanes(next_power_of_two(space.splits)))
        members = self.builder.let("members", blocks, R).expression
        valid: Expression = apply("lt", members, Literal(space.splits, I32))
        if self._rows_mask is not None:
            valid = both(valid, self._rows_mask)
        return words, members, self.builder.let("valid", valid, R).expression

    def _number(self, value: int) -> Literal:
        return Literal(value, self._index)

    @property
    def _rows_mask(self) -> Expression | None:
        """Returns the mask of rows, None where there is none."""
        masked = next((axis.name for axis in self.flat.space.grid if axis.masked), None)
        return None if masked is None else self.builder.mask(masked)

    def _lanes(self, operands: tuple[Expression, ...]) -> Expression:
        """Returns a tile with what each block of a row has published."""
        shape = broadcast_shapes(*(self.builder.type_of(each).shape for each in operands[:2]))
        axes = R.union(self.flat.space.order)
        return self.builder.call("lanes", "published_states", operands, TileType(F32, shape), axes).expression


def neutral_state(combine: str) -> tuple[float, ...]:
    """Returns what the components of a state of nothing are, of simple combines and softmax."""
    return tuple(map(float, neutral(combine, F32)))
