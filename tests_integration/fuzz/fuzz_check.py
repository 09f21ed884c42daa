"""Runs a program through the compiler and through eager, and says what differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode

import ferrite_torch
from against_eager import assert_same_type, meaningful_strides
from fuzz_generation import generate, widened_text
from fuzz_program import Program
from fuzz_roundings import OtherRoundings, spread
from fuzz_shrinking import shrink

OPTIONS = {"fallback": False, "verify": True, "tune": "none", "workers": 0}
DYNAMO_EVERY = 8
"""Every so many programs are captured by dynamo, as users do it; the others start where dynamo ends, in less time."""

TRAINED_EVERY = 4
"""Of so many programs, one is differentiated."""
ELEMENTS = {"cpu": 2048, "cuda": 1 << 16}
"""Elements of the largest tensor: the interpreter is slow."""

FACTOR = 8.0
"""An element may err by this times eager's own error there, plus this times eager's typical error."""
DOUBT = 2.0
"""And this times what other roundings do to it, where that is measured."""
ROUNDINGS = 64.0
"""Roundings, in eps, of the size of a result, and of a thousandth of the largest number on the way to it."""

SAID_ALIKE = 90
"""So many letters of a message make two of them the same: what follows quotes the graph."""


class Uncapturable(Exception):
    """A program that torch itself cannot capture, so that nothing can be said of a compiler."""


Function = Callable[..., tuple[Tensor, ...]]


def mismatch(program: Program, device: str, *, is_trained: bool = False) -> str | None:
    """Returns what is wrong with a compiled program, None if nothing is."""
    function = program.function(device)
    inputs, mine = (prepared(program.arguments(device), is_trained=is_trained) for _ in range(2))
    try:
        eager = run(function, inputs, is_trained=is_trained)
    except (RuntimeError, NotImplementedError):
        if not is_trained:
            raise
        return mismatch(program, device)  # autograd cannot differentiate it
    exact = exact_results(program, device, is_trained=is_trained)
    try:
        compiled = compile_program(program, function, mine, is_trained=is_trained)
        actual = run(compiled, mine, is_trained=is_trained)
        if device == "cuda":
            torch.cuda.synchronize()
    except Exception as error:  # whatever any layer raises is a finding
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"
        if is_refused_by_torch(program, device, reason, is_trained=is_trained):
            raise Uncapturable(reason) from error
        return reason
    results, theirs = [*actual, *mine], [*eager, *inputs]
    problem = difference(results, theirs, exact, program.scale)
    if problem and len(results) == len(theirs):  # eager may have been lucky
        with suppress(NotImplementedError):  # a gradient that only GPUs have
            problem = difference(results, theirs, exact, program.scale, doubt(program, is_trained=is_trained))
    return problem or layout_difference(program, function, actual[: len(program.returned)], eager)


def exact_results(program: Program, device: str, *, is_trained: bool) -> list[Tensor]:
    """Returns the results in float64, and the inputs as they are afterwards."""
    wide = [widened(x) for x in prepared(program.arguments(device), is_trained=is_trained)]
    with float64_by_default():
        return [*run(program.function(device, widened_text), wide, is_trained=is_trained), *wide]


def doubt(program: Program, *, is_trained: bool) -> list[Tensor]:
    """Returns by how much each result moves with other roundings on the way."""

    def sample(roundings: OtherRoundings) -> list[Tensor]:
        inputs = prepared(program.arguments("cpu"), is_trained=is_trained)
        with roundings:
            return [*run(program.function("cpu"), inputs, is_trained=is_trained), *inputs]

    return spread(sample, exact_results(program, "cpu", is_trained=is_trained))


def is_refused_by_torch(program: Program, device: str, reason: str, *, is_trained: bool) -> bool:
    """Returns whether torch fails for the same reason before any compiler has its turn.

    Its own backend of eager kernels stands for that: it captures, makes writes functional, and compiles nothing.
    """
    _, is_capture, words = reason.partition("capturing the graph failed: ")
    said = words.partition(" While executing %program")[0].partition(". What to do:")[0]
    if not is_capture or not said:
        return False
    torch._dynamo.reset()
    try:
        captured = torch.compile(program.function(device), backend="aot_eager", fullgraph=True)
        run(captured, prepared(program.arguments(device), is_trained=is_trained), is_trained=is_trained)
    except Exception as error:  # noqa: BLE001 - whatever torch raises
        return said.partition(": ")[2][:SAID_ALIKE] in " ".join(str(error).split())
    return False


def layout_difference(
    program: Program, function: Function, actual: Sequence[Tensor], eager: Sequence[Tensor]
) -> str | None:
    """Returns which result lies neither as eager's does nor as torch says while it captures; None if none.

    Fake tensors, and AOTAutograd with its functional writes, give other layouts than eager now and then (after an index
    that is not packed, say), and theirs is what a backend is given to compile. Nothing promises how gradients lie.
    """
    allowed: list[list[Tensor]] = [list(eager)]
    for place, mine in enumerate(actual):
        if len(allowed) == 1 and meaningful_strides(mine) != meaningful_strides(eager[place]):
            torch._dynamo.reset()
            device = mine.device.type
            with suppress(RuntimeError):  # it made a view of what lies otherwise on this device than it was told
                allowed.append(list(torch.compile(function, backend="aot_eager")(*program.arguments(device))))
            with FakeTensorMode() as mode, torch.no_grad():
                allowed.append(list(function(*(mode.from_tensor(x) for x in program.arguments(device)))))
        if all(meaningful_strides(mine) != meaningful_strides(results[place]) for results in allowed):
            strides = ", ".join(str(results[place].stride()) for results in allowed)
            return (
                f"layout: result {place} of shape {tuple(mine.shape)} has strides {mine.stride()}, torch's: {strides}"
            )
    return None


def prepared(inputs: Sequence[Tensor], *, is_trained: bool) -> list[Tensor]:
    return [x.requires_grad_(is_trained and x.dtype is torch.float32) for x in inputs]


def widened(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        return x
    strided = torch.empty(0, dtype=torch.float64, device=x.device)
    span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    whole = x.detach().as_strided((span if x.numel() else 0,), (1,)).double()
    strided.set_(whole.untyped_storage(), 0, x.shape, x.stride())
    return strided.requires_grad_(x.requires_grad)


@contextmanager
def float64_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def run(function: Function, inputs: Sequence[Tensor], *, is_trained: bool) -> list[Tensor]:
    """Returns the results, and the gradients of a weighted sum of those that have some."""
    if not is_trained:
        with torch.no_grad():
            return list(function(*inputs))
    results = list(function(*inputs))
    leaves = [x for x in inputs if x.requires_grad]
    outputs = [x for x in results if x.requires_grad]
    if not outputs or not leaves:
        return [x.detach() for x in results]
    weights = [weight(x, place) for place, x in enumerate(outputs)]
    gradients = torch.autograd.grad(outputs, leaves, weights, allow_unused=True)
    return [*(x.detach() for x in results), *(x for x in gradients if x is not None)]


def weight(x: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(-8, 9, x.shape, generator=generator) / 8).to(x.device, x.dtype)


def compile_program(program: Program, function: Function, inputs: Sequence[Tensor], *, is_trained: bool) -> Function:
    """Returns the compiled program."""
    if program.seed % DYNAMO_EVERY == 0:
        torch._dynamo.reset()
        compiled: Function = torch.compile(function, backend=ferrite_torch.ferrite, options=OPTIONS, fullgraph=True)
        return compiled
    function.__module__ = __name__  # FX names functions by their modules
    graph = torch.fx.Graph()
    node = graph.call_function(function, tuple(graph.placeholder(f"x{n}") for n in range(len(inputs))))
    graph.output(tuple(graph.call_function(_item, (node, n)) for n in range(len(program.returned))))
    with tracing(TracingContext(FakeTensorMode())), torch.set_grad_enabled(is_trained):
        return ferrite_torch.ferrite(torch.fx.GraphModule(torch.nn.Module(), graph), list(inputs), options=OPTIONS)


def _item(values: Sequence[Any], position: int) -> Any:
    return values[position]


def difference(
    actual: Sequence[Tensor],
    eager: Sequence[Tensor],
    exact: Sequence[Tensor],
    scale: float,
    doubts: Sequence[Tensor] | None = None,
) -> str | None:
    """Returns what is wrong with results, None if nothing is.

    Args:
        actual: the results to judge.
        eager: eager's results.
        exact: those of float64.
        scale: the largest number on the way to them.
        doubts: by how much each of them moves with other roundings, where that is known.
    """
    if len(actual) != len(eager):
        return f"{len(actual)} results, eager has {len(eager)}"
    doubts = doubts or [torch.zeros(())] * len(exact)
    for place, (mine, theirs, right, open_) in enumerate(zip(actual, eager, exact, doubts, strict=True)):
        try:
            assert_same_type(mine, theirs, f"result {place}", strides=False)
        except AssertionError as error:
            return str(error)
        problem = element_difference(mine.detach().cpu(), theirs.detach().cpu(), right.detach().cpu(), scale, open_)
        if problem:
            return f"result {place}: {problem}"
    return None


def element_difference(actual: Tensor, eager: Tensor, exact: Tensor, scale: float, doubts: Tensor) -> str | None:
    """Returns how one result differs, None if it does not."""
    if not eager.is_floating_point():
        wrong = actual != eager
        return first_of(wrong, actual, eager, eager) if wrong.any() else None
    if not eager.numel():
        return None
    mine, theirs, right = (x.to(torch.float64) for x in (actual, eager, exact))
    eps = torch.finfo(eager.dtype).eps
    own, error = (theirs - right).abs(), (mine - right).abs()
    typical, usual = (x.nan_to_num(0.0, 0.0, 0.0).square().mean().sqrt() for x in (own, right))
    size = right.abs() + usual + scale / 1000
    wrong = ~(error <= FACTOR * (own + typical) + DOUBT * doubts + ROUNDINGS * eps * size)
    wrong &= ~(mine.isnan() & theirs.isnan()) & (mine != theirs)
    return first_of(wrong, mine, theirs, right) if wrong.any() else None


def first_of(wrong: Tensor, mine: Tensor, theirs: Tensor, right: Tensor) -> str:
    place = tuple(wrong.nonzero()[0].tolist())
    values = ", ".join(f"{name} {x[place].item()!r}" for name, x in (("is", mine), ("eager", theirs), ("exact", right)))
    return f"{int(wrong.sum())} of {wrong.numel()} elements differ, {place}: {values}"


def failure(seed: int, device: str, tell: Callable[[str], None] | None = None) -> tuple[str, str] | None:
    """Returns the reason for which the program of a seed fails, and the script of a small one; None if it is right.

    ``tell`` gets the reason before the program is made small, which takes many times as long.

    Raises:
        Uncapturable: torch fails before any compiler has its turn.
    """
    is_trained = seed % TRAINED_EVERY == 1
    program = generate(seed, ELEMENTS[device], is_trained=is_trained)
    reason = mismatch(program, device, is_trained=is_trained)
    if reason is None:
        return None
    if tell is not None:
        tell(reason)
    kind = kind_of(reason)
    if kind != "CUDA error":  # after that, nothing that runs in this process means anything
        program = shrink(program, lambda smaller: fails_alike(smaller, device, kind, is_trained=is_trained))
    return reason, program.script(reason, device, is_trained=is_trained)


def kind_of(reason: str) -> str:
    """Returns what sort of failure a reason is about, so that a smaller program shows the same."""
    if "CUDA error" in reason or "device-side assert" in reason:
        return "CUDA error"
    if reason.startswith("layout"):
        return "layout"
    return reason.partition(":")[0] if "Error" in reason or "Unsupported" in reason.partition(":")[0] else "numbers"


def fails_alike(program: Program, device: str, kind: str, *, is_trained: bool) -> bool:
    try:
        reason = mismatch(program, device, is_trained=is_trained)
    except Exception:  # noqa: BLE001 - eager cannot run it: it is no program any more
        return False
    return reason is not None and kind_of(reason) == kind
