"""Nested arguments and results as data: which tuples, lists and dicts the tensors of a call stand in.

A structure is JSON: ``{"tensor": i}`` is leaf number i, ``{"tuple": […]}``, ``{"list": […]}`` and ``{"dict": [[key,
…], …]}`` nest, ``{"constant": value}`` is a number, string, boolean or null that was fixed when the program was
exported. Subclasses of tuples, lists, numbers and strings, and what behaves like a dict, come back as the plain types:
a named tuple as a tuple, an enumeration's member as its number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ferrite_runtime.errors import GuardFailed, PackageInvalid

_MAX_DEPTH = 50
_CONSTANTS = (bool, int, float, str)
_INTEGERS = range(-(1 << 63), 1 << 63)


def describe(value: Any, is_leaf: Callable[[Any], bool], leaves: list[Any], depth: int = 0) -> dict[str, Any]:
    """Returns the structure of a nested value; what ``is_leaf`` accepts is appended to ``leaves``.

    Raises:
        PackageInvalid: if the value holds something that a structure cannot express.
    """
    if depth > _MAX_DEPTH:
        raise PackageInvalid("a structure is nested too deeply")
    if is_leaf(value):
        leaves.append(value)
        return {"tensor": len(leaves) - 1}
    if value is None or isinstance(value, _CONSTANTS):
        constant = _plain(value)
        if not _is_constant(constant):
            raise PackageInvalid(f"{constant!r} among arguments or results cannot be written down")
        return {"constant": constant}
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise PackageInvalid("the keys of a dict among arguments or results have to be strings")
        return {"dict": [[key, describe(item, is_leaf, leaves, depth + 1)] for key, item in value.items()]}
    if isinstance(value, (tuple, list)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [describe(item, is_leaf, leaves, depth + 1) for item in value]}
    raise PackageInvalid(f"a {type(value).__name__} among arguments or results cannot be written down")


def _plain(value: Any) -> Any:
    """Returns a constant without what a subclass adds to its type; all else as it is."""
    match value:
        case bool():
            return value
        case int():
            return int.__int__(value)
        case float():
            return float.__float__(value)
        case str():
            return str.__str__(value)
    return value


def _is_constant(value: Any) -> bool:
    """Returns whether a plain value can be a constant: JSON has no NaN and no infinities, a bundle no long integers."""
    match value:
        case None | bool() | str():
            return True
        case int():
            return value in _INTEGERS
        case float():
            return math.isfinite(value)
    return False


def check_structure(structure: Any, count: int, path: str, depth: int = 0) -> None:
    """Raises `PackageInvalid` unless ``structure`` is one, with leaves numbered below ``count``."""
    if depth > _MAX_DEPTH or not isinstance(structure, dict) or len(structure) != 1:
        raise PackageInvalid(f"{path}: not a structure: an object with one key is needed")
    ((kind, content),) = structure.items()
    if kind == "tensor":
        if not isinstance(content, int) or isinstance(content, bool) or not 0 <= content < count:
            raise PackageInvalid(f"{path}: there is no tensor number {content!r}")
    elif kind == "constant":
        if not _is_constant(content):
            raise PackageInvalid(f"{path}: {content!r} is no constant")
    elif kind in ("tuple", "list") and isinstance(content, list):
        for position, item in enumerate(content):
            check_structure(item, count, f"{path}[{position}]", depth + 1)
    elif kind == "dict" and isinstance(content, list):
        for row in content:
            if not isinstance(row, list) or len(row) != 2 or not isinstance(row[0], str):
                raise PackageInvalid(f"{path}: a dict is a list of [key, structure]")
            check_structure(row[1], count, f"{path}.{row[0][:40]}", depth + 1)
    else:
        raise PackageInvalid(f"{path}: {kind!r} is no kind of structure")


def check_arguments(structure: Any, count: int, path: str) -> None:
    """Raises `PackageInvalid` unless ``structure`` is that of ``(args, kwargs)`` with every tensor in it once."""
    check_structure(structure, count, path)
    match structure:
        case {"tuple": [{"tuple": [*_]}, {"dict": [*_]}]}:
            if all(leaf_names(structure, count)):
                return
    raise PackageInvalid(f"{path}: not the structure of positional and keyword arguments with {count} tensors")


def build(structure: Mapping[str, Any], leaves: Sequence[Any]) -> Any:
    """Returns the nested value of a structure with these leaves."""
    ((kind, content),) = structure.items()
    match kind:
        case "tensor":
            return leaves[content]
        case "constant":
            return content
        case "dict":
            return {key: build(item, leaves) for key, item in content}
    items = [build(item, leaves) for item in content]
    return tuple(items) if kind == "tuple" else items


def flatten(structure: Mapping[str, Any], value: Any, leaves: list[Any], name: str = "arguments") -> None:
    """Puts the tensors of a value into ``leaves``, at their numbers.

    Raises:
        GuardFailed: naming the place, if the value is not of this structure.
    """
    ((kind, content),) = structure.items()
    if kind == "tensor":
        leaves[content] = value
    elif kind == "constant":
        plain = _plain(value)
        if type(plain) is not type(content) or repr(plain) != repr(content):  # 0.0 == -0.0
            raise GuardFailed(f"{name} was {content!r} when the program was exported, it is {value!r}", name)
    elif kind == "dict":
        if not isinstance(value, Mapping) or set(value) != {key for key, _ in content}:
            raise GuardFailed(f"{name} has the keys {sorted(key for key, _ in content)}, got {_shown(value)}", name)
        for key, item in content:
            flatten(item, value[key], leaves, f"{name}.{key}")
    else:
        if not isinstance(value, (tuple, list)) or len(value) != len(content):
            raise GuardFailed(f"{name} is a {kind} of {len(content)}, got {_shown(value)}", name)
        for position, (item, part) in enumerate(zip(content, value, strict=True)):
            flatten(item, part, leaves, f"{name}[{position}]")


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a dict with {sorted(map(str, value))}"
    return f"{type(value).__name__} of {len(value)}" if hasattr(value, "__len__") else type(value).__name__


def leaf_names(structure: Mapping[str, Any], count: int) -> list[str]:
    """Returns what a caller would call each tensor of a call's arguments: ``args[0]``, ``mask``, ``cache[1].k``."""
    names = [""] * count
    args, kwargs = structure["tuple"]
    pending: list[tuple[str, Mapping[str, Any]]] = [("args", args)]
    pending += [(key, item) for key, item in kwargs["dict"]]
    while pending:
        name, part = pending.pop()
        ((kind, content),) = part.items()
        if kind == "tensor":
            names[content] = name
        elif kind == "dict":
            pending += [(f"{name}.{key}", item) for key, item in content]
        elif kind != "constant":
            pending += [(f"{name}[{position}]", item) for position, item in enumerate(content)]
    return names
