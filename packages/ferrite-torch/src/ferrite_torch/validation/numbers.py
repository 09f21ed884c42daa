"""Checks of numbers that ops are given: parameters of distributions, divisors, exponents, extents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any

import torch

from ferrite_torch.rewrites.numbers.integer_bounds import is_converted
from ferrite_torch.validation.registry import checks

Checks = Iterator[tuple[Any, str]]


def _is_whole(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and not (x.dtype.is_floating_point or x.dtype.is_complex)


# --- random numbers ---------------------------------------------------------------------------------------------------


@checks("bernoulli.float", "bernoulli.p")
def _bernoulli(p: Any, **_: Any) -> Checks:
    yield 0 <= p <= 1, f"bernoulli_ expects p to be in [0, 1], but got p={p}"


@checks("bernoulli.default")
def _bernoulli_of_types(self: torch.Tensor, **_: Any) -> Checks:
    yield self.dtype.is_floating_point, f'"bernoulli_tensor_cpu_p_" not implemented for {self.dtype}'


@checks("normal", "normal_functional")
def _normal(std: Any = 1.0, **_: Any) -> Checks:
    if not isinstance(std, torch.Tensor):
        yield std >= 0, f"normal expects std >= 0.0, but found std {std}"


@checks("log_normal")
def _log_normal(std: Any, **_: Any) -> Checks:
    yield std > 0, f"log_normal_ expects std > 0.0, but found std={std}"


@checks("cauchy")
def _cauchy(sigma: Any, **_: Any) -> Checks:
    yield sigma > 0, f"cauchy_ expects sigma > 0.0, but found sigma={sigma}"


@checks("exponential")
def _exponential(lambd: Any, **_: Any) -> Checks:
    yield lambd > 0, f"exponential_ expects lambda > 0.0, but found lambda={lambd}"


@checks("geometric")
def _geometric(p: Any, **_: Any) -> Checks:
    yield 0 < p < 1, f"geometric_ expects p to be in (0, 1), but got p={p}"


@checks("uniform")
def _uniform(self: torch.Tensor, **given: Any) -> Checks:
    low, high = given["from"], given["to"]
    yield low <= high, f"uniform_ expects to return a [from, to) range, but found from={low} > to={high}"
    limits = torch.finfo(self.dtype) if self.dtype.is_floating_point else None
    for bound in (low, high):
        inside = limits is None or limits.min <= bound <= limits.max
        yield inside, f"uniform_: a bound is out of bounds for {self.dtype}"
    yield limits is None or high - low <= limits.max, "uniform_ expects to-from <= the largest number of its type"


@checks("random")
def _random(self: torch.Tensor, **given: Any) -> Checks:
    low, high = given.get("from", 0), given.get("to")
    if high is not None:
        yield low < high, f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}"


@checks("randint", "randint_like")
def _randint(high: Any, low: Any = 0, **_: Any) -> Checks:
    if not isinstance(high, torch.Tensor):
        yield low < high, f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}"


@checks("randperm")
def _randperm(n: Any, dtype: Any = None, out: Any = None, **_: Any) -> Checks:
    """Yields that there are so many different numbers of the type."""
    yield n >= 0, f"n must be non-negative, got {n}"
    kind = dtype if out is None else out.dtype
    if isinstance(kind, torch.dtype) and kind is not torch.bool:  # a number where one of torch's own ops asks
        most = int(2 / torch.finfo(kind).eps) + 1 if kind.is_floating_point else torch.iinfo(kind).max
        yield n <= most, f"n is too large for the type {kind}"


@checks("native_dropout")
def _dropout(p: Any, train: Any, **_: Any) -> Checks:
    yield train is False or 0 <= p <= 1, f"dropout probability has to be between 0 and 1, but got {p}"


@checks("multinomial")
def _multinomial(self: torch.Tensor, num_samples: Any, replacement: Any = False, **_: Any) -> Checks:  # noqa: FBT002
    yield self.dtype.is_floating_point, "multinomial only supports floating-point dtypes for input"
    yield 0 < self.dim() <= 2, "prob_dist must be 1 or 2 dim"
    yield num_samples > 0, "cannot sample n_sample <= 0 samples"
    enough = replacement or (self.dim() and num_samples <= self.shape[-1])
    yield enough, "cannot sample n_sample > prob_dist.size(-1) samples without replacement"
    yield self.dim() and self.shape[-1] <= 1 << 24, "number of categories cannot exceed 2^24"


@checks("rrelu_with_noise", "rrelu_with_noise_functional")
def _rrelu(lower: Any, upper: Any, **_: Any) -> Checks:
    yield lower <= upper, "Lower bound should be less than or equal to the upper bound"


# --- arithmetic -------------------------------------------------------------------------------------------------------


@checks("pow.Tensor_Scalar")
def _power(self: torch.Tensor, exponent: Any, **_: Any) -> Checks:
    negative = _is_whole(self) and isinstance(exponent, (int, torch.SymInt)) and not isinstance(exponent, bool)
    yield not negative or exponent >= 0, "Integers to negative integer powers are not allowed."


@checks("floor_divide", "remainder", "fmod", "div.Scalar_mode")
def _division(self: Any, other: Any, rounding_mode: Any = "floor", **_: Any) -> Checks:
    """Yields that no integer is divided by the number 0; tensors of divisors are looked at while kernels run."""
    if not _is_whole(self) or isinstance(other, torch.Tensor) or rounding_mode is None:
        return
    if isinstance(other, (int, torch.SymInt)) and self.device.type == "cpu" and self.numel() != 0:
        yield other != 0, "ZeroDivisionError"


@checks("complex", "polar")
def _complex(out: torch.Tensor | None = None, **parts: Any) -> Checks:
    first = parts.get("real", parts.get("abs"))
    yield (
        out is None or first is None or out.dtype == first.dtype.to_complex(),
        "Expected object of another scalar type",
    )


@checks("clamp", "clip", "clamp_min", "clamp_max")
def _clamp(self: torch.Tensor, min: Any = None, max: Any = None, **_: Any) -> Checks:  # noqa: A002  # its own names
    yield min is not None or max is not None, "torch.clamp: At least one of 'min' or 'max' must not be None"
    for bound in (min, max):
        yield is_converted(self, bound), f"value {bound} cannot be converted to type {self.dtype} without overflow"


@checks("linspace", "logspace")
def _linspace(steps: Any, **_: Any) -> Checks:
    yield steps >= 0, "number of steps must be non-negative"


@checks("softshrink")
def _softshrink(lambd: Any, **_: Any) -> Checks:
    yield lambd >= 0, f"lambda must be greater or equal to 0, but found to be {lambd}"


@checks("hardtanh")
def _hardtanh(self: torch.Tensor, min_val: Any, **_: Any) -> Checks:
    yield not (self.dtype is torch.uint8 and min_val < 0), "cannot do hardtanh on an unsigned type with negative limits"


@checks("addcdiv")
def _addcdiv(tensor1: torch.Tensor, tensor2: torch.Tensor, **_: Any) -> Checks:
    yield not (_is_whole(tensor1) and _is_whole(tensor2)), "Integer division with addcdiv is no longer supported"


@checks("histc")
def _histc(bins: Any, min: Any, max: Any, **_: Any) -> Checks:  # noqa: A002  # the op's own names
    yield bins > 0, "histc: bins must be > 0"
    yield isfinite(min) and isfinite(max), f"histc: range of [{min}, {max}] is not finite"
    yield min <= max, "histc: max must be larger than min"


# --- windows ----------------------------------------------------------------------------------------------------------


def _all_positive(values: Any) -> bool:
    return all(value > 0 for value in (values if isinstance(values, Sequence) else [values]))


def _all_natural(values: Any) -> bool:
    return all(value >= 0 for value in (values if isinstance(values, Sequence) else [values]))


@checks("im2col", "col2im")
def _windows(kernel_size: Any, dilation: Any, padding: Any, stride: Any, **_: Any) -> Checks:
    for name, values in (("kernel_size", kernel_size), ("dilation", dilation), ("stride", stride)):
        yield _all_positive(values), f"{name} should be greater than zero, but got {list(values)}"
    yield _all_natural(padding), f"padding should be non-negative, but got {list(padding)}"


@checks("avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices")
def _pool(kernel_size: Any, stride: Any, padding: Any, divisor_override: Any = None, **given: Any) -> Checks:
    yield _all_positive(kernel_size), "kernel size should be greater than zero"
    yield _all_positive(stride), "stride should not be zero"
    yield _all_positive(given.get("dilation", 1)), "dilation should be greater than zero"
    yield _all_natural(padding), "pad must be non-negative"
    rank = max(len(kernel_size), len(padding))
    sides = [list(values) * rank if len(values) == 1 else list(values) for values in (kernel_size, padding)]
    yield all(2 * pad <= size for size, pad in zip(*sides, strict=True)), "pad should be at most half of kernel size"
    yield divisor_override is None or divisor_override != 0, "divisor must be not zero"


@checks("convolution")
def _convolution(  # the op's own arguments
    input: torch.Tensor,  # noqa: A002
    weight: torch.Tensor,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: Any,
    groups: Any,
    **_: Any,
) -> Checks:
    yield _all_natural(padding), "negative padding is not supported"
    yield _all_positive(stride), "non-positive stride is not supported"
    yield _all_positive(dilation), "dilation should be greater than zero"
    yield groups > 0, "non-positive groups is not supported"
    yield input.dim() == weight.dim(), f"Expected {weight.dim()}-dimensional input"
    yield weight.shape[0] % groups == 0, "expected weight to be divisible by groups at dimension 0"
    channels = weight.shape[0] if transposed else weight.shape[1] * groups
    yield input.shape[1] == channels, f"expected input to have {channels} channels, but got {input.shape[1]}"
    results = weight.shape[1] * groups if transposed else weight.shape[0]
    yield bias is None or (bias.dim() == 1 and bias.shape[0] == results), f"expected bias with {results} elements"
    yield input.dtype == weight.dtype, "Input type and weight type should be the same"


# --- images -----------------------------------------------------------------------------------------------------------

_RESAMPLINGS = """
    upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d
    _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d
    _upsample_bilinear2d_aa _upsample_bicubic2d_aa _upsample_lanczos2d_aa
