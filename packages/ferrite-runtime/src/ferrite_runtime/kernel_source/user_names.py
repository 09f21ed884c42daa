"""What the names in a jitted function stand for: which of them are global, and the values that they lead to.

Names are resolved by scope, as Python resolves them: an attribute (``tl.load``) or a keyword is no name, a parameter
hides a global of its name, and what an enclosing function binds is found as well as what the module does.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any


@dataclass(frozen=True, slots=True)
class Reference:
    """A global value that a function's text names, and where: ``a``, or ``a.b.c`` where ``a`` and ``a.b`` are modules.

    Attributes:
        text: the expression.
        value: what it stands for.
        start: its first byte in the function's text.
        end: the byte after its last.
        is_default: whether it is (part of) the default of a parameter.
    """

    text: str
    value: Any
    start: int
    end: int
    is_default: bool


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A jitted function as text: the Python function, its source from ``def`` on, and its own names.

    ``line`` is where in its file ``def`` stands.
    """

    function: FunctionType
    text: str
    definition: ast.FunctionDef
    local_names: frozenset[str]
    line: int

    @property
    def location(self) -> str:
        """Where the function is written, as ``path:line``."""
        code = self.function.__code__
        return f"{code.co_filename}:{code.co_firstlineno}"

    def references(self, stops_at: Callable[[ModuleType], bool]) -> list[Reference]:
        """Returns the global values that the function names, in the order of its text.

        Args:
            stops_at: whether a module is one to name, whose attributes are its own affair.
        """
        names = _visible(self.function)
        starts = _line_starts(self.text)
        found = []
        for node, is_default in _outer_names(self.definition, self.local_names):
            root, chain = _chain(node)
            if root.id not in names:
                continue  # one of Python's own, or nobody's: Triton says so where it is read
            expression, value = _follow(names[root.id], root, chain, stops_at)
            start = starts[root.lineno - 1] + root.col_offset
            end = starts[(expression.end_lineno or 0) - 1] + (expression.end_col_offset or 0)
            if not (expression is root and value is getattr(builtins, root.id, names)):
                found.append(Reference(ast.unparse(expression), value, start, end, is_default))
        return sorted(found, key=lambda reference: reference.start)


def jitted_function(value: Any) -> FunctionType | None:
    """Returns the Python function below a ``@triton.jit`` function, compiled or interpreted; None for anything else."""
    function = getattr(value, "fn", None)
    return function if hasattr(value, "arg_names") and isinstance(function, FunctionType) else None


def read_function(function: FunctionType) -> UserFunction:
    """Returns a function as text.

    Raises:
        OSError: Python does not find its source.
    """
    lines, first = inspect.getsourcelines(function)
    source = textwrap.dedent("".join(lines))
    head = re.search(r"^def\s+\w+\s*\(", source, re.MULTILINE)
    if head is None:
        raise OSError(f"the source of {function.__name__} has no def")
    text = source[head.start() :].rstrip()
    (definition,) = ast.parse(text).body
    assert isinstance(definition, ast.FunctionDef)
    line = first + source[: head.start()].count("\n")
    return UserFunction(function, text, definition, frozenset(_bound(definition)), line)


def _bound(definition: ast.FunctionDef) -> Iterator[str]:
    """Yields the names that a function binds: parameters, and whatever its body assigns to."""
    for node in ast.walk(definition):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _visible(function: FunctionType) -> Mapping[str, Any]:
    """Returns what a function sees: globals of its module, and what the functions around it bind."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    enclosing = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
    return {**function.__globals__, **enclosing}


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _outer_names(definition: ast.FunctionDef, local_names: frozenset[str]) -> Iterator[tuple[ast.expr, bool]]:
    """Yields names, with their attributes, that a function does not bind itself, and whether they are in a default.

    Annotations and defaults are evaluated outside of the function, where its parameters are none.
    """
    arguments = definition.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        yield from _names(argument.annotation, frozenset(), is_default=False)
    yield from _names(definition.returns, frozenset(), is_default=False)
    for default in (*arguments.defaults, *arguments.kw_defaults):
        yield from _names(default, frozenset(), is_default=True)
    for statement in definition.body:
        yield from _names(statement, local_names, is_default=False)


def _names(tree: ast.AST | None, hidden: frozenset[str], *, is_default: bool) -> Iterator[tuple[ast.expr, bool]]:
    pending = [] if tree is None else [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.Name, ast.Attribute)):
            inner: ast.expr = node
            while isinstance(inner, ast.Attribute):
                inner = inner.value
            if isinstance(inner, ast.Name):
                if isinstance(inner.ctx, ast.Load) and inner.id not in hidden:
                    yield node, is_default
                continue
        pending += ast.iter_child_nodes(node)


def _chain(node: ast.expr) -> tuple[ast.Name, list[ast.Attribute]]:
    """Returns the name at the root of an attribute, and the attributes from the innermost on."""
    chain: list[ast.Attribute] = []
    while isinstance(node, ast.Attribute):
        chain.insert(0, node)
        node = node.value
    assert isinstance(node, ast.Name)
    return node, chain


def _follow(
    value: Any, root: ast.Name, chain: list[ast.Attribute], stops_at: Callable[[ModuleType], bool]
) -> tuple[ast.expr, Any]:
    """Returns the shortest part of ``a.b.c`` that is no module of the user's, and its value."""
    expression: ast.expr = root
    for attribute in chain:
        if not isinstance(value, ModuleType) or stops_at(value) or not hasattr(value, attribute.attr):
            break
        expression, value = attribute, getattr(value, attribute.attr)
    return expression, value


def _line_starts(text: str) -> list[int]:
    """Returns the byte at which each line begins; positions in syntax trees count bytes."""
    starts = [0]
    for line in text.encode().split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    return starts
