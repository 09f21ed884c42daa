"""Activation checkpoints with random numbers: forward and backward draw the same, from one saved seed.

A checkpoint says to compute its ops again in the backward, and a memory budget leaves to the partitioner which ones;
for it the value of a random op is as good the second time as the first. Where one of them is random, a joint graph gets

    seed = ferrite_seeded.draw(0, device)            saved: 8 bytes
    kept = ferrite_seeded.bernoulli_p(seed, x, 0.5)  computed again, as the ops around it

before it is split. What torch draws is computed once and saved: random ops without a lowering, attention with dropout,
which a library draws inside, and all of them with ``fallback_random``. Attention without dropout gets a seed, as torch
keeps the generator's state for any op that is marked as random; where it is lowered it is the plain op again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy

from ferrite_torch.capture.seeded_calls import run_seeded
from ferrite_torch.torch_private.operators import Overload
from ferrite_torch.torch_private.partitioning import computes_any_op_again
from ferrite_torch.torch_private.seeded_ops import draw_op, dropped_inside, is_random, seeded_op

_AGAIN = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


def save_seeds(graph: torch.fx.Graph, *, torch_draws: bool = False) -> None:
    """Makes the random ops of a joint graph that are to be computed again functions of seeds that are saved.

    With ``torch_draws`` no op gets a seed, and what they draw is saved.
    """
    numbers = itertools.count()
    tags = (*_AGAIN, None, CheckpointPolicy.PREFER_SAVE) if computes_any_op_again() else _AGAIN
    for node in list(graph.nodes):
        if node.op == "call_function" and is_random(node.target) and node.meta.get("recompute") in tags:
            if not torch_draws and _draws_by_itself(node):
                _give_seed(graph, node, next(numbers))
            else:
                for saved in (node, *node.users):
                    saved.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _draws_by_itself(node: torch.fx.Node) -> bool:
    """Returns whether kernels draw what an op draws: not those of a library, and not from a generator of the user."""
    from ferrite_torch.lowering import LOWERINGS  # noqa: PLC0415  # not needed where graphs come from the store

    devices = {fake.device.type for fake in _tensors(node.meta.get("val"))}
    floats = all(not fake.dtype.is_complex for fake in _tensors(node.meta.get("val")))
    if not isinstance(node.target, Overload) or dropped_inside(node.target, node.args, node.kwargs):
        return False
    return str(node.target) in LOWERINGS and node.kwargs.get("generator") is None and len(devices) == 1 and floats


def _give_seed(graph: torch.fx.Graph, node: torch.fx.Node, number: int) -> None:
    target: Any = node.target
    fake = next(_tensors(node.meta["val"]))
    with graph.inserting_before(node):
        seed = graph.call_function(draw_op(), (number, fake.device))
        seed.meta = {**node.meta, "val": fake.new_empty(1, dtype=torch.int64), "recompute": CheckpointPolicy.MUST_SAVE}
    node.target = seeded_op(target, run_seeded)
    node.args = (seed, *node.args)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    for item in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(item, torch.Tensor):
            yield item
