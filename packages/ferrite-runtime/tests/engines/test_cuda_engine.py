"""The CUDA engine over a fake driver: what is launched, with which arguments, on which stream."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ferrite_runtime.devices.descriptors import known_devices
from ferrite_runtime.engines.cuda_engine import CudaEngine
from ferrite_runtime.errors import CheckFailed, DriverError, KernelCompileError
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.program import Program
from ferrite_runtime.launching.native_launcher import find_launcher
from ferrite_runtime.policies.candidates import configs, roomier_configs
from ferrite_runtime.policies.thresholds import REGISTERS
from ferrite_runtime.store.interface import MemoryStore
from ferrite_runtime.tuning.agreement import RankAgreement
from ferrite_runtime.tuning.known_configs import Choices
from runtime_fakes import FakeBoard, FakeDriver, FakeMeter, FakePool, FakeStreams, fake_machine
from runtime_kernels import (
    grid_axis,
    layout,
    one_kernel,
    pointwise,
    program,
    row_softmax,
    row_sum,
    scaled,
    spec,
    tensor,
    tensor_input,
)

torch = pytest.importorskip("torch")
DEVICE = torch.device("cpu", 0)
NATIVE = find_launcher(MemoryStore(), may_build=True)
PATHS: dict = {"native": NATIVE, "ctypes": None}


@pytest.fixture(params=PATHS, autouse=True)
def path(request, monkeypatch) -> str:
    """Every test runs on both launch paths."""
    if request.param == "native" and NATIVE is None:
        pytest.skip("no C compiler here")
    monkeypatch.setitem(PATHS, "chosen", PATHS[request.param])
    return request.param


def load(mapping: dict, machine=None, streams=None) -> tuple:
    machine = machine or fake_machine()
    streams = streams or FakeStreams()
    engine = CudaEngine(
        Program.from_mapping(mapping), streams.platform(), lambda index: machine, lambda: PATHS["chosen"]
    )
    engine.device_kernels(0)
    return engine, machine, streams


def run_twice(mapping: dict, inputs: list, **parts):
    engine, machine, _streams = load(mapping, **parts)
    first = engine.first(DEVICE)([x.clone() if hasattr(x, "clone") else x for x in inputs])
    second = engine.steady(DEVICE, lambda args: None)([x.clone() if hasattr(x, "clone") else x for x in inputs])
    return first, second, machine


def test_one_kernel_first_and_steady_agree() -> None:
    a, b = torch.randn(1000), torch.randn(1000)
    first, second, machine = run_twice(one_kernel(pointwise("a * b", 2)), [a, b])
    assert torch.equal(first[0], a * b)
    assert torch.equal(second[0], a * b)
    assert len(machine.driver.launches) == 2
    name, config, aligned, programs, _ = machine.driver.launches[0]
    assert (name, aligned) == ("pointwise", True)
    assert programs == -(-1000 // config.block("XBLOCK"))


def test_stream_is_read_on_every_call() -> None:
    engine, machine, streams = load(one_kernel(pointwise("a + 1")))
    engine.first(DEVICE)([torch.randn(1000)])
    host = engine.steady(DEVICE, lambda args: None)
    for stream in (0, 1234567890123, 5, 0):
        streams.stream = stream
        host([torch.randn(1000)])
    assert [launch[4] for launch in machine.driver.launches] == [0, 0, 1234567890123, 5, 0]


def counting() -> dict:
    """A program that counts its calls in a buffer which is kept."""
    count, copy = pointwise("a + 1", size=8, name="count"), pointwise("a * 1", size=8, name="copy")
    steps = [
        {"do": "keep", "name": "c", **layout([8])},
        {"do": "launch", "kernel": count["id"], "args": ["c", "c"]},
        {"do": "alloc", "name": "o", **layout([8])},
        {"do": "launch", "kernel": copy["id"], "args": ["c", "o"]},
        {"do": "free", "names": ["c"]},
    ]
    return program([], [count, copy], steps, [{"value": "o"}])


def test_a_kept_buffer_has_what_the_call_before_in_the_same_stream_has_left() -> None:
    engine, _, streams = load(counting())
    host = engine.steady(DEVICE, lambda args: None)

    def calls() -> float:
        (counted,) = host([])
        assert (counted == counted[0]).all()
        return float(counted[0])

    found = []
    for stream in (0, 0, 7, 0, 7):
        streams.stream = stream
        found.append(calls())
    assert found == [1, 2, 1, 3, 2]
    streams.is_capturing = True
    assert [calls(), calls()] == [1, 1], "what is recorded begins anew whenever it is replayed"
    streams.is_capturing = False
    assert calls() == 3, "and leaves alone what is kept"
    first = engine.first(DEVICE)
    assert [float(first([])[0][0]) for _ in range(2)] == [1, 2]


def test_misaligned_input_goes_to_a_build_without_the_promise() -> None:
    base = torch.randn(1001)
    a = base[1:]
    assert a.data_ptr() % 16
    engine, machine, _ = load(one_kernel(pointwise("a * 2")))
    (out,) = engine.first(DEVICE)([a])
    assert torch.equal(out, a * 2)
    host = engine.steady(DEVICE, lambda args: None)
    assert torch.equal(host([a])[0], a * 2)
    assert torch.equal(host([a.clone()])[0], a * 2)
    assert [launch[2] for launch in machine.driver.launches] == [False, False, True]


def test_misaligned_view_of_a_buffer_never_uses_the_promise() -> None:
    kernel = pointwise("a * 2", size=8)
    steps = [
        {"do": "alloc", "name": "o", **layout([8])},
        {"do": "view", "name": "v", "base": "x", **layout([8]), "offset": 1},
        {"do": "launch", "kernel": kernel["id"], "args": ["v", "o"]},
    ]
    mapping = program([tensor_input("x", [9])], [kernel], steps, [{"value": "o"}])
    x = torch.randn(9)
    first, second, machine = run_twice(mapping, [x])
    assert torch.equal(first[0], x[1:] * 2)
    assert torch.equal(second[0], x[1:] * 2)
    assert not any(launch[2] for launch in machine.driver.launches)


def test_sizes_and_scalars_are_passed_and_make_the_grid() -> None:
    kernel = scaled()
    steps = [
        {"do": "alloc", "name": "o", **layout([1000])},
        {"do": "launch", "kernel": kernel["id"], "args": ["x", "o", ["mul", "half", 2], "f"]},
    ]
    scalars = [{"name": n, "kind": "scalar", "dtype": t} for n, t in (("half", "i64"), ("f", "f64"))]
    mapping = program([tensor_input("x", [1000]), *scalars], [kernel], steps, [{"value": "o"}])
    x = torch.randn(1000)
    engine, machine, _ = load(mapping)
    engine.first(DEVICE)([x, 300, 2.5])
    host = engine.steady(DEVICE, lambda args: None)
    assert torch.equal(host([x, 300, 2.5])[0][:600], x[:600] * 2.5)
    host([x, 0, 2.5])
    assert len(machine.driver.launches) == 2, "a launch of no programs must not reach the driver"


@pytest.mark.parametrize("tells", ["a result", "a number"])
def test_data_dependent_sizes(tells: str) -> None:
    """What tells a size runs after the launch that it reads, and before the one that it sizes; 0 launches nothing."""
    keep, scale = pointwise("a * (a > 0)", name="keep"), scaled()
    steps = [
        {"do": "alloc", "name": "t", **layout([1000])},
        {"do": "launch", "kernel": keep["id"], "args": ["x", "t"]},
    ]
    find = {"do": "extern", "args": [{"ref": "t"}], "kwargs": {}, "results": ["found"]}
    if tells == "a result":
        steps += [{**find, "target": "aten.nonzero.default", "binds": [["u0", 0, 0]]}]
    else:
        steps += [{**find, "target": "aten.count_nonzero.default", "args": [{"ref": "t"}, None]}]
        steps += [{"do": "item", "name": "u0", "from": "found", "dtype": "i64"}]
    steps += [
        {"do": "check", "holds": ["le", "u0", 900], "message": "model.py:3", "names": [["n", "u0"]]},
        {"do": "alloc", "name": "o", **layout([1000])},
        {"do": "launch", "kernel": scale["id"], "args": ["t", "o", "u0", 2.0]},
    ]
    outputs = [{"value": "o"}, {"scalar": "u0"}]
    engine, machine, _ = load(program([tensor_input("x", [1000])], [keep, scale], steps, outputs))
    host = engine.first(DEVICE)
    for count in (300, 0, 1, 33, 900, 300):
        x = (torch.arange(1000) < count).float() * 2 - 1
        done = len(machine.driver.launches)
        o, size = host([x])
        assert size == count
        assert torch.equal(o[:count], torch.full((count,), 2.0))
        assert len(machine.driver.launches) - done == 1 + (count > 0)
        host = engine.steady(DEVICE, lambda args: None)
    with pytest.raises(CheckFailed, match=r"model.py:3: n is 901"):
        host([(torch.arange(1000) < 901).float() * 2 - 1])


def test_zero_size_program_launches_nothing() -> None:
    engine, machine, _ = load(one_kernel(pointwise("a + 1", size=0), 0))
    assert engine.first(DEVICE)([torch.empty(0)])[0].shape == (0,)
    assert engine.steady(DEVICE, lambda args: None)([torch.empty(0)])[0].shape == (0,)
    assert machine.driver.launches == []


def test_tuning_measures_and_remembers() -> None:
    kernel = row_sum(4096, 4096)
    steps = [
        {"do": "alloc", "name": "o", **layout([4096])},
        {"do": "launch", "kernel": kernel["id"], "args": ["x", "o"]},
    ]
    mapping = program([tensor_input("x", [4096, 4096])], [kernel], steps, [{"value": "o"}])
    machine = fake_machine(meter=FakeMeter([3.0, 1.0, 2.0, 2.5]), driver=QuietDriver(), tune="quick")
    engine, _, _ = load(mapping, machine)
    (device_kernel,) = engine.kernels[0].values()
    assert len(device_kernel.candidates) == 4
    engine.first(DEVICE)([torch.zeros(4096, 4096)])
    assert device_kernel.config == device_kernel.candidates[1]
    again, _, _ = load(mapping, fake_machine(store=machine.choices.store, driver=QuietDriver(), tune="quick"))
    (known,) = again.kernels[0].values()
    assert known.candidates == (device_kernel.config,)
    again.first(DEVICE)([torch.zeros(4096, 4096)])
    assert known.machine.meter.calls == 0


def test_ranks_run_the_config_that_one_of_them_measured() -> None:
    """Every rank would measure otherwise, and the last one remembers something else."""
    kernel = row_sum(4096, 4096)
    steps = [
        {"do": "alloc", "name": "o", **layout([4096])},
        {"do": "launch", "kernel": kernel["id"], "args": ["x", "o"]},
    ]
    mapping = program([tensor_input("x", [4096, 4096])], [kernel], steps, [{"value": "o"}])
    board, stores, taken, calls = FakeBoard(), [MemoryStore() for _ in range(3)], [], []
    own = fake_machine(meter=FakeMeter([3.0, 2.0, 1.0]), driver=QuietDriver(), store=stores[2], tune="quick")
    alone, _, _ = load(mapping, own)
    alone.first(DEVICE)([torch.zeros(4096, 4096)])
    (remembered,) = (kernel.config for kernel in alone.kernels[0].values())
    for rank, times in enumerate(([3.0, 1.0, 2.0], [1.0, 2.0, 3.0], [2.0, 3.0, 1.0])):
        agreement = RankAgreement("rank0", lambda rank=rank: (rank, board))
        machine = fake_machine(
            meter=FakeMeter(times),
            driver=QuietDriver(),
            choices=Choices(stores[rank], agreement=agreement),
            tune="quick",
        )
        engine, _, _ = load(mapping, machine)
        engine.first(DEVICE)([torch.zeros(4096, 4096)])
        (device_kernel,) = engine.kernels[0].values()
        taken.append(device_kernel.config)
        calls.append(machine.meter.calls > 0)
    assert len(set(taken)) == 1
    assert calls == [True, False, False]
    assert taken[0] != remembered
    assert own.choices.recall(device_kernel.situation()) == taken[0], "what was agreed on is remembered"


class QuietDriver(FakeDriver):
    """Launches nothing: for kernels too large to interpret several times."""

    def launch(self, config, function, params, extra) -> int:
        self.launches.append(function.value)
        return 0


def accumulate(size: int) -> dict:
    body = (
        "@triton.jit\ndef accumulate(a_ptr, sum_ptr, XBLOCK: tl.constexpr):\n"
        "    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)\n"
        f"    mask = x < {size}\n"
        "    tl.store(sum_ptr + x, tl.load(sum_ptr + x, mask) + tl.load(a_ptr + x, mask), mask)\n"
    )
    params = [tensor("a_ptr"), tensor("sum_ptr", access="readwrite")]
    return spec("accumulate", body, params, [grid_axis("x", size)], mutated=["sum_ptr"], facts={"bytes": 12 * size})


def test_measuring_a_mutating_kernel_leaves_its_argument_as_one_launch_would() -> None:
    kernel = accumulate(1 << 14)
    n = 1 << 14
    steps = [{"do": "launch", "kernel": kernel["id"], "args": ["a", "s"]}]
    mapping = program([tensor_input("a", [n]), tensor_input("s", [n])], [kernel], steps, [{"none": True}])
    a, s = torch.randn(n), torch.randn(n)
    before = s.clone()
    machine = fake_machine(tune="max")
    engine, _, _ = load(mapping, machine)
    engine.first(DEVICE)([a, s])
    assert machine.meter.calls > 0
    assert torch.equal(s, before + a)


class WatchingMeter(FakeMeter):
    """Notes what a tensor holds just before each launch."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: torch.Tensor | None = None
        self.seen: list[list[int]] = []

    def sample(self, run, count, before=None) -> list[float]:
        def noting() -> None:
            if before is not None:
                before()
            self.seen.append(self.watched.tolist())

        return super().sample(run, count, noting)


