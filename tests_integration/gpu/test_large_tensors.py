"""Tensors whose elements, bytes or programs do not fit 32-bit or 16-bit counters."""

from collections.abc import Callable

import pytest
import torch

WIDE = 2**31 + 4096
OPTIONS = {"fallback": False}


@pytest.fixture(autouse=True)
def forget_compilations() -> None:
    torch._dynamo.reset()
    torch.cuda.empty_cache()


def compiled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return torch.compile(function, backend="ferrite", options=OPTIONS, fullgraph=True)


def test_pointwise_over_more_than_two_to_the_31_elements() -> None:
    x = torch.arange(256, dtype=torch.uint8, device="cuda").repeat(WIDE // 256)
    y = compiled(lambda t: t + 1)(x)
    for start in (0, 2**31 - 512, WIDE - 512):
        assert torch.equal(y[start : start + 512], x[start : start + 512] + 1)


def test_sum_over_more_than_two_to_the_31_elements() -> None:
    x = torch.ones(WIDE, dtype=torch.int8, device="cuda")
    assert compiled(lambda t: t.sum())(x).item() == WIDE


def test_gather_beyond_two_to_the_31() -> None:
    x = torch.zeros(WIDE, dtype=torch.uint8, device="cuda")
    places = torch.tensor([0, 5, 2**31 - 1, 2**31 + 7, WIDE - 1], device="cuda")
    x[places] = torch.tensor([1, 2, 3, 4, 5], dtype=torch.uint8, device="cuda")
    assert compiled(lambda t, i: t[i] * 2)(x, places).tolist() == [2, 4, 6, 8, 10]


def test_transposition_of_a_matrix_of_more_than_two_to_the_31_elements() -> None:
    x = torch.arange(47_000, dtype=torch.int16, device="cuda")[:, None] + torch.zeros(
        1, 47_000, dtype=torch.int16, device="cuda"
    )
    y = compiled(lambda t: t.t().contiguous() + 1)(x)
    assert torch.equal(y[46_999], x[:, 46_999] + 1)
    assert torch.equal(y[:, 46_999], x[46_999] + 1)


@pytest.mark.parametrize("shape", [(70_000, 3, 5), (3, 70_000, 5), (3, 5, 70_000), (66_000, 1, 66)], ids=str)
def test_more_programs_along_an_axis_than_a_grid_axis_has(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, device="cuda")
    torch.testing.assert_close(compiled(lambda t: t.transpose(0, 2).contiguous() * 2)(x), x.transpose(0, 2) * 2)
    # A sum of 70,000 numbers of size one carries about 1e-4 of rounding in float32, in any order.
    torch.testing.assert_close(compiled(lambda t: t.sum(1))(x).double(), x.double().sum(1), rtol=1e-5, atol=1e-3)
