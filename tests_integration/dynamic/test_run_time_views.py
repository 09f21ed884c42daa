"""Views whose place or extents depend on data: as results beside what they are views of, written to, and refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import ferrite_torch
from against_eager import own_only, tensors_of

pytestmark = own_only("it counts ferrite's own graphs")

View = Callable[[Tensor, int], Any]


@pytest.fixture(autouse=True)
def captured() -> Iterator[None]:
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        ferrite_torch.reset_statistics()
        yield


def reading(view: View) -> Callable[[Tensor, Tensor], Any]:
    """Returns a function that reads a number, which dynamo cannot trace back to an input, and takes a view by it."""
    return lambda x, k: view(x, (k + 0).item())  # type: ignore[arg-type]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    options = {"fallback": False, "verify": True}
    return torch.compile(function, backend="ferrite", fullgraph=True, options=options)


def shared(x: Tensor, found: Any) -> list[int]:
    """Returns for each result, and the input, which of them is the first in its storage."""
    addresses = [each.untyped_storage().data_ptr() for each in (x, *tensors_of(found))]
    return [addresses.index(address) for address in addresses]


def check(view: View, *numbers: int, needs_grad: bool = False) -> None:
    """Checks results, what they share, where they lie, what is left of the input, and gradients, with one graph."""
    function = reading(view)
    called = compiled(function)
    for number in numbers:
        pair = [torch.arange(24.0).sin().view(8, 3).requires_grad_(needs_grad) for _ in range(2)]
        results = [each(x, torch.tensor(number)) for each, x in zip((called, function), pair, strict=True)]
        torch.testing.assert_close(results, results[::-1])
        torch.testing.assert_close(*pair)
        assert shared(pair[0], results[0]) == shared(pair[1], results[1])
        places, expected = ([(each.stride(), each.storage_offset()) for each in tensors_of(found)] for found in results)
        assert places == expected
        if needs_grad:
            totals = [sum((each * each).sum() for each in tensors_of(found)) for found in results]
            torch.testing.assert_close(*(torch.autograd.grad(*each) for each in zip(totals, pair, strict=True)))
    assert not ferrite_torch.statistics()["fallbacks"]


def beside(part: View) -> View:
    """Returns what gives a tensor that is computed and a view of it."""

    def both(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        y = x * 2
        return y, part(y, k)

    return both


VIEWS: dict[str, tuple[View, tuple[int, ...]]] = {
    "a row": (lambda y, k: y[k], (2, 7, 0, -1, -8)),
    "a column": (lambda y, k: y.select(1, k), (2, 0, -1)),
    "a row of a part": (lambda y, k: y[2:, 1:][k], (2, 5, -1)),
    "an element": (lambda y, k: y[k][k - 3], (4, 5, 3)),
    "rows from one on": (lambda y, k: y[k:], (2, 7, -1, -20)),
    "every other row from one on": (lambda y, k: y[k::2], (2, 7, -1)),
    "two rows": (lambda y, k: y.narrow(0, k, 2), (2, 6, -2)),
    "two elements of a column": (lambda y, k: y.t()[1].narrow(0, k, 2), (2, 6, 0)),
    "an element of a diagonal": (lambda y, k: y.diagonal(1)[k], (0, 1)),
}


@pytest.mark.parametrize("needs_grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_and_what_it_is_a_view_of(name: str, *, needs_grad: bool) -> None:
    view, numbers = VIEWS[name]
    check(beside(view), *numbers, needs_grad=needs_grad)


def doubled_row(x: Tensor, k: int) -> Tensor:
    return x[k].mul_(2)


def doubled_rows(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    return x[k : k + 2].mul_(2), x


WRITES: dict[str, View] = {
    "a row": doubled_row,
    "a row of a transpose": lambda x, k: x.t()[k - 2].mul_(2),
    "rows": doubled_rows,
    "rows by narrow": lambda x, k: x.narrow(0, k, 2).mul_(2),
    "a row of what is computed": beside(doubled_row),
    "rows of what is computed": beside(doubled_rows),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_view_that_is_written_to_is_returned(name: str) -> None:
    check(WRITES[name], 2, 3)


SHAPES: dict[str, tuple[View, tuple[int, ...]]] = {
    "rows": (lambda x, k: x.view(k, -1) * 2, (2, 4, 24)),
    "columns": (lambda x, k: x.reshape(-1, k).sum(0), (2, 4, 24)),
    "two extents": (lambda x, k: x.view(k, k * 2, -1) * 2, (2, 1)),
    "sums of what is computed": (lambda x, k: (x * 2).reshape(k, -1).sum(0), (2, 3)),
    "as many as fit": (lambda x, k: x.new_zeros(24 // k) + x.numel() % k, (2, 5, 30)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_extents_that_are_divided_by_a_number(name: str) -> None:
    shape, numbers = SHAPES[name]
    check(shape, *numbers)


REFUSED: dict[str, tuple[View, int, int]] = {
    "rows that do not come out even": (SHAPES["rows"][0], 4, 5),
    "no rows": (SHAPES["rows"][0], 4, 0),
    "columns that do not come out even": (SHAPES["columns"][0], 4, 5),
    "a row that is not there": (VIEWS["a row"][0], 4, 8),
    "a row before the first": (VIEWS["a row"][0], 4, -9),
    "rows that are not all there": (VIEWS["two rows"][0], 4, 7),
}
"""Views, with a number that they take and one that eager mode refuses."""


@pytest.mark.parametrize("name", REFUSED)
def test_views_that_do_not_lie_inside_are_refused(name: str) -> None:
    view, good, bad = REFUSED[name]
    called, x = compiled(reading(view)), torch.arange(24.0).view(8, 3)
    called(x, torch.tensor(good))
    with pytest.raises((RuntimeError, IndexError)):
        view(x, bad)
    with pytest.raises((RuntimeError, IndexError), match="does not hold"):
        called(x, torch.tensor(bad))
