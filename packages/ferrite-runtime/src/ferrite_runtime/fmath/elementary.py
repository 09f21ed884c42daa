"""Elementary functions, and random numbers.

Compiled, the functions bind to the device library; interpreted, the names in `interpreter.device_math` take their
place, because Triton's interpreter has no device library.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from ferrite_runtime.fmath.machine import is_for_nvidia

# Kernels know the package only.

_INF = tl.constexpr(float("inf"))

# --- elementary functions -------------------------------------------------------------------------------------------


@triton.jit
def _finite(x):
    # Infinities become NaN: torch's Bessel functions have no limits there.
    return tl.where(tl.abs(x) == _INF, float("nan"), x)


@triton.jit
def acos(x):
    return libdevice.acos(x)


@triton.jit
def acosh(x):
    return libdevice.acosh(x)


@triton.jit
def asin(x):
    return libdevice.asin(x)


@triton.jit
def asinh(x):
    return libdevice.asinh(x)


@triton.jit
def atan(x):
    return libdevice.atan(x)


@triton.jit
def atan2(y, x):
    return libdevice.atan2(y, x)


@triton.jit
def atanh(x):
    return libdevice.atanh(x)


@triton.jit
def ceil(x):
    return tl.ceil(x)


@triton.jit
def copysign(x, sign):
    return libdevice.copysign(x, sign)


@triton.jit
def cos(x):
    return libdevice.cos(x)


@triton.jit
def cosh(x):
    return libdevice.cosh(x)


@triton.jit
def erf(x):
    return libdevice.erf(x)


@triton.jit
def erf_narrow(x):
    """Returns erf to 4e-7 relative error, for float32 values that came from, or go to, narrower floats.

    Fewer instructions than the exact one: no choice between coefficients. The rational function is our own fit;
    ``tools/fit_erf.py`` makes it and states its error. It passes one behind 3.92, by more than it errs at 4.1, so that
    from there on the result is just one: ``x * (1 + erf(x))`` is no small multiple of a large negative ``x``.
    """
    x = tl.minimum(tl.maximum(x, -4.1, propagate_nan=tl.PropagateNan.ALL), 4.1, propagate_nan=tl.PropagateNan.ALL)
    t = x * x
    upper = 1.992391318594855e-08 * t - 1.957803760888055e-06
    upper = upper * t + 0.0001418477768311277
    upper = upper * t + 0.0037015408743172884
    upper = upper * t + 0.05057314410805702
    upper = upper * t + 0.19992323219776154
    upper = upper * t + 1.1283791065216064
    lower = 0.0009560188627801836 * t + 0.014353078790009022
    lower = lower * t + 0.11499786376953125
    lower = lower * t + 0.5105090141296387
    lower = lower * t + 1.0
    y = fast_divide(x * upper, lower)
    return tl.minimum(tl.maximum(y, -1.0, propagate_nan=tl.PropagateNan.ALL), 1.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def erfc(x):
    return libdevice.erfc(x)


@triton.jit
def erfinv(x):
    return libdevice.erfinv(x)


@triton.jit
def erfcx(x):
    return libdevice.erfcx(x)


@triton.jit
def exp(x):
    return libdevice.exp(x)


@triton.jit
def exp2(x):
    return tl.exp2(x)


@triton.jit
def expm1(x):
    return libdevice.expm1(x)


@triton.jit
def product(x, y):
    """Returns x * y of float32 or float64, rounded: the compiler does not make one operation of it and a sum."""
    if is_for_nvidia():
        if x.dtype == tl.float64:
            return tl.inline_asm_elementwise(
                "mul.rn.f64 $0, $1, $2;", "=d,d,d", [x, y], tl.float64, is_pure=True, pack=1
            )
        else:
            return tl.inline_asm_elementwise(
                "mul.rn.f32 $0, $1, $2;", "=f,f,f", [x, y], tl.float32, is_pure=True, pack=1
            )
    else:
        return x * y


@triton.jit
def whole_to_half(x):
    """Returns float32 numbers as float16, infinite where they are too large.

    LLVM makes one conversion of those from an integer and to float16, and takes what comes of it to be finite: widened
    again it would be the integer. So it must not see the second one.
    """
    if is_for_nvidia():
        return tl.inline_asm_elementwise("cvt.rn.f16.f32 $0, $1;", "=h,f", [x], tl.float16, is_pure=True, pack=1)
    else:
        return x.to(tl.float16)


@triton.jit
def fast_divide(x, y):
    """Returns x / y to 2 ulp for float32 with 2**-126 < |y| < 2**126."""
    return libdevice.fast_dividef(x, y)


@triton.jit
def fast_reciprocal(x):
    """Returns 1 / x to 1 ulp for float32; 0 where that is below 2**-126."""
    if is_for_nvidia():
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        return fast_divide(1.0, x)


@triton.jit
def fast_exp(x):
    """Returns exp(x) as `tl.exp` does for float32, but for results below 2**-126, which become 0."""
    return libdevice.fast_expf(x)


@triton.jit
def floor(x):
    return tl.floor(x)


@triton.jit
def fmod(x, y):
    return libdevice.fmod(x, y)


@triton.jit
def hypot(x, y):
    return libdevice.hypot(x, y)


@triton.jit
def i0(x):
    return libdevice.cyl_bessel_i0(_finite(x))


@triton.jit
def i1(x):
    return libdevice.cyl_bessel_i1(_finite(x))


@triton.jit
def isinf(x):
    return tl.abs(x) == _INF


@triton.jit
def isnan(x):
    return x != x


@triton.jit
def ldexp(x, n):
    return libdevice.ldexp(x, n)


@triton.jit
def lgamma(x):
    return libdevice.lgamma(x)


@triton.jit
def log(x):
    return libdevice.log(x)


@triton.jit
def log10(x):
    return libdevice.log10(x)


@triton.jit
def log1p(x):
    return libdevice.log1p(x)


@triton.jit
def log2(x):
    return libdevice.log2(x)


@triton.jit
def nextafter(x, towards):
    """Returns the neighbour of x in a direction, also where it is denormal: the library's function flushes those."""
    integer: tl.constexpr = tl.int64 if x.dtype == tl.float64 else tl.int32
    sign: tl.constexpr = x.dtype.primitive_bitwidth - 1
    bits, end = x.to(integer, bitcast=True), towards.to(integer, bitcast=True)
    step = tl.where((towards > x) == (x > 0.0), 1, -1)
    from_zero = ((end >> sign) << sign) | 1
    moved = tl.where(x == 0.0, from_zero, bits + step)
    found = tl.where(x == towards, end, moved).to(x.dtype, bitcast=True)
    return tl.where((x != x) | (towards != towards), x + towards, found)


