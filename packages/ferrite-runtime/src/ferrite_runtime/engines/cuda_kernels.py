"""Kernels on one CUDA device: candidates compiled, one chosen with real arguments, loaded, ready to launch."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from ferrite_runtime.compilation.compiler import Compiler
from ferrite_runtime.compilation.triton_adapter import Job
from ferrite_runtime.devices.cuda_driver import Driver
from ferrite_runtime.devices.descriptors import DeviceFacts
from ferrite_runtime.errors import (
    KernelCompileError,
    LaunchFailed,
    NoValidVariant,
    OutOfResources,
    SpecError,
    compile_failure,
)
from ferrite_runtime.formats.binary import Binary
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.divisors import Divisors
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.measurements import Situation
from ferrite_runtime.launching.dependent_launch import least_pdl_programs
from ferrite_runtime.launching.prepared_launch import MAX_PROGRAMS, LoadedKernel
from ferrite_runtime.policies.blocks import misfit
from ferrite_runtime.policies.candidates import configs, launch_bytes, roomier_configs, wider_configs
from ferrite_runtime.policies.resources import check_usage, scratch_problem
from ferrite_runtime.policies.thresholds import REGISTERS
from ferrite_runtime.tuning.kernel_tuning import (
    EFFORTS,
    Budget,
    Effort,
    Listener,
    Outcome,
    Task,
    Workbench,
    ignore_event,
    measurements_of,
    situation_of,
    tune_kernel,
)
from ferrite_runtime.tuning.known_configs import Choices
from ferrite_runtime.tuning.protection import protect_arguments
from ferrite_runtime.tuning.timing import Meter
from ferrite_runtime.tuning.workbench import KernelBench

_LOG = logging.getLogger("ferrite_runtime")


@dataclass(frozen=True, slots=True)
class Machine:
    """One device with everything that runs kernels on it; each part is a port with a fake for tests.

    Attributes:
        facts: about the device.
        driver: loads and launches.
        compiler: makes binaries.
        choices: what is known of configs.
        meter: times launches.
        budget: the time that may be spent measuring.
        tune: name of the effort.
        listen: is told how tuning goes.
        bench_apart: makes a workbench in another process, for a kernel, its arguments and their tensors; None where
            kernels are measured in this one.
        is_forced: whether to measure what is known already.
        uses_pdl: whether kernels that can are started before those before them have ended, where that pays.
        tuned: what was tuned since the machine was made, by the key of its situation.
    """

    facts: DeviceFacts
    driver: Driver
    compiler: Compiler
    choices: Choices
    meter: Meter
    budget: Budget
    tune: str
    listen: Listener = ignore_event
    bench_apart: Callable[[DeviceKernel, Sequence[Any], Sequence[Any]], AbstractContextManager[Workbench]] | None = None
    is_forced: bool = False
    uses_pdl: bool = False
    tuned: dict[str, Outcome] = field(default_factory=dict)

    @property
    def effort(self) -> Effort:
        """How far tuning goes."""
        return EFFORTS[self.tune]


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
        divisors: Divisors = (),
    ) -> None:
        self.spec = spec
        self.machine = machine
        self.candidates = candidates
        self.is_settled = is_settled
        self.sizes = sizes
        self.divisors = divisors
        self.config: Config | None = None
        self._loaded: dict[tuple[Config, bool], LoadedKernel] = {}
        self._context = 0

    @classmethod
    def begin(
        cls,
        spec: KernelSpec,
        machine: Machine,
        sizes: Mapping[str, int] | None = None,
        divisors: Divisors = (),
    ) -> DeviceKernel:
        """Returns the kernel with the compilation of its candidates started: see `prepare` and `submit`."""
        kernel = cls.prepare(spec, machine, sizes, divisors)
        kernel.submit(kernel.candidates)
        return kernel

    @classmethod
    def prepare(
        cls,
        spec: KernelSpec,
        machine: Machine,
        sizes: Mapping[str, int] | None = None,
        divisors: Divisors = (),
    ) -> DeviceKernel:
        """Returns the kernel with its candidates chosen, none of which compiles yet.

        Args:
            spec: the kernel.
            machine: the device.
            sizes: of the axes, by name, that it is for; the expected ones without it.
            divisors: powers of two that divide size params, by position.
        """
        if divisors and shipped_configs(spec, machine, sizes):
            divisors = ()  # libraries hold builds without that promise
        candidates = candidate_configs(spec, machine, sizes)
        situation = situation_of(spec, machine.facts, sizes, divisors)
        remembered = known_config(situation, machine, candidates)
        if remembered is not None and (problem := misfit(spec, remembered, sizes or spec.hint_sizes())):
            _refuse_config(remembered, problem, situation, machine)
            remembered = None
        return cls(
            spec,
            machine,
            candidates if remembered is None else (remembered,),
            is_settled=remembered is not None,
            sizes=sizes,
            divisors=divisors,
        )

    def submit(self, configs: Sequence[Config]) -> None:
        """Starts compiling configs; of the only candidate that spills also what is taken instead."""
        for config in configs:
            begun = self._begun(config)
            if self._is_unmeasured and config == self.candidates[0]:
                begun.add_done_callback(functools.partial(self._submit_roomier, config, None))

    @property
    def _is_unmeasured(self) -> bool:
        """Whether the first launch has one config to choose, of which nothing is known."""
        return not self.is_settled and len(self.candidates) == 1

    def _submit_roomier(self, config: Config, others: Sequence[Config] | None, done: Future[Binary]) -> None:
        """Starts compiling the next of the others if a config spills, or one of them fails; the first one finds them.

        This happens as soon as that is known, so that kernels whose first launches are far apart try theirs together.
        """
        is_failed = done.cancelled() or done.exception() is not None
        if (is_failed and others is None) or (not is_failed and not _spills(done.result())):
            return
        left = self._roomier(config, done.result()) if others is None else others
        if left:
            following = functools.partial(self._submit_roomier, left[0], left[1:])
            self._begun(left[0]).add_done_callback(following)

    def _roomier(self, config: Config, binary: Binary) -> tuple[Config, ...]:
        """Returns the configs to try instead of one that spills."""
        if not self.machine.compiler.compiles():
            return ()
        found = roomier_configs(self.spec, self.machine.facts, config, binary.local_bytes or 0, self.sizes)
        return found[: REGISTERS.spilled_tries]

    def jobs(self, configs: Sequence[Config]) -> list[Job]:
        """Returns what the compiler is given for configs."""
        return [self._job(config) for config in configs]

    def _job(self, config: Config, *, aligned: bool = True) -> Job:
        return Job(self.spec, config, self.machine.facts.target, aligned, divisors=self.divisors)

    def _begun(self, config: Config, *, aligned: bool = True) -> Future[Binary]:
        """Returns the future of a config's binary, its compilation started if it was not."""
        return self.machine.compiler.submit(self._job(config, aligned=aligned))

    # --- compiled forms ---------------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Waits for all that the first launch chooses from; raises `KernelCompileError` if nothing compiles."""
        self._choosable()

    def is_ready(self) -> bool:
        """Tells whether all that the first launch chooses from is compiled, or has failed to."""
        return all(self._begun(config).done() for config in self.candidates)

    def binary(self, config: Config, *, aligned: bool = True) -> Binary:
        """Returns the compiled form of a config, waiting for it.

        Raises:
            KernelCompileError: if it does not compile.
            OutOfResources: if the device cannot run it.
        """
        binary = self._begun(config, aligned=aligned).result()
        check_usage(self.spec.name, binary, self.machine.facts)
        problem = scratch_problem(self.spec, binary, dict(config.blocks), aligned=aligned)
        if binary.clusters != 1:
            problem = "it needs clusters"
        if problem is not None:
            raise compile_failure(self.spec, problem)
        return binary

    def loaded(self, config: Config, *, aligned: bool = True) -> LoadedKernel:
        """Returns the kernel of a config, loaded on the current device."""
        key = (config, aligned)
        if key not in self._loaded:
            driver = self.machine.driver
            self._enter_context(driver)
            function = driver.load(self.binary(config, aligned=aligned), self.spec.name)
            if self.machine.uses_pdl and function.binary.uses_pdl:
                facts = self.machine.facts
                moved = launch_bytes(self.spec, facts, self.sizes)
                least = least_pdl_programs(self.spec, function.resident, facts.multiprocessors, moved)
                function = replace(function, pdl_from=least)
            self._loaded[key] = LoadedKernel(self.spec.name, self.spec.params, function, driver, self._context)
        return self._loaded[key]

    def _enter_context(self, driver: Driver) -> None:
        """Makes sure that this thread has a context: one that never called the CUDA runtime has none."""
        current = driver.context()
        if current == 0 and self._context != 0:
            driver.enter(self._context)
        self._context = self._context or current

    def _choosable(self) -> list[Config]:
        """Returns the configs that the first launch chooses from, waiting for them."""
        found = self._survivors(self.candidates)
        if self._is_unmeasured:
            return [self._or_one_that_fits_registers(found[0])]
        return found

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

    def _or_one_that_fits_registers(self, config: Config) -> Config:
        """Returns a config, unless it spills and one of a few others does not (`roomier_configs`).

        Nothing else would find that out where nothing is measured.
        """
        binary = self.binary(config)
        others = self._roomier(config, binary) if _spills(binary) else ()
        problems: list[str] = []
        return next((c for c in others if self._is_usable(c, problems) and not _spills(self.binary(c))), config)

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

    def launch_first(self, stream: int, arguments: Sequence[Any], owners: Sequence[Any]) -> None:
        """Chooses the config, measuring with these arguments where that can pay off, and launches.

        Args:
            stream: the stream.
            arguments: one value per param.
            owners: the tensor that each argument lies in, None for numbers.
        """
        if self.config is None and self.programs(self.candidates[0], arguments) > 0:
            self._choose(stream, arguments, owners)
        self.launch(stream, arguments)

    def _choose(self, stream: int, arguments: Sequence[Any], owners: Sequence[Any]) -> None:
        found = self._choosable()
        if self.is_settled or not self.machine.effort.measures:
            self.config = found[0]
            return
        choices, situation = self.machine.choices, self.situation()
        decide = functools.partial(self._decide, found, stream, arguments, owners)
        # What was measured with less effort is known, but not enough; ranks that have to agree settle it in any case.
        anew = choices.agreement is None and choices.recall(situation) is not None
        self.config = decide() if anew else choices.settle(situation, decide)

    def _decide(
        self, found: list[Config], stream: int, arguments: Sequence[Any], owners: Sequence[Any]
    ) -> Config | None:
        """Returns the choice, measured where that can pay off; None where the next call may bring better arguments."""
        if not self._is_worth_measuring(found):
            return found[0]
        if not self.is_aligned(arguments):
            return None
        if self.machine.bench_apart is not None:
            try:
                with self.machine.bench_apart(self, arguments, owners) as bench:
                    return self._measure(found, bench)
            except (OutOfResources, LaunchFailed) as error:
                _LOG.warning("kernel %s is measured in this process: %s", self.spec.name, error)
        protection = protect_arguments(self.spec, arguments, owners, self.machine.driver, stream)
        if protection is None:
            return found[0]
        restore = protection.restore if protection.each else None
        try:
            return self._measure(found, KernelBench(self, self.machine.meter, stream, arguments, restore))
        finally:
            protection.restore()

    def _is_worth_measuring(self, found: Sequence[Config]) -> bool:
        if self.machine.budget.is_spent():
            return False
        return len(found) > 1 or self.machine.effort.descends

    def _measure(self, found: Sequence[Config], bench: Workbench) -> Config:
        machine, sizes = self.machine, self.sizes or self.spec.hint_sizes()
        wider: tuple[Config, ...] = ()
        if machine.effort.descends and machine.compiler.compiles():
            wider = wider_configs(self.spec, machine.facts, sizes)
        size = launch_bytes(self.spec, machine.facts, sizes)
        bound = None if size is None else size / machine.facts.bandwidth * 1e3
        effort = machine.effort if machine.compiler.compiles() else replace(machine.effort, descends=False)
        task = Task(self.spec, machine.facts, sizes, (tuple(found), wider), effort, bound)
        outcome = tune_kernel(task, bench, machine.budget, machine.listen)
        situation = self.situation()
        machine.tuned[situation.key] = outcome
        machine.choices.add(measurements_of(situation, outcome, int(time.time())))
        return outcome.config

    def reference(self) -> Config:
        """Returns the config that runs without tuning."""
        return candidate_configs(self.spec, self.machine, self.sizes)[0]

    def situation(self) -> Situation:
        """Returns what the kernel's choice depends on."""
        return situation_of(self.spec, self.machine.facts, self.sizes, self.divisors)


