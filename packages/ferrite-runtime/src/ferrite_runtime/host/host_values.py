"""Values of the host function while it is written: what names mean, and the text of numbers, tensors and addresses.

No string of a program is in these texts: see `host_function`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ferrite_runtime.errors import SpecError
from ferrite_runtime.formats.dtypes import DTYPES, torch_name
from ferrite_runtime.formats.expressions import Expr, print_expr
from ferrite_runtime.formats.layouts import Layout
from ferrite_runtime.formats.steps import CLOSED_TAGS, Tagged


@dataclass(slots=True)
class Value:
    """What a name means while the function is written.

    A tensor lives ``offset`` bytes after the first element of the tensor in the variable ``owner``; ``variable`` holds
    it as an object of its own once one was needed. Addresses of buffers that the program allocates are ``trusted`` to
    be aligned. A number or an opaque value has no owner.
    """

    variable: str | None
    owner: str | None = None
    offset: Expr = 0
    layout: Layout | None = None
    trusted: bool = False


_WORDS = {(tag, word): word for tag, words in CLOSED_TAGS.items() for word in words}
"""The values of closed tags as this package writes them."""


@dataclass(slots=True)
class HostValues:
    """The values that a host function has by name, and its lines so far, which make some of them.

    Attributes:
        is_listing: whether the text is for people: comments that say where kernels came from. Such a text is not run.
        lines: of the function.
        values: what each name means now.
        users: of each variable that owns memory, how many names lie in it.
        addresses: variables whose address is known by name.
        constants: globals that are bound to strings of the program.
        dtypes: globals that are bound to element types.
        owner_layouts: of each variable that owns memory, how it was made.
        numbers: expressions that were computed, by a line, with the variables that hold them.
    """

    is_listing: bool = False
    lines: list[str] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    users: dict[str, int] = field(default_factory=dict)
    addresses: set[str] = field(default_factory=set)
    constants: dict[str, object] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    owner_layouts: dict[str, Layout] = field(default_factory=dict)
    numbers: dict[Expr, str] = field(default_factory=dict)

    def own(self, name: str, layout: Layout | None, *, trusted: bool) -> None:
        """Enters a name with memory of its own."""
        self.values[name] = Value(name, name, 0, layout, trusted)
        self.users[name] = 1

    def share(self, name: str, base: Value, layout: Layout, offset: Expr) -> None:
        """Enters a name that lies in the memory of another one."""
        assert base.owner is not None
        self.values[name] = Value(None, base.owner, offset, layout, base.trusted)
        self.users[base.owner] += 1

    def release(self, name: str) -> list[str]:
        """Forgets a name; returns the variables that die with it."""
        value = self.values.pop(name)
        if value.owner is None:
            return []
        self.users[value.owner] -= 1
        dying = [value.variable] if value.variable not in (None, value.owner) else []
        return [*[v for v in dying if v], *([value.owner] if self.users[value.owner] == 0 else [])]

    def dtype(self, name: str) -> str:
        """Returns the global that is bound to an element type."""
        variable = f"_{torch_name(name)}"
        self.dtypes[variable] = name
        return variable

    def number(self, expr: Expr) -> str:
        """Returns the text of an integer; an expression is computed once, by a line before its first use."""
        if not isinstance(expr, tuple):
            return print_expr(expr)
        if expr not in self.numbers:
            parts = (self._operand(operand) for operand in expr[1:])
            self.numbers[expr] = variable = f"_n{len(self.numbers)}"
            self.lines.append(f"{variable} = {print_expr((expr[0], *parts))}")
        return self.numbers[expr]

    def _operand(self, expr: Expr) -> Expr:
        """Returns an operand with what is known already by name."""
        if isinstance(expr, tuple):
            return self.numbers.get(expr) or (expr[0], *(self._operand(part) for part in expr[1:]))
        return expr

    def sizes(self, exprs: Sequence[Expr]) -> str:
        """Returns the text of a tuple of integers."""
        texts = [self.number(expr) for expr in exprs]
        return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"

    def tensor(self, name: str) -> str:
        """Returns the variable that holds a value as an object, writing the line that makes it where needed."""
        value = self.values[name]
        if value.variable is None:
            assert value.layout is not None
            assert value.owner is not None
            self.lines.append(f"{name} = {self._view_text(value, value.owner, value.layout)}")
            value.variable = name
        return value.variable

    def _view_text(self, value: Value, owner: str, layout: Layout) -> str:
        base = self.owner_layouts.get(owner)
        where = f"{self.sizes(layout.shape)}, {self.sizes(layout.strides)}"
        elements = divided(value.offset, self.itemsize(layout.dtype))
        if base is not None and base.dtype == layout.dtype and elements is not None:
            return f"_reinterpret({owner}, {where}, {self.number(elements)})"
        return f"_retype({owner}, {self.dtype(layout.dtype)}, {where}, {self.number(value.offset)})"

    @staticmethod
    def itemsize(dtype: str) -> int:
        """Returns the bytes of an element; raises `SpecError` for a type without views."""
        if dtype not in DTYPES:
            raise SpecError("dtype", f"views of {dtype} are not supported; only extern calls may touch it")
        return DTYPES[dtype].itemsize

    def address(self, name: str) -> str:
        """Returns text for the address of a tensor's first element."""
        value = self.values[name]
        variable = f"_p_{value.owner}"
        if value.owner not in self.addresses:
            self.addresses.add(str(value.owner))
            self.lines.append(f"{variable} = {value.owner}.data_ptr()")
        if isinstance(value.offset, int):
            return f"{variable} + {self.number(value.offset)}" if value.offset else variable
        return self.number(("add", variable, self.number(value.offset)))

    def constant(self, value: Any) -> str:
        """Returns the text of an extern argument."""
        match value:
            case Tagged(tag, content):
                return self._tagged(tag, content)
            case tuple():
                return f"[{', '.join(self.constant(element) for element in value)}]"
            case None | bool() | int() | float():
                return repr(value)
        return self.bound(value)

    def bound(self, value: object) -> str:
        """Returns the name of a global that is bound to a value: a string of the program."""
        found = next((name for name, known in self.constants.items() if known == value), None)
        if found is None:
            found = f"_c{len(self.constants)}"
            self.constants[found] = value
        return f"{value!r}" if self.is_listing else found

    def _tagged(self, tag: str, value: Any) -> str:
        match tag:
            case "ref":
                return self.tensor(str(value))
            case "dtype":
                return self.dtype(str(value))
            case "device":
                return "_cpu" if value == "cpu" else "_device"
            case "size":
                return self.number(value)
            case "float":
                return f"_float({_WORDS[tag, str(value)]!r})"
            case "complex":
                return f"_complex({', '.join(self.constant(part) for part in value)})"
        return f"_torch.{_WORDS[tag, str(value)]}"


def moved(offset: Expr, elements: Expr, itemsize: int) -> Expr:
    """Returns an offset in bytes with so many elements added."""
    if isinstance(offset, int) and isinstance(elements, int):
        return offset + elements * itemsize
    if elements == 0:
        return offset
    if itemsize == 1:
        added = elements
    else:
        added = elements * itemsize if isinstance(elements, int) else ("mul", elements, itemsize)
    return added if offset == 0 else ("add", offset, added)


def divided(offset: Expr, itemsize: int) -> Expr | None:
    """Returns an offset in bytes as one in elements, or None where it is plain that there is none."""
    if isinstance(offset, int):
        return offset // itemsize if offset % itemsize == 0 else None
    return offset if itemsize == 1 else ("floordiv", offset, itemsize)
