"""The named combines of reductions and scans.

A combine carries a tuple state. An operand tuple is either *lifted* (one value per point, as written by a lowering) or
already a *state* (as a second stage sees it): ``welford`` takes ``(x)`` or ``(mean, m2, weight)``, ``online_softmax``
takes ``(x)`` or ``(max, sumexp)``. ``argmax`` and ``argmin`` always take ``(value, index)``; NaN wins, and ties go to
the lowest index.

Sources: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979), for
states of ``welford``; Milakov, Gimelshein, "Online normalizer calculation for softmax" (2018).
"""

from __future__ import annotations

from dataclasses import dataclass

from .dtypes import BOOL, DType


@dataclass(frozen=True, slots=True)
class Combine:
    """One associative combine.

    Attributes:
        name: as written in the text form.
        state: names of the components of the state, one result each.
        lifted: number of operands per point in the lifted form.
        scans: whether a scan may use it.
    """

    name: str
    state: tuple[str, ...]
    lifted: int
    scans: bool = False

    @property
    def arities(self) -> tuple[int, ...]:
        """Returns the numbers of operands that are accepted."""
        return (self.lifted,) if self.lifted == len(self.state) else (self.lifted, len(self.state))

    def result_types(self, operands: tuple[DType, ...]) -> tuple[DType, ...]:
        """Returns the types of the results for operands of these types (a reduction never changes types.

        Lowerings cast first).
        """
        if len(operands) == len(self.state):
            return operands
        return tuple(operands[0] for _ in self.state)

    def operand_problem(self, operands: tuple[DType, ...]) -> str | None:
        """Returns what is wrong with operands of these types, or None."""
        if len(operands) not in self.arities:
            return f"{self.name} takes {' or '.join(map(str, self.arities))} operands, got {len(operands)}"
        if self.name in ("any", "all") and operands[0] is not BOOL:
            return f"{self.name} takes bool, got {operands[0]}; compare with zero first"
        if self.name in ("welford", "online_softmax", "logaddexp"):
            wrong = next((d for d in operands if d.name not in ("f32", "f64")), None)
            return None if wrong is None else f"{self.name} takes f32 or f64, got {wrong}; cast first"
        if self.name in ("argmax", "argmin") and not operands[1].is_integer:
            return f"{self.name} takes (value, integer index), got index type {operands[1]}"
        if any(d.is_narrow_float for d in operands) and self.name not in (
            "max",
            "min",
            "argmax",
            "argmin",
            "cummax",
            "cummin",
        ):
            return f"{self.name} of {operands[0]} would round at every step; cast to f32 first"
        return None


COMBINES: dict[str, Combine] = {
    combine.name: combine
    for combine in (
        Combine("sum", ("sum",), 1, scans=True),
        Combine("prod", ("prod",), 1, scans=True),
        Combine("max", ("max",), 1, scans=True),
        Combine("min", ("min",), 1, scans=True),
        Combine("any", ("any",), 1),
        Combine("all", ("all",), 1),
        Combine("xor", ("xor",), 1),
        Combine("argmax", ("value", "index"), 2),
        Combine("argmin", ("value", "index"), 2),
        Combine("cummax", ("value", "index"), 2, scans=True),
        Combine("cummin", ("value", "index"), 2, scans=True),
        Combine("logaddexp", ("logsum",), 1, scans=True),
        Combine("welford", ("mean", "m2", "weight"), 1),
        Combine("online_softmax", ("max", "sumexp"), 1),
    )
}
