"""Kernels on one CUDA device: candidates compiled, one chosen with real arguments, loaded, ready to launch."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ferrite_runtime.bench import Bench
from ferrite_runtime.binary import Binary
from ferrite_runtime.choices import Choices
from ferrite_runtime.compilation import Compiler
from ferrite_runtime.config import Config
from ferrite_runtime.cuda_driver import Driver
from ferrite_runtime.devices import DeviceFacts
from ferrite_runtime.errors import (
    DriverError,
    KernelCompileError,
    NoValidVariant,
    OutOfResources,
    SpecError,
)
from ferrite_runtime.launch import MAX_PROGRAMS, LoadedKernel
from ferrite_runtime.policy import configs
from ferrite_runtime.records import Situation
from ferrite_runtime.spec import KernelSpec
from ferrite_runtime.triton_adapter import Job
from ferrite_runtime.tuning import (
    Budget,
    Candidate,
    choose_config,
    measurements_of,
    neighbours,
    situation_of,
)

_LOG = logging.getLogger("ferrite_runtime")


@dataclass(frozen=True, slots=True)
class Machine:
    """One device with everything that runs kernels on it; each part is a port with a fake for tests."""

    facts: DeviceFacts
    driver: Driver
    compiler: Compiler
    choices: Choices
    bench: Bench
    budget: Budget
    tune: str


class DeviceKernel:
    """A kernel on a device: compiles when made, chooses its config at the first launch, then only launches."""

    def __init__(
        self,
        spec: KernelSpec,
        machine: Machine,
        candidates: tuple[Config, ...],
        *,
        is_settled: bool = False,
        sizes: Mapping[str, int] | None = None,
        divisible: tuple[int, ...] = (),
    ) -> None:
        self.spec = spec
        self.machine = machine
        self.candidates = candidates
        self.is_settled = is_settled
        self.sizes = sizes
        self.divisible = divisible
        self.config: Config | None = None
        self._loaded: dict[tuple[Config, bool], LoadedKernel] = {}
        self._context = 0

    @classmethod
    def begin(
        cls,
        spec: KernelSpec,
        machine: Machine,
        sizes: Mapping[str, int] | None = None,
        divisible: tuple[int, ...] = (),
    ) -> DeviceKernel:
        """Returns the kernel with the compilation of its candidates started.

        Args:
            spec: the kernel.
            machine: the device.
            sizes: of the axes, by name, that it is for; the expected ones without it.
            divisible: positions of the size params that are multiples of 16.
        """
        if divisible and shipped_configs(spec, machine, sizes):
            divisible = ()  # libraries hold builds without that promise
        situation = situation_of(spec, machine.facts, sizes, divisible)
        known = machine.choices.pinned if machine.tune == "none" else machine.choices.recall
        remembered = known(situation)
        candidates = (remembered,) if remembered else candidate_configs(spec, machine, sizes)
        for config in candidates:
            machine.compiler.submit(Job(spec, config, machine.facts.target, divisible=divisible))
        return cls(spec, machine, candidates, is_settled=remembered is not None, sizes=sizes, divisible=divisible)

    # --- compiled forms ---------------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Waits for the first choice; raises `KernelCompileError` if it and all fallbacks fail to compile."""
        self._survivors(self.candidates[:1])

    def binary(self, config: Config, *, aligned: bool = True) -> Binary:
        """Returns the compiled form of a config, waiting for it.

        Raises:
            KernelCompileError: if it does not compile.
            OutOfResources: if the device cannot run it.
        """
        job = Job(self.spec, config, self.machine.facts.target, aligned, divisible=self.divisible)
        binary = self.machine.compiler.submit(job).result()
        available = self.machine.facts.shared_per_program
        if binary.shared > available:
            raise OutOfResources(self.spec.name, "shared memory bytes", binary.shared, available)
        if binary.scratch or binary.clusters != 1:
            raise KernelCompileError(self.spec.name, self.spec.origin, "it needs scratch memory or clusters")
        return binary

    def loaded(self, config: Config, *, aligned: bool = True) -> LoadedKernel:
        """Returns the kernel of a config, loaded on the current device."""
        key = (config, aligned)
        if key not in self._loaded:
            driver = self.machine.driver
            self._enter_context(driver)
            function = driver.load(self.binary(config, aligned=aligned), self.spec.name)
            self._loaded[key] = LoadedKernel(self.spec.name, self.spec.params, function, driver, self._context)
        return self._loaded[key]

    def _enter_context(self, driver: Driver) -> None:
        """Makes sure that this thread has a context: one that never called the CUDA runtime has none."""
        current = driver.context()
        if current == 0 and self._context != 0:
            driver.enter(self._context)
        self._context = self._context or current

    def _survivors(self, candidates: Sequence[Config]) -> list[Config]:
        """Returns the configs that compile and fit; where none does, one of the policy's others that does."""
        problems: list[str] = []
        found = [config for config in candidates if self._is_usable(config, problems)]
        if found:
            return found
        for config in configs(self.spec, self.machine.facts, "max", self.sizes):
            if config not in candidates and self._is_usable(config, problems):
                return [config]
        if len(set(problems)) == 1:
            self.binary(candidates[0])
        raise NoValidVariant(f"kernel {self.spec.name}: no config works:", problems)

    def _is_usable(self, config: Config, problems: list[str]) -> bool:
        try:
            self.binary(config)
        except (KernelCompileError, OutOfResources) as error:
            _LOG.info("config (%s) is out: %s", config, error)
            problems.append(str(error))
            return False
        return True

    # --- launches ---------------------------------------------------------------------------------------------------

    def programs(self, config: Config, arguments: Sequence[Any]) -> int:
        """Returns the number of programs of a launch.

        Raises:
            SpecError: if it is more than the hardware can count.
        """
        count = self.spec.programs(self._sizes(arguments), dict(config.blocks))
        if count > MAX_PROGRAMS:
            raise SpecError("grid", f"kernel {self.spec.name} would need {count} programs, {MAX_PROGRAMS} are possible")
        return count

    def _sizes(self, arguments: Sequence[Any]) -> dict[str, int]:
        return {p.name: value for p, value in zip(self.spec.params, arguments, strict=True) if p.role == "size"}

    def depths(self, config: Config, arguments: Sequence[Any]) -> tuple[int, int]:
        """Returns the numbers of programs of a launch along the second and third axis."""
        return (1, 1) if self.spec.is_flat else self.spec.depths(self._sizes(arguments), dict(config.blocks))

    def is_aligned(self, arguments: Sequence[Any]) -> bool:
        """Tells whether every address keeps what its param promises."""
        return not any(
            param.role == "tensor" and value & ((param.align or 1) - 1)
            for param, value in zip(self.spec.params, arguments, strict=True)
        )

    def launch(self, stream: int, arguments: Sequence[Any]) -> None:
        """Launches with the chosen config (the first choice, where none is chosen yet)."""
        config = self.config or self._survivors(self.candidates[:1])[0]
        is_aligned = self.is_aligned(arguments)
        if not is_aligned:
            config = self._config_without_promises(config)
        programs = self.programs(config, arguments)
        if programs > 0:
            loaded = self.loaded(config, aligned=is_aligned)
            loaded.launch(stream, programs, arguments, self.depths(config, arguments))

    def _config_without_promises(self, config: Config) -> Config:
        """Returns the config for arguments that break promises: of prebuilt kernels only the first has such a build."""
        library = self.machine.compiler.library
        job = Job(self.spec, config, self.machine.facts.target, aligned=False)
        if library is None or library.find(job) is not None:
            return config
        shipped = library.configs(self.spec, self.machine.facts.target)
        return shipped[0] if shipped else config

    def launch_first(self, stream: int, arguments: Sequence[Any], protect: Callable[[], Protection | None]) -> None:
        """Chooses the config, measuring with these arguments where that can pay off, and launches.

        Args:
            stream: the stream.
            arguments: one value per param.
            protect: saves what the kernel changes; returns None where that is impossible.
        """
        if self.config is None and self.programs(self.candidates[0], arguments) > 0:
            self._choose(stream, arguments, protect)
        self.launch(stream, arguments)

    def _choose(self, stream: int, arguments: Sequence[Any], protect: Callable[[], Protection | None]) -> None:
        found = self._survivors(self.candidates)
        if self.is_settled or self.machine.tune == "none":
            self.config = found[0]
        else:
            decide = functools.partial(self._decide, found, stream, arguments, protect)
            self.config = self.machine.choices.settle(self._situation(), decide)

    def _decide(
        self,
        found: list[Config],
        stream: int,
        arguments: Sequence[Any],
        protect: Callable[[], Protection | None],
    ) -> Config | None:
        """Returns the choice, measured where that can pay off; None where the next call may bring better arguments."""
        if not self._is_worth_measuring(found):
            return found[0]
        if not self.is_aligned(arguments):
            return None
        protection = protect()
        if protection is None:
            return found[0]
        try:
            return self._measure(found, stream, arguments)
        finally:
            protection.restore()

    def _is_worth_measuring(self, found: Sequence[Config]) -> bool:
        if self.machine.budget.is_spent():
            return False
        return len(found) > 1 or self.machine.tune == "max"

    def _measure(self, found: list[Config], stream: int, arguments: Sequence[Any]) -> Config:
        machine = self.machine
        choice = choose_config(self._ready(found, stream, arguments), machine.bench)
        if machine.tune == "max" and not machine.budget.is_spent():
            near = neighbours(self.spec, machine.facts, choice.config, self.sizes or self.spec.hint_sizes())
            for config in near:
                machine.compiler.submit(Job(self.spec, config, machine.facts.target, divisible=self.divisible))
            usable = [config for config in near if self._is_usable(config, [])]
            choice = choose_config(self._ready([choice.config, *usable], stream, arguments), machine.bench)
        if choice.times:
            machine.choices.add(measurements_of(self._situation(), choice, int(time.time())))
            _LOG.info("kernel %s: chose (%s) among %d", self.spec.name, choice.config, len(choice.times))
        return choice.config

    def _situation(self) -> Situation:
        return situation_of(self.spec, self.machine.facts, self.sizes, self.divisible)

    def _ready(self, found: Sequence[Config], stream: int, arguments: Sequence[Any]) -> list[Candidate]:
        candidates = []
        for config in found:
            try:
                kernel = self.loaded(config)
            except (DriverError, OutOfResources) as error:
                _LOG.info("config (%s) is out: %s", config, error)
                continue
            programs = self.programs(config, arguments)
            candidates.append(
                Candidate(
                    config,
                    kernel.function.local_bytes,
                    _launcher(kernel, stream, (programs, *self.depths(config, arguments)), tuple(arguments)),
                )
            )
        if not candidates:
            raise NoValidVariant(f"kernel {self.spec.name}: no compiled config loads on {self.machine.facts.name}")
        return candidates


