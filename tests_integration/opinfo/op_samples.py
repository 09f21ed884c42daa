"""Sample calls of torch's operator database with what eager makes of them: what the compiler is held against."""

from __future__ import annotations

import sys
import unittest
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from op_calls import Call, twin, wide_twin
from op_programs import Dispatched
from op_references import CHOOSERS, EXACT, EXACT_ON_CPU, MEANINGLESS, PRECISE, scale_of, wrong_choice
from op_verdicts import has_same_bits

Results = list[Any]
"""Tensors, and None for gradients that do not exist."""

SEEDS = 16
"""Seeds that must agree before something is not random. Three did, by chance: fractional pooling has few windows to
choose from, one of which has odds of 2/3 at the database's smallest size."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A call that eager can make, and what comes of it.

    Attributes:
        call: the call.
        results: the tensors it returns (of functions that float64 has in full here and not in eager, the right
            numbers instead), then either those it was given, as they are afterwards, or their gradients.
        count: the number of tensors it returns.
        chosen: positions of the returned tensors that are differentiated.
        is_random: whether another seed gives other numbers.
        exact: gives the results in float64, None where that fails.
        scale: size of the numbers that results are computed from, 0 where that says nothing.
        meaningless: positions of results that are whatever memory holds.
        wrong_choice: says of values and places in the operand, if the operator returns these, why they do not match.
    """

    call: Call
    results: Results
    count: int
    chosen: tuple[int, ...]
    is_random: bool
    exact: Callable[[], Results | None]
    scale: float = 0.0
    meaningless: frozenset[int] = frozenset()
    wrong_choice: Callable[[Tensor, Tensor], str | None] | None = None


def database() -> Sequence[Any]:
    """Returns torch's operator database."""
    if "expecttest" not in sys.modules and find_spec("expecttest") is None:
        # The database's module imports it for a base class of torch's own tests; nothing here uses that.
        sys.modules.setdefault("expecttest", SimpleNamespace(TestCase=unittest.TestCase))  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it imports whatever array libraries there are, and these warn of each other
        from torch.testing._internal import common_methods_invocations as entries
        from torch.testing._internal import common_utils
        from torch.testing._internal.opinfo import core

    # For every list of samples it looks for one of torch's own tests that asks: 20 ms for the sources of all frames.
    common_utils.extract_test_fn = core.extract_test_fn = lambda: None
    # Random operators are entered as functions that set a seed first, which a compiled graph must not.
    entries.wrapper_set_seed = lambda function, *args, **kwargs: function(*args, **kwargs)
    return entries.op_db


def sample_calls(info: Any, dtype: torch.dtype, device: str, way: str) -> Iterator[Call]:
    """Yields the database's sample calls for one way of running an operator."""
    torch.manual_seed(0)
    function = info.inplace_variant if way == "inplace" else info.op
    for sample in info.sample_inputs(device, dtype, requires_grad=way == "backward"):
        if way != "inplace" or not sample.broadcasts_input:
            call = Call.of(function, (sample.input, *sample.args), sample.kwargs)
            yield replace(call, finish=sample.output_process_fn_grad) if way == "backward" else call


def prepare_sample(call: Call, way: str, seen: Dispatched, name: str) -> Sample | None:
    """Returns a call of a named operator with eager's results; None where there is nothing to differentiate.

    ``seen`` notes what eager dispatches to. Raises whatever eager raises.
    """
    meaningless = MEANINGLESS.get(name, frozenset())
    differentiates = way == "backward"
    run = run_backward if differentiates else run_forward
    with torch.set_grad_enabled(differentiates):
        results, count, chosen = run(call, seen.watch(call.run), twin)
        if differentiates and not any(x is not None for x in results[count:]):
            return None
        is_random = seen.is_random and differs_by_seed(
            lambda: [x for place, x in enumerate(run(call, call.run, twin)[0]) if place not in meaningless]
        )

    def exact() -> Results | None:
        known = EXACT if differentiates else {**EXACT, **PRECISE}
        wide = replace(call.exact(), function=known.get(name, call.function))
        copy = cpu_twin if name in EXACT_ON_CPU else wide_twin
        with torch.set_grad_enabled(differentiates), float64_by_default():
            try:
                return run(wide, wide.run, copy)[0]
            except Exception as error:  # an operator may not know float64
                if "CUDA error" in str(error):
                    raise
                return None

    if name in PRECISE and not differentiates and not is_random:
        results[:count] = [in_place_of(x, y) for x, y in zip(results[:count], exact() or results, strict=False)]
    wrong = partial(wrong_choice, name, call) if name in CHOOSERS else None
    return Sample(call, results, count, chosen, is_random, exact, scale_of(name), meaningless, wrong)


