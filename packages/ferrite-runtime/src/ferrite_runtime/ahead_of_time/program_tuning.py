"""Tuning whole programs, bundles and kernels: what `ferrite_runtime.tune` and ``ferrite-runtime tune`` do."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ferrite_runtime.ahead_of_time.example_inputs import make_arguments, make_inputs
from ferrite_runtime.ahead_of_time.isolation import Isolation
from ferrite_runtime.bundles.bundle import Bundle
from ferrite_runtime.bundles.prebuilt import BundleLibrary
from ferrite_runtime.compilation.compiler import Compiler, choose_store
from ferrite_runtime.compilation.worker_pool import shared_pool
from ferrite_runtime.devices.streams import Platform, torch_platform
from ferrite_runtime.engines.cuda_engine import AnyKernel, CudaEngine, make_machine
from ferrite_runtime.engines.cuda_kernels import DeviceKernel, Machine
from ferrite_runtime.errors import (
    DeviceUnavailable,
    FerriteRuntimeError,
    InputError,
    KernelRunError,
    OptionError,
)
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.measurements import Measurement, merge
from ferrite_runtime.formats.program import Program
from ferrite_runtime.host.launch_text import Site
from ferrite_runtime.host.operators import check_operators, names_of
from ferrite_runtime.kernel_source.provenance import HERE, Provenance
from ferrite_runtime.loading.loaded_program import confined
from ferrite_runtime.loading.single_kernel import Kernel, check_arguments
from ferrite_runtime.process.options import Options
from ferrite_runtime.tuning.kernel_tuning import EFFORTS, Listener, Outcome, ignore_event

Visit = Callable[[Any, AnyKernel, int, tuple[Any, ...], tuple[Any, ...]], None]
Tunable = Bundle | Program | KernelSpec | Path | str | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TunedKernel:
    """What became of one kernel, for one bucket of sizes.

    Attributes:
        name: its name.
        id: its identity.
        sizes: of its axes.
        state: ``measured``, ``known`` (measured before), ``settled`` (nothing to choose or not worth it), ``skipped``.
        config: the choice, None if it was skipped.
        ms: the choice's median time, None where it was not measured.
        reference_ms: that of the config that runs without tuning.
        outcome: everything that was measured now.
        reason: why it was skipped.
    """

    name: str
    id: str
    sizes: Mapping[str, int]
    state: str
    config: str | None = None
    ms: float | None = None
    reference_ms: float | None = None
    outcome: Outcome | None = None
    reason: str = ""

    @property
    def speedup(self) -> float | None:
        """How many times faster the choice is than the reference."""
        return self.reference_ms / self.ms if self.ms and self.reference_ms else None

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form."""
        measured = self.outcome.measured if self.outcome else 0
        return {
            "kernel": self.name,
            "id": self.id,
            "sizes": dict(self.sizes),
            "state": self.state,
            "config": self.config,
            "ms": self.ms,
            "reference_ms": self.reference_ms,
            "measured": measured,
            "ended": self.outcome.ended if self.outcome else None,
            "seconds": self.outcome.seconds if self.outcome else 0.0,
            "reason": self.reason,
            "trials": [trial.to_mapping() for trial in self.outcome.trials] if self.outcome else [],
        }


