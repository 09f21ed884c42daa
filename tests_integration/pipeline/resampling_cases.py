"""Small cases of pooling, resampling, sampling by a grid, padding and windows laid out as columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from op_cases import Case, Draw

SIZES = (7, 6, 5)


def image(rank: int, *sizes: int, channels: int = 2) -> Callable[[Draw], tuple[Tensor, ...]]:
    """Returns a maker of two images; not scaled, windows being what is looked at."""
    return lambda d: (d.plain(2, channels, *(sizes or SIZES[:rank])),)


def distinct(rank: int, *sizes: int) -> Callable[[Draw], tuple[Tensor, ...]]:
    """Returns a maker of images without ties, in which half types tell elements apart."""
    shape = (1, 1, *(sizes or SIZES[:rank]))

    def make(draw: Draw) -> tuple[Tensor, ...]:
        count = torch.Size(shape).numel()
        return (((torch.randperm(count, device=draw.device) - count // 2) / 4).view(shape).to(draw.dtype),)

    return make


def channels_last(make: Callable[[Draw], tuple[Tensor, ...]]) -> Callable[[Draw], tuple[Tensor, ...]]:
    """Returns a maker of the same image with its channels last in memory."""

    def made(draw: Draw) -> tuple[Tensor, ...]:
        (x,) = make(draw)
        return (x.to(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d),)

    return made


def ranked(name: str, rank: int) -> Callable[..., Any]:
    return getattr(F, name.format(rank))


def windows(rank: int) -> list[Case]:
    """Returns cases of pooling over this many axes."""
    largest, mean = ranked("max_pool{}d", rank), ranked("avg_pool{}d", rank)
    picks, means = ranked("adaptive_max_pool{}d", rank), ranked("adaptive_avg_pool{}d", rank)
    norms, unpool = ranked("lp_pool{}d", rank), ranked("max_unpool{}d", rank)

    def unpooled(x: Tensor) -> Tensor:
        return unpool(*largest(x, 2, return_indices=True), 2, output_size=x.shape[2:])

    cases = [
        Case("max", lambda x: largest(x, 2), distinct(rank)),
        Case("max padded", lambda x: largest(x, 3, 2, 1, ceil_mode=True), distinct(rank)),
        Case("max dilated places", lambda x: largest(x, 2, 1, 1, 2, return_indices=True), distinct(rank)),
        Case("max unbatched", lambda x: largest(x[0], 2), distinct(rank)),
        Case("mean", lambda x: mean(x, 2), image(rank)),
        Case("mean padded", lambda x: mean(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), image(rank)),
        Case("mean padded counted", lambda x: mean(x, 3, 2, 1), image(rank)),
        Case("adaptive max", lambda x: picks(x, 3, return_indices=True), distinct(rank)),
        Case("adaptive mean", lambda x: means(x, 3), image(rank)),
        Case("adaptive mean growing", lambda x: means(x, 8), image(rank)),
        Case("norm", lambda x: norms(x.abs() + 0.1, 2.0, 2), image(rank), wide_only=True),
        Case("unpooled", unpooled, distinct(rank)),
    ]
    if rank > 1:
        cases += [
            Case("max channels last", lambda x: largest(x, 3, 2, 1), channels_last(distinct(rank))),
            Case("mean channels last", lambda x: mean(x, 3, 2, 1), channels_last(image(rank))),
            Case("mean divided", lambda x: mean(x, 3, 1, 1, divisor_override=4), image(rank)),
            Case("adaptive mean channels last", lambda x: means(x, 3), channels_last(image(rank))),
            Case("fractional", fractional(rank), lambda d: (*distinct(rank)(d), samples(d, rank)), wide_only=True),
        ]
    return [Case(f"{rank}d {c.name}", c.function, c.inputs, c.backward, c.wide_only) for c in cases]


def fractional(rank: int) -> Callable[[Tensor, Tensor], Any]:
    pool = ranked("fractional_max_pool{}d", rank)
    return lambda x, s: pool(x, 2, output_size=3, return_indices=True, _random_samples=s.detach().to(x.dtype))


def samples(draw: Draw, rank: int) -> Tensor:
    """Returns where random windows start, the same exactly in all widths."""
    return torch.randint(64, (1, 1, rank), device=draw.device) / 64


POOLING = [case for rank in (1, 2, 3) for case in windows(rank)]


def resized(mode: str, rank: int, *, channels: bool = False, **how: Any) -> Case:
    # With fewer than sixteen channels torch's kernels and its fake tensors disagree about where they lie.
    make = channels_last(image(rank, channels=16)) if channels else image(rank)
    name = " ".join(f"{key}={value}" for key, value in how.items())
    name += " channels last" * channels
    return Case(f"{rank}d {mode} {name}", lambda x: F.interpolate(x, mode=mode, **how), make)


LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}
RESAMPLING = [
    *(resized(mode, rank, scale_factor=factor)
      for mode in ("nearest", "nearest-exact") for rank in (1, 2, 3) for factor in (2, 1.7, 0.6)),
    *(resized(LINEAR[rank], rank, scale_factor=factor, align_corners=aligned)
      for rank in (1, 2, 3) for factor in (2, 0.6) for aligned in (False, True)),
    *(resized("bicubic", 2, scale_factor=factor, align_corners=aligned)
      for factor in (2, 0.6) for aligned in (False, True)),
    *(resized(mode, 2, size=size) for mode in ("nearest", "bilinear", "bicubic") for size in ((7, 3), (1, 1), (20, 9))),
    *(resized(mode, 2, scale_factor=2.5, channels=True) for mode in ("nearest", "bilinear", "bicubic")),
]  # fmt: skip

# torch has no antialiased resampling of half types on the CPU, and on a GPU it rounds between the axes.
ANTIALIASED = [
    Case(f"{mode} {factor} aligned={aligned}",
         lambda x, m=mode, f=factor, a=aligned: F.interpolate(x, None, f, m, a, antialias=True),
         image(2, 11, 9), wide_only=True)
    for mode in ("bilinear", "bicubic") for factor in (1.8, 0.4) for aligned in (False, True)
]  # fmt: skip


def sampled(rank: int, mode: str, padding: str, *, aligned: bool) -> Case:
    outputs = (4, 3, 2)[:rank]

    def make(draw: Draw) -> tuple[Tensor, ...]:
        # In between elements: where a kernel rounds to decides which element is seen, or which way a slope goes.
        grid = torch.randint(-19, 20, (2, *outputs, rank), device=draw.device) / 16 + 1 / 32
        return draw.plain(2, 3, *SIZES[:rank]), grid.to(draw.dtype)

    def function(x: Tensor, grid: Tensor) -> Tensor:
        return F.grid_sample(x, grid, mode, padding, align_corners=aligned)

    return Case(f"{rank}d {mode} {padding} aligned={aligned}", function, make, wide_only=True)


GRIDS = [
    *(sampled(rank, mode, padding, aligned=aligned)
      for rank in (2, 3) for mode in ("bilinear", "nearest", "bicubic") if (rank, mode) != (3, "bicubic")
      for padding in ("zeros", "border", "reflection") for aligned in (False, True)),
    Case("nowhere", lambda x, g: F.grid_sample(x, g.detach(), align_corners=True),
         lambda d: (d.plain(1, 2, 4, 5), torch.tensor([[[[float("nan"), 0.0], [float("inf"), 0.5], [1.0, 1.0]]]],
                                                      device=d.device, dtype=d.dtype)), wide_only=True),
    *(Case(f"affine {rank}d aligned={aligned}", lambda t, r=rank, a=aligned: F.affine_grid(t, (2, 3, *SIZES[:r]), a),
           lambda d, r=rank: (d.plain(2, r, r + 1),), wide_only=True)
      for rank in (2, 3) for aligned in (False, True)),
]  # fmt: skip

PADDING = [
    *(Case(f"{rank}d {mode} {pads}", lambda x, p=pads, m=mode: F.pad(x, p, mode=m) * 2, image(rank, *(5, 4, 3)[:rank]))
      for mode in ("reflect", "replicate", "circular")
      for rank, pads in ((1, (2, 1)), (1, (0, 3)), (2, (2, 1, 1, 3)), (2, (0, 0, 2, 0)), (3, (1, 2, 2, 0, 1, 1)))),
    *(Case(f"{mode} cropping", lambda x, m=mode: F.pad(x, (-1, 2, 3, -2), mode=m), image(2, 5, 4))
      for mode in ("reflect", "replicate", "constant")),
    # On a CPU, torch 2.11's fake kernel packs it, and the real one does not.
    *(Case("replicate channels last", lambda x: F.pad(x, (1, 2, 2, 1), mode="replicate"), channels_last(image(2, 5, 4)))
      for is_laid_out_alike in (torch.__version__ >= "2.12",) if is_laid_out_alike),
    Case("replicate one element", lambda x: F.pad(x, (2, 3), mode="replicate"), image(1, 1)),
    *(Case(f"unfold {how}", lambda x, h=how: F.unfold(x, *h), image(2)) for how in ((2,), (3, 1, 1, 2), (2, 2, 2, 3))),
    *(Case(f"fold {how}", lambda x, h=how: F.fold(x, (7, 6), *h), lambda d, h=how: (F.unfold(image(2)(d)[0], *h),))
      for how in ((2,), (3, 1, 1, 2), (2, 2, 2, 3))),
]  # fmt: skip

FAMILIES = {
    "pooling": POOLING,
    "resampling": RESAMPLING,
    "antialiased": ANTIALIASED,
    "grids": GRIDS,
    "padding": PADDING,
}
