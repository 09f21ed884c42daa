"""Meanings of scalar operations, conversions, combines and random numbers, against values from independent sources."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrite_ir.language.combines import COMBINES
from ferrite_ir.language.dtypes import (
    BF16,
    BOOL,
    DTYPES,
    F8E4M3FN,
    F8E4M3FNUZ,
    F8E5M2,
    F16,
    F32,
    F64,
    I8,
    I32,
    I64,
    U8,
    DType,
    dtype_named,
)
from ferrite_ir.language.ops import OPS
from ferrite_ir.language.scalar import apply, cast, const
from ferrite_ir.reference import philox
from ferrite_ir.reference.combine_semantics import lift, merge, neutral
from ferrite_ir.reference.rounding import convert, from_bits, next_float, reinterpret, round_to, to_bits
from ferrite_ir.reference.scalar_semantics import MEANINGS, RequirementError, apply_reference, constant_result

NAN, INF = math.nan, math.inf


def test_every_operation_has_a_meaning() -> None:
    assert set(MEANINGS) == set(OPS)


@pytest.mark.parametrize(
    ("dtype", "value", "rounded"),
    [
        (F32, 0.1, 0.10000000149011612),
        (F32, 3.5e38, INF),
        (F32, 1.0e-46, 0.0),
        (F16, 65519.0, 65504.0),
        (F16, 65520.0, INF),
        (F16, 2049.0, 2048.0),
        (BF16, 257.0, 256.0),
        (BF16, 259.0, 260.0),
        (BF16, 3.3961775292304601e38, INF),
        (F8E4M3FN, 17.0, 16.0),
        (F8E4M3FN, 1000.0, 448.0),
        (F8E4M3FN, 2.0**-10, 0.0),
        (F8E4M3FN, 1.1 * 2.0**-10, 2.0**-9),
        (F8E5M2, 61440.0, INF),
        (F8E5M2, 61439.0, 57344.0),
        (F8E4M3FNUZ, 300.0, NAN),
        (F8E4M3FNUZ, -0.0, 0.0),
        (I8, 200, -56),
        (U8, -1, 255),
        (I64, 2**63, -(2**63)),
    ],
)
def test_rounding(dtype: DType, value: float, rounded: float) -> None:
    assert same(round_to(value, dtype), rounded)


@pytest.mark.parametrize("dtype", [d for d in DTYPES.values() if d.is_integer], ids=str)
def test_one_beyond_the_ends_of_an_integer_type_is_the_other_end(dtype: DType) -> None:
    assert round_to(dtype.lowest - 1, dtype) == dtype.highest
    assert round_to(dtype.highest + 1, dtype) == dtype.lowest


def test_ends_of_other_types() -> None:
    assert (F16.lowest, F16.highest) == (-INF, INF)
    assert (BOOL.lowest, BOOL.highest) == (0, 1)


@pytest.mark.parametrize("dtype", [d for d in DTYPES.values() if d.is_float and d.bits <= 16], ids=str)
def test_bit_patterns_of_small_floats_are_read_back(dtype: DType) -> None:
    for bits in range(1 << dtype.bits) if dtype.bits == 8 else range(0, 1 << 16, 37):
        value = from_bits(bits, dtype)
        if not math.isnan(value):
            assert to_bits(value, dtype) == bits
            assert same(round_to(value, dtype), value)


@settings(deadline=None)
@given(st.floats(width=32, allow_nan=False))
def test_bf16_is_the_nearest_of_its_neighbours(value: float) -> None:
    rounded = float(round_to(value, BF16))
    if math.isinf(rounded):
        return
    for other in (next_float(rounded, INF, BF16), next_float(rounded, -INF, BF16)):
        assert math.isinf(other) or abs(rounded - value) <= abs(other - value)


@pytest.mark.parametrize(
    ("value", "source", "target", "result"),
    [
        (-1.9, F32, I32, -1),
        (3.0e9, F32, I32, 2**31 - 1),
        (300.0, F32, I8, 44),
        (NAN, F32, I64, 0),
        (INF, F32, I64, 2**63 - 1),
        (0.5, F32, BOOL, True),
        (NAN, F32, BOOL, True),
        (-0.0, F32, BOOL, False),
        (True, BOOL, F32, 1.0),
        (2**31, I64, I32, -(2**31)),
        (16777217, I64, F32, 16777216.0),
        (1.00000011920929, F64, BF16, 1.0),
    ],
)
def test_conversions(value: float, source: DType, target: DType, result: float) -> None:
    assert same(convert(value, source, target), result)


def test_bitcast() -> None:
    assert reinterpret(1.0, F32, I32) == 0x3F800000
    assert reinterpret(-1, I8, U8) == 255
    assert math.isnan(float(reinterpret(-1, I32, F32)))


CASES = [
    ("add", F32, (1.0, 2.0**-24), 1.0),
    ("add", I8, (100, 100), -56),
    ("div", F32, (1.0, 0.0), INF),
    ("div", F32, (1.0, -0.0), -INF),
    ("div", F32, (0.0, 0.0), NAN),
    ("floordiv", I32, (-7, 2), -4),
    ("floordiv", F32, (-7.0, 2.0), -4.0),
    ("floordiv", F32, (1.0, 0.0), INF),
    ("truncdiv", I32, (-7, 2), -3),
    ("truncdiv", F32, (-7.0, 2.0), -3.0),
    ("mod", I32, (-7, 3), 2),
    ("mod", F32, (-7.0, 3.0), 2.0),
    ("mod", F32, (-5.0, INF), INF),
    ("fmod", I32, (-7, 3), -1),
    ("fmod", F32, (-7.0, 3.0), -1.0),
    ("pow", F32, (-8.0, 1.0 / 3.0), NAN),
    ("pow", F32, (0.0, -1.0), INF),
    ("pow", F32, (NAN, 0.0), 1.0),
    ("pow", F32, (-10.0, 39.0), -INF),
    ("pow", I64, (3, 4), 81),
    ("pow", I64, (2, -1), 0),
    ("pow", I64, (-1, -3), -1),
    ("minimum", F32, (NAN, 1.0), NAN),
    ("minimum", F32, (1.0, NAN), NAN),
    ("maximum", F32, (-0.0, 0.0), 0.0),
    ("minimum", F32, (0.0, -0.0), -0.0),
    ("copysign", F32, (3.0, -0.0), -3.0),
    ("nextafter", F32, (1.0, 2.0), 1.0 + 2.0**-23),
    ("nextafter", F32, (0.0, -1.0), -(2.0**-149)),
    ("hypot", F32, (INF, NAN), INF),
    ("fma", F32, (1 + 2.0**-12, 1 + 2.0**-12, -1 - 2.0**-11), 2.0**-24),
    ("fma", F32, (1 + 2.0**-23, 1 + 2.0**-23, 2.0**-60), 1 + 2.0**-22),
    ("fma", F32, (1 + 2.0**-12, 1 + 2.0**-12, 2.0**-80), 1 + 2.0**-11 + 2.0**-23),
    ("fma", F32, (1 + 2.0**-12, 1 + 2.0**-12, -(2.0**-80)), 1 + 2.0**-11),
    ("fma", F32, (2.0**127, 2.0, -INF), -INF),
    ("fma", F64, (1 + 2.0**-30, 1 + 2.0**-30, -1 - 2.0**-29), 2.0**-60),
    ("fma", F32, (0.0, -1.0, -0.0), -0.0),
    ("fma", F32, (INF, 0.0, 1.0), NAN),
    ("atan2", F32, (0.0, -1.0), 3.1415927410125732),
    ("logaddexp", F64, (0.0, 0.0), math.log(2.0)),
    ("logaddexp", F64, (1000.0, -1000.0), 1000.0),
    ("logaddexp", F64, (-INF, -INF), -INF),
    ("logaddexp", F64, (INF, -INF), INF),
    ("logaddexp", F64, (NAN, INF), NAN),
    ("sign", F32, (-3.0,), -1.0),
    ("sign", F32, (NAN,), 0.0),
    ("relu", F32, (NAN,), NAN),
    ("relu", F32, (-1.0,), 0.0),
    ("round", F32, (2.5,), 2.0),
    ("round", F32, (-0.4,), -0.0),
    ("floor", F32, (-0.5,), -1.0),
    ("trunc", F32, (INF,), INF),
    ("sqrt", F32, (-1.0,), NAN),
    ("rsqrt", F32, (4.0,), 0.5),
    ("rsqrt", F32, (0.0,), INF),
    ("reciprocal", F32, (-0.0,), -INF),
    ("exp", F32, (100.0,), INF),
    ("exp", F64, (1000.0,), INF),
    ("expm1", F32, (1e-10,), 1.000000013351432e-10),
    ("log", F32, (0.0,), -INF),
    ("log", F32, (-1.0,), NAN),
    ("log1p", F32, (-1.0,), -INF),
    ("sinh", F64, (-1000.0,), -INF),
    ("cosh", F64, (-1000.0,), INF),
    ("acosh", F32, (0.5,), NAN),
    ("atanh", F32, (1.0,), INF),
    ("sin", F32, (INF,), NAN),
    ("sigmoid", F32, (-200.0,), 0.0),
    ("sigmoid", F64, (0.0,), 0.5),
    ("lgamma", F64, (0.0,), INF),
    ("lgamma", F64, (2.0,), 0.0),
    ("isnan", F32, (NAN,), True),
    ("isinf", F32, (-INF,), True),
    ("signbit", F32, (-0.0,), True),
    ("bitnot", I32, (5,), -6),
    ("bitnot", BOOL, (True,), False),
    ("bitxor", I32, (6, 3), 5),
    ("bitand", BOOL, (True, False), False),
    ("shl", I32, (1, 31), -(2**31)),
    ("shl", I32, (1, 32), 0),
    ("shr", I32, (-8, 1), -4),
    ("shr", I32, (-8, 40), -1),
    ("shr", U8, (200, 9), 0),
    ("eq", F32, (NAN, NAN), False),
    ("ne", F32, (NAN, NAN), True),
    ("lt", F32, (-0.0, 0.0), False),
]


@pytest.mark.parametrize(("op", "dtype", "operands", "result"), CASES, ids=[f"{c[0]}-{c[1]}-{c[2]}" for c in CASES])
def test_operations(op: str, dtype: DType, operands: tuple[float, ...], result: float) -> None:
    node = apply(op, *(const(operand, dtype) for operand in operands))
    assert same(apply_reference(node, tuple(operand.value for operand in node.args)), result)


def test_selection_and_scaling() -> None:
    node = apply("ldexp", const(1.5, F32), const(3, I32))
    assert apply_reference(node, (1.5, 3)) == 12.0
    assert apply_reference(node, (1.5, 5000)) == INF
    choice = apply("where", const(True, BOOL), const(1, I32), const(2, I32))
    assert apply_reference(choice, (False, 1, 2)) == 2


def test_constants_are_computed_only_where_that_is_defined() -> None:
    assert constant_result(apply("floordiv", const(1, I32), const(0, I32))) is None
    assert constant_result(cast(const(2.7, F32), I32)) == 2
    assert constant_result(const(1, I32)) is None


SPECIAL = [
    ("erfinv", 0.5, 0.4769362762044699),
    ("erfinv", -0.999, -2.326753765513525),
    ("erfinv", 1e-8, 8.862269254527581e-09),
    ("erfinv", 1.0, INF),
    ("erfinv", 1.5, NAN),
    ("digamma", 1.0, -0.5772156649015329),
    ("digamma", -0.5, 0.03648997397857652),
    ("digamma", -2.0, NAN),
    ("i0", 1.0, 1.2660658777520082),
    ("i0e", 50.0, 0.0565616266474541),
    ("i1", -2.0, -1.5906368546373291),
    ("i1e", 30.0, 0.07191633059864737),
    ("j0", 5.0, -0.1775967713143383),
    ("j1", 5.0, -0.3275791375914652),
    ("y0", 5.0, -0.3085176252490338),
    ("y1", 5.0, 0.1478631433912268),
    ("y0", 0.0, -INF),
    ("y1", -1.0, NAN),
    ("j0", INF, NAN),
    ("k0", 0.0, INF),
    ("k1", 1.0, 0.6019072301972346),
    ("k1e", 1.0, 1.636153486263258),
    ("airy_ai", -2.0, 0.22740742820168558),
    ("ndtri", 0.975, 1.959963984540054),
    ("ndtri", 0.0, -INF),
    ("ndtri", 1.5, NAN),
    ("erfcx", 100.0, 0.005641613782989433),
    ("erfcx", -30.0, INF),
    ("j0", 500.0, -0.03410055688073200),
]


@pytest.mark.parametrize(("name", "x", "expected"), SPECIAL)
def test_special_functions(name: str, x: float, expected: float) -> None:
    given = MEANINGS[name](x)
    assert same(given, expected) or given == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "operands", "expected"),
    [
        ("zeta", (2.0, 1.0), 1.6449340668482264),
        ("zeta", (3.0, -0.5), 8.0 * 1.0517997902646449 - 8.0),
        ("zeta", (1.0, 2.0), INF),
        ("zeta", (2.0, -3.0), INF),
        ("zeta", (2.5, -0.5), NAN),
        ("zeta", (0.5, 1.0), NAN),
        ("igamma", (1.0, 1.0), 0.6321205588285577),
        ("igammac", (1.0, 1.0), 0.36787944117144233),
        ("igamma", (0.0, 1.0), 1.0),
        ("igammac", (INF, 1.0), 1.0),
        ("igamma", (-1.0, 1.0), NAN),
        ("chebyshev_t", (0.5, 3.0), -1.0),
        ("chebyshev_u", (0.5, 2.9), 0.0),
        ("chebyshev_v", (2.0, 1.0), 3.0),
        ("chebyshev_w", (2.0, 1.0), 5.0),
        ("laguerre_l", (2.0, 2.0), -1.0),
        ("legendre_p", (0.5, 2.0), -0.125),
        ("legendre_p", (-1.0, 3.0), -1.0),
        ("legendre_p", (0.5, -1.0), 0.0),
        ("gcd", (-12, 18), 6),
        ("gcd", (0, 0), 0),
    ],
)
def test_functions_of_two_numbers(name: str, operands: tuple[float, float], expected: float) -> None:
    given = MEANINGS[name](*operands)
    assert same(given, expected) or given == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_hermite_polynomials_end_earlier_in_narrower_types() -> None:
    assert apply_reference(apply("hermite_h", const(0.5, F32), const(3.0, F32)), (0.5, 3.0)) == -5.0
    assert math.isnan(apply_reference(apply("hermite_he", const(0.5, F32), const(3.0, F32)), (0.5, 129.0)))
    assert not math.isnan(apply_reference(apply("hermite_he", const(0.5, F64), const(3.0, F64)), (0.5, 129.0)))


def test_philox_known_answers() -> None:
    """Checks against the test vectors of the authors' library (Random123, kat_vectors, philox4x32 10)."""
    assert philox.philox(0, 0) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)


