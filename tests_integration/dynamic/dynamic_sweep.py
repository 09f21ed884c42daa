"""The operator cases and the tiny models under ``dynamic=True`` at many sizes, against eager and float64.

One function is compiled once and called with inputs of other and other sizes, extents of 0 and 1 among them. Left out,
with the reason, is a size that eager refuses or dies of, or at which dynamo's graph cannot be captured whatever
compiles it. ``run.py`` does all of it, the tests a sample.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import ferrite_torch
import resampling_cases
import tiny_models
import training_cases
from against_eager import assert_all_close, assert_close, gradients, tensors_of, widened
from fatal_signals import fatal_signal
from op_cases import FAMILIES as EVERYDAY
from op_cases import Case, Draw

FAMILIES = {**EVERYDAY, **resampling_cases.FAMILIES, **training_cases.FAMILIES}
CASES = {f"{family}-{case.name}": case for family, cases in FAMILIES.items() for case in cases}
OPTIONS = {"fallback": False, "verify": True}

SEQUENCES = ((2, 6), (3, 7), (2, 8), (5, 9), (4, 3), (7, 2), (3, 13), (2, 16), (8, 5), (4, 4), (6, 11), (9, 15))
IMAGES = ((2, 16), (3, 16), (4, 12), (5, 20), (7, 16), (2, 24), (3, 13), (8, 8), (6, 32), (2, 17), (3, 9), (4, 16))
"""Batch, and length of a sequence or of an image's sides."""


def _grown(shape: tuple[int, ...], change: Callable[[int, int], int]) -> tuple[int, ...]:
    return tuple(change(axis, size) if size > 1 else size for axis, size in enumerate(shape))


CHANGES: dict[str, Callable[[tuple[int, ...]], tuple[int, ...]]] = {
    "as written": lambda shape: shape,
    "twice": lambda shape: _grown(shape, lambda axis, size: 2 * size),
    "one more": lambda shape: _grown(shape, lambda axis, size: size + 1),
    "more rows": lambda shape: _grown(shape, lambda axis, size: size + 4 if axis == 0 else size),
    "longer rows": lambda shape: _grown(shape, lambda axis, size: size + 9 if axis == len(shape) - 1 else size),
    "odd": lambda shape: _grown(shape, lambda axis, size: 2 * size + 1),
    "two rows": lambda shape: _grown(shape, lambda axis, size: 2 if axis == 0 else size),
    "long rows": lambda shape: _grown(
        shape, lambda axis, size: size * (size + 1) + 17 if axis == len(shape) - 1 else size
    ),
    "one row": lambda shape: (1, *shape[1:]) if shape else shape,
    "no rows": lambda shape: (0, *shape[1:]) if shape else shape,
}
"""What becomes of the shapes of a case; equal extents stay equal."""


@dataclass(frozen=True, slots=True)
class Resized(Draw):
    """Makes inputs with their shapes changed."""

    change: str = "as written"

    def sizes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return CHANGES[self.change](shape)

    def plain(self, *shape: int) -> Tensor:
        return torch.randn(*self.sizes(shape)).to(self.dtype)


