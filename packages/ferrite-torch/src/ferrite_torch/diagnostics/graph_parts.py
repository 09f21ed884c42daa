"""Which steps of a compiled graph are in no CUDA graph, and why, by the ops that they came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ferrite_runtime.engines.graph_parts import partition
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.sized_program import at_sizes, size_roots
from ferrite_runtime.formats.steps import Extern, Launch
from ferrite_torch.options import Options

if TYPE_CHECKING:
    from ferrite_scheduler import Schedule

_ANY_SIZE = 64
"""Stands for each size that a call gives: those that come again have CUDA graphs of their own."""


def uncaptured_steps(
    mapping: Mapping[str, Any], plan: Schedule | None, options: Options
) -> tuple[tuple[str, str], ...]:
    """Returns ``(op, reason)`` for each step, or row of steps, that is in no CUDA graph though these are asked for.

    Args:
        mapping: the program, in the format of docs/kernel-spec.md.
        plan: the schedule that it was written from, which has the source lines; None where it is not at hand.
        options: what the user asks for.
    """
    if not options.cuda_graph or options.interpret or mapping["device"] != "cuda":
        return ()
    program = Program.from_mapping(mapping)
    program = at_sizes(program, dict.fromkeys(size_roots(program), _ANY_SIZE))
    descriptions = _descriptions(plan) if plan is not None else {}
    origins = {kernel.id: tuple(descriptions.get(each, each) for each in kernel.origin) for kernel in program.kernels}
    found: list[tuple[str, str]] = []
    for obstacle in partition(program, options.cuda_graph_launches).obstacles:
        step = program.steps[obstacle.step]
        if isinstance(step, Launch):
            op = ", ".join(origins[step.kernel])
        else:
            op = next((descriptions[value] for value in obstacle.values if value in descriptions), "")
        found.append(
            (op or (step.target if isinstance(step, Extern) else type(step).__name__.lower()), obstacle.reason)
        )
    return tuple(found)


def _descriptions(plan: Schedule) -> dict[str, str]:
    """Returns the ops with their lines by the host names of their results, and by how kernels name them."""
    from ferrite_scheduler.model.schedule import CallExtern, CallGraph  # noqa: PLC0415  # a warm process does without

    descriptions = {str(origin): origin.description for each in plan.graph.definitions for origin in each.origins}
    for step in plan.steps:
        if isinstance(step, (CallExtern, CallGraph)):
            op = ", ".join(
                dict.fromkeys(origin.description for origin in step.definition.origins if origin.description)
            )
            descriptions |= {name: op for name in step.results if name is not None and op}
    return descriptions
