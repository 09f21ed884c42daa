"""Sizes and numbers that are known only when a graph runs: which op makes the first one, and at which source line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ferrite_torch import torch_private
from ferrite_torch.errors import Unsupported
from ferrite_torch.origins import origins_of


def refuse_unbacked(module: torch.fx.GraphModule) -> None:
    """Checks that every size and number of a graph follows from its inputs.

    Raises:
        Unsupported: some op makes one that only the data tell; the message names it with its line.
    """
    for node in module.graph.nodes:
        if any(map(torch_private.is_unbacked_number, _numbers(node.meta.get("val")))):
            where = f"input {node.name}" if node.op == "placeholder" else str(origins_of(node)[0])
            raise Unsupported(f"{where}: a size or a number is known only when the graph runs")


def _numbers(value: Any) -> Iterator[Any]:
    for item in value if isinstance(value, (list, tuple)) else (value,):
        if torch_private.is_fake(item) and item.layout == torch.strided:
            yield from (number for number in (*item.shape, *item.stride()) if isinstance(number, torch.SymInt))
        elif isinstance(item, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            yield item
