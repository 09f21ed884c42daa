"""What a CUDA graph cannot hold: for each step of a program the reason, where there is one.

A graph repeats what the device does, with the same arguments in the same memory. So it holds no step that waits for the
device, that reads or makes anything on the host, that depends on a number which may be another in the next call, or
that runs functions of the user's, which may do anything besides. What is not known to be harmless is an obstacle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ferrite_runtime.errors import ExternError
from ferrite_runtime.formats.call_steps import Call, For, If, While
from ferrite_runtime.formats.expressions import condition_exprs, expr_names, is_settled
from ferrite_runtime.formats.layouts import Layout
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.steps import (
    Alloc,
    Check,
    Copy,
    Extern,
    Free,
    Item,
    Keep,
    Launch,
    Let,
    Probe,
    Reuse,
    Step,
    Tagged,
    View,
    Within,
    value_refs,
    value_sizes,
)
from ferrite_runtime.host.extern_calls import find_operator, is_captured

OWN_NAMESPACES = ("aten", "prims", "ferrite")
"""Operators whose implementations are known: what they do is on the device, but for those with `WAITING_TAGS`."""
WAITING_TAGS = ("cudagraph_unsafe", "data_dependent_output", "dynamic_output_shape")
"""torch's tags of operators that wait for the device, or say themselves that no graph may hold them."""
_ALIASES = ("ferrite.alias", "aten._unsafe_view.default")
"""Operators that return the memory that they are given, and whose schemas do not say so."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a step is in no graph.

    Attributes:
        step: its position in the program.
        values: what it makes, or reads where it makes nothing: by these names its op is found in the captured graph.
        reason: a clause about the step.
    """

    step: int
    values: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        return f"step {self.step} {self.reason}"


def layout_names(layout: Layout) -> set[str]:
    """Returns the numbers that a layout depends on."""
    return {name for size in (*layout.shape, *layout.strides) for name in expr_names(size)}


def used_names(step: Step) -> set[str]:
    """Returns the values and numbers that a step needs; those that it makes itself are not among them."""
    return set(_used(step)) - set(made_names(step))


def _used(step: Step) -> Iterator[str]:
    match step:
        case Alloc(layout=layout) | Keep(layout=layout):
            yield from layout_names(layout)
        case Reuse(_, source, layout):
            yield from (source, *layout_names(layout))
        case View(_, base, layout, offset):
            yield from (base, *layout_names(layout), *expr_names(offset))
        case Let(_, value):
            yield from (value.tensor,) if isinstance(value, Probe) else expr_names(value)
        case Launch(_, args, alternatives):
            exprs = (*args, *(expr for other in alternatives for expr, _ in other.when))
            yield from _names_of(expr for expr in exprs if isinstance(expr, (str, tuple)))
        case Extern(_, args, kwargs):
            given = (*args, *kwargs.values())
            yield from value_refs(given)
            yield from _names_of((*value_sizes(given), *(size for row in step.strides or () for size in row or ())))
        case Item(_, source):
            yield source
        case Copy(to, source):
            yield from (to, source)
        case Check(holds, _, named):
            yield from _names_of((*condition_exprs(holds), *(expr for _, expr in named)))
        case Within(owner, end):
            yield from (owner, *expr_names(end))
        case Call() | If() | While() | For():
            stacked = step.stacked if isinstance(step, For) else ()
            yield from (*step.args, *([step.condition] if isinstance(step, If) else []))
            yield from _names_of((*step.sizes, *([step.count] if isinstance(step, For) else [])))
            yield from (name for layout in stacked for name in layout_names(layout))


def _names_of(exprs: Iterable[Any]) -> Iterator[str]:
    return (name for expr in exprs for name in expr_names(expr))


def made_names(step: Step) -> tuple[str, ...]:
    """Returns the values and numbers that a step makes."""
    match step:
        case Alloc(name) | Keep(name) | Reuse(name) | View(name) | Let(name) | Item(name):
            return (name,)
        case Extern(results=results, binds=binds):
            return (*(name for name in results if name is not None), *(name for name, _, _ in binds))
        case Call() | If() | While() | For():
            numbers = step.numbers if isinstance(step, While) else ()
            return (*(name for name in step.results if name is not None), *numbers)
    return ()


def is_floating(step: Step) -> bool:
    """Tells whether a step only names memory or a number, and so may stand wherever its value is used."""
    match step:
        case Let(_, value):
            return not isinstance(value, Probe)
    return isinstance(step, (Alloc, Keep, Reuse, View))


def runs_user_code(step: Step) -> bool:
    """Tells whether a step calls what may keep its arguments, or do anything else with them."""
    return isinstance(step, Extern) and step.target.partition(".")[0] not in OWN_NAMESPACES


@dataclass(frozen=True, slots=True)
class CalleeFacts:
    """What is known of a graph that steps call.

    Attributes:
        devices: where its results lie, None where only running it tells.
        obstacle: why it can be in no CUDA graph; None if it can.
        launches: how many launches and extern calls it makes.
    """

    devices: tuple[str | None, ...]
    obstacle: Obstacle | None
    launches: int


