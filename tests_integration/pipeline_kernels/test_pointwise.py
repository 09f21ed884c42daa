"""Every scalar operation, in every type it takes, against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ferrite_ir.language.ops import OPS, REQUIREMENTS
from ferrite_triton.printing.spellings import ROWS
from ferrite_triton.tile.operations import VARIANTS

NAMES = {
    "bool": torch.bool,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
    "u32": torch.uint32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
}
FLOATS = ("f32", "f64")
INTEGERS = ("i8", "i16", "i32", "i64", "u8")
NUMBERS = FLOATS + INTEGERS
COUNT = 67

special = torch.special


def trunc_div(a: Any, b: Any) -> Any:
    return torch.div(a, b, rounding_mode="trunc")


def floor_div(a: Any, b: Any) -> Any:
    return torch.div(a, b, rounding_mode="floor")


# Operations that torch calls by the same name.
NAMED_ALIKE = [
    "floor", "ceil", "trunc", "round", "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p",
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc",
    "erfinv", "lgamma", "digamma", "sigmoid",
]  # fmt: skip
# The meaning of each operation in torch, and the types to try it in.
UNARY: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "neg": (torch.neg, NUMBERS),
    "abs": (torch.abs, NUMBERS),
    "sign": (torch.sign, NUMBERS),
    "relu": (torch.relu, NUMBERS),
    "reciprocal": (torch.reciprocal, FLOATS),
    "logical_not": (torch.logical_not, ("bool",)),
    "bitnot": (torch.bitwise_not, (*INTEGERS, "bool")),
    "isnan": (torch.isnan, FLOATS),
    "isinf": (torch.isinf, FLOATS),
    "signbit": (torch.signbit, FLOATS),
    **{name: (getattr(torch, name), FLOATS) for name in NAMED_ALIKE},
    **{name: (getattr(special, name), FLOATS) for name in ("i0", "i0e", "i1", "i1e")},
    "j0": (special.bessel_j0, FLOATS),
    "j1": (special.bessel_j1, FLOATS),
    "y0": (special.bessel_y0, FLOATS),
    "y1": (special.bessel_y1, FLOATS),
}
BINARY: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "add": (torch.add, NUMBERS),
    "sub": (torch.sub, NUMBERS),
    "mul": (torch.mul, NUMBERS),
    "div": (torch.div, FLOATS),
    "minimum": (torch.minimum, (*NUMBERS, "bool")),
    "maximum": (torch.maximum, (*NUMBERS, "bool")),
    "floordiv": (floor_div, NUMBERS),
    "truncdiv": (trunc_div, NUMBERS),
    "mod": (torch.remainder, NUMBERS),
    "fmod": (torch.fmod, NUMBERS),
    "pow": (torch.pow, FLOATS),
    "atan2": (torch.atan2, FLOATS),
    "hypot": (torch.hypot, FLOATS),
    "logaddexp": (torch.logaddexp, FLOATS),
    "copysign": (torch.copysign, FLOATS),
    "nextafter": (torch.nextafter, FLOATS),
    "bitand": (torch.bitwise_and, (*INTEGERS, "bool")),
    "bitor": (torch.bitwise_or, (*INTEGERS, "bool")),
    "bitxor": (torch.bitwise_xor, (*INTEGERS, "bool")),
    "shl": (torch.bitwise_left_shift, INTEGERS),
    "shr": (torch.bitwise_right_shift, INTEGERS),
    **{name: (getattr(torch, name), (*NUMBERS, "bool")) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
}
# Special functions and polynomials are held to their digits in tests_integration/semantics.
SPECIAL = {
    "airy_ai",
    "erfcx",
    "gcd",
    "igamma",
    "igammac",
    "k0",
    "k0e",
    "k1",
    "k1e",
    "ndtri",
    "zeta",
    "chebyshev_t",
    "chebyshev_u",
    "chebyshev_v",
    "chebyshev_w",
    "hermite_h",
    "hermite_he",
    "laguerre_l",
    "legendre_p",
}
# Multiply-adds are tested with optimizers (semantics/), requirements with the lowerings that have them (ferrite-torch).
ELSEWHERE = {"where", "masked", "ldexp", "rand", "randn", "randint64", "fma"} | SPECIAL | set(REQUIREMENTS)
BESSEL = ("j0", "j1", "y0", "y1")
NONZERO_DIVISOR = {"floordiv", "truncdiv", "mod", "fmod"}
CASES = [(op, dtype) for table in (UNARY, BINARY) for op, (_, dtypes) in table.items() for dtype in dtypes]


def sample(dtype: str, seed: int, count: int = COUNT) -> torch.Tensor:
    """Returns numbers of a type, the interesting ones among them."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == "bool":
        return torch.randint(0, 2, (count,), generator=generator).bool()
    if dtype in INTEGERS:
        info = torch.iinfo(NAMES[dtype])
        values = torch.randint(max(-20, info.min), 21, (count,), generator=generator)
        values[:2] = torch.tensor([info.min, info.max])
        return values.to(NAMES[dtype])
    values = torch.randn(count, generator=generator, dtype=torch.float64) * 3
    edges = torch.tensor([0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), 0.5, 2.5, -0.5])
    values[: len(edges)] = edges.roll(seed)
    return values.to(NAMES[dtype])


