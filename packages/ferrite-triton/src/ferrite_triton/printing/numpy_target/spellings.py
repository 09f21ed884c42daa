"""The table from scalar operations to NumPy text.

A row gives, for each kind of operands, a template with ``{0}``, ``{1}``, … for the operands and ``{type}`` for the type
of the first of them. A function without ``np.`` is one of `library.LIBRARY`. NumPy's functions take operands of many
kinds, so that most rows have one text for all.
"""

from __future__ import annotations

from ferrite_ir.language.ops import REQUIREMENTS
from ferrite_triton.printing.rows import Row, everywhere, integers, numbers


def _calls(names: str, arity: int = 1) -> dict[str, Row[str]]:
    """Returns rows for functions of floats that NumPy has under the same name."""
    operands = ", ".join(f"{{{position}}}" for position in range(arity))
    return {name: Row(f"np.{name}({operands})") for name in names.split()}


ROWS: dict[str, Row[str]] = {
    "add": numbers("{0} + {1}"),
    "sub": numbers("{0} - {1}"),
    "mul": numbers("{0} * {1}"),
    "div": Row("{0} / {1}"),
    "fma": Row("fma({0}, {1}, {2})"),
    "minimum": Row("minimum({0}, {1})", "np.minimum({0}, {1})", "np.minimum({0}, {1})", "{0} & {1}"),
    "maximum": Row("maximum({0}, {1})", "np.maximum({0}, {1})", "np.maximum({0}, {1})", "{0} | {1}"),
    "floordiv": Row("floordiv({0}, {1})", "{0} // {1}", "{0} // {1}"),
    "truncdiv": Row("np.trunc({0} / {1})", "truncdiv({0}, {1})", "{0} // {1}"),
    "mod": numbers("np.mod({0}, {1})"),
    "fmod": numbers("np.fmod({0}, {1})"),
    "pow": Row("np.power({0}, {1})", "power({0}, {1})", "np.power({0}, {1})"),
    "neg": numbers("-{0}"),
    "abs": everywhere("np.abs({0})"),
    "sign": numbers("({0} > 0).astype({type}) - ({0} < 0).astype({type})"),
    "relu": numbers("np.where({0} < 0, {type}(0), {0})"),
    "reciprocal": Row("{type}(1) / {0}"),
    "rsqrt": Row("{type}(1) / np.sqrt({0})"),
    "sigmoid": Row("{type}(1) / ({type}(1) + np.exp(-{0}))"),
    "isnan": Row("np.isnan({0})"),
    "isinf": Row("np.isinf({0})"),
    "signbit": Row("np.signbit({0})"),
    "logical_not": Row(bool="~{0}"),
    "bitnot": integers("~{0}", "~{0}"),
    "bitand": integers("{0} & {1}", "{0} & {1}"),
    "bitor": integers("{0} | {1}", "{0} | {1}"),
    "bitxor": integers("{0} ^ {1}", "{0} ^ {1}"),
    "shl": integers("shl({0}, {1})"),
    "shr": integers("shr({0}, {1})"),
    "eq": everywhere("{0} == {1}"),
    "ne": everywhere("{0} != {1}"),
    "lt": everywhere("{0} < {1}"),
    "le": everywhere("{0} <= {1}"),
    "gt": everywhere("{0} > {1}"),
    "ge": everywhere("{0} >= {1}"),
    # The condition is bool and comes first.
    "where": Row(bool="np.where({0}, {1}, {2})"),
    "masked": Row(bool="np.where({0}, {1}, {2})"),
    **{name: Row(bool="{1}") for name in REQUIREMENTS},
    "ldexp": Row("np.ldexp({0}, {1}.astype(np.int32))"),
    "round": Row("np.rint({0})"),
    "gcd": integers("np.gcd({0}, {1})"),
    "erf": Row("erf({0})"),
    "erfc": Row("erfc({0})"),
    **_calls("floor ceil trunc sqrt exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh"),
    **{name: Row(f"np.arc{name[1:]}({{0}})") for name in ("asin", "acos", "atan", "asinh", "acosh", "atanh")},
    "atan2": Row("np.arctan2({0}, {1})"),
    **_calls("hypot copysign logaddexp", 2),
    "nextafter": Row("np.where({0} == {1}, {1}, np.nextafter({0}, {1}))"),
}
"""By what it means: the forms of `ferrite_triton.tile.operations` are as exact here as the operations."""

UFUNCS: dict[str, str] = {
    "sum": "np.add",
    "prod": "np.multiply",
    "max": "np.maximum",
    "min": "np.minimum",
    "any": "np.logical_or",
    "all": "np.logical_and",
    "xor": "np.bitwise_xor",
    "logaddexp": "np.logaddexp",
}
"""Combines of one value, and atomic updates, as NumPy's functions of two arrays; all others are in the library."""

CALLS: dict[str, str] = {
    # What the compiler is not to know is known here.
    "opaque_value": "{0}",
    "opaque_indices": "{0}",
    "opaque_floats": "{0}",
    "share": "np.divide({0}, {1})",
    "divisor_scale": "np.ones_like({0})",
    "rounded_inverse": "np.reciprocal({0})",
    "row_quotient": "np.divide({0}, {1})",
    "whole_to_half": "{0}.astype(np.float16)",
    "argmax_nan": "argmax(({0}, {1}), ({2}, {3}))",
    "argmin_nan": "argmin(({0}, {1}), ({2}, {3}))",
    "welford": "welford(({0}, {1}, {2}), ({3}, {4}, {5}))",
    "online_softmax": "online_softmax(({0}, {1}), ({2}, {3}))",
    "sort_stable": "sort_stable({0}, {1}, {2}, {3})",
    "sort_first": "sort_first({0}, {1}, {2}, {3}, {4})",
}
"""Device functions of the runtime."""
