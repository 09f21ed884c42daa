"""How far the results of a case of `benchmarks/kernels/run.py` are from float64's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.cases import Case, flatten, outcome


def error_of(outputs: Any, reference: Sequence[Tensor]) -> float:
    """Returns the l2 error of all outputs together, relative to the reference."""
    actual = flatten(outputs)
    if len(actual) != len(reference):
        return math.inf
    total = size = 0.0
    for mine, exact in zip(actual, reference, strict=True):
        if mine.shape != exact.shape:
            return math.inf
        wide = exact.double()  # a result that is rounded to eight bits is so in the reference, too
        total += (mine.double() - wide).square().sum().item() / max(wide.square().sum().item(), 1e-300)
        size += 1.0
    error = math.sqrt(total / max(size, 1.0))
    return error if math.isfinite(error) else math.inf


def judged_error(case: Case, inputs: tuple[Any, ...], outputs: Any, reference: Sequence[Tensor]) -> float:
    """Returns the error of a case's results: against the reference, or by its own judgement where there is none."""
    return error_of(outputs, reference) if case.error is None else case.error(outputs, *inputs)


def exact_outputs(case: Case, inputs: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """Returns the case's results on float64 inputs; none for a case that judges its results itself."""
    if case.error is not None:
        return ()
    return flatten(outcome(case, case.function, tuple(map(widened, inputs))))


def widened(x: Any) -> Any:
    """Returns a floating-point tensor as float64, to be trained if it was."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return x
    return x.detach().double().requires_grad_(x.requires_grad)


def smallest_step(dtype: torch.dtype) -> float:
    """Returns an error that rounding alone explains."""
    return torch.finfo(dtype).eps * 0.5


def error_in_tf32(case: Case, inputs: tuple[Any, ...], reference: Sequence[Tensor]) -> float:
    """Returns the error of a case's results, computed in float64 from an image and a filter that are rounded to TF32.

    Where the library may round these two, some of its kernels do and others do not, for the same convolution in two
    layouts. What follows may make more of the rounding, as a softmax does.
    """
    image, weight, *rest = inputs
    return error_of(exact_outputs(case, (in_tf32(image), in_tf32(weight), *rest)), reference)


def in_tf32(x: Tensor) -> Tensor:
    """Returns float32 numbers rounded to ten bits behind the leading one, halfway cases away from zero."""
    return ((x.detach().view(torch.int32) + 0x1000) & -0x2000).view(torch.float32).requires_grad_(x.requires_grad)
