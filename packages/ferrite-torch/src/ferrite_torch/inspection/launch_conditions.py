"""The conditions of launches as people write them: ``x.shape[1] % 4 == 0`` for what the host compares with 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ferrite_runtime.formats.expressions import print_expr


def predicate_text(expr: Any, limit: int, names: Mapping[str, str], *, holds: bool = True) -> str:
    """Returns ``expr <= limit``, or its opposite, for an expression of a program, with these names for its symbols."""
    terms = _terms(expr)
    limit -= terms.pop((), 0)
    if not holds:
        terms, limit = Counter({atom: -count for atom, count in terms.items()}), -limit - 1
    divided = _remainder(terms) if limit == 0 else None
    if divided is not None:
        return f"{print_expr(divided[0], names)} % {divided[1]:,} == 0"
    is_upper = any(count > 0 for count in terms.values())
    sign = 1 if is_upper else -1
    if len(terms) == 1:
        ((atom, count),) = terms.items()
        bound = limit // count if is_upper else -(limit // -count)
        return f"{print_expr(atom, names)} {'<=' if is_upper else '>='} {bound:,}"
    total = _sum_text({atom: sign * count for atom, count in terms.items()}, names)
    return f"{total} {'<=' if is_upper else '>='} {sign * limit:,}"


def _terms(expr: Any) -> Counter[Any]:
    """Returns an expression as multiples of expressions that are no sums; ``()`` stands for 1."""
    if isinstance(expr, int):
        return Counter({(): expr}) if expr else Counter()
    if not isinstance(expr, (list, tuple)):
        return Counter({expr: 1})
    operation, *operands = expr
    if operation in ("add", "sub"):
        found: Counter[Any] = Counter()
        for position, operand in enumerate(operands):
            for atom, count in _terms(operand).items():
                found[atom] += -count if operation == "sub" and position else count
        return Counter({atom: count for atom, count in found.items() if count})
    numbers = [operand for operand in operands if isinstance(operand, int)]
    if operation == "mul" and len(numbers) == 1 and len(operands) == 2:
        (other,) = (operand for operand in operands if not isinstance(operand, int))
        return Counter({atom: numbers[0] * count for atom, count in _terms(other).items() if numbers[0]})
    return Counter({_frozen(expr): 1})


def _frozen(expr: Any) -> Any:
    return tuple(map(_frozen, expr)) if isinstance(expr, (list, tuple)) else expr


def _remainder(terms: Counter[Any]) -> tuple[Any, int] | None:
    """Returns ``(x, d)`` if terms are multiples of ``x - d*(x//d)``, which is at most 0 where ``d`` divides."""
    for atom, count in terms.items():
        match atom:
            case ("floordiv", numerator, int(divisor)) if count < 0 and count % divisor == 0:
                whole = Counter({part: -count // divisor * many for part, many in _terms(numerator).items()})
                if whole == Counter({part: many for part, many in terms.items() if part != atom}):
                    return numerator, divisor
    return None


def _sum_text(terms: Mapping[Any, int], names: Mapping[str, str]) -> str:
    made = ""
    for atom, count in terms.items():
        sign = (" + " if count > 0 else " - ") if made else ("" if count > 0 else "-")
        factor = "" if abs(count) == 1 else f"{abs(count):,}*"
        made += f"{sign}{factor}{print_expr(atom, names)}"
    return made
