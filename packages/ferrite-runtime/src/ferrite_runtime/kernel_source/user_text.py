"""The text of a module that defines a jitted function and all that it names: other functions, constants, imports.

Every global is written down under a name of its own. It keeps the one that the user gave it; where two values of
different modules have the same name, or a member of ``triton.language`` was imported by itself, the functions' texts
are changed at exactly the places that name it.
"""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from ferrite_runtime.errors import SpecError, UserKernelSpecError
from ferrite_runtime.formats.json_fields import check_identifier
from ferrite_runtime.kernel_source.jitted import ALLOWED_IMPORTS
from ferrite_runtime.kernel_source.user_names import Reference, UserFunction, jitted_function, read_function

_TRITON, _LANGUAGE = "triton", "triton.language"
_MEMBERS_OF = (_LANGUAGE, _TRITON, "ferrite_runtime.fmath", "triton.language.extra.libdevice")
"""Modules whose members are written as attributes; the first that has a value names it."""
_USUAL_NAMES = {
    _TRITON: "triton",
    _LANGUAGE: "tl",
    "ferrite_runtime.fmath": "fmath",
    "triton.language.extra.libdevice": "libdevice",
}
_PLAIN = (bool, int, float, str, type(None))


def module_text(function: Any, leading: Sequence[str] = ()) -> str:
    """Returns a module's text that defines a jitted function and all that it names.

    Args:
        function: the ``@triton.jit`` function.
        leading: parameters that it gets in front of its own, and does nothing with.

    Raises:
        UserKernelSpecError: if it names something that cannot be written down, or its source is not to be found.
    """
    return named_module_text(function, leading)[1]


def named_module_text(function: Any, leading: Sequence[str] = ()) -> tuple[str, str]:
    """Returns the name of a jitted function in its `module_text`, and that; the arguments are the same.

    The name is the function's own if a spec can have it: specs take none with an underscore in front.
    """
    root = jitted_function(function)
    if root is None:
        raise UserKernelSpecError("source", f"{function!r} is no @triton.jit function")
    module = _Module(_read(root), leading)
    return module.name, module.text()


