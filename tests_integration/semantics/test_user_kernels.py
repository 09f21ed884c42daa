"""Triton kernels of a program's own in compiled functions: steps between kernels, which fuse as if they were not there.

Without a GPU torch does not take such kernels into graphs: it asks whether Triton can run, and Triton for its target.
Both are told so here; the kernels then run in the interpreter, as all others do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import triton
from torch import Tensor

import jitted_kernels as kernels
from against_eager import compiled, devices, own_only, own_statistics
from ferrite_torch.diagnostics.statistics import compiled_programs

pytestmark = own_only("it counts steps of our programs")


class CrossCompiling:
    """Stands for the driver of a GPU that is not there."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


@pytest.fixture(params=devices())
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "cpu":
        monkeypatch.setattr("torch.utils._triton.has_triton", lambda **_: True)
        monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton warns where it is left open
        monkeypatch.setattr(triton.runtime.driver, "_active", CrossCompiling())
    return request.param


def blocks(n: int) -> Callable[[Any], tuple[int]]:
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)


def add_to(x: Tensor, y: Tensor) -> None:
    kernels.add_in_place[blocks(x.numel())](x, y, x.numel(), BLOCK=128)


def between(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    kernels.scaled_sum[(9,)](x * 2, y, out, x.numel(), 3.0, BLOCK=128)
    return out.relu() + y


def in_place(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    add_to(z, y)
    return z.sin() + 1


def read_before(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x * 2
    before = z + 1
    add_to(z, y)
    return z.sin(), before * z


def to_an_input(x: Tensor, y: Tensor) -> Tensor:
    add_to(x, y)
    return x.sin()


def to_an_input_read_later(x: Tensor, y: Tensor) -> Tensor:
    old = x.sin()
    add_to(x, y)
    return x * old


def same_twice(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    add_to(z, z)
    return z.sin() + y


def same_twice_in_order(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    kernels.running_sum[(1,)](z, z, z.numel())
    return z + y


def two_results(x: Tensor, y: Tensor) -> Tensor:
    low, high = torch.empty_like(x), torch.empty_like(x)
    kernels.neighbours[blocks(x.numel())](x + y, low, high, x.numel(), BLOCK=64)
    return low * high


def one_result_read(x: Tensor, y: Tensor) -> Tensor:
    low, high = torch.empty_like(x), torch.empty_like(x)
    kernels.neighbours[blocks(x.numel())](x + y, low, high, x.numel(), BLOCK=64)
    return high.exp()


def tuned(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    kernels.doubled_tuned[blocks(x.numel())](x + y, out, x.numel())
    return out + 1


def by_heuristics(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    kernels.doubled_by_heuristics[blocks(x.numel())](x + y, out, x.numel(), BLOCK=8)
    return out + 1


def with_defaults(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    kernels.shifted[(17,)](x + y, out, x.numel())
    return out + 1


def several_launches(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    for _ in range(3):
        add_to(z, y)
    return z.sin() + 1


def halves(x: Tensor, y: Tensor) -> Tensor:
    z, n = x * 2, x.numel() // 2
    kernels.add_in_place[(5,)](z[:n], y[n : 2 * n], n, BLOCK=128)
    return z.sin()


def added_halves(x: Tensor, y: Tensor) -> Tensor:
    n = x.numel() // 2
    return torch.cat([2 * x[:n] + y[n : 2 * n], 2 * x[n:]]).sin()


def transposed(x: Tensor, y: Tensor) -> Tensor:
    columns = (x[:990] * 2).view(33, 30).t()
    out = torch.empty(30, 33, device=x.device)
    kernels.scaled_columns[(30, 1)](columns, out, 30, 33, columns.stride(0), columns.stride(1), BLOCK=64)
    return out.relu().sum(0) + y[0]


def written_to_input(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y)
    return x.sin()


@dataclass(frozen=True, slots=True)
class Case:
    """A program, what it computes, how many kernels of ours it has, and how many copies of what it writes."""

    program: Callable[..., Any]
    meaning: Callable[..., Any]
    kernels: int = 2
    sizes: tuple[int, ...] = (1000, 1001, 1024)


CASES = {
    each.program.__name__: each
    for each in (
        Case(between, lambda x, y: (x * 6 + y).relu() + y),
        Case(in_place, lambda x, y: (x * 2 + y).sin() + 1),
        Case(read_before, lambda x, y: ((x * 2 + y).sin(), (x * 2 + 1) * (x * 2 + y))),
        Case(to_an_input, written_to_input, 1),
        Case(to_an_input_read_later, lambda x, y: x.sin() * x.add_(y)),
        Case(same_twice, lambda x, y: (x * 4).sin() + y),
        Case(same_twice_in_order, lambda x, y: (x * 2).cumsum(0) + y, sizes=(100, 101)),
        Case(two_results, lambda x, y: (x + y - 1) * (x + y + 1)),
        Case(one_result_read, lambda x, y: (x + y + 1).exp()),
        Case(tuned, lambda x, y: (x + y) * 2 + 1),
        Case(by_heuristics, lambda x, y: (x + y) * 2 + 1),
        Case(with_defaults, lambda x, y: x + y + 2.5),
        Case(several_launches, lambda x, y: (x * 2 + 3 * y).sin() + 1),
        Case(halves, added_halves, 4),
        Case(
            transposed,
            lambda x, y: (2 * x[:990].view(33, 30).t() * torch.arange(33, device=x.device)).relu().sum(0) + y[0],
            sizes=(1000, 1001),
        ),
    )
}


def drawn(size: int, device: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(size)
    return [torch.randn(size, generator=generator).to(device) for _ in range(2)]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_a_program_around_a_kernel(name: str, device: str, *, dynamic: bool) -> None:
    case = CASES[name]
    fast = compiled(case.program, dynamic=dynamic, fullgraph=True)
    for size in case.sizes if dynamic else case.sizes[:1]:
        mine, theirs = drawn(size, device), drawn(size, device)
        torch.testing.assert_close(fast(*mine), case.meaning(*theirs), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)  # what it writes to inputs, and nothing else
    assert not own_statistics()["fallbacks"]
    assert sum(step["do"] == "launch" for step in compiled_programs()[0]["steps"]) == case.kernels


class Scaled(torch.autograd.Function):
    """A kernel with a derivative that is a kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        kernels.scaled_sum[blocks(x.numel())](x, y, out, x.numel(), 3.0, BLOCK=128)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        scaled, none = torch.empty_like(gradient), torch.zeros_like(gradient)
        kernels.scaled_sum[blocks(gradient.numel())](gradient, none, scaled, gradient.numel(), 3.0, BLOCK=128)
        return scaled, gradient


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_function_with_a_derivative(device: str, *, dynamic: bool) -> None:
    fast = compiled(lambda x, y: Scaled.apply(x.sin(), y * 2).relu() * 2, dynamic=dynamic, fullgraph=True)
    for size in (1000, 1001) if dynamic else (1000,):
        x, y = (each.requires_grad_() for each in drawn(size, device))
        actual, expected = fast(x, y), (x.sin() * 3 + y * 2).relu() * 2
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
        found = torch.autograd.grad(actual.square().sum(), (x, y))
        wanted = torch.autograd.grad(expected.square().sum(), (x, y))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert not own_statistics()["fallbacks"]
    assert own_statistics()["graphs"] == 2
    assert all(any(step["do"] == "launch" for step in program["steps"]) for program in compiled_programs())


def test_what_nobody_reads_later_is_written_where_it_lies(device: str) -> None:
    for function, copies in ((between, 0), (in_place, 0), (read_before, 0), (to_an_input, 0), (several_launches, 0)):
        torch._dynamo.reset()
        compiled(function)(*drawn(1000, device))
        steps = compiled_programs()[-1]["steps"]
        assert sum(step.get("target") == "aten.clone.default" for step in steps) == copies
        written = {step["args"][0]["ref"] for step in steps if str(step.get("target")).startswith("captured.")}
        assert len(written) == 1


def test_a_kernel_is_named_with_its_line(device: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", "ferrite_torch")
    for _ in range(2):
        torch._dynamo.reset()
        compiled(between)(*drawn(1000, device))
    (said,) = [each.getMessage() for each in caplog.records if each.name.startswith("ferrite_torch")]
    assert f"({__file__}:{between.__code__.co_firstlineno + 2})" in said
    assert "a Triton kernel of the program's own" in said
    assert "What to do: " in said
    (op,) = (op for op in own_statistics()["externs"] if op.startswith("higher_order."))  # type: ignore[attr-defined]
    assert op == "higher_order.triton_kernel_wrapper_functional"


def test_a_kernel_that_does_not_run_says_so(device: str) -> None:
    @triton.jit
    def broken(x, out, n, BLOCK: triton.language.constexpr):
        at = triton.language.arange(0, BLOCK)
        triton.language.store(out + at, triton.language.load(x + at) + missing_name)  # noqa: F821

    def function(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        broken[(1,)](x * 2, out, x.numel(), BLOCK=64)
        return out + 1

    with pytest.raises(Exception, match="missing_name") as found:
        compiled(function)(torch.ones(64, device=device))
    assert f"{__file__}:{function.__code__.co_firstlineno + 2}" in "".join(found.value.__notes__)
