"""What pointwise operations do at the edges: NaN, zeros with signs, promotion, layouts, empty and scalar tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from against_eager import assert_same_type, compiled, devices
from bitwise import check_bits

each_device = pytest.mark.parametrize("device", devices())
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
each_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)
INF, NAN = math.inf, math.nan
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, INF, -INF, NAN, 3.0, 65504.0, 1e-7]


def pairs(dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    x = torch.tensor(EDGES, dtype=dtype, device=device)
    return x.repeat_interleave(len(x)), x.repeat(len(x))


EXACT_OF_TWO: dict[str, Callable[..., Tensor]] = {
    name: getattr(torch, name)
    for name in (
        "add", "sub", "mul", "true_divide", "maximum", "minimum", "fmax", "fmin", "fmod", "remainder", "floor_divide",
        "copysign", "nextafter", "heaviside", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or",
        "logical_xor", "rsub",
    )
}  # fmt: skip
EXACT_OF_ONE: dict[str, Callable[[Tensor], Tensor]] = {
    name: getattr(torch, name)
    for name in (
        "abs", "neg", "sign", "sgn", "signbit", "floor", "ceil", "trunc", "round", "frac", "isnan", "isinf", "isfinite",
        "isposinf", "isneginf", "relu", "reciprocal", "square", "angle", "nan_to_num", "positive",
        "conj_physical", "logical_not", "real",
    )
}  # fmt: skip


@each_device
@each_float
def test_exact_functions_of_two_at_the_edges(dtype: torch.dtype, device: str) -> None:
    a, b = pairs(dtype, device)
    # Of two zeros either is the larger (IEEE 754-2008): eager's choice depends on its vector width.
    functions = dict(EXACT_OF_TWO)
    functions |= {
        name: lambda a, b, f=functions[name]: f(a, b) + 0.0 for name in ("maximum", "minimum", "fmax", "fmin")
    }
    if dtype is torch.float16 and device == "cpu":
        del functions["nextafter"]  # eager has it for the other three
    check_bits(lambda a, b: [f(a, b) for f in functions.values()], a, b, about=" ".join(functions))


@each_device
@each_float
def test_exact_functions_of_one_at_the_edges(dtype: torch.dtype, device: str) -> None:
    x = torch.tensor(EDGES * 3, dtype=dtype, device=device)
    functions = EXACT_OF_ONE | {"relu": lambda x: torch.relu(x) + 0.0}  # of two zeros either is the larger
    if device == "cuda" and dtype in (torch.float16, torch.bfloat16):
        del functions["angle"]  # eager has it for the other two
    check_bits(lambda x: [f(x) for f in functions.values()], x, about=" ".join(functions))


@each_device
@each_float
def test_bounds_that_are_no_numbers(dtype: torch.dtype, device: str) -> None:
    a, b = pairs(dtype, device)
    functions: list[Callable[..., Tensor]] = [
        lambda a, b: torch.clamp(a, b, b + 1), lambda a, b: torch.clamp(a, min=b), lambda a, b: torch.clamp(a, max=b),
        lambda a, b: a.clamp(-1, 1), lambda a, b: a.clamp(1, -1), lambda a, b: a.clamp(min=NAN),
        lambda a, b: a.clamp(-INF, INF), lambda a, b: F.hardtanh(a), lambda a, b: F.relu6(a),
        lambda a, b: F.threshold(a, 0.5, NAN), lambda a, b: torch.where(a > b, a, b), lambda a, b: F.relu(a + b),
        lambda a, b: F.leaky_relu(a, 0.5), lambda a, b: F.hardshrink(a), lambda a, b: F.softshrink(a, 0.5),
    ]  # fmt: skip
    if not a.clamp(min=NAN).isnan().all():
        del functions[5]  # eager ignores such a number on a GPU, and in torch 2.11, against its own documentation
        assert compiled(lambda a: a.clamp(min=NAN))(a).isnan().all()
    check_bits(lambda a, b: [f(a, b) + 0.0 for f in functions], a, b, about="function")


@each_device
@each_float
def test_transcendental_functions_at_the_edges(dtype: torch.dtype, device: str) -> None:
    """The same infinities and NaN, and elsewhere four roundings of the type."""
    x = torch.tensor([*EDGES, -1.0, 2.0, 0.25, -0.75, 1e-3], dtype=dtype, device=device)
    names = [
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
        "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "erf", "erfc", "erfinv", "lgamma", "digamma", "sqrt",
        "rsqrt", "sinc", "i0", "deg2rad", "rad2deg", "logit",
    ]  # fmt: skip
    functions: list[Callable[[Tensor], Tensor]] = [getattr(torch, name) for name in names]
    functions += [
        torch.special.entr,
        lambda x: torch.special.xlogy(x, x),
        lambda x: torch.logaddexp(x, -x),
    ]
    functions += [lambda x: torch.logaddexp2(x, x), lambda x: torch.hypot(x, x), lambda x: torch.atan2(x, x.flip(0))]
    functions += [lambda x: torch.special.xlog1py(x, x), lambda x: torch.pow(x, 3)]
    if dtype.itemsize > 2 or device == "cuda":  # eager on a CPU takes no root of a half, so that signs of zero differ
        functions.append(lambda x: torch.pow(x, -0.5))
    functions += [lambda x: torch.pow(2, x), lambda x: torch.ldexp(x, torch.ones_like(x)), lambda x: x ** x.flip(0)]
    eps = torch.finfo(dtype).eps
    found = compiled(lambda x: [f(x) for f in functions])(x)
    for number, (actual, function) in enumerate(zip(found, functions, strict=True)):
        eager = function(x)
        assert_same_type(actual, eager, f"function {number}")
        torch.testing.assert_close(
            actual, eager, rtol=8 * eps, atol=4 * torch.finfo(dtype).tiny + 8 * eps, equal_nan=True,
            msg=lambda text, number=number: f"function {number}: {text}",
        )  # fmt: skip


TYPES = (torch.bool, torch.uint8, torch.int16, torch.int64, torch.bfloat16, torch.float16, torch.float32, torch.float64)


@each_device
def test_promotion_of_all_pairs(device: str) -> None:
    numbers, row, scalar = (torch.tensor(x, device=device) for x in ([[1, 2, 0], [3, 1, 1]], [1, 3, 2], 3))

    def combine(a: Tensor, b: Tensor) -> list[Tensor]:
        return [a + b, a * b, torch.where(a > b, a, b), a / b, torch.hypot(a.float(), b) > 1]

    for first in TYPES:
        others = [x.to(second) for second in TYPES for x in (row, scalar)]
        check_bits(lambda a, *bs: [combine(a, b) for b in bs], numbers.to(first), *others, about=str(first))


@each_device
@pytest.mark.parametrize("number", [2, -3, 2.5, True, 0, 1e10, 1 << 40], ids=str)
def test_promotion_with_python_numbers(number: float, device: str) -> None:
    for dtype in TYPES[1:]:
        if isinstance(number, int) and not dtype.is_floating_point and not -128 <= number <= 127:
            continue  # what overflows raises or wraps, by the op
        if dtype is torch.uint8 and (number < 0 or number != int(number)):
            continue
        if abs(number) > 1e9 and dtype is torch.float16:
            continue
        x = torch.tensor([[1, 2, 0], [3, 1, 1]], device=device).to(dtype)
        check_bits(lambda x: (x + number, x * number, x == number, x.clamp(max=number), x / 8), x, about=str(dtype))
        check_bits(lambda x: (x.add(1, alpha=2), x.sub(number) if number is not True else x + x), x, about=str(dtype))


@each_device
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_numbers_are_not_rounded_to_halves_first(dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(4096, device=device).to(dtype)
    for number in (0.1, 1 / 3, 1e-5, 1000.1):
        check_bits(lambda x, n=number: x * n, x, about=f"times {number}")
        if device == "cuda":  # eager on a CPU rounds what it adds
            check_bits(lambda x, n=number: x + n, x, about=f"plus {number}")
        check_bits(lambda x, n=number: x / n, x, about=f"over {number}")
        check_bits(lambda x, n=number: x > n, x, about=f"above {number}")


@pytest.mark.gpu
def test_host_scalars_among_device_tensors() -> None:
    x = torch.randn(100, device="cuda")
    for scalar in (torch.tensor(2.5), torch.tensor(3), torch.tensor(0.1, dtype=torch.float64), torch.tensor(True)):
        check_bits(lambda x, s: (x + s, s * x, x > s, torch.where(x > 0, x, s)), x, scalar)
        check_bits(lambda x, s: x * s, x.half(), scalar)


# --- layouts ----------------------------------------------------------------------------------------------------------


def layouts(device: str) -> dict[str, Tensor]:
    torch.manual_seed(0)
    base = torch.randn(2, 3, 4, 5, device=device)
    return {
        "contiguous": base,
        "channels last": base.to(memory_format=torch.channels_last),
        "transposed": base.transpose(1, 3),
        "sliced": torch.randn(2, 6, 4, 10, device=device)[:, ::2, :, ::2],
        "expanded": torch.randn(1, 3, 1, 5, device=device).expand(2, 3, 4, 5),
        "offset": torch.randn(121, device=device)[1:].view(2, 3, 4, 5),
        "overlapping": torch.randn(30, device=device).as_strided((2, 3, 4, 5), (4, 3, 2, 1)),
        "flipped sizes of one": torch.randn(1, 3, 1, 5, device=device).to(memory_format=torch.channels_last),
    }


@each_device
def test_strides_of_one_operand(device: str) -> None:
    for name, x in layouts(device).items():
        check_bits(
            lambda x: (x * 2, torch.relu(x), x > 0, x.to(torch.float64), x.clone(), torch.zeros_like(x)), x, about=name
        )


@each_device
def test_strides_of_what_is_filled_in_place(device: str) -> None:
    for name, x in layouts(device).items():
        check_bits(lambda x: (x.clone().zero_(), x.mT.clone().zero_() > 0, x.to(torch.float16).fill_(2)), x, about=name)


@each_device
def test_strides_of_two_operands(device: str) -> None:
    given = layouts(device)
    for first, a in given.items():
        for second, b in given.items():
            if a.shape == b.shape:
                check_bits(lambda a, b: (a + b, torch.where(a > 0, a, b)), a, b, about=f"{first}, {second}:")


@each_device
def test_channels_last_of_three_dimensions(device: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 2, 4, 5, device=device).to(memory_format=torch.channels_last_3d)
    y = torch.randn(2, 3, 2, 4, 5, device=device)
    check_bits(lambda x: (x + 1, torch.relu(x)), x)
    check_bits(lambda x, y: (x + y, y + x, x * x), x, y)
    check_bits(lambda x: torch.cat([x, x], 1), x)
    check_bits(lambda x, y: x + y[:, :1], x, y)


@each_device
def test_channels_last_of_cat(device: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, 5, device=device).to(memory_format=torch.channels_last)
    y = torch.randn(2, 3, 4, 5, device=device)
    for dim in (0, 1, 2):
        check_bits(lambda x, y, d=dim: torch.cat([x, x * 2], d), x, y, about=f"both, along {dim}")
        check_bits(lambda x, y, d=dim: torch.cat([x, y], d), x, y, about=f"mixed, along {dim}")
        check_bits(lambda x, y, d=dim: torch.cat([y, x], d), x, y, about=f"mixed, along {dim}, the other first")


@each_device
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0, 2), (), (1,), (1, 1, 1)], ids=str)
def test_empty_and_scalar_tensors(shape: tuple[int, ...], device: str) -> None:
    x = torch.full(shape, 1.5, device=device)
    check_bits(
        lambda x: (x + 1, x.to(torch.int64), x > 0, torch.where(x > 0, x, 0), x.clone(), x * x.sum()),
        x,
        native=x.numel() > 0,
    )
    check_bits(lambda x: torch.cat([x.reshape(-1), x.reshape(-1)]), x, native=x.numel() > 0)


@pytest.mark.gpu
def test_more_blocks_than_one_grid_axis_holds() -> None:
    """65,535 is the limit of the second and third axis of a CUDA grid."""
    tall = torch.arange(70_000 * 33, device="cuda").view(70_000, 33)
    check_bits(lambda x: x.t().contiguous() + 1, tall)
    check_bits(lambda x: x.sum(1), tall)
    check_bits(lambda x: x.view(70_000, 3, 11).permute(1, 0, 2).contiguous() * 2, tall)


# --- what kernels do not compute with ---------------------------------------------------------------------------------


@each_device
def test_complex_numbers(device: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 4, dtype=torch.complex64, device=device)
    functions: list[Callable[[Tensor], Any]] = [
        lambda x: x + 1, lambda x: x * x, lambda x: x.abs() + 1, lambda x: x.real * 2, lambda x: x.imag + x.real,
        lambda x: x.conj() * 2, lambda x: torch.view_as_real(x) + 1, lambda x: x.angle(), lambda x: x.sgn(),
        lambda x: x.sum(), torch.exp, lambda x: x == x, lambda x: x.t().contiguous(),
        lambda x: torch.where(x.real > 0, x, 0), lambda x: torch.complex(x.real, x.real + 1),
        lambda x: x.to(torch.complex128),
        lambda x: torch.polar(x.abs(), x.angle()), lambda x: x.mean(0), lambda x: x / 2, lambda x: x @ x.t(),
    ]  # fmt: skip
    for number, function in enumerate(functions):
        torch._dynamo.reset()
        actual, eager = compiled(lambda x, f=function: f(x))(x), function(x)
        assert_same_type(actual, eager, f"function {number}")
        torch.testing.assert_close(actual, eager)


@each_device
@pytest.mark.parametrize("shape", [(300, 128), (64, 36), (33, 4096)], ids=str)
@pytest.mark.parametrize("dim", [0, 1])
def test_quotients_by_a_divisor_for_many_are_exact(device: str, shape: tuple[int, int], dim: int) -> None:
    """One reciprocal serves a row or a column; quotients are rounded as a division rounds, for divisors of any size."""
    numbers = torch.Generator().manual_seed(7)
    x = torch.randn(shape, generator=numbers) * 2.0 ** torch.randint(-90, 90, shape, generator=numbers)
    x[0, :4] = torch.tensor([math.inf, -math.inf, math.nan, -0.0])
    shared = [1, shape[1]] if dim == 0 else [shape[0], 1]
    y = torch.randn(shared, generator=numbers) * 2.0 ** torch.randint(-126, 127, shared, generator=numbers)
    ends = torch.tensor([0.0, -0.0, math.inf, math.nan, 1.0, 3.0, 2.0**127, -(2.0**-126), 1.5 * 2.0**-130, 1e-40])
    y.view(-1)[: len(ends)] = ends
    x, y = x.to(device), y.to(device)
    got, wanted = compiled(lambda x, y: x / y)(x, y), x / y
    small = wanted.abs() < 2.0**-100  # off by a bit of the last place there, as documented
    torch.testing.assert_close(got[~small], wanted[~small], rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(got[small], wanted[small], rtol=2.0**-22, atol=2.0**-148)
    assert torch.equal(got.signbit()[wanted == 0], wanted.signbit()[wanted == 0])
