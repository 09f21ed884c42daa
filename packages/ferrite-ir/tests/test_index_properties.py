"""Properties of index algebra, against brute force over every point."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrite_ir.language import index as ix
from ferrite_ir.language import sizes
from ferrite_ir.language.graph import row_major
from ferrite_ir.language.index import Atom, Dim, FloorDiv, Index, Indirect, Mod
from ferrite_ir.language.index_substitution import substitute
from ferrite_ir.text.parser import parse_index

DIMS = (Dim("i", 4), Dim("j", 6), Dim("k", 3))
POINTS = list(itertools.product(*(range(dim.size) for dim in DIMS)))


def brute(index: Index, point: dict[Dim, int]) -> int:
    total = index.const
    for atom, coefficient in index.terms:
        total += brute_atom(atom, point) * coefficient
    return total


def brute_atom(atom: Atom, point: dict[Dim, int]) -> int:
    match atom:
        case Dim():
            return point[atom]
        case FloorDiv():
            return brute(atom.numerator, point) // atom.divisor
        case Mod():
            return brute(atom.numerator, point) % atom.divisor
        case Indirect():
            raise AssertionError("not among these properties")
    raise TypeError(atom)


def values(index: Index) -> list[int]:
    return [brute(index, dict(zip(DIMS, point, strict=True))) for point in POINTS]


def expressions(dims: tuple[Dim, ...] = DIMS) -> st.SearchStrategy[tuple[Index, list[int]]]:
    """Draws an index together with its values at all points, computed beside it without any simplification."""
    place = {dim: position for position, dim in enumerate(DIMS)}
    leaves = st.one_of(
        st.sampled_from(dims).map(lambda dim: (dim.index, [point[place[dim]] for point in POINTS])),
        st.integers(-7, 7).map(lambda c: (ix.constant(c), [c] * len(POINTS))),
    )

    def extend(inner: st.SearchStrategy[tuple[Index, list[int]]]) -> st.SearchStrategy[tuple[Index, list[int]]]:
        return st.one_of(
            st.tuples(inner, inner).map(
                lambda p: (p[0][0] + p[1][0], [a + b for a, b in zip(p[0][1], p[1][1], strict=True)])
            ),
            st.tuples(inner, inner).map(
                lambda p: (p[0][0] - p[1][0], [a - b for a, b in zip(p[0][1], p[1][1], strict=True)])
            ),
            st.tuples(inner, st.integers(-5, 5)).map(lambda p: (p[0][0] * p[1], [a * p[1] for a in p[0][1]])),
            st.tuples(inner, st.integers(1, 12)).map(lambda p: (p[0][0] // p[1], [a // p[1] for a in p[0][1]])),
            st.tuples(inner, st.integers(1, 12)).map(lambda p: (p[0][0] % p[1], [a % p[1] for a in p[0][1]])),
        )

    return st.recursive(leaves, extend, max_leaves=10)


@given(expressions())
@settings(max_examples=600, deadline=None)
def test_normal_form_has_the_same_values(drawn: tuple[Index, list[int]]) -> None:
    index, expected = drawn
    assert values(index) == expected


@given(expressions())
@settings(max_examples=300, deadline=None)
def test_bounds_hold(drawn: tuple[Index, list[int]]) -> None:
    index, expected = drawn
    assert index.lo is not None
    assert index.hi is not None
    assert index.lo <= min(expected)
    assert index.hi >= max(expected)


@given(expressions(), expressions())
@settings(max_examples=200, deadline=None)
def test_sums_do_not_depend_on_order(a: tuple[Index, list[int]], b: tuple[Index, list[int]]) -> None:
    assert a[0] + b[0] is b[0] + a[0]
    assert values(a[0] + b[0] - b[0]) == a[1]


@given(expressions())
@settings(max_examples=300, deadline=None)
def test_text_is_read_back_as_the_same_object(drawn: tuple[Index, list[int]]) -> None:
    index, _ = drawn
    assert parse_index(str(index), DIMS) is index


@given(expressions(), st.lists(expressions(), min_size=3, max_size=3))
@settings(max_examples=300, deadline=None)
def test_substitution_commutes_with_evaluation(
    drawn: tuple[Index, list[int]], new: list[tuple[Index, list[int]]]
) -> None:
    index, _ = drawn
    # The dims' extents were used to simplify, so what replaces them must stay inside them.
    inside = [(e % dim.size, [v % dim.size for v in vs]) for (e, vs), dim in zip(new, DIMS, strict=True)]
    substituted = substitute(index, dict(zip(DIMS, (e for e, _ in inside), strict=True)))
    expected = [
        brute(index, dict(zip(DIMS, (vs[position] for _, vs in inside), strict=True)))
        for position in range(len(POINTS))
    ]
    assert values(substituted) == expected


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.lists(st.integers(1, 6), min_size=1, max_size=4))
@settings(max_examples=200, deadline=None)
def test_reshape_round_trip_is_the_identity(shape: list[int], other: list[int]) -> None:
    """Any reshape there and back gives the very index that it started from."""
    numel = sizes.product(shape)
    *front, _ = other
    rest = sizes.product(front)
    other = [*front, numel // rest] if numel % rest == 0 else [numel]
    dims = tuple(Dim(f"d{i}", size) for i, size in enumerate(shape))
    start = tuple(dim.index if dim.size > 1 else ix.constant(0) for dim in dims)
    there = ix.delinearize(ix.linearize(start, row_major(tuple(shape))), tuple(other))
    back = ix.delinearize(ix.linearize(there, row_major(tuple(other))), tuple(shape))
    flat = ix.linearize(start, row_major(tuple(shape)))
    assert ix.linearize(back, row_major(tuple(shape))) is flat
    for point in itertools.product(*map(range, shape)):
        at = dict(zip(dims, point, strict=True))
        assert [brute(index, at) for index in back] == list(point)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("(i*6 + j) // 6", "i"),
        ("(i*6 + j) % 6", "j"),
        ("(i*12 + j*2 + k // 2) // 4", "i*3 + (j // 2)"),
        ("i + j - i", "j"),
        ("(i + 4) // 4", "1"),
        ("(j // 2)*2 + j % 2", "j"),
        ("(j // 2 // 3)*6 + (j // 2 % 3)*2 + j % 2", "j"),
        ("(i*6 + j + 24) % 24", "i*6 + j"),
    ],
)
def test_simplification(text: str, normal: str) -> None:
    assert parse_index(text, DIMS) is parse_index(normal, DIMS)


def test_product_of_dims_is_refused() -> None:
    with pytest.raises(ValueError, match="not quasi-affine"):
        _ = DIMS[0].index * DIMS[1].index


def test_division_by_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="divisors are positive"):
        ix.floordiv(DIMS[0].index, 0)
