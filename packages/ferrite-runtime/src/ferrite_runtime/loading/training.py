"""Training with a bundle: its forward and backward programs as one function that autograd knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from ferrite_runtime.bundles.entries import Entry, Variant
from ferrite_runtime.errors import FerriteRuntimeError, ProgramFailed, failed_program
from ferrite_runtime.formats.layouts import Layout
from ferrite_runtime.host.tensors import restride
from ferrite_runtime.loading.loaded_program import LoadedProgram


class Call(Protocol):
    """What training needs of a loaded variant: `ferrite_runtime.loading.loaded_bundle.BoundVariant`."""

    entry: Entry
    variant: Variant
    forward: LoadedProgram
    backward: LoadedProgram | None
    weights: list[Any]

    def gather(self, tensors: Sequence[Any]) -> list[Any]:
        """Returns the inputs of the forward program."""


class _Recorded(torch.autograd.Function):
    """The forward program, with the backward program as its derivative; ``primals`` are weights, then tensors."""

    @staticmethod
    def forward(ctx: Any, call: Call, *primals: Any) -> Any:
        """Returns the results, then the new values of weights; keeps what the backward wants."""
        results = list(call.forward.call_boxed(call.gather(primals[len(call.weights) :])))
        plain = call.entry.outputs + len(call.variant.mutates)
        ctx.call = call
        ctx.shapes = [getattr(primal, "shape", None) for primal in primals]
        ctx.save_for_backward(*results[plain:])
        returned = results[:plain]
        for position in call.variant.repeats:
            returned[position] = returned[position].detach()
        detached = call.variant.backward.detached  # type: ignore[union-attr]
        ctx.mark_non_differentiable(*(returned[position] for position in detached), *returned[call.entry.outputs :])
        return tuple(returned)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Returns the gradients of the primals, None where nobody wants one."""
        try:
            return _gradients(ctx.call, ctx.saved_tensors, gradients, ctx.shapes)
        except FerriteRuntimeError:
            raise
        except Exception as error:
            raise failed_program(f"the backward program {ctx.call.variant.backward.program}", error) from error


def _gradients(call: Any, saved: Sequence[Any], gradients: Sequence[Any], shapes: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the gradients of the primals, which have these shapes, behind None, which is that of the call itself.

    Raises:
        ProgramFailed: a result of the program cannot be the gradient that it is said to be.
    """
    plan, program = call.variant.backward, call.backward
    sources = {"saved": saved, "gradient": gradients}
    inputs = [
        _laid_out(sources[kind][number], declared.layout)
        for (kind, number), declared in zip(plan.takes, program.program.inputs, strict=True)
    ]
    results = program.call_boxed(inputs)
    first = {"weight": 0, "tensor": len(call.weights)}
    grads: list[Any] = [None] * (len(call.weights) + call.entry.tensors)
    for target, value in zip(plan.grads, results, strict=True):
        if target is not None:
            position = first[target[0]] + target[1]
            if value is not None and (not isinstance(value, torch.Tensor) or value.shape != shapes[position]):
                raise ProgramFailed(f"what is said to be the gradient of {target[0]} number {target[1]} cannot be")
            grads[position] = value
    return (None, *grads)


def _laid_out(tensor: Any, layout: Layout | None) -> Any:
    """Returns a tensor with the strides that a program was compiled for: autograd promises none for gradients."""
    if layout is None or layout.numbers is None or tensor.numel() == 0:
        return tensor
    shape, strides = layout.numbers
    pairs = zip(shape, strides, tensor.stride(), strict=True)
    if all(size == 1 or wanted == actual for size, wanted, actual in pairs):
        return tensor
    return restride(tensor, strides)


def run_recorded(call: Call, tensors: Sequence[Any]) -> list[Any]:
    """Returns the results of a call, recorded for differentiation; writes new values of weights back."""
    results = list(_Recorded.apply(call, *call.weights, *tensors))  # type: ignore[no-untyped-call]
    mutated = results[call.entry.outputs :]
    with torch.no_grad():
        for number, value in zip(call.variant.mutates, mutated, strict=True):
            call.weights[number].copy_(value)
    return results[: call.entry.outputs]
