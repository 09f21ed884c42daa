"""Arithmetic, comparisons, choices, reductions, scans, products and new tensors, as lines of the fuzzer's programs.

Lines whose result jumps where a number changes by a rounding (comparisons, rounding, sorting, casts to integers) read
only numbers that are exact on every way through the program, so that no two right compilers differ.
"""

from __future__ import annotations

import torch

from fuzz_pool import FLOATS, INTEGERS, Line, Pool, broadcasts, is_float, is_number, listed, operation

UNARY = (
    "{0}.sin()", "{0}.cos()", "{0}.tanh()", "{0}.sigmoid()", "{0}.clamp(-4, 4).exp()", "F.gelu({0})", "F.silu({0})",
    "F.softplus({0})", "{0}.abs().log1p()", "{0}.erf()", "({0}.abs() + 1).rsqrt()", "({0}.abs() + 1).sqrt()",
    "1 / ({0}.abs() + 1)", "F.elu({0})", "{0}.atan()", "F.mish({0})", "{0}.expm1().clamp(max=8)", "F.hardtanh({0})",
    "F.leaky_relu({0}, 0.1)", "({0}.abs() + 0.5).log()", "{0} * 0.3", "{0} / 3", "({0}.abs() + 1) ** 1.5",
    "{0} + 0.1", "{0} * 1.7 - {0}", "F.hardswish({0})", "{0}.asinh()",
)  # fmt: skip
EXACT_UNARY = (
    "-{0}", "{0}.abs()", "{0} * 2", "{0} + 1", "1 - {0}", "{0}.clamp(-1, 1)", "{0}.square().clamp(max=64)", "{0} * 0.5",
    "torch.relu({0})", "{0}.clone()", "{0}.contiguous()", "torch.zeros_like({0})", "torch.ones_like({0})", "{0} - 0.25",
    "torch.full_like({0}, 2.5)", "{0}.nan_to_num()", "{0} * True",
)  # fmt: skip
JUMPS = (
    "{0}.floor()", "{0}.ceil()", "{0}.round()", "{0}.trunc()", "{0}.sign()", "{0} > 0", "{0} <= 0.25", "{0} == 0",
    "torch.heaviside({0}, torch.ones_like({0}))", "{0} != 1", "{0}.frac()", "{0}.isnan()", "{0}.signbit()",
    "{0}.to(torch.int64)", "{0}.to(torch.int32)", "torch.remainder({0}, 2)", "torch.fmod({0}, 1.5)", "{0} // 0.5",
    "{0}.clamp(-100, 100).to(torch.int8)", "{0}.clamp(0, 200).to(torch.uint8)", "{0}.to(torch.int16)", "{0}.isinf()",
    "{0}.bool()", "{0}.logical_not()", "({0} * 1000).clamp(-32768, 32768).long()", "torch.isfinite({0} * 1e30)",
)  # fmt: skip
INTEGER_UNARY = (
    "{0} // 3", "{0} % 5", "-{0}", "{0} & 7", "{0} | 3", "{0} ^ 5", "~{0}", "{0} << 1", "{0} >> 1", "{0}.abs()",
    "{0} * 3 % 101", "torch.fmod({0}, 4)", "{0}.clamp(-6, 9)", "{0} > 2", "{0} == 1", "{0} * 3", "{0} + 100",
    "torch.div({0}, -3, rounding_mode='floor')", "torch.div({0}, 7, rounding_mode='trunc')", "{0}.sign()", "{0} / 4",
    "{0}.to(torch.bool)", "{0}.remainder(-4)", "{0}.clamp(1, 9)", "{0} >= 5", "{0} - 1", "{0}.clone()", "{0}.square()",
    "({0} % 100) * 1500000000", "{0} * {0}", "torch.bitwise_not({0})", "{0} != 3", "{0}.logical_not()",
    "{0}.long() * 3037000500 + 1", "{0} // 2 * 2 == {0}", "torch.full_like({0}, 7)", "torch.zeros_like({0})",
)  # fmt: skip
BOOL_UNARY = (
    "~{0}", "{0}.to(torch.float32)", "{0}.to(torch.int64)", "{0}.any()", "{0}.all()", "{0}.sum()",
    "{0}.to(torch.uint8)",
    "{0} * 2", "{0}.half()", "{0}.cumsum(-1)", "{0} + 0.5",
)  # fmt: skip
BINARY = (
    "{0} / ({1}.abs() + 1)", "torch.hypot({0}, {1})", "torch.atan2({0}, {1}.abs() + 1)",
    "torch.logaddexp({0}, {1})", "{0}.lerp({1}, 0.3)", "torch.addcdiv({0}, {1}, {1}.abs() + 2)", "({0} - {1}).tanh()",
    "F.smooth_l1_loss({0}, {1}, reduction='none')", "torch.xlogy({0}, {1}.abs() + 1)", "{0} * 0.7 + {1} * 0.3",
)  # fmt: skip
EXACT_BINARY = (
    "{0} + {1}", "{0} - {1}", "torch.maximum({0}, {1})", "torch.minimum({0}, {1})", "({0} * {1}).clamp(-64, 64)",
    "torch.add({0}, {1}, alpha=2)", "torch.where({0}.isnan(), {0}, {1})", "torch.addcmul({0}, {0}, {1}).clamp(-64, 64)",
    "torch.copysign({0}, {1} + 0.5)", "torch.fmax({0}, {1})", "torch.logical_or({0} == 8, {1} == 8)",
)  # fmt: skip
EXACT_COMPARISONS = ("{0} > {1}", "{0} == {1}", "torch.logical_and({0}, {1})", "{0} <= {1}")
INTEGER_BINARY = (
    "{0} & {1}", "{0} | {1}", "{0} ^ {1}", "{0} // ({1}.abs() + 1)", "{0} % ({1}.abs() + 2)", "{0} > {1}", "{0} == {1}",
    "torch.fmod({0}, {1}.abs() + 1)", "{0} << ({1} & 3)", "{0} >> ({1} & 3)", "({0} * {1}) % 1009", "{0} * {1}",
    "{0} + {1}", "{0} - {1}", "torch.maximum({0}, {1})", "torch.minimum({0}, {1})", "{0} <= {1}", "{0} < {1}",
    "torch.div({0}, {1}.clamp(1, 9), rounding_mode='floor')",
)  # fmt: skip
BOOL_BINARY = ("{0} & {1}", "{0} | {1}", "{0} ^ {1}", "{0} == {1}", "{0} + {1}", "{0} * {1}", "{0} > {1}")


