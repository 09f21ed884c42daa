"""Matrix products that native code starts, of sizes that only a call tells."""

from __future__ import annotations

import threading

import pytest

from ferrite_runtime.engines.native_sequence import describe_sequence
from ferrite_runtime.engines.sequence_items import WaitingProduct
from ferrite_runtime.formats.expressions import evaluate
from ferrite_runtime.formats.layouts import Layout
from ferrite_runtime.host.native_products import product_of
from native_product_cases import (
    LAUNCHER,
    LIBRARY,
    Failing,
    K,
    M,
    N,
    addresses,
    bound_for_sizes,
    call,
    needs_native,
    plain,
    rows,
)

torch = pytest.importorskip("torch")


COUNTS = (5, 0, 1, 2, 3, 7, 31, 32, 33, 64, 5)


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
