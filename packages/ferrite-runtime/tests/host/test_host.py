"""Host steps: what the straight-line function does with buffers, views, extern calls and references."""

from __future__ import annotations

import gc
import weakref
from typing import ClassVar

import pytest

from ferrite_runtime import (
    DeviceUnavailable,
    ExternError,
    InputError,
    InterpreterUnavailable,
    Options,
    SpecError,
    load_program,
)
from ferrite_runtime.formats.program import Program
from ferrite_runtime.host.extern_calls import find_operator, resolve_extern
from ferrite_runtime.host.host_function import write_host
from runtime_kernels import contiguous, layout, pointwise, program, row_sum, tensor_input

torch = pytest.importorskip("torch")


def alloc(name: str, shape: list[int], dtype: str = "f32", **extra) -> dict:
    return {"do": "alloc", "name": name, **layout(shape, dtype), **extra}


def launch(kernel: dict, *args) -> dict:
    return {"do": "launch", "kernel": kernel["id"], "args": list(args)}


def extern(target: str, args: list, results: list, **extra) -> dict:
    return {
        "do": "extern",
        "target": target,
        "args": args,
        "kwargs": extra.pop("kwargs", {}),
        "results": results,
        **extra,
    }


def free(*names: str) -> dict:
    return {"do": "free", "names": list(names)}


def ref(name: str) -> dict:
    return {"ref": name}


def run(mapping: dict, *inputs) -> tuple:
    return load_program(mapping)(*inputs)


def test_reused_buffer_of_equal_layout_is_the_same_tensor() -> None:
    add, double = pointwise("a + 1", name="add"), pointwise("a * 2", name="double")
    steps = [alloc("t", [1000]), launch(add, "x", "t"), {"do": "reuse", "name": "u", "from": "t", **layout([1000])}]
    steps.append(launch(double, "u", "u"))
    loaded = load_program(program([tensor_input("x", [1000])], [add, double], steps, [{"value": "u"}]))
    x = torch.randn(1000)
    assert torch.equal(loaded(x)[0], (x + 1) * 2)
    assert "_reinterpret" not in loaded.host_source
    assert loaded.host_source.count("_empty(") == 1


def test_a_kept_buffer_is_zeros_where_nothing_puts_calls_in_an_order() -> None:
    count = pointwise("a + 1", size=8)
    steps = [{"do": "keep", "name": "c", **layout([8])}, alloc("o", [8]), launch(count, "c", "o"), free("c")]
    loaded = load_program(program([tensor_input("x", [8])], [count], steps, [{"value": "o"}]))
    for _ in range(2):
        assert torch.equal(loaded(torch.zeros(8))[0], torch.ones(8))


def test_reused_buffer_of_another_type_is_a_view_of_the_storage() -> None:
    to_half, negate = pointwise("a", out="f16", name="to_half"), pointwise("-a", dtype="f16", name="negate")
    steps = [
        alloc("t", [1000]),
        extern("aten.fill_.Scalar", [ref("t"), 7.0], [None]),
        {"do": "reuse", "name": "u", "from": "t", **layout([10, 100], "f16")},
        launch(to_half, "x", "u"),
        launch(negate, "u", "u"),
    ]
    mapping = program([tensor_input("x", [1000])], [to_half, negate], steps, [{"value": "u"}])
    x = torch.randn(1000)
    (out,) = run(mapping, x)
    assert out.dtype == torch.float16
    assert torch.equal(out, -x.half().view(10, 100))


def test_view_of_a_view_of_an_input_is_an_address_for_kernels_and_an_object_for_libraries() -> None:
    double = pointwise("a * 2", size=6)
    steps = [
        {"do": "view", "name": "v", "base": "x", **layout([3, 4]), "offset": 4},
        {"do": "view", "name": "w", "base": "v", **layout([2, 3]), "offset": 4},
        alloc("o", [6]),
        launch(double, "w", "o"),
        extern("aten.neg.default", [ref("w")], ["n"]),
    ]
    outputs = [{"value": name} for name in ("o", "n", "w", "x")]
    x = torch.arange(16.0).view(4, 4)
    o, n, w, same = run(program([tensor_input("x", [4, 4])], [double], steps, outputs), x)
    expected = x.flatten()[8:14]
    assert torch.equal(o, expected * 2)
    assert torch.equal(n, -expected.view(2, 3))
    assert w.data_ptr() == x.data_ptr() + 32
    assert same is x


