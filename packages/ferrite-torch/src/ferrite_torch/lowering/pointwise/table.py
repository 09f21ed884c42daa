"""The table of pointwise ops.

Names are written short: ``exp`` is ``aten.exp.default``, ``add.Tensor`` is ``aten.add.Tensor``, ``prims.exp`` is
``prims.exp.default``.
"""

from __future__ import annotations

from functools import partial

import torch

from ferrite_ir.language import scalar as sc
from ferrite_ir.language.scalar import Scalar
from ferrite_torch.devices.dtypes import dtype_of
from ferrite_torch.lowering.builder import Builder, Lowered, Unlowered
from ferrite_torch.lowering.elementwise import (
    OWN,
    PROMOTED,
    Element,
    Elementwise,
    Formula,
    element_at,
    lower_elementwise,
    packed_strides,
    refuse_opaque,
)
from ferrite_torch.lowering.expressions import absolute, call, choose, exp, is_infinite, is_nan, is_true, mul, neg
from ferrite_torch.lowering.pointwise import activations as act
from ferrite_torch.lowering.pointwise import arithmetic as ar
from ferrite_torch.lowering.pointwise import special_functions as sp
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.tensors import Point, Tensor
from ferrite_torch.sizes.symbolic_sizes import sizes_of

ELEMENTWISE: dict[str, Elementwise] = {}
"""What one element is, by qualified op name."""


def qualified(name: str) -> str:
    """Returns the full name of an op written short."""
    parts = name.split(".")
    if parts[0] != "prims":
        parts.insert(0, "aten")
    return ".".join([*parts, "default"] if len(parts) == 2 else parts)


def _enter(
    names: str,
    formula: Formula,
    elements: int | tuple[int, ...] = 1,
    *,
    jumps: bool | tuple[int, ...] = (),
    **options: str | bool,
) -> None:
    positions = tuple(range(elements)) if isinstance(elements, int) else elements
    steps = jumps if isinstance(jumps, tuple) else positions if jumps else ()
    for name in map(qualified, names.split()):
        if name in ELEMENTWISE:
            raise ValueError(f"{name} has a row in this table already")
        ELEMENTWISE[name] = Elementwise(formula, positions, jumps=steps, **options)  # type: ignore[arg-type]


_SAME_NAME = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "digamma", "erf", "erfc", "exp",
    "exp2", "expm1", "floor", "lgamma", "log", "log10", "log1p", "log2", "reciprocal", "round", "rsqrt", "sin",
    "sinh", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip
_ROUNDS_TO_INTEGER = frozenset(("ceil", "floor", "round", "trunc"))
_OTHER_NAME = {
    "erfinv prims.erf_inv special_erfinv": "erfinv",
    "sigmoid special_expit": "sigmoid",
    "i0 special_i0 special_modified_bessel_i0 prims.bessel_i0": "i0",
    "special_i0e prims.bessel_i0e": "i0e",
    "special_i1 special_modified_bessel_i1 prims.bessel_i1": "i1",
    "special_i1e prims.bessel_i1e": "i1e",
    "special_bessel_j0 prims.bessel_j0": "j0",
    "special_bessel_j1 prims.bessel_j1": "j1",
    "special_bessel_y0": "y0",
    "special_bessel_y1": "y1",
    "special_gammaln": "lgamma",
    "special_erfcx prims.erfcx": "erfcx",
    "special_ndtri prims.ndtri": "ndtri",
    "special_airy_ai": "airy_ai",
    "special_modified_bessel_k0": "k0",
    "special_modified_bessel_k1": "k1",
    "special_scaled_modified_bessel_k0": "k0e",
    "special_scaled_modified_bessel_k1": "k1e",
    "special_digamma special_psi": "digamma",
    "special_erf": "erf",
    "special_erfc": "erfc",
    "special_exp2": "exp2",
    "special_expm1": "expm1",
    "special_log1p": "log1p",
    "fix": "trunc",
}


def _rounding(name: str, a: Scalar) -> Scalar:
    return call(name, a) if a.dtype.is_float else a


def _enter_named(names: str, name: str) -> None:
    is_step = name in _ROUNDS_TO_INTEGER
    _enter(names, partial(_rounding if is_step else call, name), jumps=is_step)


for _name in _SAME_NAME:
    _enter_named(f"{_name} prims.{_name}", _name)
for _names, _name in _OTHER_NAME.items():
    _enter_named(_names, _name)

