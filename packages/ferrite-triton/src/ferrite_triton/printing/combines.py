"""Combines as Triton text: reductions and scans of tiles, by device functions of two states where Triton has none."""

from __future__ import annotations

from collections.abc import Sequence

from ferrite_ir.language.dtypes import BOOL, DType

REDUCTIONS: dict[str, str] = {
    "sum": "tl.sum({v}, {axis}{keep})",
    # Tiles of single bits are reduced as integers.
    "any": "(tl.max({v}.to(tl.int32), {axis}{keep}) != 0)",
    "all": "(tl.min({v}.to(tl.int32), {axis}{keep}) != 0)",
}
"""Reductions that Triton has itself."""

FUNCTIONS: dict[str, str] = {
    "prod": "fmath.prod",
    "max": "fmath.maximum_nan",
    "min": "fmath.minimum_nan",
    "xor": "fmath.xor",
    "logaddexp": "fmath.logaddexp",
    "argmax": "fmath.argmax_nan",
    "argmin": "fmath.argmin_nan",
    "cummax": "fmath.argmax_nan",
    "cummin": "fmath.argmin_nan",
}
"""Device functions of two states, for all others."""


def reduction_text(combine: str, values: Sequence[str], dtype: DType, axis: int, *, keep: bool) -> str:
    """Returns the reduction of tiles, whose texts are names or postfix expressions; the first has this type."""
    keeps = ", keep_dims=True" if keep else ""
    name = {"max": "any", "min": "all"}.get(combine, combine) if dtype is BOOL else combine
    template = REDUCTIONS.get(name)
    if template is not None:
        return template.format(v=values[0], axis=axis, keep=keeps)
    return f"tl.reduce({_state(values)}, {axis}, {FUNCTIONS[name]}{keeps})"


def scan_text(combine: str, values: Sequence[str], axis: int, *, reverse: bool) -> str:
    """Returns the inclusive scan of tiles along an axis, from its end with ``reverse``."""
    backwards = ", reverse=True" if reverse else ""
    if combine == "sum":
        return f"tl.cumsum({values[0]}, {axis}{backwards})"
    function = FUNCTIONS.get(combine, combine)  # one of the program's own stands in front of the kernel
    return f"tl.associative_scan({_state(values)}, {axis}, {function}{backwards})"


def _state(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else f"({', '.join(values)})"