@operation(12)
def unary(pool: Pool) -> Line | None:
    name = pool.name()
    if name is None:
        return None
    x = pool.tensors[name]
    if not is_float(x):
        return Line(pool.rng.choice(BOOL_UNARY if x.dtype is torch.bool else INTEGER_UNARY), (name,))
    return Line(pool.rng.choice(EXACT_UNARY if pool.rng.random() < 0.4 else UNARY), (name,))


@operation(5)
def jump(pool: Pool) -> Line | None:
    name = pool.name(is_float, exact=True)
    return None if name is None else Line(pool.rng.choice(JUMPS), (name,))


@operation(12)
def binary(pool: Pool) -> Line | None:
    first = pool.name()
    if first is None:
        return None
    x = pool.tensors[first]
    second = pool.name(broadcasts(x)) or first
    if pool.rng.random() < 0.5:
        first, second = second, first
    if not is_float(x):
        return Line(pool.rng.choice(BOOL_BINARY if x.dtype is torch.bool else INTEGER_BINARY), (first, second))
    chosen = EXACT_BINARY if pool.rng.random() < 0.5 else BINARY
    if not pool.is_inexact(first) and not pool.is_inexact(second):
        chosen = (*chosen, *EXACT_COMPARISONS)
    elif chosen is EXACT_BINARY:
        chosen = chosen[:-1]
    return Line(pool.rng.choice(chosen), (first, second))


