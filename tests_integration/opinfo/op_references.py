"""Operators whose results need a word before they can be compared: what is exact, and what means nothing.

The measure is eager in float64. It does not hold where eager's float64 is itself coarse: there the exact function is
spelt out, evaluated with 40 digits by mpmath, or taken from the CPU, whose formulas are those of the Cephes library in
double precision.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

import mpmath
import torch
from torch import Tensor

if TYPE_CHECKING:
    from op_calls import Call

DIGITS = 40
"""Decimal digits of the arithmetic that stands in for coarse float64."""


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


def elementwise(function: Callable[[Any], Any], x: Tensor) -> Tensor:
    """Returns a real function of each element, in float64; NaN where it has no real value, as left of a branch cut."""

    def value(number: float) -> float:
        try:
            found = function(mpmath.mpf(number))
        except (ValueError, ZeroDivisionError):
            return float("nan")
        return float(found) if mpmath.im(found) == 0 else float("nan")

    with mpmath.workdps(DIGITS):
        values = [value(number) for number in x.flatten().tolist()]
    return torch.tensor(values, dtype=torch.float64, device=x.device).reshape(x.shape)


def polygamma(x: Tensor, order: int) -> Tensor:
    """Returns the polygamma function of integer order of each element."""
    return elementwise(partial(mpmath.polygamma, order), x)


PRECISE: dict[str, Callable[..., Tensor]] = {
    "special.airy_ai": partial(elementwise, mpmath.airyai),
    "special.bessel_j0": partial(elementwise, partial(mpmath.besselj, 0)),
    "special.bessel_j1": partial(elementwise, partial(mpmath.besselj, 1)),
    "special.bessel_y0": partial(elementwise, partial(mpmath.bessely, 0)),
    "special.bessel_y1": partial(elementwise, partial(mpmath.bessely, 1)),
    "polygamma": polygamma,
    "special.polygamma": polygamma,
}
"""Functions whose float64 is coarse in torch on both devices; used for values, not for gradients. On the database's
arguments torch's is off by 1.9e-7 in j0, 3.3e-8 in j1, 1.1e-8 in y0, 3.2e-7 in y1, 3.0e-9 in airy_ai and, relatively,
3.6e-10 in the polygamma function of order one (9e-16 in higher ones). Ferrite's, in the interpreter, is off by at most
5.6e-16 in the first five and, relatively, 4.4e-16 in polygamma functions."""

EXACT_ON_CPU = frozenset(
    (
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

SCALES = {"signal.windows.*": 1.0, "special.ndtr": 1.0, "nn.functional.cosine_similarity": 1.0}
"""Size of the numbers that results and gradients are computed from, by pattern: windows are sums of cosines, with
coefficients up to one, that cancel to zero at the ends; so do the two terms of a cosine's gradient, products of unit
vectors, where both are single numbers (5.5e-8 is left of them in float32, which eager's roundings to bfloat16 hide);
eager's ndtr is ``(1 + erf(x / sqrt(2))) / 2``, which cancels to zero at the left:
at -6.7 the right value is 9.2e-12, which nothing computed from ones in float32 (3.0e-8 apart) or bfloat16 can be."""

CHOOSERS: dict[str, tuple[str, ...]] = {
    "kthvalue": ("k", "dim", "keepdim"),
    "topk": ("k", "dim", "largest", "sorted"),
}
"""Operators that return values and where they stand, with the names of what follows their operand. Among equal values
torch leaves the place open, and eager's choice differs by device and size: integers and halves of the database have
many equal values in a row."""

MEANINGLESS: dict[str, frozenset[int]] = {
    "torch.ops.aten._flash_attention_forward": frozenset((2, 3, 4)),
    "torch.ops.aten._efficient_attention_forward": frozenset((2, 3)),
}
"""Positions of results that are whatever memory holds: the generator's state where nothing was dropped, a mask for
debugging that nobody asked for."""


def scale_of(name: str) -> float:
    """Returns the size of the numbers that an operator's results are computed from; 0 where that says nothing."""
    return max((scale for pattern, scale in SCALES.items() if fnmatchcase(name, pattern)), default=0.0)


def wrong_choice(name: str, call: Call, values: Tensor, places: Tensor) -> str | None:
    """Returns why the places that an operator of `CHOOSERS` found do not hold its values, None if they do.

    No place may be named twice in a row: each of the values stands somewhere else.
    """
    (x, *rest), options = call.arguments(*call.tensors)
    options = dict(zip(CHOOSERS[name], rest, strict=False)) | options
    if x.ndim == 0:
        return None if not places.any() and torch.equal(values, x.detach()) else "the only element is elsewhere"
    dim, size = options.get("dim", -1), x.shape[options.get("dim", -1)]
    if values.ndim < x.ndim:
        values, places = values.unsqueeze(dim), places.unsqueeze(dim)
    if places.numel() and not 0 <= int(places.min()) <= int(places.max()) < size:
        return f"a place outside of 0 to {size - 1}"
    found = x.detach().gather(dim, places)
    if not torch.equal(found.nan_to_num(7.25), values.nan_to_num(7.25)):
        return "a place that holds another value"
    in_order = places.sort(dim).values
    is_twice = (in_order.diff(dim=dim) == 0).any() if places.shape[dim] > 1 else False
    return "a place twice" if is_twice else None
