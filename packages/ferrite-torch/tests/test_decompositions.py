from __future__ import annotations

import torch

from ferrite_torch.decompositions import EXTRA, KEPT, decomposition_table
from ferrite_torch.lowering import LOWERINGS

aten = torch.ops.aten


def test_an_op_with_a_lowering_stays_whole() -> None:
    table = decomposition_table(LOWERINGS.__contains__)
    assert not [op for op in table if str(op) in LOWERINGS]


def test_without_lowerings_everything_known_is_taken_apart() -> None:
    table = decomposition_table(lambda name: False)
    for op in (aten.native_layer_norm.default, aten.gelu.default, aten._softmax.default, aten.mse_loss.default):
        assert op in table


def test_matrix_products_and_convolutions_stay_library_calls() -> None:
    table = decomposition_table(lambda name: False)
    for op in (aten.mm.default, aten.addmm.default, aten.baddbmm.default, aten.convolution.default):
        assert op not in table


def test_no_family_names_an_op_twice() -> None:
    assert len(set(EXTRA)) == len(EXTRA)
    assert not {f"aten.{name}" for name in EXTRA} & KEPT


def test_ops_that_write_to_out_are_not_in_the_table() -> None:
    table = decomposition_table(lambda name: False)
    assert not [op for op in table if str(op).endswith(".out")]
