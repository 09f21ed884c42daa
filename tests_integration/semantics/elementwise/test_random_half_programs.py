"""Random programs of stated conversions to half types and half arithmetic, bit for bit beside eager.

Half results of arithmetic are returned, or read by what sees them as they are stored (a conversion, a step, a joined
tensor); between two operations of half types they may have excess precision, and no program here asks for that.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from against_eager import compiled
from bitwise import assert_same_bits

HALVES = (torch.float16, torch.bfloat16)
STEPS = ("floor()", "round()", "sign()", "isinf()", "isnan()", "to(torch.int32)", "frac()", "bool()", "gt(1.0)")


class Program:
    """The text of a random function of two f32 tensors ``x, y`` and two half ones ``hx, hy`` of one shape.

    Attributes:
        text: the function.
        half: the half type ``H`` in it.
    """

    def __init__(self, seed: int, lines: int) -> None:
        self._random = random.Random(seed)
        self.half = self._random.choice(HALVES)
        self._lines: list[str] = []
        self._wide, self._halves, self._computed = ["x", "y"], ["hx", "hy"], set[str]()
        self._returned: dict[str, None] = {}
        for _ in range(lines):
            self._random.choice(self.KINDS)(self)
            if self._random.random() < 0.25:
                self._return(self._random.choice([*self._wide, *self._halves][-3:]))
        self._return(self._wide[-1])
        body = "\n    ".join(self._lines)
        self.text = f"def f(x, y, hx, hy):\n    {body}\n    return ({', '.join(self._returned)},)"

    def function(self) -> Callable[..., Any]:
        other = HALVES[1 - HALVES.index(self.half)]
        scope: dict[str, Any] = {"torch": torch, "H": self.half, "O": other}
        exec(self.text, scope)
        return scope["f"]  # type: ignore[no-any-return]

    def _return(self, name: str) -> None:
        self._returned[name] = None
        self._computed.discard(name)

    def _add(self, text: str, names: list[str] | None = None) -> str:
        name = f"v{len(self._lines)}"
        self._lines.append(f"{name} = {text}")
        if names is not None:
            names.append(name)
        return name

    def _one(self, names: list[str]) -> str:
        return self._random.choice(names[-4:] if self._random.random() < 0.6 else names)

    def _exact(self) -> str:
        """Returns a half value that has no excess precision."""
        return self._random.choice([name for name in self._halves if name not in self._computed])

    def wide_arithmetic(self) -> None:
        self._add(f"{self._one(self._wide)} {self._random.choice('+-*')} {self._one(self._wide)}", self._wide)

    def conversion(self) -> None:
        how = self._random.choice(("to(H)", "to(dtype=H)", "type_as(hx)", "type(H)"))
        factor = self._random.choice((1.1, 3.3, 1e5, 1e-6))
        self._add(f"({self._one(self._wide)} * {factor}).{how}", self._halves)

    def copy(self) -> None:
        self._add(f"torch.empty_like(x, dtype=H).copy_({self._one(self._wide)} * 1.1)", self._halves)

    def widening(self) -> None:
        how = self._random.choice(("float()", "to(torch.float32)", "double().float()", "to(O).float()"))
        self._add(f"{self._one(self._halves)}.{how}", self._wide)

    def half_arithmetic(self) -> None:
        name = self._add(f"{self._exact()} {self._random.choice('+-*')} {self._exact()}", self._halves)
        if self._random.random() < 0.5:
            self._return(name)
        else:
            self._computed.add(name)

    def mixed_arithmetic(self) -> None:
        self._add(f"{self._one(self._wide)} * {self._exact()}", self._wide)

    def step(self) -> None:
        self._return(self._add(f"{self._one(self._halves)}.{self._random.choice(STEPS)}"))

    def choice(self) -> None:
        self._add(f"torch.where({self._one(self._wide)} > 0, {self._exact()}, {self._exact()})", self._halves)

    def joined(self) -> None:
        parts = [self._one(self._halves), self._one(self._halves)]
        self._return(self._add(f"torch.{self._random.choice(('cat', 'stack'))}([{', '.join(parts)}])"))
        self._computed.difference_update(parts)

    def transposed(self) -> None:
        source = self._one(self._halves)
        self._return(self._add(f"{source}.t().contiguous()"))
        self._computed.discard(source)

    def extreme(self) -> None:
        how = self._random.choice(("amax(-1, keepdim=True)", "amin(0, keepdim=True)"))
        self._add(f"{self._one(self._halves)}.{how}.float() * x", self._wide)

    KINDS = (
        wide_arithmetic, wide_arithmetic, conversion, conversion, copy, widening, widening, half_arithmetic,
        half_arithmetic, mixed_arithmetic, step, choice, joined, transposed, extreme,
    )  # fmt: skip


def inputs(half: torch.dtype, seed: int, rows: int, columns: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    wide = [torch.randn(rows, columns, generator=generator) * 3 for _ in range(2)]
    return [*wide, *((torch.randn(rows, columns, generator=generator) * 40).to(half) for _ in range(2))]


@pytest.mark.parametrize("seed", range(12))
def test_program(seed: int) -> None:
    program = Program(seed, lines=(5, 10, 20)[seed % 3])
    function, is_dynamic = program.function(), seed % 4 == 0
    fast = compiled(function, fullgraph=True, dynamic=is_dynamic)
    for rows, columns in ((4, 6), (5, 7)) if is_dynamic else ((4, 6),):
        given = inputs(program.half, seed, rows, columns)
        assert_same_bits(fast(*given), function(*given), f"{program.half}\n{program.text}\nresult")