@dataclass(frozen=True, slots=True)
class TuningReport:
    """What tuning gave: a row per kernel, the records, and the seconds that it took."""

    device: str
    kernels: tuple[TunedKernel, ...]
    records: tuple[Measurement, ...]
    seconds: float

    @property
    def measured(self) -> int:
        """Number of configs that were measured now."""
        return sum(row.outcome.measured for row in self.kernels if row.outcome)

    @property
    def skipped(self) -> tuple[TunedKernel, ...]:
        """The kernels that could not be tuned."""
        return tuple(row for row in self.kernels if row.state == "skipped")

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form."""
        rows = [row.to_mapping() for row in self.kernels]
        return {"device": self.device, "seconds": self.seconds, "measured": self.measured, "kernels": rows}


def tune(  # noqa: PLR0913  # each is the caller's to say
    what: Tunable,
    inputs: Mapping[str, Sequence[Any]] | Sequence[Any] | None = None,
    *,
    effort: str = "full",
    seconds: float = 60.0,
    sizes: Mapping[str, int] | None = None,
    elements: int | None = None,
    again: bool = False,
    isolate: bool = False,
    options: Options | None = None,
    listen: Listener = ignore_event,
    operators: Iterable[Any] = (),
    trust: bool = False,
) -> TuningReport:
    """Finds the fastest configs of all kernels of a bundle, a program or a kernel on the current GPU, and keeps them.

    Whatever runs these kernels with the same store afterwards takes them, and measures nothing.

    Args:
        what: a bundle or its path; a program or a kernel, or its JSON mapping.
        inputs: of the program or kernel; for a bundle, of its programs and kernels by name. Made up where they are not
            given; kernels outside of a program then need ``sizes``.
        effort: ``"quick"`` measures the candidates of every kernel, ``"full"`` wider tables and the neighbours of the
            best as well, ``"default"`` only what running would measure, ``"none"`` nothing.
        seconds: limit on the time that is spent; what is best by then is kept.
        sizes: values of sizes that are open, by name, for inputs that are made up.
        elements: of every tensor that is made up for a kernel outside of a program.
        again: whether to measure what is known already.
        isolate: whether to measure in a process of its own: a candidate that faults or hangs then takes nothing along.
            That process makes up its own contents for tensors of floats.
        options: how kernels are compiled, and where the store is.
        listen: is told how it goes, one JSON object at a time.
        operators: library operators that programs of a bundle may call beside torch's own: see `load`.
        trust: whether the kernel text of a bundle may be compiled here that is not plainly a kernel's: see `load`.

    Raises:
        DeviceUnavailable: if there is no GPU that kernels can be measured on.
        PackageInvalid, VersionUnsupported: if ``what`` is not right.
    """
    if effort not in EFFORTS:
        raise OptionError(f"effort is {effort!r}; it can be {', '.join(EFFORTS)}")
    bundle = as_bundle(what)
    given = inputs if isinstance(inputs, Mapping) else dict.fromkeys(_names(bundle), inputs) if inputs else {}
    options = replace(options or Options(), tune=effort, tuning_seconds=seconds)
    session = open_session(
        bundle, options, inputs=given, sizes=sizes or {}, elements=elements, operators=operators, trust=trust
    )
    machine = replace(session.machine, listen=listen, is_forced=again)
    if not isolate:
        return tune_bundle(replace(session, machine=machine))
    with contextlib.closing(Isolation.start(session.device.index)) as isolation:
        return tune_bundle(replace(session, machine=replace(machine, bench_apart=isolation.bench)))


def open_session(
    bundle: Bundle,
    options: Options,
    *,
    inputs: Mapping[str, Sequence[Any]] | None = None,
    sizes: Mapping[str, int] | None = None,
    elements: int | None = None,
    operators: Iterable[Any] = (),
    trust: bool = False,
) -> Session:
    """Returns a bundle on the current GPU; raises `DeviceUnavailable` if kernels cannot be measured there."""
    provenance = Provenance(is_foreign=True, is_trusted=trust) if bundle.digest else HERE
    if provenance.is_foreign:
        bundle = _confined(bundle, names_of(operators), provenance)
    index = current_gpu()
    machine = make_machine(index, options, compiler_of(bundle, options, provenance))
    return Session(bundle, machine, torch_platform(), _gpu(index), inputs or {}, sizes or {}, elements)


def current_gpu() -> int:
    """Returns the number of torch's current GPU; raises `DeviceUnavailable` if kernels cannot be measured on one."""
    try:
        import torch
    except ImportError as error:
        raise DeviceUnavailable("kernels are measured on torch's tensors, and torch is not installed") from error
    if not torch.cuda.is_available():
        raise DeviceUnavailable("kernels are measured on a GPU, and torch finds none on this machine")
    if torch.version.hip is not None:
        raise DeviceUnavailable("on AMD GPUs kernels run with their policy's first choice; they are not measured")
    return int(torch.cuda.current_device())