def candidate_configs(spec: KernelSpec, machine: Machine, sizes: Mapping[str, int] | None = None) -> tuple[Config, ...]:
    """Returns the configs to try: those that a library has binaries of, and then, if asked for all, the policy's."""
    shipped = shipped_configs(spec, machine, sizes)
    if not shipped:
        return configs(spec, machine.facts, machine.tune, sizes)
    if machine.tune == "max" and machine.compiler.compiles():
        return tuple(dict.fromkeys((*shipped, *configs(spec, machine.facts, "max", sizes))))
    return shipped[:1] if machine.tune == "none" else shipped


def shipped_configs(spec: KernelSpec, machine: Machine, sizes: Mapping[str, int] | None = None) -> tuple[Config, ...]:
    """Returns the configs that a library has binaries of and that are right for these sizes of the axes.

    A tile that holds the whole fold axis has to be as long as that.
    """
    library = machine.compiler.library
    found = () if library is None else library.configs(spec, machine.facts.target)
    if sizes is None or spec.family != "persistent":
        return tuple(found)
    folds = [axis for axis in spec.axes if axis.kind == "fold" and axis.block not in spec.blocks]
    return tuple(config for config in found if all(config.block(axis.block) >= sizes[axis.name] for axis in folds))


def _launcher(
    kernel: LoadedKernel, stream: int, grid: tuple[int, int, int], arguments: tuple[Any, ...]
) -> Callable[[], None]:
    from ferrite_runtime.launch import LaunchSite

    site = LaunchSite(kernel.function, kernel.params, grid[0], grid[1:])
    site.config.stream = stream
    site.pack(site.buffer, 0, *arguments)
    return lambda: kernel.start(site)


