"""Combines that a user writes: what two states combine to, as expressions of the components of both.

A state has a component for each result of the scan. In an expression, component 1 of the state of the points before is
the number ``left1[]``, that of the state of the points behind them ``right1[]``. A linear recurrence,
``y = a * y + b``, is a scan of pairs ``(a, b)`` by
``(mul(left0[], right0[]), add(mul(left1[], right0[]), right1[]))``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from .combines import COMBINES, Combine
from .dtypes import DType
from .ops import ITERATED, RANDOM, REQUIREMENTS
from .scalar import Scalar, load, postorder, replace_loads

LEFT, RIGHT = "left", "right"


@dataclass(frozen=True, slots=True)
class CombineFunction:
    """An associative combine given by its expressions, one for each component of its state.

    It need not be commutative, and has no neutral element.
    """

    bodies: tuple[Scalar, ...]

    def __str__(self) -> str:
        return f"by {', '.join(map(str, self.bodies))}"

    @property
    def types(self) -> tuple[DType, ...]:
        """Returns the types of the components."""
        return tuple(body.dtype for body in self.bodies)

    @property
    def row(self) -> Combine:
        """Returns what else there is to know of a combine, as the table of named ones has it."""
        return Combine("function", tuple(f"state{i}" for i in range(len(self.bodies))), len(self.bodies), scans=True)

    def joined(self, left: Sequence[Scalar], right: Sequence[Scalar]) -> tuple[Scalar, ...]:
        """Returns what two states combine to, the left one of the points before those of the right one."""
        states = dict(zip(self.components(LEFT), left, strict=True))
        states.update(zip(self.components(RIGHT), right, strict=True))
        memo: dict[Scalar, Scalar] = {}
        return tuple(replace_loads(body, states.get, memo) for body in self.bodies)

    def components(self, side: str) -> tuple[Scalar, ...]:
        """Returns the components of the left or right state, as expressions name them."""
        return tuple(component(side, position, dtype) for position, dtype in enumerate(self.types))

    def problem(self) -> str | None:
        """Returns what is wrong with the expressions, or None."""
        known = {*self.components(LEFT), *self.components(RIGHT)}
        for node in postorder(self.bodies):
            if node.op == "load" and node not in known:
                last = len(self.bodies) - 1
                return f"a combine knows {LEFT}0[] … {RIGHT}{last}[] in the types of its results, no {node}"
            if node.op == "index" or node.op in RANDOM or node.op in REQUIREMENTS:
                return f"a combine is computed of two states alone, without {node.op}"
            if node.op in ITERATED:
                return f"a combine is computed between threads, without loops such as {node.op} takes"
        return None


AnyCombine: TypeAlias = "str | CombineFunction"
"""A combine of the table, by its name, or one that a user writes."""


def component(side: str, position: int, dtype: DType) -> Scalar:
    """Returns a component of one of the two states that a function combines."""
    return load(f"{side}{position}", (), dtype)


def combine_row(combine: AnyCombine) -> Combine | None:
    """Returns what there is to know of a combine; None of a name that is in no table."""
    return combine.row if isinstance(combine, CombineFunction) else COMBINES.get(combine)


def combine_name(combine: AnyCombine) -> str:
    """Returns a word for a combine, such as names of kernels are made of."""
    return combine.row.name if isinstance(combine, CombineFunction) else combine
