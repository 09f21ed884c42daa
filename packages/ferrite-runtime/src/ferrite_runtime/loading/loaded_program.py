"""Loaded programs: a program bound to this process's torch, kernels and device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from ferrite_runtime.compilation.assertions import checked_program
from ferrite_runtime.compilation.compiler import Compiler
from ferrite_runtime.engines.cuda_graphs import graphed_host
from ferrite_runtime.engines.engine import Engine, HostFunction, InterpretedEngine, gradient_guard
from ferrite_runtime.engines.graph_recorder import torch_recorder
from ferrite_runtime.engines.launcher_choice import uses_triton_launcher
from ferrite_runtime.engines.lent_memory import NO_LENDING, Lending
from ferrite_runtime.errors import DeviceUnavailable, InterpreterUnavailable
from ferrite_runtime.formats.buffer_bounds import with_bounds
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.steps import Extern
from ferrite_runtime.host.extern_calls import check_call, resolve_extern
from ferrite_runtime.host.host_function import list_host
from ferrite_runtime.host.thresholds import GRAPHS
from ferrite_runtime.kernel_source.provenance import HERE, Provenance
from ferrite_runtime.loading.input_checks import check_inputs
from ferrite_runtime.process.forking import renewed_in_children
from ferrite_runtime.process.option_ranges import Range
from ferrite_runtime.process.options import Options, check_arguments


class LoadedProgram:
    """A program ready to run: call it with its inputs, get the tuple of its outputs.

    Instances are safe to call from several threads. ``host_source`` is the function that the host steps became.
    """

    def __init__(self, program: Program, options: Options, engine: Engine, lending: Lending = NO_LENDING) -> None:
        self.program = program
        self.lending = lending
        self.options = options
        self._engine = engine
        self._lock = renewed_in_children(threading.RLock())
        self._hosts: dict[Any, HostFunction] = {}
        self._run: HostFunction = self._dispatch

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Runs the program.

        Raises:
            InputError: if an input is not what the program was compiled for.
            KernelCompileError: if a kernel does not compile.
        """
        return self._run(list(inputs))

    def call_boxed(self, inputs: list[Any]) -> tuple[Any, ...]:
        """Runs the program; clears ``inputs``, so that a tensor nobody else holds dies where the program frees it."""
        return self._run(inputs)

    def check(self, inputs: Sequence[Any]) -> None:
        """Raises `InputError`, naming the input, unless every input has the type that the program declares."""
        check_inputs(self.program, inputs)

    def strides_of(self, position: int) -> tuple[int, ...] | None:
        """Returns the strides, in elements, that an input must have; None where they are computed, or it has none."""
        layout = self.program.inputs[position].layout
        return None if layout is None or layout.numbers is None else layout.numbers[1]

    def wait(self) -> LoadedProgram:
        """Waits for the compilations that loading started and returns the program itself."""
        self._engine.wait()
        return self

    def is_ready(self) -> bool:
        """Tells whether nothing that loading started is still compiling: `wait` returns, or raises, at once."""
        return self._engine.is_ready()

    @property
    def host_source(self) -> str:
        """The text of the function that runs the host steps, with plain launches."""
        return list_host(self.program, preamble=gradient_guard(self.program))

    def _dispatch(self, args: list[Any]) -> tuple[Any, ...]:
        if self.options.check_inputs != "never":
            check_inputs(self.program, args)
        device = self._choose_device(args)
        host = self._hosts.get(device)
        if host is not None:
            return host(args)
        with self._lock:
            results = self._engine.first(device)(args)
            host = self._engine.steady(device, self._dispatch)
            if self.options.cuda_graph and device.type == "cuda":
                host = self._graphed(device, host)
            self._hosts[device] = host
            if self.options.check_inputs != "always":
                self._run = host
        return results

    def _graphed(self, device: Any, host: HostFunction) -> HostFunction:
        """Returns a function that plays what it can of the program as CUDA graphs of this device."""
        import torch

        def build(section: Program) -> HostFunction:
            return self._engine.of_section(section).steady(device, self._dispatch)

        least = self.options.cuda_graph_launches
        graphed = graphed_host(self.program, host, build, device, torch_recorder(device), least, self.lending)
        if torch.cuda.device_count() == 1:
            return graphed

        def run(args: list[Any]) -> tuple[Any, ...]:
            if self._choose_device(args) != device:
                return self._dispatch(args)
            with torch.cuda.device(device):
                return graphed(args)

        return run

    def _choose_device(self, args: Sequence[Any]) -> Any:
        import torch

        for declared, actual in zip(self.program.inputs, args, strict=True):
            if declared.layout is not None and declared.device == self.program.device:
                return actual.device
        if self.program.device == "cuda":
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device(self.program.device)


