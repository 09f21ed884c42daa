"""Engines: what runs a program's kernels on one kind of device, and what all of them share."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ferrite_runtime.engines.interpreter_engine import InterpretedKernel
from ferrite_runtime.errors import TrustNeeded, fail_check, note_origin
from ferrite_runtime.formats.call_steps import For, While
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.steps import Copy, Extern
from ferrite_runtime.host.call_text import graph_name
from ferrite_runtime.host.extern_calls import flatten_results, resolve_extern
from ferrite_runtime.host.host_function import write_host
from ferrite_runtime.host.launch_text import HostText, Site
from ferrite_runtime.host.tensors import (
    check_within,
    empty_like,
    make_allocator,
    make_keeper,
    make_reinterpret,
    make_retype,
    restride,
    stack_rows,
    torch_dtype,
)
from ferrite_runtime.kernel_source.provenance import HERE, Provenance

HostFunction = Callable[[list[Any]], tuple[Any, ...]]


class Engine(Protocol):
    """What runs a program's kernels on one kind of device."""

    def first(self, device: Any) -> HostFunction:
        """Returns the function for the first call on ``device``, a ``torch.device``; it may compile and measure."""

    def steady(self, device: Any, redirect: HostFunction) -> HostFunction:
        """Returns the function for all later calls on ``device``; inputs on another device go to ``redirect``."""

    def of_section(self, program: Program) -> Engine:
        """Returns the engine for a section of its program, which launches the same kernels."""

    def wait(self) -> None:
        """Waits until everything that was started at load is done; raises what went wrong."""

    def is_ready(self) -> bool:
        """Tells whether everything that was started at load is done."""


def build_graphs(
    program: Program, build: Callable[[Program, Mapping[str, HostFunction]], HostFunction]
) -> HostFunction:
    """Returns the function of a program whose steps call graphs.

    ``build`` makes one of a program, or of a graph as a program, given the functions of the graphs that stand before
    it, by their global names.
    """
    functions: dict[str, HostFunction] = {}
    left = _CallsLeft()
    for position in range(len(program.graphs)):
        callee = program.callee(position)
        functions[graph_name(position)] = _checked(callee, build(callee, dict(functions)), left)
    host = build(program, functions)
    most = program.max_calls if program.graphs else None
    if most is None:
        return host

    def call(args: list[Any]) -> tuple[Any, ...]:
        left.number = most
        return host(args)

    return call


class _CallsLeft(threading.local):
    """How often the graphs of a program may still be called in the call that this thread makes."""

    number = 0


def _checked(callee: Program, host: HostFunction, left: _CallsLeft) -> HostFunction:
    """Returns the function of a graph that looks at what it is called with, and how often, as its program wants it."""
    check, is_limited = callee.check_call, callee.max_calls is not None
    if check is None:
        return host

    def call(args: list[Any]) -> tuple[Any, ...]:
        if is_limited:
            left.number -= 1
            if left.number < 0:
                raise TrustNeeded(f"{callee.name} would be called after {callee.max_calls} calls of graphs in one call")
        check(callee, args)
        return host(args)

    return call


def gradient_guard(program: Program) -> tuple[str, ...]:
    """Returns the lines that keep extern calls of a program from being recorded for differentiation."""
    if any(isinstance(step, (Extern, Copy, While, For)) for step in program.steps):
        return ("if _grad_enabled():", "    with _no_grad(): return host(args)")
    return ()


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
        "_keep": make_keeper(device, lambda: False),
        "_reinterpret": make_reinterpret(),
        "_retype": make_retype(),
        "_restride": restride,
        "_like": empty_like,
        "_stack": stack_rows,
        "_flatten": flatten_results,
        "_fail": fail_check,
        "_within": check_within,
        "_grad_enabled": torch.is_grad_enabled,
        "_no_grad": torch.no_grad,
        "_note": functools.partial(_note_line, text.origins),
        "_stream": None,
    }
    namespace |= {variable: torch_dtype(name) for variable, name in text.dtypes.items()}
    namespace |= {variable: resolve_extern(target, text.captured) for variable, target in text.externs.items()}
    namespace |= text.constants
    namespace |= names
    exec(compile(text.source, "<ferrite host>", "exec"), namespace)
    host: HostFunction = namespace["host"]
    return host


def _note_line(origins: Mapping[int, tuple[str, ...]], error: Exception) -> None:
    """Adds to an error that a host function has caught what the extern call in the line came from where it was."""
    if error.__traceback__ is not None:
        note_origin(error, origins.get(error.__traceback__.tb_lineno, ()))


def write_guarded_launch(site: Site) -> Iterable[str]:
    """Yields a launch that also gets the tensors which the addresses lie in."""
    values = "".join(f"{argument.text}, " for argument in site.arguments)
    owners = "".join(f"{argument.owner}, " for argument in site.arguments)
    yield f"_launch{site.number}(({values}), ({owners}))"


@dataclass(frozen=True, slots=True)
class InterpretedEngine:
    """Runs kernels in Triton's interpreter."""

    program: Program
    kernels: Mapping[str, InterpretedKernel]
    provenance: Provenance = HERE

    @classmethod
    def load(cls, program: Program, provenance: Provenance = HERE) -> InterpretedEngine:
        """Returns the engine with every kernel's source loaded.

        Raises:
            KernelCompileError: if a source text does not load.
        """
        return cls(program, {spec.id: InterpretedKernel.load(spec, provenance) for spec in program.kernels}, provenance)

    def first(self, device: Any) -> HostFunction:
        """Returns the host function."""
        return build_graphs(self.program, lambda program, graphs: self._host(program, graphs, device))

    def _host(self, program: Program, graphs: Mapping[str, HostFunction], device: Any) -> HostFunction:
        preamble = gradient_guard(program)
        if not self.provenance.is_foreign:
            text = write_host(program, preamble=preamble)
            launchers: dict[str, Any] = {f"_launch{s.number}": self.kernels[s.kernel.id] for s in text.sites}
            return build_host(text, {**graphs, **launchers}, device)
        text = write_host(program, write_guarded_launch, preamble=preamble)
        inputs = frozenset(value.name for value in program.inputs)
        launchers = {f"_launch{s.number}": self._guarded(s, inputs) for s in text.sites}
        return build_host(text, {**graphs, **launchers}, device)

    def _guarded(self, site: Site, inputs: frozenset[str]) -> Callable[..., None]:
        """Returns what launches a kernel that may touch its tensors' memory, and no other."""
        given = tuple(argument.owner in inputs for argument in site.arguments)
        return functools.partial(self.kernels[site.kernel.id].launch_guarded, given)

    def steady(self, device: Any, redirect: HostFunction) -> HostFunction:
        """Returns the host function."""
        return self.first(device)

    def of_section(self, program: Program) -> InterpretedEngine:
        """Returns the engine for a section of the program."""
        return replace(self, program=program)

    def wait(self) -> None:
        """Returns at once: there is nothing to wait for."""

    def is_ready(self) -> bool:
        """Returns True: there is nothing to wait for."""
        return True
