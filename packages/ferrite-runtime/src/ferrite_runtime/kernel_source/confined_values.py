"""The text of a kernel that nobody vouches for, as it is interpreted: Python's own values stay small.

The interpreter runs a kernel's text as Python. What it makes of tensors is counted by the fence
(``launch_limits.py``); integers, tuples and texts of Python are not tensors, and grow with a few characters: ``t *
10000000000``, ``t = (t, t)``, ``f(d * d)``. So operators and rows in the text become calls of the functions here, which
look at what they are given and at what they return:

    x * y + 1        ->  _operate_add(_operate_mult(x, y), 1)
    t = (a, b)       ->  t = _row(a, b)
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from ferrite_runtime.errors import TrustNeeded

MAX_BITS = 64
"""Bits of an integer that a kernel computes with, sign apart."""

_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_ROW = "_row"


def _name_of(kind: type[ast.operator]) -> str:
    return f"_operate_{kind.__name__.lower()}"


def _plain(value: Any) -> Any:
    """Returns what a constant of Triton's holds; any other value as it is."""
    return getattr(value, "value", value) if type(value).__name__ == "constexpr" else value


def is_row(value: Any) -> bool:
    """Tells whether a value has a length of its own, which operators of Python's could multiply."""
    return isinstance(value, (str, bytes, tuple, list, range)) or type(value).__name__ == "tuple"


def check_number(value: Any) -> Any:
    """Returns a value; raises `TrustNeeded` if it is an integer of more bits than kernels have."""
    plain = _plain(value)
    if isinstance(plain, int) and plain.bit_length() > MAX_BITS:
        raise TrustNeeded(f"a kernel computes an integer of {plain.bit_length()} bits")
    return value


def _operating(kind: type[ast.operator]) -> Callable[[Any, Any], Any]:
    apply, is_shift = _OPERATORS[kind], kind is ast.LShift

    def operate(left: Any, right: Any) -> Any:
        if is_row(_plain(left)) or is_row(_plain(right)):
            raise TrustNeeded("a kernel computes with rows or texts of Python")
        if is_shift and isinstance(_plain(right), int) and _plain(right) > MAX_BITS:
            raise TrustNeeded("a kernel shifts further than an integer has bits")
        return check_number(apply(left, right))

    return operate


def _row(*elements: Any) -> tuple[Any, ...]:
    """Returns a tuple, of which no element is one."""
    if any(is_row(_plain(element)) for element in elements):
        raise TrustNeeded("a kernel has rows in rows")
    return elements


CONFINING: Mapping[str, Callable[..., Any]] = {_name_of(kind): _operating(kind) for kind in _OPERATORS} | {_ROW: _row}
"""What the text calls in place of operators and rows, by name."""


class _Confining(ast.NodeTransformer):
    """Replaces operators and rows by calls of `CONFINING`; what is assigned to, and indices, stay as they are."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """Drops texts that nobody reads: written anew, one could have lines that look like a function's."""
        return ast.Pass() if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Replaces an operator."""
        arguments = [self.visit(node.left), self.visit(node.right)]
        return _call(_name_of(type(node.op)), arguments) if type(node.op) in _OPERATORS else node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        """Replaces ``x += y`` by what it means."""
        if not isinstance(node.target, ast.Name) or type(node.op) not in _OPERATORS:
            return node
        value = _call(_name_of(type(node.op)), [ast.Name(node.target.id, ast.Load()), self.visit(node.value)])
        return ast.Assign([node.target], value, lineno=node.lineno)

    def visit_Tuple(self, node: ast.Tuple) -> ast.AST:
        """Replaces a row."""
        return self._visited_row(node)

    def visit_List(self, node: ast.List) -> ast.AST:
        """Replaces a row."""
        return self._visited_row(node)

    def _visited_row(self, node: ast.Tuple | ast.List) -> ast.AST:
        if not isinstance(node.ctx, ast.Load):
            return node
        return _call(_ROW, [self.visit(element) for element in node.elts])

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Leaves the row of an index as it is: it has ``None`` and slices in it."""
        node.value = self.visit(node.value)
        if isinstance(node.slice, ast.Tuple):
            node.slice.elts = [self.visit(element) for element in node.slice.elts]
        else:
            node.slice = self.visit(node.slice)
        return node


def _call(name: str, arguments: list[Any]) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), arguments, [])


def confine(source: str) -> str:
    """Returns the text of a kernel with its operators and rows replaced; its functions begin on lines of their own."""
    tree = _Confining().visit(ast.parse(source))
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"
