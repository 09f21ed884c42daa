"""The interpreter beside the compiler: same process, no trace left, right numbers."""

from __future__ import annotations

import numpy as np
import pytest

from ferrite_runtime import Kernel, load_program
from ferrite_runtime.compilation.triton_adapter import Job, compile_job
from ferrite_runtime.errors import KernelRunError
from ferrite_runtime.formats.canonical_json import kernel_id
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.target import Target
from ferrite_runtime.interpreter.casts import bfloat16_to_float32, float32_to_bfloat16
from runtime_kernels import (
    HEADER,
    grid_axis,
    layout,
    one_kernel,
    pointwise,
    program,
    reduction_axis,
    row_softmax,
    shared_means,
    shared_softmax,
    spec,
    tensor,
    tensor_input,
)

torch = pytest.importorskip("torch")


def test_compiling_still_works_between_interpreted_runs(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    softmax = row_softmax(8, 100)
    job = Job(KernelSpec.from_mapping(softmax), Config.of({"XBLOCK": 1}, 4), Target.parse("sm_90"))
    x, out = torch.randn(8, 100), torch.empty(8, 100)
    before = compile_job(job).registers
    for _ in range(2):
        Kernel(softmax)(x, out)
        torch.testing.assert_close(out, x.softmax(1))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "again"))
    assert compile_job(job).registers == before


def test_language_is_as_before_after_a_run_and_after_a_failure() -> None:
    import triton
    import triton.language as tl
    from triton.runtime import interpreter as ti

    def state() -> list:
        kind = ti.InterpreterBuilder
        return [
            tl.reduce,
            tl.core.reduce,
            tl.load,
            tl.sum,
            tl.range,
            kind.create_dot,
            kind.cast_impl,
            ti.interpreter_builder.options,
        ]

    before = state()
    Kernel(pointwise("tl.sum(a, 0) + a"))(torch.zeros(1000), torch.zeros(1000))
    assert state() == before
    with pytest.raises(Exception, match="nothing"):
        Kernel(pointwise("tl.nothing(a)"))(torch.zeros(1000), torch.zeros(1000))
    assert state() == before
    with pytest.raises(RuntimeError, match="outside of the scope of a kernel"):
        triton.language.zeros_like(None)


def test_bfloat16_rounding_equals_torch() -> None:
    torch.manual_seed(0)
    random = torch.randint(-(2**31), 2**31 - 1, (200_000,), dtype=torch.int32).view(torch.float32)
    special = torch.tensor([0.0, -0.0, 1.0, float("inf"), -float("inf"), float("nan"), 3.4e38, 1e-40, 1.00390625])
    values = torch.cat([random, special])
    bits = float32_to_bfloat16(values.numpy())
    expected = values.bfloat16()
    actual = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
    assert torch.equal(actual.isnan(), expected.isnan())
    keep = ~expected.isnan()
    assert torch.equal(actual[keep].view(torch.int16), expected[keep].view(torch.int16))
    np.testing.assert_array_equal(bfloat16_to_float32(bits)[keep.numpy()], expected[keep].float().numpy())


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_double_is_rounded_to_half_once(dtype: str) -> None:
    # A tie between two halves plus a grain that float32 cannot hold: rounding twice would go to even, down.
    value = 1.0 + 2.0 ** -{"f16": 11, "bf16": 8}[dtype] + 2.0**-40
    kernel = Kernel(pointwise("a.to(tl.bfloat16)" if dtype == "bf16" else "a.to(tl.float16)", dtype="f64", out=dtype))
    out = torch.zeros(1000, dtype={"f16": torch.float16, "bf16": torch.bfloat16}[dtype])
    kernel(torch.full((1000,), value, dtype=torch.float64), out)
    assert (out > 1).all()


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_eight_bit_floats(name: str) -> None:
    short, language = {"float8_e4m3fn": ("f8e4m3fn", "tl.float8e4nv"), "float8_e5m2": ("f8e5m2", "tl.float8e5")}[name]
    x = torch.randn(1000) * 4
    out, back = torch.zeros(1000, dtype=getattr(torch, name)), torch.zeros(1000)
    Kernel(pointwise(f"a.to({language})", out=short))(x, out)
    assert torch.equal(out.float(), x.to(out.dtype).float())
    Kernel(pointwise("a.to(tl.float32)", dtype=short, out="f32"))(out, back)
    assert torch.equal(back, out.float())


