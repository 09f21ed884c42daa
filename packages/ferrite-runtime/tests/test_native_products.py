"""Matrix products that native code starts: the same numbers as from Python, and Python where native code cannot."""

from __future__ import annotations

import ctypes
import itertools
import struct
import threading
from dataclasses import replace

import pytest

from ferrite_runtime.engines.cuda_engine import CudaEngine
from ferrite_runtime.engines.native_sequence import Remainder, describe_sequence
from ferrite_runtime.engines.sequence_items import WaitingProduct
from ferrite_runtime.errors import DriverError
from ferrite_runtime.formats.expressions import evaluate
from ferrite_runtime.formats.layouts import Layout
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.steps import Extern, Tagged
from ferrite_runtime.host.native_products import OPERATIONS, product_of
from ferrite_runtime.host.product_library import ProductLibrary, find_products
from ferrite_runtime.host.product_steps import with_products
from ferrite_runtime.launching.native_launcher import find_launcher
from ferrite_runtime.store.interface import MemoryStore
from runtime_fakes import FakeStreams, fake_machine
from runtime_kernels import contiguous, layout, pointwise, program, scaled, tensor_input

torch = pytest.importorskip("torch")

DEVICE = torch.device("cpu", 0)
LAUNCHER = find_launcher(MemoryStore(), may_build=True)
LIBRARY = find_products("cpu", 0)
needs_native = pytest.mark.skipif(LAUNCHER is None, reason="no C compiler here")

M, K, N = 5, 6, 7
SHAPES = {
    "mm": [(M, K), (K, N)],
    "addmm": [(N,), (M, K), (K, N)],
    "bmm": [(3, M, K), (3, K, N)],
    "baddbmm": [(3, 1, N), (3, M, K), (3, K, N)],
}
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}


def ref(name: str) -> Tagged:
    return Tagged("ref", name)


def call(target: str, names="abc", **fields) -> Extern:
    count = 3 if "add" in target else 2
    return Extern(target, tuple(map(ref, names[:count])), fields.pop("kwargs", {}), ("out",), **fields)


def layout_of(tensor) -> Layout:
    name = next(name for name, dtype in DTYPES.items() if dtype == tensor.dtype)
    return Layout(name, tuple(tensor.shape), tensor.stride())


def made(operation: str, tensors, **kwargs):
    layouts = dict(zip("abc", map(layout_of, tensors), strict=False))
    product = product_of(call(f"aten.{operation}.default", kwargs=kwargs), layouts.get)
    assert product is not None
    return product


def bound(product, library=LIBRARY, count: int = 1):
    """Returns the function of (stream, addresses of the result and the operands) that computes a product."""
    places = range(len(product.layouts))
    waiting = WaitingProduct(product, library, tuple(("value", place, 0) for place in places))
    steps = [waiting] * count
    return LAUNCHER.bind(None, 0, describe_sequence(steps, len(places)), Remainder(steps), library)


def empty_result(product):
    return torch.empty_strided(product.result.shape, product.result.strides, dtype=DTYPES[product.result.dtype])


def addresses(*tensors) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


def turned(tensor):
    """Returns a tensor of the same values, its last two axes exchanged in memory."""
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


def test_every_supported_torch_offers_its_products_to_c() -> None:
    assert LIBRARY is not None
    assert LIBRARY.targets == {f"aten.{name}.default" for name in OPERATIONS}


def test_a_library_that_is_not_loaded_offers_nothing() -> None:
    assert find_products("xpu", 0) is None


def test_a_torch_without_the_functions_offers_nothing() -> None:
    with pytest.raises(AttributeError):
        ProductLibrary(ctypes.CDLL(None), "cpu", 0)


