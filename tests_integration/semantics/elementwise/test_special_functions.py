"""Special functions through the whole pipeline, against multiprecision arithmetic over their whole domains.

Eager is no judge here: torch's float64 Bessel and Airy functions are off by 1e-6, its incomplete gamma functions by
1e-9 beyond 20. What holds is a bound in roundings of the result, and what conditions a function amplifies its
argument's rounding by where that is more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from against_eager import compiled, devices, observed_work, own_only
from ferrite_ir.reference.scalar_semantics import MEANINGS

each_device = pytest.mark.parametrize("device", devices())
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
INF, NAN = math.inf, math.nan
COUNT = 60


def spread(low: float, high: float) -> Tensor:
    return torch.rand(COUNT, dtype=torch.float64) * (high - low) + low


def powers(low: float, high: float) -> Tensor:
    return 10.0 ** spread(low, high)


def assert_right(actual: Tensor, name: str, operands: tuple[Tensor, ...], ulps: float, floor: float = 0.0) -> None:
    """Fails unless results are within so many roundings of the reference, or ``floor`` away in float64's terms."""
    wide = [x.double().cpu().reshape(-1).tolist() for x in operands]
    for point, found in zip(zip(*wide, strict=True), actual.double().cpu().reshape(-1).tolist(), strict=True):
        wanted = float(torch.tensor(MEANINGS[name](*point), dtype=torch.float64).to(actual.dtype))
        if math.isnan(wanted) or math.isinf(wanted) or wanted == 0.0:
            assert found == wanted or (math.isnan(wanted) and math.isnan(found)), (
                f"{name}{point}: {found}, not {wanted}"
            )
            continue
        eps, tiny = torch.finfo(actual.dtype).eps, torch.finfo(actual.dtype).tiny
        allowed = ulps * eps * max(abs(wanted), tiny) + floor * torch.finfo(torch.float64).eps
        assert abs(found - wanted) <= allowed, f"{name}{point}: {found!r}, not {wanted!r}"


# name: torch's function, arguments in the ordinary range, roundings of float64, absolute error where it oscillates.
UNARY: dict[str, tuple[Callable[[Tensor], Tensor], list[Callable[[], Tensor]], float, float]] = {
    "j0": (torch.special.bessel_j0, [lambda: spread(-40, 40), lambda: powers(-10, 3)], 4, 4),
    "j1": (torch.special.bessel_j1, [lambda: spread(-40, 40), lambda: powers(-10, 3)], 4, 4),
    "y0": (torch.special.bessel_y0, [lambda: spread(0, 40), lambda: powers(-10, 3)], 4, 4),
    "y1": (torch.special.bessel_y1, [lambda: spread(0, 40), lambda: powers(-10, 3)], 4, 4),
    "k0": (torch.special.modified_bessel_k0, [lambda: powers(-30, 1.9)], 8, 0),
    "k1": (torch.special.modified_bessel_k1, [lambda: powers(-30, 1.9)], 8, 0),
    "k0e": (torch.special.scaled_modified_bessel_k0, [lambda: powers(-30, 3)], 4, 0),
    "k1e": (torch.special.scaled_modified_bessel_k1, [lambda: powers(-30, 3)], 4, 0),
    "airy_ai": (torch.special.airy_ai, [lambda: spread(-12, 12)], 200, 100),
    "ndtri": (torch.special.ndtri, [lambda: spread(0, 1), lambda: powers(-30, 0)], 8, 0),
    "erfcx": (torch.special.erfcx, [lambda: spread(-5, 30), lambda: powers(-10, 6)], 32, 0),
}
EDGES = [0.0, -0.0, 0.5, 1.0, -1.0, 2.0, 5.0, INF, -INF, NAN, 1e-30]


@own_only("the bounds are ours")
@each_device
@each_dtype
@pytest.mark.parametrize("name", UNARY)
def test_function_of_one_number(name: str, dtype: torch.dtype, device: str) -> None:
    function, samples, ulps, floor = UNARY[name]
    torch.manual_seed(0)
    x = torch.cat([torch.tensor(EDGES, dtype=torch.float64), *(sample() for sample in samples)]).to(dtype)
    with observed_work() as work:
        actual = compiled(lambda x: function(x))(x.to(device))  # noqa: PLW0108  # dynamo sees no bare built-in
    assert (work.kernels, work.extern_calls) == (1, 0)
    # float32 is rounded from float64: one rounding, and a little where that lies by a tie.
    assert_right(actual, name, (x,), ulps if dtype is torch.float64 or name == "erfcx" else 0.51, floor)


