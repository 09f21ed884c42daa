"""Results that share memory in eager mode share it compiled, at the same places; no others do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import ferrite_torch
from against_eager import compiled, tensors_of

Function = Callable[[torch.Tensor], Any]

ROWS = torch.tensor([1, 3])
PAIRS = torch.tensor([0, 0, 1, 1])

FUNCTIONS: dict[str, Function] = {
    "as bytes": lambda x: (v := x / 3, v.view(torch.uint8)),
    "as bytes, first": lambda x: ((v := x / 3).view(torch.uint8), v),
    "only views": lambda x: ((v := x / 3)[1:], v.t()),
    "bytes of a part": lambda x: ((v := x / 3)[2:].view(torch.int16), v[:1]),
    "wider elements": lambda x: (v := x.half() * 2, v.view(torch.int64), v[1].view(torch.float32)),
    "other type of a gather": lambda x: (v := x[torch.tensor([0, 1])], v.view(torch.int32)),
    "all of a type and its view": lambda x: (v := x.sum(), v.view(torch.int32)),
    "index_copy of a transposed": lambda x: ((v := torch.index_copy(x.t() * 2, 1, ROWS, x[:, :2]))[1:], v),
    "index_add of a transposed": lambda x: ((v := torch.index_add(x.t() * 2, 0, PAIRS, x))[0], v),
    "index_fill": lambda x: ((v := torch.index_fill(x.t() * 2, 0, ROWS, 3))[0], v),
    "index_put": lambda x: ((v := torch.index_put(x.t() * 2, (ROWS,), x[:2]))[0], v.t(), v),
    "scatter": lambda x: ((v := torch.scatter(x.t() * 2, 0, PAIRS[None], x))[:, 1], v),
    "slice_scatter": lambda x: ((v := torch.slice_scatter(x.t() * 2, x[:2], 0, 1, 3))[1], v),
    "select_scatter": lambda x: ((v := torch.select_scatter(x.t() * 2, x[0], 0, 1))[1], v),
    "diagonal_scatter": lambda x: ((v := torch.diagonal_scatter(x.t() * 2, x[0]))[1], v),
    "masked_scatter": lambda x: ((v := torch.masked_scatter(x.t() * 2, x > 0, x))[1], v),
    "pieces": lambda x: ((x * 2).unbind(0), (x * 3).chunk(2, 1)),
    "pieces and the whole": lambda x: ((v := x * 2).split(2), v.t()),
    "windows": lambda x: ((v := x * 2).unfold(1, 2, 1), v),
    "diagonal": lambda x: ((v := x * 2).diagonal(), v.diagonal(1), v),
    "repeated": lambda x: ((v := x[0] * 2).expand(3, 4), v),
    "strided": lambda x: ((v := x * 2).as_strided((2, 2), (4, 2), 1), v[0]),
    "transposed last row": lambda x: ((v := x / (x.shape[0] + 1) ** 0.5)[:, -1:][:, 0:1].mT, v),
    "detached": lambda x: ((v := x * 2).detach(), v, v.view(16)),
    "the same twice": lambda x: (v := x * 2, v, v.clone()),
    "the same twice, in another layout": lambda x: (v := torch.index_put(x.t() * 2, (ROWS,), x[:2]), v),
    "written through a view": lambda x: (v := x * 2, v[1].add_(1), v.view(torch.int32)),
    "written through bytes": lambda x: (v := x * 2, v.view(torch.int32).zero_()),
    "of an input": lambda x: (x.view(torch.uint8), x[1:], x.t()),
    "of an input and of none": lambda x: (x[1:], (x + 0)[1:]),
    "parts of complex numbers": lambda x: ((v := torch.complex(x, x)).real, v.imag, v),
    "pairs of numbers": lambda x: (torch.view_as_real(v := torch.complex(x, x)), v),
    "conjugate": lambda x: ((v := torch.complex(x, x + 1)).conj(), v, v.mH[1:], v.conj().conj()),
    "conjugate alone": lambda x: torch.complex(x, x + 1).conj(),
    "parts of a conjugate": lambda x: ((v := torch.complex(x, x + 1)).conj().imag, v.conj().real[0], v),
    "negated when it is read": lambda x: (torch._neg_view(v := x * 2), v, v[1]),
    "sum and a part of it": lambda x: ((v := x.sum(0, keepdim=True))[0], v),
    "softmax of a transposed": lambda x: ((v := torch.softmax(x.t(), 0))[1], v),
    "sorted, a part": lambda x: ((v := x.sort(1))[0][0], v[0], v[1][1:], v[1]),
    "dropout of nothing": lambda x: (torch.dropout(v := x * 2, 0.5, train=False), torch.dropout(v, 0.0, train=True), v),
    "dropout of an input": lambda x: (torch.dropout(x, 0.5, train=False), x * 2),
    "written through a dropout": lambda x: (v := x * 2, torch.dropout(v, 0.5, train=False).add_(1)),
    "in place later": lambda x: ((v := x / 3).view(torch.int32), (v + 1).index_add_(0, PAIRS, x), v[1:]),
    "product": lambda x: ((v := x @ x).t(), v[1], v),
    "joined": lambda x: ((v := torch.cat((x, x)))[4:], v[:4]),
}


def places(results: Any) -> list[tuple[int, ...]]:
    """Returns, for each tensor of a result, the first one with the same storage, its offset, strides and marks."""
    found = tensors_of(results)
    owners = [x.untyped_storage().data_ptr() for x in found]
    return [
        (owners.index(owner), x.storage_offset(), *x.stride(), x.is_conj(), x.is_neg())
        for x, owner in zip(found, owners, strict=True)
    ]


BATCHES = [list(FUNCTIONS)[first : first + 13] for first in range(0, len(FUNCTIONS), 13)]
"""Functions that are compiled as one: what one of them returns shares no memory with what another does."""


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("names", BATCHES, ids=[names[0] for names in BATCHES])
def test_results_share_memory_as_in_eager_mode(names: list[str], *, dynamic: bool) -> None:
    def function(x: torch.Tensor) -> list[Any]:
        return [FUNCTIONS[name](x) for name in names]

    x = torch.arange(-5.0, 11.0).view(4, 4)
    expected, actual = function(x.clone()), compiled(function, dynamic=dynamic)(x.clone())
    for name, one, other in zip(names, actual, expected, strict=True):
        torch.testing.assert_close(tensors_of(one), tensors_of(other), msg=lambda text, name=name: f"{name}: {text}")
        assert places(one) == places(other), name
    assert places(actual) == places(expected)


def test_a_write_to_a_result_is_seen_in_the_others() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x / 3
        return y, y.view(torch.uint8), y[1:].t()

    whole, elements, part = compiled(function)(torch.ones(3, 4))
    whole.zero_()
    assert not elements.any()
    assert not part.any()
    elements.fill_(255)
    assert whole.isnan().all()


def test_a_value_that_results_share_is_not_overwritten_later() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x / 3
        bits, first = y.view(torch.int32), y[0]
        return bits, first, torch.index_add(y, 0, torch.tensor([0, 0]), x[:2])

    x = torch.randn(4, 4)
    torch.testing.assert_close(compiled(function)(x), function(x))


@pytest.mark.parametrize("name", ["only views", "pieces and the whole", "diagonal", "transposed last row"])
def test_results_of_a_training_step_share_memory_as_in_eager_mode(name: str) -> None:
    function = FUNCTIONS[name]
    one, other = (torch.arange(-5.0, 11.0).view(4, 4).requires_grad_() for _ in range(2))
    expected, actual = function(one), compiled(function)(other)
    assert places(actual) == places(expected)
    for x, results in ((one, expected), (other, actual)):
        torch.autograd.grad(sum(r.sum() for r in tensors_of(results)), x)  # type: ignore[arg-type]


WRITTEN: dict[str, Function] = {
    "added to": lambda x: (x.add_(1), x.flatten(0, 1))[1],
    "written to itself": lambda x: (x.copy_(x), x.flatten(0, 1))[1],
    "from the second row on": lambda x: (x.mul_(2), x[1:])[1],
    "turned": lambda x: (x.neg_(), x.t())[1],
    "in another type": lambda x: (x.add_(1), x.view(torch.int32))[1],
}


LAID_OUT: dict[str, Callable[[int], tuple[Sequence[int], Sequence[int], int]]] = {
    "a row, every second element": lambda n: ((1, n), (0, 2), 4),
    "rows, every second element": lambda n: ((3, n), (2 * n, 2), 3),
    "columns first": lambda n: ((4, n), (1, 4), 2),
    "a part of each row": lambda n: ((3, n), (n + 7, 1), 5),
}
WIDENED: dict[str, Function] = {
    "rows repeated": lambda x: (x.clamp_(0, 3), x[:1].expand(3, x.shape[1]))[1],
    "turned twice": lambda x: (x.t().mul_(2), x.t().t())[1],
    "turned": lambda x: (x.t().mul_(2), x.t())[1],
    "a part of each row": lambda x: (x.mul_(2), x[:, 2 : x.shape[1] - 1])[1],
    "a row, written to": lambda x: (x[0].mul_(2), x[0].unsqueeze(1))[1],
    "a part of the columns": lambda x: (x.neg_(), x.split(x.shape[1] // 2, 1)[1])[1],
}


@pytest.mark.parametrize("layout", LAID_OUT)
@pytest.mark.parametrize("name", WIDENED)
def test_views_of_written_inputs_lie_as_these_do(name: str, layout: str) -> None:
    """What is computed for an input lies dense, whatever the input's strides are."""
    function = WIDENED[name]
    call = torch.compile(function, backend="ferrite", fullgraph=True, dynamic=True)
    for count in (17, 18, 24):
        memory = [torch.arange(400.0).sub(9) for _ in range(2)]
        given, own = (each.as_strided(*LAID_OUT[layout](count)) for each in memory)
        expected, found = function(given), call(own)
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()
        assert found.storage_offset() == expected.storage_offset()
        assert found.untyped_storage().data_ptr() == own.untyped_storage().data_ptr()
        assert torch.equal(*memory)


