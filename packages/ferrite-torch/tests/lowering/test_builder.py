from __future__ import annotations

from typing import Any

import pytest
import torch

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import BF16, C64, F32, I64
from ferrite_ir.language.graph import Extern, Loop, Reduction, Scan, Update
from ferrite_torch.lowering.builder import Builder, Unlowered
from ferrite_torch.lowering.tensors import Tensor


def started(fake: Any = None, name: str = "op") -> Builder:
    builder = Builder()
    node = torch.fx.Graph().create_node("call_function", torch.add, name=name)
    node.meta["val"] = fake
    builder.begin(node)
    return builder


def test_a_loop_casts_its_body_and_is_row_major() -> None:
    builder = started()
    x = builder.input("x", BF16, (4, 8), (8, 1))
    y = builder.loop((4, 8), BF16, lambda p: sc.apply("neg", x.value_at(p)))
    (loop,) = builder.definitions
    assert isinstance(loop, Loop)
    assert str(loop.bodies[0]) == "cast.bf16(neg(cast.f32(x[d0, d1])))"
    assert y.value.type.strides == (8, 1)


def test_a_result_lies_as_the_fake_result_does() -> None:
    builder = started(torch.empty(8, 4).t())
    y = builder.loop((4, 8), F32, lambda p: builder.constant(1, F32))
    z = builder.loop((8, 4), F32, lambda p: builder.constant(1, F32))
    assert y.value.type.strides == (1, 4)
    assert z.value.type.strides == (4, 1)


def test_an_expanded_fake_is_stored_packed() -> None:
    builder = started(torch.empty(4).expand(3, 4))
    assert builder.loop((3, 4), F32, lambda p: builder.constant(1, F32)).value.type.strides == (4, 1)


def test_names_come_from_the_node_and_never_repeat() -> None:
    builder = started(name="add")
    names = [builder.loop((2,), F32, lambda p: builder.constant(0, F32)).value.name for _ in range(3)]
    assert names == ["add", "add_1", "add_2"]


@pytest.mark.parametrize("name", ["d0", "r1"])
def test_a_value_is_never_named_like_a_dim(name: str) -> None:
    builder = started(name=name)
    assert builder.loop((2,), F32, lambda p: builder.constant(0, F32)).value.name == f"v_{name}"


def test_a_reduction_has_one_result_per_state_component() -> None:
    builder = started()
    x = builder.input("x", F32, (4, 8), (8, 1))
    mean, m2, weight = builder.reduce("welford", (4,), (8,), lambda p, r: (x.at((p[0], r[0])),))
    (reduced,) = builder.definitions
    assert isinstance(reduced, Reduction)
    assert [mean.value.name, m2.value.name, weight.value.name] == ["op_mean", "op_m2", "op_weight"]


def test_operands_that_do_not_fit_a_combine_are_refused() -> None:
    builder = started()
    x = builder.input("x", BF16, (4,), (1,))
    with pytest.raises(ValueError, match="cast to f32 first"):
        builder.reduce("sum", (), (4,), lambda p, r: (x.at(r),))


def test_a_scan_runs_along_an_axis() -> None:
    builder = started()
    x = builder.input("x", F32, (4, 8), (8, 1))
    (y,) = builder.scan("sum", (4, 8), 1, lambda p: (x.at(p),))
    (scan,) = builder.definitions
    assert isinstance(scan, Scan)
    assert (scan.along.name, y.shape) == ("d1", (4, 8))


def update_row(builder: Builder, target: Tensor) -> Tensor:
    return builder.update(
        target, "set", (8,), lambda p: (ix.constant(0), p[0]), lambda p: builder.constant(0, target.dtype)
    )


def test_an_update_copies_what_is_not_its_own() -> None:
    builder = started()
    x = builder.input("x", F32, (4, 8), (8, 1))
    y = update_row(builder, x)
    copy, update = builder.definitions
    assert isinstance(copy, Loop)
    assert isinstance(update, Update)
    assert update.target == copy.results[0].name != "x"
    assert y.value.name == update.result.name