BINARY: dict[str, tuple[Callable[..., Tensor], list[Callable[[], tuple[Tensor, Tensor]]], float]] = {
    "zeta": (
        torch.special.zeta,
        [
            lambda: (spread(1.01, 12), powers(-2, 3)),
            lambda: (torch.randint(2, 9, (COUNT,)).double(), spread(-8, 0)),
        ],
        512,
    ),
    "igamma": (
        torch.special.gammainc,
        [
            lambda: (powers(-3, 2), powers(-3, 2)),
            lambda: (powers(1, 3), spread(0.8, 1.2)),
            lambda: (powers(-15, 0), powers(-5, 1)),
        ],
        1024,
    ),
    "igammac": (
        torch.special.gammaincc,
        [
            lambda: (powers(-3, 2), powers(-3, 2)),
            lambda: (powers(1, 3), spread(0.8, 1.2)),
            lambda: (powers(-15, 0), powers(-5, 1)),
        ],
        1024,
    ),
}


@own_only("the bounds are ours")
@each_device
@each_dtype
@pytest.mark.parametrize("name", BINARY)
def test_function_of_two_numbers(name: str, dtype: torch.dtype, device: str) -> None:
    function, samples, ulps = BINARY[name]
    torch.manual_seed(0)
    ends = torch.tensor([0.0, 0.5, 1.0, -1.0, -2.5, 2.0, 3.0, INF, -INF, NAN], dtype=torch.float64)
    pairs = [(ends.repeat_interleave(len(ends)), ends.repeat(len(ends))), *(sample() for sample in samples)]
    first, second = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    if name != "zeta":
        second[-2 * COUNT : -COUNT] *= first[-2 * COUNT : -COUNT]
    a, x = first.to(dtype), second.to(dtype)
    if name == "zeta":
        kept = ~(a.isinf() | x.isinf())  # limits that torch has no values for
        a, x = a[kept], x[kept]
    with observed_work() as work:
        actual = compiled(lambda a, x: function(a, x))(a.to(device), x.to(device))  # noqa: PLW0108
    assert (work.kernels, work.extern_calls) == (1, 0)
    assert_right(actual, name, (a, x), ulps if dtype is torch.float64 else 0.51)


@own_only("eager rounds float32 differently near the poles")
@each_device
@each_dtype
@pytest.mark.parametrize("order", [1, 2, 3, 8, 40])
def test_polygamma(order: int, dtype: torch.dtype, device: str) -> None:
    import mpmath

    torch.manual_seed(0)
    x = torch.cat([spread(-9, 12), powers(-3, 4), torch.tensor([0.0, -1.0, -7.0])]).to(dtype)
    actual = compiled(lambda x: torch.polygamma(order, x))(x.to(device))
    sign = (-1.0) ** (order + 1) * math.factorial(order)
    for point, found in zip(x.double().tolist(), actual.double().cpu().tolist(), strict=True):
        if point <= 0 and point == math.floor(point):
            assert found == math.copysign(INF, sign)
            continue
        # By the recurrence, from where the series converges fast.
        with mpmath.workdps(60 + int(order * math.log10(max(point, 20.0)))):
            shift = max(0, math.ceil(20 - point))
            terms = [(mpmath.mpf(point) + k) ** -(order + 1) for k in range(shift)]
            rest = mpmath.zeta(order + 1, mpmath.mpf(point) + shift)
            wanted = float(sign * (mpmath.fsum(terms) + rest))
            size = abs(sign) * float(mpmath.fsum(abs(term) for term in terms)) + abs(wanted)
        rounded = float(torch.tensor(wanted, dtype=torch.float64).to(dtype))
        if math.isinf(rounded) or abs(rounded) < torch.finfo(dtype).tiny:
            assert found == pytest.approx(rounded, abs=torch.finfo(dtype).tiny)
        else:
            # Between two poles of an odd derivative the terms cancel: 64 roundings of their sizes.
            limit = 64 * (order + 1) * torch.finfo(torch.float64).eps * size + 0.51 * torch.finfo(dtype).eps * abs(
                wanted
            )
            assert abs(found - wanted) <= limit, f"polygamma({order}, {point}): {found!r}, not {wanted!r}"


