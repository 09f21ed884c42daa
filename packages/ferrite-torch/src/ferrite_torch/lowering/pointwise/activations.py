"""Formulas of activation functions and their gradients.

Arguments are in the order of the op's schema: scalar expressions where the op takes tensors, Python numbers where it
takes parameters.
"""

from __future__ import annotations

import math

from ferrite_ir.language import scalar as sc
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.reference.rounding import wrap
from ferrite_torch.lowering.expressions import (
    absolute,
    add,
    both,
    choose,
    div,
    either,
    erf,
    exp,
    expm1,
    ge,
    gt,
    larger,
    le,
    log,
    log1p,
    lt,
    mul,
    neg,
    sigmoid,
    smaller,
    sub,
)

_ROOT_HALF = math.sqrt(0.5)
_TANH_SCALE = math.sqrt(2.0 / math.pi)
_TANH_CUBIC = 0.044715


def gelu(x: Scalar, approximate: str = "none") -> Scalar:
    if approximate == "tanh":
        return mul(x, _tanh_gate(x))
    return mul(mul(x, 0.5), add(erf(mul(x, _ROOT_HALF)), 1))


def _tanh_gate(x: Scalar) -> Scalar:
    """Returns ``(1 + tanh(u)) / 2`` as ``sigmoid(2 u)``: less than half of the instructions, and nothing cancels."""
    return sigmoid(mul(add(x, mul(mul(mul(x, x), x), _TANH_CUBIC)), 2 * _TANH_SCALE))


def gelu_backward(grad: Scalar, x: Scalar, approximate: str = "none") -> Scalar:
    if approximate == "tanh":
        gate = _tanh_gate(x)
        inner = mul(add(mul(mul(x, x), 3 * _TANH_CUBIC), 1), 2 * _TANH_SCALE)
        slope = mul(mul(x, mul(gate, sub(1, gate))), inner)
        return mul(grad, add(gate, slope))
    cumulative = mul(add(erf(mul(x, _ROOT_HALF)), 1), 0.5)
    density = mul(exp(mul(mul(x, x), -0.5)), 1 / math.sqrt(2 * math.pi))
    return mul(grad, add(cumulative, mul(x, density)))


def silu(x: Scalar) -> Scalar:
    return mul(x, sigmoid(x))


def silu_backward(grad: Scalar, x: Scalar) -> Scalar:
    gate = sigmoid(x)
    return mul(grad, mul(gate, add(mul(x, sub(1, gate)), 1)))


def sigmoid_backward(grad: Scalar, y: Scalar) -> Scalar:
    return mul(grad, mul(y, sub(1, y)))


def tanh_backward(grad: Scalar, y: Scalar) -> Scalar:
    return mul(grad, sub(1, mul(y, y)))


def threshold(x: Scalar, limit: float, value: float) -> Scalar:
    if x.dtype.is_integer:  # torch drops the fractions, and takes numbers modulo the size of the type
        limit, value = (wrap(int(number), x.dtype) for number in (limit, value))
    return choose(le(x, limit), value, x)


def threshold_backward(grad: Scalar, x: Scalar, limit: float) -> Scalar:
    return choose(le(x, limit), 0, grad)


def hardtanh(x: Scalar, low: float = -1, high: float = 1) -> Scalar:
    if x.dtype.is_integer:  # torch drops the fractions of the bounds
        low, high = int(low), int(high)
    return smaller(larger(x, low), high)


def hardtanh_backward(grad: Scalar, x: Scalar, low: float, high: float) -> Scalar:
    return choose(either(le(x, low), ge(x, high)), 0, grad)


def relu6(x: Scalar) -> Scalar:
    return hardtanh(x, 0, 6)


def hardsigmoid(x: Scalar) -> Scalar:
    return div(hardtanh(add(x, 3), 0, 6), 6)


def hardsigmoid_backward(grad: Scalar, x: Scalar) -> Scalar:
    return choose(both(gt(x, -3), lt(x, 3)), mul(grad, 1 / 6), 0)


def hardswish(x: Scalar) -> Scalar:
    return div(mul(x, hardtanh(add(x, 3), 0, 6)), 6)


def hardswish_backward(grad: Scalar, x: Scalar) -> Scalar:
    middle = mul(grad, add(div(x, 3), 0.5))
    return choose(le(x, -3), 0, choose(lt(x, 3), middle, grad))


