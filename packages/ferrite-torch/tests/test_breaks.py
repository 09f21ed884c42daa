"""What dynamo hands to no backend is counted in its words, and explained, with its line where dynamo has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import ferrite_torch


def as_sparse(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


def with_distinct(x: torch.Tensor) -> torch.Tensor:
    return torch.unique(x) + 1


def with_break(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    torch._dynamo.graph_break()
    return y.cos()


def with_kept_out(x: torch.Tensor) -> torch.Tensor:
    return _kept_out(x.sin()) + 1


@torch.compiler.disable
def _kept_out(x: torch.Tensor) -> torch.Tensor:
    return x * 2


CASES: dict[str, tuple[Callable[..., Any], Callable[[], torch.Tensor], str]] = {
    "whole function": (as_sparse, lambda: torch.eye(3).to_sparse(), "sparse Tensor"),
    "size that data tell": (with_distinct, lambda: torch.tensor([1.0, 2.0, 1.0]), "Dynamic shape operator"),
    "asked for": (with_break, lambda: torch.ones(3), "graph_break"),
    "kept out": (with_kept_out, lambda: torch.ones(3), "torch.compiler.disable"),
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    ferrite_torch.reset_statistics()
    yield
    torch._dynamo.reset()
    ferrite_torch.reset_statistics()


@pytest.mark.parametrize("name", CASES)
def test_breaks_are_counted_in_dynamos_words(name: str) -> None:
    function, make, words = CASES[name]
    compiled = torch.compile(function, backend="ferrite")
    for _ in range(3):
        compiled(make())
    found = ferrite_torch.statistics()["breaks"]
    assert any(words in reason for reason in found)
    assert not ferrite_torch.statistics()["fallbacks"]
    ferrite_torch.reset_statistics()
    assert ferrite_torch.statistics()["breaks"] == {}


@pytest.mark.parametrize("name", CASES)
def test_breaks_are_explained_and_not_counted_for_it(name: str) -> None:
    function, make, words = CASES[name]
    explained = ferrite_torch.explain(function, make())
    assert any(words in each.reason for each in explained.breaks)
    assert "graph break: " in str(explained)
    assert ferrite_torch.statistics()["breaks"] == {}


def test_a_whole_graph_has_no_breaks() -> None:
    torch.compile(torch.sin, backend="ferrite")(torch.ones(3))
    assert ferrite_torch.statistics()["breaks"] == {}
    assert ferrite_torch.explain(torch.sin, torch.ones(3)).breaks == ()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: ferrite_torch.compile(3),  # type: ignore[arg-type]
        lambda: ferrite_torch.compile(torch.sin, fullgraph=1),  # type: ignore[arg-type]
        lambda: ferrite_torch.compile(torch.sin, dynamic="yes"),  # type: ignore[arg-type]
        lambda: ferrite_torch.compile(torch.sin, FALLBACK=True),
        lambda: ferrite_torch.explain(torch.sin, torch.ones(3), dynamic="yes"),  # type: ignore[arg-type]
        lambda: ferrite_torch.save_caches(3),  # type: ignore[arg-type]
        lambda: ferrite_torch.load_caches(None),  # type: ignore[arg-type]
    ],
)
def test_what_functions_do_not_take_is_refused_by_name(wrong: Callable[[], object]) -> None:
    with pytest.raises(ferrite_torch.OptionError, match=r"it takes|did you mean 'fallback'"):
        wrong()
