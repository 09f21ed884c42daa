"""How results lie in memory, and which of them share it with one another and with inputs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

from against_eager import meaningful_strides
from fuzz_exactness import storage
from fuzz_program import Function, Program

Pair = tuple[int, int, int]


def sharing(tensors: Sequence[Tensor]) -> set[Pair]:
    """Returns the pairs of tensors that lie over one storage, with the bytes between their first elements."""
    found = set()
    places = [
        (number, storage(x), int(x.storage_offset()) * x.element_size())
        for number, x in enumerate(tensors)
        if x.numel()
    ]
    for position, (first, stored, start) in enumerate(places):
        for second, other, end in places[position + 1 :]:
            if stored == other:
                found.add((first, second, end - start))
    return found


def sharing_difference(
    program: Program, call: int, actual: Sequence[Tensor], eager: Sequence[Tensor], device: str
) -> str | None:
    """Returns which results, or results and inputs, share memory otherwise than eager's; None if none.

    As with layouts, what AOTAutograd or fake tensors say is right, too: where a view begins follows from the strides of
    what it is a view of, and these may be the fake ones.

    Args:
        program: the program.
        call: which of its calls.
        actual: the results and then the inputs of the compiled program.
        eager: those of eager.
        device: where they lie.
    """
    mine, theirs = sharing(actual), sharing(eager)
    if mine == theirs:
        return None
    count = len(program.returned)
    with suppress(RuntimeError):
        torch._dynamo.reset()
        inputs = program.arguments(device, call)
        with torch.no_grad():
            captured = list(torch.compile(program.function(device), backend="aot_eager")(*inputs))
        if mine == sharing([*captured, *inputs]):  # AOTAutograd gives a backend no more to compile
            return None
    with suppress(RuntimeError, GuardOnDataDependentSymNode):
        if mine == sharing(_of_fakes(program.function(device), program.arguments(device, call))):
            return None

    def named(pair: Pair) -> str:
        names = [f"result {n} ({program.returned[n]})" if n < count else f"x{n - count}" for n in pair[:2]]
        return f"{names[0]} and {names[1]}, {pair[2]} bytes apart"

    more, less = sorted(mine - theirs), sorted(theirs - mine)
    words = [f"{named(pair)} share memory, eager's do not" for pair in more[:2]]
    words += [f"{named(pair)} share memory in eager only" for pair in less[:2]]
    return f"sharing: {'; '.join(words)}"


def layout_difference(
    program: Program, call: int, function: Function, actual: Sequence[Tensor], eager: Sequence[Tensor]
) -> str | None:
    """Returns which result lies neither as eager's does nor as torch says while it captures; None if none.

    Fake tensors, and AOTAutograd with its functional writes, give other layouts than eager now and then (after an index
    that is not packed, say), and theirs is what a backend is given to compile. Nothing promises how gradients lie.
    """
    allowed = [_strides(eager)]
    for place, mine in enumerate(actual):
        if len(allowed) == 1 and meaningful_strides(mine) != allowed[0][place]:
            torch._dynamo.reset()
            device = mine.device.type
            with suppress(RuntimeError):  # it made a view of what lies otherwise on this device than it was told
                captured = torch.compile(function, backend="aot_eager")
                allowed.append(_strides(captured(*program.arguments(device, call))))
            with suppress(RuntimeError):
                captured = _of_fakes(function, program.arguments(device, call))
                allowed.append(_strides(captured[: len(actual)]))
        if all(meaningful_strides(mine) != strides[place] for strides in allowed):
            found = ", ".join(str(strides[place]) for strides in allowed)
            return f"layout: result {place} of shape {tuple(mine.shape)} has strides {mine.stride()}, torch's: {found}"
    return None


def _of_fakes(function: Function, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Returns what torch says of results while it captures, and then of the inputs."""
    with FakeTensorMode(shape_env=ShapeEnv()) as mode, torch.no_grad():
        fakes = [mode.from_tensor(x, static_shapes=True) for x in inputs]
        return [*function(*fakes), *fakes]


def _strides(results: Sequence[Tensor]) -> list[tuple[int, ...] | None]:
    """Returns the strides of results that decide where elements lie; None for a fake one whose extents nobody knows."""
    found: list[tuple[int, ...] | None] = []
    for x in results:
        found.append(None)
        with suppress(GuardOnDataDependentSymNode):
            found[-1] = meaningful_strides(x)
    return found