def test_integers_that_a_kernel_changes_are_put_back_before_every_launch() -> None:
    body = (
        "@triton.jit\ndef bump(a_ptr, XBLOCK: tl.constexpr):\n"
        "    x = tl.arange(0, XBLOCK)\n    tl.atomic_add(a_ptr + x, 1, x < 8)\n"
    )
    kernel = spec("bump", body, [tensor("a_ptr", "i32", "atomic")], [grid_axis("x", 8)], mutated=["a_ptr"])
    mapping = program(
        [tensor_input("a", [8], "i32")], [kernel], [{"do": "launch", "kernel": kernel["id"], "args": ["a"]}], []
    )
    machine = fake_machine(tune="max", meter=WatchingMeter())
    engine, _, _ = load(mapping, machine)
    a = torch.full((8,), 5, dtype=torch.int32)
    machine.meter.watched = a
    engine.first(DEVICE)([a])
    assert machine.meter.calls > 2
    assert machine.meter.seen == [[5] * 8] * machine.meter.calls, "it steers the kernel, so each launch begins with it"
    assert a.tolist() == [6] * 8


def test_backup_that_does_not_fit_on_the_device_lies_on_the_host_and_nowhere_means_no_measurement(monkeypatch) -> None:
    kernel = accumulate(1 << 10)
    mapping = program(
        [tensor_input("a", [1 << 10]), tensor_input("s", [1 << 10])],
        [kernel],
        [{"do": "launch", "kernel": kernel["id"], "args": ["a", "s"]}],
        [],
    )
    real, refused = torch.empty, []

    def short_of_memory(*shape, **options):
        if options.get("dtype") is torch.uint8:
            refused.append("host" if options.get("pin_memory") else "device")
            if "device" in options:
                raise torch.OutOfMemoryError("out of memory")
            if len(rooms) == 0:
                raise RuntimeError("cudaHostAlloc failed")
            options.pop("pin_memory")
        return real(*shape, **options)

    monkeypatch.setattr(torch, "empty", short_of_memory)
    for rooms in (["host"], []):
        machine = fake_machine(tune="max")
        engine, _, _ = load(mapping, machine)
        a, s = torch.randn(1 << 10), torch.randn(1 << 10)
        before = s.clone()
        engine.first(DEVICE)([a, s])
        assert torch.equal(s, before + a)
        assert (machine.meter.calls > 0) == bool(rooms)
    assert refused == ["device", "host"] * 2