POLYNOMIALS = [
    *(f"{stem}chebyshev_polynomial_{kind}" for stem in ("", "shifted_") for kind in "tuvw"),
    "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p",
]  # fmt: skip


@each_device
@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomial(name: str, device: str) -> None:
    """By the recurrences of torch: equal to them up to the order of rounding."""
    function: Any = getattr(torch.special, name)
    torch.manual_seed(0)
    x = torch.cat([spread(-1, 1), spread(-3, 3), torch.tensor([0.0, 1.0, -1.0, 0.5, 2.0, INF, NAN])]).to(device)
    n = torch.cat(
        [torch.randint(-1, 30, (COUNT,)), torch.randint(-1, 9, (COUNT,)), torch.tensor([3, 4, 5, 0, 1, 2, 1])]
    )
    n = n.double().to(device)
    for call, arguments in (
        (function, (x, n)),
        (lambda x: function(x, 5), (x,)),
        (lambda n: function(0.3, n), (n,)),
        (lambda x, n: function(x[:, None], n), (x[:8], n[:9])),
    ):
        with observed_work() as work:
            actual = compiled(lambda *given, call=call: call(*given))(*arguments)
        assert work.extern_calls == 0
        torch.testing.assert_close(actual, call(*arguments), rtol=1e-12, atol=1e-12, equal_nan=True)


@each_device
def test_degree_of_many_elements_is_each_its_own(device: str) -> None:
    """Degrees that differ within a tile, in a size that fills no tile, where masked elements must not loop."""
    torch.manual_seed(0)
    x, n = torch.rand(1031, dtype=torch.float64, device=device), torch.randint(0, 200, (1031,), device=device).double()
    called = compiled(lambda x, n: torch.special.legendre_polynomial_p(x, n))  # noqa: PLW0108
    actual = called(x, n)
    torch.testing.assert_close(actual, torch.special.legendre_polynomial_p(x, n), rtol=1e-9, atol=1e-12)
    assert torch.equal(actual[:1], called(x[:1], n[:1]))


@each_device
def test_digamma_is_right_near_its_poles_and_zeros(device: str) -> None:
    """Terms of the reflection and of the recurrence cancel there, in float32 to a handful of digits."""
    torch.manual_seed(0)
    poles = -torch.arange(0, 12.0).repeat_interleave(8)
    zeros = torch.tensor([1.4616321, -0.5040831, -1.5734985, -2.6107209, -3.6352935])
    x = torch.cat([poles + torch.randn(poles.shape) * 0.01, zeros, zeros + 1e-3, torch.rand(200) * 24 - 12])
    actual = compiled(lambda x: torch.digamma(x))(x.to(device))  # noqa: PLW0108
    assert_right(actual, "digamma", (x,), 1, 8)


@each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_gradients_of_special_functions(dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(0)
    x = (torch.rand(50, device=device) * 3 + 0.1).to(dtype)

    def differentiated(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        leaf = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(function(leaf).sum(), leaf)
        return gradient

    half = dtype is not torch.float32
    functions: list[Callable[[Tensor], Tensor]] = [
        torch.digamma,
        torch.lgamma,
        lambda x: torch.polygamma(2, x),
        lambda x: torch.special.xlog1py(x, x),
        torch.sinc,
        *([] if half else [lambda x: torch.special.ndtri(x / 4), torch.special.erfcx, torch.special.log_ndtr]),
        *(
            []
            if half and device == "cuda"
            else [
                lambda x: torch.special.gammainc(torch.full_like(x, 2.5), x),
                lambda x: torch.special.gammaincc(torch.full_like(x, 2.5), x),
            ]
        ),
        *([] if half else [torch.special.i0e, torch.special.i1, torch.special.i1e, torch.special.entr]),
    ]
    for function in functions:
        with observed_work() as work:
            actual = differentiated(compiled(lambda x, function=function: function(x)), x)
        assert work.extern_calls == 0
        wide = differentiated(function, x.double())
        eager = (differentiated(function, x).double() - wide).abs().max().item()
        allowed = 2 * eager + 4 * torch.finfo(dtype).eps * wide.abs().max().item()
        assert (actual.double() - wide).abs().max().item() <= allowed
