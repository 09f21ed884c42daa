"""Reads schedules from their text form: ``str(parse_schedule(str(schedule))) == str(schedule)``.

What is read emits the same program: kernels, steps, decisions and origins are all in the text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

from ferrite_ir.language import sizes
from ferrite_ir.language.graph import (
    Computed,
    ControlFlow,
    Definition,
    Extern,
    Loop,
    Origins,
    Reduction,
    Scan,
    Update,
    Value,
    View,
)
from ferrite_ir.language.index import Dim, Index
from ferrite_ir.text.expression_parser import read_indices, read_integer, read_listed, read_number
from ferrite_ir.text.parser import GraphReader
from ferrite_ir.text.tokens import ParseError, Words
from ferrite_scheduler.model.annotations import ColumnReduction, LookBackScan, RowResult, SortedScatter
from ferrite_scheduler.model.axes import Axis
from ferrite_scheduler.model.forms import ComboPart, Form, MixedCombo, parse_form
from ferrite_scheduler.model.schedule import (
    ACCESSES,
    Allocate,
    CallExtern,
    CallGraph,
    Conditions,
    Copy,
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

from .printer import host_values
from .record_parser import RecordReader

Something = TypeVar("Something", bound=Definition)
Annotated = TypeVar("Annotated", ColumnReduction, RowResult, SortedScatter, LookBackScan)


def parse_schedule(text: str, source: str = "") -> Schedule:
    """Returns the schedule written as ``text``.

    Args:
        text: one schedule, and behind it those of the graphs that it calls.
        source: name of the file it came from, for messages.

    Raises:
        ParseError: the text is no schedule, or more than one; the message shows the line, the column and the place.
    """
    words = Words(text, source)
    schedule = _ScheduleReader(words).read()
    callees: list[Schedule] = []
    while words.sees("schedule"):
        callees.append(_ScheduleReader(words).read())
    if words.next.kind != "end":
        raise words.error(f"expected the end of the text after the schedule, found {words.describe()}")
    return replace(schedule, callees=tuple(callees)) if callees else schedule


class _ScheduleReader(RecordReader):
    """Reads one schedule."""

    __slots__ = ("reader",)

    def __init__(self, words: Words) -> None:
        super().__init__(words)
        self.reader = GraphReader(words)

    def read(self) -> Schedule:
        words = self.words
        words.expect("schedule")
        words.expect("@")
        name = words.name("the name of the graph")
        words.expect("{")
        token = words.next
        graph = self.reader.read()
        if graph.name != name:
            raise words.error(f"a schedule of @{name} holds the graph @{graph.name}", token)
        known = graph.values
        kernels: list[Kernel] = []
        while words.sees("kernel") and not words.sees("=", 1):
            self.reader.values = dict(known)
            kernels.append(self._read_kernel(len(kernels)))
        self.reader.values = {value.name: value for value in graph.inputs}
        steps: list[Step] = []
        while not (words.sees("return") and not words.sees("=", 1)):
            steps.append(self._read_step(kernels))
            self.reader.values |= {value.name: value for value in host_values(steps[-1])}
        words.expect("return")
        outputs = self._read_outputs()
        destinations = self._read_destinations()
        decisions = self._read_section("decisions", self.read_decision)
        changes = self._read_section("changes", self.read_change)
        choices = self._read_section("choices", self.read_choice)
        found = Schedule(
            graph,
            tuple(kernels),
            tuple(steps),
            outputs,
            decisions,
            changes,
            destinations=destinations,
            choices=choices,
        )
        origins = self._read_section("origins", self.read_origins)
        words.expect("}")
        return _with_origins(found, {position: each for positions, each in origins for position in positions})

    def _read_destinations(self) -> tuple[str, ...]:
        words = self.words
        names = [words.name("an input")] if words.accept("destinations") else []
        while names and words.accept(","):
            names.append(words.name("an input"))
        return tuple(names)

    def _read_section(self, name: str, read: Callable[[], Any]) -> tuple[Any, ...]:
        words = self.words
        if not words.accept(name):
            return ()
        words.expect("{")
        found: list[Any] = []
        while not words.accept("}"):
            found.append(read())
        return tuple(found)

    # --- kernels ------------------------------------------------------------------------------------------------------

    def _read_kernel(self, number: int) -> Kernel:
        words = self.words
        words.expect("kernel")
        token = words.next
        if read_integer(words) != number:
            raise words.error(f"expected kernel {number}: kernels are numbered from 0", token)
        name = words.name("the name of the kernel")
        form, axes = self._read_space()
        skip_guard = self._read_skip_guard()
        backwards = words.accept("backwards")
        words.expect("(")
        params = tuple(read_listed(words, ")", self._read_param))
        self.reader.values |= {param.name: Value(param.name, param.type) for param in params}
        words.expect("{")
        if not isinstance(form, MixedCombo):
            body, homes, stored = self._read_body(axes)
            return Kernel(name, form, axes, body, homes, stored, params, skip_guard, backwards)
        kernel, parts = Kernel(name, form, axes, (), {}, (), params, skip_guard, backwards), list[ComboPart]()
        while not words.accept("}"):
            words.expect("part")
            part = words.name("the name of the part")
            part_form, part_axes = self._read_space()
            words.expect("{")
            body, homes, stored = self._read_body(part_axes)
            kernel = replace(
                kernel,
                body=(*kernel.body, *body),
                homes=kernel.homes | homes,
                stored=(*kernel.stored, *stored),
            )
            parts.append(ComboPart(part, part_form, part_axes, len(body)))
        return replace(kernel, form=replace(form, parts=tuple(parts)))

    def _read_space(self) -> tuple[Form, tuple[Axis, ...]]:
        """Returns the form and the axes behind the name of a kernel, or of a part of one."""
        words = self.words
        words.expect(":")
        form = self._read_form()
        words.expect("[")
        axes: list[Axis] = []
        while not words.accept("]"):
            axes.append(self._read_axis())
        return form, tuple(axes)

    def _read_body(
        self, axes: tuple[Axis, ...]
    ) -> tuple[tuple[Computed, ...], dict[str, tuple[Index, ...]], tuple[str, ...]]:
        """Returns the definitions up to a closing brace, where their results are, and the names that are stored."""
        dims = tuple(dim for axis in axes for dim in axis.dims)
        body: list[Computed] = []
        homes: dict[str, tuple[Index, ...]] = {}
        stored: list[str] = []
        while not self.words.accept("}"):
            definition, home, names = self._read_computed(dims)
            body.append(definition)
            homes |= {result.name: home[: len(result.type.shape)] for result in definition.results}
            stored += names
        return tuple(body), homes, tuple(stored)

    def _read_form(self) -> Form:
        words, token = self.words, self.words.next
        text = words.take().text
        if words.accept("("):
            text += "("
            while not words.accept(")"):
                if words.next.kind == "end":
                    raise words.error("the form has no closing ')'", token)
                text += words.take().text
            text += ")"
        try:
            return parse_form(text)
        except ValueError as problem:
            raise words.error(str(problem), token) from None

    def _read_axis(self) -> Axis:
        words = self.words
        name = words.name("an axis")
        words.expect("(")

        def dim() -> Dim:
            dim_name = words.name("a dim")
            words.expect("<")
            return Dim(dim_name, self.reader.read_size())

        return Axis(name, tuple(read_listed(words, ")", dim)))

    def _read_skip_guard(self) -> tuple[Conditions, ...]:
        words = self.words
        if not words.accept("unless"):
            return ()
        rows: list[Conditions] = []
        while True:
            row = [self._read_condition()]
            while words.accept("and"):
                row.append(self._read_condition())
            rows.append(tuple(row))
            if not words.accept("or"):
                return tuple(rows)

    def _read_condition(self) -> tuple[Any, int]:
        size = self.reader.read_size()
        self.words.expect("<=")
        return size, int(read_number(self.words))

    def _read_param(self) -> Param:
        words, token = self.words, self.words.next
        access = words.take().text
        if access not in ACCESSES:
            raise words.error(f"expected an access ({', '.join(ACCESSES)}), found {token.text!r}", token)
        value = self.reader.read_value()
        host_scalar = self._accept("by", "value")
        is_last = self._accept("for", "the", "last", "time")
        return Param(value.name, value.type, access, host_scalar, is_last, words.accept("streaming"))

    def _accept(self, *texts: str) -> bool:
        """Moves past these words if the first of them stands next."""
        if not self.words.accept(texts[0]):
            return False
        for text in texts[1:]:
            self.words.expect(text)
        return True

    def _read_computed(self, dims: tuple[Dim, ...]) -> tuple[Computed, tuple[Index, ...], list[str]]:
        words, token = self.words, self.words.next
        definition = self.reader.read_definition()
        if isinstance(definition, Extern | ControlFlow):
            raise words.error("a kernel computes: an extern call is a step", token)
        if isinstance(definition, Update) and not words.sees("at"):
            home = definition.indices
        else:
            words.expect("at")
            home = tuple(read_indices(words, self.reader.scope(dims)))
        names: list[str] = []
        if words.sees("stores") and not words.sees(":", 1):
            words.take()
            names.append(words.name("a result"))
            while words.accept(","):
                names.append(words.name("a result"))
        results = {result.name for result in definition.results}
        if not results.issuperset(names):
            raise words.error(f"stores what it does not make: {', '.join(sorted({*names} - results))}", token)
        return self._annotated(definition), home, names

    def _annotated(self, definition: Computed) -> Computed:
        words, token = self.words, self.words.next
        if words.sees(":", 1):
            return definition
        if self._accept("by"):
            kind = words.take().text
            if kind == "column" and type(definition) is Reduction:
                return _as(ColumnReduction, definition)
            if kind == "row" and type(definition) is Loop:
                return _as(RowResult, definition)
            raise words.error("'by column' stands behind a reduction, 'by row' behind a loop", token)
        if words.accept("sorted"):
            if type(definition) is not Update:
                raise words.error("'sorted' stands behind an update", token)
            words.expect("(")
            points = read_integer(words)
            words.expect(")")
            return replace(_as(SortedScatter, definition), points=points)
        if words.accept("look_back"):
            if type(definition) is not Scan:
                raise words.error("'look_back' stands behind a scan", token)
            words.expect("(")
            workspace = words.name("a workspace")
            words.expect(",")
            points = read_integer(words)
            words.expect(")")
            return replace(_as(LookBackScan, definition), workspace=workspace, points=points)
        return definition

    # --- host steps ---------------------------------------------------------------------------------------------------

    def _read_step(self, kernels: list[Kernel]) -> Step:
        words, token = self.words, self.words.next
        if words.sees("=", 1):
            return self._read_made()
        if token.text in _STEPS and token.kind == "name" and not words.sees(":", 1):
            words.take()
            return _STEPS[token.text](self, kernels)
        definition = self.reader.read_definition()
        if isinstance(definition, Extern):
            return CallExtern(definition, self._read_host_names(definition))
        if isinstance(definition, ControlFlow):
            return CallGraph(definition, self._read_host_names(definition))
        raise words.error("a step calls: what is computed belongs into a kernel", token)

    def _read_host_names(self, definition: Extern | ControlFlow) -> tuple[str | None, ...]:
        words, token = self.words, self.words.next
        if not words.accept("into"):
            return tuple(None if value is None else value.name for value in definition.results)
        words.expect("(")
        names = tuple(read_listed(words, ")", lambda: None if words.accept("_") else words.name("a host name")))
        if len(names) != len(definition.results):
            raise words.error(f"{len(definition.results)} results and {len(names)} names", token)
        return names

    def _read_made(self) -> Step:
        words = self.words
        name = words.name("a host name")
        words.expect("=")
        token = words.take()
        match token.text:
            case "alloc":
                return Allocate(name, self.reader.read_type())
            case "keep":
                return Keep(name, self.reader.read_type())
            case "reuse" | "item" | "view" as kind:
                source = words.name("a host name")
                words.expect("as")
                tensor = self.reader.read_type()
                if kind == "view":
                    words.expect("at")
                    offset = self.reader.read_size()
                    return MakeView(name, View(source, tensor.dtype, tensor.shape, tensor.strides, offset))
                return Reuse(name, source, tensor) if kind == "reuse" else Item(name, source, tensor)
        raise words.error(f"expected alloc, keep, reuse, item or view, found {token.text!r}", token)

    def read_launch(self, kernels: list[Kernel]) -> Launch:
        """Returns the rest of a launch."""
        words, token = self.words, self.words.next
        number = read_integer(words)
        if number >= len(kernels):
            raise words.error(f"there is no kernel {number}", token)
        words.expect("(")
        args = tuple(read_listed(words, ")", lambda: words.name("a host name")))
        if len(args) != len(kernels[number].params):
            raise words.error(f"kernel {number} has {len(kernels[number].params)} params, not {len(args)}", token)
        return Launch(number, args)

    def read_free(self, kernels: list[Kernel]) -> Free:
        """Returns the rest of what frees."""
        names = [self.words.name("a host name")]
        while self.words.accept(","):
            names.append(self.words.name("a host name"))
        return Free(tuple(names))

    def read_copy(self, kernels: list[Kernel]) -> Copy:
        """Returns the rest of a copy."""
        target = self.words.name("a host name")
        self.words.expect("from")
        return Copy(target, self.words.name("a host name"))

    def _read_outputs(self) -> tuple[ScheduledOutput, ...]:
        words = self.words
        outputs: list[ScheduledOutput] = []
        while not (words.sees("}") or (words.sees("{", 1) and not words.sees(",", 1))):
            token = words.next
            if words.sees("size") and words.sees("(", 1):
                words.take()
                words.expect("(")
                outputs.append(cast("sizes.Symbolic", self.reader.read_size()))
                words.expect(")")
            elif token.text in _CONSTANTS and token.kind == "name":
                outputs.append(_CONSTANTS[words.take().text])
            elif token.kind == "number" or token.text in ("-", "nan", "inf"):
                outputs.append(read_number(words))
            else:
                outputs.append(words.name("a host name"))
            if not words.accept(","):
                break
        return tuple(outputs)


_CONSTANTS: dict[str, bool | None] = {"none": None, "true": True, "false": False}

_STEPS: dict[str, Callable[[_ScheduleReader, list[Kernel]], Step]] = {
    "launch": _ScheduleReader.read_launch,
    "free": _ScheduleReader.read_free,
    "copy": _ScheduleReader.read_copy,
}


def _as(kind: type[Annotated], definition: Computed) -> Annotated:
    """Returns a definition as one of a kind that says more, which has the same fields and defaults beside them."""
    return kind(**{name: getattr(definition, name) for name in type(definition).__slots__})


def _with_origins(schedule: Schedule, origins: dict[str, Origins]) -> Schedule:
    """Returns a schedule whose definitions come from where ``origins`` says, by their places."""
    if not origins:
        return schedule

    def placed(position: str, definition: Something) -> Something:
        return replace(definition, origins=origins[position]) if position in origins else definition

    graph = replace(
        schedule.graph,
        definitions=tuple(placed(f"graph {n}", definition) for n, definition in enumerate(schedule.graph.definitions)),
    )
    kernels = tuple(
        replace(kernel, body=tuple(placed(f"kernel {k} {n}", definition) for n, definition in enumerate(kernel.body)))
        for k, kernel in enumerate(schedule.kernels)
    )
    steps = tuple(
        replace(step, definition=placed(f"step {n}", step.definition))  # type: ignore[arg-type]
        if isinstance(step, CallExtern | CallGraph)
        else step
        for n, step in enumerate(schedule.steps)
    )
    return replace(schedule, graph=graph, kernels=kernels, steps=steps)


__all__ = ["ParseError", "parse_schedule"]