@needs_native
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_results_are_those_of_torch_bit_for_bit(operation: str, dtype: str) -> None:
    kwargs = {"beta": 0.5, "alpha": 2} if "add" in operation else {}
    for lie in itertools.product((lambda x: x, turned), repeat=2):
        tensors = [torch.randn(shape).to(DTYPES[dtype]) for shape in SHAPES[operation]]
        tensors[-2:] = [change(x) for change, x in zip(lie, tensors[-2:], strict=True)]
        product = made(operation, tensors, **kwargs)
        native, python = empty_result(product), empty_result(product)
        bound(product)(0, *addresses(native, *tensors))
        LIBRARY.compute(product, addresses(python, *tensors))
        expected = getattr(torch, operation)(*tensors, **kwargs)
        assert torch.equal(native, expected)
        assert torch.equal(python, expected)
        assert native.stride() == expected.stride()


@needs_native
def test_matrices_may_move_between_calls() -> None:
    tensors = [torch.randn(shape) for shape in SHAPES["addmm"]]
    product = made("addmm", tensors)
    run = bound(product)
    kept = []
    for _ in range(20):
        tensors = [torch.randn_like(x) for x in tensors]
        out = empty_result(product)
        run(0, *addresses(out, *tensors))
        assert torch.equal(out, torch.addmm(*tensors))
        kept.append((out, tensors))  # so that no address comes again


@needs_native
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_handles_serve_inside_inference_mode_and_outside(operation: str, order: tuple[bool, bool]) -> None:
    tensors = [torch.randn(shape) for shape in SHAPES[operation]]
    product = made(operation, tensors)
    run, out = bound(product), empty_result(product)
    for inside in order:
        out.fill_(float("nan"))
        with torch.inference_mode(inside), torch.no_grad():
            run(0, *addresses(out, *tensors))
        assert torch.equal(out, getattr(torch, operation)(*tensors))


def test_memory_that_torch_does_not_know_is_not_taken_by_address(monkeypatch) -> None:
    """As of an allocator whose addresses the CUDA runtime cannot tell."""
    monkeypatch.setattr(
        ProductLibrary, "_tensor", lambda self, layout, address: (_ for _ in ()).throw(DriverError("no"))
    )
    assert find_products("cpu", 0) is None


@needs_native
def test_memory_stays_its_owners() -> None:
    """A handle outlives the memory that it leads to, and never touches it again."""
    product = made("mm", [torch.zeros(M, K), torch.zeros(K, N)])
    run = bound(product)
    for _ in range(3):
        tensors = [torch.randn(M, K), torch.randn(K, N)]
        out = empty_result(product)
        run(0, *addresses(out, *tensors))
        assert torch.equal(out, torch.mm(*tensors))
        del tensors, out
    del run


