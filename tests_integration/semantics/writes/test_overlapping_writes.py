"""Ops that write to memory which they read: eager's result or error; those that read elsewhere are compiled."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

from against_eager import assert_worked, compiled, compiled_or_eager, observed_work
from ferrite_torch.sizes.overlaps import overlap, place_of

Write = Callable[[Tensor], Any]
PLACES = torch.tensor([1, 2, 3])


def shift(x: Tensor) -> None:
    x[1:] += x[:-1]


def assign(x: Tensor) -> None:
    x[:, 1:] = x[:, :-1]


def doubled(x: Tensor) -> Tensor:
    z = x * 2
    return z[:, 1:].copy_(z[:, :-1])


def assign_rows(x: Tensor) -> None:
    x[PLACES] = x[0:3]


def assign_first(row: Tensor) -> Tensor:
    row[1:] = row[0] * 2
    row[:1] += 1
    return row


OVERLAPPING: dict[str, Write] = {
    "a transpose": lambda x: x.copy_(x.t()),
    "a transpose that is added": lambda x: torch.add(x, x.t(), out=x),
    "a transpose of its transpose": lambda x: x.t().mul_(x),
    "rows, one further on": lambda x: x[1:].copy_(x[:-1]),
    "columns, one further on": lambda x: x[:, 1:].copy_(x[:, :-1]),
    "columns, one before": lambda x: x[:, :-1].add_(x[:, 1:]),
    "the first column": lambda x: x.add_(x[:, :1]),
    "the first element": lambda x: x.add_(x[0, 0]),
    "a row that is a column": lambda x: x[0].copy_(x[:, 0]),
    "every other": lambda x: x.view(-1)[0:12:2].sub_(x.view(-1)[2:14:2]),
    "+=": shift,
    "an assignment": assign,
    "an assignment by places": assign_rows,
    "a product": lambda x: torch.mm(x, x + 1, out=x),
    "a product with itself": lambda x: x.addmm_(x.t(), x + 1),
    "a sum": lambda x: torch.sum(x, 0, out=x[0]),
    "a triangle": lambda x: torch.tril(x.t(), out=x),
    "an outer product": lambda x: x.addr_(x[0], x[1]),
    "places": lambda x: x.index_add_(0, PLACES, x[0:3]),
    "scattered rows": lambda x: x.scatter_(0, PLACES.expand(4, 3).t(), x[0:3]),
    "lists": lambda x: torch._foreach_copy_([x[1:]], [x[:-1]]),
    "bounds": lambda x: x[1:].clamp_(max=x[:-1]),
    "an intermediate": doubled,
    "bytes": lambda x: x.view(torch.int32)[1:].copy_(x.view(torch.int32)[:-1]),
    "slices of a batch, one element further on": vmap(lambda row: row[1:].copy_(row[:-1])),
    "a row, in each slice of a batch": lambda x: vmap(lambda row: row.add_(x[0]))(x),
    "a batch of one row": lambda x: vmap(lambda row: row.add_(1))(x[0].expand(4, 4)),
    "a batch of windows": lambda x: vmap(lambda row: row.mul_(2))(x.view(-1).unfold(0, 4, 2)),
}
APART: dict[str, Write] = {
    "itself": lambda x: x.mul_(x),
    "columns beside": lambda x: x[:, :2].add_(x[:, 2:]),
    "every other row": lambda x: x[::2].copy_(x[1::2]),
    "halves of rows": lambda x: x.view(-1, 2)[:, 0].sub_(x.view(-1, 2)[:, 1]),
    "a diagonal beside": lambda x: x.diagonal(1).add_(x.diagonal(-1)),
    "what was computed": lambda x: x.copy_(x.t() * 2),
    "itself as a result": lambda x: torch.exp(x, out=x),
    "sums of itself": lambda x: torch.cumsum(x, 0, out=x),
    "its triangle": lambda x: torch.tril(x, out=x),
    "slices of a batch": vmap(assign_first),
    "slices of a batch of columns": vmap(assign_first, in_dims=1, out_dims=1),
    "slices of batches of batches": lambda x: vmap(vmap(assign_first, in_dims=1))(x.view(2, 2, 4)),
    "slices of a batch that is differentiated": vmap(grad(lambda row: assign_first(row.sin()).prod())),
    "what is differentiated": lambda x: jvp(lambda x: assign_first(x.sin()), (x,), (x + 1,)),
}


def outcome(function: Write) -> Any:
    """Returns what a call gives and what it leaves in its input, or the type of its error."""
    x = torch.arange(16.0).reshape(4, 4).sin()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return function(x), x
        except RuntimeError:
            return RuntimeError


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", OVERLAPPING)
def test_what_is_read_while_it_is_written_is_as_in_eager(name: str, *, dynamic: bool) -> None:
    expected = outcome(OVERLAPPING[name])
    found = outcome(compiled_or_eager(OVERLAPPING[name], dynamic=dynamic))
    if expected is RuntimeError:
        assert found is RuntimeError
    else:
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", APART)
def test_what_is_read_elsewhere_is_compiled(name: str, *, dynamic: bool) -> None:
    expected = outcome(APART[name])
    if expected is RuntimeError:
        pytest.skip("this torch refuses it")
    with observed_work() as work:
        torch.testing.assert_close(outcome(compiled(APART[name], dynamic=dynamic)), expected)
    assert_worked(work)


IN_PLACE: dict[str, Write] = {
    "sums into a view of all": lambda x: torch.cumsum(x, 0, out=x[:]),
    "sums of a view of all": lambda x: torch.cumsum(x[:], 1, out=x),
    "sums of rows": lambda x: torch.cumsum(x[1:], 0, out=x[1:]),
    "sums of a turned view": lambda x: torch.cumprod(x.t(), 0, out=x.t()),
    "itself as a view": lambda x: x.mul_(x[:]),
    "rows of itself": lambda x: x[2:].mul_(x[2:]),
    "rows, one further on": lambda x: torch.cumsum(x[:-1], 0, out=x[1:]),
    "rows that are added, one before": lambda x: x[:-1].add_(x[1:]),
    "a turned view": lambda x: x.mul_(x.t()),
}
WRITTEN: dict[str, Write] = {
    "rows by places": lambda x: x.index_put_((PLACES,), torch.zeros(4)),
    "all": lambda x: x.mul_(2),
    "a part": lambda x: x[1:].add_(1),
}


@pytest.mark.parametrize("write", WRITTEN)
@pytest.mark.parametrize("name", IN_PLACE)
def test_what_has_been_written_before_lies_where_it_lay(name: str, write: str) -> None:
    """The input begins within its memory, which the values that writes replace it by do not."""

    def taken_before(x: Tensor) -> tuple[Tensor, Any]:
        part = x[1:-1]
        WRITTEN[write](x)
        return part.mul_(x[1:-1]), IN_PLACE[name](x)

    def outcome(function: Write) -> Any:
        x = torch.arange(25.0).sin()[5:21].view(4, 4)
        try:
            return function(x), x
        except RuntimeError as error:
            return type(error)

    expected = outcome(taken_before)
    with observed_work() as work:
        found = outcome(compiled(taken_before))
    if expected is RuntimeError:
        assert found is RuntimeError
    else:
        torch.testing.assert_close(found, expected)
        assert_worked(work)


def test_places_overlap_where_bytes_do() -> None:
    """Drawn pairs of strided tensors, against the sets of their bytes."""
    rng = random.Random(37)
    for _ in range(2000):
        pair = []
        for _ in range(2):
            shape = tuple(rng.randint(0 if rng.random() < 0.05 else 1, 4) for _ in range(rng.randint(0, 3)))
            pair.append((shape, tuple(rng.randint(0, 9) for _ in shape), rng.randint(0, 30), rng.choice([1, 2, 4])))
        places = [place_of(*each) for each in pair]
        one, other = (bytes_of(*each) for each in pair)
        if None in places:
            assert not one or not other
        else:
            assert overlap(*places) == bool(one & other), pair


def bytes_of(shape: tuple[int, ...], strides: tuple[int, ...], offset: int, itemsize: int) -> set[int]:
    points = itertools.product(*(range(size) for size in shape))
    firsts = {offset + sum(i * step for i, step in zip(point, strides, strict=True)) for point in points}
    return {first * itemsize + byte for first in firsts for byte in range(itemsize)}
