"""Programs whose matrix products native code starts, between their kernels."""

from __future__ import annotations

import pytest

from ferrite_runtime.engines.cuda_engine import CudaEngine
from ferrite_runtime.formats.program import Program
from ferrite_runtime.host.product_library import find_products
from ferrite_runtime.host.product_steps import with_products
from native_product_cases import DEVICE, LAUNCHER, LIBRARY, K, M, N, extern, layers_program, needs_native
from runtime_fakes import FakeStreams, fake_machine
from runtime_kernels import layout, pointwise, program, scaled, tensor_input

torch = pytest.importorskip("torch")


def steady(mapping: dict, inputs, *, products: bool = True):
    machine = fake_machine()
    engine = CudaEngine(
        Program.from_mapping(mapping),
        FakeStreams().platform(),
        lambda index: machine,
        lambda: LAUNCHER,
        lambda device_type, index: find_products(device_type, index) if products else None,
    )
    engine.device_kernels(0)
    engine.first(DEVICE)(list(inputs))
    return engine.steady(DEVICE, lambda args: None)


def layer_inputs(**kwargs) -> list:
    return [torch.randn(M, K), torch.randn(N, K, **kwargs), torch.randn(N, **kwargs)]


@needs_native
def test_a_program_gives_the_same_with_and_without_native_products() -> None:
    mapping = layers_program()
    native, python = (steady(mapping, layer_inputs(), products=products) for products in (True, False))
    assert "_aten_addmm_default" in python.__code__.co_names
    assert "_aten_addmm_default" not in native.__code__.co_names
    assert sum(name.startswith("_run") for name in native.__code__.co_names) == 1, "one native call"
    for _ in range(3):
        inputs = layer_inputs()
        x, w, b = inputs
        expected = torch.addmm(b, 2 * x, w.t()).relu() - 1
        assert torch.equal(native(list(inputs))[0], expected)
        assert torch.equal(python(list(inputs))[0], expected)


@needs_native
def test_a_matrix_may_lie_at_a_place_that_only_the_call_tells() -> None:
    """Whatever is made of it: a view of a view, or a buffer over its storage."""
    matrix = {"dtype": "f32", "shape": [K, N], "strides": [N, 1]}
    steps = [
        {"do": "view", "name": "a", "base": "x", **matrix, "offset": "n"},
        {"do": "view", "name": "b", "base": "a", **matrix, "offset": 0},
        extern("aten.mm.default", [{"ref": "w"}, {"ref": "b"}], "s"),
        {"do": "reuse", "name": "c", "from": "b", **matrix},
        extern("aten.mm.default", [{"ref": "w"}, {"ref": "c"}], "t"),
        {"do": "view", "name": "d", "base": "x", **matrix, "offset": N},
        extern("aten.mm.default", [{"ref": "w"}, {"ref": "d"}], "u"),
        {"do": "alloc", "name": "o", **layout([M * N])},
        {"do": "view", "name": "v", "base": "u", **layout([M * N]), "offset": 0},
        {"do": "launch", "kernel": (kernel := pointwise("a + 1", size=M * N))["id"], "args": ["v", "o"]},
    ]
    inputs = [tensor_input("x", [100]), tensor_input("w", [M, K]), {"name": "n", "kind": "scalar", "dtype": "i64"}]
    mapping = program(inputs, [kernel], steps, [{"value": name} for name in "stuo"])
    made = [type(step).__name__ for step in with_products(Program.from_mapping(mapping), LIBRARY.targets)]
    assert made.count("Multiply") == 3
    x, w = torch.randn(100), torch.randn(M, K)
    host = steady(mapping, [x, w, 1])
    for place in (0, 3, 100 - K * N):
        found = host([x, w, place])
        wanted = torch.mm(w, x[place : place + K * N].view(K, N))
        assert torch.equal(found[0], wanted)
        assert torch.equal(found[1], wanted)
        assert torch.equal(found[3].view(M, N), torch.mm(w, x[N : N + K * N].view(K, N)) + 1)


