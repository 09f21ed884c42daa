"""Stand-ins for a GPU: a pool that compiles nothing and a driver that interprets what it is told to launch."""

from __future__ import annotations

import contextlib
import ctypes
import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

from fake_graphs import FakeGraphs
from ferrite_runtime.compilation.compiler import Compiler
from ferrite_runtime.compilation.triton_adapter import Job
from ferrite_runtime.devices.cuda_driver import Function, LaunchConfig
from ferrite_runtime.devices.descriptors import known_devices
from ferrite_runtime.devices.streams import Platform
from ferrite_runtime.engines.cuda_kernels import Machine
from ferrite_runtime.errors import DriverError, KernelCompileError
from ferrite_runtime.formats.binary import Binary
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.interpreter.runner import interpret
from ferrite_runtime.kernel_source.jitted import choose_constants, load_function
from ferrite_runtime.store.interface import MemoryStore
from ferrite_runtime.tuning.kernel_tuning import Budget
from ferrite_runtime.tuning.known_configs import Choices

C_TYPES = {
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "f32": ctypes.c_float,
    "f64": ctypes.c_double,
    "bool": ctypes.c_bool,
}


def content_of(binary: Binary) -> dict[str, Any]:
    """What a fake binary says of itself, behind the headers that the runtime reads."""
    return json.loads(binary.code[binary.code.index(b'{"') :])


class FakePool:
    """Answers every job at once with a binary that says which job it was; ``shape`` may change or refuse it."""

    def __init__(self, shape: Callable[[Job, Binary], Binary] = lambda job, binary: binary) -> None:
        self.jobs: list[Job] = []
        self.shape = shape

    def submit(self, job: Job, seconds: float = 300.0) -> Future[Binary]:
        self.jobs.append(job)
        future: Future[Binary] = Future()
        code = json.dumps({"spec": job.spec.to_mapping(), "config": job.config.to_mapping(), "aligned": job.aligned})
        binary = Binary(code.encode(), job.spec.name, job.config.num_warps, 32, 0, hidden=2)
        try:
            future.set_result(self.shape(job, binary))
        except KernelCompileError as error:
            future.set_exception(error)
        return future


class FakeDriver:
    """Launches by interpreting; remembers what was launched. ``statuses`` are returned by the next launches."""

    def __init__(self) -> None:
        self.loads: list[dict[str, Any]] = []
        self.launches: list[tuple[str, Config, bool, int, int]] = []
        self.statuses: list[int] = []
        self.entered: list[int] = []
        self.local_bytes: dict[Config, int] = {}
        self.resident = 4
        self.native: tuple[Any, Any] | None = None
        self.graphs: FakeGraphs | None = None

    def load(self, binary: Binary, name: str) -> Function:
        self.loads.append(content_of(binary))
        config = Config.from_mapping(self.loads[-1]["config"])
        return Function(len(self.loads), 1, binary, 32, self.local_bytes.get(config, 0), self.resident)

    def launch(self, config: Any, function: Any, params: Any, extra: None) -> int:
        if self.statuses and (status := self.statuses.pop(0)):
            return status
        launch = LaunchConfig.from_address(config.value)
        record = self.loads[function.value - 1]
        spec = KernelSpec.from_mapping(record["spec"])
        chosen = Config.from_mapping(record["config"])
        count = len(spec.params) + 2
        pointers = (ctypes.c_void_p * count).from_address(params.value)
        arguments = []
        for param, pointer in zip(spec.params, pointers[:-2], strict=True):
            kind = ctypes.c_uint64 if param.role == "tensor" else C_TYPES[param.dtype]
            arguments.append(kind.from_address(pointer).value)
        assert [ctypes.c_uint64.from_address(pointer).value for pointer in pointers[-2:]] == [0, 0]
        self.launches.append((spec.name, chosen, record["aligned"], launch.grid_x, launch.stream or 0))
        fn = load_function(spec)
        constants, depths = choose_constants(spec, fn, dict(chosen.blocks)), (launch.grid_y, launch.grid_z)
        interpret(spec, fn, constants, arguments, launch.grid_x, depths)
        return 0

    def entry_points(self) -> tuple[int, int]:
        if self.native is None:
            self.native = _native_functions(self)
        return tuple(int(ctypes.cast(function, ctypes.c_void_p).value or 0) for function in self.native)

    def graph_functions(self) -> bytes:
        return b"" if self.graphs is None else self.graphs.functions

    def sizes(self, function: int) -> list[int]:
        """Returns the bytes of each argument of a loaded function."""
        spec = KernelSpec.from_mapping(self.loads[function - 1]["spec"])
        return [8 if param.role == "tensor" else ctypes.sizeof(C_TYPES[param.dtype]) for param in spec.params] + [8, 8]

    def fail(self, status: int, call: str) -> DriverError:
        return DriverError(f"{call} failed with status {status}")

    def copy(self, to: int, source: int, size: int, stream: int) -> None:
        ctypes.memmove(to, source, size)

    def context(self) -> int:
        return 77

    def enter(self, context: int) -> None:
        self.entered.append(context)