def _spills(binary: Binary) -> bool:
    """Tells whether a thread has registers or a stack in memory, as far as a binary says."""
    return (binary.local_bytes or 0) > REGISTERS.spilled_bytes


def known_config(situation: Situation, machine: Machine, candidates: Sequence[Config]) -> Config | None:
    """Returns the config that is known to be a kernel's choice, None where it has to be found out.

    A choice among fewer configs than are to be measured now is not enough.
    """
    pinned = machine.choices.pinned(situation)
    if pinned is not None or not machine.effort.measures:
        return pinned
    if situation.key in machine.tuned:
        return machine.tuned[situation.key].config
    known = None if machine.is_forced else machine.choices.recall(situation)
    if known is None or not machine.effort.everything:
        return known
    # A choice may also be kept that rests on nothing: the only config, or what there was time for.
    measured = {record.config for record in machine.choices.measured(situation) if record.runs or record.failure}
    return known if measured.issuperset(candidates) else None


def _refuse_config(config: Config, problem: str, situation: Situation, machine: Machine) -> None:
    """Logs that a remembered config does not fit; one that people pinned is an error of theirs, which they are told."""
    text = f"kernel {situation.name} ({situation.kernel[:12]}) cannot run with the config ({config}): {problem}"
    if machine.choices.pinned(situation) is not None:
        raise SpecError("pins", text)
    _LOG.warning("%s; it is chosen anew", text)


