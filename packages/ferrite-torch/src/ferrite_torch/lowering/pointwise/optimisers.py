"""One step of an optimiser over lists of tensors: the fused Adam ops.

Everything about one parameter is computed from what was there before the step, so the scheduler can make one kernel of
it; the tensors of a list are independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.scalar import Scalar
from ferrite_torch.lowering.builder import Builder
from ferrite_torch.lowering.elementwise import refuse_opaque
from ferrite_torch.lowering.expressions import (
    add,
    choose,
    div,
    eq,
    expm1,
    larger,
    mul,
    neg,
    sqrt,
    sub,
)
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.tensors import Point, Tensor


@dataclass(frozen=True, slots=True)
class Adam:
    """The settings of a step.

    Attributes:
        rate: the learning rate.
        betas: how much of the running mean and the running square is kept.
        decay: of the weights, added to the gradient, or taken off the weights if ``is_decoupled``.
        epsilon: added to the root of the square.
        climbs: whether the objective is maximised.
        scale: what gradients are divided by first.
        overflow: a tensor that holds 1 if the step is to change nothing.
    """

    rate: float
    betas: tuple[float, float]
    decay: float
    is_decoupled: bool
    epsilon: float
    climbs: bool
    scale: Tensor | None
    overflow: Tensor | None


@dataclass(frozen=True, slots=True)
class State:
    """The tensors of one parameter before a step; ``largest`` are the largest squares so far, where they are kept."""

    weight: Tensor
    grad: Tensor
    mean: Tensor
    square: Tensor
    largest: Tensor | None
    step: Tensor


@dataclass(frozen=True, slots=True)
class Step:
    """What a step makes of each element of a parameter; all in the type that is computed in."""

    adam: Adam
    state: State

    def grad(self, point: Point) -> Scalar:
        """Returns the gradient as given, divided by the scale."""
        value = self.state.grad.value_at(point)
        return value if self.adam.scale is None else div(value, _number(self.adam.scale, value))

    def _slope(self, point: Point) -> Scalar:
        value = neg(self.grad(point)) if self.adam.climbs else self.grad(point)
        if self.adam.is_decoupled or self.adam.decay == 0:
            return value
        return add(value, mul(self.state.weight.value_at(point), self.adam.decay))

    def mean(self, point: Point) -> Scalar:
        """Returns the running mean of the gradient."""
        kept, old = self.adam.betas[0], self.state.mean.value_at(point)
        return add(mul(old, kept), mul(self._slope(point), 1 - kept))

    def square(self, point: Point) -> Scalar:
        """Returns the running mean of the squared gradient."""
        kept, slope = self.adam.betas[1], self._slope(point)
        return add(mul(self.state.square.value_at(point), kept), mul(mul(slope, slope), 1 - kept))

    def largest(self, point: Point) -> Scalar:
        """Returns the largest running square so far."""
        assert self.state.largest is not None
        return larger(self.state.largest.value_at(point), self.square(point))

    def weight(self, point: Point) -> Scalar:
        """Returns the parameter."""
        old = self.state.weight.value_at(point)
        if self.adam.is_decoupled and self.adam.decay:
            old = sub(old, mul(old, self.adam.rate * self.adam.decay))
        size = self.square(point) if self.state.largest is None else self.largest(point)
        first, second = (self._completeness(beta, old) for beta in self.adam.betas)
        scale = add(div(sqrt(size), sqrt(second)), self.adam.epsilon)
        return sub(old, div(mul(div(self.adam.rate, first), self.mean(point)), scale))

    def _completeness(self, beta: float, like: Scalar) -> Scalar:
        """Returns ``1 - beta ** step``, which would lose its digits in early steps if it were computed so."""
        if beta == 0:
            return sc.const(1.0, like.dtype)
        return neg(expm1(mul(_number(self.state.step, like), math.log(beta))))

    def unless_overflown(self, new: Callable[[Point], Scalar], old: Tensor) -> Callable[[Point], Scalar]:
        """Returns ``new``, or what was there before if the step is to change nothing."""
        overflow = self.adam.overflow
        if overflow is None:
            return new
        return lambda point: choose(eq(_number(overflow, old.value_at(point)), 1.0), old.value_at(point), new(point))


def _number(number: Tensor, like: Scalar) -> Scalar:
    """Returns the one element of a tensor in the type of a scalar."""
    return sc.cast(number.at((ix.constant(0),) * number.ndim), like.dtype)


def _stepped(b: Builder, lists: Sequence[Sequence[Tensor]], adam: Adam) -> list[list[Tensor]]:
    """Returns the new versions of parameters, gradients, means, squares and largest squares."""
    weights, grads, means, squares, largest, steps = lists
    fakes = b.fake
    results: list[list[Tensor]] = [[], [], [], [], []]
    try:
        for k, weight in enumerate(weights):
            state = State(weight, grads[k], means[k], squares[k], largest[k] if largest else None, steps[k])
            refuse_opaque(*(x.dtype for x in (weight, grads[k], means[k], squares[k])))
            step = Step(adam, state)
            rows = [(weight, step.weight), (grads[k], step.grad), (means[k], step.mean), (squares[k], step.square)]
            if state.largest is not None:
                rows.append((state.largest, step.largest))
            for position, (old, new) in enumerate(rows):
                b.fake = fakes[position][k]
                if position == 1 and adam.scale is None:
                    results[position].append(old)
                    continue
                body = step.unless_overflown(new, old) if position != 1 else new
                results[position].append(b.loop(old.shape, old.dtype, body))
    finally:
        b.fake = fakes
    return results


def _enter(name: str, *, is_decoupled: bool) -> None:
    @lowers(f"aten.{name}.default")
    def fused(
        b: Builder,
        *lists: Sequence[Tensor],
        lr: float,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> Any:
        given = [*lists[:4], lists[4] if amsgrad else (), lists[5]]
        adam = Adam(lr, (beta1, beta2), weight_decay, is_decoupled, eps, maximize, grad_scale, found_inf)
        found = _stepped(b, given, adam)
        return found if amsgrad else [*found[:4], list(lists[4])]


_enter("_fused_adam", is_decoupled=False)
_enter("_fused_adamw", is_decoupled=True)
