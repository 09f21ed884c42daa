"""Calls that eager refuses: the database's own, and more of each kind; compiled, each raises what eager raises.

An error is as eager's if it is an instance of the type that eager raises. Dynamo runs a program on tensors without data
before any backend sees it: what that refuses is raised as dynamo's own error, a `RuntimeError` whose text names the
type and has the message.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from op_calls import Call, twin
from op_samples import database
from refused_calls import CALLS, NOT_RAISED, Refused

WRAPPERS = ("TorchRuntimeError", "Unsupported", "UserError", "ObservedException", "InternalTorchDynamoError")
"""Dynamo's errors that stand for one of eager's, which their text names."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a refused call: ``raised`` (right), ``accepted`` by eager here, or ``wrong``; and why."""

    status: str
    reason: str = ""


def refused_calls(name: str, variant: str, device: str) -> list[Call]:
    """Returns the calls of an operator that eager should refuse, in a fixed order."""
    if name in CALLS:
        return [Call.of(made.function, made.arguments(device), {}) for made in CALLS[name]]
    info = next(info for info in database() if (info.name, info.variant_test_name) == (name, variant))
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inputs = [given.sample_input for given in info.error_inputs(device)]
    return [Call.of(info.op, (given.input, *given.args), given.kwargs) for given in inputs]


def operators_with_refusals() -> list[tuple[str, str]]:
    """Returns the operators of the database that have such calls, then the groups of our own."""
    known = [(info.name, info.variant_test_name) for info in database() if info.error_inputs_func is not None]
    return [*known, *((name, "") for name in CALLS)]


def verdict(call: Call, *, dynamic: bool | None = None) -> Verdict:
    """Returns what came of one call, compiled and in eager mode."""
    expected = error_of(call, call.function)
    if expected is None:
        return Verdict("accepted", call.text())
    torch._dynamo.reset()
    actual = error_of(call, torch.compile(call.function, backend="ferrite", dynamic=dynamic))
    if actual is None:
        return Verdict("wrong", f"returned; eager raises {shown(expected)}: {call.text()}")
    if is_like(actual, expected):
        return Verdict("raised", type(actual).__name__)
    return Verdict("wrong", f"raised {shown(actual)}; eager raises {shown(expected)}: {call.text()}")


def error_of(call: Call, function: Callable[..., Any]) -> Exception | None:
    """Returns what a function raises for copies of a call's tensors."""
    args, kwargs = call.arguments(*map(copied, call.tensors))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            function(*args, **kwargs)
            if any(x.device.type == "cuda" for x in call.tensors):
                torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001  # whatever it is, is the question
        return error
    return None


def copied(x: torch.Tensor) -> torch.Tensor:
    return x if x.layout != torch.strided or x.requires_grad else twin(x)


def is_like(actual: Exception, expected: Exception) -> bool:
    """Returns whether a compiled call raised what eager raises."""
    if isinstance(actual, type(expected)):
        return True
    return type(actual).__name__ in WRAPPERS and type(expected).__name__ in str(actual)


def shown(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