@dataclass(frozen=True, slots=True)
class Protection:
    """Saved contents of what a measurement overwrites: (address, backup's address, bytes), and what keeps it alive."""

    saved: tuple[tuple[int, int, int], ...]
    keep: tuple[Any, ...]
    driver: Driver
    stream: int

    def restore(self) -> None:
        """Puts everything back, in the order of the stream."""
        for address, backup, size in self.saved:
            self.driver.copy(address, backup, size, self.stream)


def changed_params(spec: KernelSpec, owners: Sequence[Any]) -> list[int]:
    """Returns the positions of the params whose old contents a launch needs and overwrites.

    Args:
        spec: the kernel.
        owners: the tensor that each argument lies in, None for numbers; two params over one tensor make
            even a plain write a change.
    """
    read = {id(o) for p, o in zip(spec.params, owners, strict=True) if o is not None and p.access != "write"}
    return [
        position
        for position, (param, owner) in enumerate(zip(spec.params, owners, strict=True))
        if owner is not None
        and param.access != "read"
        and (param.access != "write" or param.name in spec.mutated or id(owner) in read)
    ]


def protect_arguments(
    spec: KernelSpec, arguments: Sequence[Any], owners: Sequence[Any], driver: Driver, stream: int
) -> Protection | None:
    """Saves what a measurement of ``spec`` would change; None where it must not be measured.

    Repeated runs of a kernel that changes integers may turn them into addresses out of bounds, so such a kernel is
    not measured; neither is one whose backup does not fit into memory.
    """
    import torch

    saved, keep = [], []
    for position in changed_params(spec, owners):
        if spec.params[position].dtype[0] in "iu":
            return None
        address, owner = arguments[position], owners[position]
        size = owner.data_ptr() + extent_bytes(owner) - address
        try:
            backup = torch.empty(max(1, size), dtype=torch.uint8, device=owner.device)
        except torch.OutOfMemoryError:
            return None
        driver.copy(backup.data_ptr(), address, size, stream)
        saved.append((address, backup.data_ptr(), size))
        keep.append(backup)
    return Protection(tuple(saved), tuple(keep), driver, stream)


def extent_bytes(tensor: Any) -> int:
    """Returns the distance in bytes from a tensor's first element to the end of its last."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int((last + 1) * tensor.element_size())
