"""Runs a program through the compiler and through eager, and says what differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode

import ferrite_torch
from against_eager import assert_same_type
from fuzz_generation import generate
from fuzz_layout import layout_difference, sharing_difference
from fuzz_program import Function, Program, names_of
from fuzz_reference import Reference, given_by, prepared, trained_doubts, trained_reference
from fuzz_shrinking import shrink

OPTIONS = {"fallback": False, "verify": True, "tune": "none", "workers": 0}
DYNAMO_EVERY = 8
"""Every so many programs are captured by dynamo, as users do it; the others start where dynamo ends, in less time."""
REPEATED_EVERY = 4
"""Of so many programs, one is called once more, which must leave alone what the first call returned."""

KINDS = 6
"""Of so many programs, one is differentiated, and one is called with two sets of sizes."""
TRAINED, DYNAMIC = 1, 2
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


def mismatch(program: Program, device: str, *, is_trained: bool = False) -> str | None:
    """Returns what is wrong with a compiled program, None if nothing is."""
    function = program.function(device)
    compiled: Function | None = None
    for call in range(len(program.calls)):
        inputs, mine = (arguments(program, device, call, is_trained=is_trained) for _ in range(2))
        try:
            eager = run(function, inputs, is_trained=is_trained)
        except (RuntimeError, NotImplementedError):
            if not is_trained:
                raise
            return mismatch(program, device)  # autograd cannot differentiate it
        try:
            compiled = compiled or compile_program(program, function, mine, is_trained=is_trained)
            actual = run(compiled, mine, is_trained=is_trained)
            overwritten = None if is_trained else overwriting(program, compiled, actual, device, call)
        except Exception as error:  # whatever any layer raises is a finding
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"
            if is_refused_by_torch(program, device, reason, is_trained=is_trained):
                raise Uncapturable(reason) from error
            return reason
        ways = [*actual, *mine], [*eager, *inputs]
        problem = overwritten or value_difference(program, call, *ways, is_trained=is_trained)
        if not problem:
            count = len(program.returned)
            problem = layout_difference(program, call, function, actual[:count], eager[:count])
        if not problem and not is_trained:
            problem = sharing_difference(program, call, *ways, device)
        if problem:
            return f"with other sizes, {problem}" if call else problem
    return None


def overwriting(program: Program, compiled: Function, actual: Sequence[Tensor], device: str, call: int) -> str | None:
    """Returns which result of a call another call changes, None if none."""
    if device == "cuda":
        torch.cuda.synchronize()
    if program.seed % REPEATED_EVERY:
        return None
    before = [x.clone() for x in actual]
    run(compiled, program.arguments(device, call), is_trained=False)
    for place, (x, y) in enumerate(zip(actual, before, strict=True)):
        if not torch.equal(
            x.nan_to_num() if x.is_floating_point() else x, y.nan_to_num() if y.is_floating_point() else y
        ):
            return f"result {place}: another call of the program overwrites it"
    return None


def arguments(program: Program, device: str, call: int, *, is_trained: bool) -> list[Tensor]:
    inputs = program.arguments(device, call)
    return prepared(inputs) if is_trained else inputs


def value_difference(
    program: Program, call: int, actual: Sequence[Tensor], eager: Sequence[Tensor], *, is_trained: bool
) -> str | None:
    """Returns what is wrong with the values of results and inputs, None if nothing is."""
    if len(actual) != len(eager):
        return f"{len(actual)} results, eager has {len(eager)}"
    for place, (mine, theirs) in enumerate(zip(actual, eager, strict=True)):
        try:
            assert_same_type(mine, theirs, f"result {place}", strides=False)
        except AssertionError as error:
            return str(error)
    if is_trained:
        reference = trained_reference(program, call, run_trained, eager)
        problem = difference(actual, eager, reference, program.scale)
        if problem:  # eager may have been lucky
            with suppress(NotImplementedError):  # a gradient that only GPUs have
                doubts = trained_doubts(program, call, run_trained, reference.exact)
                problem = difference(actual, eager, reference, program.scale, doubts)
        return problem
    given = given_by(program, call, actual[: len(program.returned)])
    reference = Reference.of(program, call, given)
    problem = difference(actual, eager, reference, program.scale)
    if problem:
        problem = difference(actual, eager, reference, program.scale, reference.doubts(program, call, given))
    return problem


REFUSED_OPENLY = ("of memory around a tensor, which is not around one computed here",)
"""What Ferrite runs eagerly and says so, since captured graphs do not have what is needed to compile it."""


TRY_EAGER_KERNELS = "where that fails too, torch refuses the program"
"""What messages say of graphs that torch may have made wrong: a view that no memory has, for one."""


def is_refused_by_torch(program: Program, device: str, reason: str, *, is_trained: bool) -> bool:
    """Returns whether torch fails for the same reason before any compiler has its turn, or Ferrite refuses openly.

    Its own backend of eager kernels stands for that: it captures, makes writes functional, and compiles nothing. Where
    a message says that this backend tells whose fault a graph is, it does.
    """
    if any(refusal in reason for refusal in REFUSED_OPENLY):
        return True
    _, is_capture, words = reason.partition("capturing the graph failed: ")
    said = words.partition(" While executing %program")[0].partition(". What to do:")[0]
    is_told = TRY_EAGER_KERNELS in reason
    if not is_capture and not is_told and not reason.startswith(("Unsupported", "TorchRuntimeError", "UserError")):
        return False
    torch._dynamo.reset()
    try:
        captured = captured_by_dynamo(program, program.function(device), "aot_eager")
        for call in range(len(program.calls)):
            run(captured, arguments(program, device, call, is_trained=is_trained), is_trained=is_trained)
    except Exception as error:  # noqa: BLE001 - whatever torch raises
        text = " ".join(str(error).split())
        return is_told or (
            said.partition(": ")[2][:SAID_ALIKE] in text
            if is_capture and said
            else reason[:SAID_ALIKE] in f"{type(error).__name__}: {text}"
        )
    return False


def run(function: Function, inputs: Sequence[Tensor], *, is_trained: bool) -> list[Tensor]:
    """Returns the results, and the gradients of a weighted sum of those that have some."""
    if is_trained:
        return run_trained(function, inputs)
    with torch.no_grad():
        return list(function(*inputs))


def run_trained(function: Function, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Returns the results, and the gradients of a weighted sum of those that have some."""
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
    if program.seed % DYNAMO_EVERY == 0 or program.is_dynamic or program.has_run_time_sizes:
        torch._dynamo.reset()
        return captured_by_dynamo(program, function, ferrite_torch.ferrite, options=OPTIONS)
    function.__module__ = __name__  # FX names functions by their modules
    graph = torch.fx.Graph()
    node = graph.call_function(function, tuple(graph.placeholder(f"x{n}") for n in range(len(inputs))))
    graph.output(tuple(graph.call_function(_item, (node, n)) for n in range(len(program.returned))))
    with tracing(TracingContext(FakeTensorMode())), torch.set_grad_enabled(is_trained):
        return ferrite_torch.ferrite(torch.fx.GraphModule(torch.nn.Module(), graph), list(inputs), options=OPTIONS)