def test_view_of_an_offset_input_counts_from_its_first_element() -> None:
    steps = [{"do": "view", "name": "v", "base": "x", **layout([2]), "offset": 1}]
    base = torch.arange(10.0)
    (v,) = run(program([tensor_input("x", [4])], [], steps, [{"value": "v"}]), base[3:7])
    assert v.tolist() == [4.0, 5.0]


def test_view_as_another_dtype_at_an_offset() -> None:
    steps = [{"do": "view", "name": "v", "base": "x", **layout([2], "i32"), "offset": 1}]
    base = torch.arange(10.0)
    (v,) = run(program([tensor_input("x", [4])], [], steps, [{"value": "v"}]), base[3:7])
    assert torch.equal(v, base[4:6].view(torch.int32))


def test_library_call_with_every_kind_of_argument() -> None:
    steps = [
        extern("aten.addmm.default", [ref("b"), ref("x"), ref("w")], ["m"], kwargs={"beta": 2, "alpha": 0.5}),
        extern(
            "aten._to_copy.default", [ref("m")], ["d"], kwargs={"dtype": {"dtype": "f64"}, "device": {"device": "cpu"}}
        ),
        extern("aten.split.Tensor", [ref("d"), 2], ["s0", None, "s2"]),
        extern("aten.max.dim", [ref("x"), 1], ["value", "index"]),
        extern("aten.full.default", [[2, 2], {"float": "-inf"}], ["f"], kwargs={"layout": {"layout": "strided"}}),
        extern("aten.sum.dim_IntList", [ref("x"), [0, 1], True], ["sum"], kwargs={"dtype": None}),
    ]
    inputs = [tensor_input("x", [6, 4]), tensor_input("w", [4, 5]), tensor_input("b", [5])]
    outputs = [{"value": n} for n in ("m", "s0", "s2", "value", "index", "f", "sum")] + [{"scalar": 3}, {"none": True}]
    x, w, b = torch.randn(6, 4), torch.randn(4, 5), torch.randn(5)
    m, s0, s2, value, index, f, total, three, nothing = run(program(inputs, [], steps, outputs), x, w, b)
    assert torch.equal(m, torch.addmm(b, x, w, beta=2, alpha=0.5))
    assert torch.equal(s0, m.double()[:2])
    assert torch.equal(s2, m.double()[4:])
    assert torch.equal(value, x.max(1).values)
    assert torch.equal(index, x.max(1).indices)
    assert f.tolist() == [[float("-inf")] * 2] * 2
    assert torch.equal(total, x.sum((0, 1), keepdim=True))
    assert (three, nothing) == (3, None)


def test_result_with_other_strides_than_stated_is_copied_into_them() -> None:
    steps = [
        extern("aten.t.default", [ref("x")], ["a"], strides=[[1, 4]]),
        extern("aten.t.default", [ref("x")], ["b"], strides=[[3, 1]]),
    ]
    x = torch.randn(3, 4)
    a, b = run(program([tensor_input("x", [3, 4])], [], steps, [{"value": "a"}, {"value": "b"}]), x)
    assert a.stride() == (1, 4)
    assert a.data_ptr() == x.data_ptr()
    assert b.stride() == (3, 1)
    assert torch.equal(a, b)


def test_item_scalar_inputs_and_copy() -> None:
    steps = [
        {"do": "item", "name": "n", "from": "t", "dtype": "f32"},
        extern("aten.mul.Scalar", [ref("x"), ref("n")], ["a"]),
        extern("aten.add.Scalar", [ref("a"), ref("k")], ["b"]),
        {"do": "copy", "to": "x", "from": "b"},
    ]
    inputs = [tensor_input("x", [4]), tensor_input("t", []), {"name": "k", "kind": "scalar", "dtype": "i64"}]
    x, t = torch.ones(4), torch.tensor(2.5)
    out, n = run(program(inputs, [], steps, [{"value": "x"}, {"value": "n"}]), x, t, 3)
    assert out is x
    assert x.tolist() == [5.5] * 4
    assert n == 2.5


def test_copy_into_a_leaf_that_requires_gradients() -> None:
    steps = [{"do": "copy", "to": "x", "from": "y"}]
    x, y = torch.zeros(3, requires_grad=True), torch.ones(3)
    run(program([tensor_input("x", [3]), tensor_input("y", [3])], [], steps, []), x, y)
    assert x.tolist() == [1, 1, 1]


