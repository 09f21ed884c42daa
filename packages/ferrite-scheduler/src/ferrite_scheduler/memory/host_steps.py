"""Host steps: which buffer every stored value lives in, from when to when.

A value's *host name* is the name of the tensor that holds it on the host: its own, or that of the value whose storage
it took over by an in-place update. Buffers are allocated right before their first use and dropped right after their
last; a dead buffer may serve the next value of its size (`Reuse`), or a result of the very kernel that reads it last
(in place).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeAlias

from ferrite_ir.language.bindings import AFTER, results_that_bind
from ferrite_ir.language.graph import Extern, Graph, If, Loop, Reduction, TensorType, Update, View, loads_of
from ferrite_ir.language.index import Index, linearize
from ferrite_ir.language.sizes import Size
from ferrite_scheduler.analysis.dependences import Dependences
from ferrite_scheduler.analysis.nodes import Node
from ferrite_scheduler.model.intermediates import KEPT
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.schedule import (
    Allocate,
    CallExtern,
    CallGraph,
    Free,
    Item,
    Keep,
    Kernel,
    Launch,
    MakeView,
    Param,
    Reuse,
    ScheduledOutput,
    Step,
)

from .sub_buffers import SubBuffer, empty_name, find_sub_buffers

Work: TypeAlias = Kernel | Node
"""One thing to run: a kernel, or the node of a host call."""


@dataclass(slots=True)
class _Plan:
    """The plan being made."""

    graph: Graph
    dependences: Dependences
    policy: Policy
    host: dict[str, str] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)
    owned: set[str] = field(default_factory=set)
    items: dict[str, str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    sub_buffers: dict[str, SubBuffer] = field(default_factory=dict)
    telling: frozenset[str] = frozenset()
    destinations: dict[str, str] = field(default_factory=dict)


def plan_memory(
    work: Sequence[Work],
    graph: Graph,
    dependences: Dependences,
    policy: Policy,
    donated: Collection[str] = (),
    held: Collection[str] = (),
    destinations: Mapping[str, str] = MappingProxyType({}),
) -> tuple[tuple[Kernel, ...], tuple[Step, ...], tuple[ScheduledOutput, ...]]:
    """Returns ``(kernels, steps, outputs)`` for work in execution order.

    Storages of ``donated`` inputs are the program's own; ``held`` ones are never freed. ``destinations`` are inputs
    that hold nothing, by the results that are to lie there.
    """
    plan = _Plan(graph, dependences, policy, owned=set(donated) - dict(graph.mutations).keys())
    plan.taken = set(graph.values)
    plan.telling = frozenset(results_that_bind(graph))
    plan.destinations = dict(destinations)
    for value in graph.inputs:
        plan.host[value.name] = value.name
        plan.types[value.name] = value.type
    _name_hosts(plan, work)
    deaths = _deaths(plan, work, held)
    shared = _shared_storages(plan)
    plan.sub_buffers = find_sub_buffers(work, graph, dependences, plan.owned - shared)
    plan.owned -= {*plan.sub_buffers, *(sub_buffer.inside for sub_buffer in plan.sub_buffers.values())}
    pending: list[str] = deaths.pop(-1, [])
    for position, item in enumerate(work):
        dying = deaths.get(position, [])
        if isinstance(item, Kernel):
            dying = _run_kernel(plan, item, pending, dying, shared)
        elif _is_allocated(plan, item):
            _allocate(plan, item, pending, shared)
        else:
            _drop(plan, pending)
            _call(plan, item)
        pending = dying
    _drop(plan, [*pending, *plan.destinations.values()])
    outputs = tuple(_output(plan, output) for output in graph.outputs)
    return tuple(plan.kernels), tuple(plan.steps), outputs


def _name_hosts(plan: _Plan, work: Sequence[Work]) -> None:
    """Names the tensor that holds each value kept in memory."""
    for item in work:
        if isinstance(item, Kernel):
            updates = {d.result.name: d.target for d in item.body if isinstance(d, Update)}
            for name in item.stored:
                _name_host(plan, name, updates.get(name))
            continue
        definition = item.definition
        for result in definition.results:
            if result is not None:
                _name_host(plan, result.name, _taken_over(definition, result.name, plan))
        if _is_kept(definition):
            plan.owned.difference_update(item.result_names)  # nothing else may lie there


def _name_host(plan: _Plan, name: str, target: str | None) -> None:
    host = name if target is None else plan.host[target]
    plan.host[name] = host
    if target is None:
        plan.types[host] = plan.graph.values[name].type
        plan.owned.add(host)


def _is_kept(definition: object) -> bool:
    return isinstance(definition, Extern) and definition.target == KEPT


def _taken_over(definition: object, name: str, plan: _Plan) -> str | None:
    """Returns the operand whose tensor a result of a call simply is, or None."""
    if not isinstance(definition, Extern):
        return None
    for result, operand in definition.aliases:
        if result == name and operand in definition.mutates:
            same = plan.graph.values[name].type == plan.types[plan.host[operand]]
            return operand if same else None
    return None


def _deaths(plan: _Plan, work: Sequence[Work], held: Collection[str]) -> dict[int, list[str]]:
    """Returns for each position the host names last used there, in first-use order; unused inputs at -1."""
    last: dict[str, int] = {value.name: -1 for value in plan.graph.inputs}
    for position, item in enumerate(work):
        for name in _names_touched(plan, item):
            last[plan.host[name]] = position
    for name in (*plan.graph.output_names, *held, *plan.destinations.values()):
        last.pop(plan.host[name], None)
    deaths: dict[int, list[str]] = {}
    for host, position in last.items():
        deaths.setdefault(position, []).append(host)
    return deaths


def _names_touched(plan: _Plan, item: Work) -> list[str]:
    if isinstance(item, Kernel):
        return [param.name for param in item.params]
    return [*item.reads, *(name for name in item.result_names if plan.host[name] != name or _is_used(plan, name))]


def _shared_storages(plan: _Plan) -> frozenset[str]:
    """Returns the host names whose storage has, or may have, another name: they are never overwritten early."""
    owners: dict[str, set[str]] = {}
    for name, host in plan.host.items():
        owners.setdefault(plan.dependences.storage[name], set()).add(host)
    return frozenset(host for hosts in owners.values() if len(hosts) > 1 for host in hosts)


def _run_kernel(plan: _Plan, kernel: Kernel, pending: list[str], dying: list[str], shared: frozenset[str]) -> list[str]:
    """Adds the steps of one launch; returns the host names that are dead after it."""
    updated = {d.result.name for d in kernel.body if isinstance(d, Update)}
    fresh = [param for param in kernel.params if param.access == "write" and param.name not in updated]
    spare = [host for host in dying if host in plan.owned and host not in shared]
    placed = {param.name: plan.destinations.pop(param.name) for param in fresh if param.name in plan.destinations}
    others = [param for param in fresh if param.name not in placed]
    in_place = _in_place(plan, kernel, others, spare) if plan.policy.inplace else {}
    reused: dict[str, str] = {}
    if plan.policy.reuse:
        free = [host for host in pending if host in plan.owned and host not in shared]
        reused = _match_sizes(plan, [param for param in others if param.name not in in_place], free)
    _drop(plan, [host for host in pending if host not in reused.values()])
    taken: dict[str, str] = {}
    for param in fresh:
        source = in_place.get(param.name, reused.get(param.name, placed.get(param.name)))
        if source is None:
            plan.steps.append(Allocate(param.name, param.type))
        else:
            plan.steps.append(Reuse(param.name, source, param.type))
            taken[source] = param.name
    if _copies_onto_itself(plan, kernel, in_place):
        return [host for host in dying if host not in taken]
    if in_place:
        kernel = replace(kernel, params=tuple(_marked(param, in_place) for param in kernel.params))
    arguments = tuple(_argument(plan, param, taken) for param in kernel.params)
    plan.steps.append(Launch(len(plan.kernels), arguments))
    plan.kernels.append(kernel)
    for name in updated:
        plan.items.pop(plan.host[name], None)
    return [host for host in dying if host not in taken]


def _copies_onto_itself(plan: _Plan, kernel: Kernel, in_place: Mapping[str, str]) -> bool:
    """Returns whether a kernel would store nothing but what lies there: a copy of what nobody else reads."""
    return not kernel.skip_guard and all(
        isinstance(definition, Loop)
        and all(
            body.op == "load" and in_place.get(result.name) == plan.host.get(body.source)
            for result, body in zip(definition.results, definition.bodies, strict=True)
        )
        for definition in kernel.body
    )


def _marked(param: Param, in_place: dict[str, str]) -> Param:
    return replace(param, access="readwrite", is_last=False) if param.name in in_place else param


def _argument(plan: _Plan, param: Param, taken: dict[str, str]) -> str:
    host = plan.host[param.name]
    host = taken.get(host, host) if host != param.name else taken.get(param.name, host)
    return _item(plan, host, param.type) if param.host_scalar else host


def _item(plan: _Plan, host: str, tensor: TensorType) -> str:
    """Returns the name of the number that a CPU scalar holds, read once."""
    if host not in plan.items:
        plan.items[host] = _new_name(plan, f"{host}_item")
        plan.steps.append(Item(plan.items[host], host, tensor))
    return plan.items[host]


def _in_place(plan: _Plan, kernel: Kernel, fresh: list[Param], spare: list[str]) -> dict[str, str]:
    """Returns for results that may overwrite an operand which dies in this kernel the host name of that operand.

    Of kernels that share a launch, each may overwrite what it alone reads.
    """
    members = kernel.members
    touching = Counter(host for member in members for host in {plan.host[param.name] for param in member.params})
    alone = [host for host in spare if touching[host] == 1]
    found: dict[str, str] = {}
    for member in members:
        own = {plan.host[param.name] for param in member.params}
        wanted = [param for param in fresh if param.name in member.homes]
        found |= _in_place_of(plan, member, wanted, [host for host in alone if host in own])
    return found


def _in_place_of(plan: _Plan, kernel: Kernel, fresh: list[Param], spare: list[str]) -> dict[str, str]:
    if not spare or kernel.form.overwrites == "none":
        return {}
    reads = _read_addresses(plan, kernel)
    if kernel.form.overwrites == "stored last":
        fresh = [param for param in fresh if _is_stored_last(kernel, param.name)]
    defined = {result.name: position for position, d in enumerate(kernel.body) for result in d.results}
    part = kernel.part_of
    found: dict[str, str] = {}
    left = dict.fromkeys(spare)
    for param in fresh:
        address, mine = linearize(kernel.homes[param.name], param.type.strides), defined[param.name]
        for host in left:
            positions = reads.get(host)
            if positions is None or not _same_storage(plan.types[host], param.type):
                continue
            if all(a is address and at <= mine and part[at] == part[mine] for a, at in positions):
                found[param.name] = host
                del left[host]
                break
    return found


def _is_stored_last(kernel: Kernel, name: str) -> bool:
    """Returns whether a looped kernel stores a result in its last loop over the reduction axis, element by element.

    What is read at reduction level is read anew in every loop, so an earlier one must not overwrite it; nor is it
    stored last if a later loop computes it anew for others. What there is one of for a row is read by every program
    that shares the row, and others may be done by then.
    """
    assert kernel.reduction is not None, "such a kernel reduces"
    reduced = set(kernel.reduction.dims)
    if not any(dim in reduced for index in kernel.homes[name] for dim in index.dims):
        return False
    pass_of, needing, last = kernel.pass_of, {name}, 0
    for definition in kernel.body:
        reads = any(load.source in needing for load in loads_of(definition))
        if reads and isinstance(definition, Loop):
            needing.update(result.name for result in definition.results)
        if reads or isinstance(definition, Reduction):
            last = max(last, pass_of[definition.results[0].name])
    return pass_of[name] >= last


def _read_addresses(plan: _Plan, kernel: Kernel) -> dict[str, list[tuple[Index, int]]]:
    """Returns for each host name read the addresses of all loads, each with the place in the body where it is."""
    found: dict[str, list[tuple[Index, int]]] = {}
    for position, definition in enumerate(kernel.body):
        for load in loads_of(definition):
            if load.source not in kernel.homes:
                tensor = plan.graph.values[load.source].type
                address = linearize(load.indices, tensor.strides)
                found.setdefault(plan.host[load.source], []).append((address, position))
        if isinstance(definition, Update):
            found.setdefault(plan.host[definition.target], []).append((linearize((), ()), len(kernel.body)))
    return found


def _same_storage(old: TensorType, new: TensorType) -> bool:
    return old.dtype is new.dtype and old.device == new.device and old.storage_size == new.storage_size != 0


def _match_sizes(plan: _Plan, fresh: list[Param], free: list[str]) -> dict[str, str]:
    """Returns for new buffers a dead one with exactly their number of bytes."""
    by_size: dict[tuple[Size, str], list[str]] = {}
    for host in free:
        by_size.setdefault(_size_class(plan.types[host]), []).append(host)
    found: dict[str, str] = {}
    for param in fresh:
        candidates = by_size.get(_size_class(param.type))
        if candidates and param.type.storage_size != 0:
            found[param.name] = candidates.pop(0)
    return found


def _size_class(tensor: TensorType) -> tuple[Size, str]:
    return tensor.storage_size * tensor.dtype.bytes, tensor.device


def _drop(plan: _Plan, hosts: list[str]) -> None:
    if hosts:
        plan.steps.append(Free(tuple(hosts)))


def _new_name(plan: _Plan, wanted: str) -> str:
    name, number = wanted, 2
    while name in plan.taken:
        name, number = f"{wanted}_{number}", number + 1
    plan.taken.add(name)
    return name


def _is_allocated(plan: _Plan, node: Node) -> bool:
    """Returns whether a call makes a buffer without contents, of a type that programs have, in no other buffer."""
    name = empty_name(node)
    if name is None or name in plan.sub_buffers or _result_name(plan, plan.graph.values[name]) is None:
        return False
    return plan.types[name].dtype.kind != "opaque"


def _allocate(plan: _Plan, node: Node, pending: list[str], shared: frozenset[str]) -> None:
    """Adds the steps of a call that makes a buffer without contents: a dead one of its size, or a new one."""
    result = plan.graph.values[str(empty_name(node))]
    param = Param(result.name, result.type, "write")
    free = [host for host in pending if host in plan.owned and host not in shared]
    holds_others = any(sub_buffer.inside == result.name for sub_buffer in plan.sub_buffers.values())
    reused = _match_sizes(plan, [param], free) if plan.policy.reuse and not holds_others else {}
    _drop(plan, [host for host in pending if host not in reused.values()])
    source = reused.get(result.name)
    made = Allocate(result.name, result.type) if source is None else Reuse(result.name, source, result.type)
    plan.steps.append(made)


def _call(plan: _Plan, node: Node) -> None:
    definition = node.definition
    if not isinstance(definition, Extern):
        renamed = {"args": tuple(plan.host[name] for name in definition.args)}  # type: ignore[union-attr]
        if isinstance(definition, If):
            renamed["condition"] = plan.host[definition.condition]  # type: ignore[assignment]
        results = tuple(_result_name(plan, result) for result in definition.results)
        plan.steps.append(CallGraph(replace(definition, **renamed), results))  # type: ignore[arg-type]
        return
    made_here = definition.results[0] if definition.results else None
    if made_here is not None and made_here.name in plan.sub_buffers:
        sub_buffer, tensor = plan.sub_buffers[made_here.name], made_here.type
        view = View(plan.host[sub_buffer.inside], tensor.dtype, tensor.shape, tensor.strides, sub_buffer.offset)
        plan.steps.append(MakeView(made_here.name, view))
        return
    if made_here is not None and definition.target == AFTER:
        source = definition.args[0]
        plan.steps.append(MakeView(made_here.name, replace(source, name=plan.host[source.name])))
        return
    if made_here is not None and _is_kept(definition):
        plan.steps.append(Keep(made_here.name, made_here.type))
        return
    made: list[str] = []
    args = tuple(_host_argument(plan, argument, made) for argument in definition.args)
    kwargs = tuple((key, _host_argument(plan, argument, made)) for key, argument in definition.kwargs)
    results = tuple(_result_name(plan, result) for result in definition.results)
    for name in definition.mutates:
        plan.items.pop(plan.host[name], None)
    called = replace(
        definition,
        args=args,
        kwargs=kwargs,
        mutates=tuple(plan.host[name] for name in definition.mutates),
        aliases=tuple((result, plan.host[name]) for result, name in definition.aliases),
    )
    plan.steps.append(CallExtern(called, results))
    _drop(plan, made)


def _result_name(plan: _Plan, result: Any) -> str | None:
    if result is None or plan.host[result.name] != result.name:
        return None
    return result.name if _is_used(plan, result.name) else None


def _is_used(plan: _Plan, name: str) -> bool:
    return name in plan.dependences.readers or name in plan.dependences.kept or name in plan.telling


def _host_argument(plan: _Plan, argument: Any, made: list[str]) -> Any:
    """Returns an argument with views over host names, strided ones made tensors of their own first."""
    if isinstance(argument, tuple):
        return tuple(_host_argument(plan, item, made) for item in argument)
    if not isinstance(argument, View):
        return argument
    return _host_view(plan, argument, made)


def _host_view(plan: _Plan, view: View, made: list[str]) -> View:
    host = plan.host[view.name]
    if _is_whole(view, plan.types[host]):
        return replace(view, name=host)
    name = _new_name(plan, f"{host}_view")
    plan.steps.append(MakeView(name, replace(view, name=host)))
    made.append(name)
    return replace(view, name=name, offset=0)


def _is_whole(view: View, tensor: TensorType) -> bool:
    return (
        view.offset == 0
        and view.dtype is tensor.dtype
        and view.shape == tensor.shape
        and view.strides == tensor.strides
    )


def _output(plan: _Plan, output: Any) -> ScheduledOutput:
    if not isinstance(output, View):
        return output  # type: ignore[no-any-return]
    return _host_view(plan, output, []).name
