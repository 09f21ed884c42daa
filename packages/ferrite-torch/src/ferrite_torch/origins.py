"""Where an FX node came from, for people: the op, the module path and the source line.

What goes into graphs, and from there into the texts of kernels, names files without their folders, as these texts are
the same on every machine (`origins_of`); messages name them as they can be opened (`place_of`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch

from ferrite_ir.graph import Origin, Origins

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def origins_of(node: torch.fx.Node) -> Origins:
    """Returns the origin of a node as a tuple of one."""
    return (Origin(op_name(node), _module_path(node.meta), source_line(node.meta.get("stack_trace"))),)


def place_of(node: torch.fx.Node) -> Origin:
    """Returns the origin of a node for a message: ``aten.gelu (/home/me/model.py:12)``."""
    return Origin(op_name(node), _module_path(node.meta), source_place(node.meta.get("stack_trace")))


def places_of(module: torch.fx.GraphModule, origins: Iterable[str]) -> dict[str, str]:
    """Returns, for some of the origins of a graph's nodes as texts, these with the whole paths of their files.

    Of two files of one name the first is taken.
    """
    wanted, found = frozenset(origins), dict[str, str]()
    for node in module.graph.nodes:
        origin = str(origins_of(node)[0]) if node.op == "call_function" else ""
        if origin in wanted and origin not in found:
            found[origin] = str(place_of(node))
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


def source_line(trace: str | None) -> str:
    """Returns ``file.py:12`` for the innermost frame of a recorded stack trace, ``""`` where there is none."""
    return PurePath(source_place(trace)).name


@lru_cache(maxsize=4096)
def source_place(trace: str | None) -> str:
    """Returns ``/folder/file.py:12`` for the innermost frame of a recorded stack trace, ``""`` where there is none."""
    frames = _FRAME.findall(trace) if trace else []
    return ":".join(frames[-1]) if frames else ""
