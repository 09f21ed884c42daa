"""Loaded programs: a program bound to this process's torch, kernels and device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .errors import DeviceUnavailable
from .externs import flatten_results, resolve_extern
from .host import HostText, write_host
from .inputs import check_inputs
from .interpreted import load_interpreted
from .options import Options
from .program import Copy, Extern, Program
from .tensors import make_allocator, make_reinterpret, restride, retype, torch_dtype

HostFunction = Callable[[list[Any]], tuple[Any, ...]]


def build_host(text: HostText, names: Mapping[str, Any], device: Any) -> HostFunction:
    """Returns the function in ``text``, with every global name that it uses bound.

    Args:
        text: the host text.
        names: the globals that depend on the engine: launchers, the stream.
        device: the ``torch.device`` of the kernels.

    Raises:
        ExternError: if an operator is not registered in this process.
    """
    import torch

    cpu = torch.device("cpu")
    namespace: dict[str, Any] = {
        "_torch": torch,
        "_cpu": cpu,
        "_device": device,
        "_float": float,
        "_complex": complex,
        "_empty": make_allocator(device),
        "_empty_cpu": make_allocator(cpu),
        "_reinterpret": make_reinterpret(),
        "_retype": retype,
        "_restride": restride,
        "_flatten": flatten_results,
        "_grad_enabled": torch.is_grad_enabled,
        "_no_grad": torch.no_grad,
        "_stream": None,
    }
    namespace |= {variable: torch_dtype(name) for variable, name in text.dtypes.items()}
    namespace |= {variable: resolve_extern(target) for variable, target in text.externs.items()}
    namespace |= names
    exec(compile(text.source, "<ferrite host>", "exec"), namespace)
    host: HostFunction = namespace["host"]
    return host


def gradient_guard(program: Program) -> tuple[str, ...]:
    """Returns the lines that keep library calls of a program from being recorded for differentiation."""
    if any(isinstance(step, (Extern, Copy)) for step in program.steps):
        return ("if _grad_enabled():", "    with _no_grad(): return host(args)")
    return ()


class Engine(Protocol):
    """What runs a program's kernels on one kind of device."""

    def first(self, device: Any) -> HostFunction:
        """Returns the function for the first call on ``device``, a ``torch.device``; it may compile and measure."""

    def steady(self, device: Any, redirect: HostFunction) -> HostFunction:
        """Returns the function for all later calls on ``device``; inputs on another device go to ``redirect``."""

    def wait(self) -> None:
        """Waits until everything that was started at load is done; raises what went wrong."""


@dataclass(frozen=True, slots=True)
class InterpretedEngine:
    """Runs kernels in Triton's interpreter."""

    program: Program
    kernels: Mapping[str, Callable[..., None]]

    def first(self, device: Any) -> HostFunction:
        """Returns the host function."""
        text = write_host(self.program, preamble=gradient_guard(self.program))
        launchers = {f"_launch{site.number}": self.kernels[site.kernel.id] for site in text.sites}
        return build_host(text, launchers, device)

    def steady(self, device: Any, redirect: HostFunction) -> HostFunction:
        """Returns the host function."""
        return self.first(device)

    def wait(self) -> None:
        """Returns at once: there is nothing to wait for."""


class LoadedProgram:
    """A program ready to run: call it with its inputs, get the tuple of its outputs.

    Instances are safe to call from several threads. ``host_source`` is the function that the host steps became.
    """

    def __init__(self, program: Program, options: Options, engine: Engine) -> None:
        self.program = program
        self.options = options
        self._engine = engine
        self._lock = threading.RLock()
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

    def wait(self) -> LoadedProgram:
        """Waits for the compilations that loading started and returns the program itself."""
        self._engine.wait()
        return self

    @property
    def host_source(self) -> str:
        """The text of the function that runs the host steps, with plain launches."""
        return write_host(self.program, preamble=gradient_guard(self.program)).source

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
            self._hosts[device] = host
            if self.options.check_inputs != "always":
                self._run = host
        return results

    def _choose_device(self, args: Sequence[Any]) -> Any:
        import torch

        for declared, actual in zip(self.program.inputs, args, strict=True):
            if declared.layout is not None and declared.device == self.program.device:
                return actual.device
        if self.program.device == "cuda":
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device(self.program.device)


def load_program(mapping: Mapping[str, Any], *, options: Options | None = None) -> LoadedProgram:
    """Returns a program ready to run; its kernels compile in the background until they are needed.

    Args:
        mapping: a program in the format of docs/kernel-spec.md, as read from JSON.
        options: how to run it.

    Raises:
        SpecError: (or a subclass) if the program is malformed, naming the field.
        ExternError: if it calls an operator that is not registered.
    """
    options = options or Options()
    program = Program.from_mapping(mapping)
    return LoadedProgram(program, options, choose_engine(program, options))


def choose_engine(program: Program, options: Options) -> Engine:
    """Returns the engine for a program's device."""
    interpret = program.device == "cpu" if options.interpret is None else options.interpret
    if interpret:
        return InterpretedEngine(program, load_interpreted(program.kernels))
    raise DeviceUnavailable(f"no engine runs kernels on {program.device!r}")
