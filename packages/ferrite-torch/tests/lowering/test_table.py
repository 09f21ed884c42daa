"""The table as a whole: its names exist, and no common op is forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._functorch.partitioners  # registers prims.fma
import torch.ao.quantization.fx._decomposed

from ferrite_torch.lowering import LOWERINGS
from ferrite_torch.lowering.pointwise.table import qualified
from ferrite_torch.lowering.recomputation import DECOMPOSED
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.rewrites.decompositions import decomposition_table

LIBRARY = {
    "_adaptive_avg_pool3d", "_cdist_forward", "_fft_c2c", "_fft_c2r", "_fft_r2c", "_local_scalar_dense",
    "_pdist_forward", "addmm", "bmm", "convolution", "convolution_backward", "empty.memory_format", "empty_strided",
    "grid_sampler_2d", "mm", "nonzero", "randperm", "sort", "sym_is_contiguous", "sym_numel", "sym_size.int",
    "sym_storage_offset", "sym_stride.int", "topk", "adaptive_avg_pool1d", "avg_pool1d", "avg_pool3d",
    "avg_pool3d_backward", "max_pool3d_with_indices", "scatter_reduce.two", "resize_", "masked_scatter",
    "_embedding_bag", "as_strided_scatter", "_embedding_bag_per_sample_weights_backward", "upsample_bilinear2d.vec",
    "upsample_nearest2d.vec", "median", "nanmedian",
}  # fmt: skip
"""Core ops that run as extern calls, or that are gone before lowering."""


NEW_IN_2_13 = {"aten._upsample_lanczos2d_aa.default", "aten._upsample_lanczos2d_aa_backward.default"}


def _op(name: str) -> Any:
    namespace, op, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), op), overload)


def _known() -> list[str]:
    """Returns the names in the table, less those that only a later torch than this one has."""
    is_old = torch.__version__ < "2.13"
    return [name for name in LOWERINGS if not (is_old and name in NEW_IN_2_13)]


def test_names_exist() -> None:
    """A name that torch lacks raises here; out= forms are never in a graph."""
    assert [name for name in _known() if any(argument.is_out for argument in _op(name)._schema.arguments)] == []


def test_lowerings_never_change_their_operands() -> None:
    """In-place forms are gone when a graph is lowered."""
    assert [name for name in _known() if _op(name)._schema.is_mutable] == []


def core_ops() -> Iterator[str]:
    """Yields the names of core aten ops."""
    for packet in dir(torch.ops.aten):
        entry = getattr(torch.ops.aten, packet)
        for overload in entry.overloads() if hasattr(entry, "overloads") else ():
            op = getattr(entry, overload)
            if torch.Tag.core in op.tags and not any(argument.is_out for argument in op._schema.arguments):
                yield str(op)


def test_every_core_op_has_its_place() -> None:
    apart = {str(op) for op in decomposition_table(LOWERINGS.__contains__)}
    short = {name: name.removeprefix("aten.").removesuffix(".default") for name in core_ops()}
    missing = [name for name in short if name not in LOWERINGS and name not in apart]
    assert sorted(short[name] for name in missing if short[name] not in LIBRARY) == []


def test_ops_that_are_decomposed_can_be() -> None:
    apart = {str(op) for op in decomposition_table(lambda name: False)}
    assert not DECOMPOSED - apart
    assert not DECOMPOSED - set(LOWERINGS)


def test_short_names() -> None:
    assert qualified("exp") == "aten.exp.default"
    assert qualified("add.Tensor") == "aten.add.Tensor"
    assert qualified("prims.exp") == "prims.exp.default"


def test_a_name_is_entered_once() -> None:
    with pytest.raises(ValueError, match=r"aten\.exp\.default has a lowering already"):
        lowers("aten.exp.default")(lambda b: None)
    with pytest.raises(ValueError, match="namespace"):
        lowers("exp")(lambda b: None)
