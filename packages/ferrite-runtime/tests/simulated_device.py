"""A GPU that is not there: configs with known times, noise, faults and hangs, on a clock that only it moves."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence

from ferrite_runtime.errors import FerriteRuntimeError, KernelCompileError, LaunchFailed
from ferrite_runtime.formats.config import Config
from ferrite_runtime.policies.resources import Usage
from runtime_fakes import FakeClock

HANG_SECONDS = 20.0


class SimulatedDevice:
    """A workbench.

    Args:
        cost: the true time of a config in milliseconds.
        noise: standard deviation of a sample, relative; one in twenty is besides up to twice as slow.
        seed: of the noise.
        drift: by how much everything gets slower with every second.
        broken: configs that do not compile.
        usages: what compiled configs use.
        faults: configs whose launches fail, with the number of samples that go well before.
        hangs: configs whose launches do not end.
    """

    def __init__(
        self,
        cost: Callable[[Config], float],
        *,
        noise: float = 0.0,
        seed: int = 0,
        drift: float = 0.0,
        broken: Collection[Config] = (),
        usages: Mapping[Config, Usage] | None = None,
        faults: Mapping[Config, int] | None = None,
        hangs: Collection[Config] = (),
    ) -> None:
        self.cost = cost
        self.noise = noise
        self.drift = drift
        self.broken = broken
        self.usages = usages or {}
        self.faults = dict(faults or {})
        self.hangs = hangs
        self.clock = FakeClock()
        self.begun: list[Config] = []
        self.samples: dict[Config, int] = {}
        self.turns: list[Config] = []
        self._chance = random.Random(seed)

    def begin(self, configs: Sequence[Config]) -> None:
        self.begun += configs

    def examine(self, config: Config) -> Usage:
        assert config in self.begun, "compiled one by one"
        self.clock.time += 0.01
        if config in self.broken:
            raise KernelCompileError("k", (), "no such instruction")
        return self.usages.get(config, Usage(32, 0, 0))

    def sample(self, config: Config, count: int) -> list[float]:
        self.turns.append(config)
        if config in self.hangs:
            self.clock.time += HANG_SECONDS
            raise LaunchFailed("a launch did not end within 20 s")
        times = []
        for _ in range(count):
            self._fail_if_due(config)
            self.samples[config] = self.samples.get(config, 0) + 1
            factor = 1 + abs(self._chance.gauss(0, self.noise)) + self.drift * self.clock.time
            if self.noise and self._chance.random() < 0.05:
                factor *= 1 + self._chance.random()
            times.append(self.cost(config) * factor)
            self.clock.time += times[-1] / 1e3
        return times

    def _fail_if_due(self, config: Config) -> None:
        if config in self.faults:
            self.faults[config] -= 1
            if self.faults[config] < 0:
                error: FerriteRuntimeError = LaunchFailed("an illegal memory access was encountered")
                raise error
