"""Results that are views of inputs as a type of another size: torch cannot make them of symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ferrite_torch
from ferrite_torch.rewrites.captured import view_results

Function = Callable[[Tensor], Any]


def written(x: Tensor) -> Any:
    view = x.flatten().view(torch.int16)
    x.add_(1)
    return view, x, x * 2


def written_through(x: Tensor) -> Any:
    view = x.flatten().view(torch.int64)
    view.mul_(3)
    return x + 1, view, view[0]


def beside_others(x: Tensor) -> Any:
    return x * 2, x.flatten().view(torch.int64), x.shape[0], x.view(torch.int16).reshape(-1), x


def sized_by_others(x: Tensor) -> Any:
    rows = torch.relu(x).shape[0]
    return x.view(torch.int16).unflatten(0, (rows, -1)), x.sum()


LOST: dict[str, Function] = {
    "wider elements of rows put together": lambda x: x.flatten(0, 1).view(torch.int64),
    "narrower ones": lambda x: x.flatten(0, 1).view(torch.int16),
    "behind a view": lambda x: x.view(torch.int16).reshape(-1),
    "complex ones": lambda x: torch.view_as_complex(x.view(torch.float32).reshape(x.shape[0], -1, 2)),
    "of a part": lambda x: x[: x.shape[0] // 2].view(torch.int64),
    "parts": lambda x: [part.view(torch.int64) for part in x.split(5)],
    "written to afterwards": written,
    "written through": written_through,
    "beside others": beside_others,
    "sized by others": sized_by_others,
}
"""Views of an input of 32-bit integers that torch loses the sizes of where they differ between calls."""

KEPT: dict[str, Function] = {
    "views that are made again": lambda x: x.view(torch.int64).transpose(0, 1)[3],
    "elements of one size": lambda x: x.flatten(0, 1).view(torch.float32),
    "not of an input": lambda x: (x + 1).flatten(0, 1).view(torch.int64),
}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Returns what is taken out of graphs."""
    found: list[Any] = []
    theirs = view_results.take_view_results

    def take(*args: Any, **named: Any) -> Any:
        found.append(theirs(*args, **named))
        return found[-1]

    monkeypatch.setattr("ferrite_torch.backend.take_view_results", take)
    return found


def assert_as_eager(call: Function, function: Function, x: Tensor) -> None:
    """Compares results and what they share with the input, that of a call and the input's own included."""
    own = x.detach().clone().requires_grad_(x.requires_grad)
    results, expected = ([each] if isinstance(each, Tensor) else each for each in (call(x), function(own)))
    torch.testing.assert_close([*results, x], [*expected, own])
    for result, theirs in zip(results, expected, strict=True):
        if isinstance(theirs, Tensor):
            assert result.stride() == theirs.stride()
            assert result.requires_grad == theirs.requires_grad
            shares = [each.untyped_storage().data_ptr() == of.untyped_storage().data_ptr()
                      for each, of in ((result, x), (theirs, own))]  # fmt: skip
            assert shares[0] == shares[1]
            assert result.storage_offset() == theirs.storage_offset()


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("name", [*LOST, *KEPT])
def test_views_as_another_type_lie_in_the_input(name: str, taken: list[Any], *, is_dynamic: bool) -> None:
    function = {**LOST, **KEPT}[name]
    compiled = torch.compile(function, backend="ferrite", dynamic=is_dynamic, options={"fallback": False})
    for sizes in ((18, 7, 18), (22, 8, 22)):
        assert_as_eager(compiled, function, torch.randint(0, 25, sizes, dtype=torch.int32))
    assert any(each is not None for each in taken) == (is_dynamic and name in LOST)


def test_gradients_pass_through_them(taken: list[Any]) -> None:
    def function(x: Tensor) -> Any:
        return torch.view_as_real(x).flatten(0, 1), (x * x.conj()).real

    compiled = torch.compile(function, backend="ferrite", dynamic=True, options={"fallback": False})
    for rows in (4, 6):
        x = torch.randn(rows, 3, dtype=torch.complex64, requires_grad=True)
        assert_as_eager(compiled, function, x)
        gradients = []
        for call in (compiled, function):
            view, square = call(x)
            gradients += torch.autograd.grad(view.sin().sum() + square.sum(), x)
        torch.testing.assert_close(*gradients)
    assert taken[0] is not None


def without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.view_as_real(x).flatten(0, 1)


def to_places_in_data(x: Tensor) -> Tensor:
    rows = (x[0, 0].real > 100).long() + 2
    return torch.view_as_real(x.narrow(0, 0, rows.item())).flatten(0, 1)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("function", [without_gradients, to_places_in_data])
def test_those_of_more_than_views_and_sizes_run_eagerly(function: Function) -> None:
    ferrite_torch.reset_statistics()
    compiled = torch.compile(function, backend="ferrite", dynamic=True, fullgraph=True)
    for rows in (4, 6):
        assert_as_eager(compiled, function, torch.randn(rows, 3, dtype=torch.complex64, requires_grad=True))
    assert "elements of the wrong size" in str(ferrite_torch.statistics()["fallbacks"])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_they_are_there_where_the_rest_runs_eagerly() -> None:
    def function(x: Tensor) -> Any:
        x[:, 1:].copy_(x[:, :-1])
        return x.flatten().view(torch.int64), x + 1

    compiled = torch.compile(function, backend="ferrite", dynamic=True)
    for rows in (4, 6):
        assert_as_eager(compiled, function, torch.randint(0, 25, (rows, 6), dtype=torch.int32))
