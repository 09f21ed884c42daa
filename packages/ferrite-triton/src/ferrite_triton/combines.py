"""What combining two values, a tile, or what comes before each value of it, is in the language of kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ferrite_ir.dtypes import BOOL, DType

from .literals import highest_text, lowest_text


@dataclass(frozen=True, slots=True)
class Simple:
    """A combine of one value.

    Attributes:
        reduce: text of the reduction of ``{v}`` along ``{axis}``; ``{keep}`` keeps the folded extent as 1.
        step: text of two combined elements.
        identity: neutral element of a type.
        scan: text of the inclusive scan.
        in_order: whether a prefix may be in the range of its type where the same values in another order are not.
    """

    reduce: str
    step: str
    identity: Callable[[DType], str]
    scan: str = ""
    in_order: bool = False


def _number(value: str) -> Callable[[DType], str]:
    return lambda dtype: f"{value}.0" if dtype.is_float else value


def _through(function: str) -> tuple[str, str, str]:
    """Returns the reduction, the step and the scan by a device function of two elements."""
    return (
        f"tl.reduce({{v}}, {{axis}}, {function}{{keep}})",
        f"{function}({{a}}, {{v}})",
        f"tl.associative_scan({{v}}, {{axis}}, {function})",
    )


def _simple(function: str, identity: Callable[[DType], str], step: str = "", *, in_order: bool = False) -> Simple:
    reduction, called, scan = _through(function)
    return Simple(reduction, step or called, identity, scan, in_order)


SIMPLE: dict[str, Simple] = {
    "sum": Simple("tl.sum({v}, {axis}{keep})", "{a} + {v}", _number("0"), "tl.cumsum({v}, {axis})"),
    "prod": _simple("fmath.prod", _number("1"), "{a} * {v}", in_order=True),
    "max": _simple("fmath.maximum_nan", lowest_text),
    "min": _simple("fmath.minimum_nan", highest_text),
    "xor": _simple("fmath.xor", _number("0"), "{a} ^ {v}"),
    "logaddexp": _simple("fmath.logaddexp", lowest_text, in_order=True),
    # Tiles of single bits are folded as integers.
    "any": Simple("(tl.max({v}.to(tl.int32), {axis}{keep}) != 0)", "{a} | {v}", lambda _: "False"),
    "all": Simple("(tl.min({v}.to(tl.int32), {axis}{keep}) != 0)", "{a} & {v}", lambda _: "True"),
}

PAIRED = {"argmax": ("fmath.argmax_nan", lowest_text), "argmin": ("fmath.argmin_nan", highest_text)}


def simple_row(combine: str, dtype: DType) -> Simple:
    """Returns the row of a combine of one value; the maximum of bools is ``any``."""
    return SIMPLE[{"max": "any", "min": "all"}.get(combine, combine) if dtype is BOOL else combine]


def neutrals_of(combine: str, dtype: DType) -> tuple[str, ...]:
    """Returns what the components of a state of nothing are, of simple combines and softmax."""
    return ('float("-inf")', "0.0") if combine == "online_softmax" else (simple_row(combine, dtype).identity(dtype),)