@operation(5)
def mixed(pool: Pool) -> Line | None:
    """Returns arithmetic on tensors of two dtypes: what promotion makes of it."""
    first, second = pool.name(is_number), pool.name(is_number)
    if first is None or second is None:
        return None
    x, y = pool.tensors[first], pool.tensors[second]
    if not broadcasts(x)(torch.empty_like(y, dtype=x.dtype)):
        return None
    return Line(pool.rng.choice(("{0} + {1}", "{0} - {1}", "torch.maximum({0}, {1})", "{0} * {1}")), (first, second))


@operation(4)
def choice(pool: Pool) -> Line | None:
    mask, first = pool.name(lambda x: x.dtype is torch.bool), pool.name(is_number)
    if mask is None or first is None:
        return None
    x, where = pool.tensors[first], pool.tensors[mask]
    if not broadcasts(x)(torch.empty_like(where, dtype=x.dtype)):
        return None
    second = pool.name(broadcasts(x)) or first
    template = pool.rng.choice(("torch.where({0}, {1}, {2})", "torch.where({0}, {1}, 0)", "{1}.masked_fill({0}, 2)"))
    if template.startswith("{1}") and torch.broadcast_shapes(x.shape, where.shape) != x.shape:
        return None
    return Line(template, (mask, first, second))


@operation(9)
def reduction(pool: Pool) -> Line | None:
    name = pool.name(lambda x: x.ndim > 0 and x.numel() > 0)
    if name is None:
        return None
    x = pool.tensors[name]
    dim, keep = pool.rng.randrange(-x.ndim, x.ndim), pool.rng.random() < 0.5
    dims = listed(sorted(pool.rng.sample(range(x.ndim), pool.rng.randint(1, x.ndim))))
    if x.dtype is torch.bool:
        return Line(pool.rng.choice((f"{{0}}.any({dim}, {keep})", f"{{0}}.all({dim}, {keep})")), (name,))
    exact = [f"{{0}}.amax({dims}, {keep})", f"{{0}}.amin({dims}, {keep})", f"{{0}}.sum({dims}, {keep})", "{0}.sum()"]
    exact += [f"{{0}}.max({dim}, {keep}).values"]
    if not is_float(x):
        exact += [f"{{0}}.argmax({dim}, {keep})", f"{{0}}.count_nonzero({dim})", f"{{0}}.clamp(-2, 2).prod({dim})"]
        exact += [f"{{0}}.sum({dim}, dtype=torch.int32)", f"{{0}}.prod({dim})", f"{{0}}.any({dim})"]
        exact += [f"{{0}}.sort({dim}).values", f"{{0}}.min({dim}).indices", f"{{0}}.sum({dim}, dtype=torch.float32)"]
        return Line(pool.rng.choice(exact), (name,))
    inexact = [f"{{0}}.mean({dims}, {keep})", f"{{0}}.softmax({dim})", f"{{0}}.log_softmax({dim})"]
    inexact += [f"{{0}}.logsumexp({dims}, {keep})", "{0}.mean()", f"{{0}}.clamp(0.5, 1.5).prod({dim})"]
    # Of one element, torch 2.11's fake tensors keep the dim.
    inexact += [f"{{0}}.abs().add(0.5).norm(dim={dim}, keepdim={keep or x.shape[dim] == 1})"]
    if x.shape[dim] > 1:
        inexact += [f"torch.linalg.vector_norm({{0}}, 1, {dim})"]
        inexact += [f"{{0}}.var({dim}, keepdim={keep})", f"({{0}}.var({dim}, keepdim=True) + 0.1).sqrt()"]
        inexact += ["F.layer_norm({0}, ({0}.shape[-1],))"]
    if not pool.is_inexact(name):
        # Of equal numbers an unstable sort gives the gradient of any to any: on CUDA eager's is not the first's.
        order = f"{{0}}.sort(dim={dim}, stable=True)" if pool.is_trained else f"{{0}}.sort({dim})"
        largest = f"{{0}}.sort(dim={dim}, stable=True, descending=True).values.narrow({dim}, 0, 1)"
        exact += [f"{{0}}.argmax({dim}, {keep})", f"{{0}}.argmin({dim})", f"{order}.values", "{0}.any()"]
        exact += [
            f"{{0}}.sort({dim}, stable=True).indices",
            largest if pool.is_trained else f"{{0}}.topk(1, {dim}).values",
            f"{{0}}.max({dim}).indices",
        ]
    return Line(pool.rng.choice(exact if pool.rng.random() < 0.5 else inexact), (name,))


