"""Matrix products that native code starts: the same numbers as from Python, and Python where native code cannot."""

from __future__ import annotations

import ctypes
import itertools
import threading
from dataclasses import replace

import pytest

from ferrite_runtime.engines.native_sequence import describe_sequence
from ferrite_runtime.engines.sequence_items import WaitingProduct
from ferrite_runtime.errors import DriverError
from ferrite_runtime.formats.layouts import Layout
from ferrite_runtime.formats.steps import Extern, Tagged
from ferrite_runtime.host.native_products import OPERATIONS, product_of
from ferrite_runtime.host.product_library import ProductLibrary, find_products
from native_product_cases import (
    DTYPES,
    LAUNCHER,
    LIBRARY,
    SHAPES,
    Counting,
    Failing,
    K,
    M,
    N,
    addresses,
    bound,
    call,
    empty_result,
    layout_of,
    made,
    needs_native,
    plain,
    ref,
    rows,
    turned,
)

torch = pytest.importorskip("torch")


def test_every_supported_torch_offers_its_products_to_c() -> None:
    assert LIBRARY is not None
    wanted = {f"aten.{name}.{overload}" for name in OPERATIONS for overload in ("default", "out")}
    assert LIBRARY.targets == wanted


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
@pytest.mark.parametrize(("layers", "made_again"), [(1, 0), (2, 0), (48, 0), (70, 140)])
def test_a_sequence_keeps_the_handles_of_equal_layers(layers: int, made_again: int) -> None:
    """Its weights and results lie elsewhere for each layer, what all of them read does not; 64 of each are kept."""
    library = Counting()
    x, tensors = torch.randn(M, K), [(torch.randn(K, N), torch.empty(M, N)) for _ in range(layers)]
    run = bound(made("mm", [x, tensors[0][0]]), library)
    for turn in range(3):
        before = library.made
        for weight, out in tensors:
            run(0, *addresses(out, x, weight))
            assert torch.equal(out, x @ weight)
            out.zero_()
        assert library.made - before == (made_again if turn else 2 * layers + 1)
    assert library.made - library.discarded <= 2 * 64 + 1
    del run
    assert library.made == library.discarded


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
