"""Custom operators that write to views of inputs, and other calls that count places from the start of their memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from against_eager import assert_worked, compiled, compiled_or_eager, observed_work, tensors_of

NAMESPACE = "operators_that_write"


@torch.library.custom_op(f"{NAMESPACE}::add_to", mutates_args=("x",))
def add_to(x: Tensor, number: float) -> None:
    x.add_(number)


@torch.library.custom_op(f"{NAMESPACE}::double_all", mutates_args=("xs",))
def double_all(xs: list[Tensor]) -> None:
    for x in xs:
        x.mul_(2)


def packed(begin: int) -> Tensor:
    return torch.arange(60.0)[begin : begin + 24].view(4, 6)


def transposed(begin: int) -> Tensor:
    return torch.arange(60.0)[begin : begin + 24].view(6, 4).t()


def with_gaps(begin: int) -> Tensor:
    return torch.arange(60.0)[begin : begin + 36].view(4, 9)[:, :6]


INPUTS: dict[str, Callable[[int], Tensor]] = {"packed": packed, "transposed": transposed, "with gaps": with_gaps}
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "all of it": lambda x: x,
    "columns": lambda x: x[:, 1:3],
    "rows": lambda x: x[1:],
    "a row": lambda x: x[1],
    "a diagonal": lambda x: x.diagonal(),
    "a part of its transpose": lambda x: x.t()[1:, :2],
    "every other": lambda x: x[::2, ::2],
}


def alone(x: Tensor, view: Callable[[Tensor], Tensor]) -> Any:
    y = view(x)
    add_to(y, 0.5)
    return x * 2, y


def after_a_write(x: Tensor, view: Callable[[Tensor], Tensor]) -> Any:
    y = view(x)
    x.mul_(2)
    add_to(y, 0.5)
    y.mul_(3)
    double_all([y])
    return x * 2, y


def twice(x: Tensor, view: Callable[[Tensor], Tensor]) -> Any:
    add_to(view(x), 0.5)
    add_to(view(x), 1.5)
    return x * 2, view(x)


WRITES = {"alone": alone, "after a write": after_a_write, "twice": twice}


def outcome(function: Callable[[Tensor], Any], x: Tensor) -> list[Any]:
    """Returns what a call gives and leaves in all of the memory that its input lies in."""
    memory = x.as_strided((60,), (1,), 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = tensors_of(function(x))
    return [*found, memory, [(each.stride(), each.storage_offset()) for each in found]]


@pytest.mark.parametrize("begins", [(0, 6, 7), (6, 0), (7, 12)], ids=str)
@pytest.mark.parametrize("lies", INPUTS)
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", VIEWS)
def test_a_custom_operator_writes_where_it_does_in_eager_mode(
    name: str, write: str, lies: str, begins: tuple[int, ...]
) -> None:
    """One graph for inputs that begin at different places of their memory, which nothing guards."""

    def function(x: Tensor) -> Any:
        return WRITES[write](x, VIEWS[name])

    called = compiled_or_eager(function, dynamic=False)
    for begin in begins:
        expected = outcome(function, INPUTS[lies](begin))
        torch.testing.assert_close(outcome(called, INPUTS[lies](begin)), expected)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", VIEWS)
def test_a_write_to_a_view_of_what_fills_its_memory_is_compiled(name: str, write: str) -> None:
    def function(x: Tensor) -> Any:
        return WRITES[write](x, VIEWS[name]), WRITES[write](x * 2, VIEWS[name])

    expected = tensors_of(function(torch.arange(24.0).view(4, 6)))
    with observed_work() as work:
        found = tensors_of(compiled(function)(torch.arange(24.0).view(4, 6)))
    torch.testing.assert_close(found, expected)
    assert_worked(work)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_places_in_memory_are_those_of_each_input(*, dynamic: bool) -> None:
    def function(x: Tensor) -> Any:
        y = x.as_strided((2, 3), (6, 1), 13)
        y.mul_(2)
        return y, x + 1

    called = compiled_or_eager(function, dynamic=dynamic)
    for begin in (0, 6, 7, 0):
        torch.testing.assert_close(outcome(called, packed(begin)), outcome(function, packed(begin)))


BY_STRIDES: dict[str, Callable[[Tensor], Tensor]] = {
    "from where it begins": lambda x: x.as_strided((2, 2), (7, 1)),
    "from the start of its memory": lambda x: x.as_strided((3,), (2,), 8),
    "of a view": lambda x: x[1:].as_strided((3,), (1,), 13),
}


@pytest.mark.parametrize("is_before", [False, True], ids=["after the write", "before the write"])
@pytest.mark.parametrize("begin", [0, 6])
@pytest.mark.parametrize("lies", INPUTS)
@pytest.mark.parametrize("name", BY_STRIDES)
def test_a_view_by_strides_sees_a_write_to_its_input(name: str, lies: str, begin: int, *, is_before: bool) -> None:
    def function(x: Tensor) -> Any:
        y = BY_STRIDES[name](x) if is_before else x
        x.mul_(2)
        return (y if is_before else BY_STRIDES[name](x)) + 0, x + 1

    called = compiled_or_eager(function, dynamic=False)
    torch.testing.assert_close(outcome(called, INPUTS[lies](begin)), outcome(function, INPUTS[lies](begin)))
