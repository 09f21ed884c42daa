"""Triton kernels of a program's own in compiled functions: launched with ours, which fuse as if they were not there.

Without a GPU torch does not take such kernels into graphs: it asks whether Triton can run, and Triton for its target.
Both are told so here; the kernels then run in the interpreter, as all others do.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import triton
from torch import Tensor

import ferrite_runtime
import ferrite_torch
import jitted_kernels as kernels
from against_eager import compiled, devices, own_only, own_statistics
from ferrite_runtime import KernelSpec, Options
from ferrite_runtime.compilation.compiler import shared_compiler
from ferrite_runtime.compilation.triton_adapter import Job
from ferrite_runtime.devices.descriptors import known_devices
from ferrite_runtime.policies.resources import scratch_problem
from ferrite_torch.diagnostics.statistics import compiled_programs
from ferrite_torch.errors import LaunchRefused, Unsupported
from ferrite_torch.rewrites.aliased_writes import keeping_aliases
from user_kernel_programs import CASES, between, blocks, in_place, read_before, several_launches, to_an_input, tuned

pytestmark = own_only("it counts steps of our programs")


class CrossCompiling:
    """Stands for the driver of a GPU that is not there."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


@pytest.fixture(params=devices())
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "cpu":
        monkeypatch.setattr("torch.utils._triton.has_triton", lambda **_: True)
        monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton warns where it is left open
        monkeypatch.setattr(triton.runtime.driver, "_active", CrossCompiling())
    return request.param


def test_what_a_kernel_writes_is_watched(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call whose inputs have come to share memory would run eagerly."""
    seen = []

    def keeping(call: Any, eager: Any, watched: Any, *rest: Any) -> Any:
        seen.append(watched)
        return keeping_aliases(call, eager, watched, *rest)

    def step(y: Tensor, x: Tensor) -> Tensor:
        return to_an_input(x, y) * y

    monkeypatch.setattr("ferrite_torch.backend.keeping_aliases", keeping)
    x, y = torch.ones(5, device=device), torch.ones(5, device=device)
    torch.testing.assert_close(compiled(step)(y, x), (x * 0 + 2).sin())
    (watched,) = seen
    assert len(watched.storages) == 2
    assert len(watched.written) == 1


def drawn(size: int, device: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(size)
    return [torch.randn(size, generator=generator).to(device) for _ in range(2)]


def launches(number: int = 0) -> tuple[int, int]:
    """Returns how many kernels of ours, and of the user's, a program launches; nothing else may stand for either."""
    program = compiled_programs()[number]
    assert not any(str(step.get("target")).startswith("captured.") for step in program["steps"])
    forms = {kernel["id"]: kernel["form"] for kernel in program["kernels"]}
    launched = [forms[step["kernel"]] for step in program["steps"] if step["do"] == "launch"]
    return len(launched) - launched.count("user"), launched.count("user")


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_a_program_around_a_kernel(name: str, device: str, *, dynamic: bool) -> None:
    case = CASES[name]
    fast = compiled(case.program, dynamic=dynamic, fullgraph=True)
    for size in case.sizes if dynamic else case.sizes[:1]:
        mine, theirs = drawn(size, device), drawn(size, device)
        torch.testing.assert_close(fast(*mine), case.meaning(*theirs), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)  # what it writes to inputs, and nothing else
    assert not own_statistics()["fallbacks"]
    assert launches() == (case.kernels, case.own)


class Scaled(torch.autograd.Function):
    """A kernel with a derivative that is a kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        kernels.scaled_sum[blocks(x.numel())](x, y, out, x.numel(), 3.0, BLOCK=128)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        scaled, none = torch.empty_like(gradient), torch.zeros_like(gradient)
        kernels.scaled_sum[blocks(gradient.numel())](gradient, none, scaled, gradient.numel(), 3.0, BLOCK=128)
        return scaled, gradient


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_function_with_a_derivative(device: str, *, dynamic: bool) -> None:
    fast = compiled(lambda x, y: Scaled.apply(x.sin(), y * 2).relu() * 2, dynamic=dynamic, fullgraph=True)
    for size in (1000, 1001) if dynamic else (1000,):
        x, y = (each.requires_grad_() for each in drawn(size, device))
        actual, expected = fast(x, y), (x.sin() * 3 + y * 2).relu() * 2
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
        found = torch.autograd.grad(actual.square().sum(), (x, y))
        wanted = torch.autograd.grad(expected.square().sum(), (x, y))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert not own_statistics()["fallbacks"]
    assert own_statistics()["graphs"] == 2
    assert all(any(step["do"] == "launch" for step in program["steps"]) for program in compiled_programs())


def test_what_nobody_reads_later_is_written_where_it_lies(device: str) -> None:
    for function, copies in ((between, 0), (in_place, 0), (read_before, 0), (to_an_input, 0), (several_launches, 0)):
        torch._dynamo.reset()
        compiled(function)(*drawn(1000, device))
        steps = compiled_programs()[-1]["steps"]
        assert sum(step.get("target") == "aten.clone.default" for step in steps) == copies
        user = {kernel["id"]: kernel for kernel in compiled_programs()[-1]["kernels"] if kernel["form"] == "user"}
        launched = [step for step in steps if step["do"] == "launch" and step["kernel"] in user]
        written = set()
        for step in launched:
            names = [param["name"] for param in user[step["kernel"]]["params"]]
            written |= {step["args"][names.index(name)] for name in user[step["kernel"]]["mutated"]}
        assert len(written) == 1


def limited(x: Tensor, out: Tensor) -> None:
    kernels.doubled_with_few_registers[blocks(x.numel())](x, out, x.numel())


def described(x: Tensor, out: Tensor) -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    source, target = (TensorDescriptor.from_tensor(each.view(-1, 16), [8, 16]) for each in (x, out))
    kernels.doubled_by_descriptors[(triton.cdiv(x.numel(), 128), 1)](source, target, ROWS=8, COLUMNS=16)


def describing(x: Tensor, out: Tensor) -> None:
    grid = (triton.cdiv(x.numel(), 128), 1)
    kernels.doubled_by_own_descriptors[grid](x, out, x.numel() // 16, 16, ROWS=8, COLUMNS=16)


def describing_in_a_loop(x: Tensor, out: Tensor) -> None:
    kernels.doubled_by_descriptors_of_rows[(1,)](x, out, x.numel() // 16, COLUMNS=16)


@pytest.fixture
def taking_descriptors(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets torch capture descriptors that the host makes; kernels that Triton launches get memory for theirs."""
    monkeypatch.setattr("torch.utils._triton.has_triton_tensor_descriptor_host_tma", lambda: True)
    if device != "cpu":
        triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8, device=device))