def captured_by_dynamo(program: Program, function: Function, backend: Any, **options: Any) -> Function:
    """Returns a program as users compile it: one of two calls for any sizes, or for those that vary."""
    is_dynamic = (program.seed % (2 * KINDS) == DYNAMIC or None) if program.is_dynamic else False
    if program.has_run_time_sizes:
        is_dynamic = None
    compiled: Function = torch.compile(function, backend=backend, fullgraph=True, dynamic=is_dynamic, **options)

    def called(*inputs: Tensor) -> tuple[Tensor, ...]:
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
            return compiled(*inputs)

    return called


def _item(values: Sequence[Any], position: int) -> Any:
    return values[position]


def difference(
    actual: Sequence[Tensor],
    eager: Sequence[Tensor],
    reference: Reference,
    scale: float,
    doubts: Sequence[Tensor] | None = None,
) -> str | None:
    """Returns what is wrong with results, None if nothing is.

    Args:
        actual: the results to judge.
        eager: eager's results.
        reference: what they should be.
        scale: the largest number on the way to them.
        doubts: by how much each of them moves with other roundings, where that is known.
    """
    doubts = doubts or [torch.zeros(())] * len(actual)
    for place, (mine, theirs, open_) in enumerate(zip(actual, eager, doubts, strict=True)):
        mine, theirs, expected = (x.detach().cpu() for x in (mine, theirs, reference.expected[place]))  # noqa: PLW2901
        right, plain = reference.exact[place].detach().cpu(), reference.plain[place].detach().cpu()
        if reference.is_exact[place] or not mine.is_floating_point():
            problem = inequality(mine, expected)
        else:
            problem = element_difference(mine, theirs, right, (theirs - plain).abs(), scale, open_)
        if problem:
            return f"result {place}: {problem}"
    return None


