"""A kernel on its device as a workbench: its configs compiled by the pool, and timed with a call's own arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ferrite_runtime.formats.binary import Binary
from ferrite_runtime.formats.config import Config
from ferrite_runtime.launching.prepared_launch import LaunchSite, LoadedKernel
from ferrite_runtime.policies.resources import Usage, usage_of
from ferrite_runtime.tuning.timing import Meter, Run


class Compiled(Protocol):
    """A kernel that can be had in several configs, compiled and loaded."""

    def submit(self, configs: Sequence[Config]) -> None:
        """Starts compiling configs."""

    def binary(self, config: Config, *, aligned: bool = True) -> Binary:
        """Returns the compiled form of a config, waiting for it."""

    def loaded(self, config: Config, *, aligned: bool = True) -> LoadedKernel:
        """Returns the kernel of a config, loaded on the current device."""

    def programs(self, config: Config, arguments: Sequence[Any]) -> int:
        """Returns the number of programs of a launch."""

    def depths(self, config: Config, arguments: Sequence[Any]) -> tuple[int, int]:
        """Returns the numbers of programs of a launch along the second and third axis."""


class KernelBench:
    """Times a kernel in this process; ``restore`` runs before each launch, to put back what it changes."""

    def __init__(
        self, kernel: Compiled, meter: Meter, stream: int, arguments: Sequence[Any], restore: Run | None = None
    ) -> None:
        self._kernel = kernel
        self._meter = meter
        self._stream = stream
        self._arguments = tuple(arguments)
        self._restore = restore
        self._runs: dict[Config, Run] = {}

    def begin(self, configs: Sequence[Config]) -> None:
        """Starts compiling configs."""
        self._kernel.submit(configs)

    def examine(self, config: Config) -> Usage:
        """Returns what a compiled config uses; what its binary does not say, the driver does once it is loaded."""
        usage = usage_of(self._kernel.binary(config))
        if usage.local_bytes is not None:
            return usage
        function = self._kernel.loaded(config).function
        return Usage(function.registers, function.local_bytes, usage.shared)

    def sample(self, config: Config, count: int) -> list[float]:
        """Returns the times of so many launches in milliseconds."""
        if config not in self._runs:
            self._runs[config] = self._launcher(config)
        return self._meter.sample(self._runs[config], count, self._restore)

    def _launcher(self, config: Config) -> Run:
        kernel = self._kernel
        loaded = kernel.loaded(config)
        programs = kernel.programs(config, self._arguments)
        depths = kernel.depths(config, self._arguments)
        site = LaunchSite(loaded.function, loaded.params, programs, depths)
        site.config.stream = self._stream
        site.pack(site.buffer, 0, *self._arguments)
        return lambda: loaded.start(site)
