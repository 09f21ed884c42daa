"""The parts of a program: inputs, outputs and host steps, read from JSON and written back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import Any, TypeAlias

from ferrite_runtime.dtypes import is_dtype
from ferrite_runtime.errors import SpecError
from ferrite_runtime.expr import Expr, read_expr, write_expr
from ferrite_runtime.fields import Fields, check_identifier

Number: TypeAlias = "int | float | bool"


@dataclass(frozen=True, slots=True)
class Layout:
    """The type of a tensor: dtype, and shape and strides counted in elements."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def is_empty(self) -> bool:
        """Tells whether the tensor has no elements."""
        return 0 in self.shape


@dataclass(frozen=True, slots=True)
class Input:
    """One input of kind tensor (with ``layout`` and ``device``), scalar (with ``dtype``) or opaque."""

    name: str
    kind: str
    dtype: str | None = None
    layout: Layout | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """One output: a named value, a number, or None when both are absent."""

    value: str | None = None
    scalar: Number | None = None


@dataclass(frozen=True, slots=True)
class Tagged:
    """A tagged argument of an extern call: ``tag`` is ref, dtype, device, layout, memory_format, float or complex."""

    tag: str
    value: str | tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Alloc:
    """Creates an uninitialised buffer; ``device`` None means the program's."""

    name: str
    layout: Layout
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Reuse:
    """Creates a buffer over the storage of ``source``, which is gone afterwards."""

    name: str
    source: str
    layout: Layout


@dataclass(frozen=True, slots=True)
class View:
    """Creates a strided tensor over the storage of ``base``, ``offset`` elements after its first one."""

    name: str
    base: str
    layout: Layout
    offset: int


