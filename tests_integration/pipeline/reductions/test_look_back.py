"""Scans of long lines in one pass, by programs that wait for each other: `Policy.look_back`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from against_eager import devices
from ferrite_runtime.fmath import look_back
from ferrite_scheduler.rewrites.scans.look_back import LOOK_BACK_GROUP
from ferrite_torch import compiled_programs

OPTIONS = {
    "fallback": False,
    "policy": {"look_back": True, "split_minimum": 4},
    "target": {"bandwidth": 1e6},  # so that a few thousand elements are worth several programs
}


def compiled(function: Callable[..., Tensor], points: int = 256) -> Callable[..., Tensor]:
    torch._dynamo.reset()
    options = OPTIONS | {"policy": {**OPTIONS["policy"], "look_back_points": points}}
    return torch.compile(function, backend="ferrite", fullgraph=True, dynamic=False, options=options)


def scans() -> list[str]:
    """Returns the sources of the scans of the last program."""
    return [
        kernel["source"] for kernel in compiled_programs()[-1]["kernels"] if kernel["form"] in ("scan", "look_back")
    ]


CASES: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...], torch.dtype]] = {
    "a rest": (lambda x: x.cumsum(0), (2503,), torch.float32),
    "lines": (lambda x: x.cumsum(-1), (2, 2, 2100), torch.float32),
    "wide floats": (lambda x: x.cumsum(0), (2100,), torch.float64),
    "narrow floats": (lambda x: x.cumsum(0), (2100,), torch.bfloat16),
    "narrow lines": (lambda x: (x * 2).cumsum(-1), (2, 2, 2048), torch.float16),
    "what follows narrow floats": (lambda x: x.cumsum(0) * x + x.float(), (2100,), torch.bfloat16),
    "integers": (lambda x: x.cumsum(0), (2100,), torch.int32),
    "truths": (lambda x: (x > 0).cumsum(0), (2100,), torch.float32),
    "what is around it": (lambda x: (x * 2).cumsum(-1) + x.sum(), (2, 2500), torch.float32),
}


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", CASES)
def test_one_pass_gives_what_eager_gives(name: str, device: str) -> None:
    function, shape, dtype = CASES[name]
    torch.manual_seed(0)
    x = torch.randint(-9, 9, shape, device=device).to(dtype) / (1 if dtype is torch.int32 else 8)
    x = x.to(dtype)
    found = compiled(function)(x)
    (source,) = scans()
    assert "fmath.sum_before" in source
    is_narrow = dtype in (torch.bfloat16, torch.float16)
    expected = function(x.double() if is_narrow else x)
    exact = dtype in (torch.int32, torch.float32, torch.float64)  # eighths add up without rounding
    tolerance = 0.0 if exact else 8e-3
    torch.testing.assert_close(found.to(expected.dtype), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("device", devices())
def test_groups_of_parts(device: str) -> None:
    x = torch.randint(-9, 9, (4 * 520,), device=device) / 8  # 520 parts, 512 of them one group
    assert torch.equal(compiled(lambda x: x.cumsum(0), points=4)(x), x.cumsum(0))


def test_both_sides_know_how_many_parts_are_a_group() -> None:
    """The scheduler sizes the status, the device functions use it."""
    assert look_back._GROUP.value == LOOK_BACK_GROUP


@pytest.mark.parametrize("device", devices())
def test_infinities_stay_behind_where_they_are(device: str) -> None:
    x = torch.ones(2100, device=device)
    x[700], x[1900] = float("inf"), float("-inf")
    torch.testing.assert_close(compiled(lambda x: x.cumsum(0))(x), x.cumsum(0), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("device", devices())
def test_every_run_gives_the_same_bits(device: str) -> None:
    x = torch.randn(2100, device=device)
    call = compiled(lambda x: x.cumsum(0))
    first = call(x)
    assert all(torch.equal(call(x), first) for _ in range(20 if device == "cuda" else 2))


def test_other_scans_and_columns_are_done_as_before() -> None:
    for function, shape in ((lambda x: x.cumprod(0), (2100,)), (lambda x: x.cumsum(0), (2100, 2))):
        x = torch.ones(shape)
        torch.testing.assert_close(compiled(function)(x), function(x))
        assert not any("sum_before" in source for source in scans())


def test_a_reduction_of_the_scan_is_a_kernel_of_its_own() -> None:
    x = torch.randint(-8, 9, (2100,)).float()
    function = lambda x: x.cumsum(0).amax() + x.cumsum(0)  # noqa: E731
    torch.testing.assert_close(compiled(function)(x), function(x))
