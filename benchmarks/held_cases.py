"""How the kernel of `hand_held.py` is called: group norm in bfloat16 that reads its images once; see `by_hand.py`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from hand_cases import Row, distance, launched, normalised_images, ours
from hand_held import held_images

HELD = (
    *((128, 4, 72, draws, tells) for tells in ("words", "order", "counter", "none") for draws in (False, True)),
    (128, 4, 80, False, "words"),
    (128, 4, 80, False, "order"),
    (64, 2, 72, False, "words"),
    (256, 8, 80, False, "words"),
)
"""Points that a program holds, warps, registers of a thread, whether numbers are drawn, and what tells of moments."""


def held(dtype: torch.dtype) -> Iterator[Row]:
    """Group norm whose programs hold what they have read until the moments of their image are there."""
    if dtype != torch.bfloat16:
        return
    sets = torch.randn(6, 16, 64, 64, 320, device="cuda", dtype=dtype).permute(0, 1, 4, 2, 3)
    weight, bias = (torch.randn(320, device="cuda", dtype=dtype) for _ in range(2))
    y, exact = torch.empty_like(sets[0]), normalised_images(*(t.double() for t in (sets[0], weight, bias)))
    yield ours(normalised_images, sets[0], weight, bias, sets=[*sets])
    for points, warps, registers, draws, tells in HELD:
        means, squares = torch.zeros(2, 16 * 40 * 4096 // points, device="cuda", dtype=torch.int64)
        counts, launches = torch.zeros(17 * 32, device="cuda", dtype=torch.int32), itertools.count(1)
        fixed = (_words(weight), _words(bias), _words(y), means, squares, counts)

        def call(x: Tensor, fixed=fixed, launches=launches, sizes=(points, draws, tells), w=warps, r=registers) -> None:
            given = (_words(x), *fixed, next(launches), *sizes)
            launched(held_images, 16 * 4096 // sizes[0] * 5, *given, warps=w, registers=r, follows=True)()

        def error(call=call, tells=tells) -> float:
            call(sets[0])
            return distance(y, exact) if tells != "none" else 0.0

        turns = itertools.cycle(sets)
        order = "numbers drawn" if draws else "in the order of programs"
        name = f"one kernel, {points} points held by {warps} warps of {registers} registers, {order}"
        yield f"{name}, told by {tells}", lambda turns=turns, call=call: call(next(turns)), error


def _words(t: Tensor) -> Tensor:
    """Returns a tensor of halves, images with their channels last, as words of two."""
    return (t.permute(0, 2, 3, 1) if t.dim() == 4 else t).view(torch.int32)
