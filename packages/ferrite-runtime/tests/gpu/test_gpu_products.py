"""Matrix products that native code starts on a real GPU; all of it skips where there is none."""

from __future__ import annotations

import threading

import pytest

from ferrite_runtime import Options, load_program
from ferrite_runtime.formats.layouts import Layout
from ferrite_runtime.host.native_products import OPERATIONS
from ferrite_runtime.host.product_library import find_products
from ferrite_runtime.launching.native_launcher import find_launcher
from ferrite_runtime.store.interface import MemoryStore
from host.test_sequences import COUNTS, K, layers
from native_product_cases import (
    DTYPES,
    SHAPES,
    addresses,
    bound,
    bound_for_sizes,
    layers_program,
    made,
    plain,
    rows,
    turned,
)

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(find_launcher(MemoryStore(), may_build=True) is None, reason="no C compiler here"),
]

SIZES = {5: 16, 6: 256, 7: 768, 3: 4, 1: 1}
"""What the small extents of the tests on the host are here."""


def random(*shape: int, dtype=torch.float32):
    return torch.randn(shape, device="cuda").to(dtype)


def matrices(operation: str, dtype):
    return [random(*(SIZES[size] for size in shape), dtype=dtype) for shape in SHAPES[operation]]


def test_this_torch_offers_its_products_to_c() -> None:
    wanted = {f"aten.{name}.{overload}" for name in OPERATIONS for overload in ("default", "out")}
    assert find_products("cuda", 0).targets == wanted


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_results_are_those_of_torch(operation: str, dtype: str) -> None:
    library = find_products("cuda", torch.cuda.current_device())
    for change in (lambda x: x, turned):
        tensors = matrices(operation, DTYPES[dtype])
        tensors[-1] = change(tensors[-1])
        product = made(operation, tensors)
        run = bound(product, library)
        for _ in range(2):
            out = torch.full(product.result.shape, float("nan"), dtype=DTYPES[dtype], device="cuda")
            run(torch.cuda.current_stream().cuda_stream, *addresses(out, *tensors))
            assert torch.equal(out, getattr(torch, operation)(*tensors))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_handles_serve_inside_inference_mode_and_outside(operation: str) -> None:
    tensors = matrices(operation, torch.bfloat16)
    product = made(operation, tensors)
    run = bound(product, find_products("cuda", torch.cuda.current_device()))
    out = torch.empty(product.result.shape, dtype=torch.bfloat16, device="cuda")
    for inside in (True, False, True):
        out.fill_(float("nan"))
        with torch.inference_mode(inside), torch.no_grad():
            run(torch.cuda.current_stream().cuda_stream, *addresses(out, *tensors))
        assert torch.equal(out, getattr(torch, operation)(*tensors))


@pytest.mark.parametrize("operation", ["mm", "addmm"])
def test_products_take_sizes_from_the_call(operation: str) -> None:
    layouts = {"a": rows("n", K), "b": plain([K, K]), "c": plain([K, K])}
    layouts |= {"a": plain([K]), "b": rows("n", K)} if operation == "addmm" else {}
    library = find_products("cuda", torch.cuda.current_device())
    product, run = bound_for_sizes(f"aten.{operation}.default", layouts, library)
    for n in (*COUNTS, 1000):
        tensors = [random(*(n if size == "n" else size for size in one.shape)) for one in product.layouts[1:]]
        out = torch.full((n, K), float("nan"), device="cuda")
        run(torch.cuda.current_stream().cuda_stream, n, *addresses(out, *tensors))
        assert torch.equal(out, getattr(torch, operation)(*tensors)), n


def test_a_sum_of_no_products_is_zero() -> None:
    library = find_products("cuda", torch.cuda.current_device())
    layouts = {"a": Layout("f32", (K, "n"), (1, K)), "b": rows("n", K)}
    _, run = bound_for_sizes("aten.mm.default", layouts, library)
    for n in (3, 0, 7):
        a, b = random(n, K), random(n, K)
        out = torch.full((K, K), float("nan"), device="cuda")
        run(torch.cuda.current_stream().cuda_stream, n, *addresses(out, a, b))
        assert torch.equal(out, torch.mm(a.t(), b)), n


def test_programs_whose_sizes_a_call_gives() -> None:
    """At sizes with arenas, and at some that are too large for them."""
    native, python = (load_program(layers(device="cuda"), options=Options(native="build", native_products=own))
                      for own in (True, False))  # fmt: skip
    w = random(K, K)
    for n in (*COUNTS, 100_000, 7, 1_000_000, 31):
        for _ in range(3):
            x = random(n, K)
            assert torch.equal(native(x, w, n)[0], python(x, w, n)[0]), n


def loaded(**options):
    return load_program(layers_program("cuda"), options=Options(native="build", **options))


def inputs() -> list:
    return [random(5, 6), random(7, 6), random(7)]


def expected(x, w, b):
    return torch.addmm(b, 2 * x, w.t()).relu() - 1


def test_a_program_gives_what_it_gives_from_python() -> None:
    native, python = loaded(), loaded(native_products=False)
    for _ in range(4):
        given = inputs()
        assert torch.equal(native(*given)[0], python(*given)[0])
        torch.testing.assert_close(native(*given)[0], expected(*given))


def test_products_run_on_the_current_stream() -> None:
    program, stream = loaded(), torch.cuda.Stream()
    program(*inputs())
    with torch.cuda.stream(stream):
        for _ in range(50):
            given = inputs()
            torch.cuda._sleep(100_000)
            given = [value * 1.5 for value in given]
            torch.testing.assert_close(program(*given)[0], expected(*given))


def test_products_are_captured_at_addresses_that_are_new() -> None:
    program, given = loaded(), inputs()
    for _ in range(3):
        program(*given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (out,) = program(*given)
    for _ in range(3):
        for value, fresh in zip(given, inputs(), strict=True):
            value.copy_(fresh)
        graph.replay()
        torch.testing.assert_close(out, expected(*given))


def test_threads_that_never_called_cuda_share_a_program() -> None:
    program = loaded()
    given = [inputs() for _ in range(4)]
    wanted = [expected(*values) for values in given]
    program(*given[0])
    program(*given[0])
    torch.cuda.synchronize()
    found: dict[int, object] = {}

    def work(number: int) -> None:
        for _ in range(20):
            found[number] = program(*given[number])[0]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    for number, value in enumerate(wanted):
        torch.testing.assert_close(found[number], value)
