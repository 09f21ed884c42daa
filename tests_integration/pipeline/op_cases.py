"""Small cases of every operator family that Ferrite lowers: a function and a maker of its inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten
Make = Callable[..., Tensor]


@dataclass(frozen=True, slots=True)
class Case:
    """One call. `inputs` gets a maker bound to dtype, device and scale; `backward` asks for gradients as well.

    `wide_only` keeps a case away from half types, where eager itself has no kernel or says nothing to compare with.
    """

    name: str
    function: Callable[..., Any]
    inputs: Callable[[Draw], tuple[Any, ...]]
    backward: bool = True
    wide_only: bool = False


@dataclass(frozen=True, slots=True)
class Draw:
    """Makes inputs on one device in one dtype; sizes are multiplied by `scale` where a case says so."""

    device: str
    dtype: torch.dtype
    scale: int

    def normal(self, *shape: int) -> Tensor:
        """Returns random numbers of the floating dtype."""
        return torch.randn(*self.sizes(shape), device=self.device).to(self.dtype)

    def plain(self, *shape: int) -> Tensor:
        """Returns random numbers of the floating dtype in a shape that is not scaled."""
        return torch.randn(*shape, device=self.device).to(self.dtype)

    def near_one(self, *shape: int) -> Tensor:
        """Returns numbers between 0.9 and 1.1, whose products stay in every dtype's range."""
        return (torch.rand(*self.sizes(shape), device=self.device) * 0.2 + 0.9).to(self.dtype)

    def positive(self, *shape: int) -> Tensor:
        """Returns numbers between 0.3 and 2.3."""
        return (torch.rand(*self.sizes(shape), device=self.device) * 2 + 0.3).to(self.dtype)

    def unit(self, *shape: int) -> Tensor:
        """Returns numbers between -0.9 and 0.9."""
        return (torch.rand(*self.sizes(shape), device=self.device) * 1.8 - 0.9).to(self.dtype)

    def ties_free(self, *shape: int) -> Tensor:
        """Returns distinct numbers in random order; the shape is not scaled where the dtype has too few."""
        most = {torch.bfloat16: 512, torch.float16: 4096}.get(self.dtype, 1 << 24)
        shape = self.sizes(shape) if torch.Size(self.sizes(shape)).numel() <= most else torch.Size(shape)
        count = torch.Size(shape).numel()
        return ((torch.randperm(count, device=self.device) - count // 2) / 4).view(shape).to(self.dtype)

    def integers(self, *shape: int, low: int = -9, high: int = 10, dtype: torch.dtype = torch.int64) -> Tensor:
        """Returns random integers in [low, high)."""
        return torch.randint(low, high, self.sizes(shape), device=self.device, dtype=dtype)

    def indices(self, *shape: int, size: int) -> Tensor:
        """Returns random indices below the (scaled) size."""
        return torch.randint(size * self.scale, self.sizes(shape), device=self.device)

    def mask(self, *shape: int) -> Tensor:
        """Returns random booleans."""
        return torch.rand(*self.sizes(shape), device=self.device) < 0.5

    def sizes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape with its last dim scaled, unless that is 1."""
        return (*shape[:-1], shape[-1] * self.scale) if shape and shape[-1] > 1 else shape


def one(*shape: int) -> Callable[[Draw], tuple[Tensor, ...]]:
    return lambda draw: (draw.normal(*shape),)


def two(first: tuple[int, ...] = (3, 7), second: tuple[int, ...] = (3, 7)) -> Callable[[Draw], tuple[Tensor, ...]]:
    return lambda draw: (draw.normal(*first), draw.normal(*second))


def positive(*shape: int) -> Callable[[Draw], tuple[Tensor, ...]]:
    return lambda draw: (draw.positive(*shape),)


def unit(*shape: int) -> Callable[[Draw], tuple[Tensor, ...]]:
    return lambda draw: (draw.unit(*shape),)


def integers(count: int = 1, **limits: Any) -> Callable[[Draw], tuple[Tensor, ...]]:
    return lambda draw: tuple(draw.integers(3, 7, **limits) for _ in range(count))


def unary(names: str, make: Callable[[Draw], tuple[Tensor, ...]], **flags: bool) -> list[Case]:
    """Returns a case per function of torch or torch.nn.functional."""
    return [Case(name, getattr(torch, name, None) or getattr(F, name), make, **flags) for name in names.split()]


def binary(names: str, make: Callable[[Draw], tuple[Tensor, ...]], **flags: bool) -> list[Case]:
    return [Case(name, getattr(torch, name), make, **flags) for name in names.split()]


POINTWISE = [
    *unary("abs neg exp expm1 sin cos tanh sigmoid erf square relu gelu silu softplus mish elu", one(3, 7)),
    *unary("leaky_relu hardswish hardsigmoid hardtanh relu6 selu celu softsign logsigmoid", one(3, 7)),
    *unary("log log2 log10 log1p sqrt rsqrt reciprocal lgamma digamma", positive(3, 7)),
    *unary("asin acos atanh erfinv tan", unit(3, 7)),
    *unary("atan asinh sinh cosh exp2 erfc sinc", unit(3, 7)),
    *unary("acosh", lambda draw: (draw.positive(3, 7) + 1,)),
    *unary("floor ceil round trunc frac sign sgn signbit isnan isinf isfinite", one(3, 7), backward=False),
    *unary("logical_not bitwise_not", integers(), backward=False),
    *binary("add sub mul maximum minimum hypot atan2 logaddexp", two()),
    *binary("div fmod remainder", lambda draw: (draw.normal(3, 7), draw.positive(3, 7))),
    *binary("pow", lambda draw: (draw.positive(3, 7), draw.normal(3, 7))),
    *binary("xlogy", lambda draw: (draw.positive(3, 7), draw.positive(3, 7))),
    *binary("copysign", two()),
    *binary("eq ne lt le gt ge", integers(2), backward=False),
    *binary("bitwise_and bitwise_or bitwise_xor gcd", integers(2), backward=False),
    *binary("logical_and logical_or logical_xor", integers(2, low=0, high=2), backward=False),
    *binary("floor_divide fmod remainder", integers(2, low=1), backward=False),
    Case("integer division signs", lambda x: (x // 3, x % 3, x // -3, x % -3), integers(), backward=False),
    Case("true division of integers", torch.true_divide, integers(2, low=1), backward=False),
    Case("trunc division", lambda x: torch.div(x, 3, rounding_mode="trunc"), integers(), backward=False),
    Case("floor division", lambda x: torch.div(x, 0.7, rounding_mode="floor"), one(3, 7), backward=False),
    Case("shifts", lambda x: (x << 2, x >> 1), integers(), backward=False),
    Case("integer pow", lambda x: (x**2, x**3), integers(), backward=False),
    Case("scalar pow", lambda x: (x**2, x**3, x**0.5, x**-1), positive(3, 7)),
    Case("gelu tanh", lambda x: F.gelu(x, approximate="tanh"), one(3, 7)),
    Case("where", torch.where, lambda d: (d.mask(3, 7), d.normal(3, 7), d.normal(3, 1))),
    Case("where scalar", lambda x: torch.where(x > 0, x, 0.5), one(3, 7)),
    Case("clamp", lambda x: x.clamp(-0.5, 0.7), one(3, 7)),
    Case("clamp tensors", torch.clamp, lambda d: (d.normal(3, 7), d.unit(3, 7) - 1, d.unit(3, 7) + 1)),
    Case("clamp min integers", lambda x: x.clamp_min(0), integers(), backward=False),
    Case("addcmul", lambda x, y, z: torch.addcmul(x, y, z, value=0.5), lambda d: (d.normal(3, 7), *two()(d))),
    Case("addcdiv", lambda x, y, z: torch.addcdiv(x, y, z, value=2), lambda d: two()(d) + positive(3, 7)(d)),
    Case("lerp", lambda x, y: torch.lerp(x, y, 0.3), two()),
    Case("add alpha", lambda x, y: torch.add(x, y, alpha=3), two()),
    Case("rsub", lambda x: 2 - x, one(3, 7)),
    Case("nan_to_num", torch.nan_to_num, lambda d: (d.normal(3, 7) / d.integers(3, 7, low=0, high=2),), backward=False),
    Case("maximum with nan", torch.maximum, lambda d: (d.normal(3, 7).log(), d.normal(3, 7)), backward=False),
    Case("broadcast", lambda x, y: x + y, two((3, 1, 5), (4, 1))),
    Case("mixed dtypes", lambda x, y: x * y, lambda d: (d.normal(3, 7), d.integers(3, 7, dtype=torch.int32))),
    Case("with 0-d", lambda x, y: x * y + 1, lambda d: (d.normal(3, 7), torch.tensor(2.5, device=d.device))),
    Case("casts", lambda x: (x.half(), x.to(torch.int32), x > 0, x.double()), one(3, 7), backward=False),
    Case("integer casts", lambda x: (x.to(torch.int8), x.to(torch.uint8), x.bool(), x.float()), integers(),
         backward=False),
    Case("cast gradient", lambda x: (x.double() * 2).float(), one(3, 7)),
    Case("boolean arithmetic", lambda x, y: (x & y, x | y, x ^ y, ~x, x + y),
         lambda d: (d.mask(3, 7), d.mask(3, 7)), backward=False),
    Case("chain", lambda x, y: (torch.sigmoid(x) * y + x.exp()).tanh(), two()),
    Case("glu", F.glu, one(3, 8)),
    Case("prelu", F.prelu, lambda d: (d.normal(2, 3, 5), d.normal(1))),
    Case("threshold", lambda x: F.threshold(x, 0.1, -1.0), one(3, 7)),
]  # fmt: skip

VIEWS = [
    Case("view", lambda x: x.view(6, -1) * 2, one(3, 4, 5)),
    Case("reshape of transposed", lambda x: x.t().reshape(-1) + 1, one(4, 6)),
    Case("permute", lambda x: x.permute(2, 0, 1) * 2, one(2, 3, 4)),
    Case("permute only", lambda x: x.permute(2, 0, 1), one(2, 3, 4)),
    Case("transpose add", lambda x, y: x.t() + y, lambda d: (d.normal(5, 6), d.plain(6 * d.scale, 5))),
    Case("expand", lambda x: x.expand(4, 3, 5) * 2, one(3, 1)),
    Case("slice", lambda x: x[1:, ::2] + 1, one(4, 8)),
    Case("negative slice", lambda x: x[-3:, :-1] * 2, one(4, 6)),
    Case("select", lambda x: (x[1] + 1, x[:, 2] * 2), one(5, 6)),
    Case("squeeze unsqueeze", lambda x: (x.unsqueeze(1).squeeze() * 2, x[None] + 1), one(3, 7)),
    Case("split", lambda x: [part * i for i, part in enumerate(x.split(2, 0), 1)], one(5, 3)),
    Case("chunk", lambda x: [part.exp() for part in x.chunk(2, -1)], one(3, 8)),
    Case("unbind", lambda x: sum(x.unbind(1)), one(4, 3)),
    Case("as_strided", lambda x: x.as_strided((3, 2), (2, 3), 1) * 2, one(4, 6)),
    Case("diagonal", lambda x: x.diagonal(1) + 1, one(4, 6)),
    Case("diagonal of batch", lambda x: torch.diagonal(x, 0, -2, -1) * 2, one(2, 4, 4)),
    Case("flip", lambda x: x.flip(0, 1) + 1, one(3, 7)),
    Case("roll", lambda x: x.roll((1, -2), (0, 1)) * 2, one(3, 7)),
    Case("roll flat", lambda x: x.roll(3), one(3, 7)),
    Case("pad constant", lambda x: F.pad(x, (1, 2, 0, 1), value=0.5) * 2, one(3, 5)),
    Case("pad negative", lambda x: F.pad(x, (-1, 2)), one(3, 5)),
    Case("pad reflect", lambda x: F.pad(x, (1, 2), mode="reflect") * 2, one(2, 3, 5)),
    Case("pad replicate", lambda x: F.pad(x, (2, 1), mode="replicate") * 2, one(2, 3, 5)),
    Case("pad circular", lambda x: F.pad(x, (1, 2), mode="circular") * 2, one(2, 3, 5)),
    Case("cat", lambda x, y: torch.cat((x, y * 2), 1), two((3, 4), (3, 2))),
    Case("cat rows", lambda x, y: torch.cat((x.exp(), y, x), 0) + 1, two((3, 5), (2, 5))),
    Case("cat of dtypes", lambda x, y: torch.cat((x, y)), lambda d: (d.normal(4), d.integers(3)), backward=False),
    Case("stack", lambda x, y: torch.stack((x, y + 1), 1), two()),
    Case("unfold", lambda x: x.unfold(1, 3, 2) * 2, one(3, 9)),
    Case("im2col", lambda x: F.unfold(x, 2, padding=1), one(1, 2, 4, 4)),
    Case("col2im", lambda x: F.fold(x, (4, 4), 2, stride=2), lambda d: (d.plain(1, 8, 4),)),
    Case("contiguous", lambda x: x.t().contiguous(), one(4, 6)),
    Case("clone of transposed", lambda x: x.t().clone() * 2, one(4, 6)),
    Case("movedim flatten", lambda x: x.movedim(0, -1).flatten(0, 1) + 1, one(2, 3, 4)),
    Case("repeat", lambda x: x.repeat(2, 1, 2), one(3, 4)),
    Case("repeat_interleave", lambda x: x.repeat_interleave(2, 1) + 1, one(3, 4)),
    Case("tile narrow", lambda x: x.tile(2).narrow(1, 1, 3), one(3, 4)),
    Case("swapaxes view", lambda x: x.swapaxes(0, 1).unflatten(0, (2, -1)) * 2, one(3, 4)),
    Case("pixel shuffle", lambda x: F.pixel_shuffle(x, 2) * 2, lambda d: (d.plain(1, 4, 2, 3),)),
    Case("meshgrid", lambda x, y: [a + 1 for a in torch.meshgrid(x, y, indexing="ij")], two((3,), (4,))),
    Case("view as dtype", lambda x: x.float().view(torch.int32) + 1, lambda d: (d.integers(3, 4).float(),),
         backward=False),
    Case("rot90", lambda x: x.rot90(1, (0, 1)) + 1, one(3, 4)),
    Case("select_scatter", lambda x, y: torch.select_scatter(x, y, 0, 1), two((3, 5), (5,))),
    Case("slice_scatter", lambda x, y: torch.slice_scatter(x, y, 1, 1, 3), lambda d: (d.plain(3, 5), d.plain(3, 2))),
]  # fmt: skip


def shifted(x: Tensor) -> Tensor:
    """Returns scores by distance as scores by place: each row begins one further to the right, half as long.

    The relative shift of Dai et al., "Transformer-XL" (2019).
    """
    batch, rows, width = x.shape
    moved = x.reshape(batch, width, rows)[:, 1:].reshape(batch, rows, width - 1)
    return moved[..., : width // 2]


REDUCTIONS = [
    Case("sum all", torch.sum, one(4, 9)),
    Case("sum rows", lambda x: x.sum(-1), one(4, 9)),
    Case("sum columns", lambda x: x.sum(0), one(9, 4)),
    Case("sum middle keepdim", lambda x: x.sum(1, keepdim=True), one(2, 5, 4)),
    Case("sum two dims", lambda x: x.sum((0, 2)), one(2, 5, 4)),
    Case("sum of integers", lambda x: (x.sum(), x.sum(1)), integers(), backward=False),
    Case("sum to dtype", lambda x: x.sum(-1, dtype=torch.float64), one(4, 9)),
    Case("mean", lambda x: (x.mean(), x.mean(-1), x.mean((0, 1), keepdim=True)), one(4, 9)),
    Case("prod", lambda x: x.prod(-1), lambda d: (d.near_one(4, 5),)),
    Case("prod all", lambda x: x.prod(), positive(4)),
    Case("amax amin", lambda x: (x.amax(-1), x.amin(0)), lambda d: (d.ties_free(4, 9),)),
    Case("max min values", lambda x: (x.max(), x.min()), lambda d: (d.ties_free(4, 9),)),
    Case("max with index", lambda x: tuple(x.max(-1)), lambda d: (d.ties_free(4, 9),)),
    Case("min with index", lambda x: tuple(x.min(0)), lambda d: (d.ties_free(4, 9),)),
    Case("argmax argmin", lambda x: (x.argmax(), x.argmax(-1), x.argmin(0)), lambda d: (d.ties_free(4, 9),),
         backward=False),
    Case("argmax of ties", lambda x: (x.argmax(-1), x.argmin(0)), integers(low=0, high=3), backward=False),
    Case("amax with nan", lambda x: (x.amax(-1), x.argmax(-1)), lambda d: (d.normal(4, 9).log(),), backward=False),
    Case("any all", lambda x: (x.any(), x.any(-1), x.all(0), x.all()), lambda d: (d.mask(4, 9),), backward=False),
    Case("count_nonzero", lambda x: torch.count_nonzero(x, -1), integers(low=-1, high=2), backward=False),
    Case("var", lambda x: (x.var(), x.var(-1), x.var(0, unbiased=False)), one(4, 9)),
    Case("std", lambda x: x.std(-1), one(4, 9)),
    Case("var_mean", lambda x: torch.var_mean(x, 1, correction=0), one(2, 5, 4)),
    Case("logsumexp", lambda x: torch.logsumexp(x, -1), one(4, 9)),
    Case("2-norm", lambda x: torch.linalg.vector_norm(x, dim=-1), one(4, 9)),
    Case("1-norm", lambda x: torch.linalg.vector_norm(x, 1, dim=0), one(4, 9)),
    Case("inf-norm", lambda x: torch.linalg.vector_norm(x, float("inf"), dim=-1), lambda d: (d.ties_free(4, 9),)),
    Case("normalize", lambda x: F.normalize(x, dim=-1), one(4, 9)),
    Case("cosine similarity", lambda x, y: F.cosine_similarity(x, y, dim=-1), two((4, 9), (4, 9))),
    Case("aminmax", lambda x: tuple(torch.aminmax(x, dim=-1)), lambda d: (d.ties_free(4, 9),), backward=False),
    Case("long row sum", lambda x: (x * 2).sum(-1), one(1, 190)),
    Case("long column sum", lambda x: x.exp().sum(0), one(95, 2)),
    Case("softmax", lambda x: torch.softmax(x, -1), one(4, 9)),
    Case("softmax columns", lambda x: torch.softmax(x, 0), one(4, 9)),
    Case("softmax to dtype", lambda x: torch.softmax(x, -1, dtype=torch.promote_types(x.dtype, torch.float32)),
         one(4, 9)),
    Case("softmax of shifted rows", lambda x: torch.softmax(shifted(x), -1), one(3, 5, 10)),
    Case("log_softmax", lambda x: torch.log_softmax(x, -1), one(4, 9)),
    Case("masked softmax", lambda x, m: torch.softmax(x.masked_fill(m, float("-inf")), -1),
         lambda d: (d.normal(4, 9), torch.ones(4, 9 * d.scale, device=d.device).triu(3).bool())),
    Case("row centred", lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-3), one(4, 9)),
]  # fmt: skip


def running(draw: Draw, channels: int) -> tuple[Tensor, Tensor]:
    """Returns a running mean and variance in float32, not scaled."""
    return torch.randn(channels, device=draw.device), torch.rand(channels, device=draw.device) + 0.5


def weights(draw: Draw, channels: int) -> tuple[Tensor, Tensor]:
    """Returns a weight and a bias, not scaled."""
    return tuple(torch.randn(channels, device=draw.device, dtype=draw.dtype) for _ in range(2))


NORMS = [
    Case("layer norm", lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
         lambda d: (d.normal(4, 9), d.normal(9), d.normal(9))),
    Case("layer norm plain", lambda x: F.layer_norm(x, x.shape[1:]), one(3, 2, 5)),
    Case("rms norm", lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-5), lambda d: (d.normal(4, 9), d.normal(9))),
    Case("group norm", lambda x, w, b: F.group_norm(x, 2, w, b), lambda d: (d.normal(2, 4, 5), *weights(d, 4))),
    Case("instance norm", F.instance_norm, one(2, 3, 6)),
    Case("batch norm training", lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
         lambda d: (d.normal(4, 3, 5), *weights(d, 3))),
    Case("batch norm evaluation", lambda x, m, v, w, b: F.batch_norm(x, m.detach().to(x), v.detach().to(x), w, b),
         lambda d: (d.normal(4, 3, 5), *running(d, 3), *weights(d, 3)), wide_only=True),
    Case("local response norm", lambda x: F.local_response_norm(x, 2), one(2, 4, 5)),
]  # fmt: skip

LOSSES = [
    Case("mse", F.mse_loss, two()),
    Case("l1", F.l1_loss, two()),
    Case("smooth l1", F.smooth_l1_loss, two()),
    Case("huber", F.huber_loss, two()),
    Case("bce with logits", F.binary_cross_entropy_with_logits, lambda d: (d.normal(3, 7), d.unit(3, 7).abs())),
    Case("bce", F.binary_cross_entropy, lambda d: (d.unit(3, 7).abs() * 0.9 + 0.05, d.unit(3, 7).abs()),
         wide_only=True),
    Case("kl div", lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"), two()),
    Case("cross entropy", F.cross_entropy, lambda d: (d.normal(5, 7), torch.randint(7, (5,), device=d.device))),
    Case("cross entropy ignoring", lambda x, y: F.cross_entropy(x, y, ignore_index=2, label_smoothing=0.1),
         lambda d: (d.normal(5, 7), torch.randint(7, (5,), device=d.device))),
    Case("nll", lambda x, y: F.nll_loss(x.log_softmax(-1), y, reduction="sum"),
         lambda d: (d.normal(5, 7), torch.randint(7, (5,), device=d.device))),
]  # fmt: skip


def rows_and_indices(draw: Draw, rows: int, width: int, count: int) -> tuple[Tensor, Tensor]:
    """Returns `[rows, width]` and `count` row numbers, some of them twice."""
    return draw.normal(rows, width), torch.randint(rows, (count,), device=draw.device)


def scattering(draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
    """Returns a target, distinct indices along dim 0 and a source."""
    index = torch.stack([torch.randperm(5, device=draw.device)[:3] for _ in range(4)], 1)
    return (
        draw.plain(5, 4),
        index,
        draw.plain(3, 4),
    )


def colliding(draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
    """Returns a target, indices along dim 0 that hit some rows several times, and a source."""
    target, _, source = scattering(draw)
    return target, torch.randint(3, (3, 4), device=draw.device), source


def assigned(x: Tensor, values: Tensor) -> Tensor:
    """Returns rows, those that begin with a positive number all the same."""
    rows = x * 2
    rows[x[..., 0] > 0] = values
    return rows + 1


INDEXING = [
    Case("embedding", F.embedding,
         lambda d: (torch.randint(7, (2, 5), device=d.device), d.normal(7, 4))),
    Case("embedding scaled by frequency", lambda i, w: F.embedding(i, w, scale_grad_by_freq=True),
         lambda d: (torch.randint(7, (2, 5), device=d.device), d.normal(7, 4))),
    Case("embedding with padding", lambda i, w: F.embedding(i, w, padding_idx=1),
         lambda d: (torch.randint(7, (2, 5), device=d.device), d.normal(7, 4))),
    Case("index rows", lambda x, i: x[i] * 2, lambda d: rows_and_indices(d, 6, 5, 4)),
    Case("index negative", lambda x, i: x[i - 6], lambda d: rows_and_indices(d, 6, 5, 4)),
    Case("index columns", lambda x, i: x[:, i], lambda d: (d.normal(4, 6), torch.randint(6, (3,), device=d.device))),
    Case("index pairs", lambda x, i, j: x[i, j],
         lambda d: (d.normal(4, 6), torch.randint(4, (5,), device=d.device), torch.randint(6, (5,), device=d.device))),
    Case("index apart", lambda x, i, j: x[i, :, j],
         lambda d: (d.normal(4, 3, 6), torch.randint(4, (5,), device=d.device),
                    torch.randint(6, (5,), device=d.device))),
    Case("index broadcast", lambda x, i, j: x[i[:, None], j],
         lambda d: (d.normal(4, 6), torch.randint(4, (3,), device=d.device), torch.randint(6, (2,), device=d.device))),
    Case("gather", lambda x, i: x.gather(1, i), lambda d: (d.normal(4, 6), torch.randint(6, (4, 3), device=d.device))),
    Case("take_along_dim", lambda x, i: torch.take_along_dim(x, i, 0),
         lambda d: (d.normal(4, 6), torch.randint(4, (2, 6 * d.scale), device=d.device))),
    Case("index_select", lambda x, i: x.index_select(0, i) + 1, lambda d: rows_and_indices(d, 6, 5, 4)),
    Case("scatter", lambda x, i, s: x.scatter(0, i, s), scattering),
    Case("scatter value", lambda x, i, s: x.scatter(0, i, 2.5), scattering),
    Case("scatter_add", lambda x, i, s: x.scatter_add(0, i, s), colliding),
    Case("scatter_reduce", lambda x, i, s: x.scatter_reduce(0, i, s, "amax"), colliding),
    Case("scatter minimum", lambda x, i, s: x.scatter_reduce(0, i, s, "amin", include_self=False), colliding),
    Case("scatter mean", lambda x, i, s: x.scatter_reduce(0, i, s, "mean"), colliding, wide_only=True),
    Case("scatter product", lambda x, i, s: x.scatter_reduce(0, i, s, "prod"), colliding, wide_only=True),
    Case("scatter of integers", lambda x, i, s: x.scatter_reduce(0, i, s, "prod", include_self=False),
         lambda d: (d.integers(5), d.indices(9, size=5), d.integers(9)), backward=False),
    Case("index_reduce", lambda x, i, v: x.index_reduce(0, i, v, "mean"),
         lambda d: (d.plain(6, 5), torch.randint(3, (4,), device=d.device), d.plain(4, 5)), wide_only=True),
    Case("put", lambda x, i, v: x.put(i, v, accumulate=True),
         lambda d: (d.plain(6, 5), torch.randint(-30, 30, (8,), device=d.device), d.plain(8))),
    Case("index_put", lambda x, i, v: x.index_put((i,), v),
         lambda d: (d.plain(6, 5), torch.randperm(6, device=d.device)[:3],
                    d.plain(3, 5))),
    Case("index_put accumulating", lambda x, i, v: x.index_put((i,), v, accumulate=True),
         lambda d: (d.plain(6, 5), torch.randint(3, (4,), device=d.device),
                    d.plain(4, 5))),
    Case("index_add", lambda x, i, v: x.index_add(0, i, v, alpha=2),
         lambda d: (d.plain(6, 5), torch.randint(3, (4,), device=d.device),
                    d.plain(4, 5))),
    Case("index_copy", lambda x, i, v: x.index_copy(0, i, v),
         lambda d: (d.plain(6, 5), torch.randperm(6, device=d.device)[:3],
                    d.plain(3, 5))),
    Case("index_fill", lambda x, i: x.index_fill(0, i, 1.5), lambda d: rows_and_indices(d, 6, 5, 3)),
    Case("masked_fill", lambda x, m: x.masked_fill(m, -2.0), lambda d: (d.normal(3, 7), d.mask(3, 7))),
    Case("masked_fill broadcast", lambda x, m: x.masked_fill(m, 0) * 2, lambda d: (d.normal(3, 7), d.mask(7))),
    Case("assign under mask", lambda x, m: torch.where(m, x, x.new_zeros(())) + 1,
         lambda d: (d.normal(3, 7), d.mask(3, 7))),
    Case("one_hot", lambda i: F.one_hot(i, 6), lambda d: (torch.randint(6, (2, 4), device=d.device),), backward=False),
    Case("write to the places of a mask", assigned, two((3, 7, 5), (5,))),
    Case("masked_scatter", lambda x, m, s: x.masked_scatter(m, s) * 2,
         lambda d: (d.normal(3, 7), d.mask(3, 7), d.normal(4, 7))),
    Case("nonzero_static", lambda m: torch.nonzero_static(m, size=9), lambda d: (d.mask(3, 7),), backward=False),
    Case("as_strided_scatter", lambda x, s: torch.as_strided_scatter(x, s, (2, 3), (7, 2), 1),
         lambda d: (d.plain(3, 5), d.plain(2, 3))),
    Case("triangle indices", lambda x: x[torch.tril_indices(5, 5, -1, device=x.device).unbind()],
         lambda d: (d.plain(5, 5),)),
    Case("repeat_interleave", lambda x, r: x.repeat_interleave(r, 0, output_size=6),
         lambda d: (d.plain(3, 5), torch.tensor([1, 0, 5], device=d.device))),
    Case("searchsorted", lambda x, s: torch.searchsorted(s.sort(-1).values, x, right=True),
         lambda d: (d.normal(3, 7), d.normal(3, 50)), backward=False),
    Case("searchsorted through positions", lambda x, s: torch.searchsorted(s, x, sorter=s.argsort(-1)),
         lambda d: (d.normal(3, 7), d.normal(3, 50)), backward=False),
    Case("bucketize", lambda x, b: torch.bucketize(x, b.sort().values), lambda d: (d.normal(3, 7), d.normal(5)),
         backward=False),
    Case("isin", torch.isin, integers(2, low=0, high=20), backward=False),
    Case("gather of sum", lambda x, i: (x * 2).gather(1, i).sum(-1),
         lambda d: (d.normal(4, 6), torch.randint(6, (4, 3), device=d.device))),
]  # fmt: skip

FACTORIES = [
    Case("arange", lambda x: x + torch.arange(x.shape[-1], device=x.device), one(3, 7)),
    Case("arange float step", lambda x: torch.arange(0.0, 3.5, 0.5, device=x.device) * 2, one(3), backward=False),
    Case("full", lambda x: torch.full((3, 4), 2.5, device=x.device) + x, one(1)),
    Case("zeros ones like", lambda x: torch.zeros_like(x) + torch.ones_like(x) * x, one(3, 7)),
    Case("new factories", lambda x: (x.new_zeros(3, 2), x.new_full((2,), 7), x.new_ones(4)), one(3), backward=False),
    Case("eye", lambda x: torch.eye(4, 5, device=x.device) * 3, one(3), backward=False),
    Case("linspace", lambda x: torch.linspace(0, 1, 9, device=x.device) + 1, one(3), backward=False),
    Case("tril triu", lambda x: (x.tril(1), x.triu(-1) * 2), one(5, 6)),
    Case("causal mask", lambda x: torch.ones(5, 5, device=x.device, dtype=torch.bool).tril(), one(1), backward=False),
    Case("scalar tensor", lambda x: x * torch.tensor(3.0, device=x.device), one(3, 7)),
    Case("integer arange", lambda x: torch.arange(10, 0, -3, device=x.device), one(1), backward=False),
    Case("empty_like filled", lambda x: torch.empty_like(x).fill_(4) + x, one(3, 7)),
]


def nucleus(logits: Tensor) -> Tensor:
    """Returns the distribution restricted to the likeliest outcomes that make up 70 percent."""
    values, places = logits.sort(-1, descending=True)
    shares = (values / 8).softmax(-1)
    kept = values.masked_fill(shares.cumsum(-1) - shares > 0.7, -100.0)
    return torch.zeros_like(logits).scatter(-1, places, kept).softmax(-1)


def experts(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the weights of the two best experts of each token, and how much each expert got."""
    weights, chosen = scores.softmax(-1).topk(2, -1)
    weights = weights / weights.sum(-1, keepdim=True)
    load = torch.zeros_like(scores[0]).index_add(0, chosen.flatten(), weights.flatten())
    return weights, load


ORDERED = [
    Case("sort", lambda x: tuple(x.sort(-1)), lambda d: (d.ties_free(4, 9),)),
    Case("sort descending", lambda x: tuple(x.sort(0, descending=True)), lambda d: (d.ties_free(4, 9),)),
    Case("stable sort", lambda x: tuple(x.sort(dim=-1, stable=True)), integers(low=0, high=3), backward=False),
    Case("argsort", lambda x: x.argsort(-1), lambda d: (d.ties_free(4, 9),), backward=False),
    Case("topk", lambda x: tuple(x.topk(3, -1)), lambda d: (d.ties_free(4, 9),)),
    Case("topk of the smallest", lambda x: tuple(x.topk(2, 0, largest=False)), lambda d: (d.ties_free(4, 9),)),
    Case("kthvalue", lambda x: tuple(x.kthvalue(2, -1)), lambda d: (d.ties_free(4, 9),)),
    Case("median", lambda x: tuple(x.median(-1)), lambda d: (d.ties_free(4, 9),)),
    Case("median of all", lambda x: x.median(), lambda d: (d.ties_free(4, 9),)),
    Case("nanmedian", lambda x: tuple(x.nanmedian(0)), lambda d: (d.ties_free(4, 9),)),
    Case("mode", lambda x: x.mode(-1).values, integers(low=0, high=4), backward=False),
    Case("msort", torch.msort, lambda d: (d.ties_free(4, 9),)),
    Case("nucleus of a distribution", nucleus, lambda d: (d.ties_free(4, 9),), wide_only=True),
    Case("experts of tokens", experts, lambda d: (d.ties_free(6, 9),), wide_only=True),
    Case("ranks", lambda x: x.argsort(-1).argsort(-1), lambda d: (d.ties_free(4, 9),), backward=False),
    Case("trimmed mean", lambda x: x.sort(0).values[1:-1].mean(0), lambda d: (d.ties_free(6, 9),)),
    Case("cumsum", lambda x: x.cumsum(-1) * 2, one(4, 9)),
    Case("cumsum columns", lambda x: x.cumsum(0), one(4, 9)),
    Case("cumprod", lambda x: x.cumprod(-1), lambda d: (d.near_one(4, 5),)),
    Case("cummax", lambda x: tuple(x.cummax(-1)), lambda d: (d.ties_free(4, 9),)),
    Case("logcumsumexp", lambda x: x.logcumsumexp(-1), one(4, 9)),
    Case("diff", lambda x: x.diff(dim=-1), one(4, 9)),
    Case("cumulative trapezoid", lambda x: torch.cumulative_trapezoid(x, dim=0), one(4, 9)),
    Case("cumsum of few long lines", lambda x: x.cumsum(-1), lambda d: (d.plain(2, 40000),), wide_only=True),
    Case(
        "cummin of few long lines",
        lambda x: tuple(x.cummin(0)),
        lambda d: (d.plain(50000, 3),),
        backward=False,
        wide_only=True,
    ),
    Case("histc", lambda x: torch.histc(x, 10, -2, 2), one(4, 9), backward=False, wide_only=True),
]

MATRICES = [
    Case("mm", torch.mm, lambda d: (d.normal(4, 6), d.normal(6 * d.scale, 3))),
    Case("mm and relu", lambda x, y: (x @ y).relu() + 1, lambda d: (d.normal(4, 6), d.normal(6 * d.scale, 3))),
    Case("mm of transposed", lambda x, y: x.t() @ y, two((6, 4), (6, 3))),
    Case("addmm", lambda b, x, y: torch.addmm(b, x, y, beta=0.5, alpha=2),
         lambda d: (d.normal(3), d.normal(4, 6), d.normal(6 * d.scale, 3))),
    Case("bmm", torch.bmm, lambda d: (d.normal(2, 4, 6), d.normal(2, 6 * d.scale, 3))),
    Case("baddbmm", lambda b, x, y: torch.baddbmm(b, x, y, alpha=0.5),
         lambda d: (d.normal(2, 4, 3), d.normal(2, 4, 6), d.normal(2, 6 * d.scale, 3))),
    Case("matmul broadcast", torch.matmul, lambda d: (d.normal(2, 3, 4, 5), d.normal(5 * d.scale, 6))),
    Case("linear gelu", lambda x, w, b: F.gelu(F.linear(x, w, b)), lambda d: (d.normal(2, 4, 6), d.normal(5, 6),
         d.plain(5))),
    Case("einsum", lambda x, y: torch.einsum("bij,bkj->bik", x, y), two((2, 3, 4), (2, 5, 4))),
    Case("dot", torch.dot, two((6,), (6,))),
    Case("mv", torch.mv, two((4, 6), (6,))),
    Case("outer", torch.outer, two((4,), (6,))),
    Case("attention", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
         lambda d: tuple(d.normal(1, 2, 5, 8) for _ in range(3))),
    Case("attention by hand", lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1) @ v,
         lambda d: tuple(d.normal(1, 2, 5, 8) for _ in range(3))),
]  # fmt: skip


def picture(draw: Draw, channels: int = 2, edge: int = 6) -> Tensor:
    """Returns a `[1, channels, edge, edge]` image, its edge not scaled beyond 4 times."""
    edge *= min(draw.scale, 4)
    return torch.randn(1, channels, edge, edge, device=draw.device).to(draw.dtype)


def kernel(draw: Draw, *shape: int) -> Tensor:
    return torch.randn(*shape, device=draw.device).to(draw.dtype)


IMAGES = [
    Case("conv2d", lambda x, w, b: F.conv2d(x, w, b, padding=1).relu(),
         lambda d: (picture(d), kernel(d, 3, 2, 3, 3), kernel(d, 3))),
    Case("conv2d strided", lambda x, w: F.conv2d(x, w, stride=2, dilation=2),
         lambda d: (picture(d), kernel(d, 3, 2, 2, 2))),
    Case("conv2d grouped", lambda x, w: F.conv2d(x, w, groups=2, padding=1),
         lambda d: (picture(d), kernel(d, 4, 1, 3, 3))),
    Case("conv2d channels last", lambda x, w: F.conv2d(x.to(memory_format=torch.channels_last), w) * 2,
         lambda d: (picture(d), kernel(d, 3, 2, 3, 3))),
    Case("conv1d", lambda x, w: F.conv1d(x, w, padding="same"), lambda d: (d.normal(2, 3, 8), kernel(d, 4, 3, 3))),
    Case("conv transpose", lambda x, w: F.conv_transpose2d(x, w, stride=2),
         lambda d: (picture(d), kernel(d, 2, 3, 2, 2))),
    Case("max pool", lambda x: F.max_pool2d(x, 2), lambda d: (picture(d),)),
    Case("max pool padded", lambda x: F.max_pool2d(x, 3, stride=2, padding=1) + 1, lambda d: (picture(d),)),
    Case("average pool", lambda x: F.avg_pool2d(x, 2) * 2, lambda d: (picture(d),)),
    Case("average pool padded", lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
         lambda d: (picture(d),)),
    Case("adaptive average pool", lambda x: F.adaptive_avg_pool2d(x, (1, 1)), lambda d: (picture(d),)),
    Case("adaptive average pool uneven", lambda x: F.adaptive_avg_pool2d(x, (4, 5)), lambda d: (picture(d),)),
    Case("adaptive max pool", lambda x: F.adaptive_max_pool2d(x, 3), lambda d: (picture(d),)),
    Case("upsample nearest", lambda x: F.interpolate(x, scale_factor=2) + 1, lambda d: (picture(d, edge=3),)),
    Case("upsample bilinear", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
         lambda d: (picture(d, edge=3),)),
    Case("channel bias", lambda x, b: (x + b[None, :, None, None]).relu(), lambda d: (picture(d), kernel(d, 2))),
]  # fmt: skip


FAMILIES: dict[str, list[Case]] = {
    "pointwise": POINTWISE,
    "views": VIEWS,
    "reductions": REDUCTIONS,
    "norms": NORMS,
    "losses": LOSSES,
    "indexing": INDEXING,
    "factories": FACTORIES,
    "ordered": ORDERED,
    "matrices": MATRICES,
    "images": IMAGES,
}