@dataclass(frozen=True, slots=True)
class DescribedTensor:
    """A tensor of which a kernel takes a descriptor: extents and steps in elements, and the blocks that are copied."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block: tuple[int, ...]


def describing_module_text(
    function: Any, leading: Sequence[str], given: Container[str], described: Mapping[str, DescribedTensor]
) -> tuple[str, str]:
    """Returns the name of a kernel that gives a jitted function descriptors of tensors, and its module's text.

        @triton.jit
        def copy_described(scratch, x, y, ROWS: tl.constexpr):
            copy(x=tl.make_tensor_descriptor(x, [64, 16], [16, 1], [8, 16]), y=y, ROWS=ROWS)

    Args:
        function: the ``@triton.jit`` function.
        leading: parameters that the kernel has in front of the function's own.
        given: those parameters of the function that a launch passes; the others are constants.
        described: the tensors that it takes descriptors of, by parameter.

    Raises:
        UserKernelSpecError: see `module_text`.
    """
    root = jitted_function(function)
    assert root is not None, "it has a text"
    return _Module(_read(root), ()).describing(leading, given, described)


def location_of_line(function: Any, line: int, leading: Sequence[str] = ()) -> str:
    """Returns where a line of a function's `module_text` was written, as ``path:line``.

    Of a line that is in no function, as of an import, it is where the function itself is.
    """
    root = jitted_function(function)
    assert root is not None, "it has a text"
    return _Module(_read(root), leading).location_of_line(line) or location_of(function)


def location_of(function: Any) -> str:
    """Returns where a jitted function is written, as ``path:line``."""
    code = function.fn.__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def _read(function: FunctionType) -> UserFunction:
    try:
        return read_function(function)
    except (OSError, TypeError, SyntaxError) as error:
        raise UserKernelSpecError(
            "source", f"Python finds no source of {function.__name__} ({error}); write the kernel into a file"
        ) from error


def _is_named(module: ModuleType) -> bool:
    return module.__name__ in ALLOWED_IMPORTS or module.__name__.startswith(f"{_LANGUAGE}.")


class _Module:
    """A module's text in the making."""

    def __init__(self, root: UserFunction, leading: Sequence[str]) -> None:
        self._root, self._leading = root, leading
        self._names: dict[str, Hashable] = {_TRITON: ("module", _TRITON)}  # what each name stands for
        self._functions: dict[FunctionType, UserFunction] = {}
        self._references: dict[FunctionType, list[Reference]] = {}
        self._collect(root)
        self._function_names = {function: self._name_function(function) for function in self._functions}

    @property
    def name(self) -> str:
        """The name of the kernel."""
        return self._function_names[self._root.function]

    def _collect(self, root: UserFunction) -> None:
        """Reads the function and those that it calls."""
        pending = [root]
        while pending:
            current = pending.pop()
            if current.function in self._functions:
                continue
            self._functions[current.function] = current
            self._references[current.function] = current.references(_is_named)
            for reference in self._references[current.function]:
                called = jitted_function(reference.value)
                if called is not None and _member_of(reference.value) is None:
                    pending.append(_read(called))

    def _name_function(self, function: FunctionType) -> str:
        """Returns the name of a function, which is no variable of those that call it."""
        hidden: set[str] = set()
        for caller, references in self._references.items():
            if any(jitted_function(reference.value) is function for reference in references):
                hidden |= self._functions[caller].local_names
        is_root = function is self._root.function
        name = _name_of_kernel(function.__name__) if is_root else function.__name__
        return self._claim(name, ("function", function), hidden)

    def text(self) -> str:
        """Returns the module's text."""
        bodies = [f"@triton.jit\n{self._rewritten(function)}\n" for function in self._functions.values()]
        constants, imports = [], []
        for name, holder in self._names.items():
            match holder:
                case ("module", str(module)):
                    imports.append(ALLOWED_IMPORTS[module].format(name=name).removesuffix(" as triton"))
                case ("constant", _, text):
                    constants.append(f"{name} = triton.language.constexpr({text})")
        if constants:
            imports.append("import triton.language")
        # Functions that others call stand first; the kernel itself is the last.
        bodies = ["\n" + body for body in reversed(bodies)]
        return "\n".join([*imports, "", *sorted(constants), "", *bodies]).lstrip("\n")

    def describing(
        self, leading: Sequence[str], given: Container[str], described: Mapping[str, DescribedTensor]
    ) -> tuple[str, str]:
        """Returns what `describing_module_text` does."""
        arguments = self._root.definition.args
        names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        name = self._claim(f"{self.name}_described", ("kernel", self.name), names)
        language = self._imported(_LANGUAGE, _USUAL_NAMES[_LANGUAGE], names)
        taken = [each if each in given else f"{each}: {language}.constexpr" for each in names]
        passed = dict(zip(names, names, strict=True))
        for each, tensor in described.items():
            lists = ", ".join(str(list(numbers)) for numbers in (tensor.shape, tensor.strides, tensor.block))
            passed[each] = f"{language}.make_tensor_descriptor({each}, {lists})"
        call = f"{self.name}({', '.join(f'{each}={value}' for each, value in passed.items())})"
        return name, f"{self.text()}\n\n@triton.jit\ndef {name}({', '.join((*leading, *taken))}):\n    {call}\n"

    def location_of_line(self, line: int) -> str | None:
        """Returns where a line of the text was written, None where it is in no function."""
        known = {name: function for function, name in self._function_names.items()}
        for node in ast.parse(self.text()).body:
            if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0):
                function = self._functions[known[node.name]]
                return f"{function.function.__code__.co_filename}:{function.line + line - node.lineno}"
        return None

    def _rewritten(self, function: UserFunction) -> str:
        """Returns a function's text with each global under the name that it has in this module."""
        text = function.text.encode()
        for reference in reversed(self._references[function.function]):
            written = self._written(reference, function).encode()
            text = text[: reference.start] + written + text[reference.end :]
        head, tail = text.decode().split(function.definition.name, 1)
        if function is self._root and self._leading:
            tail = tail.replace("(", f"({', '.join(self._leading)}, ", 1)
        return f"{head}{self._function_names[function.function]}{tail}"

    def _written(self, reference: Reference, function: UserFunction) -> str:
        """Returns how a value is named in this module.

        Raises:
            UserKernelSpecError: it cannot be written down.
        """
        value, name = reference.value, reference.text.rpartition(".")[2]
        plain = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
        if isinstance(value, ModuleType) and value.__name__ in ALLOWED_IMPORTS:
            return self._imported(value.__name__, name, function.local_names)
        if (member := _member_of(plain)) is not None:
            module, path = member
            return f"{self._imported(module, _USUAL_NAMES[module], function.local_names)}.{path}"
        if (called := jitted_function(value)) is not None:
            return self._function_names[called]
        if isinstance(plain, _PLAIN) and not (isinstance(plain, float) and math.isnan(plain)):  # NaN has no literal
            text = _literal(plain)
            # Where a function is defined nothing is computed. In it, Triton reads a global only if it is a constexpr;
            # a module may also have said so with an annotation.
            if reference.is_default:
                return text
            return self._claim(name, ("constant", name, text), function.local_names)
        raise UserKernelSpecError(
            "source",
            f"{function.function.__name__} ({function.location}) uses {reference.text}, a {type(value).__name__}; "
            f"jitted functions, plain constants and the modules {', '.join(ALLOWED_IMPORTS)} can be written down",
        )

    def _imported(self, module: str, name: str, hidden: Container[str]) -> str:
        """Returns a name of an imported module: one that it has already, where no variable hides that."""
        holder = ("module", module)
        known = next((given for given, held in self._names.items() if held == holder and given not in hidden), None)
        return known or self._claim(name, holder, hidden)

    def _claim(self, name: str, holder: Hashable, hidden: Container[str]) -> str:
        """Returns a name for what ``holder`` stands for: this one, or one like it where it is taken or hidden."""
        found, count = name, 1
        while self._names.get(found, holder) != holder or found in hidden:
            count += 1
            found = f"{name}_{count}"
        self._names[found] = holder
        return found


