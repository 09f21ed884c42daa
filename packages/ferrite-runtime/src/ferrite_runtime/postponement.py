"""Variables of the host function that die while launches wait: their memory is given back when these are started."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ferrite_runtime.terms import Terms, bound_of, total_of, without_number

MAX_POSTPONED = 8 << 20
"""Bytes of known sizes that may live longer so."""
MAX_LENGTHS_POSTPONED = 32 << 20
"""The same for sizes that a call gives.

The text is one for many sizes: it cannot start what waits just where the sum gets too large, as it does for known
sizes, but only leave the call to a text that puts nothing off.
"""


@dataclass(slots=True)
class Postponement:
    """What is put off, in bytes, and ``burdens``: what was at each start, of sizes that a call gives."""

    variables: list[str] = field(default_factory=list)
    bytes: Terms = field(default_factory=dict)
    burdens: list[Terms] = field(default_factory=list)

    def put_off(self, variables: Sequence[str], sizes: Iterable[Terms | None]) -> bool:
        """Puts the end of variables of these sizes off, and tells whether it did: not if they may be too large."""
        known: list[Terms] = [self.bytes]
        for size in sizes:
            if size is None:
                return False
            known.append(size)
        together = total_of(known)
        if together.get((), 0) > MAX_POSTPONED:
            return False
        self.variables += variables
        self.bytes = together
        return True

    def end(self) -> list[str]:
        """Returns the variables that are put off, which is over now."""
        variables = self.variables
        self.burdens.append(without_number(self.bytes))
        self.variables, self.bytes = [], {}
        return variables

    def most(self) -> Terms:
        """Returns the bytes of sizes that a call gives which are put off at once, at most."""
        return bound_of(self.burdens)
