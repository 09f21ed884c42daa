"""Steps of torch's optimizers, compiled: eager's numbers, in kernels only."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.optim import (
    ASGD,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    Rprop,
    lr_scheduler,
)

from against_eager import assert_worked, compiled, compiled_to_kernels, devices, observed_work

Make = Callable[[list[nn.Parameter]], Optimizer]

SETTINGS: dict[str, Make] = {
    "sgd, momentum": lambda p: SGD(p, 0.1, momentum=0.9, dampening=0.1, weight_decay=0.01, maximize=True),
    "sgd, nesterov, foreach": lambda p: SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01, foreach=True),
    "adam, foreach": lambda p: Adam(p, 1e-2, foreach=True, weight_decay=0.1),
    "adam, one by one": lambda p: Adam(p, 1e-2, foreach=False, weight_decay=0.1, amsgrad=True),
    "adam, rate in a tensor": lambda p: Adam(p, torch.tensor(1e-2), foreach=False),
    "adamw": lambda p: AdamW(p, 1e-2, foreach=False, amsgrad=True, maximize=True),
    "rmsprop": lambda p: RMSprop(p, 1e-2, foreach=False, momentum=0.9, centered=True),
    "rmsprop, foreach": lambda p: RMSprop(p, 1e-2, foreach=True, weight_decay=0.1),
    "adagrad": lambda p: Adagrad(p, 1e-2, foreach=False, lr_decay=0.1),
    "adadelta": lambda p: Adadelta(p, foreach=False),
    "nadam": lambda p: NAdam(p, 1e-2, foreach=False, weight_decay=0.1, decoupled_weight_decay=True),
    "nadam, foreach": lambda p: NAdam(p, 1e-2, foreach=True),
    "radam": lambda p: RAdam(p, 1e-2, foreach=False),
    "radam, foreach": lambda p: RAdam(p, 1e-2, foreach=True),
    "adamax": lambda p: Adamax(p, 1e-2, foreach=False),
    "adamax, foreach": lambda p: Adamax(p, 1e-2, foreach=True),
    "asgd": lambda p: ASGD(p, 1e-2, foreach=False),
    "rprop": lambda p: Rprop(p, 1e-2, foreach=False),
}
ON_GPUS: dict[str, Make] = {
    "adam, capturable": lambda p: Adam(p, torch.tensor(1e-2, device="cuda"), capturable=True),
    "adamw, capturable, one by one": lambda p: AdamW(p, 1e-2, capturable=True, foreach=False),
    "adam, fused": lambda p: Adam(p, 1e-2, fused=True),
    "nadam, capturable": lambda p: NAdam(p, 1e-2, capturable=True, foreach=True),
}
"""Those that torch allows on accelerators only."""


@pytest.fixture(autouse=True)
def _many_compilations() -> Iterator[None]:
    with torch._dynamo.config.patch(recompile_limit=64):
        yield


def draw(device: str) -> Tensor:
    return torch.randn(5, 3).to(device)


def trained(
    make: Make, device: str, step_of: Callable[[Optimizer], Callable[[], object]], **named: bool
) -> list[Tensor]:
    """Returns parameters after three steps; with ``schedule`` each of these changes the learning rate."""
    torch.manual_seed(0)
    parameters = [nn.Parameter(draw(device)) for _ in range(2)]
    optimizer = make(parameters)
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.5) if named.get("schedule") else None
    step = step_of(optimizer)
    for _ in range(3):
        for parameter in parameters:
            parameter.grad = draw(device)
        step()
        if schedule is not None:
            schedule.step()
    return [parameter.detach() for parameter in parameters]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", SETTINGS)
def test_steps_are_kernels(name: str, device: str) -> None:
    with observed_work() as work:
        found = trained(SETTINGS[name], device, lambda optimizer: compiled_to_kernels(optimizer.step))
    torch.testing.assert_close(found, trained(SETTINGS[name], device, lambda optimizer: optimizer.step))
    assert work.extern_calls == 0
    assert_worked(work)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_GPUS)
def test_steps_are_kernels_on_a_gpu(name: str) -> None:
    with observed_work() as work:
        found = trained(ON_GPUS[name], "cuda", lambda optimizer: compiled_to_kernels(optimizer.step))
    torch.testing.assert_close(found, trained(ON_GPUS[name], "cuda", lambda optimizer: optimizer.step))
    assert work.extern_calls == 0


@pytest.mark.parametrize("name", ["adam, rate in a tensor", "sgd, momentum"])
def test_a_schedule_changes_the_rate(name: str) -> None:
    found = trained(SETTINGS[name], "cpu", lambda optimizer: compiled_to_kernels(optimizer.step), schedule=True)
    torch.testing.assert_close(found, trained(SETTINGS[name], "cpu", lambda optimizer: optimizer.step, schedule=True))


UPDATES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "addcmul_": lambda a, b, c: a.clone().addcmul_(b, c, value=0.3),
    "addcmul_, a number of one element": lambda a, b, c: a.clone().addcmul_(b, c[:1], value=-2),
    "addcdiv_": lambda a, b, c: a.clone().addcdiv_(b, c, value=0.3),
    "add_, factor in a tensor": lambda a, b, c: a.clone().add_(b, alpha=c[0]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", UPDATES)
def test_updates_are_kernels(name: str, dtype: torch.dtype) -> None:
    a, b, c = torch.rand(3, 64).to(dtype).unbind()
    with observed_work() as work:
        found = compiled_to_kernels(UPDATES[name])(a, b, c)
    torch.testing.assert_close(found, UPDATES[name](a, b, c))
    assert work.extern_calls == 0
    assert_worked(work)


def test_a_product_is_added_with_one_rounding() -> None:
    """What a square has more than its rounding is there when the rounding is taken off."""
    a = torch.full((8,), 1 + 2.0**-12)
    call = compiled(lambda c, a: c.clone().addcmul_(a, torch.ones_like(a), value=1 + 2.0**-12))
    assert (call(-(a * a), a) == 2.0**-24).all()