# Arithmetic.
_enter("add.Tensor add.Scalar prims.add", ar.added, 2)
_enter("sub.Tensor sub.Scalar prims.sub", ar.subtracted, 2)
_enter("rsub.Tensor rsub.Scalar", ar.subtracted_from, 2)
_enter("mul.Tensor mul.Scalar prims.mul", mul, 2)
_enter("div.Tensor div.Scalar prims.div", ar.divided, 2, divides=True)
_enter("div.Tensor_mode div.Scalar_mode", ar.divided, 2, jumps=True, divides=True)
_enter("true_divide.Tensor true_divide.Scalar", ar.divided, 2)
_enter("floor_divide floor_divide.Scalar", ar.divided_down, 2, jumps=True, divides=True)
_enter(
    "remainder.Tensor remainder.Scalar remainder.Scalar_Tensor prims.remainder",
    ar.remainder,
    2,
    jumps=True,
    divides=True,
)
_enter("fmod.Tensor fmod.Scalar prims.fmod", partial(call, "fmod"), 2, jumps=True, divides=True)
_enter("pow.Tensor_Tensor pow.Tensor_Scalar pow.Scalar prims.pow", ar.raised, 2)
_enter("float_power.Tensor_Tensor float_power.Tensor_Scalar float_power.Scalar", ar.raised, 2)
_enter("square", ar.squared)
_enter("neg prims.neg", partial(call, "neg"))
_enter("abs prims.abs", ar.magnitude)
_enter("sign sgn prims.sign", ar.sign_of, jumps=True)
_enter("relu", ar.rectified)
_enter("frac", ar.fraction, jumps=True)
_enter("round.decimals", ar.rounded_to, jumps=True)
_enter("addcmul", ar.multiplied_add, 3)
_enter("prims.fma", ar.fused, 3)
_enter("addcdiv", ar.divided_add, 3)
_enter("lerp.Tensor lerp.Scalar", ar.interpolated, 3)
_enter("clamp clamp.Tensor clip clip.Tensor", ar.clamped, 3)
_enter("clamp_min clamp_min.Tensor", partial(call, "maximum"), 2)
_enter("clamp_max clamp_max.Tensor", partial(call, "minimum"), 2)
_enter("maximum max.other prims.maximum", partial(call, "maximum"), 2)
_enter("minimum min.other prims.minimum", partial(call, "minimum"), 2)
_enter("fmax prims.fmax", ar.larger_number, 2)
_enter("fmin prims.fmin", ar.smaller_number, 2)
_enter("atan2 prims.atan2", partial(call, "atan2"), 2)
_enter("hypot prims.hypot", partial(call, "hypot"), 2)
_enter("copysign.Tensor copysign.Scalar", partial(call, "copysign"), 2)
_enter("logaddexp", ar.log_added, 2)
_enter("logaddexp2", ar.log2_added, 2)
_enter("xlogy.Tensor xlogy.Scalar_Other xlogy.Scalar_Self special_xlogy", ar.times_log, 2)
_enter("special_xlogy.other_scalar special_xlogy.self_scalar", ar.times_log, 2)
_enter("special_xlog1py special_xlog1py.other_scalar special_xlog1py.self_scalar", ar.times_log1p, 2)
_enter("ldexp.Tensor", ar.scaled_by_power, 2)
_enter("heaviside", ar.stepped, 2, jumps=True)
_enter("gcd prims.gcd", partial(call, "gcd"), 2)
_enter("lcm", ar.least_common_multiple, 2)
_enter("conj_physical _conj_physical positive", lambda a: a)
_enter("angle", ar.angle, jumps=True)

# Bits.
_enter("bitwise_not prims.bitwise_not", partial(call, "bitnot"))
_BITWISE: dict[str, Formula] = {"and": partial(call, "bitand"), "or": partial(call, "bitor"), "xor": ar.exclusive_or}
for _name, _bitwise in _BITWISE.items():
    _enter(f"bitwise_{_name}.Tensor bitwise_{_name}.Scalar bitwise_{_name}.Scalar_Tensor", _bitwise, 2)
    _enter(f"__{_name}__.Tensor __{_name}__.Scalar prims.bitwise_{_name}", _bitwise, 2)
for _name, _short, _shift in (("left", "l", ar.shifted_left), ("right", "r", ar.shifted_right)):
    _stem = f"bitwise_{_name}_shift"
    _enter(f"{_stem}.Tensor {_stem}.Tensor_Scalar {_stem}.Scalar_Tensor", _shift, 2)
    _enter(f"__{_short}shift__.Tensor __{_short}shift__.Scalar", _shift, 2)
