"""Everything that is checked of one operator at one dtype.

Ways of running it: ``forward``, ``backward``, ``inplace`` (several calls in one program each), ``dynamo`` (one call
through torch.compile as users write it), and where it is asked for ``dynamic`` (all calls through one function that is
compiled with ``dynamic=True``, so that sizes meet a program made for others). Each comes to a status:

* ``pass``: right, and compiled;
* ``eager``: right, but a graph runs eagerly, for the reason given;
* ``fail``: wrong numbers, a wrong type, or an error that eager does not raise;
* ``none``: there is nothing to compare: eager does not do this either.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ferrite_torch import FerriteError, Unsupported
from op_calls import Call, spread
from op_programs import (
    Dispatched,
    Runner,
    Work,
    compile_dynamic,
    compile_dynamo,
    compile_forward,
    compile_training,
    observed,
)
from op_samples import Sample, is_same, prepare_sample, sample_calls
from op_verdicts import mismatch

UNDEFINED = (
    "empty",
    "empty_like",
    "new_empty",
    "empty_strided",
    "new_empty_strided",
    "empty_permuted",
    "resize_",
    "resize_as_",
)
"""Operators whose results are whatever memory holds: only their types are compared."""

UNTRACEABLE = (
    "DynamicOutputShapeException",
    "DataDependentOutputException",
    "GuardOnDataDependentSymNode",
    "UnsupportedOperatorException",
    "UnsupportedFakeTensorException",
    "UnsupportedMutationAliasingException",
)
"""Names of the exceptions by which torch says that it cannot trace something: dynamo leaves such a call to eager."""

UNTRACEABLE_TEXTS = (
    "Found a custom (non-ATen) operator whose output has alias annotations",
    "Cannot access data pointer of Tensor (e.g. FakeTensor, FunctionalTensor)",
)
"""What torch says of the few aten ops that write their operand and have no form that does not, and of kernels that
users bring along as text (the jiterator): nothing traces these."""

WAYS = ("forward", "backward", "inplace", "dynamo", "dynamic")
STATUSES = ("none", "pass", "eager", "fail")
"""From harmless to bad: the worst status of all samples is that of the operator."""

SHORT = 400
"""Characters kept of a reason."""

KEPT_REASONS = 5

ENOUGH_DRAWS = 16
"""So many coins do not fall alike for three seeds: the odds are below one in a billion."""

Verdict = tuple[Sample, str, str]


class Poisoned(Exception):
    """The process has lost its GPU context; nothing that runs in it from now on means anything."""


@dataclass(slots=True)
class Outcome:
    """How one way of running an operator went; ``aten`` are the ops that eager dispatches to."""

    status: str = "none"
    samples: int = 0
    reasons: list[str] = field(default_factory=list)
    graphs: int = 0
    kernels: int = 0
    externs: dict[str, str] = field(default_factory=dict)
    aten: list[str] = field(default_factory=list)


def check(info: Any, dtype: torch.dtype, device: str, way: str, most: int) -> Outcome:
    """Returns how an entry of the operator database does at one dtype, with at most ``most`` calls.

    Raises:
        Poisoned: the process must not be used any more.
    """
    outcome, seen = Outcome(), Dispatched()
    if way == "inplace" and info.inplace_variant is None:
        return outcome
    if way == "backward" and dtype not in info.supported_backward_dtypes(torch.device(device).type):
        return outcome
    calls = spread(sample_calls(info, dtype, device, way), 1 if way == "dynamo" else most)
    samples = list(prepared(calls, info.name, way, seen, outcome))
    outcome.samples, outcome.aten = len(samples), sorted(seen.names)
    if not samples:
        return outcome
    outcome.reasons.clear()
    makers = {"dynamo": compile_dynamo, "dynamic": compile_dynamic, "backward": compile_training}
    compile_all = makers.get(way, compile_forward)
    with observed() as work:
        for sample, status, reason in verdicts(samples, compile_all, is_undefined=info.name in UNDEFINED):
            outcome.status = max(outcome.status, status, key=STATUSES.index)
            if reason:
                outcome.reasons.append(f"{reason} @ {sample.call.text()[:160]}")
    del outcome.reasons[KEPT_REASONS:]
    note_work(outcome, work)
    if device == "cuda":
        settle(torch.cuda.synchronize)
    return outcome


def note_work(outcome: Outcome, work: Work) -> None:
    outcome.graphs, outcome.kernels, outcome.externs = work.graphs, work.kernels, dict(sorted(work.externs.items()))
    if outcome.status == "pass" and work.fallbacks:
        outcome.status = "eager"
        outcome.reasons += [reason[:SHORT] for reason in work.fallbacks]


def prepared(calls: Sequence[Call], name: str, way: str, seen: Dispatched, outcome: Outcome) -> Iterator[Sample]:
    """Yields the samples of the calls that eager can make; notes why it cannot make the others."""
    for call in calls:
        try:
            sample = settle(lambda: prepare_sample(call, way, seen, name))  # noqa: B023 - called at once
        except Poisoned:
            raise
        except Exception as error:  # noqa: BLE001 - whatever eager raises
            outcome.reasons.append(f"eager: {short(error)}")
            continue
        if sample is not None:
            yield sample


def verdicts(
    samples: Sequence[Sample], compile_all: Callable[[Sequence[Sample]], Runner], *, is_undefined: bool
) -> Iterator[Verdict]:
    """Yields the verdict on each sample; all are compiled together, and one by one if that fails."""
    try:
        runs = settle(lambda: repeated_runs(samples, compile_all))
    except Poisoned:
        raise
    except Exception as error:  # noqa: BLE001 - whatever any layer raises is a finding
        if len(samples) == 1:
            yield (samples[0], *judge_error(error))
            return
        for sample in samples:
            yield from verdicts([sample], compile_all, is_undefined=is_undefined)
        return
    for number, sample in enumerate(samples):
        results = [run[number] for run in runs]
        reason = settle(lambda: judge(sample, results, is_undefined=is_undefined))  # noqa: B023 - called at once
        yield sample, "fail" if reason else "pass", reason or ""


def repeated_runs(
    samples: Sequence[Sample], compile_all: Callable[[Sequence[Sample]], Runner]
) -> list[list[list[Any]]]:
    """Returns the results of one run, or of several with seeds 1, 1, 2, 3 where they depend on the seed."""
    run = compile_all(samples)
    runs = []
    for seed in (1, 1, 2, 3) if any(sample.is_random for sample in samples) else (1,):
        torch.manual_seed(seed)
        runs.append(run())
    return runs


def judge(sample: Sample, runs: list[list[Any]], *, is_undefined: bool) -> str | None:
    """Returns what is wrong with the results for a sample, None if nothing is."""
    first, count = runs[0], sample.count
    if len(first) != len(sample.results):
        return f"{len(first)} results, eager has {len(sample.results)}"
    for place, (mine, theirs) in enumerate(zip(first, sample.results, strict=True)):
        if (mine is None) != (theirs is None):
            return f"result {place}: is {'absent' if mine is None else 'there'}, in eager it is not"
    present = [place for place, x in enumerate(first) if x is not None and place not in sample.meaningless]
    if is_undefined or sample.is_random:
        blank = [[torch.zeros_like(run[place]) for place in present] for run in (first, sample.results)]
        problem = mismatch(*blank, lambda: None, strides=not sample.chosen)
        drawn = max((first[place].numel() for place in present if place < count), default=0)
        chosen = [[run[place] for place in present] for run in runs]
        return problem or (None if is_undefined else judge_seeds(chosen, drawn))
    wides: list[Any] = []

    def exact(places: list[int]) -> Any:
        if not wides:
            wides.append(sample.exact())
        return None if wides[0] is None else [wides[0][place] for place in places]

    returned, others = [p for p in present if p < count], [p for p in present if p >= count]
    if sample.wrong_choice is not None:
        values, places = returned
        blank = [torch.zeros_like(results[places]) for results in (first, sample.results)]
        problem = mismatch(blank[:1], blank[1:], lambda: None) or sample.wrong_choice(first[values], first[places])
        if problem:
            return f"result {places}: {problem}"
        returned = [values]
    problem = mismatch(
        [first[p] for p in returned], [sample.results[p] for p in returned], lambda: exact(returned), scale=sample.scale
    )
    if problem or not others:
        return problem
    theirs = [sample.results[p] for p in others]
    norms = [float(x.double().norm()) for x in theirs if x.is_floating_point()]
    scale = max(sample.scale, *norms) if sample.chosen else 0.0
    what = "gradients" if sample.chosen else "arguments afterwards"
    problem = mismatch(
        [first[p] for p in others], theirs, lambda: exact(others), scale=scale, strides=not sample.chosen
    )
    return problem and f"{what}: {problem}"


def judge_seeds(runs: list[list[Any]], drawn: int) -> str | None:
    """Returns what is wrong with runs of seeds, the first two of which are alike; ``drawn`` numbers are returned."""
    first, again, *others = runs
    if not is_same(first, again):
        return "the same seed gives other random numbers"
    if drawn >= ENOUGH_DRAWS and all(is_same(first, other) for other in others):
        return "other seeds give the same random numbers"
    return None


def judge_error(error: Exception) -> tuple[str, str]:
    """Returns the status and reason of a sample that does not compile or run."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
        causes.append(cause)
    is_declined = isinstance(error, Unsupported) or any(
        type(cause).__name__ in UNTRACEABLE or any(text in str(cause) for text in UNTRACEABLE_TEXTS) for cause in causes
    )
    return ("eager" if is_declined else "fail"), short(error)


def short(error: BaseException) -> str:
    text = " ".join(re.split(r"While executing|What to do:|Original traceback", str(error))[0].split())
    return (text if isinstance(error, FerriteError) else f"{type(error).__name__}: {text}")[:SHORT]


def settle(function: Callable[[], Any]) -> Any:
    """Returns the function's result.

    Raises:
        Poisoned: it failed in a way that costs the process its GPU context.
    """
    try:
        return function()
    except Exception as error:
        if "CUDA error" in str(error) or "device-side assert" in str(error):
            raise Poisoned(short(error)) from error
        raise
