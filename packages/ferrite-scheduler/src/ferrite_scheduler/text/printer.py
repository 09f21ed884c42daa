"""The text form of a schedule; `parser` reads it back.

It holds everything: the graph, the kernels, the host steps, the decisions that led to them, and where definitions came
from. Comments, behind ``#``, are for people.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ferrite_ir.language import sizes
from ferrite_ir.language.graph import (
    Computed,
    Definition,
    Extern,
    Graph,
    Origin,
    Origins,
    TensorType,
    Update,
    Value,
    View,
    views_in,
)
from ferrite_ir.text.printer import definition_text, dims_text, graph_text, type_text
from ferrite_ir.text.tokens import spelled
from ferrite_scheduler.model.annotations import ColumnReduction, LookBackScan, RowResult, SortedScatter, plain
from ferrite_scheduler.model.axes import Axis
from ferrite_scheduler.model.changes import Change
from ferrite_scheduler.model.choices import Choice, Cost
from ferrite_scheduler.model.forms import Combo, MixedCombo, form_text
from ferrite_scheduler.model.schedule import (
    Allocate,
    CallExtern,
    CallGraph,
    Copy,
    Decision,
    Free,
    Item,
    Keep,
    Kernel,
    Launch,
    MakeView,
    Param,
    Reuse,
    Schedule,
    ScheduledOutput,
    Step,
)
from ferrite_scheduler.model.text_hooks import PRINTERS


def schedule_text(schedule: Schedule) -> str:
    """Returns the text of a schedule, and behind it those of its callees."""
    return "\n\n".join(map(_schedule_text, (schedule, *schedule.callees)))


def _schedule_text(schedule: Schedule) -> str:
    lines = graph_text(_plain_graph(schedule.graph)).splitlines()
    for number, kernel in enumerate(schedule.kernels):
        lines += f"kernel {number} {kernel_text(kernel)}".splitlines()
    hosts = {value.name: value for value in schedule.inputs}
    for step in schedule.steps:
        name = f"  # {schedule.kernels[step.kernel].name}" if isinstance(step, Launch) else ""
        lines += f"{step_text(step, hosts)}{name}".splitlines()
        hosts |= {value.name: value for value in host_values(step)}
    lines.append(f"return {', '.join(map(_output_text, schedule.outputs))}")
    lines += [f"destinations {_names(schedule.destinations)}"] if schedule.destinations else []
    lines += _section("decisions", map(decision_text, schedule.decisions))
    lines += _section("changes", map(change_text, schedule.changes))
    lines += _section("choices", map(choice_text, schedule.choices))
    lines += _section("origins", _origin_lines(schedule))
    return "\n".join([f"schedule @{spelled(schedule.graph.name)} {{", *(f"  {line}" for line in lines), "}"])


def kernel_text(kernel: Kernel) -> str:
    """Returns the text of one kernel, its number left out."""
    rows = [" and ".join(f"{sizes.text(size)} <= {limit}" for size, limit in row) for row in kernel.skip_guard]
    unless = f" unless {' or '.join(rows)}" if rows else ""
    marks = f"{unless} backwards" if kernel.backwards else unless
    axes, params = " ".join(map(axis_text, kernel.axes)), ", ".join(map(param_text, kernel.params))
    lines = [f"{kernel.name}: {form_text(kernel.form)} [{axes}]{marks} ({params}) {{"]
    is_mixed = isinstance(kernel.form, MixedCombo)
    lines += () if is_mixed else _body_lines(kernel)
    for part in kernel.members if is_mixed else ():
        axes = " ".join(map(axis_text, part.axes))
        lines += [f"  part {part.name}: {form_text(part.form)} [{axes}] {{", *_body_lines(part, "    "), "  }"]
    return "\n".join([*lines, "}"])


def _body_lines(kernel: Kernel, indent: str = "  ") -> Iterator[str]:
    for definition, part in zip(kernel.body, kernel.part_of, strict=True):
        number = f"  # part {part}" if isinstance(kernel.form, Combo) else ""
        yield from (f"{indent}{line}" for line in f"{_computed_text(definition, kernel)}{number}".splitlines())


def axis_text(axis: Axis) -> str:
    """Returns an axis with its dims, outermost first: ``x(x0 < 8, x1 < n)``."""
    return f"{axis.name}({dims_text(axis.dims)})"


def param_text(param: Param) -> str:
    """Returns a param with how it is accessed: ``read x: f32[8] for the last time``."""
    marks = " by value" * param.host_scalar + " for the last time" * param.is_last + " streaming" * param.is_streaming
    return f"{param.access} {spelled(param.name)}: {type_text(param.type)}{marks}"


def decision_text(decision: Decision) -> str:
    """Returns a decision as the parser reads it; ``str(decision)`` is for people."""
    verdict = " ".join(filter(None, ("fused" if decision.fused else "apart", decision.rule)))
    numbers = ", ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in decision.numbers)
    names = f"{spelled(decision.first)} + {spelled(decision.second)}"
    return f"{names}: {verdict} {json.dumps(decision.reason)}{f' ({numbers})' if numbers else ''}"


def change_text(change: Change) -> str:
    """Returns a change as the parser reads it; ``str(change)`` is for people."""
    became = ", ".join(map(json.dumps, change.became))
    return f"{change.step} ({_names(change.names)}) became ({became}) {json.dumps(change.reason)}"


def choice_text(choice: Choice) -> str:
    """Returns a choice as the parser reads it; ``str(choice)`` is for people."""
    ways = ", ".join(f"{json.dumps(name)} {cost_text(cost)}" for name, cost in choice.ways)
    chosen, reason = json.dumps(choice.chosen), json.dumps(choice.reason)
    return f"({_names(choice.values)}) took {chosen} {reason} of ({ways})"


def cost_text(cost: Cost) -> str:
    """Returns a cost as the parser reads it, infinite ones as words: ``1e-05 "measured" ""``."""
    seconds = json.dumps(str(cost.seconds))
    return f"{seconds} {json.dumps(cost.source)} {json.dumps(cost.problem)}"


def _section(name: str, lines: Iterator[str]) -> list[str]:
    found = list(lines)
    return [f"{name} {{", *(f"  {line}" for line in found), "}"] if found else []


def _plain_graph(graph: Graph) -> Graph:
    return replace(graph, definitions=tuple(map(plain, graph.definitions)))


def _computed_text(definition: Computed, kernel: Kernel) -> str:
    """Returns a definition of a kernel with where its results are, which of them are stored, and its annotation.

    An update says itself where they are.
    """
    names = [result.name for result in definition.results]
    home = kernel.homes[names[0]]
    is_said = isinstance(definition, Update) and home == definition.indices
    location = "" if is_said else f" at [{', '.join(map(str, home))}]"
    stored = ", ".join(spelled(name) for name in names if name in kernel.stored)
    stores = f" stores {stored}" if stored else ""
    return f"{definition_text(plain(definition))}{location}{stores}{_annotation_text(definition)}"


def _annotation_text(definition: Computed) -> str:
    match definition:
        case ColumnReduction():
            return " by column"
        case RowResult():
            return " by row"
        case SortedScatter():
            return f" sorted({definition.points})"
        case LookBackScan():
            return f" look_back({spelled(definition.workspace)}, {definition.points})"
    return ""


# --- host steps -------------------------------------------------------------------------------------------------------


def step_text(step: Step, hosts: Mapping[str, Value] | None = None) -> str:
    """Returns the text of a host step; ``hosts`` are the values that there are on the host before it, by name."""
    match step:
        case Launch(kernel=kernel, args=args):
            return f"launch {kernel}({_names(args)})"
        case Free(names=names):
            return f"free {_names(names)}"
        case Copy(target=target, source=source):
            return f"copy {spelled(target)} from {spelled(source)}"
        case CallGraph():
            return _with_host_names(definition_text(step.definition), step)
        case CallExtern():
            return _call_text(step, hosts)
    return f"{spelled(step.name)} = {_made_text(step)}"


def _made_text(step: Allocate | Keep | Reuse | MakeView | Item) -> str:
    match step:
        case Allocate(type=type_):
            return f"alloc {type_text(type_)}"
        case Keep(type=type_):
            return f"keep {type_text(type_)}"
        case Reuse(source=source, type=type_):
            return f"reuse {spelled(source)} as {type_text(type_)}"
        case Item(source=source, type=type_):
            return f"item {spelled(source)} as {type_text(type_)}"
        case MakeView(view=view):
            kind = type_text(host_values(step)[0].type)
            return f"view {spelled(view.name)} as {kind} at {sizes.text(view.offset)}"


def _call_text(step: CallExtern, hosts: Mapping[str, Value] | None) -> str:
    """Returns an extern call, with the host names of its results where these are not their own names."""
    definition = step.definition
    known = _whole_values(definition) if hosts is None else hosts
    return _with_host_names(definition_text(definition, known), step)


def _with_host_names(text: str, step: CallExtern | CallGraph) -> str:
    definition = step.definition
    if step.results == tuple(None if value is None else value.name for value in definition.results):
        return text
    return f"{text} into ({', '.join('_' if name is None else spelled(name) for name in step.results)})"


def _whole_values(definition: Extern) -> dict[str, Value]:
    """Returns what the operands of a call are views of, if each is a view of a whole."""
    views = views_in((*definition.args, *(value for _, value in definition.kwargs)))
    return {view.name: _viewed(view) for view in views}


def _viewed(view: View, name: str = "") -> Value:
    return Value(name or view.name, TensorType(view.dtype, view.shape, view.strides))


def host_values(step: Step) -> tuple[Value, ...]:
    """Returns the tensors that a step makes, by the names that they have on the host."""
    match step:
        case Allocate(name, type_) | Keep(name, type_):
            return (Value(name, type_),)
        case Reuse(name, _, type_) | Item(name, _, type_):
            return (Value(name, type_),)
        case MakeView(name, view):
            return (_viewed(view, name),)
        case CallExtern(definition, results) | CallGraph(definition, results):
            pairs = zip(results, definition.results, strict=True)
            return tuple(Value(name, value.type) for name, value in pairs if name is not None and value is not None)
    return ()


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(map(spelled, names))


def _output_text(output: ScheduledOutput) -> str:
    if isinstance(output, str):
        return spelled(output)
    if isinstance(output, sizes.Symbolic):
        return f"size({sizes.text(output)})"
    return "none" if output is None else str(output).lower() if isinstance(output, bool) else repr(output)


# --- origins ----------------------------------------------------------------------------------------------------------


def definitions_by_place(schedule: Schedule) -> Iterator[tuple[str, Definition]]:
    """Yields each definition of a schedule with where it stands: in the graph, or in a kernel or step of a number."""
    for number, definition in enumerate(schedule.graph.definitions):
        yield f"graph {number}", definition
    for kernel_number, kernel in enumerate(schedule.kernels):
        for number, computed in enumerate(kernel.body):
            yield f"kernel {kernel_number} {number}", computed
    for number, step in enumerate(schedule.steps):
        if isinstance(step, CallExtern | CallGraph):
            yield f"step {number}", step.definition


def _origin_lines(schedule: Schedule) -> Iterator[str]:
    """Yields the origins that there are, each with the places of the definitions that come from it."""
    locations: dict[Origins, list[str]] = {}
    for location, definition in definitions_by_place(schedule):
        if definition.origins:
            locations.setdefault(definition.origins, []).append(location)
    for origins, found in locations.items():
        yield f"{', '.join(found)}: {', '.join(map(_origin_text, origins))}"


def _origin_text(origin: Origin) -> str:
    fields = [origin.op, origin.module, origin.line, origin.path]
    while fields and not fields[-1]:
        fields.pop()
    return f"[{', '.join(map(json.dumps, fields))}]"


PRINTERS.update(schedule=schedule_text, kernel=kernel_text, axis=axis_text, param=param_text, step=step_text)
