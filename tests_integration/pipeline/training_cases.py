"""Small cases of what training code calls: losses, distances, embeddings, fake quantisation, products with vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.ao.quantization.fx._decomposed  # enters the quantized_decomposed ops
import torch.nn.functional as F
from torch import Tensor

from op_cases import Case, Draw

aten = torch.ops.aten
decomposed = torch.ops.quantized_decomposed
Make = Callable[[Draw], tuple[Any, ...]]
REDUCTIONS = ("mean", "sum", "none")


def pair(*shape: int) -> Make:
    return lambda d: (d.plain(*shape), d.plain(*shape))


def labels(draw: Draw, classes: int, *shape: int) -> Tensor:
    """Returns class numbers."""
    return torch.randint(classes, shape, device=draw.device)


def signs(draw: Draw, *shape: int) -> Tensor:
    """Returns integers that are 1 or -1."""
    return torch.randint(2, shape, device=draw.device) * 2 - 1


def reduced(name: str, function: Callable[..., Any], make: Make, **flags: bool) -> list[Case]:
    """Returns a case per reduction; ``function`` takes one by name."""
    return [Case(f"{name} {kind}", lambda *x, k=kind: function(*x, reduction=k), make, **flags) for kind in REDUCTIONS]


LOSSES = [
    *reduced("soft margin", F.soft_margin_loss, lambda d: (d.plain(3, 5), signs(d, 3, 5))),
    *reduced("nll weighted", lambda x, y, w, **how: F.nll_loss(x.log_softmax(1), y, w.detach(), ignore_index=1, **how),
             lambda d: (d.plain(4, 5), labels(d, 5, 4), d.plain(5).abs() + 0.1), wide_only=True),
    *reduced("nll 2d", lambda x, y, w, **how: F.nll_loss(x.log_softmax(1), y, w.detach(), ignore_index=1, **how),
             lambda d: (d.plain(2, 5, 3, 4), labels(d, 5, 2, 3, 4), d.plain(5).abs() + 0.1), wide_only=True),
    *reduced("cross entropy smoothed", lambda x, y, **how: F.cross_entropy(x, y, label_smoothing=0.1, **how),
             lambda d: (d.plain(2, 5, 3), labels(d, 5, 2, 3)), wide_only=True),
    *reduced("cross entropy of probabilities", lambda x, y, **how: F.cross_entropy(x, y.softmax(1), **how), pair(4, 5)),
    *reduced("multi margin", F.multi_margin_loss, lambda d: (d.plain(4, 5), labels(d, 5, 4))),
    *reduced("multi margin squared", lambda x, y, w, **how: F.multi_margin_loss(x, y, 2, 0.7, w.detach(), **how),
             lambda d: (d.plain(4, 5), labels(d, 5, 4), d.plain(5).abs()), wide_only=True),
    *reduced("multilabel margin", F.multilabel_margin_loss,
             lambda d: (d.plain(4, 4), torch.tensor([[0, 2, -1, 1], [3, -1, 0, 0], [-1, 1, 2, 3], [1, 1, 3, 0]],
                                                    device=d.device)), wide_only=True),
    *reduced("multilabel soft margin", lambda x, y, **how: F.multilabel_soft_margin_loss(x, y.sigmoid(), **how),
             pair(3, 5)),
    *reduced("margin ranking", lambda x, y, s, **how: F.margin_ranking_loss(x, y, s, 0.2, **how),
             lambda d: (d.plain(5), d.plain(5), signs(d, 5))),
    *reduced("hinge embedding", F.hinge_embedding_loss, lambda d: (d.plain(3, 5), signs(d, 3, 5))),
    *reduced("cosine embedding", lambda x, y, s, **how: F.cosine_embedding_loss(x, y, s, 0.1, **how),
             lambda d: (d.plain(4, 5), d.plain(4, 5), signs(d, 4))),
    *reduced("triplet margin", lambda x, y, z, **how: F.triplet_margin_loss(x, y, z, swap=True, **how),
             lambda d: (d.plain(4, 5), d.plain(4, 5), d.plain(4, 5))),
    *reduced("poisson nll", lambda x, y, **how: F.poisson_nll_loss(x, y.abs() * 3, full=True, **how), pair(3, 5)),
    *reduced("huber wide", lambda x, y, **how: F.huber_loss(x, y, delta=0.3, **how), pair(3, 5)),
    *reduced("smooth l1 narrow", lambda x, y, **how: F.smooth_l1_loss(x, y, beta=0.3, **how), pair(3, 5)),
    *(Case(f"kl div of logs {kind}",
           lambda x, y, k=kind: F.kl_div(x.log_softmax(-1), y.log_softmax(-1), log_target=True, reduction=k),
           pair(3, 5)) for kind in ("batchmean", "sum", "none")),
    Case("bce weighted", lambda x, y, w, p: F.binary_cross_entropy_with_logits(
        x, y.sigmoid(), w.detach(), pos_weight=p.detach()),
        lambda d: (d.plain(3, 5), d.plain(3, 5), d.plain(5).abs(), d.plain(5).abs())),
]  # fmt: skip

NORMS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf"))
DISTANCES = [
    *(Case(f"between rows {p}", lambda x, y, p=p: torch.cdist(x, y, p), lambda d: (d.plain(2, 4, 5), d.plain(2, 3, 5)),
           wide_only=True) for p in NORMS),
    *(Case(f"of all pairs {p}", lambda x, p=p: F.pdist(x, p), lambda d: (d.plain(6, 5),), wide_only=True)
      for p in NORMS),
    *(Case(f"of each pair {p}", lambda x, y, p=p: F.pairwise_distance(x, y, p), pair(4, 5)) for p in (1.0, 2.0, 3.0)),
    Case("between broadcast rows", torch.cdist, lambda d: (d.plain(2, 1, 4, 5), d.plain(3, 6, 5)), wide_only=True),
    Case("between equal rows", lambda x: torch.cdist(x, x), lambda d: (d.plain(4, 5),), wide_only=True),
    Case("between many rows", torch.cdist, lambda d: (d.plain(30, 5), d.plain(28, 5)), wide_only=True),
    Case("of a pair", torch.dist, pair(4, 5)),
]  # fmt: skip


def bag_of(mode: str, *, offsets: tuple[int, ...] = (), **how: Any) -> Callable[..., Tensor]:
    def function(indices: Tensor, table: Tensor, scales: Tensor | None = None) -> Tensor:
        starts = torch.tensor(offsets, device=indices.device) if offsets else None
        return F.embedding_bag(indices, table, starts, mode=mode, per_sample_weights=scales, **how)

    return function


def table(*shape: int) -> Make:
    """Returns a maker of row numbers of this shape, and a table of seven rows."""
    return lambda d: (torch.randint(7, shape, device=d.device), d.ties_free(7, 4))


EMBEDDINGS = [
    Case("shortened", lambda i, w: F.embedding(i, w.clone(), max_norm=1.5), table(2, 5), backward=False),
    Case("shortened table", lambda i, w: aten.embedding_renorm(w, i, 1.0, 1.0), table(2, 5), backward=False),
    Case("scaled gradient", lambda i, w: F.embedding(i, w, scale_grad_by_freq=True), table(2, 5)),
    *(Case(f"bags {mode}{' ' * bool(how)}{', '.join(how)}", bag_of(mode, **how), table(4, 3))
      for mode in ("sum", "mean", "max") for how in ({}, {"padding_idx": 2})),
    *(Case(f"uneven bags {mode}{' ' * bool(how)}{', '.join(how)}", bag_of(mode, offsets=(0, 2, 2, 5), **how), table(8))
      for mode in ("sum", "mean", "max") for how in ({}, {"padding_idx": 2})),
    *(Case(f"bags with an end {mode}", bag_of(mode, offsets=(0, 2, 2, 5, 8), include_last_offset=True), table(8))
      for mode in ("sum", "mean", "max")),
    Case("weighted bags", bag_of("sum"), lambda d: (*table(4, 3)(d), d.plain(4, 3))),
    Case("weighted uneven bags", bag_of("sum", offsets=(0, 2, 2, 5)), lambda d: (*table(8)(d), d.plain(8))),
]  # fmt: skip

SCALES = (0.1, 0.2, 0.3, 0.4, 0.5)


def scales(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns a scale and a zero point for each of five channels."""
    return torch.tensor(SCALES, device=x.device), torch.arange(5, device=x.device, dtype=torch.int32)


