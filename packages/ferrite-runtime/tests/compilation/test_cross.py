"""Cross-compilation: every device function, and whole programs, for GPUs that are not there."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace

import pytest
import triton._utils

from ferrite_runtime import DeviceUnavailable, cross_compile
from ferrite_runtime.compilation.cross_compilation import cross_compile_kernels
from ferrite_runtime.compilation.triton_adapter import Job, compile_job, triton_attributes, triton_signature
from ferrite_runtime.devices.descriptors import typical_device
from ferrite_runtime.formats.binary import Binary
from ferrite_runtime.formats.code_facts import ptx_param_sizes
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.cubin import read_resources
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.target import CROSS_TARGETS, Target
from ferrite_runtime.process.options import Options
from fmath import test_fmath
from runtime_kernels import (
    grid_axis,
    one_kernel,
    pointwise,
    reduction_axis,
    row_softmax,
    row_sum,
    scaled,
    shared_softmax,
    spec,
    tensor,
)

UNARY = (*sorted(set(test_fmath.UNARY) - {"isinf", "isnan", "signbit"}), "airy_ai")
TESTS = ("isinf", "isnan", "signbit")
BINARY = ("atan2", "copysign", "fmod", "hypot", "nextafter", "pow", "logaddexp", "maximum_nan", "minimum_nan", "prod")
INTEGER = ("floordiv", "floormod", "truncdiv", "xor", "any_", "all_", "gcd")
OPTIONS = Options(tune="none")


def chain(names: tuple[str, ...] | list[str], call: str) -> str:
    """Adds up the results of many functions, so that one kernel compiles them all."""
    return " + ".join(call.format(name) for name in names)


def device_function_kernels() -> list[dict]:
    kernels = []
    for dtype in ("f32", "f64"):
        # A few functions per kernel: registers, not the functions, are what a longer sum would test.
        kernels += [
            pointwise(chain(UNARY[i : i + 8], "fmath.{}(a)"), dtype=dtype, name=f"unary{i}")
            for i in range(0, len(UNARY), 8)
        ]
        flags = chain(TESTS, "fmath.{}(a).to(tl.int32)") + " + fmath.float_bits(a).to(tl.int32)"
        kernels.append(pointwise(flags, dtype=dtype, out="i32", name="tests"))
        kernels.append(pointwise(chain(BINARY, "fmath.{}(a, b)"), 2, dtype=dtype, name="binary"))
        for name in (*test_fmath.SERIES, *test_fmath.POLYNOMIALS):
            # Also of numbers without a tile, where there is nothing to reduce.
            number = "tl.full([], 0.5, a.dtype)"
            text = f"fmath.{name}(a, b) + fmath.{name}({number}, {number} * 6)"
            kernels.append(pointwise(text, 2, dtype=dtype, name=name))
        kernels.append(pointwise("fmath.ldexp(a, x)", dtype=dtype, name="ldexp"))
    for dtype in ("i32", "i64"):
        kernels.append(pointwise(chain(INTEGER, "fmath.{}(a, b)"), 2, dtype=dtype, name="integer"))
    kernels.append(pointwise("fmath.erf_narrow(a) + fmath.fast_divide(a, a + 2.0)", name="narrow"))
    kernels.append(pointwise("fmath.whole_to_half(x.to(tl.float32))", out="f16", name="whole"))
    kernels.append(pointwise("fmath.to_float8e5(a)", out="f8e5m2", name="eight_bits"))
    for wide in ("uint32", "uint64"):
        kernels.append(pointwise(f"fmath.wide_unsigned(a, tl.{wide})", dtype="i8", out="f32", name=wide))
    kernels += [
        pointwise(f"fmath.float_bits(a.to(tl.{name}))", out=out, name=f"bits_{out}")
        for name, out in (("float16", "i16"), ("bfloat16", "i16"), ("float32", "i32"), ("float64", "i64"))
    ]
    seed = "tl.full([XBLOCK], 7, tl.int64)"
    draws = f"fmath.rand({seed}, x) + fmath.randn({seed}, x) + fmath.randint64({seed}, x, 0, 10).to(tl.float32) + a"
    return [*kernels, pointwise(draws, name="draws")]


def combine_kernel() -> dict:
    body = (
        "@triton.jit\ndef combines(in_ptr, out_ptr, XBLOCK: tl.constexpr):\n"
        "    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)\n"
        "    at = x[:, None] * 64 + tl.arange(0, 64)[None, :]\n"
        "    v = tl.load(in_ptr + at)\n"
        "    i = at * 1\n"
        "    best, where = tl.reduce((v, i), 1, fmath.argmax_nan)\n"
        "    least, there = tl.reduce((v, i), 1, fmath.argmin_nan)\n"
        "    mean, m2, count = tl.reduce((v, v * 0, v * 0 + 1), 1, fmath.welford)\n"
        "    top, total = tl.reduce((v, v * 0 + 1), 1, fmath.online_softmax)\n"
        "    flag = tl.reduce(v > 0, 1, fmath.any_) | tl.reduce(v > 1, 1, fmath.all_)\n"
        "    odd = tl.reduce(i, 1, fmath.xor)\n"
        "    product = tl.reduce(v, 1, fmath.prod)\n"
        "    sums = tl.associative_scan(v, 1, fmath.logaddexp)\n"
        "    out = best + where + least + there + mean + m2 + count + top + total + flag.to(tl.int32) + odd + product\n"
        "    tl.store(out_ptr + x, out + tl.sum(sums, 1))\n"
    )
    params = [tensor("in_ptr"), tensor("out_ptr", access="write")]
    axes = [grid_axis("x", 1024), reduction_axis(64)]
    return spec("combines", body, params, axes, form="persistent", blocks={"RBLOCK": 64}, facts={"reduction_size": 64})


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_every_device_function_compiles(target: str) -> None:
    kernels = [KernelSpec.from_mapping(kernel) for kernel in [*device_function_kernels(), combine_kernel()]]
    parsed = Target.parse(target)
    report = cross_compile_kernels(kernels, parsed, OPTIONS, typical_device(parsed))
    assert report.is_complete, str(report)


@pytest.mark.parametrize("target", CROSS_TARGETS)
def test_kernels_compile_for_every_target(target: str) -> None:
    shared = shared_softmax(64, 40000, 8192)
    kernels = [pointwise("fmath.tanh(a)"), row_softmax(128, 1000), row_sum(64, 5000), scaled(), shared]
    parsed = Target.parse(target)
    specs = [KernelSpec.from_mapping(kernel) for kernel in kernels]
    report = cross_compile_kernels(specs, parsed, OPTIONS, typical_device(parsed))
    assert report.is_complete, str(report)
    assert [row.kernel for row in report.rows] == ["pointwise", "row_softmax", "row_sum", "scaled", "shared_softmax"]
    if parsed.backend == "cuda":
        assert all(0 < row.registers <= 255 and row.local_bytes == 0 for row in report.rows)


def copying_job(lines: tuple[str, ...], target: str) -> Job:
    """Returns the job of a kernel that copies where these lines say, ``x``, after what else they do."""
    body = "\n    ".join(
        (
            "@triton.jit\ndef copying(in_ptr, out_ptr, XBLOCK: tl.constexpr):",
            *lines,
            "tl.store(out_ptr + x, tl.load(in_ptr + x))\n",
        )
    )
    params, axes = [tensor("in_ptr"), tensor("out_ptr", access="write")], [grid_axis("x", 1024)]
    kernel = KernelSpec.from_mapping(spec("copying", body, params, axes))
    return Job(kernel, Config.of({"XBLOCK": 256}, 1), Target.parse(target))


def ptx_of(job: Job) -> str:
    return compile_job(replace(job, wants_ptx=True)).code.decode()


def test_what_is_asked_for_ahead_is_one_instruction_where_there_is_one() -> None:
    lines = (
        "x = (tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK))[None, :]",
        "sector = fmath.sectors(x, 4)",
        "fmath.prefetch(in_ptr + sector + 512)",
    )
    assert ptx_of(copying_job(lines, "sm_90")).count("prefetch.global.L2") == 1  # of 32 sectors, one for each thread
    compile_job(copying_job(lines, "gfx942"))


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_fewer_positions_than_neighbours_that_are_equal_compile(target: str) -> None:
    """Triton 3.6 fails on its own hint there: on tiles of one row of which two were equal."""
    lines = (
        "row = tl.program_id(0) * 4 + tl.arange(0, 1)[:, None]",
        "given = fmath.equal_neighbours((tl.load(in_ptr + row // 2) * 0.5).to(tl.int32), 0, 2)",
        "x = given * 2 + row % 2 + tl.arange(0, XBLOCK)[None, :]",
    )
    compile_job(copying_job(lines, target))


def test_neighbours_that_are_equal_have_their_channels_read_in_vectors() -> None:
    """The hint reaches the kernel: on a parameter of a function it was gone when that was inlined."""
    lines = (
        "x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)",
        "given = fmath.equal_neighbours((x // 32 * 0.5).to(tl.int32), 0, 4)",
        "value = tl.load(in_ptr + given * 32 + x % 32)",
        "tl.store(out_ptr + x, value)",
    )
    loads = re.findall(r"ld\.global\S*", ptx_of(copying_job(lines, "sm_90")))
    assert loads
    assert all(".v4." in load for load in loads)


@pytest.mark.parametrize(("target", "requests"), [("sm_80", 0), ("sm_90", 1), ("sm_120", 1)])
def test_many_bytes_are_asked_for_by_one_thread_where_that_can_be(target: str, requests: int) -> None:
    lines = (
        "x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)",
        "if tl.program_id(0) < 3: fmath.prefetch_bytes(in_ptr + 256 + tl.program_id(0) * XBLOCK, 1024)",
    )
    job = copying_job(lines, target)
    assert ptx_of(job).count("cp.async.bulk.prefetch.L2.global") == requests
    compile_job(job)
    compile_job(copying_job(lines, "gfx942"))


@pytest.mark.parametrize(
    ("target", "uses_pdl"), [("sm_80", False), ("sm_90", True), ("sm_120", True), ("gfx942", False)]
)
def test_a_kernel_waits_for_what_comes_before_it_where_it_can_be_started_sooner(target: str, *, uses_pdl: bool) -> None:
    job = copying_job(("fmath.pdl_wait()", "x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)"), target)
    assert compile_job(job).uses_pdl is uses_pdl
    if target != "gfx942":
        assert ("griddepcontrol" in compile_job(replace(job, wants_ptx=True)).code.decode()) is uses_pdl
    if uses_pdl:
        text = compile_job(replace(job, wants_ptx=True)).code.decode()
        places = [text.index(word) for word in ("griddepcontrol.launch_dependents", "griddepcontrol.wait", "ld.global")]
        assert places == sorted(places)


@pytest.mark.parametrize("default", [None, "0"])
def test_products_are_part_of_sums_whatever_triton_s_default_is(
    default: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton 3.9 warns where nobody says whether they are, as its default is going to change."""
    monkeypatch.delenv("TRITON_DEFAULT_FP_FUSION", raising=False)
    if default is not None:
        monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", default)
    say_once = getattr(triton._utils, "warn_once", None)
    if say_once is not None:
        say_once.cache_clear()
    kernel = KernelSpec.from_mapping(pointwise("a * b + a", 2, name="axpy"))
    job = Job(kernel, Config.of({"XBLOCK": 256}, 1), Target.parse("sm_90"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "fma.rn" in ptx_of(job)
        compile_job(replace(job, target=Target.parse("gfx942")))


def test_tensor_cores_multiply_float32_in_three_products_of_parts() -> None:
    body = (
        "@triton.jit\ndef product(a_ptr, b_ptr, out_ptr, XBLOCK: tl.constexpr):\n"
        "    x, r = tl.arange(0, XBLOCK)[None, :], tl.arange(0, 16)\n"
        "    a = tl.load(a_ptr + tl.arange(0, 16)[:, None] * 16 + r[None, :])\n"
        "    b = tl.load(b_ptr + r[:, None] * 16 + x)\n"
        "    total = fmath.dot_in_parts(a, b, tl.full([16, XBLOCK], 0.0, tl.float32))\n"
        "    tl.store(out_ptr + tl.arange(0, 16)[:, None] * 16 + x, total)\n"
    )
    params = [tensor("a_ptr"), tensor("b_ptr"), tensor("out_ptr", access="write")]
    kernel = KernelSpec.from_mapping(spec("product", body, params, [grid_axis("x", 16)]))
    job = Job(kernel, Config.of({"XBLOCK": 16}, 1), Target.parse("sm_90"))
    text = compile_job(replace(job, wants_ptx=True)).code.decode()
    assert text.count("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32") == 3 * 2 * 2
    compile_job(replace(job, target=Target.parse("gfx942")))


@pytest.mark.parametrize(("dtype", "wide"), [("i8", "uint32"), ("i8", "uint64"), ("i16", "uint32"), ("i16", "uint64")])
def test_floats_are_made_of_all_bits_of_an_unsigned_integer(dtype: str, wide: str) -> None:
    text = f"fmath.wide_unsigned(a, tl.{wide}).to(tl.float32).to(tl.bfloat16)"
    kernel = KernelSpec.from_mapping(pointwise(text, dtype=dtype, out="bf16", name="widened"))
    job = Job(kernel, Config.of({"XBLOCK": 1024}, 4), Target.parse("sm_90"))
    conversions = set(re.findall(r"cvt\.rn\.\w+\.u\d+", ptx_of(job)))
    assert conversions, "the kernel converts in another way"
    assert all(each.endswith(wide.removeprefix("uint")) for each in conversions)
    compile_job(replace(job, target=Target.parse("gfx942")))


def test_report_of_a_program_names_failures() -> None:
    good = cross_compile(one_kernel(pointwise("a + 1")), "sm_90", options=OPTIONS)
    assert good.is_complete
    assert "ok" in str(good)
    bad = cross_compile(one_kernel(pointwise("tl.no_such_function(a)")), "sm_90", options=OPTIONS)
    assert not bad.is_complete
    assert "no_such_function" in bad.failures[0].error
    assert "FAILED" in str(bad)


def test_promise_of_alignment_gives_wide_loads() -> None:
    from ferrite_runtime.compilation.worker_pool import CompilePool

    spec_ = KernelSpec.from_mapping(pointwise("a + 1", size=4096))
    jobs = [Job(spec_, Config.of({"XBLOCK": 1024}, 4), Target.parse("sm_90"), aligned) for aligned in (True, False)]
    pool = CompilePool(1)
    promised, plain = (pool.submit(job).result(120) for job in jobs)
    pool.close()
    assert len(promised.code) < len(plain.code), "the build without the promise needs more, narrower accesses"


def test_signature_and_promises() -> None:
    params = KernelSpec.from_mapping(scaled()).params
    assert triton_signature(params, ("XBLOCK",)) == {
        "a_ptr": "*fp32",
        "out_ptr": "*fp32",
        "n": "i32",
        "factor": "fp32",
        "XBLOCK": "constexpr",
    }
    promise = [["tt.divisibility", 16]]
    assert triton_attributes(params, aligned=True) == {(0,): promise, (1,): promise}
    assert triton_attributes(params, aligned=False) == {}
    promised = triton_attributes(params, aligned=True, divisors=((1, 4), (2, 8)))
    assert promised == {(0,): promise, (1,): promise, (2,): [["tt.divisibility", 8]]}, "a size, and no pointer"


def test_ptx_parameters_are_counted_up_to_the_end_of_the_list() -> None:
    ptx = """
.visible .entry add(
	.param .u64 .ptr .global .align 1 add_param_0,
	.param .u32 add_param_1,
	.param .align 8 .b8 add_param_2,
	.param .f64 add_param_3
)
.reqntid 128
{ ld.param.b64 %rd1, [add_param_0]; }
"""
    assert ptx_param_sizes(ptx, "add") == (8, 4, 1, 8)


def test_cubin_that_is_none_says_nothing() -> None:
    assert read_resources(b"not an elf file") == (None, None)
    assert read_resources(b"\x7fELF\x02" + bytes(30)) == (None, None)


def test_target_names() -> None:
    assert [str(Target.parse(name)) for name in CROSS_TARGETS] == list(CROSS_TARGETS)
    assert Target.parse("sm_90a") == Target("cuda", 90, 32)
    assert Target.parse("gfx1100").warp_size == 32
    assert Target.from_mapping(Target.parse("gfx942").to_mapping()) == Target("hip", "gfx942", 64)
    with pytest.raises(DeviceUnavailable, match="'tpu' is not a target"):
        Target.parse("tpu")


def test_binary_survives_storage() -> None:
    binary = Binary(b"\x00code\n", "k", 4, 32, 1024, hidden=2, param_sizes=(8, 8), registers=30, local_bytes=0)
    assert Binary.from_bytes(binary.to_bytes()) == binary
    assert binary.threads == 128
