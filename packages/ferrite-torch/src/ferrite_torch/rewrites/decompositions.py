"""Which aten ops are decomposed before lowering.

An op that has a lowering is not decomposed, unless `lowering.recomputation` lists it. Of all others those in torch's
core table are, plus those of `EXTRA`, less those of `KEPT`, which are faster as one extern call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, wraps
from itertools import chain, takewhile
from typing import Any

import torch

from ferrite_torch.rewrites.convolutions import rules_for_convolutions
from ferrite_torch.rewrites.layouts.eager_layouts import (
    broadcasting_ops,
    is_sorted_otherwise,
    iterated,
    iterating_ops,
    laid_out,
    laid_out_ops,
    of_packed_operands,
)
from ferrite_torch.rewrites.numbers.integer_bounds import rules_for_integer_bounds
from ferrite_torch.rewrites.overlapping_targets import rules_for_overlapping_targets
from ferrite_torch.thresholds import TRACING
from ferrite_torch.torch_private.nodes import traced_graph
from ferrite_torch.torch_private.operators import Overload, core_decompositions, decompositions_of, schema_of
from ferrite_torch.torch_private.symbolic_shapes import is_unbacked_number

BETWEEN_OPS = "prims.convert_element_type.default"
"""What converts inside of a decomposition: a rounding between two operations, which no program states."""

_KEPT_NAMES = """
    mm bmm addmm baddbmm mv dot addmv convolution convolution_backward _scaled_dot_product_flash_attention_for_cpu
    embedding_dense_backward index_add index_copy max_pool2d_with_indices max_pool2d_with_indices_backward
    avg_pool2d avg_pool2d_backward grid_sampler_2d upsample_bicubic2d multi_margin_loss multilabel_margin_loss_forward
    lstm gru