QUANTISED = [
    Case("fake", lambda x: torch.fake_quantize_per_tensor_affine(x * 5, 0.1, 3, -20, 27), lambda d: (d.plain(4, 5),),
         wide_only=True),
    Case("fake by channel", lambda x: torch.fake_quantize_per_channel_affine(x * 5, *scales(x), 1, -20, 27),
         lambda d: (d.plain(4, 5),), wide_only=True),
    Case("fake by tensors", lambda x: torch.fake_quantize_per_tensor_affine(
        x * 5, torch.tensor(0.1, device=x.device), torch.tensor(3, device=x.device, dtype=torch.int32), -20, 27),
        lambda d: (d.plain(4, 5),), wide_only=True),
    Case("fake of what is none", lambda x: aten.fake_quantize_per_tensor_affine_cachemask(x.log(), 0.1, 3, -20, 27),
         lambda d: (torch.tensor([-1.0, 0.0, 0.5, float("inf")], device=d.device),), backward=False),
    Case("there and back", lambda x: decomposed.dequantize_per_tensor(
        decomposed.quantize_per_tensor(x.float(), 0.05, 3, -20, 27, torch.int8), 0.05, 3, -20, 27, torch.int8),
        lambda d: (d.plain(4, 5),), backward=False),
    Case("there and back by channel", lambda x: decomposed.dequantize_per_channel(
        decomposed.quantize_per_channel(x.float(), *scales(x), 1, 0, 27, torch.uint8), *scales(x), 1, 0, 27,
        torch.uint8), lambda d: (d.plain(4, 5),), backward=False),
]  # fmt: skip

