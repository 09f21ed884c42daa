"""Symbolic sizes: arithmetic, text, proofs, and programs that run at several sizes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrite_ir.language import index as ix
from ferrite_ir.language import sizes
from ferrite_ir.language.dtypes import F32
from ferrite_ir.language.graph import TensorType, row_major
from ferrite_ir.language.index import Dim
from ferrite_ir.passes import PIPELINE
from ferrite_ir.reference.evaluator import EvaluationError, evaluate
from ferrite_ir.text.expression_parser import parse_index
from ferrite_ir.text.parser import parse_graph
from ferrite_ir.verification.verifier import verify

N, M = sizes.symbol("n"), sizes.symbol("m")


def size_expressions() -> st.SearchStrategy[Any]:
    leaves = st.one_of(st.sampled_from([N, M]), st.integers(1, 6))
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(lambda p: sizes.add(*p)),
            st.tuples(inner, inner).map(lambda p: sizes.mul(*p)),
            st.tuples(inner, st.integers(1, 5)).map(lambda p: sizes.floordiv(*p)),
            st.tuples(inner, st.integers(-3, 3)).map(lambda p: sizes.mul(*p)),
        ),
        max_leaves=6,
    )


DOWN, EITHER = sizes.symbol("down", None, -1), sizes.symbol("either", None, None)


def test_sizes_that_their_bounds_leave_one_value_are_numbers() -> None:
    few, any_size = sizes.symbol("few", 3, 4), sizes.symbol("any_size", 2)
    assert sizes.ceildiv(few, 2) == 2
    assert sizes.ceildiv(sizes.ceildiv(few, 2), 2) == 1
    assert sizes.minimum(sizes.ceildiv(few, 2), any_size) == 2
    assert sizes.maximum(few // 5, 1) == 1
    assert sizes.mul(any_size, few // 3) is any_size
    assert isinstance(few // 4, sizes.Symbolic)


@given(size_expressions(), st.integers(-7, -1), st.integers(-9, 9).filter(bool), st.integers(1, 9), st.integers(1, 9))
def test_quotients_by_negative_sizes(size: Any, down: int, either: int, n: int, m: int) -> None:
    values = {"n": n, "m": m, "down": down, "either": either}
    number = sizes.evaluate(size, values)
    for divisor, value in ((DOWN, down), (-DOWN, -down), (EITHER, either), (3 * DOWN, 3 * down), (-4, -4)):
        for numerator, above in ((size, number), (-size, -number), (size - 1023, number - 1023), (-1023, -1023)):
            quotient, least = sizes.floordiv(numerator, divisor), sizes.ceildiv(numerator, divisor)
            assert sizes.evaluate(quotient, values) == above // value
            assert sizes.evaluate(least, values) == -(-above // value)
            for found, is_found in ((quotient, above // value), (least, -(-above // value))):
                low, high = sizes.bounds(found)
                assert low is None or low <= is_found
                assert high is None or is_found <= high
                for limit in (-1, 0, 1):
                    assert not sizes.is_provably_at_most(found, limit) or is_found <= limit
                    assert not sizes.is_provably_at_most(limit, found) or limit <= is_found


def test_a_quotient_by_a_negative_size_is_written_over_a_positive_one() -> None:
    assert sizes.floordiv(-1023, DOWN) == sizes.floordiv(1023, -DOWN)
    assert sizes.bounds(sizes.floordiv(-1023, DOWN)) == (0, 1023)
    assert sizes.bounds(sizes.floordiv(7, EITHER)) == (-7, 7)


@given(size_expressions())
@settings(max_examples=150, deadline=None)
def test_text_of_a_size_is_read_back(size: Any) -> None:
    assert sizes.parse_size(sizes.text(size)) == size
    assert parse_index(sizes.text(size), symbols=["n", "m"]) is ix.constant(size)


@given(size_expressions(), size_expressions(), st.integers(1, 9), st.integers(1, 9))
@settings(max_examples=150, deadline=None)
def test_operations_agree_with_integers(a: Any, b: Any, n: int, m: int) -> None:
    values = {"n": n, "m": m}
    left, right = sizes.evaluate(a, values), sizes.evaluate(b, values)
    assert sizes.evaluate(sizes.add(a, b), values) == left + right
    assert sizes.evaluate(sizes.mul(a, b), values) == left * right
    if right > 0:
        assert sizes.evaluate(sizes.floordiv(a, b), values) == left // right
        assert sizes.evaluate(sizes.ceildiv(a, b), values) == -(-left // right)
        exact = sizes.quotient(a, b)
        assert exact is None or sizes.evaluate(exact, values) * right == left
    if sizes.is_provably_at_most(a, b):
        assert left <= right


def test_static_results_are_plain_integers() -> None:
    assert type(sizes.add(N, sizes.mul(-1, N))) is int
    assert type(sizes.floordiv(sizes.mul(4, N), N)) is int
    assert sizes.quotient(sizes.mul(4, N), sizes.mul(2, N)) == 2
    assert sizes.ceildiv(9, 4) == 3


def test_rounding_up_is_written_as_a_floor() -> None:
    assert sizes.ceildiv(N, 64) == sizes.floordiv(sizes.add(N, 63), 64)


@pytest.mark.parametrize(
    ("a", "b", "holds"),
    [(1, N, True), (N, sizes.add(N, 1), True), (N, 4, False), (N, sizes.mul(2, N), True), (2, N, False)],
)
def test_proofs(a: Any, b: Any, *, holds: bool) -> None:
    assert sizes.is_provably_at_most(a, b) is holds


def test_reshape_of_symbolic_shapes_simplifies_away() -> None:
    dims = Dim("i", N), Dim("j", 8)
    flat = ix.linearize(tuple(dim.index for dim in dims), (8, 1))
    assert ix.delinearize(flat, (N, 8)) == tuple(dim.index for dim in dims)
    merged = Dim("f", sizes.mul(N, 8))
    there = ix.delinearize(merged.index, (N, 8))
    assert ix.linearize(there, (8, 1)) is merged.index


def test_layout_with_a_symbolic_stride() -> None:
    type_ = TensorType(F32, (N, 64), (1, N))
    assert type_.strides != row_major(type_.shape)
    assert sizes.text(type_.storage_size) == "64*n"
    assert row_major((2, N, M)) == (sizes.mul(N, M), M, 1)


TEXT = """
graph @f(x: f32[n, m]) -> (y, s, t) where m: size >= 1, n: size >= 1 {
  v: f32[m, n] = loop [i < m, j < n] mul(x[j, i], f32(2.0))
  w: f32[n*m]  = loop [i < n*m] v[i // n, i % n]
  y: f32[n, m] = loop [i < n, j < m] masked(lt(index.i64(j), index.i64(m - 1)), x[i, j + 1], f32(0.0))
  s: f32[]     = reduce sum [ | r < n*m] w[r]
  t: f32[2*n]  = loop [i < 2*n] x[i % n, 0]
}
"""


@pytest.mark.parametrize(("n", "m"), list(itertools.product([1, 3], [1, 4])))
def test_program_runs_at_several_sizes(n: int, m: int) -> None:
    graph = parse_graph(TEXT)
    assert verify(graph) == ()
    x = [[float(10 * i + j) for j in range(m)] for i in range(n)]
    y, s, t = evaluate(graph, [x])
    assert y == [[*row[1:], 0.0] for row in x]
    assert s == 2.0 * sum(map(sum, x))
    assert t == [row[0] for row in x] * 2
    assert evaluate(PIPELINE.run(graph), [x]) == [y, s, t]


def test_inlining_knows_symbolic_extents() -> None:
    after = PIPELINE.run(parse_graph(TEXT))
    assert "w" not in after.values
    assert "v" not in after.values


def test_size_that_no_input_shows() -> None:
    graph = parse_graph("graph @f(x: f32[2*n]) -> (y) where n: size >= 1 {\n  y: f32[n] = loop [i < n] x[i*2]\n}")
    with pytest.raises(EvaluationError, match="symbolic size n has no value"):
        evaluate(graph, [[1.0, 2.0, 3.0, 4.0]])
    assert evaluate(graph, [[1.0, 2.0, 3.0, 4.0]], symbols={"n": 2}) == [[1.0, 3.0]]


def test_what_is_left_of_an_extent_is_a_factor_with_its_sign() -> None:
    """Also where no hint tells it: of a bounded size, of a size that is learned later, of what is asked for alone."""
    seen, later, latest = sizes.symbol("s0", 0, None, 64), sizes.symbol("u0", 0), sizes.symbol("u1", 0)
    part = sizes.symbol("u2", 0, 40)
    for left in (40 - part, seen - later, later - latest, latest - later):
        assert sizes.factors(left) == (1, ((left, 1),))
        assert sizes.factors(left * 6)[0] == 6
    assert sizes.factors(part - 40) == (-1, ((40 - part, 1),))
    both = (seen - later) * (later - latest)
    assert set(sizes.factors(both)[1]) == {(seen - later, 1), (later - latest, 1)}


def test_factors_of_extents_over_negative_symbols_are_positive() -> None:
    """As that of the last ``-n`` elements, which ``x[n:]`` has."""
    first, second = sizes.symbol("n", None, -2, -3), sizes.symbol("m", None, -2, -5)
    assert sizes.factors(-first) == (1, ((-first, 1),))
    assert sizes.factors(-6 * first) == (6, ((-first, 1),))
    assert sizes.factors(first * second) == (1, ((-second, 1), (-first, 1)))
    assert sizes.factors(first) == (-1, ((-first, 1),))
    unknown = sizes.symbol("u0", None, None)
    assert sizes.factors(-unknown) == (1, ((-unknown, 1),))


def test_factors_of_rounding_up_are_positive() -> None:
    """It is written as a floor of negative numbers."""
    length = sizes.symbol("s", 2, None, 100)
    chunks = -sizes.floordiv(-length, 64)
    assert sizes.evaluate(chunks, {"s": 100}) == 2
    assert sizes.factors(chunks) == (1, ((chunks, 1),))
    number, parts = sizes.factors(chunks * length * 64)
    assert (number, set(parts)) == (64, {(chunks, 1), (length, 1)})
    assert sizes.factors(chunks * chunks) == (1, ((chunks, 2),))


def test_numbers_that_equations_tell() -> None:
    length = sizes.symbol("s", 2, None, 60)
    chunks = -sizes.floordiv(-length, 64)
    told = sizes.known_number(chunks - 1)
    assert told is not None
    numbers = dict((told,))
    assert sizes.with_numbers(chunks, numbers) == 1
    assert sizes.with_numbers(chunks * length, numbers) == length
    assert sizes.with_numbers(sizes.floordiv(chunks + length, 2), numbers) == sizes.floordiv(length + 1, 2)
    assert sizes.with_numbers(7, numbers) == 7
    for nothing in (0, 5, length, length - 3, chunks * length, chunks + length):
        assert sizes.known_number(nothing) is None
    assert sizes.known_number(chunks * 2 - 1) is None, "no integer is a half"


def test_sizes_that_are_zero_tell_what_others_are() -> None:
    length = sizes.symbol("s", 6, None, 6)
    rest = length - sizes.floordiv(length, 2)
    assert sizes.with_zeros(rest - 2, [rest - 3]) == 1
    assert sizes.with_zeros(3 - rest, [rest - 3]) == 0
    assert sizes.with_zeros(rest - 2, [3 - rest]) == 1
    assert sizes.with_zeros(rest * 2, [rest - 3]) == rest * 2
    assert sizes.with_zeros(7, [rest - 3]) == 7
    assert sizes.with_zeros(length, [length - 6]) == length


def test_hints_without_a_hint() -> None:
    free, part, least = sizes.symbol("u0", 0), sizes.symbol("u1", 0, 40), sizes.symbol("u2", 9000)
    assert (sizes.hint(free), sizes.hint(part), sizes.hint(least)) == (sizes.ASSUMED, 20, 9000)
    assert sizes.hint(40 - part) == 20
    assert sizes.hint(sizes.symbol("s0", 0, None, 64) - free) == 64


def test_what_is_divided_by_a_number_that_may_be_nothing() -> None:
    free = sizes.symbol("u0", None, None)
    quotient = sizes.floordiv(2**20, free)
    assert sizes.hint(quotient) == 2**20 // sizes.ASSUMED
    assert sizes.factors(free * quotient)[0] == 1
    with pytest.raises(ZeroDivisionError):
        sizes.evaluate(quotient, {"u0": 0})


def test_products_that_equations_tell() -> None:
    names = ("p", "q", "u", "v")
    a, b, c, d = (sizes.symbol(name, 2, None, 6) for name in names)
    known = frozenset(names)
    told = sizes.known_product(a * b - c * d, known)
    assert told is not None
    rows = dict((told,))
    assert sizes.known_product(c * d - a * b, known) == told, "whichever side it is written on"
    assert sizes.with_products(c * d, rows) == sizes.with_products(a * b, rows) == a * b
    assert sizes.with_products(c * d * d * 7 + c, rows) == a * b * d * 7 + c
    assert sizes.with_products(c * c * d * d, rows) == a * a * b * b
    assert [sizes.with_products(size, rows) for size in (7, c, c + d, a * c)] == [7, c, c + d, a * c]
    # As of the tokens but the last of each line, and their labels.
    told = sizes.known_product(a * (b - 1) - c * (d - 1), known)
    assert told is not None
    rows = dict((told,))
    assert sizes.with_products(c * (d - 1) * 3, rows) == a * (b - 1) * 3
    assert sizes.with_products(c * d, rows) == c * d, "not what has more terms then"
    for nothing in (0, 5, a, a - 3, a - b, a * b * 2 - c * d * 3):
        assert sizes.known_product(nothing, known) is None
    assert sizes.known_product(a - c * d, known) == (dict((c * d).terms).popitem()[0], a)


@pytest.mark.parametrize("kept", [("p", "q"), ("u", "v")])
def test_products_are_written_in_symbols_that_are_known(kept: tuple[str, str]) -> None:
    rows = {
        names: sizes.product(sizes.symbol(name, 2, None, 6) for name in names) for names in (("p", "q"), ("u", "v"))
    }
    (other,) = rows.keys() - {kept}
    told = sizes.known_product(rows["p", "q"] - rows["u", "v"], frozenset(kept))
    assert told is not None
    assert [sizes.with_products(rows[names] * 3 + 1, dict((told,))) for names in rows] == [rows[kept] * 3 + 1] * 2
    for known in ((), kept[:1], other[:1], (kept[0], other[0])):
        assert sizes.known_product(rows["p", "q"] - rows["u", "v"], frozenset(known)) is None


def test_equal_products_are_equal_in_number() -> None:
    names = ("p", "q", "u", "v")
    a, b, c, d = (sizes.symbol(name, 2, None, 6) for name in names)
    (product, by) = sizes.known_product(a * b + a - c * d * d, frozenset(names))
    for values in ((6, 7, 12, 2), (4, 8, 1, 6), (9, 3, 4, 3)):
        given = dict(zip(names, values, strict=True))
        assert sizes.evaluate(a * b + a - c * d * d, given) == 0
        for size in (c * d * d, c * d * d * d * 5 - a, (c * d * d + 3) * (a - c * d * d), c * c * d**5):
            found = sizes.with_products(size, {product: by})
            assert sizes.evaluate(found, given) == sizes.evaluate(size, given)
