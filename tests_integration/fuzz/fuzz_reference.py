"""What a program's results should be: in float64, in their own types, and which of them are exact.

What a program stores in half precision is seen as stored by everybody who reads it. So the references take for given
what the compiled program returned under a name, from the line on that computes it or writes to it last: what comes of
it is judged by that, not by what eager has stored there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fuzz_exactness import Exactness, storage
from fuzz_pool import HALVES, overlaps, widened
from fuzz_program import Program, names_of
from fuzz_roundings import OtherRoundings, spread

Given = Mapping[int, Sequence[tuple[str, Tensor]]]
"""By the positions of lines, the names that hold something given from then on, and what."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What the results of a call should be, and then its inputs as they are afterwards.

    Attributes:
        expected: as eager computes them from what is given.
        exact: in float64, from what is given.
        plain: in float64, with nothing given: eager's own error is the distance from these.
        is_exact: whether every right compiler gives just what is expected.
    """

    expected: list[Tensor]
    exact: list[Tensor]
    plain: list[Tensor]
    is_exact: list[bool]

    @classmethod
    def of(cls, program: Program, call: int, given: Given) -> Reference:
        """Returns it, with tensors on the CPU."""
        exactness = Exactness()
        expected = evaluated(program, call, given, within=exactness)
        exact = evaluated(program, call, given, is_wide=True)
        plain = evaluated(program, call, {}, is_wide=True) if given else exact
        return cls(expected, exact, plain, [not exactness.is_inexact(x) for x in expected])

    def doubts(self, program: Program, call: int, given: Given) -> list[Tensor]:
        """Returns by how much each result moves with other roundings on the way."""
        return spread(lambda roundings: evaluated(program, call, given, within=roundings), self.exact)


def given_by(program: Program, call: int, actual: Sequence[Tensor]) -> Given:
    """Returns what readers must see as a compiled program has stored it: halves, and what lines decide by."""
    results = dict(zip(program.returned, actual, strict=True))
    if not any(x.dtype in HALVES or name in program.stored for name, x in results.items()):
        return {}
    space = dict(zip(program.input_names(), program.arguments("cpu", call), strict=True))
    makers: dict[int, str] = {storage(x): name for name, x in space.items()}
    kept = [x.untyped_storage() for x in space.values()]
    for _ in executed(program, space):
        for name, x in space.items():
            makers.setdefault(storage(x), name)
            kept.append(x.untyped_storage())
    lines = {line.target: position for position, line in enumerate(program.statements)}
    writes = {
        storage(space[line.writes]): position
        for position, line in enumerate(program.statements)
        if line.writes is not None
    }
    given: defaultdict[int, list[tuple[str, Tensor]]] = defaultdict(list)
    for name, x in results.items():
        if (
            (x.dtype in HALVES or name in program.stored)
            and makers[storage(space[name])] == name
            and name.startswith("t")
            and not overlaps(space[name])
            and (x.shape, x.dtype) == (space[name].shape, space[name].dtype)
        ):
            given[writes.get(storage(space[name]), lines[name])].append((name, x.detach().cpu()))
    return given


def executed(
    program: Program, space: dict[str, Tensor], *, is_wide: bool = False, within: Any = None
) -> Iterator[str | None]:
    """Runs a program line by line, and yields the name that each assigns when it is done."""
    known = names_of("cpu")
    for line in program.statements:
        names = {**known, **space}
        with torch.no_grad(), within or nullcontext():
            exec(line.text(is_wide=is_wide), names)
        if line.target is not None:
            space[line.target] = names[line.target]
        yield line.target


def evaluated(
    program: Program, call: int, given: Given, *, is_wide: bool = False, within: Exactness | None = None
) -> list[Tensor]:
    """Returns the results of a call, and its inputs as they are afterwards; what is given counts after it is judged."""
    inputs = program.arguments("cpu", call)
    space = dict(zip(program.input_names(), map(widened, inputs) if is_wide else inputs, strict=True))
    before: dict[str, Tensor] = {}
    with float64_by_default() if is_wide else nullcontext():
        for position, _ in enumerate(executed(program, space, is_wide=is_wide, within=within)):
            for name, stored in given.get(position, ()):
                before[name] = computed = space[name].clone()
                space[name].copy_(stored)
                if within is not None and within.is_inexact(space[name]):
                    within.mark(computed)
                    if computed.dtype in HALVES:
                        within.unmark(space[name])
    return [*(before.get(name, space[name]) for name in program.returned), *(space[n] for n in program.input_names())]


@contextmanager
def float64_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def trained_reference(
    program: Program, call: int, run: Callable[[Any, Sequence[Tensor]], list[Tensor]], eager: Iterable[Tensor]
) -> Reference:
    """Returns the reference of results and gradients, of which none counts as exact but integers.

    Args:
        program: the program.
        call: which of its calls.
        run: runs a function on inputs, and returns results and gradients.
        eager: eager's.
    """
    inputs = [widened(x) for x in prepared(program.arguments("cpu", call))]
    with float64_by_default():
        exact = [*run(program.function("cpu", is_wide=True), inputs), *inputs]
    expected = list(eager)
    return Reference(expected, exact, exact, [False] * len(expected))


def trained_doubts(
    program: Program, call: int, run: Callable[[Any, Sequence[Tensor]], list[Tensor]], exact: Sequence[Tensor]
) -> list[Tensor]:
    """Returns by how much each result and gradient moves with other roundings."""

    def sample(roundings: OtherRoundings) -> list[Tensor]:
        inputs = prepared(program.arguments("cpu", call))
        with roundings:
            return [*run(program.function("cpu"), inputs), *inputs]

    return spread(sample, exact)


def prepared(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Returns inputs of which the gradients are asked for."""
    return [x.requires_grad_(x.dtype is torch.float32) for x in inputs]
