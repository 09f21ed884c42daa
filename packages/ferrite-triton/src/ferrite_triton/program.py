"""A schedule as a program: kernels, each distinct one once, and the host steps that launch them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from ferrite_ir.language.bindings import results_that_bind
from ferrite_scheduler.model.identity import without_names
from ferrite_scheduler.model.schedule import (
    Allocate,
    CallExtern,
    CallGraph,
    Item,
    Keep,
    Kernel,
    MakeView,
    Reuse,
    Schedule,
)
from ferrite_scheduler.model.segments import REDUCE_SEGMENTS
from ferrite_scheduler.model.target import Target
from ferrite_triton.errors import EmitError
from ferrite_triton.host.scratch import scratch_elements, scratch_name, with_scratch
from ferrite_triton.host.segmented_reductions import write_segmented_reduction
from ferrite_triton.host.spec import Emitted, GivenKernel, KernelSpec
from ferrite_triton.host.steps import (
    LaunchForm,
    encode_call,
    encode_given_launch,
    encode_input,
    encode_output,
    encode_size_input,
    encode_step,
    launch_form,
)
from ferrite_triton.host.symbols import bind_symbols
from ferrite_triton.host.templates import Expansion
from ferrite_triton.kernels import emit_alternatives
from ferrite_triton.single_kernels import origin_texts

PROGRAM_FORMAT = "ferrite-program/2"

_TEMPLATES: dict[str, Callable[[CallExtern, Collection[str]], Expansion]] = {REDUCE_SEGMENTS: write_segmented_reduction}
"""What carries out the extern calls that are kernels of ours."""


@dataclass(frozen=True)
class Subprogram:
    """A graph of a program that its steps call; the fields are those of `Program`."""

    name: str
    inputs: tuple[dict[str, Any], ...]
    steps: tuple[dict[str, Any], ...]
    outputs: tuple[dict[str, Any], ...]

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form; a new object each time."""
        listed = {"inputs": self.inputs, "steps": self.steps, "outputs": self.outputs}
        return {"name": self.name, **{field: [dict(value) for value in values] for field, values in listed.items()}}


