"""Random ops: the same seed gives the same numbers, calls differ, and the numbers have the distribution they should.

Continuous ones are held against their distribution function (Kolmogorov and Smirnov), discrete ones against their
probabilities (Pearson); both tests would reject a right sample once in a thousand times, and the seed is fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from against_eager import compiled, devices

aten = torch.ops.aten
COUNT = {"cpu": 6_000, "cuda": 400_000}

each_device = pytest.mark.parametrize("device", devices())
Function = Callable[[Tensor], Tensor]

CONTINUOUS: dict[str, tuple[Function, Callable[[Tensor], Tensor]]] = {
    "rand_like": (torch.rand_like, lambda v: v),
    "uniform_": (lambda x: x.clone().uniform_(-1, 3), lambda v: (v + 1) / 4),
    "randn_like": (torch.randn_like, torch.special.ndtr),
    "normal_": (lambda x: x.clone().normal_(1, 2), lambda v: torch.special.ndtr((v - 1) / 2)),
    "normal of tensors": (lambda x: torch.normal(x + 1, x + 2), lambda v: torch.special.ndtr((v - 1) / 2)),
    "exponential_": (lambda x: x.clone().exponential_(2), lambda v: 1 - torch.exp(-2 * v)),
    "cauchy_": (lambda x: x.clone().cauchy_(1, 2), lambda v: torch.atan((v - 1) / 2) / math.pi + 0.5),
    "log_normal_": (lambda x: x.clone().log_normal_(0.5, 0.7), lambda v: torch.special.ndtr((v.log() - 0.5) / 0.7)),
    "rrelu": (lambda x: -F.rrelu(x - 1, 0.2, 0.7, training=True), lambda v: (v - 0.2) / 0.5),
}

WEIGHTS = (0.0, 3.0, 1.0, 0.0, 2.0, 4.0)


def weights(x: Tensor) -> Tensor:
    return x.new_tensor(WEIGHTS) + x[:, None]


def probabilities(values: dict[float, float]) -> dict[float, float]:
    total = sum(values.values())
    return {value: weight / total for value, weight in values.items()}


DISCRETE: dict[str, tuple[Function, dict[float, float]]] = {
    "bernoulli": (lambda x: torch.bernoulli(x + 0.3), {0.0: 0.7, 1.0: 0.3}),
    "bernoulli_": (lambda x: x.clone().bernoulli_(0.2), {0.0: 0.8, 1.0: 0.2}),
    "randint_like": (lambda x: torch.randint_like(x, 2, 7), dict.fromkeys((2.0, 3.0, 4.0, 5.0, 6.0), 0.2)),
    "geometric_": (lambda x: x.clone().geometric_(0.4), {k: 0.4 * 0.6 ** (k - 1) for k in range(1, 12)}),
    "geometric_ of integers": (lambda x: x.long().geometric_(0.4), {k: 0.4 * 0.6 ** (k - 1) for k in range(1, 12)}),
    "dropout": (lambda x: F.dropout(x + 1, 0.25), {0.0: 0.25, 1 / 0.75: 0.75}),
    "alpha_dropout": (lambda x: (F.alpha_dropout(x, 0.25, training=True) > -0.5).float(), {0.0: 0.25, 1.0: 0.75}),
    "multinomial": (lambda x: torch.multinomial(weights(x), 1), probabilities(dict(enumerate(WEIGHTS)))),
    "multinomial with replacement": (
        lambda x: torch.multinomial(x.new_tensor(WEIGHTS), x.numel(), replacement=True),
        probabilities(dict(enumerate(WEIGHTS))),
    ),
    "feature_dropout": (lambda x: F.dropout1d(x.view(-1, 1, 1) + 1, 0.25), {0.0: 0.25, 1 / 0.75: 0.75}),
}


def drawn(function: Function, device: str) -> Tensor:
    """Returns the numbers of one call, after checking what seeds promise."""
    x = torch.zeros(COUNT[device], device=device)
    call = compiled(function, fullgraph=True)
    torch.manual_seed(11)
    first, second = call(x), call(x)
    torch.manual_seed(11)
    assert torch.equal(call(x), first)
    assert not torch.equal(first, second)
    return first.flatten().double().cpu()


@each_device
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_numbers(name: str, device: str) -> None:
    function, distribution = CONTINUOUS[name]
    numbers = drawn(function, device).sort().values
    wanted = distribution(numbers)
    steps = torch.arange(numbers.numel() + 1, dtype=torch.float64) / numbers.numel()
    distance = torch.maximum((wanted - steps[:-1]).max(), (steps[1:] - wanted).max()).item()
    assert distance < 1.95 / math.sqrt(numbers.numel()), distance


@each_device
@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_numbers(name: str, device: str) -> None:
    function, chances = DISCRETE[name]
    numbers = drawn(function, device)
    statistic, rest = 0.0, float(numbers.numel())
    for value, chance in chances.items():
        found = torch.isclose(numbers, torch.tensor(float(value), dtype=torch.float64)).sum().item()
        rest -= found
        if chance == 0:
            assert found == 0, f"{value} was drawn"
            continue
        statistic += (found - chance * numbers.numel()) ** 2 / (chance * numbers.numel())
    assert rest <= 0.01 * numbers.numel()
    freedom = sum(chance > 0 for chance in chances.values()) - 1
    # The quantile of the chi-square distribution by the cube-root approximation of Wilson and Hilferty.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit + 1, (statistic, limit)


@each_device
def test_a_race_of_many_draws_each_of_them_alike(device: str) -> None:
    """Ties between exponential times would favour the first of many categories."""
    rows, size = {"cpu": (400, 512), "cuda": (20_000, 50_000)}[device]
    torch.manual_seed(1)
    picks = compiled(lambda w: torch.multinomial(w, 1))(torch.ones(rows, size, device=device)).double()
    mean, deviation = picks.mean().item(), picks.std().item()
    assert abs(mean - (size - 1) / 2) < 4 * size / math.sqrt(12 * rows)
    assert abs(deviation / (size / math.sqrt(12)) - 1) < 0.1


@each_device
def test_draws_without_replacement_differ_and_favour_large_weights(device: str) -> None:
    rows = COUNT[device] // 4
    torch.manual_seed(2)
    many = torch.tensor(WEIGHTS, device=device).expand(rows, -1).contiguous()
    picks = compiled(lambda w: torch.multinomial(w, 4))(many).cpu()
    assert (picks.sort(-1).values == torch.tensor([1, 2, 4, 5])).all()
    first = picks[:, 0].bincount(minlength=6).double() / rows
    chances = torch.tensor(WEIGHTS, dtype=torch.float64) / sum(WEIGHTS)
    assert (first - chances).abs().max() < 4 * math.sqrt(0.25 / rows)
    # The second of two draws is 1 with probability Σ p(k) p(1) / (1 - p(k)) over the other categories k.
    second = sum(float(p * chances[1] / (1 - p)) for k, p in enumerate(chances) if k != 1)
    assert abs((picks[:, 1] == 1).double().mean().item() - second) < 4 * math.sqrt(0.25 / rows)


@each_device
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32], ids=str)
def test_permutations(device: str, dtype: torch.dtype) -> None:
    def function() -> Tensor:
        return torch.randperm(200, device=device, dtype=dtype)

    torch.manual_seed(3)
    call = compiled(function)
    first, second = call(), call()
    assert torch.equal(first.sort().values, torch.arange(200, device=device, dtype=dtype))
    assert not torch.equal(first, second)
    assert abs(torch.corrcoef(torch.stack([first, second]).double())[0, 1].item()) < 0.3


@each_device
def test_noise_of_a_leaky_unit_is_its_slope(device: str) -> None:
    def both(x: Tensor) -> Any:
        return aten.rrelu_with_noise_functional(x, torch.empty_like(x), 0.2, 0.7, True)

    x = torch.randn(100, device=device)
    out, noise = compiled(both)(x)
    torch.testing.assert_close(out, x * noise)
    assert torch.equal(noise[x > 0], torch.ones_like(noise[x > 0]))