@dataclass(frozen=True, slots=True)
class Launch:
    """Launches a kernel; tensor args are names, scalars names or numbers, sizes expressions."""

    kernel: str
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Extern:
    """Calls a library operator; ``strides`` holds what a result's layout has to be, None where it does not matter."""

    target: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[str | None, ...]
    strides: tuple[tuple[int, ...] | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """Reads a one-element tensor into a Python number."""

    name: str
    source: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Free:
    """Drops names."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Copy:
    """Copies the elements of ``source`` into ``to``."""

    to: str
    source: str


Step: TypeAlias = "Alloc | Reuse | View | Launch | Extern | Item | Free | Copy"


# --- inputs and outputs ---------------------------------------------------------------------------------------------


def read_layout(fields: Fields) -> Layout:
    """Returns the layout in the fields ``dtype``, ``shape`` and ``strides``."""
    layout = Layout(_read_dtype(fields), fields.integers("shape"), fields.integers("strides"))
    if len(layout.shape) != len(layout.strides):
        raise SpecError(fields.at("strides"), f"{len(layout.strides)} strides for {len(layout.shape)} dimensions")
    if any(size < 0 for size in layout.shape):
        raise SpecError(fields.at("shape"), "a size is negative")
    return layout


def _read_dtype(fields: Fields) -> str:
    dtype = fields.string("dtype")
    if not is_dtype(dtype):
        raise SpecError(fields.at("dtype"), f"unknown dtype {dtype!r}")
    return dtype


def read_input(value: object, path: str) -> Input:
    """Returns the input in ``value``."""
    fields = Fields(value, path)
    name, kind = fields.identifier("name"), fields.choice("kind", ("tensor", "scalar", "opaque"))
    if kind == "tensor":
        read = Input(name, kind, layout=read_layout(fields), device=fields.string("device"))
    elif kind == "scalar":
        read = Input(name, kind, dtype=_read_dtype(fields))
    else:
        read = Input(name, kind)
    fields.close()
    return read


def write_input(value: Input) -> dict[str, Any]:
    """Returns the JSON form of an input."""
    mapping: dict[str, Any] = {"name": value.name, "kind": value.kind}
    if value.layout is not None:
        return mapping | _write_layout(value.layout) | {"device": value.device}
    return mapping | ({"dtype": value.dtype} if value.dtype is not None else {})


def read_output(value: object, path: str) -> Output:
    """Returns the output in ``value``."""
    fields = Fields(value, path)
    present = fields.names()
    if present == ("value",):
        return Output(value=fields.identifier("value"))
    if present == ("scalar",):
        scalar = fields.take("scalar")
        if not isinstance(scalar, (int, float)):
            raise SpecError(fields.at("scalar"), f"a number is needed, not {scalar!r}")
        return Output(scalar=scalar)
    if present == ("none",) and fields.take("none") is True:
        return Output()
    raise SpecError(path, 'an output is {"value": name}, {"scalar": number} or {"none": true}')


def write_output(output: Output) -> dict[str, Any]:
    """Returns the JSON form of an output."""
    if output.value is not None:
        return {"value": output.value}
    return {"none": True} if output.scalar is None else {"scalar": output.scalar}


# --- values of extern calls -----------------------------------------------------------------------------------------

_TAGS = ("ref", "dtype", "device", "layout", "memory_format", "float", "complex")


def read_value(value: object, path: str) -> Any:
    """Returns an extern argument: plain JSON scalars as they are, arrays as tuples, objects as `Tagged`."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(read_value(element, f"{path}[{i}]") for i, element in enumerate(value))
    if isinstance(value, Mapping) and len(value) == 1:
        ((tag, content),) = value.items()
        if tag in _TAGS:
            return Tagged(tag, _read_tag(tag, content, path))
    raise SpecError(path, f"{value!r} is not an argument; an object has exactly one key of {', '.join(_TAGS)}")


def _read_tag(tag: str, content: object, path: str) -> str | tuple[Any, ...]:
    if tag == "complex":
        if isinstance(content, (list, tuple)) and len(content) == 2:
            return tuple(read_value(part, path) for part in content)
        raise SpecError(path, f"a complex number is [re, im], not {content!r}")
    if not isinstance(content, str):
        raise SpecError(f"{path}.{tag}", f"a string is needed, not {content!r}")
    if tag == "ref":
        check_identifier(content, f"{path}.ref")
    if tag == "dtype" and not is_dtype(content):
        raise SpecError(f"{path}.dtype", f"unknown dtype {content!r}")
    if tag == "float" and content not in ("inf", "-inf", "nan"):
        raise SpecError(f"{path}.float", f"{content!r} is not inf, -inf or nan")
    return content


def write_value(value: Any) -> Any:
    """Returns the JSON form of an extern argument."""
    if isinstance(value, Tagged):
        return {value.tag: write_value(value.value)}
    if isinstance(value, tuple):
        return [write_value(element) for element in value]
    return value


def value_refs(value: Any) -> list[str]:
    """Returns the names that an extern argument refers to, in order."""
    pending, names = [value], []
    while pending:
        current = pending.pop()
        if isinstance(current, Tagged) and current.tag == "ref":
            names.append(str(current.value))
        elif isinstance(current, tuple):
            pending.extend(reversed(current))
    return names


# --- steps ----------------------------------------------------------------------------------------------------------


def _read_alloc(fields: Fields) -> Step:
    device = fields.take("device", None)
    return Alloc(fields.identifier("name"), read_layout(fields), device)


def _read_reuse(fields: Fields) -> Step:
    return Reuse(fields.identifier("name"), fields.identifier("from"), read_layout(fields))


def _read_view(fields: Fields) -> Step:
    return View(fields.identifier("name"), fields.identifier("base"), read_layout(fields), fields.integer("offset"))


def _read_launch(fields: Fields) -> Step:
    args = fields.array("args")
    return Launch(
        fields.string("kernel"), tuple(_read_arg(arg, f"{fields.at('args')}[{i}]") for i, arg in enumerate(args))
    )


def _read_arg(value: object, path: str) -> Expr | float | bool | Tagged:
    if isinstance(value, (bool, float)):
        return value
    if isinstance(value, Mapping):
        tagged = read_value(value, path)
        if tagged.tag != "float":
            raise SpecError(path, "only a tagged float can stand here")
        return tagged  # type: ignore[no-any-return]
    return read_expr(value, path)


def _read_extern(fields: Fields) -> Step:
    kwargs = Fields(fields.take("kwargs"), fields.at("kwargs"))
    return Extern(
        target=fields.string("target"),
        args=tuple(read_value(v, f"{fields.at('args')}[{i}]") for i, v in enumerate(fields.array("args"))),
        kwargs={name: read_value(kwargs.take(name), kwargs.at(name)) for name in kwargs.names()},
        results=tuple(_read_result(v, f"{fields.at('results')}[{i}]") for i, v in enumerate(fields.array("results"))),
        strides=_read_result_strides(fields),
    )


def _read_result(value: object, path: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise SpecError(path, f"a name or null is needed, not {value!r}")
    return None if value is None else check_identifier(value, path)


def _read_result_strides(fields: Fields) -> tuple[tuple[int, ...] | None, ...] | None:
    rows = fields.take("strides", None)
    if rows is None:
        return None
    path = fields.at("strides")
    if not isinstance(rows, (list, tuple)):
        raise SpecError(path, f"an array is needed, not {rows!r}")
    return tuple(
        None if row is None else Fields({"row": row}, f"{path}[{i}]").integers("row") for i, row in enumerate(rows)
    )


def _read_item(fields: Fields) -> Step:
    return Item(fields.identifier("name"), fields.identifier("from"), _read_dtype(fields))


def _read_free(fields: Fields) -> Step:
    return Free(fields.strings("names"))


def _read_copy(fields: Fields) -> Step:
    return Copy(fields.identifier("to"), fields.identifier("from"))


_READERS: dict[str, Callable[[Fields], Step]] = {
    "alloc": _read_alloc,
    "reuse": _read_reuse,
    "view": _read_view,
    "launch": _read_launch,
    "extern": _read_extern,
    "item": _read_item,
    "free": _read_free,
    "copy": _read_copy,
}


def read_step(value: object, path: str) -> Step:
    """Returns the step in ``value``."""
    fields = Fields(value, path)
    step = _READERS[fields.choice("do", tuple(_READERS))](fields)
    fields.close()
    return step


def _write_layout(layout: Layout) -> dict[str, Any]:
    return {"dtype": layout.dtype, "shape": list(layout.shape), "strides": list(layout.strides)}


def _write_arg(arg: Any) -> Any:
    return write_value(arg) if isinstance(arg, (Tagged, bool, float)) else write_expr(arg)


_WRITERS: dict[str, Callable[[Any], Any]] = {
    "args": lambda values: [write_value(value) for value in values],
    "kwargs": lambda values: {name: write_value(value) for name, value in values.items()},
    "results": list,
    "names": list,
    "strides": lambda rows: [None if row is None else list(row) for row in rows],
}


def write_step(step: Step) -> dict[str, Any]:
    """Returns the JSON form of a step."""
    mapping: dict[str, Any] = {"do": type(step).__name__.lower()}
    for field in dataclass_fields(step):
        value = getattr(step, field.name)
        if field.name == "layout":
            mapping |= _write_layout(value)
        elif isinstance(step, Launch) and field.name == "args":
            mapping["args"] = [_write_arg(arg) for arg in value]
        elif value is not None or field.name not in ("device", "strides"):
            mapping["from" if field.name == "source" else field.name] = _WRITERS.get(field.name, lambda v: v)(value)
    return mapping
