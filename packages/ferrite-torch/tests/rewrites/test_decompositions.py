from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from ferrite_torch.lowering import LOWERINGS
from ferrite_torch.lowering.recomputation import stays_whole
from ferrite_torch.rewrites.convolutions import rules_for_convolutions
from ferrite_torch.rewrites.decompositions import EXTRA, KEPT, decomposition_table
from ferrite_torch.rewrites.layouts.eager_layouts import broadcasting_ops, iterating_ops, laid_out_ops
from ferrite_torch.rewrites.numbers.integer_bounds import rules_for_integer_bounds
from ferrite_torch.rewrites.overlapping_targets import rules_for_overlapping_targets

aten = torch.ops.aten


def test_an_op_with_a_lowering_stays_whole() -> None:
    table = decomposition_table(LOWERINGS.__contains__)
    laid_out = {op for op, _ in laid_out_ops()}  # these are called as they are, and their results put in order
    overlapping = {op for op, _ in rules_for_overlapping_targets()}  # and these where elements share memory
    bounded = {op for op, _ in rules_for_integer_bounds()}  # and these where a type lacks a bound
    biased = {op for op, _ in rules_for_convolutions()}  # and these where they have a bias, or one dim
    broadcast = set(broadcasting_ops())  # as are those of operands that lie differently
    kept = laid_out | overlapping | bounded | biased | broadcast | set(iterating_ops())  # rows with free strides
    assert not [op for op in table if str(op) in LOWERINGS and op not in kept]


def test_without_lowerings_everything_known_is_decomposed() -> None:
    table = decomposition_table(lambda name: False)
    for op in (aten.native_layer_norm.default, aten.gelu.default, aten._softmax.default, aten.mse_loss.default):
        assert op in table


def test_matrix_products_and_convolutions_stay_library_calls() -> None:
    table = decomposition_table(lambda name: False)
    for op in (aten.mm.default, aten.addmm.default, aten.baddbmm.default):
        assert op not in table
    image, filters = torch.ones(1, 2, 4, 4), torch.ones(3, 2, 3, 3)
    given = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    for bias in (None, torch.ones(3)):  # on GPUs the bias alone is taken from them
        assert table[aten.convolution.default](image, filters, bias, *given) is NotImplemented


def test_no_family_names_an_op_twice() -> None:
    assert len(set(EXTRA)) == len(EXTRA)
    assert not {f"aten.{name}" for name in EXTRA} & KEPT


def test_ops_that_write_to_out_are_not_in_the_table() -> None:
    table = decomposition_table(lambda name: False)
    assert not [op for op in table if str(op).endswith(".out")]


def test_a_norm_drops_dims_of_extent_one_on_every_torch() -> None:
    norm = decomposition_table(lambda name: False)[aten.linalg_vector_norm.default]
    for shape, dim in (((3, 1), [1]), ((1, 2, 1), [0, -1]), ((1, 1), None), ((1,), []), ((), None), ((2, 3), [-1])):
        x = torch.randn(shape)
        for order in (0, 1, 2, 3, 2.5, float("inf"), float("-inf")):
            for keepdim in (False, True):
                expected = aten.linalg_vector_norm(x, order, dim, keepdim)
                actual = norm(x, order, dim, keepdim)
                torch.testing.assert_close(actual, expected)
                assert actual.shape == expected.shape
                assert norm(x, order, dim, keepdim, dtype=torch.float64).dtype is torch.float64


def test_variance_and_mean_by_dims_are_one_reduction() -> None:
    var_mean = decomposition_table(LOWERINGS.__contains__)[aten.var_mean.dim]
    x = torch.randn(3, 5, 7)
    for unbiased in (False, True):
        torch.testing.assert_close(var_mean(x, [0, 2], unbiased, True), torch.var_mean(x, [0, 2], unbiased, True))
    traced = make_fx(lambda x: var_mean(x, [0, 2], False))(x)
    assert next(node.target for node in traced.graph.nodes if node.op == "call_function") is aten.var_mean.correction


def test_images_are_unpooled_as_they_lie() -> None:
    """On a CPU, where eager does."""
    unpool = decomposition_table(lambda name: False)[aten.max_unpool2d.default]
    for layout in (torch.contiguous_format, torch.channels_last):
        images = torch.randn(2, 3, 6, 6).to(memory_format=layout)
        pooled, places = torch.nn.functional.max_pool2d(images, 3, return_indices=True)
        expected = aten.max_unpool2d(pooled, places, [6, 6])
        found = unpool(pooled, places, [6, 6])
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()
    with torch.device("meta"):
        pooled = torch.empty(2, 3, 2, 2).to(memory_format=torch.channels_last)
        found = unpool(pooled, torch.empty(2, 3, 2, 2, dtype=torch.int64), [6, 6])
    assert found.is_contiguous(), "elsewhere row by row"


def test_many_results_of_an_unbind_stay_one_op() -> None:
    table = dict(decomposition_table(stays_whole).items())
    for count in (256, 257):
        graph = make_fx(lambda x: x.unbind(1)[-1] * 2, decomposition_table=table)(torch.ones(2, count)).graph
        found = {str(node.target) for node in graph.nodes if node.op == "call_function"}
        assert ("aten.unbind.int" in found) == (count == 257)