"""

KEPT = frozenset(f"aten.{name}" for name in _KEPT_NAMES.split())
"""Extern calls (or native lowerings) that torch could decompose, but that should stay whole."""

_FAMILIES: dict[str, str] = {
    "normalisation": """
        native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward _fused_rms_norm
        _fused_rms_norm_backward native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional
        _native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_with_update_functional
        _batch_norm_no_update batch_norm_backward native_batch_norm_backward cudnn_batch_norm
        cudnn_batch_norm_backward miopen_batch_norm miopen_batch_norm_backward instance_norm linalg_vector_norm norm
    """,
    "softmax, losses": """
        _softmax _log_softmax _softmax_backward_data _log_softmax_backward_data _safe_softmax logsumexp
        nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward mse_loss mse_loss_backward
        smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward binary_cross_entropy
        binary_cross_entropy_backward binary_cross_entropy_with_logits soft_margin_loss soft_margin_loss_backward
        kl_div l1_loss
    """,
    "activations": """
        gelu gelu_backward silu silu_backward elu elu_backward celu selu glu glu_backward hardtanh hardtanh_backward
        hardswish hardswish_backward hardsigmoid hardsigmoid_backward hardshrink softshrink leaky_relu
        leaky_relu_backward log_sigmoid_forward log_sigmoid_backward mish mish_backward prelu _prelu_kernel
        _prelu_kernel_backward rrelu_with_noise_functional rrelu_with_noise_backward softplus softplus_backward
        threshold threshold_backward tanh_backward sigmoid_backward relu6 logit logit_backward
    """,
    "random": """
        native_dropout native_dropout_backward bernoulli uniform normal normal_functional exponential geometric
        log_normal cauchy
    """,
    "arithmetic and shape": """
        addcmul addcdiv lerp addr aminmax count_nonzero deg2rad rad2deg frac heaviside isin isneginf isposinf
        logaddexp logaddexp2 mvlgamma nan_to_num nansum rsub sgn sinc special_entr special_log_ndtr special_xlog1py
        special_erfcx std std_mean var_mean trace xlogy floor_divide float_power linalg_cross cross dist cov
        diag_embed diagonal_backward select_backward slice_backward split split_with_sizes split_with_sizes_copy
        unbind stack tril triu roll rot90 narrow_copy block_diag unfold_backward unfold_copy channel_shuffle
        pixel_shuffle pixel_unshuffle linspace logspace eye zeros_like ones_like zeros ones new_zeros new_ones
        new_full new_empty empty_like index_fill take masked_fill reflection_pad1d reflection_pad2d reflection_pad3d
        reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward replication_pad1d
        replication_pad2d replication_pad3d constant_pad_nd _unsafe_index _unsafe_index_put _unsafe_masked_index
        _unsafe_masked_index_put_accumulate _unsafe_view _reshape_alias _to_copy expand_copy permute_copy
        squeeze_copy t_copy transpose_copy unsqueeze_copy view_copy alias_copy diagonal_copy upsample_nearest1d
        upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d
        _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d im2col col2im
        adaptive_max_pool2d affine_grid_generator _weight_norm_interface _weight_norm_interface_backward
        _thnn_fused_lstm_cell _chunk_cat fake_quantize_per_tensor_affine_cachemask
        fake_quantize_per_channel_affine_cachemask fill copy lift_fresh
    """,
}

EXTRA = tuple(name for family in _FAMILIES.values() for name in family.split())
"""Ops outside the core table, or likely to leave it, that fuse better in pieces; not those that have a lowering."""


def decomposition_table(has_lowering: Callable[[str], bool], *, writes: bool = True) -> Mapping[Any, Any]:
    """Returns decompositions by overload, for AOTAutograd.

    None for an op that ``has_lowering`` knows by qualified name, but for putting its result into its kernel's layout,
    for operands whose elements share memory, for bounds that a type does not have, and for biases of convolutions.
    ``writes`` says that what is traced may write to tensors in place.
    """
    apart = {op: rule for op, rule in _candidates().items() if not has_lowering(str(op))}
    table = {op: with_conversions_between(rule) for op, rule in apart.items()}
    table |= {op: _unless_many(rule) for op, rule in table.items() if str(op) == "aten.unbind.int"}
    table |= {op: laid_out(op, rule, table.get(op)) for op, rule in laid_out_ops()}
    table |= {op: laid_out(op, iterated, table.get(op), is_sorted_otherwise) for op in broadcasting_ops()}
    if not writes:
        table |= {op: of_packed_operands(op, table.get(op)) for op in iterating_ops()}
    rules = (rules_for_overlapping_targets(), rules_for_integer_bounds(), rules_for_convolutions())
    return table | dict(chain.from_iterable(rules))


def _unless_many(unbind: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a decomposition that applies to few results: each is two ops more to trace, which take milliseconds."""

    @wraps(unbind)
    def decomposed(x: torch.Tensor, dim: int = 0) -> Any:
        return NotImplemented if x.ndim and x.shape[dim] > TRACING.unbound else unbind(x, dim)

    return decomposed