_enter("prims.shift_left", ar.shifted_left, 2)
_enter("prims.shift_right_arithmetic", ar.shifted_right, 2)

# Tests.
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _test = partial(call, _name)
    _enter(
        f"{_name}.Tensor {_name}.Scalar prims.{_name}", _test, 2, computes_in=PROMOTED, rounds_operands=True, jumps=True
    )
_enter("logical_not", ar.is_false, computes_in=OWN, jumps=True)
_enter("logical_and", ar.are_both_true, 2, computes_in=OWN, jumps=True)
_enter("logical_or", ar.is_either_true, 2, computes_in=OWN, jumps=True)
_enter("logical_xor", ar.is_one_true, 2, computes_in=OWN, jumps=True)
_enter("isnan", is_nan, computes_in=OWN, jumps=True)
_enter("isinf", is_infinite, computes_in=OWN, jumps=True)
_enter("isfinite prims.isfinite", ar.is_finite, computes_in=OWN, jumps=True)
_enter("isposinf", ar.is_positive_infinity, computes_in=OWN, jumps=True)
_enter("isneginf", ar.is_negative_infinity, computes_in=OWN, jumps=True)
_enter("signbit prims.signbit", ar.is_negative, computes_in=OWN)

# Activations.
_enter("gelu", act.gelu)
_enter("gelu_backward", act.gelu_backward, 2)
_enter("silu", act.silu)
_enter("silu_backward", act.silu_backward, 2)
_enter("sigmoid_backward", act.sigmoid_backward, 2)
_enter("tanh_backward", act.tanh_backward, 2)
_enter("threshold", act.threshold, jumps=True)
_enter("threshold_backward", act.threshold_backward, 2, jumps=(1,))
_enter("hardtanh", act.hardtanh)
_enter("hardtanh_backward", act.hardtanh_backward, 2, jumps=(1,))
_enter("relu6", act.relu6)
_enter("hardsigmoid", act.hardsigmoid)
_enter("hardsigmoid_backward", act.hardsigmoid_backward, 2, jumps=(1,))
_enter("hardswish", act.hardswish)
_enter("hardswish_backward", act.hardswish_backward, 2, jumps=(1,))
_enter("leaky_relu", act.leaky_relu)
_enter("leaky_relu_backward", act.leaky_relu_backward, 2, jumps=(1,))
_enter("_prelu_kernel", act.prelu, 2)
_enter("elu", act.elu)
_enter("elu_backward", act.elu_backward, (0, 5))
_enter("celu", act.celu)
_enter("selu", act.selu)
_enter("softplus", act.softplus)
_enter("softplus_backward", act.softplus_backward, 2)
_enter("mish", act.mish)
_enter("mish_backward", act.mish_backward, 2)
_enter("softshrink", act.softshrink)
_enter("hardshrink", act.hardshrink, jumps=True)
_enter("softshrink_backward hardshrink_backward", act.shrink_backward, 2, jumps=(1,))
_enter("log_sigmoid_backward", act.log_sigmoid_backward, 3)
_enter("logit special_logit", act.logit)
_enter("logit_backward", act.logit_backward, 2)

# Special functions.
_enter("special_entr", sp.entropy)
_enter("sinc special_sinc", sp.sinc)
_enter("special_ndtr", sp.normal_cdf)
_enter("special_spherical_bessel_j0 prims.spherical_bessel_j0", sp.spherical_bessel_j0)
_enter("deg2rad", sp.radians)
_enter("rad2deg", sp.degrees)
_enter("mvlgamma special_multigammaln", sp.multigamma)
_enter("special_log_ndtr", sp.log_normal_cdf)
_enter("polygamma special_polygamma", sp.polygamma, (1,))
_enter("special_zeta special_zeta.other_scalar special_zeta.self_scalar prims.zeta", partial(call, "zeta"), 2)
_enter("igamma special_gammainc", partial(call, "igamma"), 2)
_enter("igammac special_gammaincc", partial(call, "igammac"), 2)
_POLYNOMIALS: dict[str, Formula] = {
    "hermite_polynomial_h": partial(call, "hermite_h"),
    "hermite_polynomial_he": partial(call, "hermite_he"),
    "laguerre_polynomial_l": partial(call, "laguerre_l"),
    "legendre_polynomial_p": partial(call, "legendre_p"),
    **{f"chebyshev_polynomial_{kind}": partial(call, f"chebyshev_{kind}") for kind in "tuvw"},
    **{f"shifted_chebyshev_polynomial_{kind}": partial(sp.shifted, f"chebyshev_{kind}") for kind in "tuvw"},
}
for _name, _polynomial in _POLYNOMIALS.items():
    _enter(f"special_{_name} special_{_name}.x_scalar special_{_name}.n_scalar", _polynomial, 2)


