"""What the text of a bundle's kernel may be, decided on its syntax tree; nothing of it is run for that.

Two questions are asked. `check_source`: is it a kernel's text at all, so that running it as a module does nothing but
define functions? Whatever is not is refused. `find_liberty`: does every expression in it stay within the language of
kernels, so that running it, which Triton's interpreter does and its compiler does in part, reaches no Python object
beyond tensors, numbers, and the functions listed here? What takes liberties runs for those who say ``trust=True``.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ferrite_runtime.errors import SpecError, TrustNeeded
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.kernel_source.jitted import ALLOWED_IMPORTS
from ferrite_runtime.kernel_source.provenance import Provenance

MAX_SOURCE = 1 << 18
"""Characters of a kernel's text, many times those of a long one; its syntax tree has hundreds of bytes for each."""
MAX_BRACES = 1 << 12
"""Braces in it: Python reads a text with values in it, ``f"{x}{y}"``, in a time that grows with their square."""
_MODULES = frozenset(ALLOWED_IMPORTS)


def check_source(spec: KernelSpec, path: str) -> None:
    """Raises `SpecError` unless a kernel's text is a kernel's: imports, constants and jitted functions, no more."""
    if len(spec.source) > MAX_SOURCE:
        raise SpecError(path, f"a kernel's text of {len(spec.source)} characters, {MAX_SOURCE} are allowed")
    if spec.source.count("{") > MAX_BRACES:
        raise SpecError(path, f"a kernel's text with more than {MAX_BRACES} braces")
    for statement in _parse(spec, path).body:
        if not _is_allowed(statement):
            line = _shown(statement)
            raise SpecError(path, f"line {statement.lineno}, {line!r}, is neither an import, a constant nor a function")


