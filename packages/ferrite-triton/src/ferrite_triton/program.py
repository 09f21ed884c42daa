"""A schedule as a program: kernels, each distinct one once, and the host steps that launch them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from ferrite_ir.language.bindings import results_that_bind
from ferrite_scheduler.model.schedule import Allocate, CallExtern, Item, Keep, Kernel, MakeView, Reuse, Schedule
from ferrite_scheduler.model.segments import REDUCE_SEGMENTS
from ferrite_scheduler.model.target import Target
from ferrite_triton.errors import EmitError
from ferrite_triton.host.identity import without_names
from ferrite_triton.host.segmented_reductions import write_segmented_reduction
from ferrite_triton.host.spec import Emitted, KernelSpec
from ferrite_triton.host.steps import (
    LaunchForm,
    encode_input,
    encode_output,
    encode_size_input,
    encode_step,
    launch_form,
)
from ferrite_triton.host.symbols import bind_symbols
from ferrite_triton.host.templates import Expansion
from ferrite_triton.kernels import emit_alternatives, origin_texts

PROGRAM_FORMAT = "ferrite-program/2"

_TEMPLATES: dict[str, Callable[[CallExtern, Collection[str]], Expansion]] = {REDUCE_SEGMENTS: write_segmented_reduction}
"""What carries out the library calls that are kernels of ours."""


@dataclass(frozen=True)
class Program:
    """A program of format 2: JSON values, ready to be saved or loaded by a runtime.

    Attributes:
        name: for logs.
        device: device type that the kernels run on.
        inputs, steps, outputs: JSON objects as in docs/kernel-spec.md.
        kernels: the distinct kernels, in first-use order.
    """

    name: str
    device: str
    inputs: tuple[dict[str, Any], ...]
    kernels: tuple[KernelSpec, ...]
    steps: tuple[dict[str, Any], ...]
    outputs: tuple[dict[str, Any], ...]

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form; a new object each time."""
        return {
            "format": PROGRAM_FORMAT,
            "name": self.name,
            "device": self.device,
            "inputs": [dict(value) for value in self.inputs],
            "kernels": [kernel.to_mapping() for kernel in self.kernels],
            "steps": [dict(step) for step in self.steps],
            "outputs": [dict(output) for output in self.outputs],
        }

    @property
    def source(self) -> str:
        """Returns all kernel texts one below the other, for people."""
        return "\n\n".join(kernel.source for kernel in self.kernels)


def emit_program(schedule: Schedule, target: Target | None = None, *, name: str = "graph") -> Program:
    """Returns the program that carries a schedule out.

    ``target`` is reserved: the text never depends on a device, so that a program made anywhere runs everywhere.

    Raises:
        EmitError: some part of the schedule has no text; the message names the kernel and the definition.
    """
    specs: dict[str, KernelSpec] = {}
    written: dict[Kernel, Emitted] = {}
    launches: list[LaunchForm] = []
    for kernel in schedule.kernels:
        form = without_names(kernel)
        emitted = written.get(form)
        if emitted is None:
            emitted = written[form] = _emit(kernel)
        for spec in (*(spec for _, spec in emitted.alternatives), emitted.spec):
            known = specs.get(spec.id)
            # Equal layers share one kernel, which then comes from all of them.
            joined = () if known is None else known.origin
            specs[spec.id] = replace(known or spec, origin=_joined(joined, origin_texts(kernel)))
        launches.append(launch_form(emitted, kernel.skip_guard))
    graph = schedule.graph
    device, bound = graph.device, results_that_bind(graph)
    steps = [*bind_symbols(graph)]
    taken = _host_names(schedule)
    for step in schedule.steps:
        write = _TEMPLATES.get(step.definition.target) if isinstance(step, CallExtern) else None
        if write is None or not isinstance(step, CallExtern):
            steps.append(encode_step(step, launches, bound))
            continue
        expansion = write(step, taken)
        steps += expansion.steps
        for spec in expansion.kernels:
            joined = specs[spec.id].origin if spec.id in specs else ()
            specs[spec.id] = replace(spec, origin=_joined(joined, spec.origin))
    return Program(
        name=name,
        device=device,
        inputs=(*(encode_input(value, device) for value in schedule.inputs), *map(encode_size_input, graph.sizes)),
        kernels=tuple(specs.values()),
        steps=tuple(steps),
        outputs=tuple(encode_output(output) for output in schedule.outputs),
    )


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
