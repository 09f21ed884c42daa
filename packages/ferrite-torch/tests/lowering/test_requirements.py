"""Conditions on the contents of tensors: where they are asked, where they are proved, and what a call raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, arange, ones, tensor, zeros

from ferrite_torch.capture.model_capture import place_on
from ferrite_torch.graphs.graph_lowering import lower_module
from ferrite_torch.torch_private.fake_tensors import fake_mode
from ferrite_torch.torch_private.tracing import trace_functional

Lower = Callable[..., dict[str, Any]]


def text_of(lowered: Lower, function: Callable[..., Any], *inputs: Any) -> str:
    return "\n".join(str(module.graph) for module in lowered(function, *inputs).values())


PROVED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a range": (lambda x: x[arange(5)], (zeros(5),)),
    "a range from behind": (lambda x: x[arange(5) - 5], (zeros(5),)),
    "a choice": (lambda x: x[torch.where(x > 0, 4, 1)], (zeros(5),)),
    "a comparison": (lambda x: x[(x > 0).long() * 4], (zeros(5),)),
    "random numbers": (lambda x: x[torch.randint(0, 5, (7,))], (zeros(5),)),
    "a row of zeros": (lambda i: zeros(5)[i % 5 * 0], (tensor([3]),)),
    "indices from memory": (lambda x, i: x[i], (zeros(5), tensor([3]))),
    "places of a sort": (lambda x: x[x.argsort()], (zeros(5),)),
    "places of the largest": (lambda x: x.gather(1, x.argmax(1, keepdim=True)), (zeros(4, 5),)),
    "the first places of many": (lambda x: x[x.topk(2)[1]], (zeros(5),)),
    "places in any order": (lambda x: x[torch.randperm(5)], (zeros(5),)),
    "counts from memory": (lambda x, n: x[n.cumsum(0)], (zeros(5), arange(3))),
    "positions of a sort": (lambda x: torch.searchsorted(x, x, sorter=x.argsort()), (zeros(5),)),
    "a row beside a constant one": (lambda x, i: F.pad(x, (0, 0, 1, 0))[1, i], (zeros(2, 5), tensor([3]))),
    "divisors that are numbers": (lambda x: x // 3, (arange(5),)),
}
ASKED: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "a choice": (lambda x: x[torch.where(x > 0, 9, 1)], (zeros(5),), "index"),
    "a range that is indexed": (lambda i: arange(5)[i], (tensor([3]),), "index"),
    "an expanded tensor": (lambda x, i: x.expand(3, 5).gather(1, i), (zeros(3, 1), zeros(3, 1).long()), "index"),
    "a constant row": (lambda x, i: F.pad(x, (0, 0, 1, 0))[0, i], (zeros(2, 5), tensor([3])), "index"),
    "a row that is written": (
        lambda x, i: x.select_scatter(ones(5), 0, 0)[0, i],
        (zeros(2, 5), tensor([3])),
        "index",
    ),
    "a difference of equals": (lambda i: (arange(5) - arange(5))[i], (tensor([3]),), "index"),
    "a part of joined rows": (lambda x, i: torch.cat([ones(1, 5), x])[:1, i], (zeros(2, 5), tensor([3])), "index"),
    "a number": (lambda x, i: x.take(i), (tensor(5.0), tensor([0])), "index"),
    "places of the largest among more": (lambda x, y: y[x.argmax(1)], (zeros(4, 5), zeros(4)), "index"),
    "places of a sort of more": (lambda x, y: y[x.argsort()[:4]], (arange(5.0), zeros(4)), "index"),
    "sorted numbers": (lambda x, i: x[i.sort()[0]], (zeros(5), arange(3)), "index"),
    "counts": (lambda x, y: x[(y > 0).sum(1)], (zeros(5), zeros(4, 5)), "index"),
    "counts of one": (lambda x, y: x[(y > 0).cumsum(1)], (zeros(5), zeros(4, 1)), "index"),
    "whether there is one": (lambda x, y: x[(y > 0).any(1).long() * 5], (zeros(5), zeros(4, 3)), "index"),
    "divisors": (lambda x, y: x // y, (arange(5), arange(1, 6)), "divisor"),
    "remainders": (lambda x, y: x % y, (arange(5), arange(1, 6)), "divisor"),
    "probabilities": (torch.bernoulli, (zeros(3),), "probability"),
    "deviations": (lambda s: torch.normal(0.0, s), (ones(3),), "deviation"),
    "weights": (lambda w: torch.multinomial(w, 1), (ones(3),), "weight"),
    "repeats": (lambda x, n: x.repeat_interleave(n, output_size=2), (zeros(1), tensor([2])), "repeats"),
    "histograms": (lambda x: torch.histc(x, 4), (arange(4.0),), "finite_range"),
    "sorters": (lambda x, s: torch.searchsorted(x, x, sorter=s), (arange(3.0), arange(3)), "sorter"),
    "losses": (F.binary_cross_entropy, (ones(3), ones(3)), "unit_target"),
}


@pytest.mark.parametrize("name", PROVED)
def test_what_is_known_is_not_asked(lowered: Lower, name: str) -> None:
    function, inputs = PROVED[name]
    assert "require_" not in text_of(lowered, function, *inputs)


@pytest.mark.parametrize("name", ASKED)
def test_what_is_not_known_is_asked(lowered: Lower, name: str) -> None:
    function, inputs, what = ASKED[name]
    assert f"require_{what}(" in text_of(lowered, function, *inputs)


def divide(x: Tensor, y: Tensor) -> Tensor:
    return x // y


REFUSED: dict[str, tuple[Callable[..., Any], tuple[Any, ...], type[Exception], str]] = {
    "division": (divide, (arange(3), tensor([1, 0, 2])), RuntimeError, "ZeroDivisionError"),
    "many divisions": (divide, (arange(3000), 1 - arange(3000)), RuntimeError, "ZeroDivisionError"),
    "a range": (lambda x: x[arange(6)], (zeros(5),), IndexError, "index out of bounds"),
    "places of the largest of a window": (
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
        (arange(81.0).reshape(1, 9, 9),),
        RuntimeError,
        "index out of bounds",
    ),
    "places of the largest": (
        lambda x, y: y[x.argmax(1)],
        (arange(8.0).reshape(2, 4), zeros(3)),
        IndexError,
        "index out",
    ),
    "numbers in order": (
        lambda x, y: y.gather(0, x.sort()[0].long()),
        (arange(4.0), zeros(3)),
        RuntimeError,
        "index out",
    ),
    "places in any order": (
        lambda y: y.gather(0, torch.randperm(4)),
        (zeros(3),),
        RuntimeError,
        "index out of bounds",
    ),
    "a number that one says there is": (
        lambda x, y: y.gather(0, torch.isin(x, ones(1)).long() * 3),
        (ones(2), zeros(3)),
        RuntimeError,
        "index out of bounds",
    ),
    "NaN": (torch.bernoulli, (tensor([0.5, float("nan")]),), RuntimeError, "probabilities"),
    "rows without weight": (
        lambda w: torch.multinomial(w, 2, replacement=True),
        (tensor([[1.0, 2.0], [0.0, 0.0]]),),
        RuntimeError,
        "sum of its probabilities",
    ),
    "a sorter": (
        lambda x, s: torch.searchsorted(x, x, sorter=s),
        (arange(3.0), tensor([0, 1, 9])),
        RuntimeError,
        "sorter",
    ),
    "a sorter that no search reads to its end": (
        lambda x, s: torch.searchsorted(x, 0.0, sorter=s),
        (arange(3.0), tensor([0, 1, 3])),
        RuntimeError,
        "sorter",
    ),
    "a sorter below zero": (
        lambda x, s: torch.searchsorted(x, zeros(2, 1), sorter=s),
        (arange(6.0).reshape(2, 3), tensor([[0, 1, 2], [0, 1, -1]])),
        RuntimeError,
        "sorter",
    ),
    "places in a constant row": (
        lambda x, i: F.pad(x, (0, 0, 1, 0))[0, i],
        (zeros(2, 5), tensor([5])),
        IndexError,
        "index out of bounds",
    ),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_a_call_raises_what_eager_raises(name: str, *, dynamic: bool) -> None:
    function, inputs, kind, message = REFUSED[name]
    with pytest.raises(kind):
        function(*inputs)
    with pytest.raises(kind, match=message):
        torch.compile(function, backend="ferrite", dynamic=dynamic)(*inputs)


def test_gpus_divide_by_zero() -> None:
    """There eager asks nothing either: a graph is moved to the GPU before it is lowered."""
    inputs = [torch.arange(3), torch.arange(3)]
    with fake_mode() as mode:
        fakes = [mode.from_tensor(value) for value in inputs]
        module, _ = trace_functional(lambda x, y: (x // y,), fakes, joint=False, decompositions={})
    assert "require_divisor" in str(lower_module(module).graph)
    place_on(module, "cuda")
    assert "require_divisor" not in str(lower_module(module).graph)
