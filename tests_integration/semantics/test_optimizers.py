"""Steps of torch's optimizers, compiled: eager's numbers, in kernels only.

Every optimizer of torch is here: those whose steps torch keeps out of graphs itself as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import triton
from torch import Tensor, nn
from torch.optim import (
    ASGD,
    LBFGS,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    Rprop,
    SparseAdam,
    lr_scheduler,
)

from against_eager import assert_worked, compiled, compiled_or_eager, compiled_to_kernels, devices, observed_work

VERSION, TRITON = (tuple(map(int, package.__version__.split(".")[:2])) for package in (torch, triton))
Make = Callable[[list[nn.Parameter]], Optimizer]

SETTINGS: dict[str, Make] = {
    "sgd, momentum": lambda p: SGD(p, 0.1, momentum=0.9, dampening=0.1, weight_decay=0.01, maximize=True),
    "sgd, nesterov, foreach": lambda p: SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01, foreach=True),
    "sgd, rate in a tensor": lambda p: SGD(p, torch.tensor(0.1), momentum=0.9, nesterov=True, foreach=False),
    "adam, foreach": lambda p: Adam(p, 1e-2, foreach=True, weight_decay=0.1),
    "adam, one by one": lambda p: Adam(p, 1e-2, foreach=False, weight_decay=0.1, amsgrad=True),
    "adam, rate in a tensor": lambda p: Adam(p, torch.tensor(1e-2), foreach=False),
    "adamw": lambda p: AdamW(p, 1e-2, foreach=False, amsgrad=True, maximize=True),
    "adamw, foreach": lambda p: AdamW(p, 1e-2, foreach=True, amsgrad=True, maximize=True),
    "rmsprop": lambda p: RMSprop(p, 1e-2, foreach=False, momentum=0.9, centered=True),
    "rmsprop, foreach": lambda p: RMSprop(p, 1e-2, foreach=True, weight_decay=0.1),
    "adagrad": lambda p: Adagrad(p, 1e-2, foreach=False, lr_decay=0.1),
    "adagrad, foreach": lambda p: Adagrad(p, 1e-2, foreach=True, weight_decay=0.1, initial_accumulator_value=0.1),
    "adadelta": lambda p: Adadelta(p, foreach=False),
    "adadelta, foreach": lambda p: Adadelta(p, foreach=True, weight_decay=0.1, maximize=True),
    "nadam": lambda p: NAdam(p, 1e-2, foreach=False, weight_decay=0.1, decoupled_weight_decay=True),
    "nadam, foreach": lambda p: NAdam(p, 1e-2, foreach=True),
    "radam": lambda p: RAdam(p, 1e-2, foreach=False),
    "radam, foreach": lambda p: RAdam(p, 1e-2, foreach=True),
    "adamax": lambda p: Adamax(p, 1e-2, foreach=False),
    "adamax, foreach": lambda p: Adamax(p, 1e-2, foreach=True),
    "asgd": lambda p: ASGD(p, 1e-2, foreach=False),
    "asgd, foreach": lambda p: ASGD(p, 1e-2, foreach=True, t0=1, weight_decay=0.1),
    "rprop": lambda p: Rprop(p, 1e-2, foreach=False),
    "rprop, foreach": lambda p: Rprop(p, 1e-2, foreach=True, maximize=True),
}
HOST_RATES = {("sgd, rate in a tensor", "cuda")}
"""Where torch negates a rate that is a tensor of the host: a call on the host, beside kernels on a GPU."""
CAPTURABLE: dict[str, Callable[..., Optimizer]] = {
    "adam": lambda p, **kind: Adam(p, torch.tensor(1e-2), amsgrad=True, **kind),
    "adam, betas in tensors": lambda p, **kind: Adam(
        p, torch.tensor(1e-2), betas=(torch.tensor(0.9), torch.tensor(0.99)), **kind
    ),
    "adamw": lambda p, **kind: AdamW(p, 1e-2, maximize=True, **kind),
    "nadam": lambda p, **kind: NAdam(p, 1e-2, weight_decay=0.1, **kind),
    "radam": lambda p, **kind: RAdam(p, 1e-2, weight_decay=0.1, **kind),
    "adamax": lambda p, **kind: Adamax(p, 1e-2, weight_decay=0.1, **kind),
    "adadelta": lambda p, **kind: Adadelta(p, weight_decay=0.1, **kind),
    "rmsprop": lambda p, **kind: RMSprop(p, 1e-2, momentum=0.9, centered=True, **kind),
    "rprop": lambda p, **kind: Rprop(p, 1e-2, **kind),
    "asgd": lambda p, **kind: ASGD(p, 1e-2, t0=1, **kind),
}
"""With states that only tensors hold, which torch allows in eager mode on accelerators, and compiled anywhere."""
FUSED: dict[str, Make] = {
    "sgd": lambda p: SGD(p, 0.1, momentum=0.9, nesterov=True, fused=True),
    "adam": lambda p: Adam(p, 1e-2, amsgrad=True, fused=True),
    "adamw": lambda p: AdamW(p, torch.tensor(1e-2), maximize=True, fused=True),
    "adagrad": lambda p: Adagrad(p, 1e-2, lr_decay=0.1, fused=True),
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


def draw(device: str, dtype: torch.dtype) -> Tensor:
    return torch.randn(5, 3, dtype=dtype).to(device)


def trained(
    make: Make,
    device: str,
    step_of: Callable[[Optimizer], Callable[[], object]],
    *,
    schedule: bool = False,
    dtype: torch.dtype = torch.float32,
) -> list[Tensor]:
    """Returns parameters after three steps; with ``schedule`` each of these changes the learning rate."""
    torch.manual_seed(0)
    parameters = [nn.Parameter(draw(device, dtype)) for _ in range(2)]
    optimizer = make(parameters)
    rates = lr_scheduler.ExponentialLR(optimizer, 0.5) if schedule else None
    step = step_of(optimizer)
    for _ in range(3):
        for parameter in parameters:
            parameter.grad = draw(device, dtype)
        step()
        if rates is not None:
            rates.step()
    return [parameter.detach() for parameter in parameters]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", SETTINGS)
def test_steps_are_kernels(name: str, device: str) -> None:
    with observed_work() as work:
        found = trained(SETTINGS[name], device, lambda optimizer: compiled_to_kernels(optimizer.step))
    torch.testing.assert_close(found, trained(SETTINGS[name], device, lambda optimizer: optimizer.step))
    assert work.extern_calls <= (4 if (name, device) in HOST_RATES else 0)
    assert_worked(work)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_GPUS)
def test_steps_are_kernels_on_a_gpu(name: str) -> None:
    with observed_work() as work:
        found = trained(ON_GPUS[name], "cuda", lambda optimizer: compiled_to_kernels(optimizer.step))
    torch.testing.assert_close(found, trained(ON_GPUS[name], "cuda", lambda optimizer: optimizer.step))
    assert work.extern_calls == 0


@pytest.mark.parametrize("foreach", [False, True], ids=["one by one", "foreach"])
@pytest.mark.parametrize("name", CAPTURABLE)
def test_steps_whose_states_are_tensors_are_kernels(name: str, *, foreach: bool) -> None:
    def eager(p: list[nn.Parameter]) -> Optimizer:
        # Rates in tensors and foreach without capturable states are refused outside of compiled steps.
        return CAPTURABLE[name](p, foreach=False)

    with observed_work() as work:
        make = lambda p: CAPTURABLE[name](p, capturable=True, foreach=foreach)  # noqa: E731
        found = trained(make, "cpu", lambda optimizer: compiled_to_kernels(optimizer.step))
    torch.testing.assert_close(found, trained(eager, "cpu", lambda optimizer: optimizer.step))
    assert work.extern_calls == 0
    assert_worked(work)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", FUSED)
def test_fused_steps_are_torch_s_own_kernels(name: str, device: str) -> None:
    """Torch keeps its fused steps out of graphs: they run as they are, and nothing of them is compiled."""
    if (name, device) == ("adagrad", "cuda"):
        pytest.skip("torch has this fused step on the CPU only")
    with observed_work() as work:
        found = trained(FUSED[name], device, lambda optimizer: compiled_to_kernels(optimizer.step))
    torch.testing.assert_close(found, trained(FUSED[name], device, lambda optimizer: optimizer.step))
    assert work.extern_calls == 0


@pytest.mark.parametrize("foreach", [False, True], ids=["one by one", "foreach"])
def test_steps_that_read_their_state_are_compiled_where_torch_captures_numbers(*, foreach: bool) -> None:
    """Adafactor reads its count of steps, on torch 2.15 with foreach, too: products are all that is no kernel."""
    if foreach and VERSION < (2, 12):
        pytest.skip("torch 2.11 groups parameters without their type while it captures, and asserts that there is one")

    def make(p: list[nn.Parameter]) -> Optimizer:
        return Adafactor(p, 1e-2, foreach=foreach, weight_decay=0.1)

    with torch._dynamo.config.patch(capture_scalar_outputs=True), observed_work() as work:
        found = trained(make, "cpu", lambda optimizer: compiled_to_kernels(optimizer.step))
    torch.testing.assert_close(found, trained(make, "cpu", lambda optimizer: optimizer.step))
    assert_worked(work)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
@pytest.mark.parametrize("named", [{}, {"nesterov": False, "adjust_lr_fn": "match_rms_adamw"}], ids=["", "other rate"])
def test_orthogonalised_steps_are_kernels_and_products(named: dict[str, Any]) -> None:
    # All singular values alike: the five iterations in bfloat16 do not magnify what one rounds otherwise.
    gradient = torch.linalg.qr(torch.randn(5, 3, generator=torch.manual_seed(0))).Q

    def stepped(compile_step: Callable[[Any], Any]) -> Tensor:
        parameter = nn.Parameter(torch.zeros(5, 3))
        parameter.grad = gradient.clone()
        compile_step(torch.optim.Muon([parameter], 1.0, **named).step)()
        return parameter.detach()

    with observed_work() as work:
        found = stepped(compiled_to_kernels)
    # The last iteration adds up three terms of size 1 with coefficients 3.44, -4.78 and 2.03, each rounded to 2^-9.
    torch.testing.assert_close(found, stepped(lambda step: step), atol=10.25 * 2.0**-9, rtol=0)
    assert_worked(work)


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_steps_that_call_back_run_as_they_are(search: str | None) -> None:
    def trained_to(target: Tensor, compile_step: Callable[[Any], Any]) -> Tensor:
        parameter = nn.Parameter(torch.zeros(5))
        optimizer = LBFGS([parameter], line_search_fn=search)
        step = compile_step(optimizer.step)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = (parameter - target).square().square().sum()
            loss.backward()
            return loss

        for _ in range(2):
            step(closure)
        return parameter.detach()

    target = torch.arange(5.0)
    torch.testing.assert_close(trained_to(target, compiled), trained_to(target, lambda step: step))


# Torch 2.11 says so though the tensor asks for the checks.
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_sparse_gradients_are_applied_eagerly() -> None:
    def trained_once(compile_step: Callable[[Any], Any]) -> Tensor:
        parameter = nn.Parameter(torch.ones(4, 2))
        optimizer = SparseAdam([parameter], 0.1)
        values = torch.rand(2, 2, generator=torch.manual_seed(0))
        parameter.grad = torch.sparse_coo_tensor([[1, 3]], values, (4, 2), check_invariants=True)
        compile_step(optimizer.step)()
        return parameter.detach()

    torch.testing.assert_close(trained_once(compiled_or_eager), trained_once(lambda step: step))


COMPLEX: dict[str, Make] = {
    name: SETTINGS[name]
    for name in ("sgd, momentum", "adam, foreach", "adam, one by one", "rmsprop, foreach", "rprop", "asgd, foreach")
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_parameters_are_written(name: str) -> None:
    """What torch writes as pairs of real numbers is kernels; sums of complex numbers are extern calls."""
    with observed_work() as work:
        found = trained(COMPLEX[name], "cpu", lambda optimizer: compiled(optimizer.step), dtype=torch.complex64)
    eager = trained(COMPLEX[name], "cpu", lambda optimizer: optimizer.step, dtype=torch.complex64)
    torch.testing.assert_close(found, eager)
    assert_worked(work, kernels=0 if name.startswith("sgd") else 1)


@pytest.mark.parametrize("name", ["adam, rate in a tensor", "sgd, momentum", "nadam, foreach"])
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


@pytest.mark.skipif(TRITON < (3, 8), reason="interpreters before Triton 3.8 round the product of a fused multiply-add")
def test_a_product_is_added_with_one_rounding() -> None:
    """What a square has more than its rounding is there when the rounding is taken off."""
    a = torch.full((8,), 1 + 2.0**-12)
    call = compiled(lambda c, a: c.clone().addcmul_(a, torch.ones_like(a), value=1 + 2.0**-12))
    assert (call(-(a * a), a) == 2.0**-24).all()
