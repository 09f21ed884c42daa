"""Products of matrices in kernels of ours: any strides, batches and sizes, with what reads their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from against_eager import assert_all_close, compiled, devices, own_only, widened
from ferrite_triton.analysis import described_blocks
from ferrite_triton.analysis.lowering_policy import LOWERING
from product_cases import dequantised, drawn, gated, kernels, normalised, product, residual, scaled, with_bias

OPTIONS: dict[str, Any] = {"fallback": False, "verify": True, "products": "own"}
M, K, N = 40, 72, 48


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Forgets what was compiled before and after each test."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def several(x: Tensor, w: Tensor, bias: Tensor, y: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    z = F.linear(x, w, bias)
    return z, torch.relu(z), (z + y).float()


def by_rows(x: Tensor, w: Tensor, *_: Tensor) -> Tensor:
    return x @ w.t().contiguous()


def transposed(x: Tensor, w: Tensor, *_: Tensor) -> Tensor:
    return (w @ x.t()).t()


def in_place(x: Tensor, w: Tensor, bias: Tensor, y: Tensor, *_: Tensor) -> Tensor:
    h = torch.sort(y, 1).values  # a value that dies in the kernel
    return h + F.linear(x, w, bias)


def sliced(x: Tensor, w: Tensor, *_: Tensor) -> Tensor:
    return x[::2, 8:] @ w[:, 8:].t()


def chained(x: Tensor, w: Tensor, bias: Tensor, y: Tensor, v: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, bias)) @ v


def with_itself(x: Tensor, *_: Tensor) -> Tensor:
    return x @ x.t()


FUSED = [product, with_bias, scaled, residual, gated, several, transposed, sliced, with_itself]
FUNCTIONS = [*FUSED, by_rows, in_place, normalised, dequantised, chained]


def given(rows: int, dtype: torch.dtype, device: str, k: int = K, n: int = N) -> tuple[Tensor, ...]:
    return drawn(rows, dtype, device, k, n)


def check(function: Callable[..., Any], inputs: tuple[Tensor, ...], *, dynamic: bool = False) -> None:
    mine = compiled(function, fullgraph=True, dynamic=dynamic, options=OPTIONS)(*inputs)
    assert_all_close(listed(mine), listed(function(*inputs)), listed(function(*map(widened, inputs))))


def listed(results: Any) -> list[Tensor]:
    return list(results) if isinstance(results, tuple) else [results]


def calls() -> list[str]:
    from ferrite_torch import compiled_programs

    return [step["target"] for step in compiled_programs()[-1]["steps"] if step["do"] == "extern"]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_values(function: Callable[..., Any], dtype: torch.dtype, device: str) -> None:
    check(function, given(M, dtype, device))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(("rows", "k", "n"), [(300, 520, 272), (512, 512, 256), (17, 16, 300), (130, 1000, 16)])
@pytest.mark.parametrize("function", [residual, gated])
def test_values_of_several_tiles_and_blocks(
    function: Callable[..., Any], rows: int, k: int, n: int, device: str
) -> None:
    check(function, given(rows, torch.bfloat16, device, k, n))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("function", [*FUSED, dequantised, in_place])
def test_values_of_sums_in_parts(function: Callable[..., Any], device: str) -> None:
    check(function, given(M, torch.bfloat16, device, 2048, N))


@own_only("looks at its kernels")
@pytest.mark.parametrize("function", [product, with_bias, residual])
def test_sums_in_parts_are_added_up_by_what_reads_them(function: Callable[..., Any]) -> None:
    check(function, given(M, torch.bfloat16, "cpu", 2048, N))
    parts, whole = kernels()
    assert [axis["name"] for axis in parts["axes"]] == ["t", "z", "y", "x", "r"]
    assert parts["form"] == "tiled_contraction"
    assert whole["form"] == "persistent"


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("function", FUNCTIONS)
def test_values_at_symbolic_sizes(function: Callable[..., Any], device: str) -> None:
    mine = compiled(function, fullgraph=True, dynamic=True, options=OPTIONS)
    for rows in (M, 300, 4):
        inputs = given(rows, torch.bfloat16, device)
        expected = listed(function(*map(widened, inputs)))
        assert_all_close(listed(mine(*inputs)), listed(function(*inputs)), expected)


@own_only("looks at its kernels")
@pytest.mark.parametrize("function", FUSED)
def test_one_kernel_does_all_of_it(function: Callable[..., Any]) -> None:
    check(function, given(M, torch.bfloat16, "cpu"))
    (kernel,) = kernels()
    assert kernel["form"] == "tiled_contraction"
    assert not calls()


def batched(x: Tensor, y: Tensor, *_: Tensor) -> Tensor:
    return torch.bmm(x, y)


def added(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return torch.relu(torch.baddbmm(z, x, y, beta=0.5, alpha=0.25))


def heads(x: Tensor, y: Tensor, *_: Tensor) -> Tensor:
    return x.transpose(0, 1).contiguous().transpose(0, 1) @ y / 8


def shared(x: Tensor, y: Tensor, *_: Tensor) -> Tensor:
    return x @ y[0]


def expanded(x: Tensor, y: Tensor, *_: Tensor) -> Tensor:
    return torch.bmm(x, y[:1].expand(y.shape))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [batched, added, heads, shared, expanded])
def test_values_of_batches(function: Callable[..., Any], device: str, *, dynamic: bool) -> None:
    torch.manual_seed(0)
    shapes = ((3, 40, 32), (3, 32, 56), (3, 1, 56))
    inputs = tuple(torch.randn(shape, device=device).bfloat16() for shape in shapes)
    check(function, inputs, dynamic=dynamic)


@own_only("looks at its kernels")
@pytest.mark.parametrize(
    ("function", "axes"), [(batched, "tzyxr"), (added, "tzyxr"), (shared, "tyxr"), (expanded, "tyxr")]
)
def test_a_batch_has_an_axis_unless_one_factor_is_the_same_for_all_of_it(
    function: Callable[..., Any], axes: str
) -> None:
    torch.manual_seed(0)
    shapes = ((3, 40, 32), (3, 32, 56), (3, 1, 56))
    check(function, tuple(torch.randn(shape).bfloat16() for shape in shapes))
    (kernel,) = kernels()
    assert "".join(axis["name"] for axis in kernel["axes"]) == axes


@own_only("interprets its kernels")
@pytest.mark.parametrize("function", [*FUSED, in_place, dequantised, batched, heads, expanded])
def test_values_of_blocks_through_descriptors(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrite_runtime.policies.interpreted.LOADS", 2)
    monkeypatch.setattr(described_blocks, "LOWERING", replace(LOWERING, described_operations=0))
    inputs = given(45, torch.bfloat16, "cpu")
    if function in (batched, heads, expanded):
        inputs = tuple(torch.randn(shape).bfloat16() for shape in ((3, 40, 32), (3, 32, 56)))
    check(function, inputs)
    assert any("make_tensor_descriptor" in kernel["source"] for kernel in kernels())


@own_only("looks at its calls")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_other_types_are_left_to_the_library(dtype: torch.dtype) -> None:
    check(product, given(M, dtype, "cpu"))
    assert calls()


def trained(x: Tensor, w: Tensor, bias: Tensor, y: Tensor, v: Tensor) -> Tensor:
    return (F.gelu(F.linear(x, w, bias)) @ v + x).float().square().mean()


@pytest.mark.parametrize("device", devices())
def test_gradients(device: str) -> None:
    inputs = given(M, torch.bfloat16, device)

    def gradients(function: Callable[..., Any], operands: tuple[Tensor, ...]) -> list[Tensor]:
        leaves = [operand.detach().clone().requires_grad_() for operand in operands]
        function(*leaves).backward()
        return [leaf.grad for leaf in leaves if leaf.grad is not None]

    mine = gradients(compiled(trained, fullgraph=True, dynamic=False, options=OPTIONS), inputs)
    assert_all_close(mine, gradients(trained, inputs), gradients(trained, tuple(map(widened, inputs))))


@own_only("looks at its calls")
@pytest.mark.parametrize("function", [with_bias, residual, gated, several])
def test_without_a_gpu_to_measure_on_the_library_computes_them(function: Callable[..., Any]) -> None:
    inputs = given(M, torch.bfloat16, "cpu")
    mine = compiled(function, fullgraph=True, dynamic=False, options={**OPTIONS, "products": "measured"})(*inputs)
    assert_all_close(listed(mine), listed(function(*inputs)), listed(function(*map(widened, inputs))))
    assert calls()
    assert not [kernel for kernel in kernels() if kernel["form"] == "tiled_contraction"]


class Told:
    """An oracle that was told which form of kernels is fast."""

    def __init__(self, fast: str) -> None:
        self.fast = fast

    def cost(self, schedule: Any, kernels: object = None) -> Any:
        from ferrite_scheduler import Cost

        is_own = any(kernel.form.name == "tiled_contraction" for kernel in schedule.kernels)
        return Cost(1e-3 if is_own == (self.fast == "tiled_contraction") else 2e-3, "told")


@own_only("looks at its choices")
@pytest.mark.parametrize("fast", ["tiled_contraction", "library"])
def test_explain_shows_what_there_was_to_choose_from(fast: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import ferrite_torch.pipeline
    from ferrite_torch import explain

    monkeypatch.setattr(ferrite_torch.pipeline, "oracle_for", lambda *_, **__: Told(fast))
    told = explain(residual, *given(M, torch.bfloat16, "cpu"), options={**OPTIONS, "products": "measured"})
    (graph,) = told.graphs
    (choice,) = graph.schedule.choices
    assert choice.chosen == ("own kernel" if fast == "tiled_contraction" else "library")
    assert "1000.0 us told" in str(told)
    assert "2000.0 us told" in str(told)
    assert len(graph.externs) == (fast == "library")
    (kernel,) = graph.kernels
    assert (kernel.form == "tiled_contraction") == (fast == "tiled_contraction")


def branched(x: Tensor, w: Tensor, bias: Tensor, y: Tensor, *_: Tensor) -> Tensor:
    def residual_of(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
        return y + F.linear(x, w)

    return torch.cond(bias.sum() > 0, residual_of, lambda x, w, y: F.linear(x, w) - y, (x, w, y))


@own_only("looks at its kernels")
def test_branches_have_such_kernels_too() -> None:
    check(branched, given(M, torch.bfloat16, "cpu"))
    assert not calls()
    assert sum(kernel["form"] == "tiled_contraction" for kernel in kernels()) == 2