def loop_text(op: str, dtype: str, result: str, arity: int) -> str:
    names = "ab"[:arity]
    inputs = ", ".join(f"{name}: {dtype}[{COUNT}]" for name in names)
    operands = ", ".join(f"{name}[d0]" for name in names)
    return f"graph @f({inputs}) -> (y) on cpu {{\n  y: {result}[{COUNT}] = loop [d0 < {COUNT}] {op}({operands})\n}}"


def test_every_operation_has_text_and_a_test() -> None:
    assert set(ROWS) == {*OPS, *VARIANTS}
    assert set(UNARY) | set(BINARY) | ELSEWHERE == set(OPS)


@pytest.mark.parametrize(("op", "dtype"), CASES, ids=str)
def test_operation(run: Callable[..., Any], op: str, dtype: str) -> None:
    meaning, _ = UNARY.get(op) or BINARY[op]
    inputs = [sample(dtype, seed) for seed in range(OPS[op].arity)]
    if op in NONZERO_DIVISOR and dtype in INTEGERS:
        inputs[1] = torch.where(inputs[1] == 0, 3, inputs[1]).to(NAMES[dtype])
        inputs[0][0] = 7  # the lowest integer divided by -1 has no answer
    if op in ("shl", "shr") and dtype == "u8":
        inputs[1] = inputs[1] % 16
    expected = meaning(*inputs)
    result = next(name for name, known in NAMES.items() if known == expected.dtype)
    (found,) = run(loop_text(op, dtype, result, OPS[op].arity), *inputs)
    tolerance = {"f32": 1e-5, "f64": 1e-12}.get(dtype, 0.0)
    if op in BESSEL and dtype == "f64":
        tolerance = 1e-5  # torch's own approximations are off by up to 7e-7, in double as well
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    if dtype in FLOATS and op in ("neg", "relu", "mul", "copysign", "floor", "floordiv", "round", "trunc", "minimum"):
        known = ~expected.isnan() & (expected != 0 if op in ("relu", "minimum") else True)
        assert torch.equal(torch.signbit(found)[known], torch.signbit(expected)[known])


@pytest.mark.parametrize("dtype", ["i32", "i64", "u8"])
def test_power_of_integers(run: Callable[..., Any], dtype: str) -> None:
    base = torch.tensor(
        [-3, -1, 0, 1, 2, 7, -1, 1, 5, 3, -2] if dtype != "u8" else [3, 1, 0, 1, 2, 7, 1, 1, 5, 3, 2]
    ).to(NAMES[dtype])
    exponent = torch.tensor([3, 5, 0, 9, 10, 2, 4, 30, 13, 1, 7]).to(NAMES[dtype])
    text = (
        f"graph @f(a: {dtype}[11], b: {dtype}[11]) -> (y) on cpu {{\n"
        f"  y: {dtype}[11] = loop [d0 < 11] pow(a[d0], b[d0])\n}}"
    )
    assert torch.equal(run(text, base, exponent)[0], torch.pow(base, exponent))


