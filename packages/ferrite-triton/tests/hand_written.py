"""Schedules made by hand: every definition of a graph in one kernel, so that tests choose form and axes themselves.

Dims called ``r…`` are the reduction axis; all others lie on ``x`` unless a test puts them elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ferrite_ir import parse_graph
from ferrite_ir.language.graph import Computed, Contract, Graph, Reduction, Update, View, names_read
from ferrite_ir.language.index import Dim
from ferrite_scheduler.model.axes import Axis
from ferrite_scheduler.model.forms import Form, parse_form
from ferrite_scheduler.model.schedule import Allocate, Item, Kernel, Launch, Param, Schedule, Step


def kernel_dims(graph: Graph) -> tuple[Dim, ...]:
    """Returns all dims of the graph's definitions, in first-use order."""
    dims: dict[Dim, None] = {}
    for definition in graph.definitions:
        dims.update(dict.fromkeys(definition.dims))
        if isinstance(definition, Reduction | Contract):
            dims.update(dict.fromkeys(definition.reduction_dims))
    return tuple(dims)


def place_axes(dims: tuple[Dim, ...], placed: Mapping[str, str]) -> tuple[Axis, ...]:
    """Returns the axes that hold the dims: ``placed`` names the axis of some dims."""
    where = {dim: placed.get(dim.name, "r" if dim.name.startswith("r") else "x") for dim in dims}
    axes = [Axis(name, tuple(dim for dim in dims if where[dim] == name)) for name in ("z", "y", "x", "r")]
    return tuple(axis for axis in axes if axis.dims)


def make_kernel(
    graph: Graph, form: str | Form, placed: Mapping[str, str] | None = None, stored: tuple[str, ...] | None = None
) -> Kernel:
    """Returns one kernel that computes the whole graph, in a form or in what `parse_form` reads."""
    form = parse_form(form) if isinstance(form, str) else form
    computed: tuple[Computed, ...] = graph.definitions
    updates = {definition.result.name: definition.target for definition in computed if isinstance(definition, Update)}
    outputs = tuple(dict.fromkeys(view.name for view in graph.outputs if isinstance(view, View)))
    names = outputs if stored is None else stored
    defined = {result.name: definition for definition in computed for result in definition.results}
    kept = tuple(name for name in (*names, *updates) if name in defined)
    reads = dict.fromkeys(name for definition in computed for name in names_read(definition))
    params = [
        Param(value.name, value.type, "read", host_scalar=value.type.device == "cpu" and graph.device != "cpu")
        for value in graph.inputs
        if value.name in reads and value.name not in updates.values()
    ]
    for name in dict.fromkeys(kept):
        value = next(result for result in defined[name].results if result.name == name)
        params.append(Param(name, value.type, "readwrite" if name in updates else "write"))
    homes = {name: tuple(dim.index for dim in definition.dims) for name, definition in defined.items()}
    axes = place_axes(kernel_dims(graph), placed or {})
    return Kernel("hand_written", form, axes, computed, homes, tuple(dict.fromkeys(kept)), tuple(params))


def make_schedule(graph: Graph, kernel: Kernel) -> Schedule:
    """Returns the schedule that launches the kernel once."""
    updates = {d.result.name: d.target for d in kernel.body if isinstance(d, Update)}
    steps: list[Step] = [Allocate(param.name, param.type) for param in kernel.params if param.access == "write"]
    steps += [Item(f"{param.name}_item", param.name, param.type) for param in kernel.params if param.host_scalar]
    arguments = [
        f"{param.name}_item" if param.host_scalar else updates.get(param.name, param.name) for param in kernel.params
    ]
    launch = Launch(0, tuple(arguments))
    outputs = tuple(updates.get(view.name, view.name) if isinstance(view, View) else view for view in graph.outputs)
    return Schedule(graph, (kernel,), (*steps, launch), outputs)


def schedule_text(
    text: str,
    form: str | Form,
    placed: Mapping[str, str] | None = None,
    stored: tuple[str, ...] | None = None,
    *,
    backwards: bool = False,
) -> Schedule:
    """Returns the schedule of a graph written as text, all of it in one kernel."""
    graph = parse_graph(text)
    kernel = make_kernel(graph, form, placed, stored)
    return make_schedule(graph, replace(kernel, backwards=backwards))
