"""Products that are put beside other values: the library writes them where they belong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ferrite_torch
from ferrite_scheduler.rewrites.stored_slices import TAKES_DENSE, TAKES_ROWS

OPTIONS = {"fallback": False, "products": "library", "policy": {"slice_bytes": 0}}


def written(function: Callable[..., Any], *inputs: torch.Tensor, dynamic: bool = False) -> int:
    """Returns how many calls write to slices; results and gradients are eager's."""
    torch._dynamo.reset()
    ferrite_torch.reset_statistics()
    compiled = torch.compile(function, backend="ferrite", options=OPTIONS, dynamic=dynamic)
    given = [[x.clone().requires_grad_(x.requires_grad) for x in inputs] for _ in range(2)]
    for _ in range(2):
        found, expected = compiled(*given[0]), function(*given[1])
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        assert found.stride() == expected.stride()
        if expected.requires_grad:
            for one, other in ((found, given[0]), (expected, given[1])):
                torch.autograd.backward(one.sin().sum(), inputs=[x for x in other if x.requires_grad])
    for one, other in zip(*given, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)
    steps = [step for program in ferrite_torch.compiled_programs() for step in program["steps"]]
    return sum(step.get("target", "").endswith(("mm.out", "bmm.out")) for step in steps)


X, Y, A, B = torch.randn(2, 8, 16), torch.randn(2, 8, 16), torch.randn(16, 16), torch.randn(16, 8)


@pytest.mark.parametrize("dynamic", [False, True])
def test_side_by_side(dynamic: bool) -> None:  # noqa: FBT001 - pytest's way
    count = written(lambda x, y, a, b: torch.cat([x @ a, y @ b, x @ b], -1), X, Y, A, B, dynamic=dynamic)
    assert count == (0 if dynamic else 3)


def test_one_below_the_other_and_beside_a_kernel() -> None:
    assert written(lambda x, y, a: torch.cat([x[0] @ a, y[1] @ a, x[1].relu()]), X, Y, A) == 2
    assert written(lambda x, y, a: torch.cat([y[1].sigmoid(), x[0] @ a], 1), X, Y, A) == 1


def test_batches_and_rows_of_a_sum() -> None:
    assert written(lambda x, y: torch.cat([x @ y.mT, y @ x.mT], 2), X, Y) == 2
    linear = torch.nn.functional.linear
    assert written(lambda x, y, a, b: torch.cat([linear(x[0], a, b[0]), y[0] @ a]), X, Y, A, torch.randn(1, 16)) == 2


def test_gradients_of_parts_of_a_weight() -> None:
    """The gradient of what was cut in parts is their gradients, side by side again."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        first, second = x.split(8, 1)
        return (first @ w) * (second @ w)

    assert written(function, X[0].clone().requires_grad_(), torch.randn(8, 8)) == 2


def test_rows_that_begin_anywhere_are_copied() -> None:
    assert written(lambda x, b: torch.cat([x[0] @ b[:, :3], x[1] @ b[:, :3]], 1), X, B) == 0


def test_what_is_written_in_slices_says_why() -> None:
    explained = ferrite_torch.explain(lambda x, y, a: torch.cat([x[0] @ a, y[0] @ a], 1), X, Y, A, options=OPTIONS)
    (graph,) = explained.graphs
    assert "stored_slices: " in graph.why("mm_stored", "cat")
    assert "the library writes to its slice of a concatenation" in graph.why("mm_stored", "cat")


@pytest.mark.parametrize("name", sorted(TAKES_ROWS | TAKES_DENSE))
def test_operators_write_to_what_they_are_given(name: str) -> None:
    """Those that torch generated compute a result of their own, and copy it."""
    packet = getattr(torch.ops.aten, name.removeprefix("aten."))
    assert torch.Tag.generated not in packet.out.tags
    declared, into = packet.default._schema.arguments, packet.out._schema.arguments
    assert [each.name for each in into if not each.is_out] == [each.name for each in declared]
    assert [each.name for each in into if each.is_out] == ["out"]


@pytest.mark.parametrize("name", ["convolution", "embedding", "native_layer_norm"])
def test_operators_that_copy_are_not_asked(name: str) -> None:
    assert torch.Tag.generated in getattr(torch.ops.aten, name).out.tags
    assert f"aten.{name}" not in TAKES_ROWS | TAKES_DENSE