@needs_native
def test_products_stand_between_kernels_whose_config_depends_on_a_size() -> None:
    """The first call of a bucket launches one by one and computes from Python; later ones go by the sequence."""
    kernel = scaled()
    steps = [
        {"do": "alloc", "name": "t", **layout([M * K])},
        {"do": "launch", "kernel": kernel["id"], "args": ["x", "t", "n", 2.0]},
        {"do": "view", "name": "v", "base": "t", **layout([M, K]), "offset": 0},
        extern("aten.mm.default", [{"ref": "v"}, {"ref": "w"}], "s"),
        {"do": "view", "name": "u", "base": "s", **layout([M * N]), "offset": 0},
        {"do": "launch", "kernel": kernel["id"], "args": ["u", "u", M * N, 3.0]},
    ]
    inputs = [tensor_input("x", [M * K]), tensor_input("w", [K, N]), {"name": "n", "kind": "scalar", "dtype": "i64"}]
    host = steady(program(inputs, [kernel], steps, [{"value": "s"}]), [torch.randn(M * K), torch.randn(K, N), M * K])
    for _ in range(4):
        x, w = torch.randn(M * K), torch.randn(K, N)
        torch.testing.assert_close(host([x, w, M * K])[0], 6 * (x.view(M, K) @ w))


@needs_native
def test_a_result_outlives_the_next_call() -> None:
    host = steady(layers_program(), layer_inputs())
    first = layer_inputs()
    (kept,) = host(list(first))
    host(layer_inputs())
    x, w, b = first
    assert torch.equal(kept, torch.addmm(b, 2 * x, w.t()).relu() - 1)


@needs_native
def test_gradients_and_autocast_do_not_reach_the_products() -> None:
    """As for kernels: the graph was traced under both, and its program computes what it says."""
    inputs = layer_inputs(requires_grad=True)
    x, w, b = (value.detach() for value in inputs)
    host = steady(layers_program(), inputs)
    with torch.enable_grad(), torch.autocast("cpu", torch.bfloat16):
        (out,) = host(list(inputs))
    assert not out.requires_grad
    assert torch.equal(out, torch.addmm(b, 2 * x, w.t()).relu() - 1)


def test_gradients_of_attention_are_on_its_device() -> None:
    """All three, of which views say how they lie; what else the call returns may be elsewhere."""
    target = "aten._scaled_dot_product_efficient_attention_backward.default"
    names = [f"g{place}" for place in range(4)]
    steps = [extern(target, [{"ref": "x"}] * 4, names[0]) | {"results": names}]
    for name in names:
        steps += [
            {"do": "view", "name": f"v{name}", "base": name, **layout([M, K]), "offset": 0},
            extern("aten.mm.default", [{"ref": f"v{name}"}, {"ref": "w"}], f"o{name}"),
        ]
    inputs = [tensor_input("x", [M, K]), tensor_input("w", [K, N])]
    mapping = program(inputs, [], steps, [{"value": f"o{name}"} for name in names])
    made = [type(step).__name__ for step in with_products(Program.from_mapping(mapping), LIBRARY.targets)]
    assert made.count("Multiply") == 3
    assert made[-1] == "Extern"


@needs_native
def test_matrices_that_are_not_surely_on_the_device_go_to_torch() -> None:
    """A result of any extern call may be elsewhere: its address means nothing to the device."""
    steps = [
        extern("aten.neg.default", [{"ref": "x"}], "t", strides=[[K, 1]]),
        {"do": "view", "name": "v", "base": "t", **layout([M, K]), "offset": 0},
        extern("aten.mm.default", [{"ref": "v"}, {"ref": "w"}], "s"),
        {"do": "view", "name": "u", "base": "s", **layout([M * N]), "offset": 0},
        {"do": "launch", "kernel": (kernel := pointwise("a + 1", size=M * N))["id"], "args": ["u", "u"]},
    ]
    mapping = program([tensor_input("x", [M, K]), tensor_input("w", [K, N])], [kernel], steps, [{"value": "s"}])
    x, w = torch.randn(M, K), torch.randn(K, N)
    host = steady(mapping, [x, w])
    assert "_aten_mm_default" in host.__code__.co_names
    assert torch.equal(host([x, w])[0], -x @ w + 1)


