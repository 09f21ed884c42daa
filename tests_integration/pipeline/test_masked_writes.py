"""Writes to the places of a mask with values that have a gradient: no graph breaks, nothing runs eagerly."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from against_eager import assert_all_close, assert_worked, compiled, devices, gradients, observed_work, widened

Write = Callable[[Tensor, Tensor, Tensor], Tensor]
ROWS, COLUMNS, WIDTH, PLACES = 4, 6, 5, 7


def a_row(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    x[mask] = values[0]
    return x


def a_row_as_a_matrix(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    x[mask] = values[:1]
    return x


def a_number(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    x[mask, ...] = values[0, 0]
    return x


def columns(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    x[:, mask[0]] = values[1]
    return x


def columns_of_all(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    x[..., mask[0, :WIDTH]] = values[0, 0]
    return x


def a_view(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    x[1:][mask[1:]] = values[2]
    return x


def of_a_method(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    return x.index_put_((mask,), values[0]) * x


def elsewhere(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    return x.index_put((mask,), values[:1]) + x


def added(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    return x.index_put((mask,), values[0], accumulate=True)


def one_for_each_place(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    x[mask] = values
    return x


WRITES: tuple[Write, ...] = (
    a_row, a_row_as_a_matrix, a_number, columns, columns_of_all, a_view, of_a_method, elsewhere, added,
    one_for_each_place,
)  # fmt: skip


def places(seed: int, device: str) -> Tensor:
    """Returns a mask that holds at so many places, other ones for each seed."""
    order = torch.randperm(ROWS * COLUMNS, generator=torch.Generator().manual_seed(seed))
    return (order < PLACES).view(ROWS, COLUMNS).to(device)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
@pytest.mark.parametrize("device", devices())
def test_written_values_have_gradients(device: str, write: Write, *, dynamic: bool) -> None:
    def function(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
        return write(x * 2, mask, values).tanh()

    called = compiled(function, dynamic=dynamic)
    with observed_work() as work:
        for seed in range(3):
            torch.manual_seed(seed)
            x = torch.randn(ROWS, COLUMNS, WIDTH, device=device, requires_grad=True)
            values = torch.randn(PLACES, WIDTH, device=device, requires_grad=True)
            mask = places(seed, device)
            wide_x, wide_values = widened((x, values))
            found = called(x, mask, values), function(x, mask, values), function(wide_x, mask, wide_values)
            assert_all_close(*found)
            leaves = (x, values), (x, values), (wide_x, wide_values)
            assert_all_close(*(gradients(y, inputs) for y, inputs in zip(found, leaves, strict=True)))
    assert_worked(work)
    assert work.graph_breaks == 0
    assert work.graphs == 2  # forward and backward


@pytest.mark.parametrize("device", devices())
def test_no_place_and_all_places(device: str) -> None:
    x, values = torch.randn(3, 4, device=device), torch.randn(4, device=device, requires_grad=True)
    called = compiled(lambda x, mask, values: a_row(x * 2, mask, values[None]))
    for mask, share in ((torch.zeros(3, dtype=torch.bool), 0.0), (torch.ones(3, dtype=torch.bool), 3.0)):
        (gradient,) = torch.autograd.grad(called(x, mask.to(device), values).sum(), values)
        assert torch.equal(gradient, torch.full_like(gradient, share))


def test_a_number_of_values_that_is_not_that_of_places_is_refused() -> None:
    values = torch.randn(PLACES + 1, WIDTH, requires_grad=True)
    called = compiled(lambda x, mask, values: one_for_each_place(x * 2, mask, values))
    with pytest.raises(Exception, match=r"as many values as places|8.*7|7.*8|does not hold"):
        called(torch.randn(ROWS, COLUMNS, WIDTH), places(0, "cpu"), values).sum().backward()
