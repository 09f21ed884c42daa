"""Users' Triton kernels: unwrapped, found behind torch's numbers, traced where they are launched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from ferrite_torch.calls.user_constants import NotWritten, written
from ferrite_torch.torch_private.user_kernels import (
    find_constants,
    find_kernel,
    restoring,
    tracing_launches,
    unwrap_kernel,
)


@triton.jit
def copied(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr = 0):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n), at < n)


CONFIGS = [triton.Config({"BLOCK": 64}, num_warps=2), triton.Config({"BLOCK": 128})]
EVEN = {"EVEN": lambda values: values["n"] % 64 == 0}


def test_decorators_are_unwrapped_in_any_order() -> None:
    tuned = triton.autotune(configs=CONFIGS, key=["n"])
    for kernel in (tuned(triton.heuristics(EVEN)(copied)), triton.heuristics(EVEN)(tuned(copied))):
        found = unwrap_kernel(kernel)
        assert found.function is copied
        assert [config.kwargs["BLOCK"] for config in found.configs] == [64, 128]
        assert found.keys == ("n",)
        assert [name for name, _ in found.heuristics] == ["EVEN"]
    plain = unwrap_kernel(copied)
    assert (plain.configs, plain.keys, plain.heuristics) == ((), (), ())


def test_what_is_no_decorator_of_tritons_is_refused() -> None:
    class Around:
        fn = copied

    with pytest.raises(TypeError, match="within a Around"):
        unwrap_kernel(Around())


@pytest.mark.parametrize(
    "kernel", [copied, triton.heuristics(EVEN)(copied), triton.autotune(configs=CONFIGS, key=[])(copied)]
)
def test_a_launch_is_traced_with_its_kernel_and_constants(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = kernel.run
    block = {} if hasattr(kernel, "configs") else {"BLOCK": 64}

    def function(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel(), **block)
        return out

    with FakeTensorMode() as mode, tracing_launches():
        module = make_fx(function)(mode.from_tensor(torch.ones(128)))
    (launch,) = (node for node in module.graph.nodes if "triton_kernel_wrapper" in str(node.target))
    assert unwrap_kernel(find_kernel(launch.kwargs["kernel_idx"])).function is copied
    given = {**find_constants(launch.kwargs["constant_args_idx"]), **launch.kwargs["kwargs"]}
    assert given["n"] == 128
    assert given.get("EVEN", True) is True
    assert [grid[0] for grid in launch.kwargs["grid"]] == ([2, 1] if hasattr(kernel, "configs") else [2])
    assert kernel.run == theirs, "it is put back"


def test_constants_are_numbers_names_and_types() -> None:
    assert [written(value) for value in (None, True, 3, 0.5, "ieee")] == [None, True, 3, 0.5, "ieee"]
    assert written(tl.constexpr(4)) == 4
    kinds = {"bf16": tl.bfloat16, "f32": tl.float32, "i32": tl.int32, "u8": tl.uint8, "bool": tl.int1}
    assert {name: written(kind)["dtype"] for name, kind in kinds.items()} == {name: name for name in kinds}
    for value in (float("inf"), torch.float32, copied, object(), (1, 2)):
        with pytest.raises(NotWritten, match="a constant is"):
            written(value)


class Adding:
    """Stands for a jitted function that adds one to its tensor, as autotuners launch it."""

    fn = staticmethod(copied.fn)

    def __init__(self) -> None:
        self.launches = 0

    def run(self, out: torch.Tensor, **_: Any) -> None:
        self.launches += 1
        out.add_(1)


def timed_by_launches(function: Any, configs: list[Any]) -> Any:
    """Returns a kernel whose configs are timed by three launches each."""

    def times(launch: Any, quantiles: Any) -> list[float]:
        for _ in range(3):
            launch()
        return [1.0, 1.0, 1.0]

    return triton.runtime.Autotuner(function, ["out", "BLOCK"], configs, [], None, None, do_bench=times)


def test_what_a_kernel_adds_while_it_is_timed_is_taken_back() -> None:
    function, out = Adding(), torch.full((4,), 5.0)
    kernel = timed_by_launches(function, CONFIGS)
    for calls in (1, 2):  # the second finds what the first has chosen
        restoring(kernel, [out])[(1,)](out)
        torch.testing.assert_close(out, torch.full((4,), 5.0 + calls))
    assert function.launches == 3 * len(CONFIGS) + 2


def test_a_kernel_that_is_not_timed_is_launched_as_it_is() -> None:
    assert restoring(copied, [torch.ones(1)]) is copied
    alone = timed_by_launches(Adding(), CONFIGS[:1])
    assert restoring(alone, [torch.ones(1)]) is alone
