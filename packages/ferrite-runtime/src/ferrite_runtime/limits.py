"""Limits on what a bundle may claim: sizes that no machine has, and text that is no kernel, are refused at reading."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ferrite_runtime.dtypes import DTYPES
from ferrite_runtime.errors import SpecError
from ferrite_runtime.expr import Expr
from ferrite_runtime.program import Program
from ferrite_runtime.source import ALLOWED_IMPORTS
from ferrite_runtime.spec import KernelSpec
from ferrite_runtime.steps import Alloc, Keep, Layout, Reuse, View

MAX_BYTES = 1 << 48
MAX_SOURCE = 4 << 20


def check_layout(layout: Layout, path: str) -> None:
    """Raises `SpecError` if a tensor would need more memory than any machine has.

    Sizes that are expressions are known when the program runs; the allocator then refuses what is too much.
    """
    if layout.numbers is None:
        return
    shape, strides = layout.numbers
    if any(abs(stride) > MAX_BYTES for stride in strides):
        raise SpecError(f"{path}.strides", "a stride is out of range")
    width = DTYPES[layout.dtype].itemsize if layout.dtype in DTYPES else 1
    if layout.is_empty:
        return
    extent = 1 + sum((size - 1) * abs(stride) for size, stride in zip(shape, strides, strict=True))
    if extent * width > MAX_BYTES or max(shape, default=0) > MAX_BYTES:
        raise SpecError(f"{path}.shape", f"a tensor of {extent * width} bytes")


def check_sizes(program: Program, path: str) -> None:
    """Raises `SpecError` if a tensor of a program is larger than any machine's memory."""
    for place, layout, offset in _layouts(program):
        check_layout(layout, f"{path}.{place}")
        if isinstance(offset, int) and not -MAX_BYTES < offset < MAX_BYTES:
            raise SpecError(f"{path}.{place}.offset", "out of range")


def _layouts(program: Program) -> Iterator[tuple[str, Layout, Expr]]:
    for position, value in enumerate(program.inputs):
        if value.layout is not None:
            yield f"inputs[{position}]", value.layout, 0
    for position, step in enumerate(program.steps):
        if isinstance(step, (Alloc, Keep, Reuse)):
            yield f"steps[{position}]", step.layout, 0
        elif isinstance(step, View):
            yield f"steps[{position}]", step.layout, step.offset


_MODULES = frozenset(ALLOWED_IMPORTS)


def check_source(spec: KernelSpec, path: str) -> None:
    """Raises `SpecError` unless a kernel's text is a kernel's: imports, constants and jitted functions, no more.

    The text is parsed, not run. This keeps accidents out, and code that would run at import; it is no sandbox: what a
    jitted function does on a device, or in the interpreter, is its writer's.
    """
    if len(spec.source) > MAX_SOURCE:
        raise SpecError(path, f"a kernel's text of {len(spec.source)} characters")
    try:
        module = ast.parse(spec.source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SpecError(path, f"this is no Python: {error}") from error
    for statement in module.body:
        if not _is_allowed(statement):
            line = ast.unparse(statement).splitlines()[0][:80]
            raise SpecError(path, f"line {statement.lineno}, {line!r}, is neither an import, a constant nor a function")


def _is_allowed(statement: ast.stmt) -> bool:
    match statement:
        case ast.Import(names):
            return all(alias.name in _MODULES for alias in names)
        case ast.ImportFrom(module, names, 0):
            return all(f"{module}.{alias.name}" in _MODULES for alias in names)
        case ast.FunctionDef(_, arguments, _, [ast.Attribute(ast.Name("triton"), "jit")], returns):
            return _is_plain(arguments) and (returns is None or _is_name(returns))
        case ast.Assign([ast.Name()], value):
            return _is_constant(value)
        case ast.Expr(ast.Constant(str())):
            return True
    return False


def _is_plain(arguments: ast.arguments) -> bool:
    """Tells whether nothing is computed where a function is defined: defaults are literals, annotations names."""
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    annotations = [argument.annotation for argument in every if argument.annotation is not None]
    defaults = [value for value in (*arguments.defaults, *arguments.kw_defaults) if value is not None]
    return all(_is_name(note) for note in annotations) and all(_is_constant(value) for value in defaults)


def _is_name(note: ast.expr) -> bool:
    while isinstance(note, ast.Attribute):
        note = note.value
    return isinstance(note, (ast.Name, ast.Constant))


def _is_constant(value: ast.expr) -> bool:
    match value:
        case ast.Constant():
            return True
        case ast.UnaryOp(ast.USub(), ast.Constant()):
            return True
        case ast.Call(ast.Attribute() as function, [argument], []):
            return function.attr == "constexpr" and _is_name(function) and _is_constant(argument)
    return False
