"""What the programs of the table have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Function = Callable[[Tensor], Any]


@dataclass(frozen=True, slots=True)
class Program:
    """A function of a matrix that calls higher-order ops.

    Attributes:
        function: takes a tensor of 8 columns; its first result is what is differentiated.
        has_gradient: whether it has a derivative.
        is_dynamic: whether torch captures it for any number of rows.
        meaning: what it computes, where eager mode cannot run it on a CPU.
        draws: whether it multiplies by random numbers: the result is then the operand's sine times these, and so is the
            cosine in the gradient. Torch refuses such a checkpoint where nothing is differentiated.
        tolerance: how far results may be from eager's; more where eager rounds to a half type at each step.
        lies_as_told: whether results lie as in eager mode; eager's `associative_scan` does not do what torch tells
            compilers of it.
    """

    function: Function
    has_gradient: bool = True
    is_dynamic: bool = True
    meaning: Function | None = None
    draws: bool = False
    tolerance: float = 1e-4
    lies_as_told: bool = True