@dataclass(slots=True)
class Outcome:
    """How a function did: the sizes it was right at, what went wrong at others, and what was compiled.

    ``absent`` are the sizes that say nothing about ferrite, each with the reason.
    """

    name: str
    right: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    graphs: int = 0
    fixed: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Returns the outcome as a line."""
        wrong = f"; WRONG {'; '.join(self.wrong)}" if self.wrong else ""
        fixed = f"; fixed: {'; '.join(self.fixed)[:300]}" if self.fixed else ""
        absent = f"; left out {'; '.join(self.absent)}" if self.absent else ""
        return f"{self.name}: {len(self.right)} sizes right, {self.graphs} graphs{wrong}{fixed}{absent}"


@contextmanager
def observed(name: str) -> Iterator[Outcome]:
    """Yields an outcome to be filled in, with a compiler that remembers nothing; counts what it compiled at the end."""
    torch._dynamo.reset()
    ferrite_torch.reset_statistics()
    outcome = Outcome(name)
    yield outcome
    found = ferrite_torch.statistics()
    outcome.graphs, outcome.fixed = found["graphs"], list(found["specialised"])


def check_case(name: str, changes: Sequence[str], *, training: bool) -> Outcome:
    """Returns how an operator case does at its changed sizes."""
    case = CASES[name]
    with observed(name) as outcome:
        called = torch.compile(case.function, backend="ferrite", dynamic=True, fullgraph=True, options=OPTIONS)
        for change in changes:
            torch.manual_seed(3)
            wanted, reason = _wanted(case, Resized("cpu", torch.float32, 1, change), training=training)
            if wanted is None:
                outcome.absent.append(f"{change}: {reason}")
                continue
            try:
                _compare(called, *wanted)
                outcome.right.append(change)
            except Exception as error:  # noqa: BLE001 - whatever goes wrong is the finding
                found = f"{change}: {_short(error)}"
                (outcome.absent if _is_uncapturable(case, wanted[0]) else outcome.wrong).append(found)
    return outcome


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _wanted(case: Case, draw: Draw, *, training: bool) -> tuple[tuple[Any, ...] | None, str]:
    """Returns the inputs of a case with what eager and float64 make of them; None where eager does not, and why.

    Without elements some kernels of eager divide integers by zero, which ends a process: a forked one tries it first.
    """
    try:
        inputs = case.inputs(draw)
        if not all(x.numel() for x in tensors_of(inputs)):
            death = fatal_signal(lambda: _results(case, inputs, training=training))
            if death:
                return None, f"eager dies of {death}"
        return _results(case, inputs, training=training), ""
    except Exception as error:  # noqa: BLE001 - eager has nothing to say at this size
        return None, f"eager: {type(error).__name__}"


def _is_uncapturable(case: Case, inputs: tuple[Any, ...]) -> bool:
    """Returns whether dynamo makes no graph of a call even where nothing compiles it."""
    try:
        torch.compile(case.function, backend="eager", dynamic=True, fullgraph=True)(*inputs)
    except Exception:  # noqa: BLE001 - whatever dynamo or torch's fake kernels raise
        return True
    return False


def _results(case: Case, inputs: tuple[Any, ...], *, training: bool) -> tuple[Any, ...]:
    """Returns the inputs, with results and gradients of eager and of float64."""
    for x in inputs:
        if training and isinstance(x, Tensor) and x.is_floating_point():
            x.requires_grad_()
    wide = widened(inputs)
    eager, exact = case.function(*inputs), case.function(*wide)
    return inputs, eager, exact, _gradients(eager, inputs), _gradients(exact, wide)


def _gradients(results: Any, inputs: Sequence[Any]) -> list[Any]:
    leaves = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    return gradients(results, leaves) if leaves else []


def _compare(called: Any, inputs: Any, eager: Any, exact: Any, eagers: list[Any], exacts: list[Any]) -> None:
    torch.manual_seed(3)
    mine = called(*inputs)
    assert_all_close(mine, eager, exact)
    scale = max((x.norm().item() for x in exacts if x is not None), default=0.0)
    for a, e, x in zip(_gradients(mine, inputs), eagers, exacts, strict=True):
        assert (a is None) == (e is None)
        if a is not None:
            assert_close(a, e, x, "gradient", scale, strides=False)


def sizes_of(architecture: tiny_models.Architecture) -> Sequence[tuple[int, int]]:
    """Returns batches and lengths for a model."""
    return IMAGES if "x" in architecture.inputs() and architecture.inputs()["x"].ndim == 4 else SEQUENCES


def resized_inputs(architecture: tiny_models.Architecture, size: tuple[int, int]) -> dict[str, Tensor]:
    """Returns inputs for a model with this batch and length."""
    batch, length = size
    torch.manual_seed(100 * batch + length)
    found = {}
    for name, x in architecture.inputs().items():
        if name == "x":
            made = torch.randn(batch, 3, length, length) if x.ndim == 4 else torch.randn(2 * batch + length, 16)
            is_last = x.ndim == 4 and not x.is_contiguous()
            found[name] = made.to(memory_format=torch.channels_last) if is_last else made
        elif x.is_floating_point():
            found[name] = torch.randn(batch, *x.shape[1:])
        else:
            found[name] = torch.randint(3, tiny_models.VOCABULARY, size)
    return found


def check_model(architecture: tiny_models.Architecture, sizes: Sequence[tuple[int, int]], *, training: bool) -> Outcome:
    """Returns how a tiny model does at these sizes."""
    with observed(architecture.name) as outcome, torch.set_grad_enabled(training):
        torch.manual_seed(1)
        model = tiny_models.build(architecture).train(training)
        plain, wide = copy.deepcopy(model), copy.deepcopy(model).double()
        called = torch.compile(
            model, backend="ferrite", dynamic=True, fullgraph=not architecture.branches, options=OPTIONS
        )
        for size in sizes:
            inputs = resized_inputs(architecture, size)
            try:
                _compare_models(called, model, plain, wide, inputs, training=training)
                outcome.right.append(str(size))
            except Exception as error:  # noqa: BLE001 - whatever goes wrong is the finding
                outcome.wrong.append(f"{size}: {_short(error)}")
    return outcome


def _compare_models(
    called: Any, model: nn.Module, plain: nn.Module, wide: nn.Module, inputs: dict[str, Tensor], *, training: bool
) -> None:
    wider = {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}
    mine, eager, exact = called(**inputs), plain(**inputs), wide(**wider)
    assert_close(mine, eager, exact, "output")
    if not training:
        return
    weights = torch.randn(mine.shape, generator=torch.Generator().manual_seed(2)).half()
    rows = []
    for one, output in ((model, mine), (plain, eager), (wide, exact)):
        one.zero_grad(set_to_none=True)
        output.backward(weights.to(output.dtype))
        rows.append({name: parameter.grad for name, parameter in one.named_parameters()})
    scale = max(x.norm().item() for x in rows[2].values() if x is not None)
    for name, gradient in rows[0].items():
        assert (gradient is None) == (rows[1][name] is None), name
        if gradient is not None:
            assert_close(gradient, rows[1][name], rows[2][name], f"gradient of {name}", scale)