@operation(5)
def scan(pool: Pool) -> Line | None:
    name = pool.name(lambda x: x.ndim > 0 and is_number(x))
    if name is None:
        return None
    x = pool.tensors[name]
    dim = pool.rng.randrange(-x.ndim, x.ndim)
    found = [f"{{0}}.cumsum({dim})", f"{{0}}.cummax({dim}).values", f"{{0}}.cummin({dim}).values"]
    if is_float(x):
        # Factors on both sides of 1, so that exponents cancel along a line.
        found += [f"({{0}} * 0.5).clamp(-2, 2).cumprod({dim})", f"(1 + 0.01 * {{0}}.clamp(-2, 2)).cumprod({dim})"]
        found += [f"{{0}}.logcumsumexp({dim})", f"({{0}} * 0.125).cumsum({dim})", f"{{0}}.softmax({dim}).cumsum({dim})"]
    else:
        found += [f"{{0}}.cumprod({dim})", f"{{0}}.cumsum({dim}, dtype=torch.int32)", f"({{0}} % 3).cumsum({dim})"]
        found += [f"{{0}}.diff(dim={dim})"]
    return Line(pool.rng.choice(found), (name,))


@operation(2)
def product(pool: Pool) -> Line | None:
    first = pool.name(lambda x: is_float(x) and x.ndim in (2, 3) and 0 not in x.shape)
    if first is None:
        return None
    x = pool.tensors[first]
    second = pool.name(lambda y: y.dtype == x.dtype and y.ndim == 2 and y.shape[0] == x.shape[-1])
    if second is not None:
        return Line("({0} @ {1}) * 0.125", (first, second))
    other = pool.name(lambda y: y.dtype == x.dtype and y.ndim == 2 and y.shape[1] == x.shape[-1])
    return Line("F.linear({0}, {1}) * 0.125", (first, other)) if other else Line("({0} @ {0}.mT) * 0.125", (first,))


@operation(2)
def pooled(pool: Pool) -> Line | None:
    """Returns windows over images."""
    name = pool.name(lambda x: is_float(x) and x.ndim in (3, 4) and min(x.shape) > 1)
    if name is None:
        return None
    found = ("F.max_pool2d({0}, 2)", "F.avg_pool2d({0}, 2, 1)", "F.pad({0}, (1, 1, 1, 1), 'reflect')")
    found += ("F.interpolate({0}[None] if {0}.ndim == 3 else {0}, scale_factor=2)", "F.adaptive_avg_pool2d({0}, 1)")
    found += ("F.avg_pool2d({0}, 3, 2, 1, count_include_pad=False)",)
    return Line(pool.rng.choice(found), (name,))


@operation(4)
def new(pool: Pool) -> Line | None:
    shape, dtype = pool.extents(pool.shape()), pool.rng.choice((*FLOATS, *INTEGERS, torch.int64))
    size, step = pool.extent(pool.rng.choice(pool.sizes)), pool.rng.choice((1, 2, 3, -1, -2))
    found = [
        f"torch.zeros({shape}, dtype={dtype}, device=device)",
        f"torch.full({shape}, 3, dtype={dtype}, device=device)",
        f"torch.arange({size}, dtype={dtype}, device=device)",
        f"torch.eye({size}, dtype={dtype}, device=device)",
        "torch.tensor(2.5, device=device)" if pool.rng.random() < 0.3 else "torch.tensor([1, 5, 2], device=device)",
    ]
    ends = f"0, {size}" if step > 0 else f"{size}, 0"
    found += [f"torch.arange({ends}, {step}, device=device)", f"(torch.arange({size}, device=device) * {size}) // 3"]
    found += [f"torch.arange(5, device=device) * 1500000000 + {size}"]
    return Line(pool.rng.choice(found), ())