def test_opaque_input_and_seeds() -> None:
    steps = [
        extern("ferrite.seed", [4, {"device": "cpu"}], ["seeds"]),
        extern("ferrite.alias", [ref("x")], ["same"]),
        extern("aten.rand.generator", [[3]], ["r"], kwargs={"generator": ref("g")}),
    ]
    inputs = [tensor_input("x", [2]), {"name": "g", "kind": "opaque"}]
    loaded = load_program(program(inputs, [], steps, [{"value": v} for v in ("seeds", "same", "r")]))
    x = torch.zeros(2)

    def draw() -> tuple:
        torch.manual_seed(5)
        return loaded(x, torch.Generator().manual_seed(11))

    (seeds, same, r), (again, _, r_again) = draw(), draw()
    assert seeds.dtype == torch.int64
    assert len(seeds.unique()) == 4
    assert torch.equal(seeds, again)
    assert torch.equal(r, r_again)
    assert same is x


def test_zero_dimensional_and_empty_tensors() -> None:
    add, nothing = pointwise("a + 1", size=1, name="add"), pointwise("a + 1", size=0, name="nothing")
    steps = [alloc("o", []), alloc("e", [0, 3]), launch(add, "x", "o"), launch(nothing, "y", "e")]
    inputs = [tensor_input("x", []), tensor_input("y", [0, 3])]
    o, e = run(
        program(inputs, [add, nothing], steps, [{"value": "o"}, {"value": "e"}]), torch.tensor(2.0), torch.empty(0, 3)
    )
    assert o.item() == 3
    assert e.shape == (0, 3)


def test_padded_strides_are_allocated() -> None:
    steps = [{"do": "alloc", "name": "o", "dtype": "f32", "shape": [3, 5], "strides": [8, 1]}]
    steps.append(extern("aten.fill_.Scalar", [ref("o"), 1.0], [None]))
    (o,) = run(program([], [], steps, [{"value": "o"}]))
    assert o.stride() == (8, 1)
    assert o.sum() == 15


class Watched:
    """Sees which tensors are alive when an extern call happens, through an op registered for the test."""

    library = torch.library.Library("ferrite_test", "FRAGMENT")
    seen: ClassVar[list[list[bool]]] = []
    watched: ClassVar[list[weakref.ref]] = []

    @classmethod
    def install(cls) -> None:
        cls.library.define("probe(Tensor x) -> Tensor")
        cls.library.impl("probe", cls.probe, "CompositeExplicitAutograd")

    @classmethod
    def probe(cls, x):
        gc.collect()
        cls.seen.append([reference() is not None for reference in cls.watched])
        return x.clone()


Watched.install()


def test_boxed_call_drops_inputs_and_buffers_where_they_are_freed() -> None:
    double = pointwise("a * 2", name="double")
    steps = [
        alloc("t", [1000]),
        launch(double, "x", "t"),
        extern("ferrite_test.probe.default", [ref("t")], ["p0"]),
        free("x"),
        extern("ferrite_test.probe.default", [ref("t")], ["p1"]),
    ]
    loaded = load_program(program([tensor_input("x", [1000])], [double], steps, [{"value": "p1"}]))
    for _ in range(2):
        x = torch.randn(1000)
        Watched.watched, Watched.seen = [weakref.ref(x)], []
        box = [x]
        del x
        loaded.call_boxed(box)
        assert box == []
        assert Watched.seen == [[True], [False]]


def test_view_keeps_the_storage_of_a_freed_base_alive() -> None:
    double = pointwise("a * 2", size=4)
    steps = [
        extern("aten.add.Scalar", [ref("x"), 1], ["base"]),
        {"do": "view", "name": "v", "base": "base", **layout([4]), "offset": 4},
        free("base"),
        extern("aten.zeros.default", [[8]], ["other"]),
        alloc("o", [4]),
        launch(double, "v", "o"),
        free("v", "other"),
    ]
    loaded = load_program(program([tensor_input("x", [8])], [double], steps, [{"value": "o"}]))
    x = torch.arange(8.0)
    assert loaded(x)[0].tolist() == [10, 12, 14, 16]
    lines = loaded.host_source.splitlines()
    assert next(i for i, line in enumerate(lines) if "del base" in line) > next(
        i for i, line in enumerate(lines) if "_launch0" in line
    )


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda x: (x,), "takes 2 inputs"),
        (lambda x: (x.double(), 1), "'x' .* has dtype torch.float32, got torch.float64"),
        (lambda x: (x[:500], 1), r"'x' .* has shape \(1000,\), got \(500,\)"),
        (lambda x: (torch.zeros(2000)[::2], 1), r"'x' .* has strides \(1,\), got \(2,\)"),
        (lambda x: ([1], 1), "'x' .* is a tensor, got list"),
        (lambda x: (x, x), "'k' .* is a number, got Tensor"),
        (lambda x: (x.to("meta"), 1), "'x' .* is on cpu, got a tensor on meta"),
    ],
)
def test_wrong_input_is_refused_by_name(bad, message: str) -> None:
    inputs = [tensor_input("x", [1000]), {"name": "k", "kind": "scalar", "dtype": "i64"}]
    loaded = load_program(program(inputs, [], [], [{"value": "x"}]))
    with pytest.raises(InputError, match=message):
        loaded(*bad(torch.zeros(1000)))
    assert loaded(torch.zeros(1000), 1)


