"""The iteration space of a register-resident norm: definitions of three levels over the axes of one kernel.

    level      definition                         one for each
    groups     mean: reduce welford               image, group             y, x0
    channels   factor: loop                       image, group, channel    y, x0, x1
    elements   y: loop, and what is reduced       ... and position         y, x0, x1, r0

Fusion finds the space (`fusion.norm_proposal`), and the kernel is written over it (`kernels.register_norms`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ferrite_ir.language.index import Dim, Index
from ferrite_ir.language.scalar import Scalar

from .axes import Axis

Positions: TypeAlias = dict[Dim, Index]
"""What dims are over other dims."""


@dataclass(frozen=True, slots=True)
class NormSpace:
    """The axes of a norm, and what the dims of its definitions are over theirs.

    Attributes:
        axes: images on ``y`` where there are several, groups and their channels on ``x``, positions on ``r``.
        images: the load of an element of an image.
        parts, moments: numbers of the definitions that reduce positions of channels, and that combine these for groups.
        channels: numbers of those that are computed for each group or channel.
        elements: numbers of those that are computed for each element.
        positions: for each definition by number, what its dims are.
        block_length: positions of an image that a program holds; 0 before it is chosen.
    """

    axes: tuple[Axis, ...]
    images: Scalar
    parts: int
    moments: int
    channels: tuple[int, ...]
    elements: tuple[int, ...]
    positions: Mapping[int, Positions]
    block_length: int = 0

    @property
    def position(self) -> Dim:
        """Returns the dim of positions."""
        return self.axes[-1].dims[0]
