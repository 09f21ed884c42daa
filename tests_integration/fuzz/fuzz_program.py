"""Programs of the fuzzer: straight-line text over named tensors, which prints as a script that stands alone."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

SCRIPT = '''"""A program of the fuzzer (seed {seed}): {reason}"""

import torch
import torch.nn.functional as F

import ferrite_torch

{source}

device = "{device}"
calls = [{calls}]


{ways}
compiled = torch.compile(program, backend="ferrite", options={{"fallback": False}}, fullgraph=True{options})
for inputs in calls:
    given, own = inputs(), inputs()
    for mine, theirs in zip([*results(compiled, own), *own], [*results(program, given), *given]):
        print(mine, mine.stride(), theirs, theirs.stride(), sep="\\n")
'''

FORWARD = """
def results(function, given):
    with torch.no_grad():
        return function(*given)

"""

TRAINED = """
def weight(x, seed):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(-8, 9, x.shape, generator=generator) / 8).to(x.device, x.dtype)


def results(function, given):
    given = [x.requires_grad_(x.dtype is torch.float32) for x in given]
    outputs = function(*given)
    leaves, ends = ([x for x in each if x.requires_grad] for each in (given, outputs))
    if not leaves or not ends:
        return outputs
    weights = [weight(x, place) for place, x in enumerate(ends)]
    gradients = torch.autograd.grad(ends, leaves, weights, allow_unused=True)
    return *outputs, *(x for x in gradients if x is not None)

"""

_NARROW = re.compile(r"torch\.(float32|float16|bfloat16)\b")


def rounded(x: Tensor, *names: str) -> Tensor:
    """Returns numbers in float64 that were converted to some types, one after another: what a program asks for."""
    for name in names:
        x = x.to(getattr(torch, name), copy=True)
    return x.double() if x.is_floating_point() else x


def bits(x: Tensor, name: str, kind: str) -> Tensor:
    """Returns the bits of numbers in float64, as a type that holds them has them, seen as another type."""
    return x.to(getattr(torch, name)).view(getattr(torch, kind))


@dataclass(frozen=True, slots=True)
class Input:
    """One input: its dtype, shape and strides, and what it holds.

    Attributes:
        seed: of the contents.
        contents: ``"eighths"``, small multiples of 1/8 and small integers, which every type holds, so that sums and
            products of a few of them are exact; ``"fine"``, floats with as many bits as leave room for exact sums, and
            that narrower types must round; ``"wide"``, integers from all of their type's range.
        offset: of the first element.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    seed: int
    contents: str = "eighths"
    offset: int = 0

    def make(self, device: str) -> Tensor:
        """Returns the tensor."""
        tensor: Tensor = eval(self.text(), {"torch": torch, "device": device})
        return tensor

    def text(self) -> str:
        """Returns an expression that makes the tensor, for a script."""
        reach = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        count = 0 if 0 in self.shape else self.offset + 1 + reach
        first, last, divisor = self._numbers()
        generator = f"generator=torch.Generator().manual_seed({self.seed})"
        stored = f"torch.randint({first}, {last}, ({count},), {generator})"
        if self.dtype is torch.bool:
            stored = f"({stored} % 2 == 0)"
        elif divisor > 1:
            stored = f"({stored}.double() / {divisor}).to({self.dtype})"
        else:
            stored = f"{stored}.to({self.dtype})"
        return f"{stored}.to(device).as_strided({self.shape}, {self.strides}, {self.offset})"

    def _numbers(self) -> tuple[int, int, int]:
        """Returns the least number that is drawn, the one after the greatest, and what all are divided by."""
        if self.dtype.is_floating_point:
            if self.contents == "fine" and self.dtype is torch.float64:
                return -(1 << 36), 1 << 36, 1 << 35
            return (-4096, 4097, 2048) if self.contents == "fine" and self.dtype is torch.float32 else (-12, 13, 8)
        if self.contents == "wide" and self.dtype is not torch.bool:
            return -(1 << 63), (1 << 63) - 1, 1
        return (-12, 13, 1) if self.dtype.is_signed or self.dtype is torch.bool else (0, 25, 1)


@dataclass(frozen=True, slots=True)
class Statement:
    """One line: what it assigns (None for one that only writes), its text, and the names that it reads or writes.

    In the text ``{0}``, ``{1}``, … stand for the names that it reads.

    Attributes:
        wide: the text in the program of float64, where that is not the same with other types.
        writes: the name whose storage it writes, None for none.
    """

    target: str | None
    template: str
    reads: tuple[str, ...]
    wide: str | None = None
    writes: str | None = None

    def text(self, *, is_wide: bool = False) -> str:
        """Returns the line, with ``is_wide`` that of the program in float64."""
        template = self.template
        if is_wide:
            template = _NARROW.sub("torch.float64", template) if self.wide is None else self.wide
        made = template.format(*self.reads)
        return made if self.target is None else f"{self.target} = {made}"


Function = Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class Program:
    """A program: inputs ``x0, x1, …`` of each call, statements in order, and the names that it returns.

    Attributes:
        calls: the inputs of one call, or of two that differ in sizes alone.
        stored: names that are returned whatever else is: lines decide by what is stored under them.
        scale: size of the largest number that eager computes on the way, in float64.
        has_run_time_sizes: whether shapes depend on data.
    """

    seed: int
    calls: tuple[tuple[Input, ...], ...]
    statements: tuple[Statement, ...]
    returned: tuple[str, ...]
    stored: frozenset[str] = field(default_factory=frozenset)
    scale: float = 1.0
    has_run_time_sizes: bool = False

    @property
    def is_dynamic(self) -> bool:
        """Returns whether it is compiled for any sizes."""
        return len(self.calls) > 1

    def input_names(self) -> list[str]:
        """Returns the names of the inputs."""
        return [f"x{number}" for number in range(len(self.calls[0]))]

    def source(self, *, is_wide: bool = False) -> str:
        """Returns the text of the function."""
        lines = [f"def program({', '.join(self.input_names())}):"]
        lines += [f"    {statement.text(is_wide=is_wide)}" for statement in self.statements]
        return "\n".join([*lines, f"    return ({', '.join(self.returned)},)"])

    def function(self, device: str, *, is_wide: bool = False) -> Function:
        """Returns the function on a device; tracebacks know its lines."""
        source = self.source(is_wide=is_wide)
        path = f"<fuzz {self.seed}-{len(self.statements)}>"
        linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
        space = names_of(device)
        exec(compile(source, path, "exec"), space)
        function: Function = space["program"]
        return function

    def arguments(self, device: str, call: int = 0) -> list[Tensor]:
        """Returns fresh inputs."""
        return [each.make(device) for each in self.calls[call]]

    def script(self, reason: str, device: str, *, is_trained: bool = False) -> str:
        """Returns a script that shows what is wrong."""
        calls = "".join(
            f"\n    lambda: [{''.join(f'{chr(10)}        {each.text()},' for each in inputs)}\n    ],"
            for inputs in self.calls
        )
        return SCRIPT.format(
            seed=self.seed,
            reason=reason.replace("\\", "/").replace('"', "'"),
            source=self.source(),
            calls=calls + "\n",
            device=device,
            ways=TRAINED if is_trained else FORWARD,
            options=", dynamic=True" if self.is_dynamic else "",
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
        if not returned:
            return None
        return replace(self, statements=tuple(kept), returned=returned, stored=self.stored - gone)


def names_of(device: str) -> dict[str, Any]:
    """Returns what the text of a program knows besides its own names."""
    return {"torch": torch, "F": torch.nn.functional, "device": device, "rounded": rounded, "bits": bits}