def in_place_of(coarse: Tensor, precise: Tensor) -> Tensor:
    """Returns precise numbers in the layout of eager's, which stay where they are not finite or not float64."""
    if coarse.dtype != torch.float64:
        return coarse
    return torch.empty_like(coarse).copy_(torch.where(precise.isfinite(), precise, coarse))


def cpu_twin(x: Tensor) -> Tensor:
    """Returns a tensor of the same contents on the CPU, in float64 if it is of floats."""
    return wide_twin(x.detach().cpu().requires_grad_(x.requires_grad))


class float64_by_default:
    """A context in which Python numbers become float64."""

    def __enter__(self) -> None:
        self.default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *_: object) -> None:
        torch.set_default_dtype(self.default)


def run_forward(
    call: Call, function: Callable[..., Any], copy: Callable[[Tensor], Tensor]
) -> tuple[Results, int, tuple[int, ...]]:
    """Returns what a function returns for copies of a call's tensors, and those copies afterwards."""
    tensors = [copy(x.detach()) for x in call.tensors]
    results = function(*tensors)
    return [*results, *tensors], len(results), ()


def run_backward(
    call: Call, function: Callable[..., Any], copy: Callable[[Tensor], Tensor]
) -> tuple[Results, int, tuple[int, ...]]:
    """Returns what a function returns for copies of a call's tensors, and the gradients of a weighted sum of it."""
    tensors = [copy(x) for x in call.tensors]
    results = function(*tensors)
    chosen = tuple(place for place, x in enumerate(results) if x.requires_grad)
    found = gradients([results], [tensors], [chosen])
    return [*(x.detach() for x in results), *found], len(results), chosen


def gradients(
    results: Sequence[Sequence[Tensor]], tensors: Sequence[Sequence[Tensor]], chosen: Sequence[Sequence[int]]
) -> list[Tensor | None]:
    """Returns the gradients of a weighted sum of chosen results of some calls, for each tensor, in order.

    The weights are multiples of 1/8, which every float type holds, and the same for the same call.
    """
    outputs = [(some[place], place) for some, places in zip(results, chosen, strict=True) for place in places]
    wanted = [x for some in tensors for x in some]
    leaves = [x for x in wanted if x.requires_grad]
    if not outputs or not leaves:
        return [None] * len(wanted)
    found = iter(
        torch.autograd.grad([x for x, _ in outputs], leaves, [weight(*pair) for pair in outputs], allow_unused=True)
    )
    return [next(found) if x.requires_grad else None for x in wanted]


def weight(x: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    real, imaginary = torch.randint(-16, 17, (2, *x.shape), generator=generator).to(torch.float64) / 8
    return (torch.complex(real, imaginary) if x.is_complex() else real).to(x.device, x.dtype)


def differs_by_seed(run: Callable[[], Results]) -> bool:
    """Returns whether a function's results depend on the seed."""
    first = None
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        found = run()
        if first is not None and not is_same(first, found):
            return True
        first = first or found
    return False


def is_same(one: Results, other: Results) -> bool:
    """Returns whether two lists of results have the same bits."""
    return all(
        (a is None and b is None)
        or (a is not None and b is not None and a.shape == b.shape and a.dtype == b.dtype and has_same_bits(a, b))
        for a, b in zip(one, other, strict=True)
    )
