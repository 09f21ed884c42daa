"""Calls that eager refuses: the database's own, and more of each kind; compiled, each raises what eager raises.

An error is as eager's if it is an instance of the type that eager raises. Dynamo runs a program on tensors without data
before any backend sees it: what it refuses there is raised as an error of its own, whose text names the type.

On a GPU a kernel's assertion ends the process's use of the device. So a call is made compiled and in eager mode one
after the other, each in whatever process is left (`op_worker`), and what they raised is told from what they said:

    compiled | eager:  returned   raised              asserted in a kernel
    returned           accepted   wrong               wrong
    raised             wrong      raised, if alike    raised: earlier than eager, and the GPU can be used on
    asserted           wrong      wrong               raised

What is wrong but has its reason in a table is listed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from op_calls import Call, twin
from op_samples import database
from refused_calls import ASSERTIONS, CALLS, EXCEPTIONS

RAISED, ACCEPTED, LISTED, WRONG = "raised", "accepted", "listed", "wrong"
"""What a call may come to: raised as in eager; eager takes it here; an exception of the table; none of these."""
WRAPPERS = ("TorchRuntimeError", "Unsupported", "UserError", "ObservedException", "InternalTorchDynamoError")
"""Dynamo's errors that stand for one of eager's, which their text names."""
BY_DYNAMO = "dynamo refuses it itself, on tensors without data, before any backend sees it, with another type of error"
ASSERTED = "device-side assert"
EAGER, STATIC, DYNAMIC = "eager", "static", "dynamic"
"""How a call is made: as it is, compiled, compiled with symbolic sizes."""


@dataclass(frozen=True, slots=True)
class Raising:
    """What a call raised: names of the error's type and its bases, nearest first, and its text; none if it returned."""

    types: tuple[str, ...] = ()
    text: str = ""

    @classmethod
    def of(cls, error: Exception | None) -> Raising:
        """Returns what an error says."""
        if error is None:
            return cls()
        return cls(tuple(kind.__name__ for kind in type(error).__mro__), " ".join(str(error).split()))

    @property
    def type(self) -> str:
        return self.types[0] if self.types else ""

    @property
    def is_assertion(self) -> bool:
        """Whether a kernel asserted, after which the process can use its GPU no more."""
        return ASSERTED in self.text

    def shown(self) -> str:
        return f"raised {self.type}: {self.text[:160]}" if self.types else "returned"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a refused call, and why."""

    status: str
    reason: str = ""


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


def verdict(name: str, call: Call, *, dynamic: bool = False) -> Verdict:
    """Returns what came of one call of an operator, compiled and in eager mode, in this process."""
    return judged(name, call.text(), raising(call, DYNAMIC if dynamic else STATIC), raising(call, EAGER))


def raising(call: Call, way: str) -> Raising:
    """Returns what a call raises, made in one of the three ways."""
    if way == EAGER:
        return Raising.of(error_of(call, call.function))
    torch._dynamo.reset()
    dynamic = True if way == DYNAMIC else None
    return Raising.of(error_of(call, torch.compile(call.function, backend="ferrite", dynamic=dynamic)))


def judged(name: str, call: str, actual: Raising, expected: Raising) -> Verdict:
    """Returns the verdict on what a compiled call raised, given what eager raises."""
    if not (actual.types or expected.types):
        return Verdict(ACCEPTED, call)
    if actual.is_assertion and expected.is_assertion:
        return Verdict(RAISED, ASSERTED)
    if is_like(actual, expected):
        return Verdict(RAISED, actual.type)
    if actual.type in WRAPPERS:
        return Verdict(LISTED, BY_DYNAMO)
    table = ASSERTIONS if actual.is_assertion else EXCEPTIONS
    said = expected.text if expected.types else "returned"
    listed = next((why for (op, text), why in table.items() if op == name and text in said), None)
    if listed is not None:
        return Verdict(LISTED, listed)
    return Verdict(WRONG, f"{actual.shown()}; eager {expected.shown()}: {call}")


def is_like(actual: Raising, expected: Raising) -> bool:
    """Returns whether a compiled call raised what eager raises, or raised where eager's kernels assert."""
    if actual.is_assertion or not actual.types or not expected.types:
        return False
    if expected.is_assertion or expected.type in actual.types:
        return True
    return actual.type in WRAPPERS and expected.type in actual.text


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
