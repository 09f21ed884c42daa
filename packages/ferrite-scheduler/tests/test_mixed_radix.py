"""The digit algebra against plain evaluation over all positions."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from ferrite_ir.language.graph import row_major
from ferrite_ir.language.index import Dim, delinearize, floordiv, linearize, mod
from ferrite_scheduler.analysis.mixed_radix import (
    compose,
    covers,
    digits_of,
    grid_part,
    identity,
    inverse,
    is_bijection,
    is_injective,
    lifted,
    lowered,
    normalized,
    separates,
)


def value(digits, position):
    return sum(coefficient * (position // step % extent) for step, extent, coefficient in digits)


@st.composite
def bijections(draw, fixed=None):
    """A permutation of mixed-radix digits, as digits."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4)) if fixed is None else fixed
    order = draw(st.permutations(range(len(sizes))))
    steps, at = {}, 1
    for i in reversed(range(len(sizes))):
        steps[i], at = at, at * sizes[i]
    coefficients, out = {}, 1
    for i in order:
        coefficients[i], out = out, out * sizes[i]
    return math.prod(sizes), normalized((steps[i], sizes[i], coefficients[i]) for i in range(len(sizes)))


loose_digits = st.lists(
    st.tuples(st.sampled_from([1, 2, 3, 4, 6, 12]), st.sampled_from([1, 2, 3, 4]), st.integers(-4, 4)), max_size=4
)


@settings(deadline=None)
@given(loose_digits)
def test_normal_form_means_the_same(digits):
    assert all(value(digits, p) == value(normalized(digits), p) for p in range(48))


@settings(deadline=None)
@given(bijections())
def test_inverse_undoes(case):
    count, digits = case
    assert is_bijection(digits, count)
    assert covers(digits, count)
    assert is_injective(digits, count)
    back = inverse(digits)
    assert [value(back, value(digits, p)) for p in range(count)] == list(range(count))
    assert compose(digits, back) == identity(count)
    assert inverse(back) == digits


@settings(deadline=None)
@given(st.data())
def test_composition_is_composition_where_it_exists(data):
    count, inner = data.draw(bijections())
    outer = normalized(data.draw(loose_digits))
    found = compose(outer, inner)
    if found is not None:
        assert all(value(found, p) == value(outer, value(inner, p)) for p in range(count))


@settings(deadline=None)
@given(bijections(fixed=[2, 3, 4]), bijections(fixed=[2, 3, 4]))
def test_permutations_of_one_cut_compose(first, second):
    found = compose(second[1], first[1])
    if found is not None:
        assert is_bijection(found, 24)


@settings(deadline=None)
@given(bijections(), st.sampled_from([1, 2, 3]))
def test_lifting_adds_a_reduction_below(case, reduction):
    count, digits = case
    up = lifted(digits, reduction)
    assert all(value(up, p) == value(digits, p // reduction) for p in range(count * reduction))
    assert lowered(up, reduction) == digits


@settings(deadline=None)
@given(bijections())
def test_separation_is_what_it_says(case):
    count, digits = case
    for reduction in range(1, count + 1):
        if count % reduction or not separates(digits, reduction):
            continue
        images = [value(digits, p) for p in range(count)]
        assert all(images[p] // reduction == images[p - p % reduction] // reduction for p in range(count))
        on_grid = grid_part(digits, reduction)
        assert [image // reduction for image in images[::reduction]] == [
            value(on_grid, g) for g in range(count // reduction)
        ]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_indices_as_digits_mean_the_same(data):
    sizes = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=3)))
    dims = tuple(Dim(f"d{i}", size) for i, size in enumerate(sizes))
    steps = dict(zip(dims, row_major(sizes), strict=True))
    index = data.draw(st.sampled_from([dim.index for dim in dims]))
    for _ in range(data.draw(st.integers(0, 4))):
        match data.draw(st.sampled_from(["add", "mul", "div", "mod", "flat", "digit"])):
            case "add":
                index = index + data.draw(st.sampled_from([dim.index for dim in dims]))
            case "mul":
                index = index * data.draw(st.integers(1, 4))
            case "div":
                index = floordiv(index, data.draw(st.sampled_from([2, 3, 4])))
            case "mod":
                index = mod(index, data.draw(st.sampled_from([2, 3, 4])))
            case "flat":
                index = linearize(tuple(dim.index for dim in dims), row_major(sizes))
            case _:
                flat = linearize(tuple(dim.index for dim in dims), row_major(sizes))
                index = data.draw(st.sampled_from(delinearize(flat, (math.prod(sizes), 2, 2))))
    const, digits, rigid, exact = digits_of(index, steps)
    assert exact or rigid
    if exact:
        for p in range(math.prod(sizes)):
            point = {dim: p // steps[dim] % dim.size for dim in dims}
            assert const + value(normalized(digits), p) == evaluate_index(index, point)


def evaluate_index(index, point):
    from ferrite_ir.reference.points import Point

    return Point({}, point, {}).index(index)