def test_stride_of_an_axis_of_size_one_does_not_matter() -> None:
    loaded = load_program(program([tensor_input("x", [1, 4])], [], [], [{"value": "x"}]))
    assert loaded(torch.zeros(1, 4).as_strided((1, 4), (17, 1)))


def test_inputs_are_checked_as_often_as_asked() -> None:
    mapping = program([tensor_input("x", [4])], [], [], [{"value": "x"}])
    always, first = load_program(mapping, options=Options(check_inputs="always")), load_program(mapping)
    for loaded in (always, first):
        loaded(torch.zeros(4))
    first(torch.zeros(5))
    with pytest.raises(InputError):
        always(torch.zeros(5))


def test_unknown_operator_is_reported_at_load() -> None:
    steps = [extern("nowhere.missing.default", [], [])]
    with pytest.raises(ExternError, match=r"no operator nowhere\.missing\.default"):
        load_program(program([], [], steps, []))
    with pytest.raises(ExternError, match=r"no helper ferrite\.missing"):
        load_program(program([], [], [extern("ferrite.missing", [], [])], []))


def test_a_call_of_the_captured_graph_is_handed_over_at_load() -> None:
    steps = [extern("captured.cond.7", [{"ref": "x"}, 3], ["y", None, "z"], strides=[[1], None, None])]
    mapping = program([tensor_input("x", [4])], [], steps, [{"value": "y"}, {"value": "z"}])

    def call(x: torch.Tensor, number: int) -> tuple[torch.Tensor, ...]:
        return torch.stack([x, x * number], 1)[:, 1], x, x + number

    x = torch.arange(4.0)
    y, z = load_program(mapping, captured={"captured.cond.7": call})(x)
    torch.testing.assert_close((y, z), (x * 3, x + 3))
    assert y.stride() == (1,)
    with pytest.raises(ExternError, match=r"captured\.cond\.7 is a call of the graph that this program was compiled"):
        load_program(mapping)
    with pytest.raises(ExternError, match="not at hand"):
        load_program(mapping, captured={"captured.cond.8": call})


def failing(*lines: str) -> dict:
    return extern("captured.fail.1", [ref("x")], ["y"], **({"origin": list(lines)} if lines else {}))