def _name_of_kernel(name: str) -> str:
    """Returns the name that a spec has for a function: its own, or that without underscores in front.

    Others that a spec cannot have (one of a host function's own words, say) follow the word ``kernel``.
    """
    plain = name.lstrip("_")
    try:
        return check_identifier(plain, "name")
    except SpecError:
        return f"kernel_{plain}"


def _member_of(value: Any) -> tuple[str, str] | None:
    """Returns the importable module of which a value is a member, and its path there; None if there is none."""
    if isinstance(value, ModuleType):
        path = value.__name__.removeprefix(f"{_LANGUAGE}.")
        return (_LANGUAGE, path) if path != value.__name__ and _reached(path) is value else None
    if isinstance(value, _PLAIN):
        return None
    for name in _MEMBERS_OF:
        for attribute, member in vars(sys.modules.get(name, object)).items():
            if member is value and not attribute.startswith("_"):
                return name, attribute
    home = str(getattr(value, "__module__", ""))
    name = str(getattr(value, "__name__", ""))
    path = f"{home.removeprefix(_LANGUAGE + '.')}.{name}"
    return (_LANGUAGE, path) if home.startswith(f"{_LANGUAGE}.") and name and _reached(path) is value else None


def _reached(path: str) -> Any:
    """Returns what a path of attributes leads to from ``triton.language``; None where it leads nowhere."""
    value: Any = sys.modules.get(_LANGUAGE)
    for part in path.split("."):
        value = getattr(value, part, None)
    return value


def _literal(value: Any) -> str:
    """Returns a constant as Python writes it; an infinite one as a number that overflows."""
    if isinstance(value, float) and not math.isfinite(value):
        return "-1e999" if value < 0 else "1e999"
    return repr(value)