def test_what_was_measured_with_less_effort_is_measured_again_with_more() -> None:
    def fresh(tune: str, **parts):
        machine = fake_machine(tune=tune, driver=QuietDriver(), store=store, **parts)
        engine, _, _ = load(mapping, machine)
        engine.first(DEVICE)([torch.zeros(4096, 4096)])
        return machine

    kernel = row_sum(4096, 4096)
    steps = [
        {"do": "alloc", "name": "o", **layout([4096])},
        {"do": "launch", "kernel": kernel["id"], "args": ["x", "o"]},
    ]
    mapping = program([tensor_input("x", [4096, 4096])], [kernel], steps, [{"value": "o"}])
    store = MemoryStore()
    assert fresh("default").meter.calls == 0
    assert fresh("quick").meter.calls > 0
    assert fresh("quick").meter.calls == 0
    assert fresh("none").meter.calls == 0
    assert fresh("default").meter.calls == 0, "what was measured is enough for less"


def test_spilling_candidate_is_not_timed() -> None:
    kernel = row_sum(4096, 4096)
    machine = fake_machine(driver=QuietDriver(), meter=FakeMeter([5.0, 4.0, 4.5]), tune="quick")
    steps = [
        {"do": "alloc", "name": "o", **layout([4096])},
        {"do": "launch", "kernel": kernel["id"], "args": ["x", "o"]},
    ]
    engine, _, _ = load(program([tensor_input("x", [4096, 4096])], [kernel], steps, []), machine)
    (device_kernel,) = engine.kernels[0].values()
    machine.driver.local_bytes[device_kernel.candidates[2]] = 512
    engine.first(DEVICE)([torch.zeros(4096, 4096)])
    assert device_kernel.config == device_kernel.candidates[1]