@dataclass(slots=True)
class ProgramFacts:
    """What is known of a program's values.

    Attributes:
        program: the program.
        layouts: of tensors, where known.
        numbers: the integers and floats that may be others in the next call.
        devices: where tensors lie, None where only running the program tells.
        bases: for each view what it is a view of.
        memory: a name for the memory that a value lies in; two values of the same name may share it.
        aliased: of these, memory that an extern call has returned under another name.
        varying: tensors whose size may be another in the next call.
        callees: the graphs that were looked at, each once, however many ways lead to it.
    """

    program: Program
    layouts: dict[str, Layout | None] = field(default_factory=dict)
    numbers: set[str] = field(default_factory=set)
    devices: dict[str, str | None] = field(default_factory=dict)
    bases: dict[str, str] = field(default_factory=dict)
    memory: dict[str, str] = field(default_factory=dict)
    aliased: set[str] = field(default_factory=set)
    varying: set[str] = field(default_factory=set)
    callees: dict[str, CalleeFacts] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program, callees: dict[str, CalleeFacts] | None = None) -> ProgramFacts:
        """Returns what is known of the values of a program; of a graph, for which ``callees`` are its caller's.

        A graph is given the same numbers each time, or its caller's step is an obstacle.
        """
        facts = cls(program) if callees is None else cls(program, callees=callees)
        for value in program.inputs:
            if value.kind == "scalar":
                facts.numbers |= {value.name} if callees is None else set()
            else:
                facts.add(value.name, value.layout, value.device)
        launched = _launched(program)
        for step in program.steps:
            facts.read(step, launched)
        return facts

    def callee(self, name: str) -> CalleeFacts:
        """Returns what is known of a graph that steps of the program call."""
        if name not in self.callees:
            position = next(position for position, each in enumerate(self.program.graphs) if each.name == name)
            inner = ProgramFacts.of(self.program.callee(position), self.callees)
            devices = tuple(inner.devices.get(output.value or "") for output in inner.program.outputs)
            found = next(iter(obstacles(inner.program, inner).values()), None)
            self.callees[name] = CalleeFacts(devices, found, inner.launches(inner.program.steps))
        return self.callees[name]

    def launches(self, steps: Iterable[Step]) -> int:
        """Returns how many launches and extern calls steps make, those of a choice or an open loop once."""
        total = 0
        for step in steps:
            match step:
                case Launch() | Extern() | Copy() | If() | While():
                    total += 1
                case Call(graph):
                    total += self.callee(graph).launches
                case For(graph, count=count):
                    total += self.callee(graph).launches * (count if isinstance(count, int) else 1)
        return total

    def add(self, name: str, layout: Layout | None, device: str | None, memory: str | None = None) -> None:
        """Notes a tensor."""
        self.layouts[name] = layout
        self.devices[name] = device
        self.memory[name] = memory or name
        if layout is not None and layout_names(layout) & self.numbers:
            self.varying.add(name)

    def read(self, step: Step, launched: set[str]) -> None:
        """Notes what a step makes; ``launched`` are the tensors that kernels are launched on."""
        self._read_kind(step, launched)
        binds = (isinstance(step, Extern) and step.binds) or (isinstance(step, While) and step.stacks)
        if not isinstance(step, (Let, Item)) and (binds or used_names(step) & (self.numbers | self.varying)):
            self.varying |= {name for name in made_names(step) if name in self.layouts}

    def _read_kind(self, step: Step, launched: set[str]) -> None:
        match step:
            case Alloc(name, layout, device):
                self.add(name, layout, device or self.program.device)
            case Keep(name, layout):
                self.add(name, layout, self.program.device)
            case Reuse(name, source, layout):
                self.add(name, layout, self.devices[source], self.memory[source])
            case View(name, base, layout):
                self.add(name, layout, self.devices[base], self.memory[base])
                self.bases[name] = base
            case Let(name, value):
                self.numbers |= {name} if isinstance(value, Probe) or used_names(step) & self.numbers else set()
            case Item(name):
                self.numbers.add(name)
            case Extern():
                self._read_extern(step, launched)
            case Call(graph) | For(graph):
                self._read_call(step, self.callee(graph))
            case If() | While():
                self._read_unknown(step)

    def _read_unknown(self, step: If | While) -> None:
        for name in step.results:
            if name is not None:
                self.add(name, None, None)
        self.numbers |= set(step.numbers) if isinstance(step, While) else set()

    def _read_call(self, step: Call | For, callee: CalleeFacts) -> None:
        for result, device in zip(step.results, callee.devices, strict=True):
            if result is not None:
                self.add(result, None, device)

    def _read_extern(self, step: Extern, launched: set[str]) -> None:
        refs = [name for name in value_refs((*step.args, *step.kwargs.values())) if name in self.devices]
        found: set[str | None] = {self.devices[name] for name in refs}
        named = _device_argument(step)
        device = named if named is not None else found.pop() if len(found) == 1 else None
        if named is None and runs_user_code(step):
            device = None
        shared = self._share(refs) if refs and returns_memory(step) else None
        for name in step.results:
            if name is not None:
                made_on = self.program.device if device is None and name in launched else device
                self.add(name, None, made_on, shared)
        self.numbers |= {name for name, _, _ in step.binds}

    def _share(self, names: list[str]) -> str:
        """Notes that values may be found to share their memory; returns its name."""
        joined = {self.memory[name] for name in names}
        first = min(joined)
        self.memory = {name: first if memory in joined else memory for name, memory in self.memory.items()}
        self.aliased.add(first)
        return first

    def root(self, name: str) -> str:
        """Returns what a value is a view of in the end; itself, if it is no view."""
        while name in self.bases:
            name = self.bases[name]
        return name


