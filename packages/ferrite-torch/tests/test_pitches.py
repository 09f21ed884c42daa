"""The arithmetic of rows moved apart: whatever a view shows, it shows after the move."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrite_ir import index as ix
from ferrite_ir.dtypes import BF16
from ferrite_ir.graph import TensorType, View, row_major
from ferrite_torch.pitches import Pitch, memory_order, shown_element, view_with_pitch, with_pitch
from ferrite_torch.tensors import grid_dims, grid_point


def address(strides: Sequence[int], point: Sequence[int], offset: int = 0) -> int:
    return offset + sum(i * stride for i, stride in zip(point, strides, strict=True))


def points(shape: Sequence[int]) -> list[tuple[int, ...]]:
    return list(itertools.product(*map(range, shape)))


@st.composite
def dense_types(draw: st.DrawFn) -> TensorType:
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    order = draw(st.permutations(range(len(shape))))
    packed = row_major(tuple(shape[axis] for axis in order))
    return TensorType(BF16, shape, tuple(packed[order.index(axis)] for axis in range(len(shape))))


@st.composite
def views(draw: st.DrawFn, kind: TensorType) -> View:
    """Returns a view of a dense value: some axes cut, some reordered; or all of it flat."""
    if draw(st.booleans()):
        return View("x", BF16, (kind.storage_size,), (1,))
    order = draw(st.permutations(range(len(kind.shape))))
    shape, offset = [], 0
    for axis in order:
        first = draw(st.integers(0, kind.shape[axis] - 1))
        shape.append(draw(st.integers(1, kind.shape[axis] - first)))
        offset += first * kind.strides[axis]
    return View("x", BF16, tuple(shape), tuple(kind.strides[axis] for axis in order), offset)


@st.composite
def cases(draw: st.DrawFn) -> tuple[TensorType, View, Pitch]:
    kind = draw(dense_types())
    row = draw(st.sampled_from(sorted({*kind.strides, kind.storage_size})))
    return kind, draw(views(kind)), Pitch(row, row + draw(st.integers(0, 7)))


@given(cases())
def test_views_follow_their_value(case: tuple[TensorType, View, Pitch]) -> None:
    kind, view, pitch = case
    moved = with_pitch(kind, pitch)
    followed = view_with_pitch(view, pitch)
    if moved is None or followed is None:
        return
    at = {address(kind.strides, p): address(moved.strides, p) for p in points(kind.shape)}
    assert len(set(at.values())) == len(at)
    for point in points(view.shape):
        old = address(view.strides, point, view.offset)
        assert address(followed.strides, point, followed.offset) == at[old]


@given(cases())
def test_shown_elements_lie_where_the_view_looks(case: tuple[TensorType, View, Pitch]) -> None:
    kind, view, _ = case
    indices = shown_element(view, kind, grid_point(view.shape))
    assert indices is not None
    for point in points(view.shape):
        here = dict(zip(grid_dims(view.shape), map(ix.constant, point), strict=True))
        element = [ix.substitute(index, here).const for index in indices]
        assert all(0 <= i < size for i, size in zip(element, kind.shape, strict=True))
        assert address(kind.strides, element) == address(view.strides, point, view.offset)


@pytest.mark.parametrize("strides", [(2, 1), (1, 1), (3, 2)])
def test_layouts_that_do_not_tell_dims_apart_are_refused(strides: tuple[int, int]) -> None:
    kind = TensorType(BF16, (4, 3), strides)
    assert shown_element(View("x", BF16, (4, 3), strides), kind, grid_point((4, 3))) is None


def test_a_view_between_elements_shows_none() -> None:
    kind = TensorType(BF16, (4, 3), (6, 2))
    assert shown_element(View("x", BF16, (4, 3), (6, 2)), kind, grid_point((4, 3))) == grid_point((4, 3))
    assert shown_element(View("x", BF16, (4, 3), (6, 2), 1), kind, grid_point((4, 3))) is None


def test_rows_are_runs_of_whole_dims() -> None:
    kind = TensorType(BF16, (4, 5, 6))
    assert with_pitch(kind, Pitch(30, 32)) == TensorType(BF16, (4, 5, 6), (32, 6, 1))
    assert with_pitch(kind, Pitch(6, 8)) == TensorType(BF16, (4, 5, 6), (40, 8, 1))
    assert with_pitch(kind, Pitch(10, 16)) is None


def test_a_view_across_the_ends_of_rows_cannot_follow() -> None:
    assert view_with_pitch(View("x", BF16, (12,), (1,)), Pitch(6, 8)) is None
    assert view_with_pitch(View("x", BF16, (2, 4), (6, 1), 8), Pitch(6, 8)) == View("x", BF16, (2, 4), (8, 1), 10)
    assert view_with_pitch(View("x", BF16, (2, 5), (6, 1), 8), Pitch(6, 8)) is None


def test_memory_order_leaves_out_what_does_not_move() -> None:
    assert memory_order(View("x", BF16, (4, 1, 3, 7), (0, 9, 1, 3))) == (3, 2)