def graph_driver() -> FakeDriver:
    """Returns a fake driver that has graphs."""
    driver = FakeDriver()
    driver.graphs = FakeGraphs(lambda *pointers: driver.launch(*map(ctypes.c_void_p, pointers)), driver.sizes)
    return driver


class FakeClock:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time


class FakeMeter:
    """Runs each function once a turn and answers with prepared times, in the order in which functions are first met."""

    def __init__(self, times: Sequence[float] = ()) -> None:
        self.times = list(times)
        self.calls = 0
        self.known: list[Callable[[], None]] = []

    def sample(self, run: Callable[[], None], count: int, before: Callable[[], None] | None = None) -> list[float]:
        self.calls += 1
        if before is not None:
            before()
        run()
        if run not in self.known:
            self.known.append(run)
        position = self.known.index(run)
        return [self.times[position] if position < len(self.times) else float(position + 1)] * count


def fake_machine(**parts: Any) -> Machine:
    store = parts.get("store") or MemoryStore()
    return Machine(
        facts=parts.get("facts") or known_devices()["h200"],
        driver=parts.get("driver") or FakeDriver(),
        compiler=parts.get("compiler") or Compiler(parts.get("pool") or FakePool(), store),
        choices=parts.get("choices") or Choices(store),
        meter=parts.get("meter") or FakeMeter(),
        budget=Budget.start(parts.get("clock") or FakeClock(), 30.0),
        tune=parts.get("tune", "default"),
        bench_apart=parts.get("bench_apart"),
        uses_pdl=parts.get("uses_pdl", False),
    )


class FakeBoard:
    """Torch's key-value store, in one process."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.changed = threading.Condition()

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        with self.changed:
            if self.values.get(key, "") == expected:
                self.values[key] = desired
                self.changed.notify_all()
            return self.values[key].encode()

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: all(key in self.values for key in keys), timeout.total_seconds()):
                raise RuntimeError("wait timeout")

    def get(self, key: str) -> bytes:
        return self.values[key].encode()


class FakeStreams:
    """One device whose current stream can be set."""

    def __init__(self, devices: int = 1) -> None:
        self.stream = 0
        self.device = 0
        self.is_capturing = False
        self.devices = devices

    def platform(self) -> Platform:
        @contextlib.contextmanager
        def on_device(index: int) -> Any:
            before, self.device = self.device, index
            yield
            self.device = before

        return Platform(
            lambda index: self.stream,
            lambda: self.device,
            lambda: self.devices,
            on_device,
            lambda index: None,
            lambda: self.is_capturing,
        )


LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
ENTER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


def _native_functions(driver: FakeDriver) -> tuple[Any, Any]:
    """Returns C functions that call a fake driver."""

    def launch(config: int, function: int, params: int, extra: None) -> int:
        return driver.launch(ctypes.c_void_p(config), ctypes.c_void_p(function), ctypes.c_void_p(params), extra)

    def enter(context: int) -> int:
        driver.enter(context)
        return 0

    return LAUNCH(launch), ENTER(enter)
