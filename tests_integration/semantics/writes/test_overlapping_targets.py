"""What writes a part of a copy gives eager's values and strides where elements of its operand share memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from against_eager import compiled

Function = Callable[[torch.Tensor], torch.Tensor]

SCATTERS: dict[str, Function] = {
    "select": lambda x: x.select_scatter(x.select(1, 1) + 1, 1, 1),
    "slice": lambda x: x.slice_scatter(-x[:, ::2], 1, 0, None, 2),
    "diagonal": lambda x: x.diagonal_scatter(-x.diagonal(0, 0, 1), 0, 0, 1),
    "strided": lambda x: x.as_strided_scatter(x.reshape(-1)[:4].clone(), (4,), (1,), 0),
}
LAYOUTS: dict[str, tuple[tuple[int, ...], tuple[int, ...], int]] = {
    "expanded": ((3, 4, 5), (5, 0, 1), 0),
    "expanded and transposed": ((3, 4, 5), (16, 0, 50), 0),
    "expanded twice": ((3, 3, 2), (0, 1, 0), 0),
    "windows": ((3, 3, 2), (1, 1, 8), 0),
    "wide windows": ((3, 4), (2, 1), 0),
    "windows further on": ((3, 3, 2), (1, 1, 8), 2),
    "gaps": ((1, 7, 7), (8, 8, 1), 0),
    "gaps, transposed": ((2, 3, 4), (1, 2, 10), 0),
}


def laid_out(layout: str) -> torch.Tensor:
    shape, strides, offset = LAYOUTS[layout]
    return torch.arange(1.0, 300.0).as_strided(shape, strides, offset)


CASES = [(layout, scatter, False) for layout in LAYOUTS for scatter in SCATTERS]
CASES += [(layout, "select", True) for layout in ("expanded", "windows", "gaps, transposed")]
CASES.remove(("windows further on", "strided", False))  # the part begins before the operand does


@pytest.mark.parametrize(("layout", "scatter", "dynamic"), CASES)
def test_a_part_of_a_copy_is_written_as_eager_writes_it(layout: str, scatter: str, *, dynamic: bool) -> None:
    function = SCATTERS[scatter]
    expected = function(laid_out(layout))
    actual = compiled(function, dynamic=dynamic)(laid_out(layout))
    assert torch.equal(actual, expected)
    assert actual.stride() == expected.stride()


WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "all": lambda x: x.fill_(7.0),
    "a part": lambda x: x[1:].fill_(7.0),
    "a part of a transposed view": lambda x: x.transpose(0, 1)[:, 0].zero_(),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("scatter", SCATTERS)
@pytest.mark.parametrize("layout", ["expanded", "expanded and transposed", "expanded twice"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_copy_of_an_expanded_tensor_is_written_to(layout: str, scatter: str, write: str, *, dynamic: bool) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        copy = SCATTERS[scatter](x)
        WRITES[write](copy)
        return copy

    actual, expected = compiled(function, dynamic=dynamic)(laid_out(layout)), function(laid_out(layout))
    assert torch.equal(actual, expected)
    assert actual.stride() == expected.stride()


@pytest.mark.parametrize("scatter", SCATTERS)
def test_a_write_to_what_expands_a_copy_is_refused(scatter: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        copy = SCATTERS[scatter](x)
        copy[:, :1].expand(copy.shape).fill_(7.0)
        return copy

    with pytest.raises(Exception, match="elements share memory"):
        compiled(function)(laid_out("expanded"))


@pytest.mark.parametrize("layout", ["windows", "wide windows", "gaps"])
def test_a_view_of_windows_is_written_through(layout: str) -> None:
    shape, strides, offset = LAYOUTS[layout]

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        memory = x + 1
        part = memory.as_strided(shape, strides, offset)[..., -1:, 0]
        part.mul_(-1)
        return memory, part

    x = torch.arange(1.0, 300.0)
    for actual, expected in zip(compiled(function)(x), function(x), strict=True):
        assert torch.equal(actual, expected)


def test_an_expanded_intermediate_is_written_as_a_clone_of_it() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        repeated = (x // 0.5).expand(2)
        return repeated.slice_scatter(-repeated[::2], 0, 0, None, 2)

    x = torch.tensor(1.5)
    assert torch.equal(compiled(function)(x), function(x))