PRODUCTS = [
    Case("dot", torch.dot, pair(9)),
    Case("dot fused", lambda x, y: torch.dot(x.exp(), y * 2) + 1, pair(9)),
    Case("matrix and vector", torch.mv, lambda d: (d.plain(4, 9), d.plain(9))),
    Case("transposed matrix and vector", lambda x, y: torch.mv(x.t(), y), lambda d: (d.plain(9, 4), d.plain(9))),
    Case("added to a vector", lambda x, y, z: torch.addmv(x, y, z, beta=0.5, alpha=2),
         lambda d: (d.plain(4), d.plain(4, 9), d.plain(9))),
    Case("added to nothing", lambda x, y, z: torch.addmv(x * float("nan"), y, z, beta=0),
         lambda d: (d.plain(4), d.plain(4, 9), d.plain(9)), backward=False),
    Case("outer added", lambda x, y, z: torch.addr(x, y, z, beta=0.5, alpha=2),
         lambda d: (d.plain(4, 9), d.plain(4), d.plain(9))),
    Case("weight norm", lambda v, g: torch._weight_norm(v, g, 0), lambda d: (d.plain(4, 5), d.plain(4, 1))),
    Case("weight norm of columns", lambda v, g: torch._weight_norm(v, g, 1), lambda d: (d.plain(4, 5), d.plain(1, 5))),
    *(Case(f"renormalised {p}", lambda x, p=p: torch.renorm(x, p, 0, 1.5), lambda d: (d.plain(4, 5),), wide_only=True)
      for p in (1, 2, 3.5)),
]  # fmt: skip

MOVES = [
    Case("repeats by a tensor", lambda x, n: x.repeat_interleave(n, 1, output_size=7),
         lambda d: (d.plain(2, 3), torch.tensor([2, 1, 4], device=d.device))),
    Case("repeats of none", lambda n: torch.repeat_interleave(n, output_size=5),
         lambda d: (torch.tensor([0, 2, 0, 3, 0], device=d.device, dtype=torch.int32),), backward=False),
    Case("put", lambda x, i, v: x.put(i, v), lambda d: (d.plain(4, 5), torch.tensor([[3, -1], [0, 7]], device=d.device),
                                                        d.plain(2, 2))),
    Case("put accumulating", lambda x, i, v: x.put(i, v, accumulate=True),
         lambda d: (d.plain(4, 5), torch.tensor([3, -1, 3], device=d.device), d.plain(3))),
    Case("take", lambda x, i: x.take(i), lambda d: (d.plain(4, 5), torch.tensor([3, -1, 3], device=d.device))),
    Case("integers evenly spaced", lambda x: torch.linspace(-3, 10, 7, dtype=torch.int64, device=x.device),
         lambda d: (d.plain(1),), backward=False),
]  # fmt: skip


def adam_step(*, decoupled: bool, **how: Any) -> Callable[..., Any]:
    """Returns a function of a parameter, its gradient and its state; the op is the one that optimisers call."""
    op = aten._fused_adamw.default if decoupled else aten._fused_adam.default
    settings = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-6, "maximize": False} | how

    def function(weight: Tensor, grad: Tensor, mean: Tensor, square: Tensor, largest: Tensor, step: Tensor) -> Any:
        amsgrad = settings.get("amsgrad", False)
        kept = [largest] if amsgrad else []
        scale = {"grad_scale": torch.full_like(step, 4.0, dtype=torch.float32)} if settings.get("grad_scale") else {}
        given = {**settings, "amsgrad": amsgrad, **scale}
        return op([weight], [grad], [mean], [square.abs()], kept and [largest.abs()], [step.float()], **given)

    return function


OPTIMISERS = [
    Case(f"adam{'w' * decoupled} {', '.join(how)}", adam_step(decoupled=decoupled, **how),
         lambda d: (*(d.plain(3, 5) for _ in range(5)), torch.tensor(3.0, device=d.device)), backward=False,
         wide_only=True)
    for decoupled in (False, True) for how in ({}, {"amsgrad": True}, {"maximize": True}, {"grad_scale": True})
]  # fmt: skip

FAMILIES = {
    "more losses": LOSSES,
    "distances": DISTANCES,
    "embeddings": EMBEDDINGS,
    "quantised": QUANTISED,
    "vector products": PRODUCTS,
    "moves": MOVES,
    "optimisers": OPTIMISERS,
}
