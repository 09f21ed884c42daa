"""Ops that have a lowering, but are better decomposed before a joint graph is partitioned."""

from __future__ import annotations

from ferrite_torch.lowering.registry import LOWERINGS

DECOMPOSED = frozenset(
    f"aten.{name}"
    for name in (
        "hardswish.default", "_prelu_kernel.default", "glu.default", "log_sigmoid_forward.default",
        "floor_divide.default", "floor_divide.Scalar", "transpose.int", "_unsafe_index.Tensor", "stack.default",
        "tril.default", "ones_like.default", "new_ones.default", "new_full.default", "eye.default", "eye.m",
        "std_mean.correction", "nansum.default", "count_nonzero.default", "count_nonzero.dim_IntList",
        "detach.default", "split_with_sizes.default", "unbind.int", "elu_backward.default",
        "hardsigmoid_backward.default", "hardswish_backward.default", "hardtanh_backward.default",
        "leaky_relu_backward.default", "log_sigmoid_backward.default", "mish_backward.default",
        "softplus_backward.default", "pixel_shuffle.default", "pixel_unshuffle.default", "channel_shuffle.default",
        "_reshape_alias.default", "fill.Scalar", "fill.Tensor", "logsumexp.default", "linalg_vector_norm.default",
        "_softmax.default", "_log_softmax.default",
    )
)  # fmt: skip
"""Qualified names. torch's partitioner recomputes in the backward only ops of its own list, and saves the results of
all others. These are not in the list, and their pieces are: apart they cost no memory between forward and backward. The
same goes for ops of the backward: what they read counts as materialised, and is never recomputed for them."""


def stays_whole(name: str) -> bool:
    """Returns whether an op, by qualified name, is lowered as it is and not decomposed first."""
    return name in LOWERINGS and name not in DECOMPOSED
