"""``options={"fallback_random": True}``: random numbers are those of eager mode, bit by bit, and as many are drawn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import ferrite_runtime
import ferrite_torch
from against_eager import devices, own_only

pytestmark = own_only("no other backend has the option")


def filled(name: str, *args: float) -> Callable[[Tensor], Tensor]:
    """Returns a program that fills a tensor, and one that lies otherwise, by a method that draws."""
    return lambda x: getattr(torch.empty_like(x), name)(*args) + getattr(torch.empty_like(x).t(), name)(*args).t() * x


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "rand": lambda x: torch.rand(4, 8, device=x.device) + x,
    "randn": lambda x: torch.randn(4, 8, device=x.device) * x,
    "rand like": lambda x: torch.rand_like(x) + torch.rand_like(x.t()).t(),
    "randn like": lambda x: torch.randn_like(x.t()) + x.t(),
    "halves": lambda x: torch.rand_like(x, dtype=torch.bfloat16) + torch.randn_like(x, dtype=torch.float16),
    "doubles": lambda x: torch.rand_like(x, dtype=torch.float64) + torch.randn_like(x, dtype=torch.float64),
    "integers": lambda x: torch.randint(3, 100, (4, 8), device=x.device) + torch.randint_like(x, 10),
    "permutation": lambda x: x[torch.randperm(4, device=x.device)],
    "dropout": lambda x: F.dropout(x * 2, 0.3),
    "dropout in place": lambda x: F.dropout(x * 2, 0.3, inplace=True),
    "dropout of nothing": lambda x: F.dropout(x[:0], 0.3).sum() + F.dropout(x, 0.3),
    "dropout of channels": lambda x: F.dropout2d(x[None, :, :, None], 0.3),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.3, training=True),
    "bernoulli": lambda x: torch.bernoulli(x.detach()) + x,
    "bernoulli by number": lambda x: torch.empty_like(x).bernoulli_(0.3) * x,
    "bernoulli by tensor": lambda x: torch.empty_like(x).bernoulli_(x.detach()) * x,
    "multinomial": lambda x: torch.multinomial(x, 3),
    "multinomial with replacement": lambda x: torch.multinomial(x, 9, replacement=True),
    "normal": lambda x: torch.normal(x.detach(), x.detach()) + torch.normal(0.0, x.detach()) + x,
    "uniform": filled("uniform_", 2, 3),
    "normal in place": filled("normal_", 2, 3),
    "exponential": filled("exponential_"),
    "geometric": filled("geometric_", 0.3),
    "logarithmic normal": filled("log_normal_"),
    "cauchy": filled("cauchy_"),
    "slopes": lambda x: F.rrelu(x - 0.5, training=True),
    "in order": lambda x: torch.rand(8, device=x.device) - x * torch.randn(8, device=x.device) + F.dropout(x, 0.5),
    "in a branch": lambda x: (
        torch.cond(x.sum() > 0, lambda x: F.dropout(x, 0.5), lambda x: x.sin(), (x,)) + torch.rand_like(x)
    ),
}
CHECKPOINTED: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x.sin(), 0.3) * x,
    "two masks": lambda x: F.dropout(F.dropout(x.sin(), 0.3) * torch.rand_like(x), 0.5),
}


def drawn(program: Callable[[Tensor], Any], x: Tensor) -> list[Tensor]:
    """Returns a program's result, its gradient, if it has one, and the numbers that are drawn next."""
    torch.manual_seed(7)
    result = program(x)
    found = [result.detach()]
    if result.requires_grad:
        found.append(torch.autograd.grad(result.sum(), x)[0])
    return [*found, torch.rand(2), torch.rand(2, device=x.device)]


def compare(program: Callable[[Tensor], Any], x: Tensor, *, dynamic: bool = False) -> None:
    torch._dynamo.reset()
    options = {"fallback": False, "fallback_random": True}
    fast = torch.compile(program, backend="ferrite", fullgraph=True, dynamic=dynamic, options=options)
    for _ in range(2):
        torch.testing.assert_close(drawn(fast, x), drawn(program, x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_are_those_of_eager_mode(name: str, device: str) -> None:
    compare(PROGRAMS[name], torch.rand(4, 8, generator=torch.Generator().manual_seed(1)).to(device))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", ["dropout", "dropout of nothing", "rand like", "slopes", "bernoulli", "in order"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_are_those_of_eager_mode(name: str, device: str, *, dynamic: bool) -> None:
    x = torch.rand(4, 8, generator=torch.Generator().manual_seed(1)).to(device).requires_grad_()
    compare(PROGRAMS[name], x, dynamic=dynamic)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", CHECKPOINTED)
def test_checkpoints_draw_as_in_eager_mode(name: str, device: str) -> None:
    x = torch.rand(4, 8, generator=torch.Generator().manual_seed(1)).to(device).requires_grad_()
    compare(lambda x: checkpoint(CHECKPOINTED[name], x, use_reentrant=False) + torch.rand_like(x), x)


def test_bundles_draw_as_in_eager_mode(tmp_path: Path) -> None:
    def program(x: Tensor) -> Tensor:
        return F.dropout(x, 0.5) + torch.rand_like(x)

    x = torch.rand(4, 8)
    options = ferrite_torch.Options(fallback_random=True)
    ferrite_torch.export(program, (x,), targets=("cpu",), options=options).save(tmp_path / "program.ferrite")
    loaded = ferrite_runtime.load(tmp_path / "program.ferrite")
    torch.testing.assert_close(drawn(loaded, x), drawn(program, x), rtol=0, atol=0)


def test_without_the_option_kernels_draw() -> None:
    x = torch.rand(4, 8)
    for asked, calls in ((False, []), (True, ["aten.native_dropout.default"])):
        torch._dynamo.reset()
        torch.compile(lambda x: F.dropout(x, 0.5) + 1, backend="ferrite", options={"fallback_random": asked})(x)
        steps = ferrite_torch.compiled_programs()[-1]["steps"]
        assert [step["target"] for step in steps if step["do"] == "extern" and "seed" not in step["target"]] == calls
