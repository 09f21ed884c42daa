"""How a program of the table is run: in each way beside eager mode, with what was compiled of it counted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import ferrite_torch
from against_eager import assert_same_type, compiled, tensors_of
from program import Function, Program

ROWS, OTHER_ROWS = 6, (4, 7)
OPERATORS = tuple(f"higher_order_tests.{name}.default" for name in ("add_to", "swap", "scaled"))
"""Operators of our own, which a bundle may only call where its reader says so."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What was compiled: graphs, graphs that run eagerly, and steps that call what torch captured."""

    graphs: int
    eager: int
    steps: int
    recalled: int = 0


def counted() -> Counts:
    """Returns what was compiled since counts were set to zero."""
    known, programs = ferrite_torch.statistics(), ferrite_torch.compiled_programs()
    steps = [step for program in programs for step in program["steps"] if step["do"] == "extern"]
    captured = sum(step["target"].startswith("captured.") for step in steps)
    return Counts(known["graphs"], sum(known["fallbacks"].values()), captured, known["recalled"])


def drawn(rows: int, *, needs_grad: bool = False) -> Tensor:
    """Returns what a program is called with, for so many rows."""
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(rows)).requires_grad_(needs_grad)


def begun() -> None:
    """Forgets what was compiled before, and counts from zero."""
    torch._dynamo.reset()
    ferrite_torch.reset_statistics()


def check(found: Any, expected: Any, program: Program) -> None:
    """Fails unless results are eager's."""
    for mine, theirs in zip(tensors_of(found), tensors_of(expected), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=program.tolerance, atol=program.tolerance, equal_nan=True)
        assert_same_type(mine, theirs, strides=program.lies_as_told)


def check_drawn(result: Tensor, x: Tensor) -> None:
    """Fails unless a result is the operand's sine times random numbers, and its gradient the cosine times the same."""
    (gradient,) = torch.autograd.grad(result.sum(), x)
    wanted = result.detach() * x.detach().cos()
    torch.testing.assert_close(gradient * x.detach().sin(), wanted, rtol=1e-3, atol=1e-4)


def inference(program: Program, *, dynamic: bool = False) -> Counts:
    """Runs a program without gradients; returns what was compiled."""
    begun()
    fast = compiled(program.function, dynamic=dynamic, fullgraph=True)
    for rows in (ROWS, *OTHER_ROWS) if dynamic else (ROWS,):
        check(fast(drawn(rows)), eager(program)(drawn(rows)), program)
    return counted()


def training(program: Program) -> Counts:
    """Runs a program and differentiates it; returns what was compiled."""
    begun()
    x, again = drawn(ROWS, needs_grad=True), drawn(ROWS, needs_grad=True)
    found = compiled(program.function, fullgraph=True)(x)
    if program.draws:
        check_drawn(found, x)
        return counted()
    expected = eager(program)(again)
    check(found, expected, program)
    check(gradient(found, x), gradient(expected, again), program)
    return counted()


def gradient(result: Tensor, x: Tensor) -> Tensor:
    """Returns the gradient of a weighted sum of a result."""
    weights = torch.linspace(-1, 1, result.numel()).reshape(result.shape)
    return torch.autograd.grad((result * weights).sum(), x)[0]


def eager(program: Program) -> Function:
    """Returns what tells what a program computes."""
    return program.meaning or program.function


def stored(program: Program) -> Counts:
    """Runs a program that was compiled before, in the way of a process that begins; returns what was compiled."""
    for _ in range(2):
        begun()
        fast = torch.compile(program.function, backend="ferrite", fullgraph=True, options={"fallback": False})
        check(fast(drawn(ROWS)), eager(program)(drawn(ROWS)), program)
    return counted()


def exported(program: Program, folder: Path) -> Counts:
    """Runs a program out of a bundle; returns what was compiled for it."""
    import ferrite_runtime

    begun()
    bundle = ferrite_torch.export(program.function, (drawn(ROWS),), targets=("cpu",))
    bundle.save(folder / "program.ferrite")
    loaded = ferrite_runtime.load(folder / "program.ferrite", operators=OPERATORS)
    found = loaded(drawn(ROWS))
    check(found, eager(program)(drawn(ROWS)), program)
    return counted()
