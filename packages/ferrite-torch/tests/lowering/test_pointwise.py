"""Pointwise ops: formulas, promotion, broadcasting, and what integers and bools do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

aten = torch.ops.aten
ALL = (torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8)
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
OF_ONE = [
    "isnan", "isinf", "isfinite", "isposinf", "isneginf", "signbit", "logical_not", "square", "nan_to_num", "abs",
    "sign", "floor", "ceil", "trunc", "round",
]  # fmt: skip
OF_TWO = [
    "logical_and", "logical_or", "logical_xor", "maximum", "minimum", "fmax", "fmin", "eq", "ne", "lt", "le", "gt",
    "ge", "heaviside", "atan2", "copysign", "add", "sub", "mul", "rsub",
]  # fmt: skip
MATHEMATICAL = [
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
    "cosh", "tanh", "asinh", "acosh", "atanh", "sqrt", "rsqrt", "reciprocal", "sigmoid", "erf", "erfc", "lgamma",
    "digamma",
]  # fmt: skip
SPECIAL = [
    "i0", "i0e", "i1", "i1e", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "entr", "sinc", "ndtr", "expit",
    "gammaln", "erfinv", "spherical_bessel_j0", "modified_bessel_i1", "erfcx", "ndtri", "log_ndtr", "airy_ai",
    "modified_bessel_k0", "modified_bessel_k1", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1",
]  # fmt: skip


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Returns small numbers of a type, some of them negative where it has such."""
    if dtype is torch.bool:
        return torch.rand(shape) > 0.5
    if dtype.is_floating_point:
        return (torch.randn(shape) * 3).to(dtype)
    return torch.randint(0 if dtype is torch.uint8 else -5, 6, shape).to(dtype)