def with_conversions_between(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a decomposition whose own conversions are told apart from those that a program states.

    Torch's decompositions compute half types in float32 and round at their ends as eager's kernels do, with the very
    ``_to_copy`` that a program's ``x.half()`` becomes.
    """

    @wraps(rule)
    def decomposed(*args: Any, **kwargs: Any) -> Any:
        graph = traced_graph()
        if graph is None:
            return rule(*args, **kwargs)
        before = next(iter(reversed(graph.nodes)), None)
        result = rule(*args, **kwargs)
        for node in takewhile(lambda node: node is not before, reversed(graph.nodes)):
            if str(node.target) == "aten._to_copy.default" and node.kwargs.keys() == {"dtype"}:
                node.target = torch.ops.prims.convert_element_type.default
                node.args, node.kwargs = (node.args[0], node.kwargs["dtype"]), {}
        return result

    return decomposed


def is_decomposed(op: Overload) -> bool:
    """Returns whether there is a decomposition of an op, which applies unless it has a lowering."""
    return op in _candidates()


class DeferredTable(dict[Any, Any]):
    """A table that is filled when it is first looked at.

    AOTAutograd takes one before it knows whether it will trace at all.
    """

    def __init__(self, fill: Callable[[], Mapping[Any, Any]]) -> None:
        super().__init__()
        self._fill: Callable[[], Mapping[Any, Any]] | None = fill

    def filled(self) -> dict[Any, Any]:
        """Returns the table with its entries."""
        fill, self._fill = self._fill, None
        if fill is not None:
            self.update(fill())
        return self

    def __getitem__(self, key: Any) -> Any:
        return dict.__getitem__(self.filled(), key)

    def __contains__(self, key: object) -> bool:
        return dict.__contains__(self.filled(), key)

    def __iter__(self) -> Iterator[Any]:
        return dict.__iter__(self.filled())

    def __len__(self) -> int:
        return dict.__len__(self.filled())

    def get(self, key: Any, default: Any = None) -> Any:
        """Returns an entry, or the default."""
        return dict.get(self.filled(), key, default)

    def keys(self) -> Any:
        """Returns the keys."""
        return dict.keys(self.filled())

    def values(self) -> Any:
        """Returns the values."""
        return dict.values(self.filled())

    def items(self) -> Any:
        """Returns the entries."""
        return dict.items(self.filled())

    def copy(self) -> dict[Any, Any]:
        """Returns a plain table with the same entries."""
        return dict.copy(self.filled())


@lru_cache(maxsize=1)
def _candidates() -> dict[Any, Any]:
    aten = torch.ops.aten
    extra = [getattr(aten, name) for name in EXTRA if hasattr(aten, name)]
    table = {**core_decompositions(), **decompositions_of(extra)}
    norm = aten.linalg_vector_norm.default
    table[norm] = _with_extents_dropped(table[norm])
    table[aten.zero.default] = _zeros_laid_out_alike
    table[aten.var_mean.dim] = _var_mean
    unique = aten._unique.default  # noqa: SLF001 - an op's name
    if torch.Tag.dynamic_output_shape not in unique.tags:
        table[unique] = _unique_of_any_number
    for name in ("_softmax", "_log_softmax"):
        whole = getattr(aten, name).default
        table[whole] = _unless_data_dependent(table[whole])
    for name in ("max_unpool2d", "max_unpool3d"):
        table[getattr(aten, name).default] = _unpooled
    for name in ("nll_loss_forward", "nll_loss2d_forward"):
        loss = getattr(aten, name).default
        table[loss] = _carried_in_single(table[loss])
    for name in ("mse_loss", "smooth_l1_loss", "huber_loss"):
        gradient = getattr(aten, f"{name}_backward").default
        table[gradient] = _nothing_of_nothing(table[gradient])
    return {op: rule for op, rule in table.items() if str(op).rpartition(".")[0] not in KEPT and _is_plain(op)}


def _with_extents_dropped(rule: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Returns a decomposition of ``linalg_vector_norm`` that gives the right shape on every torch.

    torch 2.11 forgets to drop reduced dims if all of them have extent 1. With the dims kept it is right.
    """

    def norm(
        x: torch.Tensor,
        order: Any = 2,
        dim: Sequence[int] | None = None,
        keepdim: bool = False,  # noqa: FBT001, FBT002 - as in the op's schema
        *,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        axes = tuple(dim or range(x.dim()))
        if keepdim or x.dim() == 0 or any(not isinstance(x.shape[axis], int) or x.shape[axis] != 1 for axis in axes):
            return rule(x, order, dim, keepdim, dtype=dtype)
        return rule(x, order, dim, True, dtype=dtype).squeeze(axes)

    return norm


def _var_mean(
    x: torch.Tensor,
    dim: Sequence[int] | None,
    unbiased: bool = True,  # noqa: FBT001, FBT002 - as in the op's schema
    keepdim: bool = False,  # noqa: FBT001, FBT002
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns variance and mean by the overload that is one reduction; torch's pieces are one for each of the two."""
    variance, mean = torch.ops.aten.var_mean.correction(x, dim, correction=int(unbiased), keepdim=keepdim)
    return variance, mean


def _unique_of_any_number(
    x: torch.Tensor,
    sorted: bool = True,  # noqa: A002, FBT001, FBT002 - as in the op's schema
    return_inverse: bool = False,  # noqa: FBT001, FBT002
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns what ``_unique`` does, by the overload of which torch knows that only the data tell how much it returns.

    Fake tensors of torch 2.11 run ``_unique`` on zeros, and find one value. The gradient of the number that
    ``index_fill`` fills with sums over what it returns.
    """
    aten = torch.ops.aten
    values, inverse, _ = aten._unique2.default(x, sorted, return_inverse)  # noqa: SLF001 - an op's name
    return values, inverse


def _zeros_laid_out_alike(x: torch.Tensor) -> torch.Tensor:
    """Returns what ``zero`` does, what ``zero_`` becomes without writes.

    The fake kernel of torch 2.11 packs it row by row; the real one lays it out as a clone of ``x`` lies.
    """
    return torch.zeros_like(x)


def _unless_data_dependent(rule: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Returns a decomposition that leaves an op whole where its operand has a data-dependent extent.

    The pieces ask whether there is a greatest element, or add one that is none.
    """

    def decomposed(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(size, torch.SymInt) and is_unbacked_number(size) for size in x.shape):
            return NotImplemented
        return rule(x, *args, **kwargs)

    return decomposed


def _unpooled(
    images: torch.Tensor, indices: torch.Tensor, output_size: Sequence[Any], *_: Any, **__: Any
) -> torch.Tensor:
    """Returns each element at the position of its channel that an index names, zeros elsewhere.

    Torch's own pieces write to all channels as one, where an index beyond its channel is a position of another. The
    result of two dims lies as eager's: on a CPU, as the images do.
    """
    rank = len(output_size)
    lead = images.shape[:-rank]
    result = images.new_zeros((*lead, *output_size))
    if not any(size == 0 for size in result.shape):
        positions, values = indices.flatten(-rank), images.flatten(-rank)
        result = result.flatten(-rank).scatter(-1, positions, values).view(result.shape)
    is_by_channels = images.dim() == 4 and not images.is_contiguous() and rank == 2
    if images.device.type == "cpu" and is_by_channels and images.is_contiguous(memory_format=torch.channels_last):
        return result.contiguous(memory_format=torch.channels_last)
    return result


def _carried_in_single(rule: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> Callable[..., Any]:
    """Returns a decomposition of a negative log-likelihood of half types that divides by weights added up in float32.

    The pieces count in the type of the operand, where more than 65,504 targets are infinitely many.
    """

    def loss(
        x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, *args: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if x.dtype not in (torch.float16, torch.bfloat16):
            return rule(x, target, weight, *args)
        mean, total = rule(x.float(), target, None if weight is None else weight.float(), *args)
        return mean.to(x.dtype), total.to(x.dtype)

    return loss


def _nothing_of_nothing(rule: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Returns a decomposition of the gradient of a loss for operands without elements too.

    The pieces divide by the number of elements while they are traced.
    """

    def gradient(grad: torch.Tensor, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if any(type(size) is int and size == 0 for size in x.shape):
            return torch.zeros_like(x)
        return rule(grad, x, *args, **kwargs)

    return gradient


def _is_plain(op: Any) -> bool:
    """Returns whether an overload can occur in a traced graph: of aten or prims, without ``out=``."""
    if not isinstance(op, Overload) or op.namespace not in ("aten", "prims", "quantized_decomposed"):
        return False
    return not any(argument.is_out for argument in schema_of(op).arguments)
