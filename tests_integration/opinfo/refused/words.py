"""The words that refused calls are written in: a function with its arguments, and tensors to give it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Refused:
    """A call that eager refuses: a function, and its arguments, tensors on the CPU."""

    function: Function
    given: tuple[Any, ...]

    def arguments(self, device: str) -> tuple[Any, ...]:
        """Returns the arguments on a device."""
        return tuple(value.to(device) if isinstance(value, torch.Tensor) else value for value in self.given)


def calls(function: Function, *arguments: tuple[Any, ...]) -> list[Refused]:
    """Returns a call of a function with each of some arguments."""
    return [Refused(function, given) for given in arguments]


def each(functions: Iterable[Function], *arguments: tuple[Any, ...]) -> list[Refused]:
    """Returns a call of each function with each of some arguments."""
    return [call for function in functions for call in calls(function, *arguments)]


def ints(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


zeros, ones, empty = torch.zeros, torch.ones, torch.zeros(0)
number = torch.tensor(1.0)
NOTHING = torch.zeros(0, dtype=torch.int64)
WIDE = torch.float64
