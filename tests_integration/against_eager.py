"""Compares what the compiler computes with what eager computes, both judged by the same function in float64.

A compiler that fuses rounds elsewhere than eager does, so results need not be equal. What holds: the distance from
float64 is at most twice eager's own, plus what rounding the result once explains. Integers and booleans are equal;
shapes, dtypes, devices and strides are always those of eager.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

OWN = "ferrite"
FACTOR = 2.0
FLOOR = {torch.float64: 64.0, torch.float32: 16.0, torch.float16: 2.0, torch.bfloat16: 2.0}  # roundings, in eps


@cache
def backend() -> str:
    """Returns the backend under test; FERRITE_TEST_BACKEND names another one, to test the tests."""
    return os.environ.get("FERRITE_TEST_BACKEND", OWN)


def is_own() -> bool:
    return backend() == OWN


def own_only(reason: str) -> pytest.MarkDecorator:
    """Returns the mark of a test that says nothing about another backend."""
    return pytest.mark.skipif(not is_own(), reason=reason)


def devices() -> list[Any]:
    """Returns the devices to test on, as parameters: the interpreter always, a GPU where there is one."""
    return ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Returns the function compiled by the backend under test, which must not hide a failure behind eager."""
    if is_own():
        import ferrite_torch  # noqa: F401 - registers the backend where the package is not installed

        if not options.keys() & {"mode", "options"}:
            options["options"] = {"fallback": False, "verify": True}
    return torch.compile(function, backend=backend(), **options)


def compiled_anew(function: Callable[..., Any], policy: dict[str, object]) -> Callable[..., Any]:
    """Returns the function compiled by our own backend for the shapes of its inputs, with scheduler thresholds."""
    torch._dynamo.reset()
    options = {"fallback": False, "verify": True, "policy": policy}
    return torch.compile(function, backend=OWN, fullgraph=True, dynamic=False, options=options)


def forms() -> list[str]:
    """Returns the forms of the kernels of the last program."""
    from ferrite_torch import compiled_programs

    return [kernel["form"] for kernel in compiled_programs()[-1]["kernels"]]


