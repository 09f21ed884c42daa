"""Axes of kernels, on which the dims of their definitions lie."""

from __future__ import annotations

from dataclasses import dataclass

from ferrite_ir.language import sizes
from ferrite_ir.language.index import Dim
from ferrite_ir.language.sizes import Size

from .text_hooks import printed

UNROLLED = "u"
"""The name of an axis whose points every lane goes through, unrolled."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a kernel: ``x`` (innermost), ``y``, ``z`` of the grid, ``r``, the reduction axis, or ``u``, unrolled.

    Its dims stand outermost first.
    """

    name: str
    dims: tuple[Dim, ...]

    @property
    def size(self) -> Size:
        """Returns the number of points along the axis."""
        return sizes.product(dim.size for dim in self.dims)

    @property
    def is_reduction(self) -> bool:
        """Returns whether this is the reduction axis."""
        return self.name == "r"

    @property
    def is_unrolled(self) -> bool:
        """Returns whether every lane has all points of the axis."""
        return self.name == UNROLLED

    def __str__(self) -> str:
        return printed("axis", self)
