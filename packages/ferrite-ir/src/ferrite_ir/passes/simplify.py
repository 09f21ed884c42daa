"""Algebraic simplification: expressions are rewritten by the rules of `rules`, and constants are folded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from ferrite_ir.language.graph import Graph

from .fold_constants import folded
from .rewriting import Rewriter, map_functions, map_scalars, with_definitions
from .rules import EXACT_RULES, FAST_RULES

NUMERICS = ("fast", "rounding")


@lru_cache(maxsize=len(NUMERICS))
def simplifier(numerics: str) -> Rewriter:
    """Returns the rewriter for a numerics mode.

    It lives as long as the process, like the expressions that it remembers.

    Raises:
        ValueError: no such mode.
    """
    if numerics not in NUMERICS:
        raise ValueError(f"unknown numerics {numerics!r}; known: {', '.join(NUMERICS)}")
    rules = EXACT_RULES + FAST_RULES if numerics == "fast" else EXACT_RULES
    return Rewriter(rules, folded)


@dataclass(frozen=True, slots=True)
class Simplify:
    """Brings every expression into simplest form.

    Attributes:
        numerics: ``fast`` skips roundings to f16 and bf16 between two computations; ``rounding`` keeps every bit.
    """

    name: ClassVar[str] = "simplify"
    numerics: str = "fast"

    def run(self, graph: Graph) -> Graph:
        """Returns the graph with simplified bodies."""
        change = simplifier(self.numerics)
        return with_definitions(
            graph, [map_functions(map_scalars(d, change, change.index), change) for d in graph.definitions]
        )
