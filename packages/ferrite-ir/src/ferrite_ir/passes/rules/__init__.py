"""The rewriting rules of simplification, by family. Each carries an example, which a test checks.

In comes a node of an expression, out goes an equal one or nothing. `rewriting` and the passes call them.
"""

from __future__ import annotations

from . import arithmetic, casts, indices, selections
from .rule import Rule

EXACT_RULES: tuple[Rule, ...] = (
    *arithmetic.BOOK.rules,
    *casts.BOOK.rules,
    *selections.BOOK.rules,
    *indices.BOOK.rules,
)
"""Rules that change no bit of any result."""

FAST_RULES: tuple[Rule, ...] = tuple(casts.FAST_BOOK.rules)
"""Rules that skip roundings to half types."""

__all__ = ["EXACT_RULES", "FAST_RULES", "Rule"]
