"""Operators whose results need a word before they can be compared: what is exact, and what means nothing.

The measure is eager in float64. It does not hold where eager's float64 is itself coarse: there the exact function is
spelt out, or taken from the CPU, whose formulas are those of the Cephes library in double precision.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor


def hardsigmoid(x: Tensor, *_: Any, **__: Any) -> Tensor:
    """Returns ``clamp(x + 3, 0, 6) / 6``: torch multiplies by a sixth held as a float32."""
    return (x + 3).clamp(0, 6) / 6


def hardswish(x: Tensor, *_: Any, **__: Any) -> Tensor:
    """Returns ``x * clamp(x + 3, 0, 6) / 6``, for the same reason."""
    return x * (x + 3).clamp(0, 6) / 6


EXACT: dict[str, Callable[..., Any]] = {
    "nn.functional.hardsigmoid": hardsigmoid,
    "nn.functional.hardswish": hardswish,
}
"""Exact functions by operator, for those whose float64 has constants of float32 on both devices."""

EXACT_ON_CPU = frozenset(
    (
        "special.airy_ai",
        "special.bessel_j0",
        "special.bessel_j1",
        "special.bessel_y0",
        "special.bessel_y1",
        "special.modified_bessel_i0",
        "special.modified_bessel_i1",
        "special.modified_bessel_k0",
        "special.modified_bessel_k1",
        "special.scaled_modified_bessel_k0",
        "special.scaled_modified_bessel_k1",
        "special.spherical_bessel_j0",
    )
)
"""Operators whose CUDA kernels evaluate float64 with coefficients cut to float32; on the CPU they are in full."""

SCALES = {"signal.windows.*": 1.0}
"""Size of the numbers that results are computed from, by pattern: windows are sums of cosines, with coefficients up to
one, that cancel to zero at the ends."""

MEANINGLESS: dict[str, frozenset[int]] = {
    "torch.ops.aten._flash_attention_forward": frozenset((2, 3, 4)),
    "torch.ops.aten._efficient_attention_forward": frozenset((2, 3)),
}
"""Positions of results that are whatever memory holds: the generator's state where nothing was dropped, a mask for
debugging that nobody asked for."""


def scale_of(name: str) -> float:
    """Returns the size of the numbers that an operator's results are computed from; 0 where that says nothing."""
    return max((scale for pattern, scale in SCALES.items() if fnmatchcase(name, pattern)), default=0.0)
