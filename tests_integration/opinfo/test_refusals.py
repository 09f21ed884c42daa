"""Calls that eager refuses, compiled: one in so many of them, in this process.

All of them, each apart from the others, as some once ended the process:
``python tests_integration/opinfo/refusals.py --out refusals.jsonl``.
"""

from __future__ import annotations

import pytest
import torch

from against_eager import own_only
from op_refusals import (
    ACCEPTED,
    BY_DYNAMO,
    LISTED,
    RAISED,
    WRONG,
    Raising,
    Verdict,
    error_of,
    judged,
    operators_with_refusals,
    refused_calls,
    verdict,
)
from refused_calls import CALLS, EXCEPTIONS

STRIDE = 24
"""One call in so many is made: about forty of the database's and ours."""

pytestmark = own_only("the checks are about ferrite's own compilation")

SAMPLE = [
    (name, variant, number)
    for place, (name, variant, number) in enumerate(
        (name, variant, number)
        for name, variant in operators_with_refusals()
        for number in range(len(refused_calls(name, variant, "cpu")))
    )
    if place % STRIDE == 0
]


@pytest.mark.parametrize(("name", "variant", "number"), SAMPLE)
def test_a_call_that_eager_refuses_raises(name: str, variant: str, number: int) -> None:
    found = verdict(name, refused_calls(name, variant, "cpu")[number])
    assert found.status in (RAISED, ACCEPTED, LISTED), found.reason


def test_sizes_that_change_are_refused_too() -> None:
    for name, number in (("index_*", 9), ("parts of other shapes", 0), ("norms", 0)):
        found = verdict(name, refused_calls(name, "", "cpu")[number], dynamic=True)
        assert found.status == RAISED, found.reason


def test_every_kind_of_ours_is_refused_by_eager() -> None:
    """Some torch may take a call after all, but not most of a kind."""
    for name in CALLS:
        calls = refused_calls(name, "", "cpu")
        accepted = [call.text() for call in calls if error_of(call, call.function) is None]
        assert len(accepted) * 2 < len(calls), (name, accepted)


def test_other_errors_and_results_are_no_refusals() -> None:
    (call, *_) = refused_calls("take, put", "", "cpu")

    def judge(error: Exception | None) -> Verdict:
        return judged("take, put", call.text(), Raising.of(error), Raising.of(IndexError("out of range")))

    assert judge(IndexError("x")).status == RAISED
    assert judge(ValueError("x")).status == WRONG
    assert judge(None).status == WRONG
    wrapper = type("TorchRuntimeError", (RuntimeError,), {})
    assert judge(wrapper("got IndexError('…')")).status == RAISED
    assert judge(wrapper("something else")).reason == BY_DYNAMO


def test_exceptions_are_of_operators_that_there_are() -> None:
    names = {name for name, _ in operators_with_refusals()}
    assert {op for op, _ in EXCEPTIONS} <= names


@pytest.mark.gpu
def test_a_gpu_is_asked_for_as_much() -> None:
    """Only static refusals: an assertion of a kernel would end this process's use of the GPU."""
    for name, number in (("index_*", 9), ("parts of other shapes", 0), ("norms", 0), ("losses", 0)):
        assert torch.cuda.is_available()
        found = verdict(name, refused_calls(name, "", "cuda")[number])
        assert found.status == RAISED, found.reason