def fail(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    raise ValueError("not today")


NOTE = "while mine.fail (model.py:3), mine.fail (model.py:4) ran as a step of a compiled graph"


@pytest.mark.parametrize(
    ("origin", "notes"),
    [((), None), (("mine.fail (model.py:3)", "mine.fail (model.py:4)"), [NOTE])],
    ids=["unknown", "known"],
)
def test_an_error_of_a_library_has_a_note_of_what_the_call_came_from(origin: tuple[str, ...], notes: object) -> None:
    kernel = pointwise("a + 1")
    steps = [alloc("t", [1000]), launch(kernel, "x", "t"), extern("aten.neg.default", [ref("t")], ["u"], origin=["no"])]
    steps += [failing(*origin), free("u")]
    mapping = program([tensor_input("x", [1000])], [kernel], steps, [{"value": "y"}])
    assert Program.from_mapping(mapping).to_mapping() == mapping
    loaded = load_program(mapping, captured={"captured.fail.1": fail})
    for _ in range(2):  # the function of the first call, and that of all others
        with pytest.raises(ValueError, match="not today") as caught:
            loaded(torch.ones(1000, requires_grad=True))  # recording is off inside: the function calls itself
        assert getattr(caught.value, "__notes__", None) == notes


def test_an_error_in_a_graph_that_a_step_calls_has_one_note() -> None:
    graph = {"name": "inner", "inputs": [tensor_input("x", [4])], "steps": [failing(NOTE)], "outputs": [{"value": "y"}]}
    loop = {"do": "for", "graph": "inner", "args": ["x"], "sizes": [], "results": ["z"], "count": 2, "rows": 0}
    mapping = program([tensor_input("x", [4])], [], [{**loop, "stacked": []}], [{"value": "z"}])
    loaded = load_program({**mapping, "graphs": [graph]}, captured={"captured.fail.1": fail})
    with pytest.raises(ValueError, match="not today") as caught:
        loaded(torch.ones(4))
    assert caught.value.__notes__ == [f"while {NOTE} ran as a step of a compiled graph"]


def test_what_errors_are_noted_with_is_no_code() -> None:
    written = failing('aten.fail"); import os  # (model.py:3)')
    loaded = program([tensor_input("x", [4])], [], [written], [{"value": "y"}])
    text = write_host(Program.from_mapping(loaded))
    assert "import" not in text.source
    assert list(text.origins.values()) == [tuple(written["origin"])]
    with pytest.raises(SpecError, match=r"steps\[0\]\.origin\[0\]: .* is not one line"):
        Program.from_mapping({**loaded, "steps": [{**written, "origin": ["one\ntwo"]}]})


def test_host_source_is_readable() -> None:
    reduction = row_sum(4, 8, name="row_total")
    steps = [alloc("o", [4]), launch(reduction, "x", "o"), free("x")]
    loaded = load_program(program([tensor_input("x", [4, 8])], [reduction], steps, [{"value": "o"}]))
    assert loaded.host_source == (
        "def host(args):\n"
        "    x, = args\n"
        "    args.clear()\n"
        "    o = _empty((4,), (1,), _float32)\n"
        "    _p_x = x.data_ptr()\n"
        "    _p_o = o.data_ptr()\n"
        "    # row_total <- looped\n"
        "    _launch0(_stream, _p_x, _p_o)\n"
        "    del x\n"
        "    return (o,)\n"
    )
    x = torch.randn(4, 8)
    torch.testing.assert_close(loaded(x)[0], x.sum(1))


def test_strides_of_fixtures_are_row_major() -> None:
    assert contiguous([2, 3, 4]) == [12, 4, 1]


def test_program_for_a_gpu_is_interpreted_on_the_cpu_when_asked() -> None:
    kernel = pointwise("a + 1")
    steps = [
        alloc("t", [1000]),
        launch(kernel, "x", "t"),
        extern("aten.zeros_like.default", [ref("t")], ["z"], kwargs={"device": {"device": "cuda"}}),
    ]
    mapping = program(
        [tensor_input("x", [1000], device="cuda")], [kernel], steps, [{"value": "t"}, {"value": "z"}], "cuda"
    )
    x = torch.randn(1000)
    t, z = load_program(mapping, options=Options(interpret=True))(x)
    assert torch.equal(t, x + 1)
    assert z.device.type == "cpu"


def test_an_interpreter_without_its_libraries_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrite_runtime.loading.loaded_program.find_spec", lambda name: None if name == "numpy" else 1)
    mapping = program([tensor_input("x", [1000])], [pointwise("a + 1")], [], [])
    with pytest.raises(InterpreterUnavailable, match="needs numpy to run kernels") as caught:
        load_program(mapping)
    assert "ferrite-runtime[interpreter]" in caught.value.hint


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_program_for_an_absent_gpu_is_refused() -> None:
    kernel = pointwise("a + 1")
    mapping = program([tensor_input("x", [1000], device="cuda")], [kernel], [], [], "cuda")
    with pytest.raises(DeviceUnavailable, match="no CUDA device"):
        load_program(mapping)
    with pytest.raises(DeviceUnavailable, match="no engine runs kernels on 'tpu'"):
        load_program(mapping | {"device": "tpu"})


def test_attention_goes_through_torchs_binding_to_the_same_operator() -> None:
    q, k, v = (torch.randn(1, 2, 8, 16) for _ in range(3))
    target = "aten._scaled_dot_product_flash_attention_for_cpu.default"
    found = resolve_extern(target)(q, k, v, 0.0, True, scale=0.3)
    wanted = find_operator(target)(q, k, v, 0.0, True, scale=0.3)
    assert len(found) == len(wanted)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    for kind in ("flash", "efficient", "cudnn"):
        name = f"_scaled_dot_product_{kind}_attention"
        assert resolve_extern(f"aten.{name}.default") is getattr(torch, name)