@pytest.mark.parametrize("fails", [False, True], ids=["spill", "fail"])
@pytest.mark.parametrize(("spilling", "taken"), [(0, 0), (1, 1), (2, 2), (9, 0)])
def test_a_first_config_that_spills_makes_way_for_the_next_one_that_does_not(
    spilling: int, taken: int, *, fails: bool
) -> None:
    """Those that come after it compile before anything is launched, and no more than it takes."""
    kernel = row_sum(4096, 4096)
    read, device = KernelSpec.from_mapping(kernel), known_devices()["h200"]
    (chosen,) = configs(read, device, "none")
    every = (chosen, *roomier_configs(read, device, chosen, 512))
    compiled = []

    def spill(job, binary):
        compiled.append(job.config)
        if fails and 0 < every.index(job.config) < spilling:
            raise KernelCompileError(job.spec.name, job.spec.origin, "too wide")
        return replace(binary, local_bytes=512 if every.index(job.config) < spilling else 0)

    machine = fake_machine(driver=QuietDriver(), pool=FakePool(spill))
    steps = [
        {"do": "alloc", "name": "o", **layout([4096])},
        {"do": "launch", "kernel": kernel["id"], "args": ["x", "o"]},
    ]
    engine, _, _ = load(program([tensor_input("x", [4096, 4096])], [kernel], steps, []), machine)
    (device_kernel,) = engine.device_kernels(0).values()
    assert compiled == list(every[: 1 + min(spilling, REGISTERS.spilled_tries)])
    engine.first(DEVICE)([torch.zeros(4096, 4096)])
    assert len(compiled) == 1 + min(spilling, REGISTERS.spilled_tries)
    assert device_kernel.config == every[taken]
    assert machine.meter.calls == 0


