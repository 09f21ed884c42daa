"""Reads and writes at places given by tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ferrite_ir.language.graph import Update
from ferrite_torch.torch_private.operators import decompositions_of

aten = torch.ops.aten
decomposed = decompositions_of([aten.nll_loss_backward])[aten.nll_loss_backward.default]
TYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)
NUMBERS = TYPES[:-1]


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 5, shape).to(dtype)


def places(size: int, *shape: int, wrap: bool = False) -> torch.Tensor:
    return torch.randint(-size if wrap else 0, size, shape)


def limit(dtype: torch.dtype) -> float | None:
    return 3e-2 if dtype is torch.bfloat16 else None


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_embedding(agree: Any, dtype: torch.dtype) -> None:
    agree(lambda w, i: F.embedding(i, w), numbers(dtype, 7, 5), places(7, 2, 3))
    agree(lambda w, i: F.embedding(i, w), numbers(dtype, 7, 5), places(7, 2, 3).int())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("padding", [-1, 3])
def test_gradient_of_embedding(agree: Any, dtype: torch.dtype, padding: int) -> None:
    """Rows that are read often are added up in f32."""
    agree(
        lambda g, i: aten.embedding_dense_backward(g, i, 7, padding, False),
        numbers(dtype, 4, 6, 2),
        places(7, 4, 6),
        tolerance=limit(dtype) or 1e-5,
    )


@pytest.mark.parametrize("padding", [-1, 3])
def test_gradient_of_embedding_scaled_by_how_often_a_row_is_read(agree: Any, padding: int) -> None:
    agree(lambda g, i: aten.embedding_dense_backward(g, i, 7, padding, True), torch.randn(4, 6, 2), places(7, 4, 6))


ADVANCED: dict[str, Callable[..., torch.Tensor]] = {
    "first dim": lambda x, j, k: x[j],
    "last dim, two dims of places": lambda x, j, k: x[:, :, k],
    "dims apart": lambda x, j, k: x[j, :, k],
    "dims side by side": lambda x, j, k: x[j, k],
    "one place for two dims": lambda x, j, k: x[:, j, j],
    "with new dims and slices": lambda x, j, k: x[None, j, 1:3],
}


@pytest.mark.parametrize("name", ADVANCED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool], ids=str)
def test_advanced_indexing(agree: Any, name: str, dtype: torch.dtype) -> None:
    agree(ADVANCED[name], numbers(dtype, 4, 6, 5), places(4, 3, wrap=True), places(4, 2, 3, wrap=True))


def test_index_select_gather_and_take(agree: Any) -> None:
    x = torch.randn(4, 6, 5)
    agree(lambda x, i: x.index_select(1, i), x, places(6, 3))
    agree(lambda x, i: x.gather(1, i), x, places(6, 4, 2, 5))
    agree(lambda x, i: x.gather(-1, i), x, places(5, 2, 2, 9))
    agree(torch.take, x, places(120, 3, 3, wrap=True))
    agree(lambda x, i: torch.take_along_dim(x, i, 1), x, places(6, 4, 2, 5))


def distinct(size: int, count: int, *rest: int) -> torch.Tensor:
    rows = [torch.randperm(size)[:count] for _ in range(torch.Size(rest).numel())]
    return torch.stack(rows, -1).reshape(count, *rest)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_stores(agree: Any, dtype: torch.dtype) -> None:
    x = numbers(dtype, 6, 4)
    rows = torch.tensor([2, 0, 5])
    agree(lambda x, i, s: x.scatter(0, i, s), x, distinct(6, 2, 4), numbers(dtype, 3, 4))
    agree(lambda x, i: x.scatter(0, i, 1), x, places(6, 2, 4))
    agree(lambda x, i, s: x.index_copy(0, i, s), x, rows, numbers(dtype, 3, 4))
    agree(lambda x, i: x.index_fill(0, i, 1), x, rows - 6)
    agree(lambda x, i, v: x.index_put((i,), v), x, rows, numbers(dtype, 3, 4))
    agree(lambda x, i, v: aten.index_put(x, [None, i], v), x, torch.tensor([3, 0, 1]), numbers(dtype, 3))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("dim", [0, -1])
def test_one_store_per_row_of_a_constant_needs_no_memory(agree: Any, dtype: torch.dtype, dim: int) -> None:
    shape = [3, 5, 4]
    shape[dim] = 1
    i, s = places(3, *shape), numbers(dtype, 3, 5, 4)
    graphs = [
        agree(lambda i: torch.zeros(3, 5, 4, dtype=dtype).scatter(dim, i, 1), i),
        agree(lambda i, s: torch.full((3, 5, 4), 1.5).to(dtype).scatter(dim, i, s), i, s),
        agree(lambda i, s: torch.ones_like(s).scatter(dim, i, s[:1, :1, :1].expand(*shape)), i, s),
        agree(lambda i, s: torch.full((3, 5, 4), 2, dtype=dtype).scatter_add(dim, i, s), i.clamp(max=1), s)
        if dtype is not torch.bool
        else None,
    ]
    assert not [d for graph in graphs if graph is not None for d in graph.definitions if isinstance(d, Update)]


def test_several_stores_per_row_are_stored(agree: Any) -> None:
    graph = agree(lambda i: torch.zeros(5, 4).scatter(1, i, 1.0), places(4, 5, 2))
    assert [d for d in graph.definitions if isinstance(d, Update)]
    agree(lambda i: torch.zeros(5, 4).scatter(1, i, 1.0), places(4, 3, 1))


@pytest.mark.parametrize("ignored", [-100, 2])
def test_gradient_of_a_cross_entropy(agree: Any, ignored: int) -> None:
    target = torch.tensor([2, 0, ignored, 6, 1])
    weight = torch.tensor(4.0)
    graph = agree(
        lambda g, x, t, w: decomposed(g, x, t, None, 1, ignored, w),
        torch.tensor(0.5),
        torch.randn(5, 7),
        target,
        weight,
    )
    assert not [d for d in graph.definitions if isinstance(d, Update)]


@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter:UserWarning")
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_sums_at_places(agree: Any, dtype: torch.dtype) -> None:
    x, source, i = numbers(dtype, 6, 4), numbers(dtype, 3, 4), places(6, 3, 4)
    agree(lambda x, i, s: x.scatter_add(0, i, s), x, i, source, tolerance=limit(dtype))
    agree(lambda x, i, s: x.scatter(0, i, s, reduce="add"), x, i, source, tolerance=limit(dtype))
    agree(lambda x, i, s: x.scatter_reduce(0, i, s, "sum"), x, i, source, tolerance=limit(dtype))
    agree(lambda x, i, s: x.scatter_reduce(0, i, s, "sum", include_self=False), x, i, source, tolerance=limit(dtype))
    agree(lambda x, i, s: x.index_add(0, i, s, alpha=2), x, places(6, 3), source, tolerance=limit(dtype))
    agree(lambda x, i, v: x.index_put((i,), v, accumulate=True), x, places(6, 3), source, tolerance=limit(dtype))


@pytest.mark.filterwarnings("ignore:index_reduce:UserWarning")
@pytest.mark.parametrize("includes_self", [True, False])
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("reduce", ["amax", "amin", "prod", "mean"])
def test_reductions_at_places(agree: Any, dtype: torch.dtype, reduce: str, *, includes_self: bool) -> None:
    x, i, source = numbers(dtype, 6, 4), places(6, 9, 4), numbers(dtype, 9, 4)
    agree(
        lambda x, i, s: (
            x.scatter_reduce(0, i, s, reduce, include_self=includes_self),
            x.index_reduce(0, i[:, 0], s, reduce, include_self=includes_self),
        ),
        *(x, i, source),
        tolerance=limit(dtype),
    )


def test_averages_of_integers_wrap_before_they_are_divided_and_round_down(agree: Any) -> None:
    x, i = torch.tensor([200, 1], dtype=torch.uint8), torch.tensor([0, 0, 1])
    agree(lambda x, i, s: x.scatter_reduce(0, i, s, "mean"), x, i, torch.tensor([100, 3, 6], dtype=torch.uint8))
    agree(lambda x, i, s: x.scatter_reduce(0, i, s, "mean"), torch.tensor([-5, 0]), i, torch.tensor([-2, 0, -1]))


@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_nan_wins_at_places(agree: Any, reduce: str) -> None:
    x, source = torch.tensor([1.0, math.nan, -2.0, 3.0]), torch.tensor([math.nan, 5.0, -1.0, math.inf])
    agree(lambda x, i, s: x.scatter_reduce(0, i, s, reduce), x, torch.tensor([0, 1, 2, 2]), source)


@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter:UserWarning")
def test_products_by_their_old_name(agree: Any) -> None:
    x, i, source = numbers(torch.float32, 6, 4), places(6, 3, 4), numbers(torch.float32, 3, 4)
    agree(
        lambda x, i, s: (x.scatter(0, i, s, reduce="multiply"), x.scatter(0, i, 2.0, reduce="multiply")), x, i, source
    )


@pytest.mark.parametrize("accumulate", [False, True])
def test_places_counted_over_all_of_a_tensor(agree: Any, *, accumulate: bool) -> None:
    i = torch.tensor([[3, -1], [11, 0]])
    agree(lambda x, i, s: x.put(i, s, accumulate), torch.randn(3, 4).t(), i, torch.randn(2, 2))
    agree(lambda x, i, s: x.put(i, s, accumulate), torch.arange(12), i, torch.arange(4))
    if accumulate:
        agree(lambda x, i, s: x.put(i * 0, s, accumulate), torch.arange(12), i, torch.arange(4))


def test_one_number_where_a_mask_holds(agree: Any) -> None:
    x = torch.randn(3, 4)
    agree(lambda x, v: x.index_put((x > 0,), v), x, torch.tensor(7.0))
    agree(lambda x, v: x.index_put((x[:, 0] > 0,), v), x, torch.tensor([7.0]))
    agree(lambda x, v: x.index_put((x > 0,), v, accumulate=True), x, torch.tensor(7.0))


def test_masked_places(agree: Any) -> None:
    i, mask = places(5, 4), torch.tensor([True, False, True, True])
    agree(lambda x, m, i: aten._unsafe_masked_index(x, m, [i], 0.5), torch.randn(5), mask, i)
    agree(
        lambda x, m, i, v: aten._unsafe_masked_index_put_accumulate(x, m, [i], v),
        torch.randn(5),
        mask,
        i,
        torch.randn(4),
    )


def test_tensors_without_dims(agree: Any) -> None:
    x, i = torch.randn(5), torch.tensor(3)
    agree(lambda x, i: x.gather(0, i), x, i)
    agree(lambda x, i: x.gather(0, i * 0), torch.tensor(2.0), i)
    agree(lambda x, i: x.index_select(0, i), x, i)
    agree(lambda x, i, s: x.scatter(0, i, s), x, i, torch.tensor(1.0))


def test_a_store_into_what_is_read(agree: Any) -> None:
    agree(lambda x, i: x.index_copy(0, i, x[:2]), torch.randn(5), torch.tensor([3, 1]))
    agree(lambda x, i: (x * 2).index_add(0, i, (x * 2)[:2]), torch.randn(5), torch.tensor([3, 1]))


@pytest.fixture
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_deterministic")
def test_float_sums_at_places_have_no_order(lower_one: Any, agree: Any) -> None:
    i = torch.tensor([3, 1])
    module = lower_one(lambda x, i: x.index_add(0, i, x[:2]), torch.randn(5), i)
    assert [op for op, _ in module.externs] == ["aten.index_add.default"]
    module = lower_one(lambda x, i: x.index_copy(0, i, x[:2]), torch.randn(5), i)
    assert [op for op, _ in module.externs] == ["aten.index_copy.default"]
    agree(lambda x, i: x.index_fill(0, i, 2.0), torch.randn(5), i)
    agree(lambda x, i: x.index_add(0, i, x[:2]), torch.arange(5), i)
    module = lower_one(lambda x, i: x.scatter_reduce(0, i, x, "prod"), torch.randn(2), i)
    assert [op for op, _ in module.externs] == ["aten.scatter_reduce.two"]
    agree(lambda x, i: x.scatter_reduce(0, i, x[:2], "amax"), torch.randn(5), i)


def test_strided_places_of_a_storage(agree: Any) -> None:
    scatter = lambda x, s: torch.as_strided_scatter(x, s, (2, 3), (6, 2), 1)  # noqa: E731
    agree(scatter, torch.randn(3, 4), torch.randn(2, 3))
    agree(scatter, torch.randn(4, 3).t(), torch.randn(2, 3))
    agree(lambda x, s: torch.as_strided_scatter(x[1:], s, (2, 3), (4, 1), 5), torch.randn(3, 4), torch.randn(2, 3))


def test_strided_places_outside_of_a_tensor_are_a_library_call(lower_one: Any) -> None:
    module = lower_one(
        lambda x, s: torch.as_strided_scatter(x[1:], s, (2,), (1,), 0), torch.randn(3, 4), torch.randn(2)
    )
    assert module.externs == (
        ("aten.as_strided_scatter.default", "as_strided_scatter beyond the elements of its operand"),
    )


def test_filling_a_tensor_without_dims(agree: Any) -> None:
    agree(lambda x, i: x.index_fill(0, i, 3.0), torch.tensor(1.0), torch.tensor([0]))
    agree(lambda x, i: x.index_fill(0, i, 3.0), torch.tensor(1.0), torch.tensor(0))
