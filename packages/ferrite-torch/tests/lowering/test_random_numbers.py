"""Random numbers: ranges, moments and types; the numbers themselves are not eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_uniform_numbers_stay_below_one(drawn: Any, dtype: torch.dtype) -> None:
    (numbers,) = drawn(lambda: torch.rand(40, 50, dtype=dtype))
    assert 0 <= numbers.min() < 0.01
    assert 0.99 < numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.03


def test_normal_numbers(drawn: Any) -> None:
    (numbers,) = drawn(lambda: torch.randn(2000))
    assert abs(numbers.mean()) < 0.1
    assert abs(numbers.std() - 1) < 0.1


def test_shifted_and_scaled_numbers(drawn: Any) -> None:
    x = torch.zeros(1000)
    (uniform,) = drawn(lambda x: aten.uniform(x, 2.0, 3.0), x)
    assert 2 <= uniform.min() < uniform.max() <= 3
    (normal,) = drawn(lambda x: aten.normal_functional(x, 2.0, 3.0), x)
    assert abs(normal.mean() - 2) < 0.5
    (exponential,) = drawn(lambda x: aten.exponential(x, 2.0), x)
    assert exponential.min() >= 0
    assert abs(exponential.mean() - 0.5) < 0.1
    (spread,) = drawn(lambda x: torch.normal(x + 5, 0.1), x)
    assert abs(spread.mean() - 5) < 0.05


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.randint(2, 10, (300,)),
        lambda x: torch.randint_like(x, 2, 10),
        lambda x: torch.randint(8, (300,)) + 2,
        lambda x: torch.randint_like(x, 8) + 2,
    ],
)
def test_random_integers(drawn: Any, function: Any) -> None:
    (numbers,) = drawn(function, torch.zeros(300))
    assert set(numbers.tolist()) == set(range(2, 10))


def test_bernoulli(drawn: Any) -> None:
    chances = torch.tensor([0.0, 1.0, 0.3]).repeat(400, 1)
    (numbers,) = drawn(torch.bernoulli, chances)
    assert numbers[:, 0].sum() == 0
    assert numbers[:, 1].sum() == 400
    assert abs(numbers[:, 2].mean() - 0.3) < 0.1
    (numbers,) = drawn(lambda x: aten.bernoulli.p(x, 0.3), torch.zeros(1000))
    assert abs(numbers.mean() - 0.3) < 0.1


def test_dropout_scales_what_it_keeps(drawn: Any) -> None:
    kept, mask = drawn(lambda x: aten.native_dropout(x, 0.25, True), torch.ones(1000))
    assert torch.equal(kept != 0, mask)
    torch.testing.assert_close(kept[mask], torch.full_like(kept[mask], 4 / 3), rtol=1e-6, atol=0)
    assert abs(mask.double().mean() - 0.75) < 0.05
    same, everything = drawn(lambda x: aten.native_dropout(x, 0.25, False), torch.ones(10))
    assert same.tolist() == [1] * 10
    assert everything.all()


def test_gradient_of_dropout(agree: Any) -> None:
    agree(lambda g, m: aten.native_dropout_backward(g, m, 2.0), torch.randn(5), torch.rand(5) > 0.5)


def test_every_draw_has_its_own_seed(drawn: Any) -> None:
    first, second = drawn(lambda: (torch.rand(50), torch.rand(50)))
    assert not torch.equal(first, second)


def test_a_generator_of_the_user_is_left_to_the_library(lower_one: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    module = lower_one(lambda x: x + 0 * torch.rand(3), torch.zeros(3))
    assert not module.externs
    assert generator.initial_seed() == 0
