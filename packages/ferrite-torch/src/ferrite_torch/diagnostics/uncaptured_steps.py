"""Which steps of a compiled graph are in no CUDA graph, and why, by the ops that they came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ferrite_runtime.engines.graph_parts import partition
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.sized_program import at_sizes, size_roots
from ferrite_runtime.formats.steps import Extern, Launch, Step
from ferrite_torch.diagnostics.origins import Location
from ferrite_torch.options import Options

if TYPE_CHECKING:
    from ferrite_scheduler import Schedule

_ANY_SIZE = 64
"""Stands for each size that a call gives: sizes of several calls have CUDA graphs of their own."""


def uncaptured_steps(
    mapping: Mapping[str, Any], plan: Schedule | None, options: Options, locations: Mapping[str, Location]
) -> tuple[tuple[str, str], ...]:
    """Returns ``(op, reason)`` for each step, or row of steps, that is in no CUDA graph though these are asked for.

    Args:
        mapping: the program, in the format of docs/kernel-spec.md.
        plan: the schedule that it was written from, which knows the ops that call graphs; None where it is not at hand.
        options: what the user asks for.
        locations: where the origins of kernels and extern calls are (`Artifact.locations`).
    """
    if not options.cuda_graph or options.interpret or mapping["device"] != "cuda":
        return ()
    program = Program.from_mapping(mapping)
    program = at_sizes(program, dict.fromkeys(size_roots(program), _ANY_SIZE))
    launched = {kernel.id: kernel.origin for kernel in program.kernels}
    calls = _graph_calls(plan) if plan is not None else {}

    def described(origins: Iterable[str]) -> str:
        return ", ".join(locations[each][1] if each in locations else each for each in origins)

    def op_of(step: Step, values: Sequence[str]) -> str:
        match step:
            case Launch(kernel):
                return described(launched[kernel])
            case Extern(target):
                return described(step.origin) or target
        return next((calls[value] for value in values if value in calls), type(step).__name__.lower())

    obstacles = partition(program, options.cuda_graph_launches).obstacles
    return tuple((op_of(program.steps[each.step], each.values), each.reason) for each in obstacles)


def _graph_calls(plan: Schedule) -> dict[str, str]:
    """Returns the ops that call graphs, with their lines, by the host names of their results."""
    from ferrite_scheduler.model.schedule import CallGraph  # noqa: PLC0415  # a warm process does without

    found: dict[str, str] = {}
    for step in plan.steps:
        if isinstance(step, CallGraph):
            op = ", ".join(dict.fromkeys(each.description for each in step.definition.origins if each.description))
            found |= {name: op for name in step.results if name is not None and op}
    return found