def test_config_that_does_not_compile_costs_only_itself() -> None:
    def refuse_wide(job, binary):
        if job.config.num_warps >= 8:
            raise KernelCompileError(job.spec.name, job.spec.origin, "too wide")
        return binary

    kernel = row_softmax(512, 4096)
    steps = [
        {"do": "alloc", "name": "o", **layout([512, 4096])},
        {"do": "launch", "kernel": kernel["id"], "args": ["x", "o"]},
    ]
    mapping = program([tensor_input("x", [512, 4096])], [kernel], steps, [{"value": "o"}])
    engine, _, _ = load(mapping, fake_machine(pool=FakePool(refuse_wide)))
    x = torch.randn(512, 4096)
    torch.testing.assert_close(engine.first(DEVICE)([x])[0], x.softmax(1))
    (device_kernel,) = engine.kernels[0].values()
    assert device_kernel.config.num_warps < 8


def test_kernel_that_never_compiles_is_named_with_its_origin() -> None:
    def refuse(job, binary):
        raise KernelCompileError(job.spec.name, job.spec.origin, "no such instruction")

    mapping = one_kernel(pointwise("a + 1", origin=["aten.add (model.py:3)"]))
    engine, _, _ = load(mapping, fake_machine(pool=FakePool(refuse)))
    with pytest.raises(KernelCompileError, match=r"pointwise \(from aten.add \(model.py:3\)\).*no such instruction"):
        engine.first(DEVICE)([torch.randn(1000)])
    with pytest.raises(KernelCompileError):
        engine.wait()


def test_thread_without_context_gets_one_and_other_failures_are_raised(path) -> None:
    attempts = 1 if path == "native" else 2  # through ctypes, the launch in the text itself comes first
    engine, machine, _ = load(one_kernel(pointwise("a + 1")))
    engine.first(DEVICE)([torch.randn(1000)])
    host = engine.steady(DEVICE, lambda args: None)
    x = torch.randn(1000)
    machine.driver.statuses = [201] * attempts
    assert torch.equal(host([x])[0], x + 1)
    assert machine.driver.entered == [77]
    machine.driver.statuses = [700] * attempts
    with pytest.raises(DriverError, match="launching pointwise failed with status 700"):
        host([x])


def test_several_devices_are_guarded() -> None:
    streams = FakeStreams(devices=2)
    streams.device = 1
    engine, _, _ = load(one_kernel(pointwise("a + 1")), streams=streams)
    engine.first(DEVICE)([torch.randn(1000)])
    host = engine.steady(DEVICE, lambda args: "elsewhere")
    # CPU tensors say device -1, so to this program they are on another device.
    assert host([torch.randn(1000)]) == "elsewhere"