@needs_native
def test_threads_share_a_sequence() -> None:
    product = made("mm", [torch.zeros(64, 64)] * 2)
    run = bound(product, count=8)
    wrong: list[int] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(50):
            tensors = [torch.randn(64, 64, generator=generator) for _ in range(2)]
            out = empty_result(product)
            run(0, *addresses(out, *tensors))
            if not torch.equal(out, torch.mm(*tensors)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class Failing(ProductLibrary):
    """A library whose products fail in C."""

    def __init__(self) -> None:
        super().__init__(ctypes.CDLL(f"{torch.__path__[0]}/lib/libtorch_cpu.so"), "cpu", 0)
        self.calls = 0
        self._function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(self._fail)
        fields = list(struct.unpack("=6Q2i", self.functions))
        fields[2] = ctypes.cast(self._function, ctypes.c_void_p).value
        self.functions = struct.pack("=6Q2i", *fields)

    def _fail(self, *_tensors: int) -> int:
        self.calls += 1
        return 1


@needs_native
def test_what_fails_in_c_is_computed_from_python_with_all_that_follows() -> None:
    library, tensors = Failing(), [torch.randn(M, K), torch.randn(K, N)]
    product = made("mm", tensors)
    out = empty_result(product)
    bound(product, library, count=3)(0, *addresses(out, *tensors))
    assert torch.equal(out, torch.mm(*tensors))
    assert library.calls == 1


@needs_native
def test_an_error_is_torchs_own(monkeypatch) -> None:
    tensors = [torch.randn(M, K), torch.randn(K, N)]
    product = made("mm", tensors)

    def refuse(*_args, **_kwargs) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(torch, "mm", refuse)
    product = replace(product, origin=("aten.mm (model.py:3)",))
    with pytest.raises(torch.OutOfMemoryError, match="no room") as caught:
        bound(product, Failing())(0, *addresses(empty_result(product), *tensors))
    assert caught.value.__notes__ == ["while aten.mm (model.py:3) ran as a step of a compiled graph"]
    layouts = dict(zip("ab", map(layout_of, tensors), strict=True))
    assert product_of(call("aten.mm.default", "ab", origin=product.origin), layouts.get) == product


@needs_native
def test_an_address_that_is_none_is_refused_before_anything_starts() -> None:
    """The Python side refuses an address of 0; a misaligned one it computes with."""
    tensors = [torch.randn(M, K), torch.randn(K, N)]
    product = made("mm", tensors)
    out = empty_result(product)
    run = bound(product)
    with pytest.raises(DriverError, match="no memory"):
        run(0, out.data_ptr(), 0, tensors[1].data_ptr())
    memory = torch.zeros(M * K * 4 + 1, dtype=torch.uint8)
    memory[1:] = tensors[0].flatten().view(torch.uint8)
    run(0, out.data_ptr(), memory.data_ptr() + 1, tensors[1].data_ptr())
    assert torch.equal(out, torch.mm(*tensors))


@needs_native
def test_descriptions_that_do_not_hold_together_are_refused() -> None:
    product = made("mm", [torch.zeros(M, K), torch.zeros(K, N)])
    step = WaitingProduct(product, LIBRARY, tuple(("value", place, 0) for place in range(3)))
    good = describe_sequence([step], 3)

    def bind(description: bytes, library=LIBRARY) -> None:
        LAUNCHER.bind(None, 0, description, print, library)

    bind(good)
    for bad in (good[:-8], good + bytes(8), good[:8] + b"\x07" + good[9:], good[:16] + b"\x09" + good[17:]):
        with pytest.raises(ValueError, match="description"):
            bind(bad)
    with pytest.raises(ValueError, match="the library has not"):
        bind(good, None)
    with pytest.raises(ValueError, match="no matrix"):
        bind(describe_sequence([step], 2))


# --- which calls are products ---------------------------------------------------------------------------------------


def plain(shape, dtype: str = "f32") -> Layout:
    return Layout(dtype, tuple(shape), tuple(contiguous(shape)))


def accepted(target: str, layouts: dict, **fields) -> bool:
    return product_of(call(target, **fields), layouts.get) is not None


def test_products_are_told_from_other_calls() -> None:
    good = {"a": plain([M, K]), "b": plain([K, N])}
    assert accepted("aten.mm.default", good)
    assert accepted("aten.mm.default", good, strides=((N, 1),))
    assert not accepted("aten.mm.default", good, strides=((1, M),)), "torch's result would have to be copied"
    assert not accepted("aten.mm.dtype", good)
    assert not accepted("aten.matmul.default", good)
    assert not accepted("aten.mm.default", {"a": good["a"]}), "a matrix elsewhere, or unknown"
    assert not accepted("aten.mm.default", {**good, "b": plain([K, N], "f64")})
    assert not accepted("aten.mm.default", {"a": plain([M, K], "i64"), "b": plain([K, N], "i64")})
    assert not accepted("aten.mm.default", {"a": plain([0, K]), "b": plain([K, N])})
    assert not accepted("aten.mm.default", {"a": plain([M, K]), "b": plain([K + 1, N])})
    assert not accepted("aten.mm.default", {"a": Layout("f32", (M, "k"), ("k", 1)), "b": plain([K, N])}), "k may be 7"
    assert product_of(Extern("aten.mm.default", (ref("a"), ref("b")), {}, (None,)), good.get) is None


def test_sums_are_products_where_the_summand_fits_and_factors_are_numbers() -> None:
    matrices = {"b": plain([M, K]), "c": plain([K, N])}
    for shape, fits in (([N], True), ([1, N], True), ([M, 1], True), ([M], False), ([2, M, N], False), ([], False)):
        assert accepted("aten.addmm.default", {"a": plain(shape), **matrices}) is fits, shape
    whole = {"a": plain([N]), **matrices}
    product = product_of(call("aten.addmm.default", kwargs={"alpha": 2}), whole.get)
    assert (product.beta, product.alpha) == (1.0, 2.0)
    assert not accepted("aten.addmm.default", whole, kwargs={"beta": Tagged("size", "n")})
    assert not accepted("aten.addmm.default", whole, kwargs={"beta": True})
    assert not accepted("aten.addmm.default", whole, kwargs={"out_dtype": 1})


def rows(count, width: int) -> Layout:
    return Layout("f32", (count, width), (width, 1))


def test_sizes_may_be_what_a_call_tells_where_they_surely_agree() -> None:
    count = ("mul", "b", "s")
    product = product_of(call("aten.mm.default", strides=((N, 1),)), {"a": rows(count, K), "b": plain([K, N])}.get)
    assert product.result == rows(count, N)
    turned_rows = Layout("f32", (K, ("mul", "s", "b")), (1, K))
    gradient = product_of(call("aten.mm.default"), {"a": turned_rows, "b": rows(count, N)}.get)
    assert gradient.result == plain([K, N])
    left = Layout("f32", ("b", "s", K), (("mul", "s", K), K, 1))
    right = Layout("f32", ("b", K, "s"), (("mul", K, "s"), 1, K))
    for strides in ((("mul", "s", "s"), "s", 1), None):
        scores = product_of(call("aten.bmm.default", strides=strides and (strides,)), {"a": left, "b": right}.get)
        assert scores.result == Layout("f32", ("b", "s", "s"), (("mul", "s", "s"), "s", 1))
    assert not accepted("aten.bmm.default", {"a": left, "b": right}, strides=(("s", 1, 1),))
    assert not accepted("aten.bmm.default", {"a": left, "b": Layout("f32", ("s", K, "s"), (K, 1, K))})
    assert accepted("aten.addmm.default", {"a": plain([N]), "b": rows(count, K), "c": plain([K, N])})
    assert not accepted("aten.addmm.default", {"a": rows("t", N), "b": rows(count, K), "c": plain([K, N])})


# --- sizes that a call tells ----------------------------------------------------------------------------------------

COUNTS = (5, 0, 1, 2, 3, 7, 31, 32, 33, 64, 5)


def bound_for_sizes(target: str, layouts: dict, library=LIBRARY):
    """Returns a product, and the function of (stream, n, addresses of the result and the operands) that computes it."""
    product = product_of(call(target), layouts.get).with_sizes(lambda size: size)
    sources = tuple(("value", place + 1, 0) for place in range(len(product.layouts)))
    step = WaitingProduct(product, library, sources, {"n": 0})
    description = describe_sequence([step], len(sources) + 1)
    return product, LAUNCHER.bind(None, 0, description, Remainder([step]), library)


def tensor_like(known: Layout, n: int):
    shape, strides = ([evaluate(size, {"n": n}) for size in row] for row in (known.shape, known.strides))
    return torch.randn(200_000).as_strided(shape, strides).contiguous().as_strided(shape, strides)


@needs_native
@pytest.mark.parametrize(
    ("target", "layouts"),
    [
        ("aten.mm.default", {"a": rows("n", K), "b": plain([K, N])}),
        ("aten.mm.default", {"a": Layout("f32", (M, "n"), (1, M)), "b": rows("n", N)}),
        ("aten.addmm.default", {"a": plain([N]), "b": rows("n", K), "c": plain([K, N])}),
        ("aten.addmm.default", {"a": rows("n", N), "b": rows("n", K), "c": plain([K, N])}),
        (
            "aten.bmm.default",
            {"a": Layout("f32", ("n", M, K), (M * K, K, 1)), "b": Layout("f32", ("n", K, N), (K * N, N, 1))},
        ),
    ],
)
def test_products_take_sizes_from_the_call(target: str, layouts: dict) -> None:
    """Also none at all: of an empty sum of products the library makes zeros, or the summand."""
    product, run = bound_for_sizes(target, layouts)
    for n in COUNTS:
        tensors = [tensor_like(known, n) for known in product.layouts[1:]]
        out = torch.full_like(tensor_like(product.result, n), float("nan"))
        run(0, n, *addresses(out, *tensors))
        assert torch.equal(out, getattr(torch, product.operation)(*tensors)), n


@needs_native
def test_sizes_change_though_addresses_stay() -> None:
    _, run = bound_for_sizes("aten.mm.default", {"a": rows("n", K), "b": plain([K, N])})
    a, b, out = torch.randn(64, K), torch.randn(K, N), torch.empty(64, N)
    for n in COUNTS:
        out.fill_(float("nan"))
        run(0, n, *addresses(out, a, b))
        assert torch.equal(out[:n], torch.mm(a[:n], b))
        assert out[n:].isnan().all()


@needs_native
def test_sizes_from_the_call_that_fail_in_c_are_computed_from_python() -> None:
    library = Failing()
    product, run = bound_for_sizes("aten.mm.default", {"a": rows("n", K), "b": plain([K, N])}, library)
    for n in (3, 0, 4):
        tensors = [tensor_like(known, n) for known in product.layouts[1:]]
        out = torch.empty(n, N)
        run(0, n, *addresses(out, *tensors))
        assert torch.equal(out, torch.mm(*tensors))
    assert library.calls == 3


@needs_native
def test_threads_share_a_sequence_at_sizes_of_their_own() -> None:
    _, run = bound_for_sizes("aten.mm.default", {"a": rows("n", K), "b": plain([K, N])})
    wrong: list[int] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(100):
            n = int(torch.randint(0, 50, (), generator=generator))
            tensors = [torch.randn(n, K, generator=generator), torch.randn(K, N, generator=generator)]
            out = torch.empty(n, N)
            run(0, n, *addresses(out, *tensors))
            if not torch.equal(out, torch.mm(*tensors)):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@needs_native
def test_a_size_that_is_no_value_is_refused() -> None:
    product = product_of(call("aten.mm.default"), {"a": rows("n", K), "b": plain([K, N])}.get)
    step = WaitingProduct(product, LIBRARY, tuple(("value", place, 0) for place in range(3)), {"n": 3})
    with pytest.raises(ValueError, match="a size that is no value"):
        LAUNCHER.bind(None, 0, describe_sequence([step], 3), print, LIBRARY)


# --- in programs ----------------------------------------------------------------------------------------------------


def extern(target: str, args: list, result: str, **fields) -> dict:
    return {"do": "extern", "target": target, "args": args, "kwargs": {}, "results": [result], **fields}


def layers_program(device: str = "cpu") -> dict:
    """Returns ``relu(addmm(b, 2 x, w.t())) - 1``, in steps as they come from the compiler."""
    double, rest = (
        pointwise("a * 2", size=M * K, name="double"),
        pointwise("tl.maximum(a, 0) - 1", size=M * N, name="rest"),
    )
    steps = [
        {"do": "alloc", "name": "t", **layout([M, K])},
        {"do": "launch", "kernel": double["id"], "args": ["x", "t"]},
        {"do": "view", "name": "wt", "base": "w", "dtype": "f32", "shape": [K, N], "strides": [1, K], "offset": 0},
        extern("aten.addmm.default", [{"ref": "b"}, {"ref": "t"}, {"ref": "wt"}], "s", strides=[[N, 1]]),
        {"do": "free", "names": ["t", "w", "wt", "b"]},
        {"do": "view", "name": "v", "base": "s", **layout([M * N]), "offset": 0},
        {"do": "launch", "kernel": rest["id"], "args": ["v", "v"]},
    ]
    inputs = [
        tensor_input("x", [M, K], device=device),
        tensor_input("w", [N, K], device=device),
        tensor_input("b", [N], device=device),
    ]
    return program(inputs, [double, rest], steps, [{"value": "s"}], device)


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
