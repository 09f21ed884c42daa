"""Programs that nobody tuned for, drawn from a seed: `run.py --set random --seed S --count N`.

A program is of one of the forms below. Its sizes are drawn log-uniformly, among them odd numbers, primes and powers
of two, its dtype is the one that `run.py` is asked for; the same seed gives the same programs on any machine. The
name of a case says what was drawn. ``--set convolutions`` draws of that form alone, in float32 with the tensor cores
that torch uses for it by default, ``--set convolution-training`` of the same with all gradients; ``--set images`` what
stands between them, in either layout; ``--set scans``, ``--set losses`` and ``--set depthwise`` of these alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.kernels.cases import Case

Function = Callable[..., Any]
Make = Callable[[torch.dtype, int], tuple[Any, ...]]
Numbers = random.Random

MOST = 24  # 2 ** MOST elements at most in the largest tensor of a program
LEAST = 18


def size(numbers: Numbers, least: int, most: int) -> int:
    """Returns a size, log-uniform between two bounds; one of four is a power of two, one of four is odd."""
    drawn = round(math.exp(numbers.uniform(math.log(least), math.log(most))))
    kind = numbers.randrange(4)
    if kind == 0:
        return min(most, max(least, 1 << round(math.log2(drawn))))
    return drawn | 1 if kind == 1 and drawn | 1 <= most else drawn


def shape(numbers: Numbers, rank: int) -> tuple[int, ...]:
    """Returns a shape of as many elements as a program may have, with its axes in any order."""
    left = numbers.uniform(LEAST, MOST) * math.log(2)
    sizes = []
    for axes in range(rank, 1, -1):
        part = left * numbers.uniform(0.4, 1.6) / axes
        sizes.append(max(2, round(math.exp(part)) + numbers.choice((0, 0, 1))))
        left -= math.log(sizes[-1])
    sizes.append(max(2, round(math.exp(max(left, 0.7)))))
    numbers.shuffle(sizes)
    return tuple(sizes)


def made(*shapes: Sequence[int], grad: Sequence[int] | None = None) -> Make:
    """Returns a function that makes tensors of normal numbers, the last one being the gradient of a result."""

    def make(dtype: torch.dtype, scale: int) -> tuple[Tensor, ...]:
        trains = grad is not None
        given = [torch.randn(each, dtype=dtype, requires_grad=trains) for each in shapes]
        return (*given, torch.randn(grad, dtype=dtype)) if grad is not None else tuple(given)

    return make


# --- pointwise chains -------------------------------------------------------------------------------------------------

_UNARY: dict[str, Function] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "hardswish": F.hardswish,
    "mish": F.mish,
    "leaky": partial(F.leaky_relu, negative_slope=0.1),
    "softplus": F.softplus,
    "clamp": partial(torch.clamp, min=-0.5, max=1.5),
    "abs": torch.abs,
    "square": torch.square,
}
_BINARY: dict[str, Function] = {
    "add": torch.add,
    "mul": torch.mul,
    "sub": torch.sub,
    "max": torch.maximum,
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
}


def chained(steps: Sequence[str], x: Tensor, *others: Tensor) -> Tensor:
    """Returns a tensor after steps of which those with two operands take the others in turn."""
    place = 0
    for step in steps:
        if step in _BINARY:
            x = _BINARY[step](x, others[place])
            place += 1
        else:
            x = _UNARY[step](x)
    return x


def pointwise(numbers: Numbers) -> Case:
    whole = shape(numbers, numbers.choice((1, 2, 3, 4)))
    steps = [numbers.choice([*_UNARY, *_BINARY, *_BINARY]) for _ in range(numbers.randint(2, 7))]
    count = sum(step in _BINARY for step in steps)
    others = [[1 if numbers.random() < 0.25 else extent for extent in whole] for _ in range(count)]
    trains = numbers.random() < 0.3
    return case("chain " + "-".join(steps), partial(chained, steps), whole, *others, trains=trains, result=whole)


def case(name: str, function: Function, *shapes: Sequence[int], trains: bool = False, result: Any = None) -> Case:
    text = "x".join(map(str, shapes[0]))
    make = made(*shapes, grad=result if trains else None)
    return Case(f"{name} {text}{' fb' if trains else ''}", function, make, bar=False, trains=trains)


# --- rows -------------------------------------------------------------------------------------------------------------


def norms(numbers: Numbers) -> Case:
    rows, width = shape(numbers, 2)
    trains = numbers.random() < 0.5
    kind = numbers.choice(("layer", "rms", "softmax", "log_softmax", "normalize"))
    if kind in ("layer", "rms"):

        def normed(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            if kind == "rms":
                return F.rms_norm(x, (x.shape[-1],), weight) + bias
            return F.layer_norm(x, (x.shape[-1],), weight, bias)

        return case(kind, normed, (rows, width), (width,), (width,), trains=trains, result=(rows, width))
    functions = {"softmax": F.softmax, "log_softmax": F.log_softmax, "normalize": F.normalize}
    dim = numbers.choice((0, 1)) if rows < 1 << 16 else 1
    found = partial(functions[kind], dim=dim)
    return case(f"{kind} {dim}", found, (rows, width), trains=trains, result=(rows, width))


def batch_norms(numbers: Numbers) -> Case:
    batch, channels, height = numbers.choice((2, 8, 16)), size(numbers, 8, 512), size(numbers, 4, 64)
    kind = numbers.choice(("batch", "group", "instance"))
    channels = channels // 4 * 4 or 4
    whole = (batch, channels, height, height)

    def normed(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if kind == "batch":
            return F.batch_norm(x, None, None, weight, bias, training=True)
        if kind == "group":
            return F.group_norm(x, 4, weight, bias)
        return F.instance_norm(x, weight=weight, bias=bias)

    trains = numbers.random() < 0.5
    return case(f"{kind}_norm", normed, whole, (channels,), (channels,), trains=trains, result=whole)


def reductions(numbers: Numbers) -> Case:
    rank = numbers.choice((1, 2, 3, 4))
    whole = shape(numbers, rank)
    dims = tuple(sorted(numbers.sample(range(rank), numbers.randint(1, rank))))
    kind = numbers.choice(("sum", "mean", "amax", "var", "logsumexp", "norm", "argmax", "min"))
    functions: dict[str, Function] = {
        "sum": lambda x: x.sum(dims),
        "mean": lambda x: x.mean(dims),
        "amax": lambda x: x.amax(dims),
        "var": lambda x: torch.var_mean(x, dims),
        "logsumexp": lambda x: torch.logsumexp(x, dims),
        "norm": lambda x: torch.linalg.vector_norm(x, dim=dims),
        "argmax": lambda x: x.argmax(dims[0]),
        "min": lambda x: x.min(dims[0]),
    }
    return case(f"{kind} {''.join(map(str, dims))}", functions[kind], whole)


def scans(numbers: Numbers) -> Case:
    whole = shape(numbers, 2)
    dim = numbers.choice((0, 1))
    kind = numbers.choice(("cumsum", "reverse", "exclusive", "cummax", "logcumsumexp"))

    def scanned(x: Tensor) -> Any:
        if kind == "cumsum":
            return x.cumsum(dim)
        if kind == "reverse":
            return x.flip(dim).cumsum(dim).flip(dim)
        if kind == "exclusive":
            return torch.cat(
                [torch.zeros_like(x.narrow(dim, 0, 1)), x.cumsum(dim).narrow(dim, 0, x.shape[dim] - 1)], dim
            )
        if kind == "cummax":
            return x.cummax(dim).values
        return x.logcumsumexp(dim)

    return case(f"{kind} {dim}", scanned, whole)


# --- losses, gathers, moves -------------------------------------------------------------------------------------------


def losses(numbers: Numbers) -> Case:
    rows, classes = shape(numbers, 2)
    kind = numbers.choice(("mse", "l1", "smooth_l1", "huber", "kl", "bce", "hinge", "cosine", "soft_margin"))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        if kind == "kl":
            return F.kl_div(F.log_softmax(x, 1), F.softmax(y, 1), reduction="batchmean")
        if kind == "bce":
            return F.binary_cross_entropy_with_logits(x, torch.sigmoid(y))
        if kind == "hinge":
            return torch.clamp(1 - x * y.sign(), min=0).mean()
        if kind == "cosine":
            return 1 - F.cosine_similarity(x, y, dim=1).mean()
        if kind == "soft_margin":
            return torch.log1p(torch.exp(-x * y.sign())).mean()  # torch's own takes no target with a gradient
        functions: dict[str, Function] = {
            "mse": F.mse_loss,
            "l1": F.l1_loss,
            "smooth_l1": F.smooth_l1_loss,
            "huber": F.huber_loss,
        }
        return functions[kind](x, y)

    whole, trains = (rows, classes), numbers.random() < 0.5
    return case(f"loss {kind}", loss, whole, whole, trains=trains, result=())


def gathers(numbers: Numbers) -> Case:
    table, width, count = size(numbers, 100, 50000), size(numbers, 16, 1024), size(numbers, 1000, 20000)
    kind = numbers.choice(("embedding", "index_select", "index_add", "scatter_add"))

    def make(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
        places = torch.randint(0, table, (count,))
        return torch.randn(table, width, dtype=dtype), places, torch.randn(count, width, dtype=dtype)

    def gathered(x: Tensor, places: Tensor, rows: Tensor) -> Tensor:
        if kind == "embedding":
            return F.embedding(places, x) + rows
        if kind == "index_select":
            return x.index_select(0, places) * rows
        if kind == "index_add":
            return x.index_add(0, places, rows)
        return x.scatter_add(0, places[:, None].expand(count, width), rows)

    return Case(f"{kind} {table}x{width} {count}", gathered, make, bar=False)


def moves(numbers: Numbers) -> Case:
    rank = numbers.choice((2, 3, 4))
    whole = shape(numbers, rank)
    kind = numbers.choice(("permute", "cat", "split", "flip", "pad", "roll"))
    order = numbers.sample(range(rank), rank)
    dim = numbers.randrange(rank)

    def moved(x: Tensor, y: Tensor) -> Any:
        if kind == "permute":
            return x.permute(order).contiguous() * 2
        if kind == "cat":
            return torch.cat([x, F.relu(y)], dim)
        if kind == "split":
            one, two = x.split([x.shape[dim] // 2, x.shape[dim] - x.shape[dim] // 2], dim)
            return F.silu(one), two + 1
        if kind == "flip":
            return x.flip(dim) + y
        if kind == "pad":
            return F.pad(x, (1, 2) * min(rank, 2))
        return x.roll(3, dim) - y

    tail = "".join(map(str, order)) if kind == "permute" else str(dim)
    return case(f"{kind} {tail}", moved, whole, whole)


# --- windows, products, convolutions ----------------------------------------------------------------------------------


def pools(numbers: Numbers) -> Case:
    dims = numbers.choice((1, 2, 3))
    extent = {1: size(numbers, 256, 8192), 2: size(numbers, 14, 224), 3: size(numbers, 8, 48)}[dims]
    batch, channels = numbers.choice((1, 4, 16)), size(numbers, 4, 128)
    while batch * channels * extent**dims > 1 << MOST:
        channels = max(1, channels // 2)
        batch = max(1, batch // 2)
    window, stride = numbers.choice((2, 3, 4, 5)), numbers.choice((1, 2, 3))
    kind = numbers.choice(("max", "avg"))
    function = getattr(F, f"{kind}_pool{dims}d")
    pooled = partial(function, kernel_size=window, stride=stride, padding=numbers.choice((0, window // 2)))
    return case(f"{kind}_pool{dims}d {window}/{stride}", pooled, (batch, channels, *[extent] * dims))


def images(numbers: Numbers) -> Case:
    """Returns what stands between convolutions, row-major or channels-last, with a row-major result or as it comes."""
    channels, extent = numbers.choice((3, 16, 24, 32, 64, 96, 128, 256)), size(numbers, 7, 112)
    batch = max(1, min(128, (1 << numbers.randint(LEAST + 2, MOST)) // (channels * extent**2)))
    is_channels_last, is_row_major = numbers.random() < 0.6, numbers.random() < 0.5
    steps = [numbers.choice([*_UNARY, "scale"]) for _ in range(numbers.randint(1, 4))]
    norm = numbers.choice(("none", "batch", "group", "instance", "softmax", "log_softmax", "channel_norm"))
    end = numbers.choice(("none", "max", "avg", "max3", "avg3", "global", "amin", "sum", "logsumexp", "larger", "pad"))

    def make(dtype: torch.dtype, scale: int) -> tuple[Tensor, ...]:
        image = torch.randn(batch, channels, extent, extent, dtype=dtype)
        if is_channels_last:
            image = image.contiguous(memory_format=torch.channels_last)
        return (image, *(torch.randn(channels, dtype=dtype) for _ in range(2)))

    def between(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        for step in steps:
            x = x * scale.view(1, -1, 1, 1) if step == "scale" else _UNARY[step](x)
        x = _normalised(norm, x, scale, bias)
        if end in _ENDS:
            x = _ENDS[end](x)
        return x.contiguous() if is_row_major else x

    layout = f"{'last' if is_channels_last else 'first'}{' to first' if is_row_major else ''}"
    name = f"image {'-'.join(steps)} {norm} {end} {batch}x{channels}x{extent}x{extent} {layout}"
    return Case(name, between, make, bar=False)


_ENDS: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda x: F.max_pool2d(x, 2),
    "avg": lambda x: F.avg_pool2d(x, 2),
    "max3": lambda x: F.max_pool2d(x, 3, 2, 1),
    "avg3": lambda x: F.avg_pool2d(x, 3, 1, 1),
    "global": lambda x: x.mean((2, 3)),
    "amin": lambda x: x.amin(1),
    "sum": lambda x: x.sum(1, keepdim=True),
    "logsumexp": lambda x: x.logsumexp(1, keepdim=True),
    "larger": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "pad": lambda x: F.pad(x, (1, 1, 1, 1)),
}


def _normalised(norm: str, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    channels = x.shape[1]
    if norm == "batch":
        return F.batch_norm(x, bias, scale.abs() + 0.5, scale, bias)
    if norm == "group":
        return F.group_norm(x, 4 if channels % 4 == 0 else 1, scale, bias)
    if norm == "instance":
        return F.instance_norm(x)
    if norm == "channel_norm":
        return F.layer_norm(x.permute(0, 2, 3, 1), (channels,), scale, bias).permute(0, 3, 1, 2)
    functions = {"softmax": torch.softmax, "log_softmax": torch.log_softmax}
    return functions[norm](x, 1) if norm in functions else x


def products(numbers: Numbers) -> Case:
    m, n, k = size(numbers, 1, 4096), size(numbers, 16, 4096), size(numbers, 16, 4096)
    steps = [numbers.choice(list(_UNARY)) for _ in range(numbers.randint(1, 3))]
    ends = numbers.choice(("none", "sum", "softmax", "layer_norm"))

    def multiplied(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = chained(steps, F.linear(x, weight, bias))
        if ends == "sum":
            return y.sum(-1)
        if ends == "softmax":
            return y.softmax(-1)
        return F.layer_norm(y, (n,)) if ends == "layer_norm" else y

    return case(f"linear {n} {'-'.join(steps)} {ends}", multiplied, (m, k), (n, k), (n,))


def convolutions(numbers: Numbers, *, trains: bool = False) -> Case:
    dims = numbers.choice((2, 2, 2, 3, 3, 1))
    is_transposed = numbers.random() < 0.3
    into, out = numbers.choice((3, 8, 16, 32, 64, 128)), numbers.choice((16, 24, 32, 64, 128))
    kernel, stride = numbers.choice((1, 3, 3, 3, 4, 5)), numbers.choice((1, 1, 2))
    extent = {1: size(numbers, 512, 8192), 2: size(numbers, 16, 160), 3: size(numbers, 10, 32)}[dims]
    batch = numbers.choice((4, 10, 16, 64, 128))
    grown = stride**dims if is_transposed else 1
    while batch > 1 and batch * max(into, out * grown) * extent**dims > 1 << (MOST + 1):
        batch //= 2
    given: dict[str, Any] = {"stride": stride, "padding": kernel // 2}
    convolve = getattr(F, f"conv{'_transpose' if is_transposed else ''}{dims}d")
    steps = [numbers.choice([*_UNARY, "scale", "residual", "double"]) for _ in range(numbers.randint(1, 4))]
    norm = numbers.choice(("none", "none", "batch", "group", "instance", "channel_softmax"))
    pool = numbers.choice(("none", "none", "max", "avg", "global", "amin"))
    if trains and "scale" not in steps:
        steps.append("scale")  # else nothing may ask for its gradient

    def block(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, *statistics: Tensor) -> Tensor:
        y = convolve(x, weight, bias, **given)
        for step in steps:
            if step == "scale":
                y = y * scale.view(1, -1, *[1] * dims)
            elif step == "residual":
                y = y + y.sigmoid()
            else:
                y = y * 2 if step == "double" else _UNARY[step](y)
        if norm == "batch":
            mean, variance = statistics or (None, None)
            spread = None if variance is None else variance.abs() + 0.5
            y = F.batch_norm(y, mean, spread, scale, bias, training=trains)
        elif norm == "group":
            y = F.group_norm(y, 4, scale, bias)
        elif norm == "instance":
            y = F.instance_norm(y)
        elif norm == "channel_softmax":
            y = y.softmax(1)
        if pool == "global":
            return y.mean(tuple(range(2, dims + 2)))
        if pool == "amin":
            return y.amin(1)
        return y if pool == "none" else getattr(F, f"{pool}_pool{dims}d")(y, 2)

    ends = (into, out) if is_transposed else (out, into)
    name = f"conv{'T' if is_transposed else ''}{dims}d {kernel}/{stride} to {out} {'-'.join(steps)} {norm} {pool}"
    shapes: list[Sequence[int]] = [(batch, into, *[extent] * dims), (*ends, *[kernel] * dims), (out,), (out,)]
    if not trains:
        return replace(case(name, block, *shapes, (out,), (out,)), convolves=True)
    result = block(*(torch.empty(tuple(each), device="meta") for each in shapes))
    return replace(case(name, block, *shapes, trains=True, result=result.shape), convolves=True)


def depthwise(numbers: Numbers) -> Case:
    """A filter for each channel, of images in either layout: what MobileNet, EfficientNet and ConvNeXt are made of."""
    batch, channels = numbers.choice((1, 8, 16, 32)), size(numbers, 32, 960) // 8 * 8
    extent, kernel, stride = size(numbers, 7, 112), numbers.choice((3, 3, 5, 7)), numbers.choice((1, 1, 2))
    while batch > 1 and batch * channels * extent**2 > 1 << MOST:
        batch //= 2
    layout = numbers.choice(("first", "last", "last"))

    def convolved(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.relu(F.conv2d(x, weight, bias, stride=stride, padding=kernel // 2, groups=channels))

    whole = (batch, channels, extent, extent)
    drawn = case(f"depthwise {kernel}/{stride} {layout}", convolved, whole, (channels, 1, kernel, kernel), (channels,))

    def make(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
        x, *rest = drawn.make(dtype, scale)
        return x.contiguous(memory_format=torch.channels_last) if layout == "last" else x, *rest

    return replace(drawn, make=make, convolves=True)


EVERY: tuple[Callable[[Numbers], Case], ...] = (
    pointwise, norms, batch_norms, reductions, scans, losses, gathers, moves, pools, images, products, convolutions
)  # fmt: skip
FORMS: dict[str, tuple[Callable[[Numbers], Case], ...]] = {
    "random": EVERY, "convolutions": (convolutions,), "images": (images,), "scans": (scans,), "losses": (losses,),
    "convolution-training": (partial(convolutions, trains=True),), "depthwise": (depthwise,),
}  # fmt: skip
"""What programs of a set are drawn from."""


def random_cases(name: str, seed: int, count: int) -> tuple[Case, ...]:
    """Returns so many programs of a set; a program's name begins with the set, the seed and its number."""
    numbers = random.Random(seed)
    drawn = [numbers.choice(FORMS[name])(numbers) for _ in range(count)]
    return tuple(replace(each, name=f"{name}:{seed}:{number} {each.name}") for number, each in enumerate(drawn))


def random_case(name: str) -> Case:
    """Returns the program of a name that `random_cases` gave."""
    form, seed, number = name.split(maxsplit=1)[0].split(":")
    return random_cases(form, int(seed), int(number) + 1)[-1]
