"""The integer mini-language of grids and sizes: reading, evaluating, printing as Python."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from ferrite_runtime.errors import SpecError
from ferrite_runtime.formats.json_fields import check_identifier, check_integer

Expr: TypeAlias = "int | str | tuple[Any, ...]"

Condition: TypeAlias = "tuple[Any, ...]"

MAX_DEPTH = 32
"""How deep an expression may be nested. Python's parser has a limit of its own, on the text of all that is inlined."""
MAX_OPERANDS = 256
"""Operands of one operator."""
_COMPARISONS = {"le": "<=", "lt": "<", "ge": ">=", "gt": ">", "eq": "==", "ne": "!="}
_HOLDS: dict[str, Callable[[int, int], bool]] = {
    "le": operator.le, "lt": operator.lt, "ge": operator.ge, "gt": operator.gt, "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip
_CONNECTIVES = ("and", "or", "not")
_VARIADIC = ("add", "mul", "min", "max")
DIVISIONS = ("floordiv", "ceildiv", "mod")
_BINARY = ("sub", *DIVISIONS)

_JOIN = {"add": " + ", "mul": " * ", "sub": " - ", "floordiv": " // ", "mod": " % "}


def read_expr(value: object, path: str, depth: int = 0) -> Expr:
    """Returns ``value``, checked, in its immutable form: an int, a name, or ``(op, a, b, …)``.

    Raises:
        SpecError: naming ``path``, if it is not in the language.
    """
    if isinstance(value, bool) or value is None or isinstance(value, float):
        raise SpecError(path, f"{value!r} is not an expression")
    if isinstance(value, int):
        return check_integer(value, path)
    if isinstance(value, str):
        return check_identifier(value, path)
    if not isinstance(value, (list, tuple)) or not value:
        raise SpecError(path, f"{value!r} is not an expression")
    if depth > MAX_DEPTH:
        raise SpecError(path, f"an expression is nested deeper than {MAX_DEPTH} levels")
    op, operands = value[0], value[1:]
    if op not in _VARIADIC and op not in _BINARY:
        raise SpecError(path, f"unknown operator {op!r}; known: {', '.join(_VARIADIC + _BINARY)}")
    if not 2 <= len(operands) <= MAX_OPERANDS or (op in _BINARY and len(operands) != 2):
        raise SpecError(path, f"operator {op} has {len(operands)} operands")
    return (op, *(read_expr(operand, f"{path}[{i + 1}]", depth + 1) for i, operand in enumerate(operands)))


def write_expr(expr: Expr) -> Any:
    """Returns the JSON form of ``expr``."""
    return [expr[0], *(write_expr(operand) for operand in expr[1:])] if isinstance(expr, tuple) else expr


def read_condition(value: object, path: str, depth: int = 0) -> Condition:
    """Returns ``value``, checked, in its immutable form: ``(comparison, a, b)`` or ``(connective, condition, …)``.

    Raises:
        SpecError: naming ``path``, if it is not in the language.
    """
    if not isinstance(value, (list, tuple)) or not value or depth > MAX_DEPTH or len(value) > MAX_OPERANDS:
        raise SpecError(path, f"{value!r} is not a condition")
    kind, parts = value[0], value[1:]
    positions = [f"{path}[{i + 1}]" for i in range(len(parts))]
    if kind in _COMPARISONS and len(parts) == 2:
        return (kind, *(read_expr(part, position) for part, position in zip(parts, positions, strict=True)))
    if kind in _CONNECTIVES and (len(parts) == 1 or (parts and kind != "not")):
        return (
            kind,
            *(read_condition(part, position, depth + 1) for part, position in zip(parts, positions, strict=True)),
        )
    raise SpecError(
        path, f"{kind!r} of {len(parts)} is no condition; known: {', '.join((*_COMPARISONS, *_CONNECTIVES))}"
    )


def write_condition(condition: Condition) -> list[Any]:
    """Returns the JSON form of ``condition``."""
    kind, *parts = condition
    return [kind, *map(write_expr if kind in _COMPARISONS else write_condition, parts)]


def condition_exprs(condition: Condition) -> Iterator[Expr]:
    """Yields the integers that ``condition`` compares, left to right."""
    kind, *parts = condition
    for part in parts:
        if kind in _COMPARISONS:
            yield part
        else:
            yield from condition_exprs(part)


def print_condition(condition: Condition) -> str:
    """Returns Python text that is true where ``condition`` holds."""
    kind, *parts = condition
    if kind in _COMPARISONS:
        return f"{print_expr(parts[0])} {_COMPARISONS[kind]} {print_expr(parts[1])}"
    inner = [f"({print_condition(part)})" for part in parts]
    return f"not {inner[0]}" if kind == "not" else f" {kind} ".join(inner)


def is_settled(condition: Condition) -> bool:
    """Tells whether a condition holds whatever its names are: all that it compares are numbers, of which it holds."""
    kind, *parts = condition
    if kind == "and":
        return all(map(is_settled, parts))
    return kind in _HOLDS and all(type(part) is int for part in parts) and _HOLDS[kind](*parts)


def expr_names(expr: Expr) -> Iterator[str]:
    """Yields every name in ``expr``, with repetitions, left to right."""
    if isinstance(expr, str):
        yield expr
    elif isinstance(expr, tuple):
        for operand in expr[1:]:
            yield from expr_names(operand)


def print_expr(expr: Expr, rename: Mapping[str, str] | None = None) -> str:
    """Returns Python text that computes ``expr``; names are replaced by ``rename`` where it has them."""
    if isinstance(expr, int):
        return str(expr) if expr >= 0 else f"({expr})"
    if isinstance(expr, str):
        return (rename or {}).get(expr, expr)
    parts = [print_expr(operand, rename) for operand in expr[1:]]
    if expr[0] == "ceildiv":
        return f"(-(-{parts[0]} // {parts[1]}))"
    if expr[0] in _JOIN:
        return f"({_JOIN[expr[0]].join(parts)})"
    return f"{expr[0]}({', '.join(parts)})"


def evaluate(expr: Expr, values: Mapping[str, int]) -> int:
    """Returns the value of ``expr`` where names have ``values``.

    Raises:
        SpecError: if a name has no value or a divisor is zero.
    """
    if isinstance(expr, int):
        return expr
    if isinstance(expr, str):
        if expr not in values:
            raise SpecError(expr, "this name has no value here")
        return values[expr]
    operands = [evaluate(operand, values) for operand in expr[1:]]
    if expr[0] in DIVISIONS and operands[1] == 0:
        raise SpecError("", f"{print_expr(expr)} divides by zero")
    return _APPLY[expr[0]](operands)


def settle(expr: Expr, values: Mapping[str, int]) -> Expr:
    """Returns ``expr`` with the ``values`` of names in it; what depends on no other name is a number then.

    A division by zero is left as it is, to fail where it is computed.
    """
    if isinstance(expr, int):
        return expr
    if isinstance(expr, str):
        return values.get(expr, expr)
    operands = [settle(operand, values) for operand in expr[1:]]
    numbers = [operand for operand in operands if isinstance(operand, int)]
    if len(numbers) < len(operands) or (expr[0] in DIVISIONS and numbers[1] == 0):
        return (expr[0], *operands)
    return _APPLY[expr[0]](numbers)


def settle_condition(condition: Condition, values: Mapping[str, int]) -> Condition:
    """Returns ``condition`` with the ``values`` of names in it."""
    kind, *parts = condition
    if kind in _COMPARISONS:
        return (kind, *(settle(part, values) for part in parts))
    return (kind, *(settle_condition(part, values) for part in parts))


def _product(operands: list[int]) -> int:
    result = 1
    for operand in operands:
        result *= operand
    return result


_APPLY: dict[str, Callable[[list[int]], int]] = {
    "add": sum,
    "mul": _product,
    "min": min,
    "max": max,
    "sub": lambda v: v[0] - v[1],
    "floordiv": lambda v: v[0] // v[1],
    "ceildiv": lambda v: -(-v[0] // v[1]),
    "mod": lambda v: v[0] % v[1],
}