def test_power_with_negative_exponents(run: Callable[..., Any]) -> None:
    base, exponent = torch.tensor([1, -1, -1, 2, -5, 3]), torch.tensor([-4, -3, -2, -1, -1, 2])
    text = "graph @f(a: i64[6], b: i64[6]) -> (y) on cpu {\n  y: i64[6] = loop [d0 < 6] pow(a[d0], b[d0])\n}"
    assert run(text, base, exponent)[0].tolist() == [1, -1, 1, 0, 0, 9]


@pytest.mark.parametrize("count", [0, 3, 7, 8, 31, -1, 100])
@pytest.mark.parametrize("dtype", ["i8", "i32", "i64", "u8"])
def test_shifts_by_constants(run: Callable[..., Any], dtype: str, count: int) -> None:
    if dtype == "u8" and count < 0:
        pytest.skip("no such number")
    a = sample(dtype, 3)
    for op, meaning in (("shl", torch.bitwise_left_shift), ("shr", torch.bitwise_right_shift)):
        text = (
            f"graph @f(a: {dtype}[{COUNT}]) -> (y) on cpu {{\n"
            f"  y: {dtype}[{COUNT}] = loop [d0 < {COUNT}] {op}(a[d0], {dtype}({count}))\n}}"
        )
        assert torch.equal(run(text, a)[0], meaning(a, torch.full_like(a, count)))


SOURCES = ("bool", "i8", "i32", "i64", "u8", "f16", "bf16", "f32", "f64")


@pytest.mark.parametrize("target", [*SOURCES, "f8e4m3fn", "f8e5m2"])
@pytest.mark.parametrize("source", SOURCES)
def test_cast(run: Callable[..., Any], source: str, target: str) -> None:
    kinds = NAMES | {"f8e4m3fn": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}
    values = (
        sample(source, 1)
        if source in ("bool", *INTEGERS)
        else torch.linspace(-100, 100, COUNT, dtype=torch.float64).to(NAMES[source])
    )
    if target.startswith("f8"):
        values = values.clamp(-100, 100) if source != "bool" else values
    if target == "u8" and source not in INTEGERS:
        values = values.to(NAMES[source])
    text = (
        f"graph @f(a: {source}[{COUNT}]) -> (y) on cpu {{\n"
        f"  y: {target}[{COUNT}] = loop [d0 < {COUNT}] cast.{target}(a[d0])\n}}"
    )
    (found,) = run(text, values)
    expected = values.to(kinds[target])
    assert torch.equal(
        found.float() if target.startswith("f8") else found, expected.float() if target.startswith("f8") else expected
    )


def test_cast_of_nan_is_true(run: Callable[..., Any]) -> None:
    text = "graph @f(a: f32[3]) -> (y) on cpu {\n  y: bool[3] = loop [d0 < 3] cast.bool(a[d0])\n}"
    assert run(text, torch.tensor([float("nan"), 0.0, -0.0]))[0].tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("source", "target"), [("f32", "i32"), ("i64", "f64"), ("bf16", "i16"), ("u8", "i8"), ("f16", "i16")]
)
def test_bitcast(run: Callable[..., Any], source: str, target: str) -> None:
    values = sample(source, 2)
    text = (
        f"graph @f(a: {source}[{COUNT}]) -> (y) on cpu {{\n"
        f"  y: {target}[{COUNT}] = loop [d0 < {COUNT}] bitcast.{target}(a[d0])\n}}"
    )
    assert torch.equal(run(text, values)[0].view(torch.uint8), values.view(torch.uint8))


CONSTANTS = [
    ("f32", "inf"),
    ("f32", "-inf"),
    ("f32", "nan"),
    ("f32", "-0.0"),
    ("f64", "0.1"),
    ("f64", "-0.0"),
    ("f64", "1e-300"),
    ("bf16", "-0.0"),
]
CONSTANTS += [
    ("i64", str(2**63 - 1)),
    ("i64", str(-(2**63))),
    ("u8", "255"),
    ("i8", "-128"),
    ("f32", "3e38"),
    ("f16", "0.1"),
]