def leaky_relu(x: Scalar, slope: float = 0.01) -> Scalar:
    return choose(gt(x, 0), x, mul(x, slope))


def leaky_relu_backward(grad: Scalar, x: Scalar, slope: float, is_result: bool = False) -> Scalar:
    return choose(gt(x, 0), grad, mul(grad, slope))


def prelu(x: Scalar, weight: Scalar) -> Scalar:
    return choose(gt(x, 0), x, mul(weight, x))


def elu(x: Scalar, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Scalar:
    return choose(gt(x, 0), mul(x, scale), mul(expm1(mul(x, input_scale)), alpha * scale))


def elu_backward(grad: Scalar, alpha: float, scale: float, input_scale: float, is_result: bool, x: Scalar) -> Scalar:
    if is_result:
        below = mul(grad, mul(add(x, alpha * scale), input_scale))
    else:
        below = mul(grad, mul(exp(mul(x, input_scale)), alpha * scale * input_scale))
    return choose(le(x, 0), below, mul(grad, scale))


def celu(x: Scalar, alpha: float = 1) -> Scalar:
    return elu(x, alpha, 1, 1 / alpha)


def selu(x: Scalar) -> Scalar:
    return elu(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


def softplus(x: Scalar, beta: float = 1, limit: float = 20) -> Scalar:
    scaled = mul(x, beta)
    return choose(gt(scaled, limit), x, div(log1p(exp(scaled)), beta))


def softplus_backward(grad: Scalar, x: Scalar, beta: float, limit: float) -> Scalar:
    scaled = mul(x, beta)
    return choose(gt(scaled, limit), grad, mul(grad, sigmoid(scaled)))


def mish(x: Scalar) -> Scalar:
    return mul(x, _tanh_of_softplus(x))


def _tanh_of_softplus(x: Scalar) -> Scalar:
    """Returns ``tanh(log(1 + e))`` with ``e = exp(x)``, which is ``n / (n + 2)`` with ``n = e * (e + 2)``.

    It is as exact, and takes a third of the instructions. Above 20 it is 1 in all types.
    """
    grown = exp(x)
    square = mul(grown, add(grown, 2))
    return choose(gt(x, 20), 1, div(square, add(square, 2)))


def mish_backward(grad: Scalar, x: Scalar) -> Scalar:
    bent = _tanh_of_softplus(x)
    return mul(grad, add(bent, mul(mul(x, sigmoid(x)), sub(1, mul(bent, bent)))))


def softshrink(x: Scalar, limit: float = 0.5) -> Scalar:
    """Returns ``x`` moved towards zero by ``limit``; NaN stays."""
    above = choose(gt(x, limit), sub(x, limit), mul(x, 0))
    return choose(lt(x, -limit), add(x, limit), above)


def hardshrink(x: Scalar, limit: float = 0.5) -> Scalar:
    return choose(both(ge(x, -limit), le(x, limit)), 0, x)


def shrink_backward(grad: Scalar, x: Scalar, limit: float) -> Scalar:
    return choose(both(ge(x, -limit), le(x, limit)), 0, grad)


def log_sigmoid(x: Scalar) -> Scalar:
    return sub(smaller(x, 0), log1p(exp(neg(absolute(x)))))


def log_sigmoid_backward(grad: Scalar, x: Scalar, buffer: Scalar) -> Scalar:
    """Returns the gradient; ``buffer`` of the forward is not needed."""
    return mul(grad, sigmoid(neg(x)))


def logit(x: Scalar, eps: float | None = None) -> Scalar:
    if eps is not None:
        # One bound or the other, in this order: an eps of more than one half has the lower above the upper.
        x = choose(lt(x, eps), eps, choose(gt(x, 1 - eps), 1 - eps, x))
    return log(div(x, sub(1, x)))


def logit_backward(grad: Scalar, x: Scalar, eps: float | None = None) -> Scalar:
    low = 0.0 if eps is None else eps
    slope = div(grad, mul(x, sub(1, x)))
    outside = sc.const(math.nan if eps is None else 0.0, x.dtype)
    return choose(either(lt(x, low), gt(x, 1 - low)), outside, slope)


def glu_gate(value: Scalar, gate: Scalar) -> Scalar:
    return mul(value, sigmoid(gate))