def test_numbers_too_large_for_float8_e4m3fn_become_its_largest() -> None:
    x, out = torch.zeros(1000), torch.zeros(1000, dtype=torch.float8_e4m3fn)
    x[:6] = torch.tensor([447.0, 500.0, -1e6, torch.inf, -torch.inf, torch.nan])
    Kernel(pointwise("a.to(tl.float8e4nv)", out="f8e4m3fn"))(x, out)
    expected = torch.tensor([448.0, 448.0, -448.0, 448.0, -448.0, torch.nan])
    torch.testing.assert_close(out[:6].float(), expected, equal_nan=True, rtol=0, atol=0)


ARITHMETIC = {
    "x + y": lambda x, y: x + y,
    "x - y * x": lambda x, y: x - y * x,
    "-x": lambda x, y: -x,
    "tl.abs(x)": lambda x, y: x.abs(),
    "tl.where(x > y, x, y * 2)": lambda x, y: torch.where(x > y, x, y * 2),
    "tl.where((x < 0) & (y < 0), x, y)": lambda x, y: torch.where((x < 0) & (y < 0), x, y),
    "(x == y).to(tl.float32)": lambda x, y: (x == y).to(x.dtype),
    "(x != x) | (x <= y)": lambda x, y: (x <= y).to(x.dtype),
    "tl.fma(x, y * 0 + 2, x)": lambda x, y: x * 3,
    "tl.clamp(x, -0.5 + y * 0, 0.5 + y * 0)": lambda x, y: x.clamp(-0.5, 0.5),
    "tl.maximum(x, y)": torch.maximum,
    "tl.sum(tl.where(mask, x, 0).to(x.dtype), 0) * 0 + x": lambda x, y: x,
}
"""Expressions in two numbers of a type, and what they mean."""


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("expression", ARITHMETIC)
def test_arithmetic_in_half_types(expression: str, name: str) -> None:
    body = (
        "@triton.jit\ndef arithmetic(a_ptr, b_ptr, out_ptr, XBLOCK: tl.constexpr):\n"
        "    at = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)\n    mask = at < 300\n"
        "    x = tl.load(a_ptr + at, mask, other=0)\n    y = tl.load(b_ptr + at, mask, other=0)\n"
        f"    tl.store(out_ptr + at, {expression}, mask)\n"
    )
    short = {"float16": "f16", "bfloat16": "bf16"}[name]
    params = [tensor("a_ptr", short), tensor("b_ptr", short), tensor("out_ptr", short, "write")]
    torch.manual_seed(0)
    x, y = torch.randn(2, 300).to(getattr(torch, name))
    y[::3] = x[::3]
    out = torch.zeros_like(x)
    Kernel(spec("arithmetic", body, params, [grid_axis("x", 300)]))(x, y, out)
    torch.testing.assert_close(out, ARITHMETIC[expression](x, y))


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_sums_and_scans_in_half_types(name: str) -> None:
    body = (
        "@triton.jit\ndef summed(a_ptr, out_ptr, XBLOCK: tl.constexpr):\n    at = tl.arange(0, 64)\n"
        "    x = tl.load(a_ptr + at)\n    tl.store(out_ptr + at, tl.cumsum(x, 0) + tl.sum(x, 0) + tl.max(x, 0))\n"
    )
    short = {"float16": "f16", "bfloat16": "bf16"}[name]
    params = [tensor("a_ptr", short), tensor("out_ptr", short, "write")]
    x = torch.arange(64).remainder(3).to(getattr(torch, name))
    out = torch.zeros_like(x)
    Kernel(spec("summed", body, params, [grid_axis("x", 1)], form="template", grid=1))(x, out)
    assert torch.equal(out, x.cumsum(0) + x.sum() + 2)