def compiled_to_kernels(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Returns the function compiled as by `compiled`, extern calls for want of a kernel being errors."""
    if is_own():
        options["options"] = {"fallback": False, "verify": True, "extern": "error"}
    return compiled(function, **options)


def compiled_or_eager(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Returns the function compiled as users do: what cannot be compiled yet may run eagerly, but must be right."""
    if is_own():
        import ferrite_torch  # noqa: F401 - registers the backend where the package is not installed
    return torch.compile(function, backend=backend(), **options)


@dataclass(slots=True)
class Work:
    """What the backend did while it was observed."""

    graphs: int = 0
    kernels: int = 0
    extern_calls: int = 0
    graph_breaks: int = 0


def own_statistics() -> dict[str, int]:
    if not is_own():
        return {}
    import ferrite_torch

    return dict(ferrite_torch.statistics())


def count_breaks() -> int:
    from torch._dynamo.utils import counters

    return sum(counters["graph_break"].values())


@contextmanager
def observed_work() -> Iterator[Work]:
    """Fills in, at its end, what the backend compiled inside it."""
    work = Work()
    before, breaks = own_statistics(), count_breaks()
    yield work
    after = own_statistics()
    for name in ("graphs", "kernels", "extern_calls"):
        setattr(work, name, after.get(name, 0) - before.get(name, 0))
    work.graph_breaks = count_breaks() - breaks


def assert_worked(work: Work, kernels: int = 1) -> None:
    """Fails unless ferrite itself compiled something: a silent fallback to eager would pass every comparison."""
    if is_own():
        assert work.graphs >= 1, work
        assert work.kernels >= kernels, work


def widened(value: Any, device: str | None = None) -> Any:
    """Returns the same structure with floating tensors in float64, sharing nothing with the original.

    With ``device``, all tensors lie there.
    """
    if isinstance(value, Tensor):
        return widened_tensor(value, device)
    if isinstance(value, (list, tuple)):
        return type(value)(widened(item, device) for item in value)
    if isinstance(value, dict):
        return {name: widened(item, device) for name, item in value.items()}
    return value


def widened_tensor(x: Tensor, device: str | None = None) -> Tensor:
    wide = x.detach().to(device or x.device, torch.float64 if x.is_floating_point() else x.dtype)
    return (wide.clone() if wide.data_ptr() == x.data_ptr() else wide).requires_grad_(x.requires_grad)


def by_eager(function: Callable[..., Any], *inputs: Any) -> Any:
    """Returns what eager computes; skips the test where eager has no kernel for these types on this device."""
    try:
        return function(*inputs)
    except NotImplementedError as absence:
        pytest.skip(f"eager: {absence}")


def tensors_of(value: Any) -> list[Tensor]:
    """Returns the tensors in a result, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [x for item in value for x in tensors_of(item)] if isinstance(value, (list, tuple)) else []


def assert_same_type(actual: Tensor, eager: Tensor, name: str = "result", *, strides: bool = True) -> None:
    """Fails unless shape, dtype, device, layout and (if asked for) strides are those of eager."""
    assert actual.shape == eager.shape, f"{name}: shape {tuple(actual.shape)}, eager {tuple(eager.shape)}"
    assert actual.dtype == eager.dtype, f"{name}: dtype {actual.dtype}, eager {eager.dtype}"
    assert actual.device == eager.device, f"{name}: device {actual.device}, eager {eager.device}"
    assert actual.layout == eager.layout, f"{name}: layout {actual.layout}, eager {eager.layout}"
    if not strides or eager.layout != torch.strided:
        return
    mine, theirs = (meaningful_strides(x) for x in (actual, eager))
    assert mine == theirs, f"{name}: strides {actual.stride()}, eager {eager.stride()}, shape {tuple(eager.shape)}"


def meaningful_strides(x: Tensor) -> tuple[int, ...]:
    """Returns the strides that decide where elements lie: none of those of dims of size 1 or of empty tensors."""
    if x.numel() == 0:
        return ()
    return tuple(stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1)


def assert_close(
    actual: Tensor, eager: Tensor, exact: Tensor, name: str = "result", scale: float = 0.0, *, strides: bool = True
) -> None:
    """Fails unless `actual` is about as close to `exact` (float64) as `eager` is.

    `scale` is the size of the numbers that the value is computed from, where that is larger than the value itself: a
    gradient that is zero in exact arithmetic consists of nothing but the rounding of such numbers. Where nothing
    promises the layout of a value (a gradient on its way to where it is accumulated), `strides` is false.
    """
    assert_same_type(actual, eager, name, strides=strides)
    if not eager.is_floating_point() and not eager.is_complex():
        assert torch.equal(actual, eager), f"{name}: {actual} is not eager's {eager}"
        return
    mine, theirs = wide(actual), wide(eager)
    exact = wide(exact).to(mine.device)
    special = ~torch.isfinite(theirs)
    assert torch.equal(mine[special].nan_to_num(), theirs[special].nan_to_num()), f"{name}: other infinities or NaN"
    assert torch.equal(~torch.isfinite(mine), special), f"{name}: other infinities or NaN"
    mine, theirs, exact = mine[~special], theirs[~special], exact[~special]
    eps = torch.finfo(eager.dtype).eps
    floor = eps * (FLOOR.get(eager.dtype, 16.0) * exact.norm().item() + scale)
    own = (theirs - exact).norm().item()
    allowed = FACTOR * own + floor + torch.finfo(eager.dtype).tiny
    error = (mine - exact).norm().item()
    assert error <= allowed, f"{name}: error {error:.3e}, allowed {allowed:.3e}, eager's own {own:.3e}"


def wide(x: Tensor) -> Tensor:
    return x.detach().to(torch.complex128 if x.is_complex() else torch.float64)


def assert_all_close(actual: Any, eager: Any, exact: Any) -> None:
    """Fails unless two results have the same structure and every tensor passes `assert_close`."""
    mine, theirs, wides = tensors_of(actual), tensors_of(eager), tensors_of(exact)
    assert len(mine) == len(theirs) == len(wides)
    for number, (a, e, x) in enumerate(zip(mine, theirs, wides, strict=True)):
        assert_close(a, e, x, f"result {number}")


def gradients(outputs: Any, inputs: Sequence[Tensor], seed: int = 0) -> list[Tensor | None]:
    """Returns the gradients of a weighted sum of all differentiable outputs; the weights depend on `seed` alone."""
    chosen = [x for x in tensors_of(outputs) if x.requires_grad]
    generator = torch.Generator().manual_seed(seed)
    weights = [
        torch.randn(x.shape, generator=generator, dtype=torch.float32).to(torch.float16).to(x.device, x.dtype)
        for x in chosen
    ]
    return list(torch.autograd.grad(chosen, list(inputs), weights, allow_unused=True))