@pytest.mark.parametrize("name", WRITTEN)
def test_views_of_written_inputs_begin_where_these_do(name: str) -> None:
    """An input may begin anywhere in its storage, at another place in each call."""
    function = WRITTEN[name]
    call = torch.compile(function, backend="ferrite", fullgraph=True, dynamic=True)
    for rows, columns, begin in ((17, 16, 4), (19, 18, 0), (18, 17, 7)):
        memory = [torch.arange(rows * columns + 8.0) for _ in range(2)]
        given, own = (each.as_strided((rows, columns), (columns, 1), begin) for each in memory)
        expected, found = function(given), call(own)
        assert torch.equal(found, expected)
        assert found.storage_offset() == expected.storage_offset()
        assert found.untyped_storage().data_ptr() == own.untyped_storage().data_ptr()
        assert torch.equal(*memory)


UNSAFE_SPLITS: dict[str, Function] = {
    "chunks": lambda x: torch.unsafe_chunk(x, 2),
    "columns": lambda x: x.unsafe_chunk(2, 1),
    "sizes": lambda x: torch.unsafe_split_with_sizes(x, [1, 5]),
    "parts": lambda x: x.unsafe_split(4),
}


@pytest.mark.parametrize("name", UNSAFE_SPLITS)
def test_splits_that_say_they_copy_are_views(name: str) -> None:
    split = UNSAFE_SPLITS[name]

    def written(x: torch.Tensor) -> Any:
        parts = split(x)
        parts[0].add_(1)
        return x * 2, parts

    x = torch.arange(24.0).view(6, 4)
    for found, expected in zip(compiled(split)(x), split(x), strict=True):
        assert found.data_ptr() == expected.data_ptr()
        assert found.stride() == expected.stride()
    mine, theirs = x.clone(), x.clone()
    (double, parts), (wanted, others) = compiled(written)(mine), written(theirs)
    assert torch.equal(mine, theirs)
    assert torch.equal(double, wanted)
    assert all(map(torch.equal, parts, others))


