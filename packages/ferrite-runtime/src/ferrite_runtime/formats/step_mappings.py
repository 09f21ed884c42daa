"""Inputs, outputs and host steps of programs as JSON: read, with every fault by its path, and written back."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping
from dataclasses import fields as dataclass_fields
from typing import Any

from ferrite_runtime.errors import CHECK_ERRORS, SpecError
from ferrite_runtime.formats.call_steps import READERS as CALL_READERS
from ferrite_runtime.formats.dtypes import is_dtype
from ferrite_runtime.formats.expressions import Expr, read_condition, read_expr, write_condition, write_expr
from ferrite_runtime.formats.json_fields import MAX_NAME, Fields, check_identifier, check_text
from ferrite_runtime.formats.layouts import MAX_DIMS, read_dtype, read_exprs, read_layout, write_layout
from ferrite_runtime.formats.steps import (
    CLOSED_TAGS,
    DEVICES,
    Alloc,
    Alternative,
    Check,
    Copy,
    Extern,
    Free,
    Input,
    Item,
    Keep,
    Launch,
    Let,
    Output,
    Probe,
    Reuse,
    Step,
    Tagged,
    View,
)

# --- inputs and outputs ---------------------------------------------------------------------------------------------


def read_input(value: object, path: str) -> Input:
    """Returns the input in ``value``."""
    fields = Fields(value, path)
    name, kind = fields.identifier("name"), fields.choice("kind", ("tensor", "scalar", "opaque"))
    if kind == "tensor":
        read = Input(name, kind, layout=read_layout(fields), device=fields.choice("device", DEVICES))
    elif kind == "scalar":
        read = Input(name, kind, dtype=read_dtype(fields))
    else:
        read = Input(name, kind)
    fields.close()
    return read


def write_input(value: Input) -> dict[str, Any]:
    """Returns the JSON form of an input."""
    mapping: dict[str, Any] = {"name": value.name, "kind": value.kind}
    if value.layout is not None:
        return mapping | write_layout(value.layout) | {"device": value.device}
    return mapping | ({"dtype": value.dtype} if value.dtype is not None else {})


def read_output(value: object, path: str) -> Output:
    """Returns the output in ``value``."""
    fields = Fields(value, path)
    present = fields.names()
    if present == ("value",):
        return Output(value=fields.identifier("value"))
    if present == ("scalar",):
        scalar = fields.take("scalar")
        if isinstance(scalar, (str, list, tuple)):
            return Output(scalar=read_expr(scalar, fields.at("scalar")))
        if not isinstance(scalar, (int, float)):
            raise SpecError(fields.at("scalar"), f"a number is needed, not {scalar!r}")
        if isinstance(scalar, int):
            read_value(scalar, fields.at("scalar"))
        return Output(scalar=scalar)
    if present == ("none",) and fields.take("none") is True:
        return Output()
    raise SpecError(path, 'an output is {"value": name}, {"scalar": number} or {"none": true}')


def write_output(output: Output) -> dict[str, Any]:
    """Returns the JSON form of an output."""
    if output.value is not None:
        return {"value": output.value}
    if output.scalar is None:
        return {"none": True}
    return {"scalar": write_expr(output.scalar) if isinstance(output.scalar, tuple) else output.scalar}


# --- values of extern calls -----------------------------------------------------------------------------------------

_TAGS = ("ref", "dtype", "device", "layout", "memory_format", "float", "complex", "size")
MAX_DEPTH = 16
"""How deep arguments of an extern call may be nested."""
MAX_SCALAR = 1 << 64
"""Integers among them are of 64 bits, with or without a sign."""


def read_value(value: object, path: str, depth: int = 0) -> Any:
    """Returns an extern argument: plain JSON scalars as they are, arrays as tuples, objects as `Tagged`."""
    if isinstance(value, str):
        return check_text(value, path)
    if isinstance(value, int) and not -MAX_SCALAR // 2 <= value < MAX_SCALAR:
        raise SpecError(path, "this integer does not fit into 64 bits")
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple)) and depth < MAX_DEPTH:
        return tuple(read_value(element, f"{path}[{i}]", depth + 1) for i, element in enumerate(value))
    if isinstance(value, Mapping) and len(value) == 1:
        ((tag, content),) = value.items()
        if tag in _TAGS:
            return Tagged(tag, _read_tag(tag, content, path))
    raise SpecError(path, f"{value!r} is not an argument; an object has exactly one key of {', '.join(_TAGS)}")


def _read_tag(tag: str, content: object, path: str) -> Expr:
    if tag == "size":
        return read_expr(content, f"{path}.size")
    if tag == "complex":
        if isinstance(content, (list, tuple)) and len(content) == 2:
            parts = tuple(read_value(part, path) for part in content)
            if all(_is_number(part) for part in parts):
                return parts
        raise SpecError(path, f"a complex number is [re, im], not {content!r}")
    if not isinstance(content, str):
        raise SpecError(f"{path}.{tag}", f"a string is needed, not {content!r}")
    if tag == "ref":
        check_identifier(content, f"{path}.ref")
    if tag == "dtype" and not is_dtype(content):
        raise SpecError(f"{path}.dtype", f"unknown dtype {content!r}")
    known = CLOSED_TAGS.get(tag)
    if known is not None and content not in known:
        raise SpecError(f"{path}.{tag}", f"{content[:60]!r} is not one of {', '.join(known)}")
    return content


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, Tagged) and value.tag == "float")


def write_value(value: Any) -> Any:
    """Returns the JSON form of an extern argument."""
    if isinstance(value, Tagged):
        return {value.tag: write_expr(value.value) if value.tag == "size" else write_value(value.value)}
    if isinstance(value, tuple):
        return [write_value(element) for element in value]
    return value


# --- steps ----------------------------------------------------------------------------------------------------------


def _read_alloc(fields: Fields) -> Step:
    device = fields.choice("device", DEVICES) if "device" in fields.names() else None
    return Alloc(fields.identifier("name"), read_layout(fields), device)


def _read_keep(fields: Fields) -> Step:
    return Keep(fields.identifier("name"), read_layout(fields))


def _read_reuse(fields: Fields) -> Step:
    return Reuse(fields.identifier("name"), fields.identifier("from"), read_layout(fields))


def _read_view(fields: Fields) -> Step:
    return View(
        fields.identifier("name"), fields.identifier("base"), read_layout(fields), _read_expr_field(fields, "offset")
    )


def _read_expr_field(fields: Fields, name: str) -> Expr:
    return read_expr(fields.take(name), fields.at(name))


def _read_let(fields: Fields) -> Step:
    name, value, path = fields.identifier("name"), fields.take("value"), fields.at("value")
    if not isinstance(value, Mapping):
        return Let(name, read_expr(value, path))
    inner = Fields(value, path)
    kind = next((kind for kind in ("size", "stride") if kind in inner.names()), "size")
    position = inner.array(kind)
    inner.close()
    if len(position) != 2 or not isinstance(position[1], int) or isinstance(position[1], bool) or position[1] < 0:
        raise SpecError(path, f"a {kind} is [tensor, axis], not {position!r}")
    if position[1] >= MAX_DIMS:
        raise SpecError(path, f"no tensor has an axis number {position[1]}")
    return Let(name, Probe(kind, check_identifier(position[0], path), position[1]))


def _read_launch(fields: Fields) -> Step:
    args, others = fields.array("args"), fields.array("alternatives", ())
    return Launch(
        fields.string("kernel"),
        tuple(_read_arg(arg, f"{fields.at('args')}[{i}]") for i, arg in enumerate(args)),
        tuple(_read_alternative(other, f"{fields.at('alternatives')}[{i}]") for i, other in enumerate(others)),
        fields.optional_integer("expected"),
    )


def _read_alternative(value: object, path: str) -> Alternative:
    fields = Fields(value, path)
    pairs = fields.array("when")
    if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs):
        raise SpecError(fields.at("when"), "a condition is [integer, limit]")
    when = [Fields({"expr": pair[0], "limit": pair[1]}, path) for pair in pairs]
    conditions = tuple((_read_expr_field(f, "expr"), f.integer("limit")) for f in when)
    read = Alternative(conditions, fields.optional_string("kernel"))
    fields.close()
    return read


def _read_arg(value: object, path: str) -> Expr | float | bool | Tagged:
    if isinstance(value, (bool, float)):
        return value
    if isinstance(value, Mapping):
        tagged = read_value(value, path)
        if not isinstance(tagged, Tagged) or tagged.tag != "float":
            raise SpecError(path, "only a tagged float can stand here")
        return tagged
    return read_expr(value, path)


def _read_extern(fields: Fields) -> Step:
    kwargs = Fields(fields.take("kwargs"), fields.at("kwargs"))
    for name in kwargs.names():
        _check_keyword(name, fields.at("kwargs"))
    return Extern(
        target=_read_target(fields),
        args=tuple(read_value(v, f"{fields.at('args')}[{i}]") for i, v in enumerate(fields.array("args"))),
        kwargs={name: read_value(kwargs.take(name), kwargs.at(name)) for name in kwargs.names()},
        results=tuple(_read_result(v, f"{fields.at('results')}[{i}]") for i, v in enumerate(fields.array("results"))),
        strides=_read_result_strides(fields),
        binds=tuple(
            _read_bind(value, f"{fields.at('binds')}[{i}]") for i, value in enumerate(fields.array("binds", ()))
        ),
        origin=fields.strings("origin") if "origin" in fields.names() else (),  # each one line: errors quote it
    )


_TARGET = re.compile(r"[A-Za-z_]\w*(\.\w+){1,2}", re.ASCII)


def _read_target(fields: Fields) -> str:
    """Returns the name of an operator; which ones may be called is decided where the program is loaded."""
    target = fields.string("target")
    if not _TARGET.fullmatch(target) or len(target) > MAX_NAME:
        raise SpecError(fields.at("target"), f"{target[:60]!r} is not of the form namespace.op.overload")
    return target


def _check_keyword(name: str, path: str) -> None:
    """Raises `SpecError` unless a name can be that of an argument in a call."""
    if not name.isascii() or not name.isidentifier() or keyword.iskeyword(name) or len(name) > MAX_NAME:
        raise SpecError(path, f"{name[:60]!r} cannot be the name of an argument")


def _read_bind(value: object, path: str) -> tuple[str, int, int]:
    if not isinstance(value, (list, tuple)) or len(value) != 3 or not all(type(n) is int and n >= 0 for n in value[1:]):
        raise SpecError(path, f"what is bound is [name, result, axis], not {value!r}")
    if value[1] >= MAX_NAME or value[2] >= MAX_DIMS:
        raise SpecError(path, f"no result has a number or an axis like that of {value!r}")
    return check_identifier(value[0], path), value[1], value[2]


def _read_result(value: object, path: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise SpecError(path, f"a name or null is needed, not {value!r}")
    return None if value is None else check_identifier(value, path)


def _read_result_strides(fields: Fields) -> tuple[tuple[Expr, ...] | None, ...] | None:
    rows = fields.take("strides", None)
    if rows is None:
        return None
    path = fields.at("strides")
    if not isinstance(rows, (list, tuple)):
        raise SpecError(path, f"an array is needed, not {rows!r}")
    return tuple(
        None if row is None else read_exprs(Fields({"row": row}, f"{path}[{i}]"), "row") for i, row in enumerate(rows)
    )


def _read_item(fields: Fields) -> Step:
    return Item(fields.identifier("name"), fields.identifier("from"), read_dtype(fields))


def _read_free(fields: Fields) -> Step:
    return Free(fields.strings("names"))


def _read_copy(fields: Fields) -> Step:
    return Copy(fields.identifier("to"), fields.identifier("from"))


def _read_check(fields: Fields) -> Step:
    named: list[tuple[str, Expr]] = []
    for position, pair in enumerate(fields.array("names")):
        path = f"{fields.at('names')}[{position}]"
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not isinstance(pair[0], str):
            raise SpecError(path, f"what is named is [text, integer], not {pair!r}")
        named.append((check_text(pair[0], path), read_expr(pair[1], path)))
    condition, message = read_condition(fields.take("holds"), fields.at("holds")), fields.string("message")
    error = fields.choice("error", tuple(CHECK_ERRORS)) if "error" in fields.names() else None
    return Check(condition, message, tuple(named), error)


_READERS: dict[str, Callable[[Fields], Step]] = {
    "alloc": _read_alloc,
    "keep": _read_keep,
    "reuse": _read_reuse,
    "view": _read_view,
    "let": _read_let,
    "launch": _read_launch,
    "extern": _read_extern,
    "item": _read_item,
    "free": _read_free,
    "copy": _read_copy,
    "check": _read_check,
    **CALL_READERS,
}


def read_step(value: object, path: str) -> Step:
    """Returns the step in ``value``."""
    fields = Fields(value, path)
    step = _READERS[fields.choice("do", tuple(_READERS))](fields)
    fields.close()
    return step


def _write_arg(arg: Any) -> Any:
    return write_value(arg) if isinstance(arg, (Tagged, bool, float)) else write_expr(arg)


_WRITERS: dict[str, Callable[[Any], Any]] = {
    "args": lambda values: [write_value(value) for value in values],
    "kwargs": lambda values: {name: write_value(value) for name, value in values.items()},
    "results": list,
    "names": lambda names: [[name[0], write_expr(name[1])] if isinstance(name, tuple) else name for name in names],
    "holds": write_condition,
    "origin": list,
    "binds": lambda binds: [bind if isinstance(bind, str) else list(bind) for bind in binds],
    "count": write_expr,
    "stacked": lambda layouts: list(map(write_layout, layouts)),
    "sizes": lambda sizes: list(map(write_expr, sizes)),
    "strides": lambda rows: [None if row is None else list(map(write_expr, row)) for row in rows],
    "offset": write_expr,
    "value": lambda value: {value.kind: [value.tensor, value.axis]} if isinstance(value, Probe) else write_expr(value),
    "alternatives": lambda others: [
        {"when": [[write_expr(expr), limit] for expr, limit in other.when], "kernel": other.kernel} for other in others
    ],
}


_LEFT_OUT = frozenset(
    ("device", "strides", "alternatives", "expected", "binds", "buffers", "stacks", "turns", "origin", "error")
)
"""Fields that are not written where they have their default."""
_KEYS = {"source": "from", "otherwise": "else"}
"""Fields whose names in JSON are words of Python."""


def write_step(step: Step) -> dict[str, Any]:
    """Returns the JSON form of a step."""
    mapping: dict[str, Any] = {"do": type(step).__name__.lower()}
    for field in dataclass_fields(step):
        value = getattr(step, field.name)
        if field.name == "layout":
            mapping |= write_layout(value)
        elif isinstance(step, Launch) and field.name == "args":
            mapping["args"] = [_write_arg(arg) for arg in value]
        elif not (value is None or value is False or value == ()) or field.name not in _LEFT_OUT:
            mapping[_KEYS.get(field.name, field.name)] = _WRITERS.get(field.name, lambda v: v)(value)
    return mapping
