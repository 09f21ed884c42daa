"""How the kernel of `hand_held.py` is called: group norm in bfloat16 that reads images once; see `hand_written.py`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from hand_cases import Row, distance, launched, normalised_images, ours
from hand_held import register_norm

HELD = (
    *(
        (128, 4, registers, *starts, True)
        for registers in (72, 80)
        for starts in (("habit", False, 0), ("drawn", False, 0), ("habit", True, 1 << 12))
    ),
    (128, 4, 72, "habit", True, 0, True),
    (128, 4, 72, "reverse", True, 8, True),
    (128, 4, 72, "habit", False, 0, False),
    (64, 2, 72, "habit", False, 0, True),
    (256, 8, 72, "habit", False, 0, True),
)
"""Points that a program holds, warps, registers of a thread, the order of programs, if they help, how often they ask
before, and if they wait."""


def held(dtype: torch.dtype) -> Iterator[Row]:
    """Group norm whose programs hold what they have read until the moments of their image are there."""
    if dtype != torch.bfloat16:
        return
    sets = torch.randn(6, 16, 64, 64, 320, device="cuda", dtype=dtype).permute(0, 1, 4, 2, 3)
    weight, bias = (torch.randn(320, device="cuda", dtype=dtype) for _ in range(2))
    y, exact = torch.empty_like(sets[0]), normalised_images(*(t.double() for t in (sets[0], weight, bias)))
    yield ours(normalised_images, sets[0], weight, bias, sets=[*sets])
    for points, warps, registers, order, helps, patience, waits in HELD:
        moments = torch.zeros(16 * 40 * 4096 // points, device="cuda", dtype=torch.int64)
        counter, launches = torch.zeros(1, device="cuda", dtype=torch.int32), itertools.count(1)
        fixed = (_words(weight), _words(bias), _words(y), moments, counter)
        sizes = (patience, points, order, helps, waits)

        def call(x: Tensor, fixed=fixed, launches=launches, sizes=sizes, w=warps, r=registers) -> None:
            given = (_words(x), *fixed, next(launches), *sizes)
            launched(register_norm, 16 * 4096 // sizes[1] * 5, *given, warps=w, registers=r, uses_pdl=True)()

        def error(call=call, waits=waits) -> float:
            y.zero_()
            call(sets[0])
            return distance(y, exact) if waits else 0.0

        turns = itertools.cycle(sets)
        name = f"{points} points held by {warps} warps of {registers} registers, in the order of {order}"
        name += f", helping after asking {patience} times" * helps + ", waiting for nobody" * (not waits)
        yield name, lambda turns=turns, call=call: call(next(turns)), error


def _words(t: Tensor) -> Tensor:
    """Returns a tensor of halves, images with their channels last, as words of two."""
    return (t.permute(0, 2, 3, 1) if t.dim() == 4 else t).view(torch.int32)