def test_dot_of_bfloat16_matrices() -> None:
    body = (
        "@triton.jit\ndef dot(a_ptr, b_ptr, out_ptr, XBLOCK: tl.constexpr):\n"
        "    i = tl.arange(0, 16)[:, None]\n    j = tl.arange(0, 16)[None, :]\n"
        "    a = tl.load(a_ptr + 16 * i + j)\n    b = tl.load(b_ptr + 16 * i + j)\n"
        "    tl.store(out_ptr + 16 * i + j, tl.dot(a, b))\n"
    )
    params = [tensor("a_ptr", "bf16"), tensor("b_ptr", "bf16"), tensor("out_ptr", access="write")]
    kernel = Kernel(spec("dot", body, params, [grid_axis("x", 1)], form="template", grid=1))
    a, b, out = torch.randn(16, 16).bfloat16(), torch.randn(16, 16).bfloat16(), torch.empty(16, 16)
    kernel(a, b, out)
    torch.testing.assert_close(out, a.float() @ b.float())


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "i32"])
def test_scattered_additions_to_one_address_add_up(dtype: str) -> None:
    body = (
        "@triton.jit\ndef scatter(a_ptr, sum_ptr, XBLOCK: tl.constexpr):\n"
        "    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)\n"
        "    a = tl.load(a_ptr + x, x < 300)\n"
        "    tl.atomic_add(sum_ptr + x % 3, a, x < 300)\n"
    )
    params = [tensor("a_ptr", dtype), tensor("sum_ptr", dtype, "atomic")]
    torch_type = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i32": torch.int32}[dtype]
    total = torch.zeros(3, dtype=torch_type)
    Kernel(spec("scatter", body, params, [grid_axis("x", 300)]))(torch.ones(300, dtype=torch_type), total)
    assert total.tolist() == [100, 100, 100]


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32"])
def test_tiles_that_were_broadcast_are_no_larger_in_memory_than_they_say(dtype: str) -> None:
    body = (
        "@triton.jit\ndef broadcast(out_ptr, sum_ptr, XBLOCK: tl.constexpr):\n"
        "    one = tl.full([1, 1], 1, tl.int32)\n"
        "    to = tl.broadcast_to(out_ptr + one, [64, 1])\n"
        "    tl.store(to, tl.broadcast_to(one, [64, 1]).to(out_ptr.dtype.element_ty), one == 1)\n"
        "    tl.atomic_add(tl.broadcast_to(sum_ptr + one, [64, 1]), tl.broadcast_to(one.to(out_ptr.dtype.element_ty), "
        "[64, 1]), tl.broadcast_to(one == 1, [64, 1]))\n"
    )
    params = [tensor("out_ptr", dtype, "write"), tensor("sum_ptr", dtype, "atomic")]
    torch_type = {"f32": torch.float32, "bf16": torch.bfloat16, "i32": torch.int32}[dtype]
    out, total = torch.zeros(3, dtype=torch_type), torch.zeros(3, dtype=torch_type)
    Kernel(spec("broadcast", body, params, [grid_axis("x", 1)], form="template", grid=1))(out, total)
    assert out.tolist() == [0, 1, 0]
    assert total.tolist() == [0, 64, 0]


def test_several_small_programs_write_their_own_part_and_nothing_else() -> None:
    kernel = pointwise("a * 2", size=1000)
    kernel["axes"][0]["max_block"] = 64
    from ferrite_runtime.formats.canonical_json import kernel_id

    kernel["id"] = kernel_id(kernel)
    canary = torch.full((1100,), 7.0)
    out = canary[50:1050]
    a = torch.randn(1000)
    Kernel(kernel)(a, out)
    assert torch.equal(out, a * 2)
    assert (canary[:50] == 7).all()
    assert (canary[1050:] == 7).all()


def test_truth_of_a_number_and_of_a_tile_combine() -> None:
    a = torch.randn(1000).abs() + 1
    out = torch.empty(1000)
    Kernel(pointwise("tl.where((tl.load(a_ptr) > 0) & (a > 1.5), a, 0.0)"))(a, out)
    assert torch.equal(out, torch.where(a > 1.5, a, 0.0))
    Kernel(pointwise("tl.where((a > 1.5) | (tl.load(a_ptr) < 0), a, 0.0)"))(a, out)
    assert torch.equal(out, torch.where(a > 1.5, a, 0.0))


def test_device_functions_broadcast() -> None:
    body = (
        "@triton.jit\ndef outer(a_ptr, out_ptr, XBLOCK: tl.constexpr):\n"
        "    x = tl.arange(0, XBLOCK)\n    a = tl.load(a_ptr + x)\n"
        "    tl.store(out_ptr + x[:, None] * XBLOCK + x[None, :], fmath.atan2(a[:, None], a[None, :]))\n"
    )
    params = [tensor("a_ptr"), tensor("out_ptr", access="write")]
    mapping = spec("outer", body, params, [grid_axis("x", 16)], blocks={"XBLOCK": 16})
    a, out = torch.randn(16), torch.empty(16, 16)
    Kernel(mapping)(a, out)
    torch.testing.assert_close(out, torch.atan2(a[:, None], a[None, :]))