def _gpu(index: int) -> Any:
    import torch

    return torch.device("cuda", index)


def as_bundle(what: Tunable) -> Bundle:
    """Returns a bundle of what can be tuned; a program or a kernel alone becomes a bundle of itself."""
    if isinstance(what, (str, Path)):
        return Bundle.read(what)
    if isinstance(what, Mapping):
        what = Program.from_mapping(what) if "steps" in what else KernelSpec.from_mapping(what)
    if isinstance(what, Program):
        return Bundle(what.name, {spec.id: spec for spec in what.kernels}, {what.name: what})
    return Bundle(what.name, {what.id: what}) if isinstance(what, KernelSpec) else what


def _confined(bundle: Bundle, added: Collection[str], provenance: Provenance) -> Bundle:
    """Returns a bundle that was read, its programs with what keeps them inside of their buffers; see `load`."""
    for name, program in bundle.programs.items():
        check_operators(program, added, f"programs.{name}")
    return replace(bundle, programs={name: confined(program, provenance) for name, program in bundle.programs.items()})


def compiler_of(bundle: Bundle, options: Options, provenance: Provenance = HERE) -> Compiler:
    """Returns what makes a bundle's kernels: out of its own binaries, where it has some."""
    library = BundleLibrary(bundle) if bundle.binaries or bundle.tuning else None
    return Compiler(shared_pool(options.workers), choose_store(options), options.compile_seconds, library, provenance)


def _names(bundle: Bundle) -> list[str]:
    return [*bundle.programs, *(spec.name for spec in loose_kernels(bundle))]


def loose_kernels(bundle: Bundle) -> tuple[KernelSpec, ...]:
    """Returns the kernels of a bundle that none of its programs launches."""
    used = {spec.id for program in bundle.programs.values() for spec in program.kernels}
    return tuple(spec for key, spec in bundle.kernels.items() if key not in used)


# --- running it once, with a hand on every launch -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Session:
    """A bundle on a device: ``inputs`` by the name of a program or kernel, ``sizes`` and ``elements`` for others."""

    bundle: Bundle
    machine: Machine
    platform: Platform
    device: Any
    inputs: Mapping[str, Sequence[Any]]
    sizes: Mapping[str, int]
    elements: int | None = None

    def visit_launches(self, visit: Visit) -> Iterator[tuple[str, str]]:
        """Runs every program and kernel once, leaving launches to ``visit``; yields names and reasons of failures."""
        for name, program in self.bundle.programs.items():
            problem = self._attempt(functools.partial(self._run_program, name, program, visit))
            if problem:
                yield name, problem
        for spec in loose_kernels(self.bundle):
            problem = self._attempt(functools.partial(self._run_kernel, spec, visit))
            if problem:
                yield spec.name, problem

    def _attempt(self, run: Callable[[], None]) -> str | None:
        """Runs something; returns what went wrong with it, if that concerns nothing else."""
        import torch

        try:
            run()
        except torch.OutOfMemoryError as error:
            return f"its inputs or buffers do not fit into memory: {str(error).splitlines()[0]}"
        except FerriteRuntimeError as error:
            return str(error)
        except RuntimeError as error:  # an operator of the program's
            return str(KernelRunError(f"running it failed: {error}"))
        return None

    def _run_program(self, name: str, program: Program, visit: Visit) -> None:
        inputs = self.inputs.get(name)
        args = make_inputs(program, self.device, self.sizes) if inputs is None else list(inputs)
        engine = CudaEngine(program, self.platform, lambda index: self.machine)
        engine.visiting(self.device, visit)(args)

    def _run_kernel(self, spec: KernelSpec, visit: Visit) -> None:
        given = self.inputs.get(spec.name)
        arguments = tuple(given) if given is not None else self._arguments_of(spec)
        check_arguments(spec, arguments)
        roles = [param.role for param in spec.params]
        values = tuple(v.data_ptr() if r == "tensor" else v for r, v in zip(roles, arguments, strict=True))
        owners = tuple(v if r == "tensor" else None for r, v in zip(roles, arguments, strict=True))
        kernel = Kernel(spec).on_device(self.device.index, self.machine, values)
        with self.platform.on_device(self.device.index):
            self.platform.prepare(self.device.index)
            visit(None, kernel, self.platform.current_stream(self.device.index), values, owners)

    def _arguments_of(self, spec: KernelSpec) -> tuple[Any, ...]:
        try:
            return make_arguments(spec, self.sizes, self.device, self.elements)
        except InputError as error:
            raise InputError(f"{error}: give arguments, or sizes", error.name) from error


