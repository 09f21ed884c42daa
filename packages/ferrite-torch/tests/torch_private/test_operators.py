"""Operators and torch's decompositions of them."""

from __future__ import annotations

import torch

from ferrite_torch.torch_private.operators import core_decompositions, decompositions_of, schema_of


def test_core_decompositions_are_functions_by_overload() -> None:
    table = core_decompositions()
    assert torch.ops.aten.addcmul.default in table
    assert all(callable(rule) for rule in table.values())


def test_ops_without_a_decomposition_are_left_out() -> None:
    assert decompositions_of([torch.ops.aten.mm]).keys() <= {torch.ops.aten.mm.out}


def test_schemas_tell_what_is_written() -> None:
    arguments = schema_of(torch.ops.aten.copy_.default).arguments
    assert [argument.alias_info is not None and argument.alias_info.is_write for argument in arguments] == [
        True,
        False,
        False,
    ]
