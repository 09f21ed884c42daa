"""Kernels and programs on a real GPU; all of it skips where there is none."""

from __future__ import annotations

import threading

import pytest

from ferrite_runtime import InputError, Kernel, KernelCompileError, Options, load_program
from ferrite_runtime.devices.descriptors import device_facts
from ferrite_runtime.devices.streams import torch_platform
from fmath.test_fmath import (
    BINARY,
    COUNTS,
    SHARE,
    TORCH,
    UNARY,
    assert_same_bits,
    over_count,
    sample,
    shares_of,
    totals,
)
from fmath.test_fmath_quotients import NUMBERS, assert_divided, numbers, without_the_last
from runtime_kernels import (
    grid_axis,
    layout,
    one_kernel,
    pointwise,
    program,
    reduction_axis,
    row_softmax,
    row_sum,
    scaled,
    spec,
    tensor,
    tensor_input,
)

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def softmax_program(rows: int, columns: int) -> dict:
    kernel = row_softmax(rows, columns)
    steps = [
        {"do": "alloc", "name": "o", **layout([rows, columns])},
        {"do": "launch", "kernel": kernel["id"], "args": ["x", "o"]},
    ]
    return program([tensor_input("x", [rows, columns], device="cuda")], [kernel], steps, [{"value": "o"}], "cuda")


def sum_program(rows: int, columns: int) -> dict:
    kernel = row_sum(rows, columns)
    steps = [
        {"do": "alloc", "name": "o", **layout([rows])},
        {"do": "launch", "kernel": kernel["id"], "args": ["x", "o"]},
    ]
    return program([tensor_input("x", [rows, columns], device="cuda")], [kernel], steps, [{"value": "o"}], "cuda")


@pytest.mark.parametrize("launcher", ["driver", "triton"])
def test_pointwise_program(launcher: str) -> None:
    loaded = load_program(
        one_kernel(pointwise("fmath.tanh(a) * b", 2), device="cuda"), options=Options(launcher=launcher)
    )
    for _ in range(3):
        a, b = torch.randn(1000, device="cuda"), torch.randn(1000, device="cuda")
        torch.testing.assert_close(loaded(a, b)[0], a.tanh() * b)


