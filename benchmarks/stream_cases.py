"""How the kernels of `hand_streams.py` are called: group norms that read images again soon; see `hand_written.py`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hand_cases import Row, distance, launched, normalised_images
from hand_kernels import moments_of_groups
from hand_streams import added_and_normalised, streamed

IMAGES, POINTS = 16, 4096
PIECES = ((64, 32, 1), (128, 32, 1), (128, 64, 2))
"""Points that a program adds up, points of halves that one normalises (half as many of float32), and warps."""
STREAMS = ((0, 2, 5), (1, 2, 5), (2, 2, 5), (2, 3, 7))
"""Which of these, and how many images later an image is combined, and normalised."""


@dataclass(frozen=True)
class Norm:
    """A group norm with silu in pieces: what it is given, what it leaves, and the sizes of its programs."""

    weight: Tensor
    bias: Tensor
    y: Tensor
    points: int
    rows: int
    warps: int

    @functools.cached_property
    def partial(self) -> tuple[Tensor, ...]:
        """Moments of stretches, and those of groups, which were never added up at first."""
        means, squares = torch.empty(2, IMAGES * POINTS // self.points * 320, device="cuda")
        return means, squares, torch.zeros(IMAGES * 64, device="cuda")

    @property
    def lanes(self) -> int:
        """Threads that add up one channel."""
        return max(1, 8 * self.warps // self.y.element_size())

    def step(self, x: Tensor, added: int | None, normalised: int | None, images: int) -> None:
        """Adds up so many images from ``added`` on and normalises as many from ``normalised`` on, if that is given."""
        does = tuple(int(first is not None) for first in (added, normalised))
        programs = images * 5 * (POINTS // self.points * does[0] + POINTS // self.rows * does[1])
        given = (x, self.weight, self.bias, self.y, *self.partial, added or 0, normalised or 0)
        sizes = (self.points, self.lanes, self.rows, *does)
        launched(added_and_normalised, programs, *given, *sizes, warps=self.warps, uses_pdl=True)()

    def meet(self, first: int, images: int) -> None:
        """Combines the moments of images that are added up."""
        means, squares, moments = self.partial
        start = first * POINTS // self.points * 320
        given = (means[start:], squares[start:], moments[first * 64 :], self.points)
        launched(moments_of_groups, images * 32, *given, warps=1, uses_pdl=True)()

    def one_by_one(self, x: Tensor, images: int) -> None:
        """The whole norm, so many images at a time."""
        for first in range(0, IMAGES, images):
            self.step(x, first, None, images)
            self.meet(first, images)
            self.step(x, None, first, images)

    def beside(self, x: Tensor, images: int) -> None:
        """The same where images are normalised by the kernel that adds up the next ones."""
        for first in range(0, IMAGES, images):
            self.step(x, first, first - images if first else None, images)
            self.meet(first, images)
        self.step(x, None, IMAGES - images, images)

    def stream(self, x: Tensor, counts: Tensor, launches: Iterator[int], meets: int, behind: int) -> None:
        """The whole norm in one kernel whose programs wait for each other."""
        programs = IMAGES * (POINTS // self.points * 5 + 32 + POINTS // self.rows * 5)
        given = (x, self.weight, self.bias, self.y, *self.partial, counts, next(launches))
        launched(streamed, programs, *given, self.points, self.lanes, self.rows, meets, behind, warps=self.warps)()


def streams(dtype: torch.dtype) -> Iterator[Row]:
    """Group norm that reads images again soon: some of them at a time, or in one kernel whose programs wait."""
    sets = torch.randn(6, IMAGES, 64, 64, 320, device="cuda", dtype=dtype).permute(0, 1, 4, 2, 3)
    weight, bias = (torch.randn(320, device="cuda", dtype=dtype) for _ in range(2))
    y, exact = torch.empty_like(sets[0]), normalised_images(*(t.double() for t in (sets[0], weight, bias)))

    def row(name: str, call: Callable[[Tensor], Any], *, is_whole: bool = True) -> Row:
        turns = itertools.cycle(sets)

        def error() -> float:
            call(sets[0])
            return distance(y, exact) if is_whole else 0.0

        return name, lambda: call(next(turns)), error

    norms = [Norm(weight, bias, y, points, rows * 2 // dtype.itemsize, warps) for points, rows, warps in PIECES]
    for norm in norms:
        sizes = f"{norm.points} points and {norm.rows} by {norm.warps} warps"
        for images in (16, 8, 4):
            yield row(f"{sizes}, {images} images at a time", functools.partial(norm.one_by_one, images=images))
        for images in (8, 4):
            name = f"{sizes}, {images} images at a time, normalised beside the next ones"
            yield row(name, functools.partial(norm.beside, images=images))
        at_once = functools.partial(norm.step, added=0, normalised=0, images=IMAGES)
        yield row(f"{sizes}, added up and normalised at once, by moments of before", at_once, is_whole=False)
    for number, meets, behind in STREAMS:
        norm, counts = norms[number], torch.zeros(2 * IMAGES * 32, device="cuda", dtype=torch.int32)
        given = {"counts": counts, "launches": itertools.count(1), "meets": meets, "behind": behind}
        name = f"one kernel, {norm.points} points and {norm.rows} by {norm.warps} warps"
        yield row(f"{name}, {meets} and {behind} images later", functools.partial(norm.stream, **given))