def nonzero(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    x = numbers(dtype, *shape)
    return torch.where(x == 0, torch.ones_like(x), x)


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("name", ["floor_divide", "remainder", "fmod", "true_divide"])
def test_division(agree: Any, name: str, dtype: torch.dtype) -> None:
    agree(getattr(torch, name), numbers(dtype, 4, 5), nonzero(dtype, 5))
    agree(lambda x: getattr(torch, name)(x, 3), numbers(dtype, 4, 5))


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("mode", [None, "trunc", "floor"])
def test_division_with_rounding(agree: Any, mode: str | None, dtype: torch.dtype) -> None:
    agree(lambda x, y: torch.div(x, y, rounding_mode=mode), numbers(dtype, 4, 5), nonzero(dtype, 4, 5))


def test_float_division_by_zero_and_of_infinities(agree: Any) -> None:
    edges = torch.tensor([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 5.0])
    for function in (torch.floor_divide, torch.true_divide, torch.fmod, torch.remainder):
        agree(lambda x, y, f=function: f(x[:, None], y), edges, edges)


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("name", OF_ONE)
def test_of_one_operand(agree: Any, name: str, dtype: torch.dtype) -> None:
    agree(getattr(torch, name), numbers(dtype, 3, 4))


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("name", OF_TWO)
def test_of_two_operands(agree: Any, name: str, dtype: torch.dtype) -> None:
    agree(getattr(torch, name), numbers(dtype, 3, 4), numbers(dtype, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("name", MATHEMATICAL)
def test_mathematical_functions(agree: Any, name: str, dtype: torch.dtype) -> None:
    agree(getattr(torch, name), numbers(dtype, 12).abs(), tolerance=1e-5 if dtype is not torch.bfloat16 else 2e-2)


@pytest.mark.parametrize("name", SPECIAL)
def test_special_functions(agree: Any, name: str) -> None:
    agree(getattr(torch.special, name), torch.linspace(0, 0.95, 12), tolerance=1e-5)


@pytest.mark.parametrize("name", ["xlogy", "logaddexp", "logaddexp2", "hypot", "nextafter"])
def test_functions_of_two_floats(agree: Any, name: str) -> None:
    agree(getattr(torch, name), torch.randn(20) * 5, torch.randn(20).abs(), tolerance=1e-5)


@pytest.mark.parametrize("name", ["zeta", "gammainc", "gammaincc"])
def test_special_functions_of_two_floats(agree: Any, name: str) -> None:
    agree(getattr(torch.special, name), torch.rand(12) * 3 + 1.1, torch.rand(12) * 3 + 0.1, tolerance=1e-5)


POLYNOMIALS = [
    "chebyshev_polynomial_t", "shifted_chebyshev_polynomial_u", "hermite_polynomial_h", "hermite_polynomial_he",
    "laguerre_polynomial_l", "legendre_polynomial_p",
]  # fmt: skip


@pytest.mark.parametrize("family", POLYNOMIALS)
def test_polynomials(agree: Any, family: str) -> None:
    function = getattr(torch.special, family)
    x, degrees = torch.linspace(-1.5, 1.5, 9), torch.arange(9)
    agree(function, x, degrees, tolerance=1e-5)
    agree(lambda x: function(x, 4), x, tolerance=1e-5)
    agree(lambda n: function(0.3, n), degrees, tolerance=1e-5)


@pytest.mark.parametrize("order", [0, 1, 2, 5])
def test_polygamma(agree: Any, order: int) -> None:
    agree(lambda x: torch.polygamma(order, x), torch.rand(12) * 5 + 0.1, tolerance=1e-5)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_mantissa_and_exponent(agree: Any, dtype: torch.dtype) -> None:
    agree(lambda x: tuple(torch.frexp(x)), torch.tensor([0.0, -0.0, 1.0, -0.3, 7.5, 1e-7, 6e4, 2.0**-20], dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_next_number_of_halves(agree: Any, dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, -0.0, 1.0, -1.0, 3.0, -0.5, 6e-8], dtype=dtype)
    agree(lambda x: torch.nextafter(x[:, None], x), x)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (torch.float32, torch.int16),
        (torch.int16, torch.float32),
        (torch.uint8, torch.int64),
        (torch.float64, torch.uint8),
    ],
    ids=str,
)
def test_bits_as_a_type_of_another_width(agree: Any, source: torch.dtype, target: torch.dtype) -> None:
    x = torch.randint(0, 100, (3, 32), dtype=torch.uint8).view(source)
    agree(lambda x: x.view(target) + 0, x)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
def test_common_divisors(agree: Any, dtype: torch.dtype) -> None:
    agree(torch.gcd, numbers(dtype, 5, 6), numbers(dtype, 6))
    agree(torch.lcm, nonzero(dtype, 5, 6), nonzero(dtype, 6))


def test_bounds_of_integers_lose_their_fractions(agree: Any) -> None:
    agree(lambda x: F.hardtanh(x, -1.5, 2.5), torch.arange(-5, 6))


def test_logaddexp_of_infinities(agree: Any) -> None:
    edges = torch.tensor([math.inf, -math.inf, 0.0, math.nan])
    agree(lambda x: torch.logaddexp(x[:, None], x), edges)
    agree(lambda x: torch.xlogy(x[:, None], x), edges)


ACTIVATIONS = [
    "gelu", "silu", "relu", "sigmoid", "tanh", "hardtanh", "hardswish", "hardsigmoid", "leaky_relu", "elu", "softplus",
    "mish", "relu6", "celu", "selu", "softshrink", "hardshrink", "logsigmoid",
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_and_their_gradients(agree: Any, name: str, dtype: torch.dtype) -> None:
    function = getattr(F, name)

    def gradient(x: torch.Tensor) -> torch.Tensor:
        leaf = x.detach().requires_grad_()
        y = function(leaf)
        return torch.autograd.grad(y, leaf, torch.full_like(y, 0.5))[0]

    x = numbers(dtype, 5, 6)
    agree(function, x, tolerance=2e-2 if dtype is torch.bfloat16 else 1e-5)
    agree(gradient, x, tolerance=2e-2 if dtype is torch.bfloat16 else 1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x: aten.gelu_backward(x, x * 2, approximate="tanh"),
        F.glu,
        lambda x: F.threshold(x, 0.1, 20.0),
        lambda x: torch.logit(x.sigmoid(), 1e-3),
        lambda x: torch.logit(x.sigmoid(), 0.6),
        torch.logit,
        lambda x: aten.logit_backward(x, x.sigmoid(), 0.2),
        lambda x: F.prelu(x, x[0]),
        torch.frac,
        lambda x: torch.round(x, decimals=2),
        lambda x: torch.round(x * 100, decimals=-1),
        lambda x: torch.lerp(x, x * 2, 0.7),
        lambda x: torch.lerp(x, x * 2, x.sigmoid()),
        lambda x: torch.addcmul(x, x + 1, x + 2, value=0.5),
        lambda x: torch.addcdiv(x, x + 1, x.abs() + 1, value=0.5),
        lambda x: torch.add(x, x[0], alpha=2.5),
        lambda x: torch.rsub(x, 2, alpha=3),
        lambda x: torch.clamp(x, -1, 0.5),
        lambda x: torch.clamp(x, max=0.5),
        lambda x: torch.clamp(x, x[0] - 1, x[0] + 1),
        lambda x: x.masked_fill(x > 0, -math.inf),
        lambda x: torch.where(x > 0, x, 2),
        lambda x: torch.special.xlog1py(x, x.abs()),
        lambda x: torch.mvlgamma(x.abs() + 4, 3),
        torch.deg2rad,
        torch.angle,
    ],
)
def test_functions_with_parameters(agree: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    agree(function, torch.randn(4, 6), tolerance=1e-5)


@pytest.mark.parametrize("exponent", [2, 3, 0.5, -0.5, -1, -2, 0, 1, 2.5])
def test_powers(agree: Any, exponent: float) -> None:
    agree(lambda x: x**exponent, torch.rand(9) + 0.1, tolerance=1e-5)
    agree(lambda x: torch.pow(exponent, x), torch.randn(9), tolerance=1e-4) if exponent > 0 else None


def test_powers_of_integers(agree: Any) -> None:
    x = torch.tensor([-3, -1, 0, 1, 2, 7])
    agree(lambda x: x**5, x)
    agree(lambda x: x**0.5, x.abs(), tolerance=1e-5)
    agree(torch.pow, x, torch.tensor([3, 4, 0, 9, 11, 2]))
    agree(lambda x: torch.float_power(x, 2), x)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8], ids=str)
def test_bits_and_shifts(agree: Any, dtype: torch.dtype) -> None:
    x = numbers(dtype, 6)
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        agree(getattr(torch, name), x, numbers(dtype, 6))
    agree(torch.bitwise_not, x)
    for name in ("bitwise_left_shift", "bitwise_right_shift"):
        agree(getattr(torch, name), x, torch.tensor([0, 1, 2, 3, 4, 7]).to(dtype))


def test_arithmetic_of_bools(agree: Any) -> None:
    x, y = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    for function in (torch.add, torch.mul, torch.bitwise_and, torch.bitwise_xor, torch.maximum, torch.eq, torch.lt):
        agree(function, x, y)
    agree(torch.bitwise_not, x)
    agree(lambda x: x + 1, x)
    agree(lambda x: x * 2.5, x)


class TestPromotion:
    def test_tensors_without_dims_count_only_for_their_category(self, agree: Any) -> None:
        agree(torch.add, numbers(torch.bfloat16, 3), torch.tensor(2.5))
        agree(torch.mul, numbers(torch.int64, 3), torch.tensor(2.5))
        agree(torch.gt, numbers(torch.int32, 3), torch.tensor(1.5))

    def test_numbers_are_compared_as_they_are_stored(self, agree: Any) -> None:
        x = torch.full((3,), 0.1, dtype=torch.bfloat16)
        agree(lambda x: (x == 0.1, x > 0.1, x >= 0.1), x)

    def test_integers_compared_with_fractions(self, agree: Any) -> None:
        agree(lambda x: (x > 0.5, x <= 1.5, x == 2.5), torch.arange(4))

    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    def test_narrow_floats_are_computed_wide_and_rounded_once(self, agree: Any, dtype: torch.dtype) -> None:
        agree(lambda x: x * 2.3 + 1, numbers(dtype, 5), tolerance=2e-2)

    def test_mixed_types(self, agree: Any) -> None:
        agree(lambda x, y, z: x * y + z, numbers(torch.int64, 3, 1), numbers(torch.bfloat16, 4), torch.rand(3, 4))


@pytest.mark.parametrize("target", [torch.bfloat16, torch.float64, torch.int32, torch.bool, torch.uint8], ids=str)
def test_conversions(agree: Any, target: torch.dtype) -> None:
    agree(lambda x: x.to(target), torch.rand(7) * 5)
    agree(lambda x: x.to(target), torch.randint(0, 5, (7,)))


def test_same_bits_as_another_type(agree: Any) -> None:
    agree(lambda x: x.view(torch.int32), torch.randn(5))
    agree(lambda x: x.view(torch.float16), torch.randn(5, dtype=torch.bfloat16))


def test_results_lie_as_eagers_do(agree: Any) -> None:
    agree(lambda x: x + 1, torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last))
    agree(lambda x: x.t() * 2, torch.randn(4, 5))
    agree(lambda x: x.clone(memory_format=torch.channels_last), torch.randn(2, 3, 4, 5))
    agree(lambda x: x.t().contiguous(), torch.randn(4, 5))