@pytest.mark.parametrize("tune", ["none", "default", "max"])
def test_reductions_under_every_tuning(tune: str) -> None:
    options = Options(tune=tune, use_cache=False)
    x = torch.randn(4096, 3000, device="cuda")
    for _ in range(2):
        torch.testing.assert_close(load_program(softmax_program(4096, 3000), options=options)(x)[0], x.softmax(1))
        total = load_program(sum_program(4096, 3000), options=options)(x)[0]
        torch.testing.assert_close(total, x.sum(1), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", sorted(UNARY))
def test_unary_device_function_equals_torch(name: str, dtype: str) -> None:
    reference, low, high = UNARY[name]
    x = sample(low, high, dtype)
    expected = reference(x)
    out = "bool" if expected.dtype == torch.bool else dtype
    kernel = Kernel(pointwise(f"fmath.{name}(a)", size=x.numel(), dtype=dtype, out=out))
    actual = torch.empty_like(expected, device="cuda")
    kernel(x.cuda(), actual)
    # torch's own double Bessel functions of these kinds are off by up to 7e-7 behind 5.
    digits = "bessel" if name in ("j0", "j1", "y0", "y1") else dtype
    rtol, atol = {"f32": (1e-4, 1e-5), "f64": (1e-10, 1e-11), "bessel": (1e-5, 1e-5)}[digits]
    torch.testing.assert_close(actual.cpu(), expected, rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", sorted(BINARY))
def test_binary_device_function_equals_torch(name: str, dtype: str) -> None:
    a, b = sample(-4, 4, dtype), sample(-3, 5, dtype).flip(0)
    out = torch.empty(a.numel(), dtype=TORCH[dtype], device="cuda")
    Kernel(pointwise(f"fmath.{name}(a, b)", 2, a.numel(), dtype))(a.cuda(), b.cuda(), out)
    torch.testing.assert_close(out.cpu(), BINARY[name](a, b), equal_nan=True)


def test_share_is_the_exact_quotient() -> None:
    a, b = shares_of(1 << 20)
    out = torch.empty(a.numel(), device="cuda")
    Kernel(pointwise(SHARE, 2, a.numel()))(a.cuda(), b.cuda(), out)
    exact = a / b
    torch.testing.assert_close(out.cpu(), exact, rtol=2**-23, atol=2**-149, equal_nan=True)
    is_large = exact >= 2**-100
    assert torch.equal(out.cpu()[is_large], exact[is_large])


@pytest.mark.parametrize("text", ["quotient(a, b)", "reciprocal(b)"])
def test_quotients_are_rounded_to_nearest(text: str) -> None:
    a, b = numbers(1 << 22)
    if text == "reciprocal(b)":
        a = torch.ones_like(b)
    out = torch.empty(a.numel(), device="cuda")
    Kernel(pointwise(f"fmath.{text}", 2, a.numel()))(a.cuda(), b.cuda(), out)
    assert_divided(out.cpu(), a, b)


@pytest.mark.parametrize("count", COUNTS)
def test_quotient_by_a_count_is_exact(count: int) -> None:
    x = totals(1 << 20)
    out = torch.empty_like(x, device="cuda")
    Kernel(pointwise(over_count(count), 1, x.numel()))(x.cuda(), out)
    assert_same_bits(out.cpu(), x / count)


@pytest.mark.parametrize("number", NUMBERS)
def test_quotient_by_a_number_is_rounded_to_nearest(number: float) -> None:
    x, _ = numbers(1 << 22)
    out = torch.empty_like(x, device="cuda")
    Kernel(pointwise(over_count(number), 1, x.numel()))(x.cuda(), out)
    divisor = torch.full_like(x, number)
    is_sure = without_the_last(x / divisor)
    assert_divided(out.cpu()[is_sure], x[is_sure], divisor[is_sure])


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_half_types(dtype: str) -> None:
    torch_type = {"bf16": torch.bfloat16, "f16": torch.float16}[dtype]
    a, b = (torch.randn(5000, device="cuda").to(torch_type) for _ in range(2))
    loaded = load_program(one_kernel(pointwise("a * b", 2, 5000, dtype), 5000, dtype, "cuda"))
    assert torch.equal(loaded(a, b)[0], a * b)


def test_random_numbers_are_those_of_the_interpreter() -> None:
    mapping = pointwise("a + fmath.rand(tl.full([XBLOCK], 7, tl.int64), x)", size=4096)
    on_gpu, on_cpu = torch.empty(4096, device="cuda"), torch.empty(4096)
    Kernel(mapping)(torch.zeros(4096, device="cuda"), on_gpu)
    Kernel(mapping)(torch.zeros(4096), on_cpu)
    assert torch.equal(on_gpu.cpu(), on_cpu)


def test_argmax_and_welford_across_lanes_and_warps() -> None:
    body = (
        "@triton.jit\ndef reductions(in_ptr, best_ptr, where_ptr, mean_ptr, m2_ptr, XBLOCK: tl.constexpr):\n"
        "    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)\n"
        "    r = tl.arange(0, 2048)[None, :]\n"
        "    v = tl.load(in_ptr + x[:, None] * 2048 + r)\n"
        "    best, where = tl.reduce((v, r + tl.zeros([XBLOCK, 2048], tl.int32)), 1, fmath.argmax_nan)\n"
        "    mean, m2, n = tl.reduce((v, v * 0.0, tl.full([XBLOCK, 2048], 1.0, tl.float32)), 1, fmath.welford)\n"
        "    tl.store(best_ptr + x, best)\n    tl.store(where_ptr + x, where)\n"
        "    tl.store(mean_ptr + x, mean)\n    tl.store(m2_ptr + x, m2)\n"
    )
    names = ("best_ptr", "where_ptr", "mean_ptr", "m2_ptr")
    params = [tensor("in_ptr"), *(tensor(n, "i32" if n == "where_ptr" else "f32", "write") for n in names)]
    mapping = spec(
        "reductions",
        body,
        params,
        [grid_axis("x", 64), reduction_axis(2048)],
        form="persistent",
        blocks={"RBLOCK": 2048},
    )
    x = torch.randn(64, 2048, device="cuda")
    x[3, [5, 900, 2047]] = 50.0
    best, mean, m2 = (torch.empty(64, device="cuda") for _ in range(3))
    where = torch.empty(64, dtype=torch.int32, device="cuda")
    Kernel(mapping)(x, best, where, mean, m2)
    torch.testing.assert_close(best, x.amax(1))
    assert torch.equal(where.long(), x.argmax(1))
    assert where[3] == 5
    torch.testing.assert_close(mean, x.mean(1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(m2 / 2048, x.var(1, correction=0), rtol=1e-4, atol=1e-5)


def test_misaligned_inputs_and_outputs() -> None:
    loaded = load_program(one_kernel(pointwise("a * 2", size=4096), 4096, device="cuda"))
    base = torch.randn(4097, device="cuda")
    for _ in range(2):
        assert torch.equal(loaded(base[1:])[0], base[1:] * 2)
        assert torch.equal(loaded(base[:-1])[0], base[:-1] * 2)


def test_runs_on_the_current_stream() -> None:
    loaded = load_program(one_kernel(pointwise("a + 1", size=1 << 24), 1 << 24, device="cuda"))
    x = torch.zeros(1 << 24, device="cuda")
    loaded(x)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        x.fill_(5.0)
        (out,) = loaded(x)
        assert not stream.query(), "the launch waits behind the sleep"
    stream.synchronize()
    assert (out == 6).all()


def test_captured_in_a_graph() -> None:
    loaded = load_program(one_kernel(pointwise("a * 3", size=4096), 4096, device="cuda"))
    x = torch.randn(4096, device="cuda")
    loaded(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (out,) = loaded(x)
    x.copy_(torch.ones(4096, device="cuda"))
    graph.replay()
    assert (out == 3).all()


def test_several_threads_share_a_program() -> None:
    loaded = load_program(one_kernel(pointwise("a + b", 2, 1 << 16), 1 << 16, device="cuda"))
    failures: list[object] = []

    def work(seed: int) -> None:
        a = torch.full((1 << 16,), float(seed), device="cuda")
        for i in range(200):
            (out,) = loaded(a, a + i)
            if not (out == 2 * seed + i).all():
                failures.append((seed, i))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_in_place_kernel_is_right_while_it_is_tuned() -> None:
    n = 1 << 24
    body = (
        "@triton.jit\ndef accumulate(a_ptr, sum_ptr, XBLOCK: tl.constexpr):\n"
        "    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)\n"
        f"    mask = x < {n}\n"
        "    tl.store(sum_ptr + x, tl.load(sum_ptr + x, mask) + tl.load(a_ptr + x, mask), mask)\n"
    )
    params = [tensor("a_ptr"), tensor("sum_ptr", access="readwrite")]
    mapping = spec("accumulate", body, params, [grid_axis("x", n)], mutated=["sum_ptr"], facts={"bytes": 12 * n})
    a, total = torch.randn(n, device="cuda"), torch.randn(n, device="cuda")
    expected = total + a
    Kernel(mapping, Options(tune="max", use_cache=False))(a, total)
    assert torch.equal(total, expected)


def test_large_shared_memory() -> None:
    body = (
        "@triton.jit\ndef dot(a_ptr, b_ptr, out_ptr, XBLOCK: tl.constexpr):\n"
        "    i = tl.arange(0, 128)[:, None]\n    j = tl.arange(0, 128)[None, :]\n"
        "    acc = tl.zeros([128, 128], tl.float32)\n"
        "    for k in range(0, 1024, 128):\n"
        "        a = tl.load(a_ptr + 1024 * i + k + j)\n"
        "        b = tl.load(b_ptr + 128 * (k + i) + j)\n"
        "        acc = tl.dot(a, b, acc)\n"
        "    tl.store(out_ptr + 128 * i + j, acc)\n"
    )
    params = [tensor("a_ptr", "bf16"), tensor("b_ptr", "bf16"), tensor("out_ptr", access="write")]
    facts = {"num_warps": 8, "num_stages": 3}
    mapping = spec("dot", body, params, [grid_axis("x", 1)], form="template", grid=1, facts=facts)
    a, b = torch.randn(128, 1024, device="cuda").bfloat16(), torch.randn(1024, 128, device="cuda").bfloat16()
    out = torch.empty(128, 128, device="cuda")
    kernel = Kernel(mapping)
    kernel(a, b, out)
    torch.testing.assert_close(out, a.float() @ b.float(), rtol=2e-2, atol=0.5)
    (config,) = kernel.on_device(0).candidates
    assert kernel.on_device(0).binary(config).shared > 48 * 1024


def test_failures_are_ours() -> None:
    broken = load_program(one_kernel(pointwise("tl.nothing(a)", origin=["aten.nothing (m.py:1)"]), device="cuda"))
    with pytest.raises(KernelCompileError, match=r"pointwise \(from aten.nothing"):
        broken(torch.zeros(1000, device="cuda"))
    loaded = load_program(one_kernel(pointwise("a + 1"), device="cuda"))
    with pytest.raises(InputError, match="is on cuda, got a tensor on cpu"):
        loaded(torch.zeros(1000))


def test_dynamic_sizes() -> None:
    kernel = Kernel(scaled())
    for n in (1, 1000, 0, 70_000):
        a, out = torch.randn(70_000, device="cuda"), torch.zeros(70_000, device="cuda")
        kernel(a, out, n, 2.0)
        assert torch.equal(out[:n], a[:n] * 2)
        assert not out[n:].any()


def test_memory_of_a_boxed_call_is_freed_on_the_way() -> None:
    n = 1 << 22
    add, double = pointwise("a + 1", size=n, name="add"), pointwise("a * 2", size=n, name="double")
    steps = []
    last = "x"
    for i in range(6):
        kernel = add if i % 2 else double
        steps += [
            {"do": "alloc", "name": f"t{i}", **layout([n])},
            {"do": "launch", "kernel": kernel["id"], "args": [last, f"t{i}"]},
            {"do": "free", "names": [last]},
        ]
        last = f"t{i}"
    mapping = program([tensor_input("x", [n], device="cuda")], [add, double], steps, [{"value": last}], "cuda")
    loaded = load_program(mapping)
    loaded(torch.randn(n, device="cuda"))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    loaded.call_boxed([torch.randn(n, device="cuda")])
    assert torch.cuda.max_memory_allocated() - base <= 2 * 4 * n


def test_device_is_known() -> None:
    facts = device_facts(0)
    assert facts.multiprocessors == torch.cuda.get_device_properties(0).multi_processor_count
    assert torch_platform().current_device() == torch.cuda.current_device()