def _launched(program: Program) -> set[str]:
    """Returns the tensors that kernels are launched on, and what these are views of: all lie on the device."""
    kernels = {kernel.id: kernel for kernel in program.kernels}
    found: set[str] = set()
    for step in reversed(program.steps):
        match step:
            case Launch(kernel, args):
                params = kernels[kernel].params
                found |= {arg for arg, param in zip(args, params, strict=True) if param.role == "tensor"}
            case View(name, base) | Reuse(name, base) if name in found:
                found.add(base)
    return found


def _device_argument(step: Extern) -> str | None:
    """Returns the device that an extern call is told to make its results on.

    Operators of torch that are given neither that nor a tensor make theirs on the CPU.
    """
    given = (*step.args, *step.kwargs.values())
    told = next((str(each.value) for each in given if isinstance(each, Tagged) and each.tag == "device"), None)
    is_made_of_numbers = step.target.startswith("aten.") and not any(value_refs(given))
    return "cpu" if told is None and is_made_of_numbers else told


def returns_memory(step: Extern) -> bool:
    """Tells whether what an extern call returns may lie in the memory of what it is given."""
    if step.target in _ALIASES or is_captured(step.target):
        return True
    if step.target.startswith("ferrite."):
        return False
    schema = getattr(_operator(step.target), "_schema", None)
    return schema is None or any(result.alias_info is not None for result in schema.returns)


def _operator(target: str) -> Any:
    try:
        return find_operator(target)
    except ExternError:
        return None


def obstacles(program: Program, facts: ProgramFacts | None = None) -> dict[int, Obstacle]:
    """Returns why steps of a program can be in no graph, by their positions."""
    facts = facts or ProgramFacts.of(program)
    found: dict[int, Obstacle] = {}
    for position, step in enumerate(program.steps):
        reason = _obstacle(step, facts)
        if reason is not None:
            found[position] = Obstacle(position, made_names(step) or tuple(sorted(used_names(step))), reason)
    return found


def _obstacle(step: Step, facts: ProgramFacts) -> str | None:
    if is_floating(step) or isinstance(step, Free):
        return None
    by_kind = _obstacle_of_kind(step, facts)
    if by_kind is not None:
        return by_kind
    if isinstance(step, Check):
        return None
    for name in sorted(used_names(step)):
        if name in facts.numbers:
            return f"uses the number {name}, which may change"
        if name not in facts.layouts:
            continue
        if name in facts.varying or facts.root(name) in facts.varying:
            return f"uses {name}, whose size may change"
        if facts.devices[name] != facts.program.device:
            device = facts.devices[name] or "a device that is not known before"
            return f"uses {name}, which lies on {device}"
    return None


def _obstacle_of_kind(step: Step, facts: ProgramFacts) -> str | None:
    match step:
        case Item() | Check() | Within() | Let():
            return _obstacle_of_numbers(step)
        case If() | While():
            return "chooses what runs by what it reads from the device"
        case For(count=count) if not isinstance(count, int):
            return "has as many iterations as a size says, which may change"
        case Call(graph) | For(graph):
            inner = facts.callee(graph).obstacle
            return None if inner is None else f"calls the graph {graph}, whose {inner}"
        case Extern():
            return _extern_obstacle(step, facts.program)
    return None


def _obstacle_of_numbers(step: Item | Check | Within | Let) -> str | None:
    match step:
        case Item(name):
            return f"reads the number {name} on the host"
        case Check(holds):
            return None if is_settled(holds) else "checks sizes, which may change"
        case Within(owner):
            return f"looks how much memory {owner} has"
        case Let(name):
            return f"computes the size {name}, which may change"


def _extern_obstacle(step: Extern, program: Program) -> str | None:
    target = step.target
    if is_captured(target):
        return f"calls {target}, whose functions may decide on the host"
    if runs_user_code(step):
        return f"calls {target}, which is not torch's own and may decide on the host"
    if step.binds:
        return f"calls {target}, whose results have a data-dependent size"
    device = _device_argument(step)
    if device not in (None, program.device):
        return f"calls {target}, whose results lie on {device}"
    if target.startswith("ferrite."):
        return None
    tags = {str(tag).rpartition(".")[2] for tag in getattr(_operator(target), "tags", ())}
    if tags.intersection(WAITING_TAGS):
        return f"calls {target}, which waits for the device"
    return None
