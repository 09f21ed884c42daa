"""What is settled in a joint graph before it is split: what its forward saves, and what both parts are told of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ferrite_torch.capture.host_results import correct_devices
from ferrite_torch.capture.pool_offsets import save_pool_offsets
from ferrite_torch.capture.saved_extrema import save_extrema
from ferrite_torch.capture.saved_seeds import save_seeds
from ferrite_torch.rewrites.equal_nodes import EqualNodes
from ferrite_torch.rewrites.extrema import may_have_extrema
from ferrite_torch.rewrites.layouts.convolution_layouts import assign_layouts
from ferrite_torch.rewrites.rounded_half_types import half_extrema, mark_beside_extrema, mark_returned_half_types


def prepare_joint(
    graph: torch.fx.Graph, results: Sequence[Any], *, layout: str = "auto", fallback_random: bool = False
) -> None:
    """Prepares a joint graph, whose forward returns these results, to be split in two; `Options` explains the rest."""
    correct_devices(graph)
    if layout == "auto":
        assign_layouts(graph)
    save_pool_offsets(graph)
    if may_have_extrema(graph):
        equal = EqualNodes(graph)
        extrema = half_extrema(graph, equal)
        save_extrema(graph, extrema, equal)
        mark_beside_extrema(extrema, equal, is_joint=True)
    save_seeds(graph, torch_draws=fallback_random)
    mark_returned_half_types(results)