def test_random_numbers() -> None:
    draws = [philox.rand(7, offset) for offset in range(2000)]
    assert all(0.0 <= x < 1.0 and struct.unpack("<f", struct.pack("<f", x))[0] == x for x in draws)
    assert abs(sum(draws) / 2000 - 0.5) < 0.03
    normal = [philox.randn(7, offset) for offset in range(2000)]
    assert abs(sum(normal) / 2000) < 0.1
    assert abs(sum(x * x for x in normal) / 2000 - 1.0) < 0.1
    integers = [philox.randint64(7, offset, -3, 4) for offset in range(2000)]
    assert set(integers) == set(range(-3, 4))
    assert philox.rand(7, 1 << 33) != philox.rand(7, 0)
    assert philox.rand(1 << 40, 0) != philox.rand(0, 0)


FLOATS = st.floats(-100, 100).map(lambda x: round(x, 3)) | st.sampled_from([NAN, INF, -INF, 0.0])


@pytest.mark.parametrize("combine", [name for name in COMBINES if name not in ("any", "all", "xor")])
@settings(deadline=None)
@given(values=st.lists(FLOATS, min_size=3, max_size=6), cut=st.integers(1, 2))
def test_combines_are_associative(combine: str, values: list[float], cut: int) -> None:
    lifted = [lift(combine, (x, i) if COMBINES[combine].lifted == 2 else (x,)) for i, x in enumerate(values)]

    def total(states: list[tuple[float, ...]]) -> tuple[float, ...]:
        result = states[0]
        for state in states[1:]:
            result = merge(combine, result, state)
        return result

    if combine in ("welford", "online_softmax") and any(not math.isfinite(x) for x in values):
        return  # their parts depend on the order there; what is made of them is NaN all the same
    whole, parts = total(lifted), merge(combine, total(lifted[:cut]), total(lifted[cut:]))
    for a, b in zip(whole, parts, strict=True):
        assert same(a, b) or a == pytest.approx(b, rel=1e-9, abs=1e-9)