def candidate_configs(spec: KernelSpec, machine: Machine, sizes: Mapping[str, int] | None = None) -> tuple[Config, ...]:
    """Returns the configs to try: those that a library has binaries of, and then, if asked for all, the policy's."""
    shipped = shipped_configs(spec, machine, sizes)
    if not shipped:
        return configs(spec, machine.facts, machine.tune, sizes)
    if machine.effort.everything and machine.compiler.compiles():
        return tuple(dict.fromkeys((*shipped, *configs(spec, machine.facts, machine.tune, sizes))))
    return shipped if machine.effort.measures else shipped[:1]


def shipped_configs(spec: KernelSpec, machine: Machine, sizes: Mapping[str, int] | None = None) -> tuple[Config, ...]:
    """Returns the configs that a library has binaries of and that are right for these sizes of the axes.

    A tile that holds the whole reduction axis has to be as long as that.
    """
    library = machine.compiler.library
    found = () if library is None else library.configs(spec, machine.facts.target)
    if sizes is None:
        return tuple(found)

    def is_right(config: Config) -> bool:
        blocks = dict(config.blocks)
        return all(
            _holds_rows(part, spec.of_part(blocks, number), spec.of_part(sizes, number))
            for number, part in enumerate(spec.alone)
        )

    return tuple(filter(is_right, found))


def _holds_rows(spec: KernelSpec, blocks: Mapping[str, int], sizes: Mapping[str, int]) -> bool:
    """Returns whether a tile holds the whole reduction axis, where a kernel needs that."""
    if not spec.known_form.holds_rows:
        return True
    reductions = [axis for axis in spec.axes if axis.kind == "reduction" and axis.block not in spec.blocks]
    return all(blocks.get(axis.block, 1) >= sizes[axis.name] for axis in reductions)
