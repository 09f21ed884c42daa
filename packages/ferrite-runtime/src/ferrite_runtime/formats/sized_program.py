"""A program at known sizes: what is left of its steps where the integers that a call gives have certain values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ferrite_runtime.formats.call_steps import Call, For, If, While
from ferrite_runtime.formats.expressions import expr_names, settle, settle_condition
from ferrite_runtime.formats.layouts import Layout
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.steps import (
    Alloc,
    Alternative,
    Check,
    Copy,
    Extern,
    Free,
    Input,
    Item,
    Keep,
    Launch,
    Let,
    Output,
    Probe,
    Reuse,
    Step,
    Tagged,
    View,
    Within,
    value_refs,
)


def size_roots(program: Program) -> tuple[str, ...]:
    """Returns the integers that a call gives on which extents and strides of its tensors depend, in a fixed order.

    They are inputs, or known from inputs before the first step that does anything else.
    """
    lets = dict(leading_lets(program))
    layouts = (value.layout for value in program.inputs if value.layout is not None)
    pending = [name for layout in layouts for size in (*layout.shape, *layout.strides) for name in expr_names(size)]
    given = {value.name for value in program.inputs if value.kind == "scalar"}
    roots: dict[str, None] = {}
    while pending:
        name = pending.pop()
        value = lets.get(name)
        if name in given or isinstance(value, Probe):
            roots[name] = None
        elif value is not None:
            pending.extend(expr_names(value))
    return tuple(sorted(roots))


def leading_lets(program: Program) -> Iterator[tuple[str, Any]]:
    """Yields names and values of the integers that are computed before anything else happens."""
    for step in program.steps:
        if not isinstance(step, Let):
            return
        yield step.name, step.value


def at_sizes(program: Program, sizes: Mapping[str, int]) -> Program:
    """Returns a program for calls that give these sizes: integers that depend on nothing else are numbers.

    It takes the same inputs and has the same results. A launch is left with the alternatives that the sizes do not
    decide about; buffers that only others write are not made.
    """
    known = _Known(dict(sizes))
    steps = tuple(made for step in program.steps for made in known.steps(step))  # computes others, which inputs may use
    steps = _needed(steps, program.outputs)
    inputs = tuple(known.input(value) for value in program.inputs)
    outputs = tuple(known.output(output) for output in program.outputs)
    return replace(program, inputs=inputs, steps=steps, outputs=outputs)


def _needed(steps: tuple[Step, ...], outputs: Iterable[Output]) -> tuple[Step, ...]:
    """Returns the steps without those that make a buffer, or a view, of which nothing is left that touches it."""
    used = {output.value for output in outputs}
    for step in reversed(steps):
        used.update(_touched(step, used))
    unmade: dict[str, str | None] = {}  # the devices of buffers that are left out
    kept: list[Step] = []
    for step in steps:
        match step:
            case Alloc(name, _, device) if name not in used:
                unmade[name] = device
            case Keep(name) | View(name) if name not in used:
                unmade[name] = None
            case Reuse(name, source, layout) if source in unmade:
                if name in used:
                    kept.append(Alloc(name, layout, unmade[source]))
                else:
                    unmade[name] = unmade[source]
            case Free(names):
                left = tuple(name for name in names if name not in unmade)
                kept.extend([Free(left)] if left else [])
            case _:
                kept.append(step)
    return tuple(kept)


def _touched(step: Step, used: Collection[str | None]) -> Iterable[str]:
    """Returns the names whose elements a step reads or writes, for the sake of what comes after it and is used."""
    match step:
        case View(name, base):
            return [base] if name in used else []
        case Launch(_, args):
            return [arg for arg in args if isinstance(arg, str)]
        case Extern(_, args, kwargs):
            return [name for value in (*args, *kwargs.values()) for name in value_refs(value)]
        case Item(_, source) | Let(_, Probe(_, source)):
            return [source]
        case Call() | If() | While() | For():
            return [*step.args, *([step.condition] if isinstance(step, If) else [])]
        case Copy(to, source):
            return [to, source]
    return []


@dataclass(frozen=True, slots=True)
class _Known:
    """The integers whose values are known, by name."""

    values: dict[str, int]

    def input(self, value: Input) -> Input:
        return value if value.layout is None else replace(value, layout=self.layout(value.layout))

    def layout(self, layout: Layout) -> Layout:
        return Layout(layout.dtype, self.exprs(layout.shape), self.exprs(layout.strides))

    def exprs(self, exprs: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(settle(expr, self.values) for expr in exprs)

    def steps(self, step: Step) -> Iterator[Step]:
        """Yields what is left of a step."""
        match step:
            case Let():
                yield from self._let(step)
            case Alloc() | Keep() | Reuse():
                yield replace(step, layout=self.layout(step.layout))
            case View():
                yield replace(step, layout=self.layout(step.layout), offset=settle(step.offset, self.values))
            case Launch():
                yield from self._launch(step)
            case Extern():
                yield self._extern(step)
            case Check():
                names = tuple((name, settle(expr, self.values)) for name, expr in step.names)
                yield replace(step, holds=settle_condition(step.holds, self.values), names=names)
            case Within():
                yield replace(step, end=settle(step.end, self.values))
            case For():
                (count,), stacked = self.exprs((step.count,)), tuple(map(self.layout, step.stacked))
                yield replace(step, sizes=self.exprs(step.sizes), count=count, stacked=stacked)
            case Call() | If() | While():
                yield replace(step, sizes=self.exprs(step.sizes))
            case Free(names):
                left = tuple(name for name in names if name not in self.values)
                if left:
                    yield Free(left)
            case _:
                yield step

    def _let(self, step: Let) -> Iterator[Step]:
        if step.name in self.values:
            return
        value = step.value if isinstance(step.value, Probe) else settle(step.value, self.values)
        if isinstance(value, int):
            self.values[step.name] = value
        else:
            yield Let(step.name, value)

    def _launch(self, step: Launch) -> Iterator[Step]:
        args = tuple(settle(arg, self.values) if isinstance(arg, (str, tuple)) else arg for arg in step.args)
        undecided: list[Alternative] = []
        for other in step.alternatives:
            when = tuple((settle(expr, self.values), most) for expr, most in other.when)
            tests = tuple(expr <= most for expr, most in when if isinstance(expr, int))
            if not all(tests):
                continue
            if len(tests) < len(when) or undecided:
                undecided.append(Alternative(when, other.kernel))
            elif other.kernel is not None:
                yield Launch(other.kernel, args)
            if len(tests) == len(when):
                break
        else:
            yield Launch(step.kernel, args, tuple(undecided))
            return
        if undecided:
            yield Launch(step.kernel, args, tuple(undecided))

    def _extern(self, step: Extern) -> Extern:
        rows = step.strides
        return replace(
            step,
            args=tuple(self.value(arg) for arg in step.args),
            kwargs={name: self.value(arg) for name, arg in step.kwargs.items()},
            strides=None if rows is None else tuple(None if row is None else self.exprs(row) for row in rows),
        )

    def value(self, value: Any) -> Any:
        """Returns an argument of an extern call."""
        if isinstance(value, tuple):
            return tuple(self.value(element) for element in value)
        if isinstance(value, Tagged) and value.tag == "size":
            return Tagged("size", settle(value.value, self.values))
        return value

    def output(self, output: Output) -> Output:
        if output.value is not None:
            return Output(scalar=self.values[output.value]) if output.value in self.values else output
        if isinstance(output.scalar, (str, tuple)):
            return Output(scalar=settle(output.scalar, self.values))
        return output
