"""A GPU that does nothing: programs compile, tune, load and launch as they do on an H200, on tensors of the host.

What launches is an empty C function, and every time that is measured is the same. Extern calls run on the host.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any


def empty_function() -> tuple[Any, int]:
    """Returns a C function that returns 0, as Python calls it and as its address."""
    function = ctypes.CDLL(None).pthread_condattr_destroy
    function.argtypes = [ctypes.c_void_p] * 4
    return function, ctypes.cast(function, ctypes.c_void_p).value or 0


class IdleDriver:
    """A driver that loads and launches nothing."""

    def __init__(self) -> None:
        self.launch, self._address = empty_function()
        self._handles = itertools.count(1)

    def load(self, binary: Any, name: str) -> Any:
        from ferrite_runtime.devices.cuda_driver import Function

        return Function(next(self._handles), 1, binary, binary.registers or 32, 0)

    def entry_points(self) -> tuple[int, int]:
        return self._address, self._address

    def graph_functions(self) -> bytes:
        return b""

    def fail(self, status: int, call: str) -> Exception:
        return RuntimeError(f"{call} failed with status {status}")

    def copy(self, to: int, source: int, size: int, stream: int) -> None:
        pass

    def context(self) -> int:
        return 77

    def enter(self, context: int) -> None:
        pass


class IdleMeter:
    """Runs what it is given, and says that it took a hundredth of a millisecond."""

    def sample(self, run: Callable[[], None], count: int, before: Callable[[], None] | None = None) -> list[float]:
        if before is not None:
            before()
        for _ in range(count):
            run()
        return [0.01] * count


@contextlib.contextmanager
def _stay(index: Any) -> Iterator[None]:
    yield


def idle_platform() -> Any:
    """Returns one device with one stream, where torch's devices are asked for."""
    from ferrite_runtime.devices.streams import Platform

    return Platform(lambda index: 0, lambda: 0, lambda: 1, _stay, lambda index: None, lambda: False)


def idle_machine(options: Any) -> Any:
    """Returns the machine: this process's compiler and store, and a driver that does nothing."""
    from ferrite_runtime.compilation.compiler import shared_compiler
    from ferrite_runtime.devices.descriptors import known_devices
    from ferrite_runtime.engines.cuda_engine import choose_choices
    from ferrite_runtime.engines.cuda_kernels import Machine
    from ferrite_runtime.tuning.kernel_tuning import Budget
    from ferrite_runtime.tuning.timing import SystemClock

    compiler = shared_compiler(options)
    return Machine(
        facts=known_devices()["h200"],
        driver=IdleDriver(),  # type: ignore[arg-type]
        compiler=compiler,
        choices=choose_choices(options, compiler),
        meter=IdleMeter(),
        budget=Budget.start(SystemClock(), options.tuning_seconds),
        tune=options.tune,
    )


def idle_engine(program: Any, options: Any, compiler: Any = None, origin: Any = None) -> Any:
    """Returns the engine for GPUs with a program for the host, its kernels compiling."""
    from ferrite_runtime.compilation.compiler import shared_compiler
    from ferrite_runtime.engines.cuda_engine import CudaEngine, choose_native, choose_products

    engine = CudaEngine(
        program,
        idle_platform(),
        lambda index: idle_machine(options),
        lambda: choose_native(options, shared_compiler(options)),
        functools.partial(choose_products, options),
    )
    engine.device_kernels(None)  # type: ignore[arg-type]  # a tensor of the host has no device index
    return engine


def install() -> None:
    """Makes graphs on the host compile for the idle GPU from now on, in this process."""
    import ferrite_torch.backend
    import ferrite_torch.cache.environment
    import ferrite_torch.devices.targets
    from ferrite_runtime import warm_up
    from ferrite_runtime.devices.descriptors import known_devices
    from ferrite_runtime.loading import loaded_program
    from ferrite_torch.cache.artifact_loading import runtime_options
    from ferrite_torch.devices.facts import described_facts

    facts = described_facts(known_devices()["h200"])
    for asking in (ferrite_torch.devices.targets, ferrite_torch.cache.environment):
        asking.device_facts = lambda device: facts
    loaded_program.choose_engine = idle_engine
    ferrite_torch.backend._warm_up = lambda module, inputs, options: warm_up(runtime_options(options))
