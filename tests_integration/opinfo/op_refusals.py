"""Calls that eager refuses: the database's own, and more of each kind; compiled, each raises what eager raises.

An error is as eager's if it is an instance of the type that eager raises. Dynamo runs a program on tensors without data
before any backend sees it: what it refuses there is raised as an error of its own, whose text names the type. On a GPU,
where eager asserts in kernels, an assertion of a compiled kernel is as good: it ends the process's use of the GPU.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from op_calls import Call, twin
from op_samples import database
from refused_calls import CALLS, EXCEPTIONS

RAISED, ACCEPTED, LISTED, WRONG = "raised", "accepted", "listed", "wrong"
"""What a call may come to: raised as in eager; eager takes it here; an exception of the table; none of these."""
WRAPPERS = ("TorchRuntimeError", "Unsupported", "UserError", "ObservedException", "InternalTorchDynamoError")
"""Dynamo's errors that stand for one of eager's, which their text names."""
BY_DYNAMO = "dynamo refuses it itself, on tensors without data, before any backend sees it, with another type of error"
ASSERTED = "device-side assert"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a refused call, and why; ``ends_process`` says that the GPU can be used no more."""

    status: str
    reason: str = ""
    ends_process: bool = False


def operators_with_refusals() -> list[tuple[str, str]]:
    """Returns the operators of the database that have such calls, then the kinds of our own.

    The database's inputs for sparse layouts (``error_inputs_sparse``) are not among them: graphs with sparse tensors
    run eagerly, as a warning says.
    """
    known = [(info.name, info.variant_test_name) for info in database() if info.error_inputs_func is not None]
    return [*known, *((name, "") for name in CALLS)]


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


def verdict(name: str, call: Call, *, dynamic: bool | None = None) -> Verdict:
    """Returns what came of one call of an operator, compiled and in eager mode."""
    on_gpu = any(x.device.type == "cuda" for x in call.tensors)
    expected = None if on_gpu else error_of(call, call.function)
    if expected is None and not on_gpu:
        return Verdict(ACCEPTED, call.text())
    torch._dynamo.reset()
    actual = error_of(call, torch.compile(call.function, backend="ferrite", dynamic=dynamic))
    if actual is not None and ASSERTED in str(actual):
        return Verdict(RAISED, ASSERTED, ends_process=True)
    if on_gpu:  # only now: an assertion of eager's kernels would leave nothing to compile for
        expected = error_of(call, call.function)
        if expected is None:
            return Verdict(ACCEPTED, call.text())
    found = judged(name, call, actual, expected)
    return Verdict(found.status, found.reason, ends_process=ASSERTED in str(expected))


def judged(name: str, call: Call, actual: Exception | None, expected: Exception | None) -> Verdict:
    """Returns the verdict on what a compiled call raised, given what eager raises."""
    if actual is not None and is_like(actual, expected):
        return Verdict(RAISED, type(actual).__name__)
    if type(actual).__name__ in WRAPPERS:
        return Verdict(LISTED, BY_DYNAMO)
    listed = next((why for (op, text), why in EXCEPTIONS.items() if op == name and text in str(expected)), None)
    if listed is not None:
        return Verdict(LISTED, listed)
    came = "returned" if actual is None else f"raised {shown(actual)}"
    return Verdict(WRONG, f"{came}; eager raises {shown(expected)}: {call.text()}")


def error_of(call: Call, function: Callable[..., Any]) -> Exception | None:
    """Returns what a function raises for copies of a call's tensors."""
    args, kwargs = call.arguments(*map(_copied, call.tensors))
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


def _copied(x: torch.Tensor) -> torch.Tensor:
    return x if x.layout != torch.strided or x.requires_grad else twin(x)


def is_like(actual: Exception, expected: Exception | None) -> bool:
    """Returns whether a compiled call raised what eager raises."""
    if isinstance(actual, type(expected)):
        return True
    return type(actual).__name__ in WRAPPERS and type(expected).__name__ in str(actual)


def shown(error: Exception | None) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