@triton.jit
def pow(x, y):
    return libdevice.pow(x, y)


@triton.jit
def round(x):
    # Ties go to even, as everywhere in torch.
    return libdevice.nearbyint(x)


@triton.jit
def rsqrt(x):
    return tl.rsqrt(x)


@triton.jit
def sin(x):
    return libdevice.sin(x)


@triton.jit
def sinh(x):
    return libdevice.sinh(x)


@triton.jit
def sqrt(x):
    # The plain float32 square root is an approximation on NVIDIA GPUs.
    if x.dtype == tl.float32:
        return tl.sqrt_rn(x)
    else:
        return tl.sqrt(x)


@triton.jit
def tan(x):
    return libdevice.tan(x)


@triton.jit
def tanh(x):
    """Returns the hyperbolic tangent, of float32 to 2 ulp without the branch that the device library has.

    It is 1 - 2 e / (1 + e) for e = exp(-2 |x|); up to 0.7, where that cancels, it is an odd polynomial of degree 11 of
    least relative error.
    """
    if x.dtype == tl.float32:
        power = tl.exp2(tl.abs(x) * -2.8853900817779268)
        large = tl.fma(power * -2.0, fast_reciprocal(1.0 + power), 1.0)
        square = x * x
        series = tl.fma(square, -0.005035477, 0.019966537)
        series = tl.fma(square, series, -0.053505674)
        series = tl.fma(square, series, 0.13328202)
        series = tl.fma(square, series, -0.3333314)
        signed = (float_bits(large) | (float_bits(x) & -2147483648)).to(tl.float32, bitcast=True)
        return tl.where(tl.abs(x) < 0.7, tl.fma(x * square, series, x), signed)
    else:
        return libdevice.tanh(x)


