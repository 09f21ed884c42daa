"""Schedules as text, for people."""

from __future__ import annotations

from collections.abc import Iterable

from ferrite_ir.graph import TensorType, Value
from ferrite_ir.text import definition_text

from .schedule import (
    Allocate,
    Axis,
    CallExtern,
    CallGraph,
    Copy,
    Decision,
    Free,
    Item,
    Kernel,
    Launch,
    MakeView,
    Reuse,
    Schedule,
    Step,
)


def schedule_text(schedule: Schedule, *, decisions: bool = False) -> str:
    """Returns kernels and steps of a schedule, and with ``decisions`` each fusion that was considered."""
    lines = [f"schedule @{schedule.graph.name} {{"]
    for number, kernel in enumerate(schedule.kernels):
        lines += _indented(kernel_lines(number, kernel))
    lines += _indented(step_text(step, schedule) for step in schedule.steps)
    lines.append(f"  return {', '.join(map(str, schedule.outputs))}")
    if decisions:
        lines += _indented(decision_text(decision) for decision in schedule.decisions)
    lines.append("}")
    return "\n".join(lines)


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def kernel_lines(number: int, kernel: Kernel) -> list[str]:
    """Returns a kernel as lines: its space, its tensors, its definitions."""
    params = ", ".join(f"{param.access} {param.name}: {_type(param.type)}" for param in kernel.params)
    lines = [f"kernel {number} {kernel.name} [{' '.join(map(_axis, kernel.axes))}] ({params}) {{"]
    for definition in kernel.body:
        marks = [
            f"{name}@({', '.join(map(str, home))})" for name, home in kernel.homes.items() if name in kernel.stored
        ]
        kept = [mark for mark in marks if mark.split("@")[0] in {result.name for result in definition.results}]
        lines.append(f"  {definition_text(definition)}{'  # stores ' + ', '.join(kept) if kept else ''}")
    return [*lines, "}"]


def _axis(axis: Axis) -> str:
    dims = ", ".join(f"{dim.name} < {dim.size}" for dim in axis.dims)
    return f"{axis.name}({dims})"


def _type(tensor: TensorType) -> str:
    shape = ", ".join(map(str, tensor.shape))
    strides = "" if tensor.is_row_major else "{" + ", ".join(map(str, tensor.strides)) + "}"
    return f"{tensor.dtype}[{shape}]{strides}"


def step_text(step: Step, schedule: Schedule) -> str:
    """Returns one host step."""
    match step:
        case Allocate():
            return f"{step.name} = alloc {_type(step.type)}"
        case Reuse():
            return f"{step.name} = reuse {step.source} as {_type(step.type)}"
        case MakeView():
            view = step.view
            return (
                f"{step.name} = view {view.name} {list(view.shape)} strides {list(view.strides)} offset {view.offset}"
            )
        case Item():
            return f"{step.name} = item {step.source}"
        case Launch():
            return f"launch {step.kernel} {schedule.kernels[step.kernel].name}({', '.join(step.args)})"
        case CallExtern():
            return f"{', '.join(str(name) for name in step.results) or '_'} = {definition_text(step.definition, _host_values(schedule)).split(' = ', 1)[-1]}"
        case CallGraph():
            return definition_text(step.definition)
        case Copy():
            return f"copy {step.target} from {step.source}"
        case Free():
            return f"free {', '.join(step.names)}"
    raise TypeError(f"not a step: {step!r}")


def _host_values(schedule: Schedule) -> dict[str, Value]:
    """Returns the tensors that host steps name, so that whole views of them print as their names."""
    made = {step.name: Value(step.name, step.type) for step in schedule.steps if isinstance(step, Allocate | Reuse)}
    views = [step for step in schedule.steps if isinstance(step, MakeView)]
    viewed = {s.name: Value(s.name, TensorType(s.view.dtype, s.view.shape, s.view.strides)) for s in views}
    return {**schedule.graph.values, **made, **viewed}


def decision_text(decision: Decision) -> str:
    """Returns one decision."""
    verdict = "fused" if decision.fused else f"apart, {decision.rule}"
    return f"{decision.first} + {decision.second}: {verdict}: {decision.reason}"