def test_complex_numbers_stay_with_the_library(lower_one: Any) -> None:
    module = lower_one(torch.abs, torch.randn(3, dtype=torch.complex64))
    assert [op for op, _ in module.externs] == ["aten.abs.default"]


def test_ops_on_lists(agree: Any) -> None:
    left, right = [torch.randn(3, 4), torch.randn(5)], [torch.rand(3, 4) + 1, torch.rand(5) + 1]
    agree(lambda a, b: torch._foreach_add(a, b, alpha=2), left, right)
    agree(lambda a, b: torch._foreach_mul(a, [2.0, 3.0]), left, right)
    agree(lambda a, b: torch._foreach_addcdiv(a, b, b, value=0.5), left, right)
    agree(lambda a, b: torch._foreach_lerp(a, b, 0.3), left, right)
    agree(lambda a, b: torch._foreach_sqrt(b), left, right)
    agree(lambda a, b: torch._foreach_norm(b), left, right, tolerance=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mish_over_its_whole_domain(agree, dtype: torch.dtype) -> None:
    x = torch.tensor(
        [-math.inf, -200.0, -90.0, -20.0, -1.0, -1e-6, 0.0, 1e-6, 1.0, 19.9, 20.1, 45.0, 400.0], dtype=dtype
    )
    agree(torch.nn.functional.mish, x)
    agree(torch.ops.aten.mish_backward, torch.linspace(0.5, 2.0, 12, dtype=dtype), x[1:])
