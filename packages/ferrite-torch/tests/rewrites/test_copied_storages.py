from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

import ferrite_torch

Program = Callable[[torch.Tensor, torch.Tensor], list[torch.Tensor]]


def selected(x: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
    t = x.select(0, -3).select_scatter(x[0, 0] * 2, 0, 1)
    return [t.as_strided_scatter(v, (1,), (1,), 0), t.as_strided_scatter(v, (1,), (1,), 5)]


def sliced(x: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
    t = x[1:].slice_scatter(x[:1] * 2, 0, 0, 1)
    return [t.as_strided_scatter(v, (1,), (1,), 7), t.as_strided((2,), (1,), 15)]


def of_a_diagonal(x: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
    t = torch.diagonal_scatter(x[1], x[0, 0] * 2)
    return [t.as_strided_scatter(v, (1,), (1,), 0), t.as_strided((2, 2), (4, 1), 0)]


def beside_gaps(x: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
    t = x[:, 1:3]
    return [t.as_strided_scatter(v, (1,), (1,), 0), t.as_strided_scatter(v, (1,), (1,), 4)]


def written(x: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
    y = x.clone()
    y[1:].fill_(3)
    return [y[1:].as_strided_scatter(v, (1,), (1,), 0), y[1:].as_strided_scatter(v, (1,), (1,), 20), y]


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("program", [selected, sliced, of_a_diagonal, beside_gaps, written])
def test_a_copy_holds_the_storage_that_its_operand_lies_in(program: Program, *, is_dynamic: bool) -> None:
    x, v = torch.randn(4, 4, 4), torch.full((1,), 100.0)
    expected = program(x.clone(), v)
    torch._dynamo.reset()
    ferrite_torch.reset_statistics()
    found = torch.compile(program, backend="ferrite", dynamic=is_dynamic)(x, v)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()
    assert not ferrite_torch.statistics()["fallbacks"]


def test_the_gradient_passes_a_copied_storage() -> None:
    x, v = torch.randn(4, 4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)

    def program(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return x[1:].select_scatter(v, 0, 1).as_strided((2, 3), (3, 1), 20).exp()

    def gradients(function: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(function(x, v).sum(), (x, v))

    torch._dynamo.reset()
    torch.testing.assert_close(gradients(torch.compile(program, backend="ferrite")), gradients(program))


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.slice_scatter(x[:, :2] * 2, 1, 0, 2),
        lambda x: x.select_scatter(x[:, 0] * 2, 1, 1),
        lambda x: x.diagonal_scatter(x.diagonal() * 2),
        lambda x: x[:, 1:].slice_scatter(x[:1, 1:] * 2, 0, 1, 2),
    ],
)
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_gradients_of_copies_lie_as_they_come(
    write: Callable[[torch.Tensor], torch.Tensor], *, is_dynamic: bool
) -> None:
    """A copy begins where its operand does; what autograd passes back to it does not."""
    x = torch.randn(9).as_strided((2, 3), (3, 1), 3).requires_grad_()

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return write(x), x.as_strided((2,), (1,), 4)  # counts places, so that copies are made of whole storages

    def gradients(function: Callable[..., tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, ...]:
        one, other = function(x)
        return torch.autograd.grad(one.sin().sum() + other.sum(), (x,))

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="ferrite", dynamic=is_dynamic, options={"fallback": False})
    if is_dynamic and torch.__version__ >= "2.15":
        with pytest.raises(BackendCompilerFailed, match="whose size the graph is not given"):
            compiled(x)
    else:
        torch.testing.assert_close(gradients(compiled), gradients(program))


def test_memory_around_a_written_input_is_refused() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x[0:].fill_(0)
        return x.as_strided_scatter(torch.ones(4), (4,), (1,), 0)

    def given() -> torch.Tensor:
        return torch.arange(10.0)[2:]

    torch._dynamo.reset()
    assert torch.equal(torch.compile(program, backend="ferrite")(given()), program(given()))
    assert any("memory around a tensor" in reason for reason in ferrite_torch.statistics()["fallbacks"])
