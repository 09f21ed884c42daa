"""Expressions with parts of them replaced."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import fields, replace
from typing import Any, TypeAlias

from .build import both
from .language import AtomicUpdate, Elementwise, Expression, Load, Name, Store

Access: TypeAlias = "Load | Store | AtomicUpdate"


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


def other_conditions(condition: Expression, true: AbstractSet[str]) -> Expression | None:
    """Returns what else a condition asks for where those of these names hold; None of nothing.

    It is the condition itself where they are no part of it.
    """
    match condition:
        case Name(name) if name in true:
            return None
        case Elementwise("bitand", (one, other)):
            kept = [each for each in (other_conditions(one, true), other_conditions(other, true)) if each is not None]
            return both(*kept) if kept else None
    return condition


def unmasked(access: Access, true: AbstractSet[str]) -> Access:
    """Returns an access of memory whose mask asks for nothing that is known to hold by its name."""
    if access.mask is None:
        return access
    rest = other_conditions(access.mask, true)
    free = replace(access, mask=rest)
    return replace(free, other=None) if isinstance(free, Load) and rest is None else free
