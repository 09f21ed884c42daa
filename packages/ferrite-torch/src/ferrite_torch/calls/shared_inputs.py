"""Inputs of a function that overlap in memory, and to which it writes: its graph gets one tensor for all of them.

    f(b[:6], b[4:10])       b is 20 long        graph(base)     the inputs are views of it

AOTAutograd makes this base: what all are views of, where they know of it, else all that their storage holds. When it
traces it knows the end of the last view only, and nothing guards how much lies behind. So the base of each call is
brought to the shape that the graph was compiled for; views count their places from the beginning of the storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class SharedBase:
    """A base as a graph was compiled for it.

    Attributes:
        position: which of the arguments of the graph it is.
        shape, strides, offset: where its elements lie in the storage.
    """

    position: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def part_of(self, base: torch.Tensor) -> torch.Tensor:
        """Returns what the graph was compiled for of a base."""
        if base.shape == self.shape and base.stride() == self.strides:
            return base
        return base.as_strided(self.shape, self.strides, self.offset)

    @classmethod
    def from_record(cls, record: Sequence[Any]) -> SharedBase:
        """Returns the base in its JSON form.

        Raises:
            TypeError, ValueError: it is none.
        """
        position, shape, strides, offset = record
        return cls(int(position), tuple(map(int, shape)), tuple(map(int, strides)), int(offset))

    def to_record(self) -> list[Any]:
        """Returns the JSON form."""
        return [self.position, list(self.shape), list(self.strides), self.offset]


def bases_of(fakes: Sequence[Any], positions: Iterable[int]) -> tuple[SharedBase, ...]:
    """Returns the bases at some positions of the arguments of a graph; none with symbolic sizes."""
    found = []
    for position in sorted(positions):
        fake = fakes[position]
        numbers = (*fake.shape, *fake.stride(), fake.storage_offset())
        if all(type(number) is int for number in numbers):
            found.append(SharedBase(position, tuple(fake.shape), tuple(fake.stride()), fake.storage_offset()))
    return tuple(found)


def on_bases(function: Callable[[list[Any]], Any], bases: tuple[SharedBase, ...]) -> Callable[[list[Any]], Any]:
    """Returns a boxed function that takes its bases as each call brings them."""
    if not bases:
        return function

    def call(arguments: list[Any]) -> Any:
        for base in bases:
            arguments[base.position] = base.part_of(arguments[base.position])
        return function(arguments)

    return call
