"""Which batch, layout and precision each model of a run has: drawn, or all that are asked for."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.models.wide import Architecture

DRAWN = ("drawn",)
"""Instead of a list of choices: each architecture has one of all."""
BATCHES = ("1", "8", "32")
LAYOUTS = ("nchw", "nhwc")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Variant:
    """A model as a row has it; `batch` is 0 and `layout` empty where the model itself says so."""

    model: str
    dtype: str
    batch: int = 0
    layout: str = ""

    @property
    def name(self) -> str:
        if not self.batch:
            return self.model
        return "-".join(part for part in (self.model, f"b{self.batch}", self.layout, self.dtype) if part)


def choices(given: Sequence[str], known: Sequence[str], place: str) -> Sequence[str]:
    """Returns what was given, or one of what is known, drawn by the words of `place`: the same in every process."""
    return (random.Random(place).choice(known),) if given == DRAWN else given


def variants_of(
    architectures: Mapping[str, Architecture],
    batches: Sequence[str] = DRAWN,
    layouts: Sequence[str] = DRAWN,
    dtypes: Sequence[str] = DRAWN,
    seed: int = 0,
) -> Iterator[Variant]:
    """Yields the rows of each architecture: all of what is given crossed, with one where it is `DRAWN`.

    Precisions that an architecture cannot compute in are left out. What an architecture draws depends on the seed and
    on its name alone.
    """
    for model, architecture in architectures.items():
        own_layouts = choices(layouts, LAYOUTS, f"{seed} layout {model}") if architecture.images else ("",)
        own_batches = choices(batches, BATCHES, f"{seed} batch {model}")
        allowed = [dtype for dtype in dtypes if dtype in architecture.dtypes] if dtypes != DRAWN else dtypes
        own_dtypes = choices(allowed, architecture.dtypes, f"{seed} dtype {model}")
        for batch, layout, dtype in itertools.product(own_batches, own_layouts, own_dtypes):
            yield Variant(model, dtype, int(batch), layout)


def part_of(rows: Iterable[T], part: str) -> list[T]:
    """Returns of some rows those of a part `k/n`: every `n`-th from the `k`-th.

    Raises:
        ValueError: it is not two whole numbers, the first of them below the second.
    """
    number, _, count = part.partition("/")
    if not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise ValueError(f"a part is k/n with k below n, such as 0/4, not {part!r}")
    return list(rows)[int(number) :: int(count)]
