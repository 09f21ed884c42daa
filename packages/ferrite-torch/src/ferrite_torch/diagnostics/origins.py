"""Where an FX node came from, for people: the op, the module path and the source line.

What goes into graphs, and from there into the texts of kernels, names files without their folders, as these texts are
the same on every machine; messages name them as they can be opened (`Origin.description`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path, PurePath
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from ferrite_torch.errors import Unsupported, located

if TYPE_CHECKING:  # where all graphs come from the store, no layer that compiles is imported
    from ferrite_ir.language.graph import Origins

Location: TypeAlias = tuple[int, str]
"""The number of a node among the calls of its graph, -1 of what is no node; and its origin with the whole path."""

_FRAME = re.compile(r'^ *File "((?:.*\n)*?.*)", line (\d+)', re.MULTILINE)
"""A frame of a recorded stack trace; the name of its file may hold quotes and line breaks."""


def origins_of(node: torch.fx.Node) -> Origins:
    """Returns the origin of a node as a tuple of one."""
    return origins_of_call(op_name(node), node.meta)


def origins_of_call(op: str, meta: Mapping[str, Any]) -> Origins:
    """Returns the origin of an op that a node calls, of which this is what is noted, as a tuple of one."""
    from ferrite_ir.language.graph import Origin  # noqa: PLC0415  # see above

    path, line = source_location(meta.get("stack_trace"))
    return (Origin(op, _module_path(meta), f"{PurePath(path).name}:{line}" if line else "", path),)


def unsupported(node: torch.fx.Node, reason: str, remedy: str = "") -> Unsupported:
    """Returns the error that says why a node is not compiled, with its op and source line, and what to do."""
    return _refusal(origins_of(node), reason, remedy)


def unsupported_graph(module: torch.fx.GraphModule, reason: str, remedy: str) -> Unsupported:
    """Returns the error that says why a graph is not compiled, for which its first op stands."""
    calls = (node for node in module.graph.nodes if node.op in ("call_function", "call_method", "call_module"))
    return _refusal(next(map(origins_of, calls), ()), reason, remedy)


def _refusal(origins: Origins, reason: str, remedy: str) -> Unsupported:
    if not remedy:
        return located(Unsupported(reason), origins)
    error = located(Unsupported(f"{reason}. What to do: {remedy}"), origins)
    error.remedy = ""  # the message says it
    return error


def locations_of(module: torch.fx.GraphModule, origins: Iterable[str]) -> dict[str, Location]:
    """Returns where some of the origins of a graph's nodes, given as texts, are: the first node of each text."""
    wanted, found = frozenset(origins), dict[str, Location]()
    for number, node in enumerate(_calls(module)):
        (origin,) = origins_of(node)
        if str(origin) in wanted:
            found.setdefault(str(origin), (number, origin.description))
    return found


def locations_in(module: torch.fx.GraphModule, locations: Mapping[str, Location]) -> dict[str, Location]:
    """Returns the locations of a graph as they are in one with the same key, which may stand on other source lines."""
    nodes = list(_calls(module))
    return {
        origin: (number, origins_of(nodes[number])[0].description if 0 <= number < len(nodes) else description)
        for origin, (number, description) in locations.items()
    }


def _calls(module: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """Yields the calls of a graph, and of those that it holds, in an order that its key tells."""
    graphs = (each.graph for each in module.modules() if isinstance(each, torch.fx.GraphModule))
    return (node for graph in graphs for node in graph.nodes if node.op == "call_function")


def op_name(node: torch.fx.Node) -> str:
    """Returns the aten op that the user's program called, where known, else the node's own: ``aten.gelu``.

    That of a node that computes a size is a function of Python, as ``trunc``. ``with_effects(token, op, …)`` calls it.
    """
    called = node.args[1] if str(node.target) == "with_effects" else node.target
    original: Any = node.meta.get("original_aten") or called
    is_function = isinstance(original, (FunctionType, BuiltinFunctionType))
    return _packet_name(original.__name__ if is_function else str(original))


@lru_cache(maxsize=4096)
def _packet_name(name: str) -> str:
    parts = name.split(".")
    return ".".join(parts[:2]) if len(parts) > 1 else name


def _module_path(meta: Mapping[str, Any]) -> str:
    stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path, _ = next(reversed(stack.values()))
    return str(path)


@lru_cache(maxsize=4096)
def source_location(trace: str | None) -> tuple[str, str]:
    """Returns the file and the line of the innermost frame of a recorded stack trace, ``""`` where there is none."""
    frames = _FRAME.findall(trace) if trace else []
    if not frames:
        return "", ""
    path, line = frames[-1]
    return _printable(absolute(path)), line


def _printable(text: str) -> str:
    """Returns a text as one line: what a program quotes, and a log; names of files may hold anything."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def absolute(path: str) -> str:
    """Returns the whole path of a source file; what is no file, as ``<stdin>``, has none."""
    with suppress(OSError):  # the current folder may be gone
        if Path(path).is_file():
            return str(Path(path).absolute())
    return path