""".split()  # noqa: SIM905  # a list of words reads better


@checks(*(name for name in _RESAMPLINGS if hasattr(torch.ops.aten, name)))
def _resampling(output_size: Any, scale_factors: Any = None, **given: Any) -> Checks:
    """Yields that there are images to take elements from, and that something becomes of them."""
    image = given["self"] if "self" in given else given["input"]
    sides = image.shape[2:]
    sizes = output_size or [side * scale for side, scale in zip(sides, scale_factors or (), strict=False)]
    filled = all(side > 0 for side in sides) and all(size >= 1 for size in sizes)
    yield filled, f"Input and output sizes should be greater than 0, but got input {list(sides)} output {list(sizes)}"


@checks("adaptive_avg_pool2d", "_adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool3d")
def _adaptive_pool(self: torch.Tensor, output_size: Any, **_: Any) -> Checks:
    rank = len(output_size)
    yield all(side > 0 for side in self.shape[-rank:]), "Expected input to have non-zero size for non-batch dimensions"


@checks("grid_sampler_2d", "grid_sampler_3d", "_grid_sampler_2d_cpu_fallback")
def _grid_sampler(input: torch.Tensor, **_: Any) -> Checks:  # noqa: A002  # the op's own name
    yield all(side > 0 for side in input.shape[2:]), "expected input to have non-empty spatial dimensions"
