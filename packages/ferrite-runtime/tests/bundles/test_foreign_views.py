"""Bundles that somebody made up: views lie in their buffers, calls have the arguments of operators, integers end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from bundle_cases import EXAMPLE  # noqa: E402
from ferrite_runtime import (  # noqa: E402
    Bundle,
    CheckFailed,
    ProgramFailed,
    SpecError,
)
from ferrite_runtime.host.host_function import write_host  # noqa: E402
from foreign_bundles import (  # noqa: E402
    SOURCES,
    Manifest,
    alloc,
    changed,
    extern,
    let,
    loaded,
    steps_of,
    view,
    with_steps,
    with_steps_last,
)

OUTSIDE = {
    "past the end": (alloc("zz", 4), view("yy", "zz", 1 << 20)),
    "one element past the end": (alloc("zz", 4), view("yy", "zz", 4, 1)),
    "before the start": (alloc("zz", 4), view("yy", "zz", 4, -(1 << 20))),
    "by its strides": (alloc("zz", 4), view("yy", "zz", 3, strides=[2])),
    "by its dtype": (alloc("zz", 4), view("yy", "zz", 4, dtype="f64")),
    "by a view of a view": (alloc("zz", 4), view("yy", "zz", 2, 2), view("xx", "yy", 2, 1)),
    "of an input": (view("yy", "arg0_1", 50 * 32 + 1),),
    "by an integer with a name": (let("k", ["mul", 4, 9]), alloc("zz", 4), view("yy", "zz", "k")),
    "by a reused buffer": (alloc("zz", 4), {**alloc("yy", 5), "do": "reuse", "from": "zz"}),
    "by a negative stride": (alloc("zz", 4), view("yy", "zz", 4, 3, strides=[-1])),
    "of a dtype of no size": (alloc("zz", 4), view("yy", "zz", 4, dtype="torch.quint4x2")),
    "of more than there is": (alloc("zz", 1 << 50),),
    "of the square of that": ({**alloc("zz", 1 << 40, 1 << 40), "strides": [1 << 40, 1]},),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
def test_views_outside_of_their_buffers_are_refused_at_load(name: str) -> None:
    with pytest.raises(SpecError, match=r"^programs\.main\.inference\.steps\[\d\]"):
        changed(with_steps(*OUTSIDE[name]))


def test_views_at_the_ends_of_their_buffers_are_fine() -> None:
    edges = (
        alloc("zz", 4),
        view("a0", "zz", 1, 3),
        view("a1", "zz", 2, 2),
        view("a2", "zz", 0, 4),
        view("a3", "a1", 1, 1),
    )
    changed(with_steps(*edges, view("a4", "a1", 4, -2), {**view("a5", "zz", 2), "dtype": "f64"}))


@pytest.mark.parametrize(
    ("size", "offset", "fits"),
    [("m", 0, True), (["sub", "m", 1], 1, True), ("m", 1, False), (["mul", "m", 2], 0, False),
     (4, ["sub", "m", 4], True), (4, ["sub", "m", 3], False), (["sub", 3, "m"], 0, False)],
)  # fmt: skip
def test_views_of_sizes_that_a_call_tells_are_checked_in_the_call(size: Any, offset: Any, *, fits: bool) -> None:
    model = loaded(with_steps_last(view("zz", "a", size, offset), extern("aten.neg.default", {"ref": "zz"})), "sized")
    if fits:
        SOURCES["sized"].call(model)
    else:
        with pytest.raises(CheckFailed, match="zz lies outside of a"):
            SOURCES["sized"].call(model)


@pytest.mark.parametrize(("size", "fits"), [(12, True), (13, False), (["add", "m", 0], True), (["add", "m", 1], False)])
def test_views_of_what_a_library_returns_are_compared_with_it(size: Any, *, fits: bool) -> None:
    steps = (extern("aten.neg.default", {"ref": "a"}, results=("zz",)), view("yy", "zz", size))
    model = loaded(with_steps_last(*steps), "sized")
    if fits:
        SOURCES["sized"].call(model)
    else:
        with pytest.raises(ProgramFailed, match="outside of the result"):
            SOURCES["sized"].call(model)


def test_programs_of_the_compiler_need_no_checks_where_sizes_are_known() -> None:
    from ferrite_runtime.formats.buffer_bounds import with_bounds
    from ferrite_runtime.formats.steps import Check, Within

    (program,) = Bundle.read(EXAMPLE).programs.values()
    added = [step for step in with_bounds(program).steps if isinstance(step, (Check, Within))]
    assert not [step for step in added if isinstance(step, Check)]
    assert {step.owner for step in added} == {"bmm", "bmm_1", "mm", "mm_1", "mm_2"}


def test_products_that_native_code_starts_need_no_comparison_either() -> None:
    from ferrite_runtime.formats.buffer_bounds import with_bounds
    from ferrite_runtime.host.launch_text import Sequencing
    from ferrite_runtime.host.product_steps import with_products

    (program,) = Bundle.read(EXAMPLE).programs.values()
    bounded = with_bounds(program)
    assert "_within" in write_host(bounded).source
    native = with_products(bounded, frozenset(("aten.mm.default", "aten.bmm.default")))
    sequencing = Sequencing(list, lambda product, places: [], native)
    assert "_within" not in write_host(bounded, lambda site: [], sequencing=sequencing).source


_SQUARE = {"do": "alloc", "name": "zp", "dtype": "f32", "shape": [64, 64], "strides": [64, 1]}


@pytest.mark.parametrize(
    "call",
    [extern("aten.mm.default", {"ref": "zp"}, {"ref": "zp"}, out={"ref": "zo"}),
     extern("aten.addmm.default", {"ref": "zp"}, {"ref": "zp"}, {"ref": "zp"}, out={"ref": "zo"}),
     extern("aten.mm.default", {"ref": "zp"}, {"ref": "zp"}, mat2={"ref": "zp"}),
     extern("aten.mm.default", {"ref": "zp"}, {"ref": "zp"}, {"ref": "zp"}),
     extern("aten.ones.default", [1], names=None)],
)  # fmt: skip
def test_calls_have_the_arguments_that_the_operator_declares(call: Manifest) -> None:
    with pytest.raises(SpecError, match="argument"):
        SOURCES["sized"].call(loaded(with_steps_last(_SQUARE, alloc("zo", 1), call), "sized"))


@pytest.mark.parametrize(
    "target",
    ["aten._sparse_coo_tensor_with_dims_and_tensors.default", "aten.sparse_coo_tensor.indices_size",
     "aten._indices.default", "aten._nested_tensor_from_tensor_list.default", "aten._nested_tensor_size.default",
     "aten._to_sparse_csr.default",
     "aten.max_pool2d_with_indices_backward.default", "aten.adaptive_max_pool3d_backward.default",
     "aten.native_batch_norm.default", "aten.native_layer_norm_backward.default", "aten.ctc_loss.Tensor",
     "aten._ctc_loss_backward.default", "aten._embedding_bag_dense_backward.default", "aten.unfold_backward.default",
     "aten._log_softmax_backward_data.default", "aten.grid_sampler_2d_backward.default",
     "aten.crow_indices.default", "aten._convert_indices_from_coo_to_csr.default", "aten._reshape_alias.default",
     "aten._sobol_engine_ff_.default", "aten.to_mkldnn.default", "aten._cudnn_rnn_flatten_weight.default"],
)  # fmt: skip
def test_operators_that_do_not_check_what_they_are_given_are_not_called(target: str) -> None:
    """With indices beyond a sparse tensor, sizes beyond a nested one, places that no pool has, some end the process."""
    with pytest.raises(SpecError, match="not among the operators"):
        loaded(with_steps_last(extern(target, {"ref": "a"}, results=("zz",))), "sized")


@pytest.mark.parametrize(
    "steps",
    [
        [extern("aten._fft_r2c.default", {"ref": "a"}, [axis], 0, True, results=("zz",))] for axis in (2, -1, 1 << 20)
    ]
    + [
        [extern("aten.eye.default", 4, results=("ze",)), extern("aten.ones.default", shape, results=("zp",)),
         extern("aten.to.dtype", {"ref": "zp"}, {"dtype": "i32"}, results=("zi",)),
         extern("aten.lu_unpack.default", {"ref": "ze"}, {"ref": "zi"}, results=("z0", "z1", "z2"))]
        for shape in ([0], [1], [3], [5], [1, 4], [])
    ],
)  # fmt: skip
def test_what_operators_would_read_unseen_is_looked_at_before(steps: list[Manifest]) -> None:
    with pytest.raises(ProgramFailed, match=r"axes is transformed|with pivots of"):
        SOURCES["sized"].call(loaded(with_steps_last(*steps), "sized"))


def test_operators_that_are_looked_at_before_are_called() -> None:
    pivots = extern("aten.to.dtype", {"ref": "zp"}, {"dtype": "i32"}, results=("zi",))
    steps = [
        extern("aten._fft_r2c.default", {"ref": "a"}, [1], 0, True, results=("zz",)),
        extern("aten.eye.default", 4, results=("ze",)), extern("aten.ones.default", [4], results=("zp",)), pivots,
        extern("aten.lu_unpack.default", {"ref": "ze"}, {"ref": "zi"}, results=("z0", "z1", "z2")),
    ]  # fmt: skip
    SOURCES["sized"].call(loaded(with_steps_last(*steps), "sized"))


@pytest.mark.parametrize(
    "step",
    [alloc("zz", "i0"), view("zz", "a", "i0"), view("zz", "a", 1, ["max", "i0", 0]), let("zz", ["add", "i0", 1]),
     extern("aten.ones.default", [{"size": "i0"}], results=("zz",)),
     {"do": "check", "holds": ["le", "i0", 4], "message": "m", "names": []}],
)  # fmt: skip
def test_numbers_with_fractions_are_no_sizes(step: Manifest) -> None:
    read = {"do": "item", "name": "i0", "from": "t", "dtype": "f32"}
    with pytest.raises(SpecError, match="'i0' is not an integer"):
        changed(with_steps_last(read, step), "sized")


def test_integers_that_a_library_returned_are_integers() -> None:
    half = extern("aten.full.default", [], 2.5, results=("zh",))
    read = {"do": "item", "name": "i0", "from": "zh", "dtype": "i64"}
    SOURCES["sized"].call(loaded(with_steps_last(half, read, alloc("zz", "i0")), "sized"))


def squaring(count: int, first: Any) -> tuple[Manifest, ...]:
    lets = [{"do": "let", "name": "z0", "value": first}]
    lets += [{"do": "let", "name": f"z{n}", "value": ["mul", f"z{n - 1}", f"z{n - 1}"]} for n in range(1, count)]
    return tuple(lets)


@pytest.mark.parametrize("first", [1 << 62, {"size": ["arg0_1", 0]}])
def test_integers_that_grow_without_end_are_refused(first: Any) -> None:
    with pytest.raises(SpecError, match="can grow to"):
        changed(with_steps(*squaring(27, first)))
    changed(with_steps(*squaring(6, {"size": ["arg0_1", 0]})))


def nested(depth: int) -> Any:
    return 1 if depth == 0 else ["ceildiv", nested(depth - 1), 2]


@pytest.mark.parametrize(
    "value",
    [1 << 63, -(1 << 63) - 1, nested(34), ["add", *range(257)], ["floordiv", 1, 0], ["mod", "n", ["sub", 2, 2]]],
)
def test_integers_beyond_their_bounds_are_refused(value: Any) -> None:
    with pytest.raises(SpecError):
        changed(with_steps({"do": "let", "name": "n", "value": 3}, {"do": "let", "name": "zz", "value": value}))


def test_the_deepest_expression_that_is_read_is_compiled() -> None:
    model = loaded(with_steps_last({"do": "let", "name": "zz", "value": nested(33)}), "sized")
    SOURCES["sized"].call(model)


def test_products_of_long_sums_are_not_multiplied_out_without_end() -> None:
    names = [{"do": "let", "name": f"k{n}", "value": {"size": ["x", 0]}} for n in range(64)]
    sums = [["add", *(f"k{n}" for n in range(8 * row, 8 * row + 8))] for row in range(8)]
    with pytest.raises(CheckFailed):
        SOURCES["sized"].call(loaded(_behind_lets(*names, view("zz", "a", ["mul", *sums])), "sized"))


def _behind_lets(*steps: Manifest) -> Callable[[Manifest], None]:
    return lambda manifest: steps_of(manifest).__setitem__(slice(3, 3), steps)