@triton.jit
def trunc(x):
    return libdevice.trunc(x)


@triton.jit
def float_bits(x):
    """Returns the bits of a float as a signed integer of its width."""
    if x.dtype.primitive_bitwidth == 64:
        return x.to(tl.int64, bitcast=True)
    elif x.dtype.primitive_bitwidth == 32:
        return x.to(tl.int32, bitcast=True)
    elif x.dtype.primitive_bitwidth == 16:
        return x.to(tl.int16, bitcast=True)
    else:
        return x.to(tl.int8, bitcast=True)


@triton.jit
def sigmoid(x):
    """Returns 1 / (1 + exp(-x)), of float32 as `tl.sigmoid` does with a third of its instructions.

    Those that it leaves out care for exp(-x) below 2**-126, which 1 swallows anyway, and for results below 2**-126,
    which become 0: between -88.7, from where on exp(-x) is infinite, and -87.3.
    """
    if x.dtype == tl.float32:
        return fast_reciprocal(1.0 + fast_exp(x * -1.0))
    else:
        return tl.sigmoid(x)


@triton.jit
def signbit(x):
    return float_bits(x) < 0


@triton.jit
def wide_unsigned(x, dtype: tl.constexpr):
    """Returns integers of 8 or 16 bits as unsigned ones of 32 or 64 bits, negative ones modulo the size of the type.

    What becomes a float next must be made from all of these bits. LLVM's code generator for GPUs of NVIDIA makes it of
    the 16 or 32 lowest where it sees that the others are copies of a sign, so that -1 is 65535.0; it does not see
    through an instruction that stands here as text.
    """
    if is_for_nvidia():
        narrow = x.to(tl.int32)
        if dtype == tl.uint32:
            return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [narrow], tl.uint32, is_pure=True, pack=1)
        else:
            text: tl.constexpr = "cvt.s64.s32 $0, $1;"
            return tl.inline_asm_elementwise(text, "=l,r", [narrow], tl.uint64, is_pure=True, pack=1)
    else:
        return x.to(dtype)


@triton.jit
def to_float8e5(x):
    """Rounds float32 to nearest even; what rounds to 2**16 or more becomes infinite, as in torch.

    The instruction returns the largest number for it.
    """
    rounded = x.to(tl.float8e5).to(tl.uint8, bitcast=True)
    sign = (x.to(tl.uint32, bitcast=True) >> 24).to(tl.uint8) & 0x80
    return tl.where(tl.abs(x) >= 61440.0, sign | 0x7C, rounded).to(tl.float8e5, bitcast=True)


# --- random numbers: philox 4x32-10, a pure function of (seed, offset) ----------------------------------------------


@triton.jit
def rand(seed, offset):
    """Returns float32 numbers, uniform in [0, 1): the word ``offset % 4`` of the counter ``offset // 4``."""
    a, b, c, d = tl.randint4x(seed, offset >> 2)
    position = offset & 3
    word = tl.where(position < 2, tl.where(position == 0, a, b), tl.where(position == 2, c, d))
    return tl.uint_to_uniform_float(word)


@triton.jit
def rand4(seed, quarter):
    """Returns ``rand`` at the offsets ``4 * quarter + i`` as a tile with two more axes, of extents 2 and 2, for i."""
    a, b, c, d = tl.rand4x(seed, quarter)
    return tl.join(tl.join(a, c), tl.join(b, d))


@triton.jit
def randn(seed, offset):
    """Returns float32 numbers of the standard normal distribution."""
    return tl.randn(seed, offset)


@triton.jit
def randint64(seed, offset, low, high):
    """Returns int64 numbers in [low, high), by remainder, as torch draws them."""
    lower, upper, _, _ = tl.randint4x(seed, offset)
    bits = (upper.to(tl.uint32, bitcast=True).to(tl.uint64) << 32) | lower.to(tl.uint32, bitcast=True).to(tl.uint64)
    low64 = (offset * 0).to(tl.int64) + low
    span = ((offset * 0).to(tl.int64) + high - low64).to(tl.uint64, bitcast=True)
    return low64 + (bits % span).to(tl.int64, bitcast=True)
