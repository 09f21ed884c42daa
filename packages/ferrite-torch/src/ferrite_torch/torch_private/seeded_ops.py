"""Random ops as functions of a seed: ``ferrite_seeded::native_dropout_default(seed, input, p, train)``.

A random op that is computed again gives other numbers, and what torch does about it (`run_and_save_rng_state`, states
of generators as inputs) has ops in ops. With its seed as an operand it is an op like others: the partitioner computes
it again where memory is to be saved, and its numbers are the same.

    drawn = draw(0, device)                     the seed, a tensor of one number; saved for the backward
    mask  = bernoulli_p(drawn, x, 0.5)          as often as it is needed
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ferrite_torch.torch_private.operators import Overload, arguments_by_name

NAMESPACE = "ferrite_seeded"
DRAW = f"{NAMESPACE}.draw.default"

HOST_RESULTS: dict[str, tuple[int, ...]] = {
    # The state of the random generator, as two numbers; on the GPU only while a CUDA graph is recorded.
    "aten._scaled_dot_product_efficient_attention.default": (2, 3),
    "aten._efficient_attention_forward.default": (2, 3),
}
"""Positions of results that lie on the CPU although torch's fake tensors say otherwise, by op."""

_library: Any = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
_plain_ops: dict[str, Overload] = {}


def _draw(number: int, device: torch.device) -> torch.Tensor:
    limits = torch.iinfo(torch.int64)
    return torch.randint(limits.min, limits.max, (1,), device=device)


_library.define("draw(int number, Device device) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
_library.impl("draw", _draw, "CompositeExplicitAutograd")


def draw_op() -> Overload:
    """Returns the op that draws a seed from torch's generator; its number tells it from other draws of one graph."""
    found: Overload = getattr(torch.ops, NAMESPACE).draw.default
    return found


def is_random(op: Any) -> bool:
    """Returns whether an op draws from a generator."""
    return isinstance(op, Overload) and torch.Tag.nondeterministic_seeded in op.tags


def dropped_inside(op: Overload, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Returns the share that attention of a library drops, which draws inside; None for other ops.

    Without dropout it draws nothing, though it is marked as random.
    """
    return arguments_by_name(op, args, named).get("dropout_p")


def seeded_op(op: Overload, run: Callable[..., Any]) -> Overload:
    """Returns the op that is a random op with a seed before its operands; ``run(op, seed, …)`` computes it.

    Only the schema, which is private, says what operands an op has.
    """
    name = f"{op._schema.name.rpartition('::')[2]}_{op._overloadname}"
    packet = getattr(torch.ops, NAMESPACE)
    if name not in _plain_ops:
        operands = str(op._schema).partition("(")[2]
        _library.define(f"{name}(Tensor seed, {operands}")
        _library.impl(name, lambda seed, *args, **named: run(seeded, seed, *args, **named), "CompositeExplicitAutograd")
        torch.library.register_fake(
            f"{NAMESPACE}::{name}", lambda seed, *args, **named: op(*args, **named), lib=_library
        )
        _plain_ops[name] = op
    seeded: Overload = getattr(packet, name).default
    return seeded


def plain_op(op: Any) -> Overload | None:
    """Returns the random op that an op is with a seed, None for all others."""
    return _plain_ops.get(op._opname) if isinstance(op, Overload) and op.namespace == NAMESPACE else None