def _parse(spec: KernelSpec, path: str) -> ast.Module:
    try:
        return ast.parse(spec.source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SpecError(path, f"this is no Python: {error}") from error


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
        case ast.Constant(constant) | ast.UnaryOp(ast.USub(), ast.Constant(constant)):
            return not _is_huge(constant)
        case ast.Call(ast.Attribute() as function, [argument], []):
            return function.attr == "constexpr" and _is_name(function) and _is_constant(argument)
    return False


# --- the language of kernels ----------------------------------------------------------------------------------------

TYPES = frozenset(
    (
        *("int1", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "constexpr", "pi32_t"),
        *("float16", "bfloat16", "float32", "float64", "float8e4nv", "float8e5", "float8e4b8", "float8e5b16"),
    )
)
LANGUAGE = TYPES | frozenset(
    (
        *("abs", "advance", "arange", "argmax", "argmin", "associative_scan", "assume", "atomic_add", "atomic_and"),
        *("atomic_cas", "atomic_max", "atomic_min", "atomic_or", "atomic_xchg", "atomic_xor", "bitonic_merge"),
        *("broadcast", "broadcast_to", "cast", "cat", "cdiv", "ceil", "clamp", "cos", "cumprod", "cumsum"),
        *("debug_barrier", "device_assert", "div_rn", "dot", "erf", "exp", "exp2", "expand_dims", "fdiv", "flip"),
        *("floor", "fma", "full", "gather", "histogram", "interleave", "join", "load", "log", "log2", "make_block_ptr"),
        *("make_tensor_descriptor", "max", "max_constancy", "max_contiguous", "maximum", "min", "minimum"),
        *("multiple_of", "num_programs", "permute", "philox", "pi", "program_id", "rand", "rand4x", "randint"),
        *("randint4x", "randn", "randn4x", "range", "ravel", "reduce", "reduce_or", "reshape", "rsqrt", "sigmoid"),
        *("sin", "softmax", "sort", "split", "sqrt", "sqrt_rn", "static_assert", "static_range", "store", "sum"),
        *("swizzle2d", "topk", "trans", "umulhi", "view", "where", "xor_sum", "zeros", "zeros_like", "PropagateNan"),
    )
)
"""Names of ``triton.language`` that kernels may use."""
MATH = frozenset(("abs", "ceil", "cos", "div_rn", "erf", "exp", "exp2", "floor", "fma", "log", "log2", "rsqrt", "sin"))
TRITON = frozenset(("cdiv", "next_power_of_2"))
VALUES = frozenset(
    (
        *("T", "abs", "argmax", "argmin", "associative_scan", "broadcast_to", "cast", "cdiv", "cumprod", "cumsum"),
        *("dtype", "element_ty", "expand_dims", "load", "max", "min", "permute", "reduce", "reshape", "shape"),
        *("sigmoid", "softmax", "sort", "split", "store", "sum", "to", "trans", "view", "xor_sum", "ALL", "NONE"),
    )
)
"""Attributes of tensors and types that kernels may use."""
BUILTINS = frozenset(("abs", "float", "len", "max", "min", "range"))
_RANGES = ("range", "static_range")
_LOOPS = 64
"""Functions and loops that may be nested in each other."""


_DEFINING = re.compile(r"\s*(def|async)\b")


@functools.cache
def device_functions() -> frozenset[str]:
    """Returns the names of the device functions that the runtime has for kernels."""
    folder = Path(__file__).parents[1] / "fmath"
    texts = (path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py")))
    return frozenset(
        name for text in texts for name in re.findall(r"^@triton\.jit\ndef ([a-z]\w*)\(", text, re.MULTILINE)
    )


@dataclass(frozen=True, slots=True)
class Liberty:
    """Something in a kernel's text that goes beyond the language of kernels.

    Attributes:
        what: that, in words.
        line: where in the text, 0 where the words say it.
    """

    what: str
    line: int = 0

    def __str__(self) -> str:
        return f"line {self.line}, {self.what}" if self.line else self.what


@functools.lru_cache(maxsize=4096)
def find_liberty(source: str) -> Liberty | None:
    """Returns the first thing that goes beyond the language of kernels in a text; None if nothing does."""
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return Liberty(f"it is no Python: {error}")
    try:
        return next(_Reader(source, module).liberties(), None)
    except RecursionError:
        return Liberty("it is nested too deeply")


def check_text(spec: KernelSpec, provenance: Provenance) -> None:
    """Raises `TrustNeeded` if the text of a kernel may not be run here: it takes liberties, and nobody vouches for it.

    Running it is what the interpreter does, and in part Triton's compiler. What comes compiled is not run here.
    """
    if not provenance.is_trusted:
        found = find_liberty(spec.source)
        if found is not None:
            raise TrustNeeded(f"the text of kernel {spec.name} is more than a kernel: {found}")


@dataclass(slots=True)
class _Reader:
    """What is known of a text while its tree is walked.

    Attributes:
        modules: what stands for ``triton``, ``triton.language``, device functions: by name.
        functions: the names of its functions.
        tensors: names in the function at hand that are tensors, as what is assigned becomes one.
        names: all names that may be read in the function at hand.
    """

    source: str
    module: ast.Module
    modules: dict[str, str] = field(default_factory=dict)
    functions: set[str] = field(default_factory=set)
    constants: set[str] = field(default_factory=set)
    tensors: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)

    def liberties(self) -> Iterator[Liberty]:
        """Yields what goes beyond the language."""
        yield from self._odd_lines()
        for statement in self.module.body:
            yield from self._top(statement)
        for function in self.module.body:
            if isinstance(function, ast.FunctionDef):
                yield from self._function(function)

    def _odd_lines(self) -> Iterator[Liberty]:
        """Yields what would make the text that is run another one than the text that is read.

        Triton finds a function again by its lines: by the last that begins with ``def``, wherever that stands.
        """
        if not self.source.replace("\n", "").isprintable():
            yield Liberty("it has characters that cannot be printed")
        defined = {node.lineno for node in self.module.body if isinstance(node, ast.FunctionDef)}
        for number, line in enumerate(self.source.split("\n"), 1):
            if _DEFINING.match(line) and number not in defined:
                yield Liberty("this looks like a function and is none", number)

    def _top(self, statement: ast.stmt) -> Iterator[Liberty]:
        bound: list[str] = []
        match statement:
            case ast.Import(names):
                named = {alias.asname or "triton": alias.name if alias.asname else "triton" for alias in names}
                self.modules |= named
                bound += named
            case ast.ImportFrom(module, parts, 0):
                self.modules |= {part.asname or part.name: f"{module}.{part.name}" for part in parts}
                bound += [part.asname or part.name for part in parts]
            case ast.FunctionDef(name):
                self.functions.add(name)
                bound.append(name)
            case ast.Assign([ast.Name(name)], _):
                self.constants.add(name)
                bound.append(name)
            case ast.Expr(ast.Constant(str())):
                pass
            case _:
                yield _liberty(statement, "is neither an import, a constant nor a function")
        if any(name.startswith("__") for name in bound):
            yield _liberty(statement, "is a name of Python's own")
        if any(map(self._has_meanings, bound)) or self.modules.get("triton", "triton") != "triton":
            yield _liberty(statement, "gives a name a second meaning")

    def _has_meanings(self, name: str) -> bool:
        """Tells whether a name of the module has more than one meaning."""
        kinds: tuple[Collection[str], ...] = (self.modules, self.functions, self.constants, BUILTINS)
        return sum(name in kind for kind in kinds) > 1

    def _function(self, function: ast.FunctionDef) -> Iterator[Liberty]:
        arguments = function.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        if arguments.vararg or arguments.kwarg:
            yield _liberty(function, "takes any number of arguments")
        for argument in every:
            if argument.annotation is not None:
                yield from self._value(argument.annotation)
        self.names = {argument.arg for argument in every} | self.functions | self.constants
        self.tensors = set()
        yield from self._bindings(function, {argument.arg for argument in every})
        for statement in function.body:
            yield from self._statement(statement, 0)

    def _bindings(self, function: ast.FunctionDef, given: set[str]) -> Iterator[Liberty]:
        """Notes the names that a function binds; yields those that are bound to what nobody follows."""
        plain: set[str] = set()
        others: set[str] = set(given)
        for node in ast.walk(function):
            match node:
                case ast.Assign([ast.Name(name)], _):
                    plain.add(name)
                case ast.AnnAssign(ast.Name(name)):
                    others.add(name)
                case ast.Name(name, ast.Store()):
                    self.names.add(name)
        for node in ast.walk(function):
            match node:
                case ast.For(ast.Name(name)):
                    others.add(name)
                case ast.Assign([ast.Tuple(elements)], _):
                    others |= {element.id for element in elements if isinstance(element, ast.Name)}
        self.names |= plain | others
        if any(name.startswith("__") for name in self.names):
            yield _liberty(function, "has a name of Python's own")
        self.tensors = plain - others
        shadowed = (plain | others) & ({*self.modules, *self.functions, *self.constants} | BUILTINS)
        if shadowed:
            yield _liberty(function, f"gives {min(shadowed)} a second meaning")

    # --- statements -------------------------------------------------------------------------------------------------

    def _statement(self, statement: ast.stmt, depth: int) -> Iterator[Liberty]:
        match statement:
            case ast.Assign([ast.Name()], value) | ast.Return(ast.expr() as value):
                yield from self._value(value)
            case ast.Assign([ast.Tuple(elements)], ast.Call() | ast.Tuple() as value) if all(
                isinstance(element, ast.Name) for element in elements
            ):
                yield from self._value(value)
            case ast.AnnAssign(ast.Name(), annotation, ast.expr() as value):
                yield from self._value(annotation)
                yield from self._value(value)
            case ast.AugAssign(ast.Name(), operator, value):  # no more than ``x = x + y``, and watched as that is
                yield from self._operator(operator, value, statement)
                yield from self._value(value)
            case ast.For(ast.Name(), ast.Call(function) as loop, body, []) if self._is_range(function):
                yield from self._value(loop)
                yield from self._block(body, depth, statement)
            case ast.If(test, body, otherwise):
                yield from self._value(test)
                yield from self._block([*body, *otherwise], depth, statement)
            case ast.Expr(ast.Call() as value):
                yield from self._value(value)
            case ast.Expr(ast.Constant(str())):
                pass
            case ast.Pass() | ast.Return(None):
                pass
            case _:
                yield _liberty(statement, "is no statement of kernels")

    def _block(self, statements: list[ast.stmt], depth: int, around: ast.stmt) -> Iterator[Liberty]:
        if depth >= _LOOPS:
            yield _liberty(around, "is nested too deeply")
            return
        for statement in statements:
            yield from self._statement(statement, depth + 1)

    def _is_range(self, function: ast.expr) -> bool:
        match function:
            case ast.Name("range"):
                return True
            case ast.Attribute(value, name):
                return name in _RANGES and self._module(value) == "triton.language"
        return False

    # --- expressions ------------------------------------------------------------------------------------------------

    def _module(self, node: ast.expr) -> str:
        """Returns the module that an expression names, if it names one."""
        match node:
            case ast.Name(name):
                return self.modules.get(name, "")
            case ast.Attribute(ast.Name(name), "language") if self.modules.get(name) == "triton":
                return "triton.language"
            case ast.Attribute(value, "math") if self._module(value) == "triton.language":
                return "triton.language.math"
        return ""

    def _value(self, node: ast.expr) -> Iterator[Liberty]:
        """Yields what an expression has in it that is not of the language."""
        match node:
            case ast.Constant(number) if number is None or isinstance(number, (bool, int, float)):
                if _is_huge(number):
                    yield _liberty(node, "is no constant of kernels")
            case ast.Name(name) if name in self.names:
                pass
            case ast.Attribute():
                yield from self._attribute(node)
            case ast.Call():
                yield from self._call(node)
            case ast.BinOp(left, operator, right):
                yield from self._operator(operator, right, node)
                yield from self._values([left, right])
            case ast.UnaryOp(_, operand):
                yield from self._value(operand)
            case ast.BoolOp(_, values) | ast.Tuple(values) | ast.List(values):
                yield from self._values(values)
            case ast.Compare(left, _, others):
                yield from self._values([left, *others])
            case ast.IfExp(test, body, otherwise):
                yield from self._values([test, body, otherwise])
            case ast.Subscript(value, index):
                yield from self._value(value)
                yield from self._index(index)
            case _:
                yield _liberty(node, "is no expression of kernels")

    def _values(self, nodes: list[ast.expr]) -> Iterator[Liberty]:
        for node in nodes:
            yield from self._value(node)

    def _index(self, index: ast.expr) -> Iterator[Liberty]:
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        for part in parts:
            if isinstance(part, ast.Slice):
                if (part.lower, part.upper, part.step) != (None, None, None):
                    yield _liberty(index, "is a slice of a tensor")
            else:
                yield from self._value(part)

    def _attribute(self, node: ast.Attribute) -> Iterator[Liberty]:
        module = self._module(node.value)
        if self._module(node):
            yield _liberty(node, "is a module")
        elif not module:
            if node.attr not in VALUES:
                yield _liberty(node, "is no attribute that kernels use")
            yield from self._value(node.value)
        elif not _has(module, node.attr):
            yield _liberty(node, "is no function that kernels call")

    def _call(self, node: ast.Call) -> Iterator[Liberty]:
        match node.func:
            case ast.Name(name):
                if name not in self.functions and name not in BUILTINS:
                    yield _liberty(node, "calls what is no function of kernels")
            case ast.Attribute():
                yield from self._attribute(node.func)
            case _:
                yield _liberty(node, "calls what is no function of kernels")
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            if not _is_word(argument):
                yield from self._value(argument)
        if any(keyword.arg is None for keyword in node.keywords):
            yield _liberty(node, "takes its arguments apart")

    def _is_tensor(self, node: ast.expr) -> bool:
        """Tells whether an expression is surely a tensor, whose elements have a width, and no integer of Python."""
        match node:
            case ast.Name(name):
                return name in self.tensors
            case ast.Call(ast.Attribute(value, name)):
                module = self._module(value)
                return name in ("where", "load", "full") if module == "triton.language" else self._is_tensor(value)
            case ast.BinOp(left, _, right):
                return self._is_tensor(left) or self._is_tensor(right)
            case ast.UnaryOp(_, value) | ast.Subscript(value):
                return self._is_tensor(value)
        return False

    def _operator(self, operator: ast.operator, right: ast.expr, node: ast.AST) -> Iterator[Liberty]:
        """Yields what could make an integer of Python endless."""
        if isinstance(operator, (ast.Pow, ast.MatMult)):
            yield _liberty(node, "is no operator of kernels")
        if isinstance(operator, ast.LShift):
            is_small = isinstance(right, ast.Constant) and isinstance(right.value, int) and 0 <= right.value <= 64
            if not is_small and not self._is_tensor(right):
                yield _liberty(node, "shifts by what may be any number")


def _has(module: str, name: str) -> bool:
    match module:
        case "triton":
            return name in TRITON
        case "triton.language":
            return name in LANGUAGE
        case "triton.language.math":
            return name in MATH
        case "ferrite_runtime.fmath":
            return name in device_functions()
        case "triton.language.extra.libdevice":
            return re.fullmatch(r"[a-z][a-z0-9_]*", name) is not None and "__" not in name and name != "core"
    return False


def _is_word(node: ast.expr) -> bool:
    """Tells whether an argument is a text of one line: a cache policy, a message."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.lineno == node.end_lineno


def _is_huge(value: object) -> bool:
    return isinstance(value, int) and value.bit_length() > 64


def _liberty(node: ast.AST, how: str) -> Liberty:
    return Liberty(f"{_shown(node)!r}, {how}", getattr(node, "lineno", 0))


def _shown(node: ast.AST) -> str:
    """Returns the first line of a piece of text, shortened; what it is where it cannot be written."""
    try:
        text = ast.unparse(node)
    except (ValueError, RecursionError):  # a number of more digits than Python writes, a row in a row in a row
        return type(node).__name__
    return text.partition("\n")[0][:80]