@pytest.mark.usefixtures("taking_descriptors")
@pytest.mark.parametrize("launch", [described, describing])
def test_tensor_descriptors_are_made_in_memory_of_the_program(launch: Callable[..., None], device: str) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        launch(x + y, out)
        return out + 1

    x, y = drawn(1008, device)
    torch.testing.assert_close(compiled(program, fullgraph=True)(x, y), (x + y) * 2 + 1)
    assert own_statistics()["externs"] == {}
    mapping = next(each for each in compiled_programs()[-1]["kernels"] if each["form"] == "user")
    (scratch,) = (each for each in mapping["params"] if each.get("access") == "scratch")
    assert (scratch["elements"], scratch["each"]) == (8 * 32, 32), "eight programs, two descriptors of 128 bytes"
    spec, compiler = KernelSpec.from_mapping(mapping), shared_compiler(Options(tune="none", workers=1))
    for name, size in (("h200", 256), ("a100", 0)):
        binary = compiler.submit(Job(spec, spec.configs[0], known_devices()[name].target)).result()
        assert binary.scratch == size
        assert scratch_problem(spec, binary, {}) is None


@pytest.mark.usefixtures("taking_descriptors")
def test_descriptors_need_a_known_number_of_programs(device: str, caplog: pytest.LogCaptureFixture) -> None:
    def program(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        describing(x, out)
        return out

    caplog.set_level("WARNING", "ferrite_torch")
    run = torch.compile(program, backend="ferrite", dynamic=True)
    x = torch.randn(1024, device=device)
    torch.testing.assert_close(run(x), x * 2)
    assert "take memory for each program, on a grid of any size" in caplog.text


@pytest.mark.usefixtures("taking_descriptors")
def test_descriptors_of_parts_of_tensors(device: str) -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    def program(x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        source, target = (TensorDescriptor.from_tensor(each, [8, 16]) for each in (x.sin()[3:20, 16:], out[1:18, 4:44]))
        kernels.doubled_by_descriptors[(3, 3)](source, target, ROWS=8, COLUMNS=16)
        return out + 1

    x = torch.randn(20, 64, device=device)
    expected = torch.ones_like(x)
    expected[1:18, 4:44] += 2 * x.sin()[3:20, 16:56]
    torch.testing.assert_close(compiled(program, fullgraph=True)(x), expected)
    assert own_statistics()["externs"] == {}


@pytest.mark.usefixtures("taking_descriptors")
@pytest.mark.parametrize(
    ("launch", "reason"), [(limited, "maxnreg"), (describing_in_a_loop, "makes tensor descriptors (TMA) in a loop")]
)
def test_what_a_program_has_no_form_for_is_a_step_and_named_once_with_its_line(
    launch: Callable[..., None],
    reason: str,
    device: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if device != "cpu" and launch is limited:
        pytest.skip("what runs is the compiled kernel, whose registers are limited")

    def program(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        launch(x + y, out)
        return out + 1

    caplog.set_level("WARNING", "ferrite_torch")
    for _ in range(2):
        torch._dynamo.reset()
        x, y = drawn(1008, device)
        torch.testing.assert_close(compiled(program, fullgraph=True)(x, y), (x + y) * 2 + 1)
    (said,) = [each.getMessage() for each in caplog.records if each.name.startswith("ferrite_torch")]
    first = launch.__code__.co_firstlineno
    assert any(f"({__file__}:{line})" in said for line in range(first, first + 6))
    assert "a Triton kernel of the program's own" in said
    assert reason in said
    assert "What to do: " in said
    (op,) = (op for op in own_statistics()["externs"] if op.startswith("higher_order."))  # type: ignore[attr-defined]
    assert op == "higher_order.triton_kernel_wrapper_functional"


def test_a_grid_of_zero_launches_nothing_and_a_negative_one_is_refused(device: str) -> None:
    def zeroed(x: Tensor, n: int) -> Tensor:
        out = torch.zeros_like(x)
        kernels.scaled_sum[(n,)](x, x, out, x.numel(), 3.0, BLOCK=128)
        return out

    x = torch.ones(64, device=device)
    torch.testing.assert_close(compiled(lambda x: zeroed(x, 0))(x), torch.zeros_like(x))
    torch._dynamo.reset()
    wanted = r"scaled_sum .*jitted_kernels.py:\d+.* grid of \(-1, 1, 1\)"
    with pytest.raises(Exception, match=wanted) as found:  # whatever ``fallback`` says: eager would launch nothing
        torch.compile(lambda x: zeroed(x, -1), backend="ferrite")(x)
    assert isinstance(found.value.inner_exception, LaunchRefused)  # type: ignore[attr-defined]
    assert f"{__file__}:{zeroed.__code__.co_firstlineno + 2}" in str(found.value)


def test_a_grid_without_an_axis_is_refused(device: str) -> None:
    def program(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        kernels.scaled_sum[()](x, x, out, x.numel(), 3.0, BLOCK=128)
        return out

    wanted = r"scaled_sum .*jitted_kernels.py:\d+.* grid of \(\): a grid has one axis at least"
    with pytest.raises(Exception, match=wanted) as found:  # whatever ``fallback`` says
        torch.compile(program, backend="ferrite")(torch.ones(64, device=device))
    assert isinstance(found.value.inner_exception, LaunchRefused)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "message"),
    [({"BLOCK": 128}, "no value is given for 'factor'"), ({"factor": 1.0, "BLOCK": 64, "more": 1}, "'more' is given")],
)
def test_a_wrong_argument_is_named_with_the_kernel_and_the_launch(
    given: dict[str, Any], message: str, device: str
) -> None:
    def wrong(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        kernels.scaled_sum[(1,)](x, x, out, x.numel(), **given)
        return out

    x = torch.ones(64, device=device)
    with pytest.raises(Exception, match=message):
        compiled(wrong)(x)


class Launches(NamedTuple):
    """What a program's one kernel of the user's is launched with, and its spec."""

    spec: dict[str, Any]
    args: list[Any]


def launched(program: Callable[..., Any], *args: Any, **options: Any) -> Launches:
    torch._dynamo.reset()
    torch.compile(program, backend="ferrite", fullgraph=True, options={"fallback": False, **options})(*args)
    compiled_program = compiled_programs()[-1]
    (spec,) = (kernel for kernel in compiled_program["kernels"] if kernel["form"] == "user")
    (step,) = (step for step in compiled_program["steps"] if step.get("kernel") == spec["id"])
    return Launches(spec, step["args"])


def test_numbers_are_passed_as_tritons_launcher_passes_them(device: str) -> None:
    columns, y = torch.randn(33, 48, device=device), torch.randn(48, device=device)

    def program(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        kernels.scaled_columns[(33, 1)](x, out, 33, 48, x.stride(0), x.stride(1), BLOCK=64)
        return out + y

    spec, args = launched(program, columns, y)
    assert spec["blocks"] == {"column_step": 1, "BLOCK": 64}
    assert {param["name"]: param.get("align") for param in spec["params"]} == {
        "x": 16, "out": 16, "rows": None, "columns": 16, "row_step": 16,
    }  # fmt: skip
    assert args[2:] == [33, 48, 48]
    assert spec["grid"] == 33


def test_an_address_that_is_not_aligned_is_not_promised_to_be(device: str) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x[1:])
        kernels.scaled_sum[blocks(x.numel())]((x * 2)[1:], y[4:], out, 40, 3.0, BLOCK=128)
        return out

    spec, _ = launched(program, torch.randn(64, device=device), torch.randn(64, device=device))
    assert [param.get("align") for param in spec["params"]][:3] == [4, 16, 16]


def test_what_a_choice_depends_on_is_part_of_the_kernel_or_of_each_launch(device: str) -> None:
    x, y = torch.randn(256, device=device), torch.randn(256, device=device)
    spec, _ = launched(tuned, x, y)
    assert [config["blocks"]["BLOCK"] for config in spec["configs"]] == [64, 128]
    assert spec["grids"] == [[4, 1, 1], [2, 1, 1]]
    assert spec["params"][-1]["hint"] == 256
    other, _ = launched(tuned, x[:192], y[:192])
    assert other["id"] != spec["id"]


def test_a_kernel_is_tuned_beyond_its_configs_where_that_is_asked(device: str) -> None:
    x, y = torch.randn(256, device=device), torch.randn(256, device=device)
    spec, _ = launched(between, x, y, tune="none")
    assert spec["configs"] == [{"blocks": {}, "num_stages": 3, "num_warps": 4}]
    wider, _ = launched(between, x, y, tune="none", tune_user_kernels=True)
    assert wider["configs"][0] == spec["configs"][0]
    assert {config["num_warps"] for config in wider["configs"]} == {2, 4, 8}
    assert {config["num_stages"] for config in wider["configs"]} == {1, 2, 3, 4}


def test_what_a_kernel_calls_and_the_constants_it_reads_come_along(device: str) -> None:
    def program(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        kernels.scaled_by_a_helper[(1,)](x, out=out, n=x.numel(), KIND=triton.language.float32, BLOCK=64)
        return out + 1

    x = torch.randn(50, device=device)
    spec, _ = launched(program, x)
    assert spec["source"].count("@triton.jit") == 2
    assert "SCALE" in spec["source"]
    assert spec["blocks"]["KIND"] == {"dtype": "f32"}
    torch.testing.assert_close(compiled(program)(x), x * 2.5 + 1)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_grid_of_two_axes(device: str, *, dynamic: bool) -> None:
    def program(x: Tensor) -> Tensor:
        rows, columns = x.shape
        out = torch.empty_like(x)
        grid = (triton.cdiv(rows, 4), triton.cdiv(columns, 16))
        kernels.doubled_by_tiles[grid](x, out, rows, columns, ROWS=4, COLUMNS=16)
        return out + 1

    fast = compiled(program, dynamic=dynamic, fullgraph=True)
    for shape in ((6, 40), (9, 17), (4, 64)) if dynamic else ((6, 40),):
        x = torch.randn(shape, device=device)
        torch.testing.assert_close(fast(x), x * 2 + 1)
    assert launches() == (1, 1)


def test_a_kernel_that_does_not_run_says_so(device: str) -> None:
    @triton.jit
    def broken(x, out, n, BLOCK: triton.language.constexpr):
        at = triton.language.arange(0, BLOCK)
        triton.language.store(out + at, triton.language.load(x + at) + missing_name)  # noqa: F821

    def function(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        broken[(1,)](x * 2, out, x.numel(), BLOCK=64)
        return out + 1

    with pytest.raises(Exception, match="missing_name") as found:
        compiled(function)(torch.ones(64, device=device))
    assert f"broken ({__file__}:" in str(found.value)
    assert f"{__file__}:{function.__code__.co_firstlineno + 2}" in str(found.value)


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
def test_a_bundle_runs_a_kernel_with_the_runtime_alone(target: str, device: str, tmp_path: Path) -> None:
    x, y = drawn(1000, "cpu")
    bundle = ferrite_torch.export(tuned, (x, y), targets=(target,), ptx=None)
    (spec,) = (kernel for kernel in bundle.kernels.values() if kernel.form == "user")
    if target != "cpu":
        assert sum(entry.kernel == spec.id for entry in bundle.binaries) >= 2, "a binary for each config"
    bundle.save(tmp_path / "tuned.ferrite")
    loaded = ferrite_runtime.load(tmp_path / "tuned.ferrite", options=ferrite_runtime.Options(interpret=True))
    torch.testing.assert_close(loaded(x, y), (x + y) * 2 + 1)


def test_a_kernel_is_exported_where_no_gpu_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch asks Triton's driver for a target, and takes what a kernel only reads for written where there is none."""
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton warns where it is left open

    def model(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        kernels.doubled_tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
        return out + 1

    before = triton.runtime.driver._active
    x = torch.randn(1000)
    ferrite_torch.export(model, (x,), targets=("cpu",)).save(tmp_path / "read.ferrite")
    torch.testing.assert_close(ferrite_runtime.load(tmp_path / "read.ferrite")(x), x * 2 + 1)
    assert triton.runtime.driver._active is before


def test_a_bundle_is_trained_with_kernels(device: str, tmp_path: Path) -> None:
    x, y = (each.requires_grad_() for each in drawn(100, "cpu"))
    model = lambda x, y: Scaled.apply(x.sin(), y * 2).relu()  # noqa: E731
    ferrite_torch.export(model, (x, y), targets=("cpu",), training=True).save(tmp_path / "scaled.ferrite")
    found = ferrite_runtime.load(tmp_path / "scaled.ferrite")(x, y)
    expected = (x.sin() * 3 + y * 2).relu()
    torch.testing.assert_close(found, expected)
    gradients, wanted = (torch.autograd.grad(each.square().sum(), (x, y)) for each in (found, expected))
    torch.testing.assert_close(gradients, wanted)


@pytest.mark.usefixtures("taking_descriptors")
def test_a_bundle_has_descriptors_that_a_kernel_makes(device: str, tmp_path: Path) -> None:
    def program(x: Tensor, launch: Callable[..., None]) -> Tensor:
        out = torch.empty_like(x)
        launch(x.sin(), out)
        return out + 1

    x = torch.randn(1024)
    ferrite_torch.export(lambda x: program(x, describing), (x,), targets=("cpu",)).save(tmp_path / "own.ferrite")
    torch.testing.assert_close(ferrite_runtime.load(tmp_path / "own.ferrite")(x), 2 * x.sin() + 1)
    with pytest.raises(
        Unsupported, match=r"doubled_by_descriptors \(.*jitted_kernels\.py:\d+\) with a tensor descriptor"
    ):
        ferrite_torch.export(lambda x: program(x, described), (x,), targets=("cpu",))


def test_a_kernel_beyond_the_language_of_kernels_is_in_no_bundle(device: str) -> None:
    def program(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        kernels.doubled_aloud[(1,)](x, out, x.numel(), BLOCK=64)
        return out + 1

    source = Path(kernels.__file__).read_text(encoding="utf-8").splitlines()
    (line,) = (number for number, text in enumerate(source, 1) if "static_print(" in text)
    with pytest.raises(Unsupported, match=rf"jitted_kernels\.py:{line}: kernel doubled_aloud: .*static_print"):
        ferrite_torch.export(program, (torch.ones(50),), targets=("cpu",))
