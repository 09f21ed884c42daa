"""Checks of reductions, norms and losses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ferrite_torch.validation.registry import checks

Checks = Iterator[tuple[Any, str]]


@checks("max.default", "min.default", "amax", "amin", "argmax", "argmin", "aminmax")
def _extremum(self: torch.Tensor, dim: Any = None, **_: Any) -> Checks:
    """Yields that there is something to take the maximum of."""
    if isinstance(dim, int):
        dim = [dim]
    if not dim:
        yield self.numel() != 0, "Expected reduction dim to be specified for input.numel() == 0."
    elif self.dim():
        yield self.numel() != 0 or all(self.shape[axis] != 0 for axis in dim), "Expected reduction dim to be non-zero"


@checks("max.dim", "min.dim", "mode", "median.dim", "nanmedian.dim", "kthvalue")
def _extremum_along(self: torch.Tensor, dim: int, **_: Any) -> Checks:
    if self.dim():
        yield self.shape[dim] != 0, f"Expected reduction dim {dim} to have non-zero size."


@checks("kthvalue.default")
def _kth_value(self: torch.Tensor, k: Any, dim: int, **_: Any) -> Checks:
    count = self.shape[dim] if self.dim() else 1
    yield 1 <= k <= count, "kthvalue(): selected number k out of range for dimension"


@checks("topk")
def _topk(self: torch.Tensor, k: Any, dim: int, **_: Any) -> Checks:
    count = self.shape[dim] if self.dim() else 1
    yield 0 <= k <= count, "selected index k out of range"


@checks("sort", "argsort")
def _sort(self: torch.Tensor, dim: int = -1, **_: Any) -> Checks:
    rank = max(self.dim(), 1)
    yield -rank <= dim < rank, f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], got {dim})"


@checks("renorm")
def _renorm(self: torch.Tensor, p: Any, maxnorm: Any, **_: Any) -> Checks:
    yield p > 0, "renorm: non-positive-norm not supported"
    yield maxnorm >= 0, f"renorm: expected maxnorm to be >= 0 but got {maxnorm}"
    yield self.dim() > 1, "renorm: input needs at least 2 dimensions"


@checks("_cdist_forward")
def _cdist(x1: torch.Tensor, x2: torch.Tensor, p: Any, **_: Any) -> Checks:
    yield p >= 0, "cdist only supports non-negative p values"
    yield x1.shape[-1] == x2.shape[-1], "X1 and X2 must have the same number of columns"
    yield x1.dtype == x2.dtype, f"expected scalar type {x1.dtype} but found {x2.dtype}"


@checks("_pdist_forward")
def _pdist(self: torch.Tensor, p: Any, **_: Any) -> Checks:
    yield p >= 0, "pdist only supports non-negative p values"
    yield self.dim() == 2, "pdist only supports 2D tensors"


# --- norms ------------------------------------------------------------------------------------------------------------


@checks(
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training",
    "_batch_norm_with_update",
    "_batch_norm_no_update",
    "cudnn_batch_norm",
    "miopen_batch_norm",
)
def _batch_norm(input: torch.Tensor, **given: Any) -> Checks:  # noqa: A002  # the op's own name
    """Yields that there is one weight and one statistic for each channel."""
    yield input.dim() >= 2, "batch_norm: expected at least 2 dimensions"
    for name in ("weight", "bias", "running_mean", "running_var"):
        value = given.get(name)
        if value is not None:
            yield (
                value.numel() == input.shape[1],
                f"{name} should contain {input.shape[1]} elements not {value.numel()}",
            )


@checks("native_group_norm")
def _group_norm(input: torch.Tensor, weight: Any, bias: Any, C: Any, group: Any, **_: Any) -> Checks:  # noqa: A002, N803
    yield group > 0, "Expected num groups to be greater than 0"
    yield C % group == 0, "Expected number of channels in input to be divisible by num_groups"
    for value in (weight, bias):
        if value is not None:
            yield value.dim() == 1 and value.numel() == C, "Expected weight and bias to be a vector of size C"


@checks("native_layer_norm")
def _layer_norm(input: torch.Tensor, normalized_shape: Any, weight: Any, bias: Any, **_: Any) -> Checks:  # noqa: A002
    count = len(normalized_shape)
    yield count >= 1, "Expected normalized_shape to be at least 1-dimensional"
    ends = list(input.shape[input.dim() - count :]) if input.dim() >= count else []
    yield ends == list(normalized_shape), f"Given normalized_shape={list(normalized_shape)}, expected other input"
    for value in (weight, bias):
        if value is not None:
            yield list(value.shape) == list(normalized_shape), "Expected weight of same shape as normalized_shape"


# --- losses -----------------------------------------------------------------------------------------------------------


@checks("smooth_l1_loss")
def _smooth_l1_loss(beta: Any, **_: Any) -> Checks:
    yield beta >= 0, "smooth_l1_loss does not support negative values for beta."


@checks("huber_loss")
def _huber_loss(delta: Any, **_: Any) -> Checks:
    yield delta > 0, "huber_loss does not support non-positive values for delta."


@checks("nll_loss_forward", "nll_loss2d_forward")
def _nll_loss(self: torch.Tensor, target: torch.Tensor, weight: Any, **_: Any) -> Checks:
    yield target.dtype in (torch.int64, torch.uint8), "expected scalar type Long or Byte for the target"
    axis = 1 if self.dim() > 1 else 0
    yield weight is None or weight.numel() == self.shape[axis], "weight tensor should be defined for all classes"
    if self.dim() == 4 and target.dim() == 3:  # of one label for each place of an image
        places = [*self.shape[:1], *self.shape[2:]]
        shown = f"size mismatch (got input: {list(self.shape)}, target: {list(target.shape)})"
        yield all(a == b for a, b in zip(places, target.shape, strict=True)), shown


@checks("multi_margin_loss")
def _multi_margin_loss(self: torch.Tensor, target: torch.Tensor, p: Any, weight: Any, **_: Any) -> Checks:
    yield p in (1, 2), "only p == 1 and p == 2 supported"
    yield self.dim() <= 2 and target.dim() <= 1, "Expected non-empty vector or matrix"
    classes = self.shape[-1] if self.dim() else 1
    yield weight is None or weight.numel() == classes, "inconsistent weight size"


@checks("binary_cross_entropy")
def _binary_cross_entropy(self: torch.Tensor, target: torch.Tensor, **_: Any) -> Checks:
    yield list(self.shape) == list(target.shape), "Using a target size that is different to the input size"
