"""Kernels that people wrote, as programs launch them: grids for each config, constants, promises, buckets of sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import user_functions  # noqa: E402
from ferrite_runtime import KernelSpec, SpecError, Target, UserKernelError  # noqa: E402
from ferrite_runtime.compilation.triton_adapter import Job, compile_job, triton_attributes  # noqa: E402
from ferrite_runtime.devices.descriptors import known_devices  # noqa: E402
from ferrite_runtime.engines.cuda_engine import CudaEngine  # noqa: E402
from ferrite_runtime.engines.interpreter_engine import InterpretedKernel  # noqa: E402
from ferrite_runtime.engines.size_buckets import bucket_of, is_bucketed, keys_of  # noqa: E402
from ferrite_runtime.formats.config import Config  # noqa: E402
from ferrite_runtime.formats.kernel_spec import Param  # noqa: E402
from ferrite_runtime.formats.program import Program  # noqa: E402
from ferrite_runtime.kernel_source.allowed_text import find_liberty  # noqa: E402
from ferrite_runtime.kernel_source.user_kernels import Launched, launched_kernel  # noqa: E402
from ferrite_runtime.kernel_source.user_text import location_of, location_of_line  # noqa: E402
from ferrite_runtime.launching.native_launcher import find_launcher  # noqa: E402
from ferrite_runtime.policies.blocks import misfit  # noqa: E402
from ferrite_runtime.policies.candidates import configs  # noqa: E402
from ferrite_runtime.store.interface import MemoryStore  # noqa: E402
from ferrite_runtime.tuning.kernel_tuning import situation_of  # noqa: E402
from runtime_fakes import FakeMeter, FakeStreams, fake_machine  # noqa: E402
from runtime_kernels import layout, program  # noqa: E402

DEVICE = torch.device("cpu", 0)
NATIVE = find_launcher(MemoryStore(), may_build=True)
TENSORS = (Param("x", "tensor", "f32", "read", 16), Param("out", "tensor", "f32", "readwrite", 16))
SMALL, LARGE = Config.of({"ROWS": 4, "COLUMNS": 16}, 1, 1), Config.of({"ROWS": 8, "COLUMNS": 32}, 2, 1)


def tiled(columns: Param, programs: tuple[Param, ...] = (), grids: Any = ((3, 3, 1), (2, 2, 1))) -> KernelSpec:
    params = (*TENSORS, Param("rows", "size", "i32"), columns)
    constants = {"KIND": {"dtype": "f32"}}
    return launched_kernel(user_functions.tiled, Launched(params, constants, (SMALL, LARGE), grids, programs))


def saxpy(**sizes: Any) -> KernelSpec:
    x, out = TENSORS
    params = (x, replace(x, name="y"), out, Param("n", "size", "i32", **sizes), Param("a", "scalar", "f32"))
    found = (Config.of({"BLOCK": 64}, 2, 1), Config.of({"BLOCK": 256}, 4, 1))
    counts = (Param("programs_0", "size", "i32", hint=16), Param("programs_1", "size", "i32", hint=4))
    grids = (("programs_0", 1, 1), ("programs_1", 1, 1))
    return launched_kernel(user_functions.saxpy, Launched(params, {}, found, grids, counts))


@pytest.fixture(params=["native", "ctypes"])
def native(request: pytest.FixtureRequest) -> Any:
    if request.param == "native" and NATIVE is None:
        pytest.skip("no C compiler here")
    return NATIVE if request.param == "native" else None


def run(mapping: dict[str, Any], native: Any, *calls: list[Any], machine: Any = None) -> tuple[list[Any], Any]:
    machine = machine or fake_machine()
    engine = CudaEngine(Program.from_mapping(mapping), FakeStreams().platform(), lambda index: machine, lambda: native)
    results = [engine.first(DEVICE)(list(calls[0]))]
    host = engine.steady(DEVICE, lambda args: None)
    results += [host(list(call)) for call in calls]
    return results, machine


def of_tiles(spec: KernelSpec, sizes: list[Any], shape: list[Any], lets: list[Any]) -> dict[str, Any]:
    steps = [
        *lets,
        {"do": "alloc", "name": "o", **layout(shape, strides=[shape[1], 1])},
        {"do": "launch", "kernel": spec.id, "args": [*sizes[:-2], "x", "o", *sizes[-2:]]},
    ]
    return program(
        [{"name": "x", "kind": "tensor", **layout(shape, strides=[shape[1], 1]), "device": "cpu"}],
        [spec.to_mapping()],
        steps,
        [{"value": "o"}],
    )


def test_a_spec_is_read_as_it_is_written() -> None:
    spec = tiled(Param("columns", "size", "i32", align=16))
    assert KernelSpec.from_mapping(spec.to_mapping()) == spec
    assert not spec.is_flat
    assert spec.grid_at(dict(SMALL.blocks)) == (3, 3, 1)
    assert spec.grid_at(dict(LARGE.blocks)) == (2, 2, 1)
    assert (spec.programs({}, dict(LARGE.blocks)), spec.depths({}, dict(LARGE.blocks))) == (2, (2, 1))
    assert spec.mutated == ("out",)


def test_configs_that_grids_are_of_are_part_of_what_a_kernel_is() -> None:
    params = (*TENSORS, Param("rows", "size", "i32"), Param("columns", "size", "i32"))
    constants = {"KIND": {"dtype": "f32"}}
    grids = ((3, 3, 1), (2, 2, 1))
    one = launched_kernel(user_functions.tiled, Launched(params, constants, (SMALL, LARGE), grids))
    other = launched_kernel(user_functions.tiled, Launched(params, constants, (LARGE, SMALL), grids))
    assert one.id != other.id


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grids": [[1, 1, 1]]}, "1 grids for 2 configs"),
        ({"grids": [[1, 1, 1], [1, 1]]}, r"grids\[1\]: .* no grid|grids\[1\].*is not a grid"),
        ({"grids": [["m", 1, 1], [1, 1, 1]]}, "'m' is neither a size param"),
        ({"blocks": {"KIND": {"dtype": "c64"}}}, "'c64' is not a type that kernels compute with"),
        ({"blocks": {"KIND": {"other": "f32"}}}, "KIND"),
    ],
)
def test_a_spec_that_is_wrong_is_refused_with_its_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        KernelSpec.from_mapping({**tiled(Param("columns", "size", "i32")).to_mapping(), **change})


def test_constants_between_params_are_interpreted() -> None:
    spec = tiled(Param("columns", "size", "i32"))
    x, out = torch.randn(10, 40), torch.zeros(10, 40)
    InterpretedKernel.load(spec)(None, x.data_ptr(), out.data_ptr(), 10, 40)
    torch.testing.assert_close(out, x * 2)


def test_constants_between_params_are_compiled_with_what_is_promised() -> None:
    target = known_devices()["h200"].target
    binary = compile_job(Job(tiled(Param("columns", "size", "i32", align=16)), SMALL, target))
    assert binary.param_sizes[:4] == (8, 8, 4, 4)
    params = (TENSORS[0], Param("rows", "size", "i32"), Param("columns", "size", "i32", align=8))
    assert triton_attributes(params, aligned=True, positions=[0, 3, 4]) == {
        (0,): [["tt.divisibility", 16]], (4,): [["tt.divisibility", 8]],
    }  # fmt: skip
    assert isinstance(target, Target)


def test_each_config_has_its_grid(native: Any) -> None:
    spec = tiled(Param("columns", "size", "i32", align=8))
    machine = fake_machine(meter=FakeMeter([2.0, 1.0]))
    x = torch.randn(10, 40)
    results, machine = run(of_tiles(spec, [10, 40], [10, 40], []), native, [x], machine=machine)
    for (result,) in results:
        torch.testing.assert_close(result, x * 2)
    (kernel,) = (kernel for kernel in machine.tuned.values())
    assert kernel.config == LARGE
    assert machine.driver.launches[-1][1] == LARGE
    assert machine.driver.launches[-1][3] == 2


def test_a_launch_that_breaks_a_promise_of_a_size_is_refused() -> None:
    spec = tiled(Param("columns", "size", "i32", align=16))
    with pytest.raises(SpecError, match="needs a multiple of 16, not 40"):
        Program.from_mapping(of_tiles(spec, [10, 40], [10, 40], []))


def test_grids_of_symbolic_sizes(native: Any) -> None:
    spec = saxpy(bucket="value", hint=1000)
    counts = [["ceildiv", "n", 64], ["ceildiv", "n", 256]]
    steps = [
        {"do": "let", "name": "n", "value": {"size": ["x", 0]}},
        {"do": "alloc", "name": "o", **layout(["n"], strides=[1])},
        {"do": "launch", "kernel": spec.id, "args": [*counts, "x", "x", "o", "n", 3.0]},
    ]
    mapping = program(
        [{"name": "x", "kind": "tensor", **layout(["n"], strides=[1]), "device": "cpu"}],
        [spec.to_mapping()],
        steps,
        [{"value": "o"}],
    )
    calls = [[torch.randn(n)] for n in (1000, 1000, 7, 1000, 512, 7)]
    results, machine = run(mapping, native, *calls, machine=fake_machine(meter=FakeMeter([2.0, 1.0])))
    for (result,), (x,) in zip(results, (calls[0], *calls), strict=True):
        torch.testing.assert_close(result, 7 * x)
    assert len(machine.tuned) == 3, "each value of the key is measured once"


@pytest.mark.parametrize("bucket", ["divisor", None])
def test_axes_of_symbolic_extents(native: Any, bucket: str | None) -> None:
    counts = (Param("programs_0", "size", "i32", hint=3), Param("programs_1", "size", "i32", hint=3))
    grids = (("programs_0", "programs_1", 1), ("programs_1", "programs_0", 1))
    columns = Param("columns", "size", "i32", hint=40, bucket=bucket)
    spec = tiled(columns, counts, grids)
    lets = [
        {"do": "let", "name": "n", "value": {"size": ["x", 0]}},
        {"do": "let", "name": "m", "value": {"size": ["x", 1]}},
    ]
    sizes = [["ceildiv", "n", 4], ["ceildiv", "m", 16], "n", "m"]
    calls = [[torch.randn(shape)] for shape in ((10, 40), (5, 17), (10, 40), (3, 64), (3, 0), (10, 40))]
    machine = fake_machine(tune="none")
    results, _ = run(of_tiles(spec, sizes, ["n", "m"], lets), native, *calls, machine=machine)
    for (result,), (x,) in zip(results, (calls[0], *calls), strict=True):
        torch.testing.assert_close(result, x * 2)
    assert len(machine.driver.launches) == 6, "nothing is launched along an axis without programs"


def test_buckets_are_what_a_kernel_says_they_are_of() -> None:
    plain, keyed = saxpy(), saxpy(bucket="value")
    assert not is_bucketed(plain)
    assert is_bucketed(keyed)
    assert keys_of(keyed) == ("n",)
    sizes = {"programs_0": 3, "programs_1": 1, "n": 24}
    assert bucket_of(plain, sizes) == ()
    assert bucket_of(saxpy(bucket="divisor"), sizes) == (8,)
    assert bucket_of(keyed, sizes) == (8, 24)
    device = known_devices()["h200"]
    keys = {situation_of(keyed, device, {"n": n}).key for n in (24, 25, 24)}
    assert len(keys) == 2


def test_all_configs_that_a_person_states_are_measured_by_default() -> None:
    found = tuple(Config.of({"BLOCK": 64 * 2**k}, 1 << j, 1) for k in range(4) for j in range(3))
    x, out = TENSORS
    params = (x, replace(x, name="y"), out, Param("n", "size", "i32"), Param("a", "scalar", "f32"))
    spec = launched_kernel(user_functions.saxpy, Launched(params, {}, found, ((4, 1, 1),)))
    assert configs(spec, known_devices()["h200"], "default") == found
    assert configs(spec, known_devices()["h200"], "none") == found[:1]


def test_a_config_without_a_grid_is_no_choice() -> None:
    spec = tiled(Param("columns", "size", "i32"))
    assert misfit(spec, replace(LARGE, num_warps=8), {}) == ""
    assert "programs" in misfit(spec, Config.of({"ROWS": 16, "COLUMNS": 32}, 2, 1), {})


def test_a_line_of_the_text_leads_back_to_where_it_was_written() -> None:
    counts = (Param("programs_0", "size", "i32"),)
    x, out = TENSORS
    params = (x, replace(x, name="y"), out, Param("n", "size", "i32"), Param("a", "scalar", "f32"))
    grids = (("programs_0", 1, 1),)
    launched = Launched(params, {}, (Config.of({"BLOCK": 64}, 2, 1),), grids, counts)
    spec = launched_kernel(user_functions.saxpy, launched)
    assert "def saxpy(programs_0, x, y" in spec.source
    lines = spec.source.splitlines()
    written = Path(user_functions.__file__).read_text(encoding="utf-8").splitlines()
    for text in ("tl.store(out + i, a * doubled", "return v * ALPHA"):
        (number,) = (place for place, line in enumerate(lines, 1) if text in line)
        path, _, place = location_of_line(user_functions.saxpy, number, ["programs_0"]).rpartition(":")
        assert path == user_functions.__file__
        assert text in written[int(place) - 1]
    assert location_of_line(user_functions.saxpy, 1) == location_of(user_functions.saxpy)


def test_what_goes_beyond_the_language_has_a_line() -> None:
    liberty = find_liberty("import triton\n\n\n@triton.jit\ndef f(x):\n    print(x)\n")
    assert liberty is not None
    assert liberty.line == 6
    assert "print(x)" in str(liberty)
    assert find_liberty(tiled(Param("columns", "size", "i32")).source) is None


def test_a_function_that_cannot_be_written_down_is_refused() -> None:
    with pytest.raises(UserKernelError, match="uses NAMES, a list"):
        launched_kernel(user_functions.listed, Launched((TENSORS[0],), {"BLOCK": 1}, (Config.of({}, 4),), ((1, 1, 1),)))