def _register(name: str, row: Elementwise) -> None:
    @lowers(name)
    def lower(b: Builder, *args: object, **kwargs: object) -> Tensor:
        return lower_elementwise(b, row, b.fake, args, kwargs)


for _name, _row in ELEMENTWISE.items():
    _register(_name, _row)


@lowers(
    "aten.where.self",
    "aten.where.ScalarOther",
    "aten.where.ScalarSelf",
    "aten.where.Scalar",
    "prims.where.default",
)
def where(b: Builder, condition: Tensor, yes: Element, no: Element) -> Tensor:
    fake = b.fake
    shape, result = sizes_of(fake.shape), dtype_of(fake.dtype)
    refuse_opaque(result)

    def body(point: Point) -> Scalar:
        test = is_true(element_at(condition, shape, point, None))
        return choose(test, *(element_at(element, shape, point, result.compute) for element in (yes, no)))

    return b.loop(shape, result, body)


@lowers("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(b: Builder, x: Tensor, mask: Tensor, value: Element) -> Tensor:
    return where(b, mask, value, x)


@lowers("aten.nan_to_num.default")
def nan_to_num(
    b: Builder, x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    dtype = b.fake.dtype
    refuse_opaque(x.dtype)
    if not x.dtype.is_float:
        return b.loop(x.shape, x.dtype, x.at)
    limits = torch.finfo(dtype)
    highest = limits.max if posinf is None else posinf
    lowest = limits.min if neginf is None else neginf

    def body(point: Point) -> Scalar:
        value = sc.cast(x.stored_at(point), x.dtype.compute)
        finite = choose(ar.is_positive_infinity(value), highest, value)
        finite = choose(ar.is_negative_infinity(value), lowest, finite)
        return choose(is_nan(value), 0.0 if nan is None else nan, finite)

    return b.loop(x.shape, x.dtype, body)


@lowers("aten.nextafter.default", "prims.nextafter.default")
def nextafter(b: Builder, a: Tensor, towards: Tensor) -> Tensor:
    fake = b.fake
    dtype = dtype_of(fake.dtype)
    if not dtype.is_narrow_float:
        return lower_elementwise(b, Elementwise(partial(call, "nextafter"), (0, 1)), fake, (a, towards), {})
    if dtype.bits != 16:
        raise Unlowered(f"the next number of {dtype}")
    shape = sizes_of(fake.shape)

    def body(point: Point) -> Scalar:
        return ar.next_narrow(*(element_at(operand, shape, point, dtype) for operand in (a, towards)))

    return b.loop(shape, dtype, body, strides=packed_strides(fake))


@lowers("aten.frexp.Tensor", "prims.frexp.default")
def frexp(b: Builder, x: Tensor) -> Lowered:
    mantissa, exponent = b.fake
    refuse_opaque(x.dtype)
    parts = [
        b.loop(x.shape, dtype_of(fake.dtype), body, strides=packed_strides(fake))
        for fake, body in (
            (mantissa, lambda point: ar.split_float(sc.cast(x.stored_at(point), x.dtype.compute))[0]),
            (exponent, lambda point: ar.split_float(sc.cast(x.stored_at(point), x.dtype.compute))[1]),
        )
    ]
    return parts[0], parts[1]


@lowers("aten.log_sigmoid_forward.default")
def log_sigmoid_forward(b: Builder, x: Tensor) -> Lowered:
    """Returns the result and the buffer of the backward, which CUDA leaves empty."""
    result, buffer = b.fake
    out = lower_elementwise(b, Elementwise(act.log_sigmoid, (0,)), result, (x,), {})
    if not buffer.numel():
        return out, b.loop(sizes_of(buffer.shape), x.dtype, lambda point: sc.const(0, x.dtype.compute))
    return out, b.loop(x.shape, x.dtype, lambda point: exp(neg(absolute(x.value_at(point)))))


@lowers("aten.glu.default")
def glu(b: Builder, x: Tensor, dim: int = -1) -> Tensor:
    fake = b.fake
    axis = dim % x.ndim
    half = x.shape[axis] // 2

    def body(point: Point) -> Scalar:
        beyond = (*point[:axis], point[axis] + half, *point[axis + 1 :])
        return act.glu_gate(x.value_at(point), x.value_at(beyond))

    return b.loop(sizes_of(fake.shape), dtype_of(fake.dtype), body)