@needs_native
@pytest.mark.parametrize("wrong", [None, "shape", "dtype", "used"])
def test_products_write_to_slices_that_they_are_given(wrong: str | None) -> None:
    """Rows of the slices lie apart, and a sum takes the place of its summand; others are called from Python."""
    whole = {"dtype": "f32", "strides": [2 * N, 1]}
    place = {**whole, "shape": [M, N - (wrong == "shape")], "dtype": "i32" if wrong == "dtype" else "f32"}
    out = {"kwargs": {"out": {"ref": "left"}}}
    steps = [
        {"do": "alloc", "name": "c", **layout([M, 2 * N])},
        {"do": "view", "name": "left", "base": "c", **place, "offset": 0},
        {"do": "view", "name": "right", "base": "c", **whole, "shape": [M, N], "offset": N},
        {**extern("aten.mm.out", [{"ref": "x"}, {"ref": "w"}], "r" if wrong == "used" else None), **out},
        {**extern("aten.mm.out", [{"ref": "x"}, {"ref": "w"}], None), "kwargs": {"out": {"ref": "right"}}},
        {
            **extern("aten.addmm.out", [{"ref": "right"}, {"ref": "x"}, {"ref": "w"}], None),
            "kwargs": {"out": {"ref": "right"}, "alpha": 2},
        },
        {"do": "launch", "kernel": (kernel := pointwise("a + 1", size=2 * M * N))["id"], "args": ["c", "c"]},
    ]
    mapping = program([tensor_input("x", [M, K]), tensor_input("w", [K, N])], [kernel], steps, [{"value": "c"}])
    made = [type(step).__name__ for step in with_products(Program.from_mapping(mapping), LIBRARY.targets)]
    assert made.count("Multiply") == (3 if wrong is None else 2)
    if wrong is None:
        x, w = torch.randn(M, K), torch.randn(K, N)
        host = steady(mapping, [x, w])
        assert not any(name.startswith("_aten") for name in host.__code__.co_names)
        for _ in range(3):
            (found,) = host([x, w])
            torch.testing.assert_close(found, torch.cat([x @ w, 3 * (x @ w)], 1) + 1)


def _graph(name: str, kernel: str, columns: int = K) -> dict:
    """Returns a graph of x, which returns ``2 x`` in a buffer of its own, and ``x @ w``."""
    steps = [
        {"do": "alloc", "name": "t", "dtype": "f32", "shape": [M, K], "strides": [columns, 1]},
        {"do": "launch", "kernel": kernel, "args": ["x", "t"]},
        extern("aten.mm.default", [{"ref": "x"}, {"ref": "w"}], "s"),
    ]
    inputs = [tensor_input("x", [M, K]), tensor_input("w", [K, N])]
    return {"name": name, "inputs": inputs, "steps": steps, "outputs": [{"value": "t"}, {"value": "s"}]}


@needs_native
@pytest.mark.parametrize(("chosen", "products"), [("call", 2), ("if", 2), ("other rows", 1)])
def test_what_a_graph_returns_is_multiplied_by_native_code(chosen: str, products: int) -> None:
    """Of two branches where both return it alike; a tensor of other strides goes to torch."""
    kernel = pointwise("a * 2", size=M * K)
    given = {"args": ["x", "w"], "sizes": [], "results": ["t", "s"]}
    whether = {"do": "if", "condition": "c", "then": "one", "else": "other", **given}
    steps = [
        {"do": "call", "graph": "one", **given} if chosen == "call" else whether,
        extern("aten.mm.default", [{"ref": "t"}, {"ref": "w"}], "u"),
        extern("aten.mm.default", [{"ref": "s"}, {"ref": "v"}], "o"),
    ]
    condition = {"name": "c", "kind": "tensor", "dtype": "bool", "shape": [], "strides": [], "device": DEVICE.type}
    inputs = [tensor_input("x", [M, K]), tensor_input("w", [K, N]), tensor_input("v", [N, K]), condition]
    mapping = program(inputs, [kernel], steps, [{"value": "u"}, {"value": "o"}])
    mapping["graphs"] = [
        _graph("one", kernel["id"]),
        _graph("other", kernel["id"], 2 * K if chosen == "other rows" else K),
    ]
    made = [type(step).__name__ for step in with_products(Program.from_mapping(mapping), LIBRARY.targets)]
    assert made.count("Multiply") == products
    x, w, v = torch.randn(M, K), torch.randn(K, N), torch.randn(N, K)
    for is_true in (True, False):
        found = steady(mapping, [x, w, v, torch.tensor(is_true)])([x, w, v, torch.tensor(is_true)])
        assert torch.allclose(found[1], x @ w @ v, rtol=1e-5, atol=1e-5)
        if chosen != "other rows":
            assert torch.allclose(found[0], 2 * x @ w, rtol=1e-5, atol=1e-5)