def test_sort_and_cumulative_sum_of_the_language() -> None:
    body = (
        "@triton.jit\ndef both(in_ptr, sorted_ptr, sum_ptr, XBLOCK: tl.constexpr):\n"
        "    x = tl.arange(0, XBLOCK)[:, None]\n    r = tl.arange(0, 64)[None, :]\n"
        "    v = tl.load(in_ptr + 64 * x + r)\n"
        "    tl.store(sorted_ptr + 64 * x + r, tl.sort(v, 1))\n"
        "    tl.store(sum_ptr + 64 * x + r, tl.cumsum(v, 1))\n"
    )
    params = [tensor("in_ptr"), tensor("sorted_ptr", access="write"), tensor("sum_ptr", access="write")]
    kernel = spec("both", body, params, [grid_axis("x", 8), reduction_axis(64)], form="sort", blocks={"RBLOCK": 64})
    x, in_order, sums = torch.randn(8, 64), torch.empty(8, 64), torch.empty(8, 64)
    Kernel(kernel)(x, in_order, sums)
    assert torch.equal(in_order, x.sort(1).values)
    torch.testing.assert_close(sums, x.cumsum(1))


def test_two_threads_interpret_at_once() -> None:
    from concurrent.futures import ThreadPoolExecutor

    loaded = load_program(one_kernel(pointwise("fmath.exp(a)")))
    inputs = [torch.randn(1000) for _ in range(16)]
    with ThreadPoolExecutor(4) as threads:
        outputs = list(threads.map(loaded, inputs))
    for x, (out,) in zip(inputs, outputs, strict=True):
        torch.testing.assert_close(out, x.exp())


@pytest.mark.parametrize("shape", [(5, 100), (1, 64), (3, 33)])
def test_programs_that_wait_for_each_other(shape: tuple[int, int]) -> None:
    x, out = torch.randn(shape), torch.empty(shape)
    kernel = shared_softmax(*shape, points=16)
    words = 1 + shape[0] * (1 + 2 * -(-shape[1] // 16))
    Kernel(kernel)(x, out, torch.zeros(words, dtype=torch.int64))
    torch.testing.assert_close(out, x.softmax(1))
    Kernel(kernel)(x, x, torch.zeros(words, dtype=torch.int64))
    assert torch.equal(x, out), "in place: nothing is stored before all have read"


def test_words_of_a_launch_have_another_sign_than_those_of_the_launch_before() -> None:
    kernel, words = Kernel(shared_means(points=4, parts=4)), torch.zeros(8, dtype=torch.int64)
    for launch in range(4):
        x, out = torch.randn(16, 8) + launch, torch.full((4, 4), torch.nan)
        kernel(x, out, words)
        groups = x.reshape(16, 2, 4).double().transpose(0, 1).reshape(2, 64)
        expected = torch.cat([groups.mean(1), groups.var(1, correction=0) * 64])
        torch.testing.assert_close(out.double(), expected.expand(4, 4), rtol=1e-6, atol=1e-6)
        assert ((words < 0) == (launch % 2 == 0)).all()


@pytest.mark.parametrize("wanted", [2, 4])
def test_waiting_for_others_than_come_is_an_error(wanted: int) -> None:
    kernel = shared_softmax(3, 33, points=16)
    kernel["source"] = kernel["source"].replace("program // 3, 3)", f"program // 3, {wanted})")
    kernel["id"] = kernel_id(kernel)
    with pytest.raises(KernelRunError, match=f"until {wanted} have come, and 3 come"):
        Kernel(kernel)(torch.ones(3, 33), torch.empty(3, 33), torch.zeros(22, dtype=torch.int64))


def test_header_of_fixtures_imports_what_sources_may_import() -> None:
    assert HEADER.splitlines() == [
        "import triton",
        "import triton.language as tl",
        "from ferrite_runtime import fmath",
        "",
        "",
    ]


def test_interpreting_is_asked_for_or_follows_from_the_device() -> None:
    mapping = program([tensor_input("x", [4])], [], [{"do": "alloc", "name": "o", **layout([4])}], [{"value": "o"}])
    assert load_program(mapping)(torch.zeros(4))[0].shape == (4,)
