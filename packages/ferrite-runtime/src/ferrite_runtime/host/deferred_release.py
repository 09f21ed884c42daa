"""Deferred release: memory of values that die while launches wait is given back when these are started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ferrite_runtime.formats.expression_sums import Terms, bound_of, expr_of, total_of, without_number
from ferrite_runtime.formats.expressions import evaluate
from ferrite_runtime.host.thresholds import MEMORY


@dataclass(slots=True)
class DeferredRelease:
    """What is put off, in bytes.

    Attributes:
        sizes: sizes of a call for which the text is written: they count as known.
        variables: what is put off now.
        bytes: how much that is.
        burdens: what was put off at each start, of sizes that a call gives.
    """

    sizes: Mapping[str, int] | None = None
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
        if self._known(together) > MEMORY.deferred:
            return False
        self.variables += variables
        self.bytes = together
        return True

    def known_bytes(self) -> int:
        """Returns the bytes that are put off now, as far as they are known."""
        return self._known(self.bytes)

    def _known(self, terms: Terms) -> int:
        if self.sizes is None:
            return terms.get((), 0)
        return int(evaluate(expr_of(terms), self.sizes))

    def end(self) -> list[str]:
        """Returns the variables that are put off, which is over now."""
        variables = self.variables
        self.burdens.append(without_number(self.bytes))
        self.variables, self.bytes = [], {}
        return variables

    def most(self) -> Terms:
        """Returns the bytes of sizes that a call gives which are put off at once, at most."""
        return bound_of(self.burdens)
