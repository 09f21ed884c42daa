from __future__ import annotations

import itertools
import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrite_ir.language import index as ix
from ferrite_ir.language.dtypes import BF16, F32
from ferrite_ir.language.graph import TensorType, Value, View
from ferrite_ir.language.index_substitution import substitute
from ferrite_torch.lowering.tensors import Tensor, grid_dims, grid_point, is_dense, whole_tensor


def tensor(*shape: int, strides: tuple[int, ...] | None = None) -> Tensor:
    return whole_tensor(Value("x", TensorType(F32, shape, strides)))  # type: ignore[arg-type]


def transposed(t: Tensor) -> Tensor:
    return t.viewed(t.shape[::-1], lambda p: p[::-1])


def test_a_value_is_a_view_of_itself() -> None:
    assert tensor(4, 8).strided() == View("x", F32, (4, 8), (8, 1), 0)


def test_a_transposed_view_swaps_strides() -> None:
    assert transposed(tensor(4, 8)).strided() == View("x", F32, (8, 4), (1, 8), 0)


def test_transposing_twice_gives_the_value_back() -> None:
    assert transposed(transposed(tensor(4, 8))).is_whole


def test_slices_and_selections_add_an_offset() -> None:
    sliced = tensor(4, 8).viewed((2, 4), lambda p: (p[0] + 1, p[1] * 2))
    assert sliced.strided() == View("x", F32, (2, 4), (8, 2), 8)
    selected = tensor(4, 8).viewed((4,), lambda p: (p[0], ix.constant(3)))
    assert selected.strided() == View("x", F32, (4,), (8,), 3)


def test_expanded_dims_have_stride_zero() -> None:
    assert tensor(4).viewed((3, 4), lambda p: p[1:]).strided() == View("x", F32, (3, 4), (0, 1), 0)


def test_a_flip_is_no_strided_tensor() -> None:
    assert tensor(4).viewed((4,), lambda p: (3 - p[0],)).strided() is None


def test_a_reshape_across_a_transpose_is_no_strided_tensor() -> None:
    flat = transposed(tensor(4, 8)).viewed((32,), lambda p: ix.delinearize(p[0], (8, 4)))
    assert flat.strided() is None


def test_dims_of_size_one_get_packed_strides() -> None:
    view = tensor(4, 8).viewed((4, 1, 8), lambda p: (p[0], p[2])).strided()
    assert view is not None
    assert view.strides == (8, 8, 1)


def test_narrow_floats_are_loaded_as_f32() -> None:
    narrow = whole_tensor(Value("x", TensorType(BF16, (4,))))
    assert narrow.at(grid_point((4,))).dtype is BF16
    assert narrow.value_at(grid_point((4,))).dtype is F32


def test_layouts_without_gaps_are_dense() -> None:
    assert is_dense(TensorType(F32, (2, 3), (1, 2)))
    assert is_dense(TensorType(F32, (2, 1, 3), (3, 77, 1)))
    assert not is_dense(TensorType(F32, (2, 3), (4, 1)))
    assert not is_dense(TensorType(F32, (2, 3), (0, 1)))
    assert is_dense(TensorType(F32, (0, 3)))


@st.composite
def viewed_arrays(draw: st.DrawFn) -> tuple[Tensor, torch.Tensor]:
    """Returns a chain of views of one array, as ours and as torch's."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    ours, theirs = tensor(*shape), torch.arange(math.prod(shape)).reshape(shape)
    for _ in range(draw(st.integers(0, 4))):
        ours, theirs = draw(st.sampled_from((permute, narrow, expand)))(draw, ours, theirs)
    return ours, theirs


def permute(draw: st.DrawFn, ours: Tensor, theirs: torch.Tensor) -> tuple[Tensor, torch.Tensor]:
    order = draw(st.permutations(range(ours.ndim)))
    back = [order.index(axis) for axis in range(ours.ndim)]
    shape = [ours.shape[axis] for axis in order]
    return ours.viewed(shape, lambda p: [p[back[axis]] for axis in range(len(back))]), theirs.permute(*order)


def narrow(draw: st.DrawFn, ours: Tensor, theirs: torch.Tensor) -> tuple[Tensor, torch.Tensor]:
    axis = draw(st.integers(0, ours.ndim - 1))
    start = draw(st.integers(0, ours.shape[axis] - 1))
    shape = [size - start if place == axis else size for place, size in enumerate(ours.shape)]
    moved = ours.viewed(shape, lambda p: [i + start if place == axis else i for place, i in enumerate(p)])
    return moved, theirs.narrow(axis, start, shape[axis])


def expand(draw: st.DrawFn, ours: Tensor, theirs: torch.Tensor) -> tuple[Tensor, torch.Tensor]:
    size = draw(st.integers(1, 3))
    return ours.viewed((size, *ours.shape), lambda p: p[1:]), theirs.expand(size, *theirs.shape)


@settings(deadline=None)
@given(viewed_arrays())
def test_views_address_the_elements_that_torch_views_do(pair: tuple[Tensor, torch.Tensor]) -> None:
    ours, theirs = pair
    view = ours.strided()
    assert view is not None
    assert view.shape == tuple(theirs.shape)
    assert view.offset == theirs.storage_offset()
    assert all(s == t for n, s, t in zip(view.shape, view.strides, theirs.stride(), strict=True) if n > 1)
    for point in itertools.product(*map(range, ours.shape)):
        mapping = {dim: ix.constant(i) for dim, i in zip(grid_dims(ours.shape), point, strict=True)}
        at = ix.linearize(tuple(substitute(i, mapping) for i in ours.indices), ours.value.type.strides)
        assert at.const == theirs[point].item()