@dataclass(frozen=True)
class Program:
    """A program of format 2: JSON values, ready to be saved or loaded by a runtime.

    Attributes:
        name: for logs.
        device: device type that the kernels run on.
        inputs, steps, outputs: JSON objects as in docs/kernel-spec.md.
        kernels: the distinct kernels, in first-use order.
        graphs: what steps call, each behind what its own steps call.
    """

    name: str
    device: str
    inputs: tuple[dict[str, Any], ...]
    kernels: tuple[KernelSpec | GivenKernel, ...]
    steps: tuple[dict[str, Any], ...]
    outputs: tuple[dict[str, Any], ...]
    graphs: tuple[Subprogram, ...] = ()

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form; a new object each time."""
        mapping = {
            "format": PROGRAM_FORMAT,
            "name": self.name,
            "device": self.device,
            "inputs": [dict(value) for value in self.inputs],
            "kernels": [kernel.to_mapping() for kernel in self.kernels],
            "steps": [dict(step) for step in self.steps],
            "outputs": [dict(output) for output in self.outputs],
        }
        return mapping | ({"graphs": [graph.to_mapping() for graph in self.graphs]} if self.graphs else {})

    @property
    def source(self) -> str:
        """Returns all kernel texts one below the other, for people."""
        return "\n\n".join(kernel.source for kernel in self.kernels)


def emit_program(
    schedule: Schedule,
    target: Target | None = None,
    *,
    name: str = "graph",
    given: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> Program:
    """Returns the program that carries a schedule out.

    ``target`` is reserved: the text never depends on a device, so that a program made anywhere runs everywhere.
    ``given`` are specs of kernels that somebody else wrote, by the targets of the calls that launch them: their
    arguments are those of the kernel's params, in order.

    Raises:
        EmitError: some part of the schedule has no text; the message names the kernel and the definition.
    """
    kernels = _Kernels({target: GivenKernel(spec, tuple(spec["origin"])) for target, spec in given.items()})
    bodies = frozenset(callee.graph.name for callee in schedule.callees if callee.destinations)
    main = _write(schedule, kernels, name, bodies)
    return Program(
        name=name,
        device=schedule.graph.device,
        inputs=main.inputs,
        steps=main.steps,
        outputs=main.outputs,
        graphs=tuple(_write(callee, kernels, callee.graph.name, bodies) for callee in schedule.callees),
        kernels=tuple(kernels.specs.values()),
    )


def _write(schedule: Schedule, kernels: _Kernels, name: str, bodies: Collection[str]) -> Subprogram:
    """Returns the steps of one graph; ``kernels`` gets those that it launches.

    ``bodies`` are the graphs that are given storage for their results.
    """
    launches = [kernels.launch(kernel) for kernel in schedule.kernels]
    graph = schedule.graph
    device, bound = graph.device, results_that_bind(graph)
    steps = [*bind_symbols(graph)]
    taken = _host_names(schedule)
    scratch, elements = scratch_name(taken), [form.scratch for form in launches]
    for step in schedule.steps:
        if isinstance(step, CallGraph):
            steps.append(encode_call(step, bound, bodies))
            continue
        given = kernels.given.get(step.definition.target) if isinstance(step, CallExtern) else None
        if given is not None and isinstance(step, CallExtern):
            steps.append(encode_given_launch(given, step, scratch))
            elements.append(scratch_elements(given.mapping["params"]))
            came_from = (str(origin) for origin in step.definition.origins if str(origin))
            kernels.add(given, (*given.origin, *came_from))
            continue
        write = _TEMPLATES.get(step.definition.target) if isinstance(step, CallExtern) else None
        if write is None or not isinstance(step, CallExtern):
            steps.append(encode_step(step, launches, bound, scratch))
            continue
        expansion = write(step, taken)
        steps += expansion.steps
        for spec in expansion.kernels:
            kernels.add(spec, spec.origin)
    return Subprogram(
        name,
        inputs=(*(encode_input(value, device) for value in schedule.inputs), *map(encode_size_input, graph.sizes)),
        steps=tuple(with_scratch(steps, scratch, max(elements, default=0))),
        outputs=tuple(encode_output(output) for output in schedule.outputs),
    )


class _Kernels:
    """The kernels of a program so far, each distinct one once, by identity.

    ``given`` are those that somebody else wrote, by the targets of the calls that launch them.
    """

    def __init__(self, given: Mapping[str, GivenKernel]) -> None:
        self.given = given
        self.specs: dict[str, KernelSpec | GivenKernel] = {}
        self._written: dict[Kernel, Emitted] = {}

    def launch(self, kernel: Kernel) -> LaunchForm:
        """Returns how a kernel is launched, its texts written if none like it was."""
        form = without_names(kernel)
        emitted = self._written.get(form)
        if emitted is None:
            emitted = self._written[form] = _emit(kernel)
        for spec in (*(spec for _, spec in emitted.alternatives), emitted.spec):
            self.add(spec, origin_texts(kernel))
        return launch_form(emitted, kernel.skip_guard)

    def add(self, spec: KernelSpec | GivenKernel, origin: tuple[str, ...]) -> None:
        """Adds a kernel; equal layers share one, which then comes from all of them."""
        known = self.specs.get(spec.id)
        self.specs[spec.id] = replace(known or spec, origin=_joined(() if known is None else known.origin, origin))


def _host_names(schedule: Schedule) -> frozenset[str]:
    """Returns every name that the host steps of a schedule may use."""
    made = (step.name for step in schedule.steps if isinstance(step, Allocate | Keep | Reuse | MakeView | Item))
    return frozenset((*schedule.graph.values, *made, *(name for name, _ in schedule.graph.sizes)))


def _emit(kernel: Kernel) -> Emitted:
    try:
        return emit_alternatives(kernel)
    except EmitError as error:
        origins = ", ".join(str(origin) for origin in kernel.origins if str(origin))
        error.add_note(f"in kernel {kernel.name}{f', from {origins}' if origins else ''}")
        raise


def _joined(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*first, *second]))
