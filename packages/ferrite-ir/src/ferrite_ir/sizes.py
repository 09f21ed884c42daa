"""Sizes: Python integers, or SymPy expressions over symbolic sizes.

This module is the only caller of SymPy, and imports it on the first symbolic size, so that a static graph never pays
for it. Integer arguments take a path of plain integer arithmetic.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

# A SymPy expression at run time; typed as Any because SymPy publishes no types.
Size = Any


def symbol(name: str) -> Size:
    """Returns the symbolic size with this name: an integer that is at least 1."""
    import sympy

    return sympy.Symbol(name, integer=True, positive=True)


def parse_size(text: str) -> Size:
    """Returns the size written as ``text``: an integer, a name, or sums, products and floor divisions of these.

    Raises:
        ValueError: the text is not such an expression.
    """
    if text.isdigit():
        return int(text)
    import ast

    return _from_ast(ast.parse(text, mode="eval").body, text)


def _from_ast(node: Any, text: str) -> Size:  # noqa: PLR0911 - one for each form
    import ast

    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return symbol(name)
        case ast.BinOp(left=left, op=operator, right=right):
            a, b = _from_ast(left, text), _from_ast(right, text)
            match operator:
                case ast.Add():
                    return add(a, b)
                case ast.Sub():
                    return add(a, mul(-1, b))
                case ast.Mult():
                    return mul(a, b)
                case ast.FloorDiv():
                    return floordiv(a, b)
                case ast.Pow() if type(b) is int and b >= 0:
                    return product([a] * b)
                case ast.Mod():
                    return add(a, mul(-1, mul(b, floordiv(a, b))))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return mul(-1, _from_ast(operand, text))
    raise ValueError(f"not a size expression: {text!r}; write integers, names, + - * // % **")


def is_static(size: Size) -> bool:
    """Returns whether the size is a plain integer."""
    return type(size) is int


def add(a: Size, b: Size) -> Size:
    """Returns ``a + b``."""
    return _settle(a + b)


def mul(a: Size, b: Size) -> Size:
    """Returns ``a * b``, expanded."""
    if type(a) is int and type(b) is int:
        return a * b
    return _expand_product(a, b)


@lru_cache(maxsize=4096)
def _expand_product(a: Size, b: Size) -> Size:
    import sympy

    return _settle(sympy.expand(sympy.sympify(a) * sympy.sympify(b)))


def product(sizes: Any) -> Size:
    """Returns the product of the sizes, 1 for none."""
    total: Size = 1
    for size in sizes:
        total = mul(total, size)
    return total


def _settle(value: Size) -> Size:
    if type(value) is int:
        return value
    return int(value) if value.is_Integer else value


def floordiv(a: Size, b: Size) -> Size:
    """Returns ``floor(a / b)``, as an integer where it is one."""
    if type(a) is int and type(b) is int:
        return a // b
    return _symbolic_floordiv(a, b)


@lru_cache(maxsize=4096)
def _symbolic_floordiv(a: Size, b: Size) -> Size:
    import sympy

    exact = quotient(a, b)
    return exact if exact is not None else sympy.floor(sympy.sympify(a) / b)


def quotient(a: Size, b: Size) -> Size | None:
    """Returns ``a / b`` if ``b`` provably divides ``a``, else None."""
    if type(a) is int and type(b) is int:
        return a // b if b != 0 and a % b == 0 else None
    return _symbolic_quotient(a, b)


@lru_cache(maxsize=4096)
def _symbolic_quotient(a: Size, b: Size) -> Size | None:
    import sympy

    ratio = sympy.cancel(sympy.sympify(a) / sympy.sympify(b))
    numerator, denominator = sympy.fraction(sympy.expand(ratio))
    if denominator != 1 or not ratio.is_polynomial():
        return None
    coefficients = (
        sympy.Poly(numerator, *sorted(numerator.free_symbols, key=str)).coeffs()
        if numerator.free_symbols
        else [numerator]
    )
    return _settle(sympy.expand(ratio)) if all(c.is_Integer for c in coefficients) else None


def is_provably_at_most(a: Size, b: Size) -> bool:
    """Returns whether ``a <= b`` for every value of the symbols (False when unknown)."""
    if type(a) is int and type(b) is int:
        return a <= b
    return _symbolic_at_most(a, b)


@lru_cache(maxsize=4096)
def _symbolic_at_most(a: Size, b: Size) -> bool:
    import sympy

    # Every symbol is at least 1, so shift by one and ask for nonnegative coefficients: a sufficient condition.
    difference = sympy.expand(sympy.sympify(b) - sympy.sympify(a))
    shift = {s: sympy.Symbol(s.name, integer=True, nonnegative=True) + 1 for s in difference.free_symbols}
    return bool(sympy.expand(difference.subs(shift)).is_nonnegative)


def symbols_of(size: Size) -> frozenset[str]:
    """Returns the names of the symbols in a size."""
    if type(size) is int:
        return frozenset()
    return frozenset(str(s) for s in size.free_symbols)


def evaluate(size: Size, values: dict[str, int]) -> int:
    """Returns the integer that a size has when its symbols have these values.

    Raises:
        KeyError: a symbol has no value.
    """
    if type(size) is int:
        return size
    return int(size.subs({s: values[s.name] for s in size.free_symbols}))


def text(size: Size) -> str:
    """Returns the text form of a size, without spaces; `parse_size` reads it back as the same size."""
    return str(size) if type(size) is int else _spelled(size)


@lru_cache(maxsize=4096)
def _spelled(size: Size) -> str:
    import sympy

    if size.is_Add:
        first, *rest = (_spelled(term) for term in size.as_ordered_terms(order="lex"))
        return first + "".join(term if term.startswith("-") else f"+{term}" for term in rest)
    if size.is_Mul:
        coefficient, factors = size.as_coeff_mul()
        spelled = "*".join(f"({_spelled(f)})" if f.is_Add else _spelled(f) for f in factors)
        if abs(coefficient) != 1:
            spelled = f"{abs(coefficient)}*{spelled}"
        return f"-{spelled}" if coefficient < 0 else spelled
    if size.is_Pow and size.exp.is_Integer and size.exp > 0:
        return f"{_enclosed(size.base)}**{size.exp}"
    if isinstance(size, sympy.floor):
        numerator, denominator = sympy.fraction(sympy.together(size.args[0]))
        return f"({_enclosed(sympy.expand(numerator))}//{_enclosed(sympy.expand(denominator))})"
    return str(sympy.sstr(size))


def _enclosed(size: Size) -> str:
    text = _spelled(size)
    return text if text.isidentifier() or text.isdigit() or size.is_Function else f"({text})"