@pytest.mark.parametrize("name", UNSAFE_SPLITS)
def test_autograd_allows_writes_to_such_parts(name: str) -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        first, *_, last = UNSAFE_SPLITS[name](x * 2)
        first.add_(1)
        return (first * last.mean()).mean()

    x = torch.randn(6, 4, requires_grad=True)
    torch.testing.assert_close(*(torch.autograd.grad(call(x), x) for call in (compiled(loss), loss)))


@pytest.mark.parametrize("name", UNSAFE_SPLITS)
@pytest.mark.parametrize("writes_whole", [False, True])
def test_writes_that_reach_the_whole_and_a_part_are_eager_modes(name: str, *, writes_whole: bool) -> None:
    """With a gradient, where autograd is not told: such a graph runs eagerly."""

    def function(x: torch.Tensor) -> Any:
        y = x * 2
        parts = UNSAFE_SPLITS[name](y)
        (y if writes_whole else parts[0]).add_(5)
        return y.sin() if not writes_whole else parts[0].cos()

    x = torch.randn(6, 4, requires_grad=True)
    ferrite_torch.reset_statistics()
    torch.testing.assert_close(torch.compile(function, backend="ferrite")(x), function(x))
    assert len(ferrite_torch.statistics()["fallbacks"]) == 1


PARTS: dict[str, Function] = {
    "real parts": lambda x: (x.real.mul_(2), x),
    "imaginary parts": lambda x: (x.imag.zero_(), x, x.real),
    "parts of a row": lambda x: (x.real[1].mul_(2), x, x.imag),
    "pairs": lambda x: (torch.view_as_real(x).mul_(2), x[1:]),
    "one after the other": lambda x: (x.real.mul_(2), x.imag.mul_(3), x.real, x.mul_(2j)),
    "as floats": lambda x: (x.view(torch.float32).mul_(2), x),
}


@pytest.mark.parametrize("name", PARTS)
def test_writes_to_parts_of_complex_inputs_are_seen_in_views_of_these(name: str) -> None:
    """A library makes the parts: values of another type than the input, in its memory."""
    function, x = PARTS[name], torch.complex(torch.arange(6.0), torch.ones(6)).view(2, 3)
    given, own = x.clone(), x.clone()
    expected, found = (given, *function(given)), (own, *compiled(function)(own))
    torch.testing.assert_close(found, expected)
    assert places(found) == places(expected)