def inequality(actual: Tensor, expected: Tensor) -> str | None:
    """Returns where a result is not just what is expected, None if it is that everywhere."""
    if actual.dtype in (torch.uint16, torch.uint32, torch.uint64):  # few operations know these
        kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
        actual, expected = (x.contiguous().view(kinds[x.dtype.itemsize]) for x in (actual, expected))
    wrong = actual != expected
    if actual.is_floating_point():
        wrong &= ~(actual.isnan() & expected.isnan())
    return first_of(wrong, actual, expected, expected) if wrong.any() else None


def element_difference(
    actual: Tensor, eager: Tensor, exact: Tensor, own: Tensor, scale: float, doubts: Tensor
) -> str | None:
    """Returns how one result of floats differs, None if it does not; ``own`` is by how much eager errs."""
    if not eager.numel():
        return None
    mine, theirs, right = (x.to(torch.float64) for x in (actual, eager, exact))
    eps = torch.finfo(eager.dtype).eps
    error = (mine - right).abs()
    typical, usual = (x.nan_to_num(0.0, 0.0, 0.0).square().mean().sqrt() for x in (own, right))
    size = right.abs() + usual + scale / 1000
    wrong = ~(error <= FACTOR * (own + typical) + DOUBT * doubts + ROUNDINGS * eps * size)
    wrong &= ~(mine.isnan() & theirs.isnan()) & (mine != theirs)
    return first_of(wrong, mine, theirs, right) if wrong.any() else None


def first_of(wrong: Tensor, mine: Tensor, theirs: Tensor, right: Tensor) -> str:
    place = tuple(wrong.nonzero()[0].tolist())
    values = ", ".join(f"{name} {x[place].item()!r}" for name, x in (("is", mine), ("eager", theirs), ("exact", right)))
    return f"{int(wrong.sum())} of {wrong.numel()} elements differ, {place}: {values}"


def runnable(program: Program, device: str) -> Program:
    """Returns a program without the lines for which this device has no kernel of torch.

    Raises:
        Uncapturable: nothing is left of it.
    """
    for call in range(len(program.calls)):
        while (place := first_failing(program, device, call)) is not None:
            fewer = program.without([place])
            if fewer is None:
                raise Uncapturable("torch has no kernels for it")
            program = fewer
    return program


def first_failing(program: Program, device: str, call: int) -> int | None:
    """Returns the first line that eager cannot run."""
    space = {**names_of(device), **dict(zip(program.input_names(), program.arguments(device, call), strict=True))}
    for place, line in enumerate(program.statements):
        try:
            with torch.no_grad():
                exec(line.text(), space)
        except (RuntimeError, NotImplementedError):
            return place
    return None


UNFINISHED = "no failure found, and not through"
"""What is told of a program before it runs."""


def failure(seed: int, device: str, tell: Callable[[str, str], None] | None = None) -> tuple[str, str] | None:
    """Returns the reason for which the program of a seed fails, and the script of a small one; None if it is right.

    ``tell`` gets what is known and the program's script before it runs, in case the process does not outlive it, and
    again before the program is made small, which takes many times as long.

    Raises:
        Uncapturable: torch fails before any compiler has its turn.
    """
    is_trained, is_dynamic = seed % KINDS == TRAINED, seed % KINDS == DYNAMIC
    program = generate(seed, ELEMENTS[device], is_trained=is_trained, is_dynamic=is_dynamic)
    if device != "cpu":
        program = runnable(program, device)
    if tell is not None:
        tell(UNFINISHED, program.script(UNFINISHED, device, is_trained=is_trained))
    reason = mismatch(program, device, is_trained=is_trained)
    if reason is None:
        return None
    if tell is not None:
        tell(reason, program.script(reason, device, is_trained=is_trained))
    kind = kind_of(reason)
    if kind != "CUDA error":  # after that, nothing that runs in this process means anything
        program = shrink(program, lambda smaller: fails_alike(smaller, device, kind, is_trained=is_trained))
        with suppress(Exception):
            reason = mismatch(program, device, is_trained=is_trained) or reason
    return reason, program.script(reason, device, is_trained=is_trained)


def kind_of(reason: str) -> str:
    """Returns what sort of failure a reason is about, so that a smaller program shows the same."""
    reason = reason.removeprefix("with other sizes, ")
    if "CUDA error" in reason or "device-side assert" in reason:
        return "CUDA error"
    if reason.startswith(("layout", "sharing")):
        return reason.partition(":")[0]
    return reason.partition(":")[0] if "Error" in reason or "Unsupported" in reason.partition(":")[0] else "numbers"


def fails_alike(program: Program, device: str, kind: str, *, is_trained: bool) -> bool:
    try:
        reason = mismatch(program, device, is_trained=is_trained)
    except Exception:  # noqa: BLE001 - eager cannot run it: it is no program any more
        return False
    return reason is not None and kind_of(reason) == kind
