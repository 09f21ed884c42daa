"""The instructions of compiled kernels: doubles stay doubles, floats stay floats, constants keep their bits."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slow

Emit = Callable[..., Any]
Read = Callable[..., str]

# A double that is no float32, and what Triton 3.6 would make of it if it were written bare.
EXACT, ROUNDED = "0d3FB999999999999A", "0d3FB99999A0000000"


def one(body: str, dtype: str = "f64", result: str = "") -> str:
    inputs = f"a: {dtype}[1000], b: {dtype}[1000], c: bool[1000]"
    return f"graph @f({inputs}) -> (y) {{\n  y: {result or dtype}[1000] = loop [d0 < 1000] {body}\n}}"


@pytest.mark.parametrize(
    "body",
    [
        "add(a[d0], f64(0.1))",
        "sub(f64(0.1), a[d0])",
        "mul(a[d0], f64(0.1))",
        "div(a[d0], f64(0.1))",
        "where(gt(a[d0], f64(0.1)), a[d0], b[d0])",
        "where(c[d0], a[d0], f64(0.1))",
        "where(c[d0], f64(0.1), f64(0.3))",
        "maximum(a[d0], f64(0.1))",
        "relu(sub(a[d0], f64(0.1)))",
        "fmod(a[d0], f64(0.1))",
        "masked(c[d0], a[d0], f64(0.1))",
        "add(cast.f64(cast.f32(a[d0])), f64(0.1))",
        "f64(0.1)",
    ],
)
def test_double_constants_keep_their_bits(emit: Emit, read_ptx: Read, body: str) -> None:
    ptx = read_ptx(emit(one(body)))
    # A constant that is only moved may be written as an integer, one that is subtracted with the other sign.
    assert (
        EXACT in ptx or EXACT.replace("0d3", "0dB") in ptx or str(struct.unpack("<q", struct.pack("<d", 0.1))[0]) in ptx
    )
    assert ROUNDED not in ptx


@pytest.mark.parametrize("form", ["persistent", "looped"])
@pytest.mark.parametrize("combine", ["sum", "prod", "max", "logaddexp"])
def test_doubles_are_reduced_as_doubles(emit: Emit, read_ptx: Read, combine: str, form: str) -> None:
    text = (
        "graph @f(x: f64[40, 3000]) -> (y) {\n"
        f"  y: f64[40] = reduce {combine} [d0 < 40 | r0 < 3000] mul(x[d0, r0], f64(0.1))\n}}"
    )
    ptx = read_ptx(emit(text, form=form))
    assert EXACT in ptx
    assert not re.search(r"cvt\S*\.f64\.f32", ptx)


@pytest.mark.parametrize(
    "body",
    [
        "mul(add(a[d0], f32(0.1)), f32(1e-30))",
        "where(gt(a[d0], f32(1e-40)), a[d0], f32(1e-41))",
        "div(maximum(minimum(a[d0], f32(6.0)), f32(0.0)), f32(6.0))",
        "mul(exp(a[d0]), sigmoid(b[d0]))",
        "mul(erf(a[d0]), tanh(b[d0]))",
        "rsqrt(add(log1p(a[d0]), sqrt(b[d0])))",
        "pow(a[d0], f32(2.5))",
    ],
)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_floats_are_never_widened_to_doubles(emit: Emit, read_ptx: Read, body: str, dtype: str) -> None:
    if dtype == "bf16":
        widened = re.sub(r"([ab])\[d0\]", r"cast.f32(\1[d0])", body)
        body = f"cast.bf16({widened})"
    assert ".f64" not in read_ptx(emit(one(body, dtype)))


@pytest.mark.parametrize(
    ("body", "dtype", "number"),
    [
        ("add(a[d0], i64(5000000000))", "i64", "5000000000"),
        ("bitxor(a[d0], i64(-5000000001))", "i64", "-5000000001"),
        ("where(c[d0], a[d0], i64(5000000000))", "i64", "5000000000"),
        ("bitxor(a[d0], u32(4000000000))", "u32", r"-294967296|4000000000"),
        ("bitxor(a[d0], u64(18000000000000000000))", "u64", r"-446744073709551616|18000000000000000000"),
        ("maximum(a[d0], u64(18000000000000000000))", "u64", r"-446744073709551616|18000000000000000000"),
    ],
)
def test_long_integers_keep_their_bits(emit: Emit, read_ptx: Read, body: str, dtype: str, number: str) -> None:
    assert re.search(rf"(?<![\d])(?:{number})(?!\d)", read_ptx(emit(one(body, dtype))))


@pytest.mark.parametrize(("dtype", "signed"), [("i32", True), ("u32", False), ("i64", True), ("u64", False)])
def test_comparisons_with_numbers_know_the_sign(emit: Emit, read_ptx: Read, dtype: str, signed: bool) -> None:  # noqa: FBT001
    ptx = read_ptx(emit(one(f"gt(a[d0], {dtype}(100))", dtype, "bool")))
    assert re.search(r"setp\.g[te]\.s" if signed else r"setp\.(?:g[te]\.u|hi)", ptx)
