"""What does not run as it was asked for, and says so: once in a process, with op, place, reason and what to do.

Everything that falls to eager mode, a graph or an op, goes through here and is counted in `statistics`. An observer
(`explain`) is told in its answer instead.
"""

from __future__ import annotations

import logging

import torch

from ferrite_torch.diagnostics.origins import origins_of
from ferrite_torch.diagnostics.statistics import is_new, observer, record_extern, record_fallback
from ferrite_torch.errors import FerriteError

log = logging.getLogger(__name__)


def announce_eager(error: FerriteError, module: torch.fx.GraphModule) -> None:
    """Counts a graph that runs eagerly, and says so once.

    Args:
        error: why.
        module: the graph; its first op stands for it where the error is about none in particular.
    """
    location = "" if error.origins else location_of(module)
    reason = f"{location}: {error}" if location else str(error)
    record_fallback(reason)
    announce(f"a graph runs eagerly: {reason}", error.remedy)


def announce_between(node: torch.fx.Node) -> None:
    """Counts an op that torch computes between the parts of a graph on several devices, and says so once."""
    record_extern(str(node.target), "between what devices compute")
    announce(
        f"{origins_of(node)[0].description}: {node.target} is called by torch, between what GPUs of its graph compute",
        "move all of its tensors to one GPU if it takes long",
    )


def announce(text: str, remedy: str = "") -> None:
    """Says something once, with what to do about it."""
    if observer() is None and is_new(text):
        log.warning("%s%s", text, f". What to do: {remedy}" if remedy else "")


def location_of(module: torch.fx.GraphModule) -> str:
    """Returns the first op of a graph that has a source line, with it; the first op where none has."""
    nodes = [node for node in module.graph.nodes if node.op in ("call_function", "call_method", "call_module")]
    origins = [origins_of(node)[0] for node in nodes]
    return next((origin.description for origin in origins if origin.line), origins[0].description if origins else "")
