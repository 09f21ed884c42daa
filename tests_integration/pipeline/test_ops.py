"""Every operator family through the whole pipeline, against eager and the same call in float64 on the host.

On the host, since some of eager's GPU kernels compute doubles in float32, and one (the derivative of a mean over
windows with the channels last) is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import resampling_cases
import training_cases
from against_eager import (
    assert_all_close,
    assert_close,
    by_eager,
    compiled,
    gradients,
    own_only,
    own_statistics,
    widened,
)
from op_cases import FAMILIES as EVERYDAY
from op_cases import Case, Draw
from sampling import as_slow

FAMILIES = {**EVERYDAY, **resampling_cases.FAMILIES, **training_cases.FAMILIES}
PLACES = [
    pytest.param("cpu", torch.float32, 1, id="cpu"),
    pytest.param("cuda", torch.float32, 24, id="cuda-float32", marks=pytest.mark.gpu),
    pytest.param("cuda", torch.bfloat16, 24, id="cuda-bfloat16", marks=pytest.mark.gpu),
    pytest.param("cuda", torch.float16, 24, id="cuda-float16", marks=pytest.mark.gpu),
    pytest.param("cuda", torch.float64, 8, id="cuda-float64", marks=pytest.mark.gpu),
]
CASES = [pytest.param(case, id=f"{family}-{case.name}") for family, cases in FAMILIES.items() for case in cases]
DIFFERENTIABLE = [param for param in CASES if param.values[0].backward]
SAMPLED = 5
"""Of the cases with a gradient, every so many are also compiled without one where slow tests are left out."""

pytestmark = pytest.mark.filterwarnings("ignore:index_reduce:UserWarning")
each_place = pytest.mark.parametrize(("device", "dtype", "scale"), PLACES)


class ExactDigamma(torch.autograd.Function):
    """Digamma with a derivative that is right to the last bits: torch's series for it ends after 1e-8."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        context.save_for_backward(x)
        return torch.digamma(x)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (x,) = context.saved_tensors
        return gradient * torch.special.zeta(torch.full_like(x, 2.0), x)


# torch multiplies by 1.0f / 6.0f here, doubles as well: what is exact is spelt out.
EXACT: dict[str, Callable[[Tensor], Tensor]] = {
    "hardsigmoid": lambda x: (x + 3).clamp(0, 6) / 6,
    "digamma": ExactDigamma.apply,
    "hardswish": lambda x: x * (x + 3).clamp(0, 6) / 6,
}


def exact_function(case: Case, dtype: torch.dtype) -> Callable[..., Any]:
    """Returns the function whose results on float64 inputs are right."""
    return EXACT.get(case.name, case.function) if dtype == torch.float64 else case.function


def draw_inputs(case: Case, device: str, dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
    if case.wide_only and dtype in (torch.float16, torch.bfloat16):
        pytest.skip("eager has no such operator on half types, or none to compare with")
    torch.manual_seed(3)
    return case.inputs(Draw(device, dtype, scale))


def inferred() -> list[Any]:
    """Returns the cases as parameters; of those with a gradient, whose values `test_backward` checks, a sample."""
    return [
        as_slow(param) if param.values[0].backward and place % SAMPLED else param for place, param in enumerate(CASES)
    ]


@each_place
@pytest.mark.parametrize("case", inferred())
def test_forward(case: Case, device: str, dtype: torch.dtype, scale: int) -> None:
    inputs = draw_inputs(case, device, dtype, scale)
    eager = by_eager(case.function, *inputs)
    exact = exact_function(case, dtype)(*widened(inputs, "cpu"))
    actual = compiled(case.function, fullgraph=True)(*inputs)
    assert_all_close(actual, eager, exact)


@each_place
@pytest.mark.parametrize("case", DIFFERENTIABLE)
def test_backward(case: Case, device: str, dtype: torch.dtype, scale: int) -> None:
    inputs = draw_inputs(case, device, dtype, scale)
    for x in inputs:
        if isinstance(x, Tensor) and x.is_floating_point():
            x.requires_grad_()
    values, eager = by_eager(differentiate, case.function, inputs)
    right_values, exact = differentiate(exact_function(case, dtype), widened(inputs, "cpu"))
    found, actual = differentiate(compiled(case.function, fullgraph=True), inputs)
    assert_all_close(found, values, right_values)
    for number, (mine, theirs, right) in enumerate(zip(actual, eager, exact, strict=True)):
        assert (mine is None) == (theirs is None), f"gradient {number}"
        if mine is not None and theirs is not None and right is not None:
            scale_of_all = max(x.norm().item() for x in exact if x is not None)
            assert_close(mine, theirs, right, f"gradient {number}", scale_of_all, strides=False)


def differentiate(function: Any, inputs: tuple[Any, ...]) -> tuple[Any, list[Tensor | None]]:
    """Returns what a function gives, and the gradients of its inputs."""
    leaves = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    values = function(*inputs)
    return values, gradients(values, leaves)


@own_only("asks ferrite how it did a case")
@pytest.mark.parametrize(
    ("family", "name", "most_kernels"),
    [
        ("pointwise", "chain", 1),
        ("reductions", "softmax", 1),
        ("norms", "layer norm", 1),
        ("views", "cat", 1),
        ("views", "transpose add", 1),
        ("indexing", "gather of sum", 1),
        ("matrices", "mm and relu", 1),
    ],
)
def test_cases_that_belong_into_one_kernel_are_one(family: str, name: str, most_kernels: int) -> None:
    (case,) = (case for case in FAMILIES[family] if case.name == name)
    inputs = case.inputs(Draw("cpu", torch.float32, 1))
    before = own_statistics()
    compiled(case.function, fullgraph=True)(*inputs)
    after = own_statistics()
    assert 1 <= after["kernels"] - before["kernels"] <= most_kernels