def test_an_update_stores_into_values_of_its_own_node() -> None:
    builder = started()
    zeros = builder.loop((4, 8), F32, lambda p: builder.constant(0, F32))
    once = update_row(builder, zeros)
    update_row(builder, once)
    assert [type(d).__name__ for d in builder.definitions] == ["Loop", "Update", "Update"]


def test_an_update_stores_into_what_may_be_reused() -> None:
    builder = started()
    x = builder.input("x", F32, (4, 8), (8, 1))
    builder.begin(builder.node, (), lambda name: name == "x")
    update_row(builder, x)
    (update,) = builder.definitions
    assert isinstance(update, Update)
    assert update.target == "x"


def test_an_update_that_reads_its_target_works_on_a_copy() -> None:
    builder = started()
    x = builder.loop((4,), F32, lambda p: builder.constant(0, F32))
    builder.update(x, "set", (3,), lambda p: (p[0] + 1,), x.at)
    _, copy, update = builder.definitions
    assert isinstance(update, Update)
    assert update.target == copy.results[0].name  # type: ignore[union-attr]


def test_a_library_call_takes_strided_views_without_a_copy() -> None:
    builder = started(torch.empty(4, 4))
    x = builder.input("x", F32, (4, 8), (8, 1))
    y = builder.extern("aten.mm.default", [x, x.viewed((8, 4), lambda p: p[::-1])], {}, torch.empty(4, 4))
    (call,) = builder.definitions
    assert isinstance(call, Extern)
    assert [view.strides for view in call.args] == [(8, 1), (1, 8)]
    assert y.shape == (4, 4)


def test_a_library_call_copies_what_is_no_strided_tensor() -> None:
    builder = started()
    x = builder.input("x", F32, (4,), (1,))
    builder.extern("aten.relu.default", [x.viewed((4,), lambda p: (3 - p[0],))], {}, torch.empty(4))
    assert [type(d).__name__ for d in builder.definitions] == ["Loop", "Extern"]


def test_results_of_library_calls_keep_exact_strides_and_nesting() -> None:
    builder = started()
    fakes = (torch.empty(4, 8).t(), None, [torch.empty(2, dtype=torch.int64), 7])
    y, nothing, (i, seven) = builder.extern("aten.something.default", [], {}, fakes)
    assert (y.value.type.strides, nothing, i.dtype, seven) == ((1, 8), None, I64, 7)
    (call,) = builder.definitions
    assert isinstance(call, Extern)
    assert [r is None for r in call.results] == [False, True, False, True]


def test_fresh_copies_are_whole_and_keep_the_layout_unless_told() -> None:
    builder = started()
    x = builder.input("x", F32, (4, 8), (8, 1))
    assert builder.fresh_copy(x, (1, 4)).value.type.strides == (1, 4)
    turned = builder.fresh_copy(x.viewed((8, 4), lambda p: p[::-1]))
    assert turned.is_whole
    assert turned.value.type.strides == (1, 8)


def test_seeds_share_one_call_with_a_slot_each() -> None:
    builder = started()
    first, second = builder.seed(), builder.seed()
    graph = builder.finish("g", [])
    (call,) = graph.definitions
    assert isinstance(call, Extern)
    assert (str(first), str(second)) == ("seeds[0]", "seeds[1]")
    assert call.args[0] == 2
    assert graph.type_of("seeds").shape == (2,)


def test_rolling_back_forgets_definitions_and_seeds() -> None:
    builder = started()
    mark = builder.mark()
    builder.seed()
    builder.rollback(mark)
    assert builder.finish("g", []).definitions == ()


def test_constants_of_integer_types_are_cut_off() -> None:
    assert started().constant(2.7, I64).value == 2


def test_kernels_do_not_compute_with_complex_numbers() -> None:
    builder = started()
    with pytest.raises(Unlowered, match="c64"):
        builder.loop((2,), C64, lambda p: builder.constant(0, F32))