@pytest.mark.parametrize(("dtype", "number"), CONSTANTS)
def test_constant(run: Callable[..., Any], dtype: str, number: str) -> None:
    (found,) = run(f"graph @f() -> (y) on cpu {{\n  y: {dtype}[5] = loop [d0 < 5] {dtype}({number})\n}}")
    value = float(number) if dtype[0] in "fb" else int(number)
    expected = torch.full((5,), value, dtype=NAMES[dtype])
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    if dtype[0] in "fb" and number != "nan":
        assert torch.equal(torch.signbit(found), torch.signbit(expected))


@pytest.mark.parametrize("dtype", ["f32", "f64", "i64", "bf16", "bool"])
def test_where_and_constants_in_it(run: Callable[..., Any], dtype: str) -> None:
    a, condition = sample(dtype, 4), sample("bool", 5)
    number = {"bool": "true"}.get(dtype, f"{dtype}({0.1 if dtype[0] in 'fb' else 3})")
    text = (
        f"graph @f(c: bool[{COUNT}], a: {dtype}[{COUNT}]) -> (y, z) on cpu {{\n"
        f"  y: {dtype}[{COUNT}] = loop [d0 < {COUNT}] where(c[d0], a[d0], {number})\n"
    )
    text += f"  z: {dtype}[{COUNT}] = loop [d0 < {COUNT}] where(c[d0], {number}, {number})\n}}"
    y, z = run(text, condition, a)
    value = torch.tensor(True if dtype == "bool" else 0.1 if dtype[0] in "fb" else 3, dtype=NAMES[dtype])
    torch.testing.assert_close(y, torch.where(condition, a, value), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(z, value.expand(COUNT))


def test_ldexp(run: Callable[..., Any]) -> None:
    a, n = sample("f32", 1), torch.arange(COUNT) % 9 - 4
    text = (
        f"graph @f(a: f32[{COUNT}], n: i64[{COUNT}]) -> (y) on cpu {{\n"
        f"  y: f32[{COUNT}] = loop [d0 < {COUNT}] ldexp(a[d0], n[d0])\n}}"
    )
    torch.testing.assert_close(run(text, a, n)[0], torch.ldexp(a, n), equal_nan=True)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_half_types_round_once_at_the_store(run: Callable[..., Any], dtype: str) -> None:
    a, b = sample(dtype, 1), sample(dtype, 2)
    text = f"""graph @f(a: {dtype}[{COUNT}], b: {dtype}[{COUNT}]) -> (y) on cpu {{
  t: {dtype}[{COUNT}] = loop [d0 < {COUNT}] cast.{dtype}(mul(cast.f32(a[d0]), cast.f32(b[d0])))
  y: {dtype}[{COUNT}] = loop [d0 < {COUNT}] cast.{dtype}(add(cast.f32(t[d0]), cast.f32(b[d0])))
}}"""
    expected = (a.float() * b.float() + b.float()).to(NAMES[dtype])
    torch.testing.assert_close(run(text, a, b)[0], expected, rtol=0, atol=0, equal_nan=True)


def test_several_results_and_shared_values(run: Callable[..., Any]) -> None:
    a, b = sample("f32", 1), sample("f32", 2)
    text = f"""graph @f(a: f32[{COUNT}], b: f32[{COUNT}]) -> (y, z) on cpu {{
  t: f32[{COUNT}] = loop [d0 < {COUNT}] mul(a[d0], b[d0])
  y: f32[{COUNT}] = loop [d0 < {COUNT}] add(t[d0], f32(1.0))
  z: f32[{COUNT}] = loop [d0 < {COUNT}] sub(f32(1.0), t[d0])
}}"""
    y, z = run(text, a, b)
    torch.testing.assert_close(y, a * b + 1, equal_nan=True)
    torch.testing.assert_close(z, 1 - a * b, equal_nan=True)
