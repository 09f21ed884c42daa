"""Splitting a joint graph into its forward and its backward."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ferrite_torch.torch_private.fake_tensors import mode_of
from ferrite_torch.torch_private.graph_positions import mark_split, token_count
from ferrite_torch.torch_private.saved_views import (
    hand_on_operands,
    read_originals,
    return_once,
    save_bases,
    save_old_contents,
)

Preparation = Callable[[torch.fx.Graph, Sequence[Any]], None]
"""What is done to a joint graph, whose forward returns these results, before it is split."""


@contextmanager
def saving_at_most(budget: float | None) -> Iterator[None]:
    """Has forwards that are split meanwhile save this share of what they would; None leaves it to torch's setting."""
    from torch._functorch import config

    # With nothing at all the partitioner does not ask what has to be saved, such as seeds of random numbers.
    changed = {} if budget is None else {"activation_memory_budget": max(budget, sys.float_info.min)}
    with config.patch(changed):
        yield


def computes_any_op_again() -> bool:
    """Returns whether a budget of memory has the partitioner choose among all ops what a backward computes again."""
    from torch._functorch import config

    return config.activation_memory_budget < 1


def partition(
    joint: torch.fx.GraphModule, results: int, held: int, prepare: Preparation
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Returns the forward and the backward of a joint graph with so many results, the first arguments being weights."""
    positions = list(range(held))
    forward, backward = min_cut(joint, None, prepare, num_fwd_outputs=results, static_lifetime_input_indices=positions)
    return forward, backward


def min_cut(joint: torch.fx.GraphModule, inputs: Any, prepare: Preparation, **rest: Any) -> Any:
    """Splits a joint graph, once prepared, where the fewest bytes cross.

    The min-cut partitioner is published only in functorch's private modules.
    """
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    is_region = inputs == []  # AOTAutograd has example inputs of a graph, and none of the regions that it calls
    hand_on_operands(joint)
    return_once(joint)
    read_originals(joint)
    with mode_of(joint.graph):
        prepare(joint.graph, _results_of(joint.graph)[: rest["num_fwd_outputs"]])
    tokens, held = token_count(joint), rest.get("static_lifetime_input_indices") or ()
    rest["static_lifetime_input_indices"] = [
        tokens + position for position in held
    ]  # AOTAutograd counts behind the tokens
    forward, backward = min_cut_rematerialization_partition(joint, inputs, **rest)
    save_old_contents(forward, backward, rest["num_fwd_outputs"])
    save_bases(forward, backward, rest["num_fwd_outputs"], is_region=is_region)
    mark_split(forward, backward, rest["num_fwd_outputs"])
    return forward, backward


def _results_of(joint: torch.fx.Graph) -> list[Any]:
    """Returns the results of a joint graph, those of its forward first, as the partitioner counts them."""
    from torch.utils import _pytree

    return list(_pytree.arg_tree_leaves(*joint.output_node().args))