def test_extremes_and_their_positions() -> None:
    assert merge("argmax", (3.0, 5), (3.0, 2)) == (3.0, 2)
    assert merge("argmin", (NAN, 5), (-INF, 2))[1] == 5
    assert merge("cummax", (3.0, 1), (3.0, 2)) == (3.0, 2)
    assert lift("welford", (4.0,)) == (4.0, 0.0, 1.0)
    assert merge("online_softmax", (1.0, 1.0), (3.0, 1.0)) == (3.0, pytest.approx(1.0 + math.exp(-2.0)))
    assert neutral("max", F32) == (-INF,)
    with pytest.raises(ValueError, match="argmax of no values"):
        neutral("argmax", F32)


def test_dtype_names() -> None:
    assert dtype_named("bf16") is BF16
    with pytest.raises(ValueError, match="unknown dtype 'f7'; known: bool"):
        dtype_named("f7")


def same(a: float, b: float) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return (type(a) is type(b) and a == b) or (a == b and not isinstance(a, float))


def test_what_never_holds_is_no_constant() -> None:
    value = const(3, I32)
    assert constant_result(apply("require_index", const(True, BOOL), value)) == 3
    assert constant_result(apply("require_index", const(False, BOOL), value)) is None
    with pytest.raises(RequirementError, match="index out of bounds"):
        apply_reference(apply("require_index", const(False, BOOL), value), (False, 3))
