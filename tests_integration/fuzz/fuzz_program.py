"""Programs of the fuzzer: straight-line text over named tensors, which prints as a script that stands alone."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

SCRIPT = '''"""A program of the fuzzer (seed {seed}): {reason}"""

import torch
import torch.nn.functional as F

import ferrite_torch

{source}

device = "{device}"


def inputs():
    return [{inputs}]


{ways}
eager = results(program)
compiled = results(torch.compile(program, backend="ferrite", options={{"fallback": False}}, fullgraph=True))
for mine, theirs in zip(compiled, eager):
    print(mine, theirs, sep="\\n")
'''

FORWARD = """
def results(function):
    with torch.no_grad():
        return function(*inputs())

"""

TRAINED = """
def weight(x, seed):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(-8, 9, x.shape, generator=generator) / 8).to(x.device, x.dtype)


def results(function):
    given = [x.requires_grad_(x.dtype is torch.float32) for x in inputs()]
    outputs = function(*given)
    leaves, ends = ([x for x in each if x.requires_grad] for each in (given, outputs))
    if not leaves or not ends:
        return outputs
    weights = [weight(x, place) for place, x in enumerate(ends)]
    gradients = torch.autograd.grad(ends, leaves, weights, allow_unused=True)
    return *outputs, *(x for x in gradients if x is not None)

"""


@dataclass(frozen=True, slots=True)
class Input:
    """One input: its dtype, shape and strides, and the seed of its contents."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    seed: int

    def make(self, device: str) -> Tensor:
        """Returns the tensor.

        Numbers are small multiples of 1/8, which every float type holds, so that sums and products of a few of them
        are exact.
        """
        generator = torch.Generator().manual_seed(self.seed)
        span = 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        whole = torch.randint(-12, 13, (span if 0 not in self.shape else 0,), generator=generator)
        if self.dtype is torch.bool:
            stored = whole % 2 == 0
        else:
            stored = (whole / 8).to(self.dtype) if self.dtype.is_floating_point else whole.to(self.dtype)
        return stored.to(device).as_strided(self.shape, self.strides)

    def text(self) -> str:
        """Returns an expression that makes the tensor, for a script."""
        span = 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        span = 0 if 0 in self.shape else span
        whole = f"torch.randint(-12, 13, ({span},), generator=torch.Generator().manual_seed({self.seed}))"
        if self.dtype is torch.bool:
            stored = f"({whole} % 2 == 0)"
        else:
            stored = f"({whole}{' / 8' if self.dtype.is_floating_point else ''}).to({self.dtype})"
        return f"{stored}.to(device).as_strided({self.shape}, {self.strides})"


@dataclass(frozen=True, slots=True)
class Statement:
    """One line: what it assigns (None for one that only writes), its text, and the names that it reads or writes.

    In the text ``{0}``, ``{1}``, … stand for the names that it reads.
    """

    target: str | None
    template: str
    reads: tuple[str, ...]

    def text(self) -> str:
        """Returns the line."""
        made = self.template.format(*self.reads)
        return made if self.target is None else f"{self.target} = {made}"


@dataclass(frozen=True, slots=True)
class Program:
    """A program: inputs ``x0, x1, …``, statements in order, and the names that it returns.

    Attributes:
        scale: size of the largest number that eager computes on the way, in float64.
    """

    seed: int
    inputs: tuple[Input, ...]
    statements: tuple[Statement, ...]
    returned: tuple[str, ...]
    scale: float = 1.0

    def source(self) -> str:
        """Returns the text of the function."""
        names = ", ".join(f"x{number}" for number in range(len(self.inputs)))
        lines = [f"def program({names}):"]
        lines += [f"    {statement.text()}" for statement in self.statements]
        return "\n".join([*lines, f"    return ({', '.join(self.returned)},)"])

    def function(
        self, device: str, rewrite: Callable[[str], str] = lambda text: text
    ) -> Callable[..., tuple[Tensor, ...]]:
        """Returns the function on a device, its text rewritten; tracebacks know its lines."""
        source = rewrite(self.source())
        path = f"<fuzz {self.seed}-{len(self.statements)}>"
        linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
        space: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "device": device}
        exec(compile(source, path, "exec"), space)
        function: Callable[..., tuple[Tensor, ...]] = space["program"]
        return function

    def arguments(self, device: str) -> list[Tensor]:
        """Returns fresh inputs."""
        return [each.make(device) for each in self.inputs]

    def script(self, reason: str, device: str, *, is_trained: bool = False) -> str:
        """Returns a script that shows what is wrong."""
        inputs = "".join(f"\n        {each.text()}," for each in self.inputs)
        return SCRIPT.format(
            seed=self.seed,
            reason=reason,
            source=self.source(),
            inputs=inputs + "\n    ",
            device=device,
            ways=TRAINED if is_trained else FORWARD,
        )

    def without(self, positions: Sequence[int]) -> Program | None:
        """Returns the program without some statements and all that depend on them; None if none returns."""
        gone: set[str] = set()
        kept = []
        for position, statement in enumerate(self.statements):
            if position in positions or gone.intersection(statement.reads):
                if statement.target is not None:
                    gone.add(statement.target)
                continue
            kept.append(statement)
        returned = tuple(name for name in self.returned if name not in gone)
        if not returned:
            written = [statement.target for statement in kept if statement.target is not None]
            returned = (written[-1],) if written else ()
        return replace(self, statements=tuple(kept), returned=returned) if returned else None