def chosen_kernel(kernel: AnyKernel, arguments: Sequence[Any]) -> DeviceKernel:
    """Returns the kernel that a launch with these arguments takes: of one that takes sizes, that for their bucket."""
    return kernel if isinstance(kernel, DeviceKernel) else kernel.kernel(arguments)


def tune_bundle(session: Session) -> TuningReport:
    """Returns what tuning all kernels of a bundle gives; a kernel or program that fails is skipped, and says why."""
    machine, started = session.machine, time.monotonic()
    machine.listen({"event": "started", "kernels": len(session.bundle.kernels), "device": machine.facts.name})
    met: dict[str, DeviceKernel] = {}

    def visit(
        site: Site | None, kernel: AnyKernel, stream: int, arguments: tuple[Any, ...], owners: tuple[Any, ...]
    ) -> None:
        kernel.launch_first(stream, arguments, owners)
        chosen = chosen_kernel(kernel, arguments)
        met.setdefault(chosen.situation().key, chosen)

    problems = list(session.visit_launches(visit))
    rows = [_row(kernel) for kernel in met.values()]
    seen = {row.id for row in rows}
    reasons = dict(problems)
    rows += [
        TunedKernel(spec.name, spec.id, {}, "skipped", reason=_reason(session, spec, reasons))
        for spec in session.bundle.kernels.values()
        if spec.id not in seen
    ]
    records = merge(r for kernel in met.values() for r in machine.choices.measured(kernel.situation()))
    report = TuningReport(machine.facts.name, tuple(rows), records, time.monotonic() - started)
    machine.listen({"event": "finished", "measured": report.measured, "seconds": round(report.seconds, 3)})
    return report


def _row(kernel: DeviceKernel) -> TunedKernel:
    outcome = kernel.machine.tuned.get(kernel.situation().key)
    sizes = kernel.sizes or kernel.spec.hint_sizes()
    config = kernel.config or kernel.candidates[0]
    head = (kernel.spec.name, kernel.spec.id, sizes)
    if outcome is not None and outcome.measured:
        times = (outcome.time_of(outcome.config), outcome.time_of(outcome.reference))
        return TunedKernel(*head, "measured", str(config), *times, outcome)
    records = kernel.machine.choices.measured(kernel.situation())
    known = {record.config: record.ms for record in records if record.runs}
    if kernel.is_settled and config in known:
        reference = known.get(kernel.reference())
        return TunedKernel(*head, "known", str(config), known[config], reference)
    return TunedKernel(*head, "settled", str(config), outcome=outcome)


def _reason(session: Session, spec: KernelSpec, reasons: Mapping[str, str]) -> str:
    if spec.name in reasons:
        return reasons[spec.name]
    for name, program in session.bundle.programs.items():
        if spec.id in {kernel.id for kernel in program.kernels}:
            return reasons.get(name, f"no launch of {name} took it with these inputs")
    return "no program launches it"
