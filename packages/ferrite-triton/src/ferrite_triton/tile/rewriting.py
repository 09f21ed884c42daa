"""Expressions with parts of them replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from .language import Expression


def rewritten(expression: Expression, change: Callable[[Expression], Expression | None]) -> Expression:
    """Returns an expression with parts replaced, from the outside in.

    Args:
        expression: one of a statement, which are not nested deeply.
        change: what stands for a part; None leaves the part, and looks at what is in it.
    """
    found = change(expression)
    if found is not None:
        return found
    changed: dict[str, Any] = {}
    for field in fields(expression):
        value = getattr(expression, field.name)
        if isinstance(value, Expression):
            changed[field.name] = rewritten(value, change)
        elif isinstance(value, tuple):
            changed[field.name] = tuple(rewritten(x, change) if isinstance(x, Expression) else x for x in value)
    return replace(expression, **changed) if changed else expression
