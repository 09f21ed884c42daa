"""Ops that dynamo takes apart before a backend sees them: eager's numbers and refusals, and no extern call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from against_eager import compiled_or_eager, compiled_to_kernels

Call = Callable[..., Any]


def updated(name: str, value: Any) -> Call:
    return lambda x, a, b: getattr(x, name)(a, b, value=value)


def listed(name: str, value: Any) -> Call:
    return lambda x, a, b: getattr(torch, name)([x, x * 2], [a, a], [b, b], value=value)


def numbers(dtype: torch.dtype, *shape: int) -> Tensor:
    return (torch.rand(shape) * 3 + 1).to(dtype)


def outcome(function: Call, *inputs: Any) -> Any:
    """Returns what a call gives and leaves in its inputs, or the type of what it raises and what it says first."""
    given = [value.clone() if isinstance(value, Tensor) else value for value in inputs]
    try:
        return function(*given), given
    except Exception as error:  # noqa: BLE001  # of whatever type: it is compared
        return type(error), str(error)[:40]


def agree(compiled: Call, call: Call, *inputs: Any) -> None:
    found, expected = outcome(compiled, *inputs), outcome(call, *inputs)
    if isinstance(expected[0], type):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected)


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("value", [1, -0.5, 2], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["addcmul_", "addcdiv_"])
def test_every_type_is_taken_or_refused_as_in_eager(name: str, dtype: torch.dtype, value: float) -> None:
    inputs = [numbers(dtype, 3, 5) for _ in range(3)]
    call = updated(name, value)
    agree(compiled_or_eager(call), call, *inputs)


@pytest.mark.parametrize("value", [-0.5, 2], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("name", ["_foreach_addcmul", "_foreach_addcmul_"])
def test_lists_are_kernels(name: str, dtype: torch.dtype, value: float) -> None:
    inputs = [numbers(dtype, 3, 5) for _ in range(3)]
    call = listed(name, value)
    agree(compiled_to_kernels(call), call, *inputs)


X, WHOLE, HALF = torch.ones(5), torch.arange(1, 6), torch.tensor(0.5)
REFUSED: dict[str, tuple[Call, tuple[Any, ...]]] = {
    "floats into integers": (updated("addcmul_", 1), (WHOLE, X, X)),
    "integers that are divided": (updated("addcdiv_", 0.5), (X, WHOLE, WHOLE)),
    "divided by a factor in a tensor": (lambda x, a, v: x.addcdiv_(a, a, value=v), (X, WHOLE, HALF)),
    "several factors": (lambda x, a, v: x.addcmul_(a, a, value=v), (X, X, X)),
    "several factors of a sum": (lambda x, a, v: x.add_(a, alpha=v), (X, X, X)),
    "a fraction of integers": (lambda x, a, v: x.add_(a, alpha=v), (WHOLE, WHOLE, HALF)),
    "memory that is read": (lambda x, b: x.addcmul_(x.t(), b, value=2), (torch.rand(3, 3), torch.rand(3, 3))),
    "a larger operand": (updated("addcmul_", 2), (X, torch.rand(3, 5), X)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused(name: str, *, dynamic: bool) -> None:
    call, inputs = REFUSED[name]
    kind, _ = outcome(call, *inputs)
    assert issubclass(kind, Exception)
    found, said = outcome(compiled_or_eager(call, dynamic=dynamic), *inputs)
    assert isinstance(found, type), f"it was computed: {found}, {said}"
    assert issubclass(found, (kind, RuntimeError)), (found, said)


@pytest.mark.parametrize("name", ["addcmul_", "addcdiv_"])
def test_a_factor_that_changes_compiles_once(name: str) -> None:
    call = compiled_to_kernels(lambda x, a, b, v: getattr(x, name)(a, b, value=-v), dynamic=True)
    for value in (0.25, 0.37, -3.0):
        x, a, b = (numbers(torch.float32, 7) for _ in range(3))
        expected = getattr(x.clone(), name)(a, b, value=-value)
        torch.testing.assert_close(call(x, a, b, value), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["addcmul_", "addcdiv_"])
def test_a_factor_in_a_tensor_stays_in_the_kernel(name: str, dtype: torch.dtype) -> None:
    x, a, b = (numbers(dtype, 7) for _ in range(3))
    call: Call = lambda x, a, b, v: getattr(x, name)(a, b, value=v)  # noqa: E731
    expected = call(x.clone(), a, b, HALF)
    torch.testing.assert_close(compiled_to_kernels(call)(x, a, b, HALF), expected)
