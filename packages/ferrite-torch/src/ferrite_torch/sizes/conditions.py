"""Torch's symbolic conditions, as conditions on sizes that a program checks while it runs."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch

from ferrite_ir.language.size_generators import Floor
from ferrite_ir.language.sizes import Size, Symbolic, maximum, minimum
from ferrite_torch.sizes.size_names import named
from ferrite_torch.sizes.specialisation import NeedsNumber
from ferrite_torch.sizes.symbolic_scalars import COMPARISONS
from ferrite_torch.sizes.symbolic_sizes import size_of_expression
from ferrite_torch.torch_private.symbolic_shapes import unsimplified_value

Condition = tuple[Any, ...]

_CONNECTIVES = {"And": "and", "Or": "or", "Not": "not"}
_SIGNS = {"le": "<=", "lt": "<", "ge": ">=", "gt": ">", "eq": "==", "ne": "!="}


def condition_of(value: torch.SymBool | bool) -> Condition | bool:  # noqa: FBT001  # what an assertion is given
    """Returns a condition as a check takes it: ``(comparison, a, b)`` or ``(connective, condition, …)``.

    What was learned later, as that two sizes are equal, is not taken for granted: the condition may be what says so.

    Raises:
        NeedsNumber: it asks something that sizes do not tell.
    """
    if isinstance(value, bool):
        return value
    expression, environment = unsimplified_value(value)
    return _condition(expression, environment)


def _condition(expression: Any, environment: Any) -> Condition | bool:
    name = type(expression).__name__
    if name in ("BooleanTrue", "BooleanFalse"):
        return name == "BooleanTrue"
    if name in COMPARISONS:
        return COMPARISONS[name], *(size_of_expression(side, environment) for side in expression.args)
    if name not in _CONNECTIVES:
        raise NeedsNumber("", f"{name} of sizes", ())
    parts = [_condition(part, environment) for part in expression.args]
    if name == "Not":
        return not parts[0] if isinstance(parts[0], bool) else ("not", parts[0])
    kept = tuple(part for part in parts if not isinstance(part, bool))
    if len(kept) < len(parts) and (False in parts if name == "And" else True in parts):
        return name == "Or"
    return kept[0] if len(kept) == 1 else (_CONNECTIVES[name], *kept) if kept else name == "And"


def bound_key(condition: Condition) -> Any:
    """Returns what conditions that ask the same have in common."""
    kind, *sides = condition
    match kind:
        case "le":
            return "at least 0", sides[1] - sides[0]
        case "lt":
            return "at least 0", sides[1] - sides[0] - 1
        case "ge":
            return "at least 0", sides[0] - sides[1]
        case "gt":
            return "at least 0", sides[0] - sides[1] - 1
        case "eq":
            return "0", frozenset((sides[0] - sides[1], sides[1] - sides[0]))
    return condition


def condition_text(condition: Condition, names: Mapping[str, str]) -> str:
    """Returns a condition as people write it, with these names for the symbols."""
    kind, *parts = condition
    if kind in _SIGNS:
        divided = _divided(parts[0] - parts[1]) or _divided(parts[1] - parts[0]) if kind in ("eq", "ne") else None
        if divided is not None:
            return f"{_operand(divided[0], names)} % {divided[1]} {_SIGNS[kind]} 0"
        left, right = (named(str(part), names) for part in parts)
        return f"{left} {_SIGNS[kind]} {right}"
    inner = [condition_text(part, names) for part in parts]
    return f"not ({inner[0]})" if kind == "not" else f" {kind} ".join(f"({text})" for text in inner)


def _divided(size: Size) -> tuple[Size, int] | None:
    """Returns ``(x, d)`` of ``x - d*(x//d)``, which is 0 where the number ``d`` divides ``x``; None of others."""
    for monomial, coefficient in size.terms if isinstance(size, Symbolic) else ():
        match monomial:
            case ((Floor(numerator=numerator, divisor=int(divisor)), 1),) if (
                coefficient == -divisor and size - numerator == -divisor * monomial[0][0].size
            ):
                return numerator, divisor
    return None


def _operand(size: Size, names: Mapping[str, str]) -> str:
    text = named(str(size), names)
    return text if isinstance(size, Symbolic) and len(size.terms) == 1 and "//" not in text else f"({text})"


def number_of(condition: Condition) -> Size:
    """Returns an integer that is not negative, and 0 unless a condition holds."""
    kind, *parts = condition
    match kind:
        case "le" | "lt":
            return maximum(0, parts[1] - parts[0] + (kind == "le"))
        case "ge" | "gt":
            return maximum(0, parts[0] - parts[1] + (kind == "ge"))
        case "eq" | "ne":
            distance = maximum(parts[0] - parts[1], parts[1] - parts[0])
            return distance if kind == "ne" else maximum(0, 1 - distance)
        case "not":
            return maximum(0, 1 - number_of(parts[0]))
    inner = [number_of(part) for part in parts]
    return functools.reduce(minimum if kind == "and" else maximum, inner)
