"""Calls of compiled graphs under a transform: forward-mode differentiation, and vmap over a backward.

Kernels read memory. A tangent is no part of a tensor's memory, so a graph whose inputs have some runs as dynamo
captured it. A tensor that stands for the slices of a batch has no memory at all: the backward runs once for each slice.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ferrite_torch.calls.layouts import copied
from ferrite_torch.diagnostics.origins import unsupported_graph
from ferrite_torch.errors import RunError, Unsupported
from ferrite_torch.torch_private.transforms import are_wrapped, carry_tangents, map_slices, wrapper_finder

Boxed = Callable[[list[Any]], Any]


def keeping_tangents(
    compiled: Callable[..., Any],
    eager: Callable[..., Any],
    module: torch.fx.GraphModule,
    note: Callable[[Unsupported], None],
) -> Callable[..., Any]:
    """Returns a compiled graph that runs eagerly where inputs have tangents; ``note`` is told the first time.

    Inputs come one by one or in a list that is emptied, which both functions take. ``module`` tells the source line.
    """
    noted: list[Unsupported] = []

    def call(*inputs: Any) -> Any:
        values = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], list) else inputs
        if not carry_tangents(values):
            return compiled(*inputs)
        if not noted:
            noted.append(
                unsupported_graph(
                    module,
                    "an input has a tangent (torch.autograd.forward_ad), which kernels would lose",
                    "call torch.func.jvp inside the compiled function, whose derivative is then compiled, too",
                )
            )
            note(noted[0])
        return eager(*inputs)

    return call


def by_slices(
    backward: Boxed,
    strides: Callable[[int], Sequence[int] | None] = lambda position: None,
    *,
    spared: Sequence[int] = (),
    check: Callable[[Sequence[Any]], None] = lambda arguments: None,
) -> Boxed:
    """Returns a boxed backward that also takes arguments that stand for slices (``is_grads_batched``).

    Args:
        backward: the compiled graph.
        strides: tells the strides that an argument is wanted in, None where they are row-major.
        spared: positions of the arguments that the backward overwrites: each slice gets copies.
        check: raises if arguments are not laid out as the backward wants them.
    """
    is_batch = wrapper_finder()

    def one(arguments: list[Any], are_slices: Sequence[bool]) -> Any:
        if are_wrapped(arguments):
            return map_slices(lambda values, flags: one(values, [*map(operator.or_, are_slices, flags)]), arguments)
        for position, (value, is_slice) in enumerate(zip(arguments, are_slices, strict=True)):
            if is_slice:
                wanted = strides(position)
                arguments[position] = value.contiguous() if wanted is None else copied(value, tuple(wanted))
            elif position in spared:
                arguments[position] = copied(value)
        check(arguments)
        return backward(arguments)

    def call(arguments: list[Any]) -> Any:
        if carry_tangents(arguments):
            raise RunError(
                "an incoming gradient of a compiled function has a tangent (torch.autograd.forward_ad), which its "
                "backward would lose. What to do: compile a function that calls torch.func.jvp of the gradient"
            )
        if is_batch(arguments):
            held = list(arguments)
            arguments.clear()
            return map_slices(one, held)
        return backward(arguments)

    return call