ROLES = ("inference", "forward", "backward")
"""What a program of a compiled graph is for."""


def load_program(
    mapping: Mapping[str, Any] | Program,
    *,
    options: Options | None = None,
    compiler: Compiler | None = None,
    provenance: Provenance = HERE,
    captured: Mapping[str, Callable[..., Any]] | None = None,
    saved: Collection[int] = (),
    role: str | None = None,
    static: Collection[int] = (),
) -> LoadedProgram:
    """Returns a program ready to run; its kernels compile in the background until they are needed.

    Args:
        mapping: a program in the format of docs/kernel-spec.md, as read from JSON.
        options: how to run it.
        compiler: what makes its kernels; the one that this process shares without it.
        provenance: who wrote it: of a program from elsewhere, every view is checked to lie in its buffer.
        captured: what its steps call of the captured graph that it was compiled from, by target (``captured.cond.7``):
            functions of tensors and numbers that return a flat tuple of tensors.
        saved: positions of results that nobody sees but the backward of the program, through autograd. CUDA graphs do
            not copy them: who keeps one past that keeps the graphs from being played.
        role: what it is for: ``forward`` and ``backward`` of what is differentiated, or ``inference``; None if that is
            not known. CUDA graphs of the last two do not copy any result, but for calls that come while somebody holds
            some of an earlier call. Those of a backward, which is given what its forward has ``saved``, are captured
            once the forward's are.
        static: positions of inputs that are parameters, buffers or constants: CUDA graphs read them where they lie, and
            have a capture for each set of these.

    Raises:
        SpecError: (or a subclass) if the program is malformed, naming the field.
        ExternError: if it calls an operator that is not registered, or a captured graph that is not at hand.
    """
    ranges = {"options": Range((Options, type(None))), "role": Range((str, type(None)), (None, *ROLES))}
    check_arguments("load_program", ranges, options=options, role=role)
    options = options or Options()
    program = mapping if isinstance(mapping, Program) else Program.from_mapping(mapping)
    if options.check_indices and not options.interpret and program.device != "cpu":
        program = Program.from_mapping(checked_program(program.to_mapping()))
    if options.interpret:
        program = program.on_cpu()
    program = program if captured is None else replace(program, captured=captured)
    check_externs(program)
    if provenance.is_foreign:
        program = confined(program, provenance)
    lends = role in ("inference", "backward")
    lent = tuple(range(len(program.outputs))) if lends else tuple(saved)
    lending = Lending(lent, 1 if lends else GRAPHS.generations, tuple(static), borrows=role == "backward")
    return LoadedProgram(program, options, choose_engine(program, options, compiler, provenance), lending)


MAX_CALLS = 1 << 16
"""How often steps of a program from elsewhere may call graphs in one call of it: half a second for graphs that do
nothing. A loop that a file has may have no end."""
MAX_INTERPRETED_CALLS = 1 << 9
"""The same where kernels are interpreted: a graph of one small kernel takes 1 to 2 ms."""


def confined(program: Program, provenance: Provenance) -> Program:
    """Returns a program from elsewhere, which stops where it would leave its buffers, or would not come to an end.

    Raises:
        SpecError: an extern call has arguments that its operator does not declare, or a view lies outside.
    """
    for position, step in program.all_steps():
        if isinstance(step, Extern):
            check_call(step, f"{position}.args")
    most = MAX_INTERPRETED_CALLS if program.device == "cpu" else MAX_CALLS
    bounded = with_bounds(program)
    return replace(bounded, check_call=check_inputs, max_calls=None if provenance.is_trusted else most)


def choose_engine(
    program: Program, options: Options, compiler: Compiler | None = None, provenance: Provenance = HERE
) -> Engine:
    """Returns the engine for a program's device.

    Raises:
        DeviceUnavailable: if this machine cannot run its kernels.
    """
    if program.device == "cpu" if options.interpret is None else options.interpret:
        missing = [name for name in ("triton", "numpy") if find_spec(name) is None]
        if missing:
            raise InterpreterUnavailable(f"Triton's interpreter needs {' and '.join(missing)} to run kernels here")
        return InterpretedEngine.load(program, provenance)
    if program.device != "cuda":
        raise DeviceUnavailable(f"no engine runs kernels on {program.device!r}; cuda and cpu are known")
    if uses_triton_launcher(options):
        from ferrite_runtime.engines.triton_engine import TritonEngine

        return TritonEngine(program, provenance)
    from ferrite_runtime.engines.cuda_engine import CudaEngine

    return CudaEngine.load(program, options, compiler)


def check_externs(program: Program) -> None:
    """Raises `ExternError` if a program calls an operator that is not registered in this process, or not at hand."""
    for target in {step.target for _, step in program.all_steps() if isinstance(step, Extern)}:
        resolve_extern(target, program.captured)
