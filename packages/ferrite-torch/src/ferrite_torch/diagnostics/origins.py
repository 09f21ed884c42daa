"""Where an FX node came from, for people: the op, the module path and the source line.

What goes into graphs, and from there into the texts of kernels, names files without their folders, as these texts are
the same on every machine; messages name them as they can be opened (`Origin.description`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path, PurePath
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any

import torch

from ferrite_torch.errors import Unsupported, located

if TYPE_CHECKING:  # where all graphs come from the store, no layer that compiles is imported
    from ferrite_ir.language.graph import Origins

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def origins_of(node: torch.fx.Node) -> Origins:
    """Returns the origin of a node as a tuple of one."""
    from ferrite_ir.language.graph import Origin  # noqa: PLC0415  # see above

    path, line = source_location(node.meta.get("stack_trace"))
    return (Origin(op_name(node), _module_path(node.meta), f"{PurePath(path).name}:{line}" if line else "", path),)


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


def locations_of(module: torch.fx.GraphModule, origins: Iterable[str]) -> dict[str, str]:
    """Returns, for some of the origins of a graph's nodes as texts, these with the whole paths of their files.

    Of two files of one name the first is taken.
    """
    wanted, found = frozenset(origins), dict[str, str]()
    graphs = (each.graph for each in module.modules() if isinstance(each, torch.fx.GraphModule))
    for node in (node for graph in graphs for node in graph.nodes):
        if node.op == "call_function":
            (origin,) = origins_of(node)
            if str(origin) in wanted:
                found.setdefault(str(origin), origin.description)
    return found


def op_name(node: torch.fx.Node) -> str:
    """Returns the aten op that the user's program called, where known, else the node's own: ``aten.gelu``.

    That of a node that computes a size is a function of Python, as ``trunc``.
    """
    original: Any = node.meta.get("original_aten") or node.target
    is_function = isinstance(original, (FunctionType, BuiltinFunctionType))
    return _packet_name(original.__name__ if is_function else str(original))


@lru_cache(maxsize=4096)
def _packet_name(name: str) -> str:
    parts = name.split(".")
    return ".".join(parts[:2]) if len(parts) > 1 else name


def _module_path(meta: dict[str, Any]) -> str:
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
    return absolute(path), line


def absolute(path: str) -> str:
    """Returns the whole path of a source file; what is no file, as ``<stdin>``, has none."""
    with suppress(OSError):  # the current folder may be gone
        if Path(path).is_file():
            return str(Path(path).absolute())
    return path
