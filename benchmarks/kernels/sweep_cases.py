"""Reductions, scans and copies in many shapes: `run.py --set sweep` looks for those that a compiler is slow at.

None has a bar of its own; what counts is how each compares with its bound and with other compilers. A name has the
shape, with ``n`` for as many as make 64 MiB, and the dims.

`run.py --set columns`: scans and softmaxes along columns, whole sums, scatters of few rows, in shapes that random
programs had when they lost (`benchmarks/RESULTS.md`).

`run.py --set odd`: sums of columns and rows that begin at odd places, and pools whose windows overlap. Their grids of
configs (`config_grid.py --set odd`) are what the rules for such columns and rows were taken from.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.kernels.cases import Case
from benchmarks.kernels.limit_cases import widened

BYTES = 64 << 20
"""Of the largest tensor of a case."""
Dims = tuple[int, ...]
Shape = tuple[int, ...]

REDUCED: tuple[tuple[Shape, Dims], ...] = (
    *(((0, points), (1,)) for points in (3, 7, 10, 17, 33, 100, 333, 1025, 5000, 20000, 100000)),
    *(((0, points, 1024), (1,)) for points in (3, 10, 50, 100, 333)),
    ((0, 200, 512), (1,)),
    ((0, 1025, 256), (1,)),
    ((0, 5000, 96), (1,)),
    ((0, 24, 24), (1,)),
    ((0, 100, 40), (1,)),
    ((0, 16, 7), (1,)),
    ((64, 0), (0,)),
    ((1000, 0), (0,)),
    ((8, 0, 64), (0, 2)),
    ((64, 0, 1000), (0, 2)),
)
"""Shapes, 0 for as many as there is room for, and the dims that are reduced."""


def total(x: Tensor, dims: Dims) -> Tensor:
    return x.sum(dims)


def moments(x: Tensor, dims: Dims) -> tuple[Tensor, Tensor]:
    return torch.var_mean(widened(x), dims)


def exponentials(x: Tensor, dims: Dims) -> Tensor:
    """Returns the softmax over one dim or more."""
    away = widened(x) - widened(x).amax(dims, keepdim=True)
    return (away.exp() / away.exp().sum(dims, keepdim=True)).to(x.dtype)


def standardised(x: Tensor, dims: Dims) -> Tensor:
    away = widened(x) - widened(x).mean(dims, keepdim=True)
    return (away * torch.rsqrt(away.square().mean(dims, keepdim=True) + 1e-5)).to(x.dtype)


def largest(x: Tensor, dims: Dims) -> Tensor:
    return x.argmax(dims[0])


def running(x: Tensor, dims: Dims) -> Tensor:
    return x.cumsum(dims[0])


REDUCTIONS: tuple[tuple[str, Callable[[Tensor, Dims], Any], bool], ...] = (
    ("sum", total, True),
    ("var_mean", moments, True),
    ("softmax", exponentials, True),
    ("norm", standardised, True),
    ("argmax", largest, False),
    ("cumsum", running, False),
)
"""Names, functions, and whether they take several dims."""


def filled(shape: Shape, dtype: torch.dtype, scale: int) -> Shape:
    """Returns a shape with as many as there is room for in place of the 0."""
    rest = math.prod(size for size in shape if size)
    room = max(1, BYTES // torch.empty((), dtype=dtype).element_size() // rest // scale)
    return tuple(size or room for size in shape)


def reduced(shape: Shape, dims: Dims, name: str, function: Callable[[Tensor, Dims], Any]) -> Case:
    def make(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
        return (torch.randn(filled(shape, dtype, scale), dtype=dtype),)

    text = "x".join(str(size or "n") for size in shape)
    return Case(f"{name} {text} over {'+'.join(map(str, dims))}", lambda x: function(x, dims), make, bar=False)


def moved(name: str, function: Callable[[Tensor], Tensor], shape: Shape) -> Case:
    return Case(
        f"{name} {'x'.join(str(size or 'n') for size in shape)}",
        function,
        lambda dtype, scale: (torch.randn(filled(shape, dtype, scale), dtype=dtype),),
        bar=False,
    )


SWEEP_CASES: tuple[Case, ...] = (
    *(
        reduced(shape, dims, name, function)
        for name, function, takes_several in REDUCTIONS
        for shape, dims in REDUCED
        if takes_several or len(dims) == 1
    ),
    moved("channels first", lambda x: x.permute(0, 3, 1, 2) * 2, (0, 56, 56, 96)),
    moved("contiguous channels first", lambda x: (x.permute(0, 3, 1, 2) * 2).contiguous(), (0, 56, 56, 96)),
    moved("contiguous channels first", lambda x: (x.permute(0, 3, 1, 2) * 2).contiguous(), (0, 224, 224, 3)),
    moved("contiguous channels last", lambda x: (x.permute(0, 2, 3, 1) * 2).contiguous(), (0, 3, 224, 224)),
    moved("heads", lambda x: (x.permute(0, 2, 1, 3) + 1).contiguous(), (0, 512, 12, 64)),
    moved("transposed", lambda x: (x.t() + 1).contiguous(), (0, 100)),
    moved("transposed", lambda x: (x.t() + 1).contiguous(), (0, 7)),
    moved("reversed", lambda x: x.flip(1) + 1, (0, 1000)),
    moved("rolled", lambda x: x.roll(3, 1) + 1, (0, 1000)),
    moved("padded", lambda x: F.pad(x, (1, 1, 1, 1)) + 1, (0, 56, 56)),
    moved("sliced", lambda x: x[:, ::2] + 1, (0, 1001)),
    moved("shifted", lambda x: x[:, 1:] - x[:, :-1], (0, 1001)),
    moved("joined", lambda x: torch.cat((x, x[:, :10] * 2), 1), (0, 333)),
    moved("stacked", lambda x: torch.stack((x, x * 2), -1), (0, 1000)),
    moved("repeated", lambda x: x.repeat_interleave(3, 1) + 1, (0, 333)),
    moved("triangle", lambda x: x.tril() + 1, (0, 512, 512)),
    moved("pooled", lambda x: F.avg_pool2d(x, 2), (0, 56, 56)),
    moved("enlarged", lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), (0, 3, 112, 112)),
    moved("unfolded", lambda x: x.unfold(1, 4, 2).sum(-1), (0, 1000)),
    moved("outer", lambda x: x[:, :, None] * x[:, None, :8], (0, 100)),
)


def hinge(x: Tensor, y: Tensor) -> Tensor:
    return torch.clamp(1 - x * y.sign(), min=0).mean()


def soft_margin(x: Tensor, y: Tensor) -> Tensor:
    return torch.log1p(torch.exp(-x * y.sign())).mean()


def scattered(x: Tensor, rows: Tensor, added: Tensor) -> Tensor:
    return x.scatter_add(0, rows[:, None].expand(added.shape), added)


SCANS: tuple[tuple[str, Callable[[Tensor], Any], tuple[Shape, ...]], ...] = (
    ("reversed sum over 0 of", lambda x: x.flip(0).cumsum(0).flip(0), ((47599, 25), (3418, 396))),
    ("cumsum over 0 of", lambda x: x.cumsum(0), ((2386, 3120), (107431, 44))),
    ("twice the cumsum over 0, and more, of", lambda x: x.cumsum(0) * 2 + x, ((7919, 517),)),
    ("cummax over 0 of", lambda x: x.cummax(0).values, ((2602, 210),)),
    ("logcumsumexp over 1 of", lambda x: x.logcumsumexp(1), ((21, 38006), (32, 45282), (54, 99803))),
    ("logcumsumexp over 0 of", lambda x: x.logcumsumexp(0), ((10171, 43),)),
    ("softmax over 0 of", lambda x: F.softmax(x, 0), ((4909, 978), (2000, 978), (1000, 978), (1500, 300), (700, 2000))),
    ("log_softmax over 0 of", lambda x: F.log_softmax(x, 0), ((4909, 978),)),
    ("sum of exponentials of", lambda x: x.float().exp().sum(), ((131, 4297),)),
)
LOSSES: tuple[tuple[str, Callable[[Tensor, Tensor], Any], Shape, bool], ...] = (
    ("hinge loss of", hinge, (29, 56369), False),
    ("soft margin loss with gradients of", soft_margin, (25, 194947), True),
)
SCATTERS: tuple[tuple[int, int, int], ...] = (
    (35963, 253, 3055),
    (28081, 497, 4096),
    (32768, 77, 3063),
    (37701, 80, 9333),
    (12739, 74, 16082),
)
"""Rows and columns of what is added to, and how many rows are."""


def spelled(shape: Shape) -> str:
    return "x".join(map(str, shape))


def scan(name: str, function: Callable[[Tensor], Any], shape: Shape) -> Case:
    make = lambda dtype, scale: (torch.randn(max(1, shape[0] // scale), shape[1], dtype=dtype),)  # noqa: E731
    return Case(f"{name} {spelled(shape)}", function, make, bar=False)


def loss(name: str, function: Callable[[Tensor, Tensor], Any], shape: Shape, *, trains: bool) -> Case:
    def make(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
        size = (shape[0], max(1, shape[1] // scale))
        pair = tuple(torch.randn(size, dtype=dtype).requires_grad_(trains) for _ in range(2))
        return (*pair, torch.ones((), dtype=dtype)) if trains else pair

    return Case(f"{name} {spelled(shape)}", function, make, bar=False, trains=trains)


def scatter(rows: int, columns: int, count: int) -> Case:
    def make(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
        size = max(1, rows // scale)
        added = torch.randn(max(1, count // scale), columns, dtype=dtype)
        return torch.randn(size, columns, dtype=dtype), torch.randint(0, size, (len(added),)), added

    return Case(f"scatter_add of {count} rows into {rows}x{columns}", scattered, make, bar=False)


COLUMN_CASES: tuple[Case, ...] = (
    *(scan(name, function, shape) for name, function, shapes in SCANS for shape in shapes),
    *(loss(name, function, shape, trains=trains) for name, function, shape, trains in LOSSES),
    *(scatter(*each) for each in SCATTERS),
)


def convnext(x: Tensor, *weights: Tensor) -> Tensor:
    """Two blocks of ConvNeXt (Liu and others, 2022); weights of one block follow those of the other."""
    channels = x.shape[1]
    for number in range(0, len(weights), 7):
        filters, norm, shift, widen, up, narrow, scale = weights[number : number + 7]
        y = F.conv2d(x, filters, padding=3, groups=channels).permute(0, 2, 3, 1)
        y = F.linear(F.gelu(F.linear(F.layer_norm(y, (channels,), norm, shift), widen, up)), narrow)
        x = x + scale * y.permute(0, 3, 1, 2)
    return x


def convnext_blocks(channels: int, extent: int) -> Case:
    def make(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
        batch, wide = max(1, 8 // scale), 4 * channels
        x = torch.randn(batch, channels, extent, extent, dtype=dtype).to(memory_format=torch.channels_last)
        weights = []
        for _ in range(2):
            shapes: tuple[Shape, ...] = ((channels,), (channels,), (wide, channels), (wide,), (channels, wide))
            drawn = [torch.randn(shape, dtype=dtype) / shape[-1] ** 0.5 for shape in shapes]
            filters = torch.randn(channels, 1, 7, 7, dtype=dtype) / 7
            weights += [filters, *drawn, torch.full((channels, 1, 1), 0.5, dtype=dtype)]
        return x, *weights

    return Case(f"two ConvNeXt blocks of 8x{channels}x{extent}x{extent}", convnext, make, bar=False)


def beside(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.cat([x @ a, y @ b], 1)


def products_beside(rows: int, summed: int, columns: int) -> Case:
    def make(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
        factors = [torch.randn(max(1, rows // scale), summed, dtype=dtype) for _ in range(2)]
        return (*factors, *(torch.randn(summed, columns, dtype=dtype) / summed**0.5 for _ in range(2)))

    return Case(f"products beside each other, {rows}x{summed}x{columns}", beside, make, bar=False)


def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(F.linear(x, weight, bias))


def layer_input(y: Tensor, weight: Tensor) -> Tensor:
    """Returns the gradient of the input of a layer."""
    return y @ weight


def layer_weight(y: Tensor, x: Tensor) -> Tensor:
    """Returns the gradient of the weight of a layer."""
    return y.t() @ x


def layer_case(name: str, function: Callable[..., Tensor], rows: int, columns: int, summed: int) -> Case:
    def make(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
        m, n, k = (max(1, extent // scale) for extent in (rows, columns, summed))
        shapes = {layer: ((m, k), (n, k)), layer_input: ((m, k), (k, n)), layer_weight: ((k, m), (k, n))}[function]
        first, second = (torch.randn(shape, dtype=dtype) for shape in shapes)
        bias = (torch.randn(n, dtype=dtype),) if function is layer else ()
        return first, second / summed**0.5, *bias

    return Case(f"float32 layer, {name}, {rows}x{columns}x{summed}", function, make, bar=False)


LAYER_EXTENTS: tuple[Shape, ...] = (
    (4096, 4096, 4096),
    (8192, 1024, 4096),
    (2048, 2048, 2048),
    (2048, 2048, 512),
    (8192, 3072, 768),
    (8192, 768, 3072),
    (1536, 4096, 1024),
    (4096, 11008, 4096),
    (3000, 2052, 1284),
)

BLOCK_CASES: tuple[Case, ...] = (
    *(layer_case("GELU", layer, *extents) for extents in LAYER_EXTENTS),
    layer_case("gradient of its input", layer_input, 4096, 4096, 4096),
    *(layer_case("gradient of its weight", layer_weight, *each) for each in ((4096, 4096, 4096), (3072, 768, 8192))),
    *(convnext_blocks(*each) for each in ((96, 56), (192, 28), (384, 14), (768, 7))),
    *(
        products_beside(*each)
        for each in (
            (512, 512, 512),
            (2048, 1024, 1024),
            (8192, 1024, 1024),
            (8192, 4096, 4096),
            (4096, 768, 3072),
            (16384, 256, 256),
        )
    ),
)
"""Blocks of a convolution network, products that are written to slices (decision 0074), and layers, whose products are
computed in parts in float32 (decision 0086): programs with products."""


ODD_COLUMNS: tuple[Shape, ...] = (
    (12288, 558),
    (2715, 1913),
    (1569, 2430),
    (3064, 317),
    (1397, 747),
    (4464, 330),
    (6000, 1001),
    (6000, 1004),
    (1500, 4097),
    (800, 9999),
    (800, 10002),
    (300, 30001),
    (120, 100001),
)
ODD_ROWS: tuple[Shape, ...] = ((1276, 9549), (1276, 9546), (1000, 9001), (300, 50257), (3000, 20002), (140, 30001))
POOLS: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("largest of 25", lambda x: F.max_pool2d(x, 5, 1, 2)),
    ("mean of 25", lambda x: F.avg_pool2d(x, 5, 1, 2)),
    ("largest of 49", lambda x: F.max_pool2d(x, 7, 1, 3)),
)


def distances(x: Tensor, y: Tensor, dims: Dims) -> Tensor:
    """Returns a sum along rows or columns of two tensors, with an exponential for each pair of elements."""
    return (torch.exp(-widened(x).abs()) * widened(y)).sum(dims).to(x.dtype)


def odd(shape: Shape, dims: Dims, *, is_of_two: bool) -> Case:
    def make(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
        small = (max(1, shape[0] // scale), shape[1])
        return tuple(torch.randn(small, dtype=dtype) for _ in range(2 if is_of_two else 1))

    def reduced(*tensors: Tensor) -> Tensor:
        return distances(*tensors, dims) if is_of_two else total(*tensors, dims)

    kind = "two" if is_of_two else "sum"
    return Case(f"odd {kind} {dims[0]} of {'x'.join(map(str, shape))}", reduced, make, bar=False)


def pool(name: str, function: Callable[[Tensor], Tensor], layout: torch.memory_format) -> Case:
    def make(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
        return (torch.randn(max(1, 16 // scale), 128, 64, 64, dtype=dtype).to(memory_format=layout),)

    order = "last" if layout is torch.channels_last else "first"
    return Case(f"odd pool, {name} of 16x128x64x64 {order}", function, make, bar=False)


ODD_CASES: tuple[Case, ...] = (
    *(odd(shape, (0,), is_of_two=False) for shape in ODD_COLUMNS),
    *(odd(shape, (1,), is_of_two=each) for shape in ODD_ROWS for each in (False, True)),
    *(pool(*each, layout) for each in POOLS for layout in (torch.contiguous_format, torch.channels_last)),
)
