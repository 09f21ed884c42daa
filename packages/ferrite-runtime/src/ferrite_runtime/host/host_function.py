"""Writes a program's host steps as one straight-line Python function.

Names are resolved while writing: a view or a reused buffer that only kernels see costs nothing at run time, it is an
address; a tensor object is made where an extern call or an output needs one. The text is meant to be read.

This and `host_values` are where what a file holds becomes code, and no string of the file is in that code: it is built
of names (checked identifiers: ``json_fields.check_identifier``), of numbers, and of words that stand in this package.
Strings that a program carries are globals, bound by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ferrite_runtime.formats.buffer_bounds import reach_of
from ferrite_runtime.formats.call_steps import Call, CallStep, For, If, While
from ferrite_runtime.formats.dtypes import DTYPES, torch_name
from ferrite_runtime.formats.expression_sums import Terms, expr_of, is_number
from ferrite_runtime.formats.expressions import Expr, is_settled, print_condition, print_expr
from ferrite_runtime.formats.kernel_spec import KernelSpec, Param
from ferrite_runtime.formats.layouts import Layout
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.steps import (
    Alloc,
    Alternative,
    Check,
    Copy,
    Extern,
    Free,
    Item,
    Keep,
    Launch,
    Let,
    Output,
    Probe,
    Reuse,
    Tagged,
    View,
    Within,
)
from ferrite_runtime.host.call_text import write_graph_call
from ferrite_runtime.host.deferred_release import DeferredRelease
from ferrite_runtime.host.extern_calls import RESULTS_LIKE, result_kind
from ferrite_runtime.host.host_values import HostValues, Value, divided, moved
from ferrite_runtime.host.launch_text import Argument, HostText, LaunchWriter, Option, Sequencing, Site
from ferrite_runtime.host.layout_bytes import bytes_of
from ferrite_runtime.host.native_products import Location, Product
from ferrite_runtime.host.planned_bytes import planned_bytes
from ferrite_runtime.host.product_steps import HostStep, Multiply
from ferrite_runtime.host.tensor_objects import TensorObject, tensor_objects
from ferrite_runtime.host.thresholds import MEMORY

LARGE_FALLBACK = "_large_fallback"
"""The function that gets calls whose sizes are too large for this one, and these sizes by name."""


def write_call(site: Site) -> Iterable[str]:
    """Yields the plain launch: a call of the site's launcher with the stream and all arguments."""
    yield f"_launch{site.number}(_stream, {', '.join(argument.text for argument in site.arguments)})"


@dataclass(slots=True, kw_only=True)
class _Writer(HostValues):
    """Writes the steps of a program, one after the other."""

    program: Program
    write_launch: LaunchWriter
    sequencing: Sequencing | None = None
    # Launches that are written but not started yet, and variables to delete once they are.
    is_waiting: bool = False
    deferred: DeferredRelease = field(default_factory=DeferredRelease)
    # The bytes of buffers after each step, as the program has them, their peak, and the step that is written.
    planned: tuple[int, ...] | None = None
    peak: int = 0
    position: int = 0
    externs: dict[str, str] = field(default_factory=dict)
    sites: list[Site] = field(default_factory=list)
    kernels: dict[str, KernelSpec] = field(default_factory=dict)
    # All buffers, those in arenas as well.
    allocated: dict[str, Layout] = field(default_factory=dict)
    # Inputs in the host's memory, which no launch that waits can write to.
    apart: set[str] = field(default_factory=set)
    # Of results of extern calls: what tells how large they are.
    likely_layouts: dict[str, Layout] = field(default_factory=dict)
    # What buffers are allocated as, where that is not what they are, and the names of these values.
    objects: dict[str, TensorObject] = field(default_factory=dict)
    allocated_as: set[str] = field(default_factory=set)
    # What extern calls came from, by the places of their lines.
    origins: dict[int, tuple[str, ...]] = field(default_factory=dict)

    # --- launches that wait ------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Writes the start of all launches that wait, and what was put off until then."""
        if self.is_waiting and self.sequencing is not None:
            self.lines.extend(self.sequencing.flush())
        self.is_waiting = False
        dying = self.deferred.end()
        if dying:
            self.lines.append(f"del {', '.join(dying)}")

    def delete(self, variables: list[str]) -> None:
        """Writes that variables die; memory that a waiting launch may use is not given back before it."""
        if not variables:
            return
        if self.is_waiting and self.deferred.put_off(variables, map(self._bytes, variables)):
            return
        self.flush()
        self.lines.append(f"del {', '.join(variables)}")

    def _bytes(self, variable: str) -> Terms | None:
        """Returns the size of what dies with a variable; None where it is unknown."""
        if variable not in self.users:
            return {}  # a view: its storage belongs to another variable
        layout = self.owner_layouts.get(variable) or self.likely_layouts.get(variable)
        lengths = self.sequencing.lengths if self.sequencing is not None else frozenset()
        return bytes_of(layout, lengths) if layout is not None else None

    def limits(self) -> list[str]:
        """Returns the lines that hand a call over whose sizes are too large for arenas, or for what is put off."""
        if self.sequencing is None:
            return []
        arena, deferred = self.sequencing.arenas.total, self.deferred.most()
        needs = ((arena, MEMORY.arena), (deferred, MEMORY.deferred_of_lengths))
        tests = [f"{print_expr(expr_of(need))} > {most}" for need, most in needs if not is_number(need)]
        sizes = ", ".join(f"{name!r}: {name}" for name in sorted(self.sequencing.lengths))
        return [f"if {' or '.join(tests)}: return {LARGE_FALLBACK}(args, {{{sizes}}})"] if tests else []

    # --- steps ------------------------------------------------------------------------------------------------------

    def step(self, step: HostStep) -> None:
        match step:
            case Alloc() | Keep():
                self._alloc(step)
            case Reuse(name, source, layout):
                self._reuse(name, source, layout)
            case View(name, base, layout, offset):
                value = self.values[base]
                self.share(name, value, layout, moved(value.offset, offset, self.itemsize(layout.dtype)))
                self._take_object(name)
            case Let():
                self._let(step)
            case Launch():
                self._launch(step)
            case Multiply(product, result):
                self._multiply(product, result)
            case Extern():
                self._extern(step)
            case Item():
                self._item(step)
            case Check() | Within():
                self._check(step)
            case Free(names):
                self.delete([variable for name in names for variable in self.release(name)])
            case Copy():
                self._copy(step)
            case Call() | If() | While() | For():
                self._call_graph(step)

    def _call_graph(self, step: CallStep) -> None:
        condition = self.tensor(step.condition) if isinstance(step, If) else ""
        tensors, integers = [self.tensor(name) for name in step.args], [self.number(size) for size in step.sizes]
        self.flush()
        stacked = step.stacked if isinstance(step, For) else ()
        buffers = [
            f"_empty({self.sizes(each.shape)}, {self.sizes(each.strides)}, {self.dtype(each.dtype)})"
            for each in stacked
        ]
        count = self.number(step.count) if isinstance(step, For) else ""
        self.lines += write_graph_call(step, self.program.graphs, condition or count, tensors, integers, buffers)
        for name in (name for name in step.results if name is not None):
            self.own(name, None, trusted=False)
        for name in step.numbers if isinstance(step, While) else ():
            self.values[name] = Value(name)

    def _let(self, step: Let) -> None:
        value = step.value
        text = (
            f"{self.tensor(value.tensor)}.{value.kind}({value.axis})" if isinstance(value, Probe) else print_expr(value)
        )
        self.lines.append(f"{step.name} = {text}")
        self.values[step.name] = Value(step.name)

    def _copy(self, step: Copy) -> None:
        target, source = self.tensor(step.to), self.tensor(step.source)
        self.flush()
        self.lines.append(f"{target}.copy_({source})")

    def _check(self, step: Check | Within) -> None:
        if isinstance(step, Within):
            self._within(step.owner, step.end)
        elif not is_settled(step.holds):
            values = ", ".join(f"({self.bound(name)}, {print_expr(expr)})" for name, expr in step.names)
            error, message = self.bound(step.error), self.bound(step.message)
            self.lines.append(f"if not ({print_condition(step.holds)}): _fail({error}, {message}, [{values}])")

    def _within(self, owner: str, end: Expr) -> None:
        """Writes the check of what a library returned, unless the result is a buffer of known size after all."""
        layout = self.allocated.get(owner)
        reach = reach_of(layout) if layout is not None else None
        if reach is None:
            self.lines.append(f"_within({owner}, {self.number(end)})")
        elif not (isinstance(reach, int) and isinstance(end, int) and end <= reach) and reach != end:
            self.lines.append(f"if {print_expr(end)} > {print_expr(reach)}: _within(None, 0)")

    def _alloc(self, step: Alloc | Keep) -> None:
        name, layout = step.name, step.layout
        self.allocated[name] = layout
        if self.sequencing is not None and name in self.sequencing.arenas.slots:
            dtype, location = self.sequencing.arenas.slots[name]
            self.share(name, self.values[_arena(dtype)], layout, location)
            return
        known = self.objects.get(name)
        layout = self.owner_layouts[name] = layout if known is None else known.layout
        if self._raises_peak():
            self.flush()
        where = f"{self.sizes(layout.shape)}, {self.sizes(layout.strides)}, {self.dtype(layout.dtype)}"
        if isinstance(step, Keep):
            self.lines.append(f"{name} = _keep(_stream, {name!r}, {where})")
        else:
            self.lines.append(f"{name} = {'_empty_cpu' if step.device == 'cpu' else '_empty'}({where})")
        self.own(name, step.layout, trusted=True)
        if known is not None:
            self.values[name].variable = None
            self.allocated_as.add(known.name)

    def _raises_peak(self) -> bool:
        """Returns whether the program would hold more than it ever has with this buffer and what is put off.

        Only of a buffer that is larger than all that: beside its use a start of launches takes no time. Logits are one.
        """
        put_off = self.deferred.known_bytes()
        if self.planned is None or put_off <= MEMORY.raised:
            return False
        held, before = self.planned[self.position], self.planned[self.position - 1] if self.position else 0
        return held - before >= put_off and held + put_off > self.peak + MEMORY.raised

    def _take_object(self, name: str) -> None:
        """Notes that a value is the tensor that its buffer was allocated as, if it is."""
        if name in self.allocated_as:
            self.values[name].variable = self.values[name].owner

    def _reuse(self, name: str, source: str, layout: Layout) -> None:
        old = self.values[source]
        self.share(name, old, layout, old.offset)
        if old.layout == layout and old.variable == old.owner:
            self.values[name].variable = old.variable
        self._take_object(name)
        self.delete([variable for variable in self.release(source) if variable != old.owner])

    def _launch(self, step: Launch) -> None:
        may_wait = self.sequencing is not None
        if may_wait or not step.alternatives:
            self.lines.extend(
                self._launch_lines(self.kernels[step.kernel], step, step.alternatives if may_wait else ())
            )
            self.is_waiting = may_wait
            return
        word = "if"
        branches: list[str] = []
        tests = [" and ".join(f"{self.number(e)} <= {most}" for e, most in other.when) for other in step.alternatives]
        for other, test in zip(step.alternatives, tests, strict=True):
            lines = ["pass"] if other.kernel is None else self._launch_lines(self.kernels[other.kernel], step)
            branches += [f"{word} {test}:", *(f"    {line}" for line in lines)]
            word = "elif"
        lines = self._launch_lines(self.kernels[step.kernel], step)
        self.lines += [*branches, "else:", *(f"    {line}" for line in lines)]

    def _launch_lines(self, kernel: KernelSpec, step: Launch, alternatives: Sequence[Alternative] = ()) -> list[str]:
        """Returns the lines that launch one kernel; what computes its arguments is written at once."""
        options = tuple(
            Option(
                tuple(f"{self.number(expr)} <= {most}" for expr, most in other.when),
                None if other.kernel is None else self._site(self.kernels[other.kernel], step),
            )
            for other in alternatives
        )
        site = self._site(kernel, step, options)
        if not self.is_listing:
            return list(self.write_launch(site))
        names = (kernel.name, *(option.site.kernel.name if option.site else "nothing" for option in options))
        label = f"# {' or '.join(dict.fromkeys(names))} <- {', '.join(kernel.origin) or kernel.form}"
        return [label, *self.write_launch(site)]

    def _site(self, kernel: KernelSpec, step: Launch, options: tuple[Option, ...] = ()) -> Site:
        arguments: list[Argument] = []
        sizes: dict[str, Expr] = {}
        for param, arg in zip(kernel.params, step.args, strict=True):
            arguments.append(self._argument(param, arg))
            if param.role == "size":
                sizes[param.name] = arg if isinstance(arg, int) else arguments[-1].text
        site = Site(len(self.sites), kernel, tuple(arguments), sizes, options)
        self.sites.append(site)
        return site

    def _argument(self, param: Param, arg: Any) -> Argument:
        if param.role == "tensor":
            value = self.values[arg]
            text = self.address(arg)
            promised = param.align or 1
            is_known = isinstance(value.offset, int)
            base, offset = (f"_p_{value.owner}", int(value.offset)) if isinstance(value.offset, int) else (text, 0)
            needs_care = promised > DTYPES[param.dtype].itemsize
            return Argument(
                param,
                text,
                value.owner,
                suspect=needs_care and (not value.trusted or not is_known),
                misaligned=needs_care and offset % promised != 0,
                base=base,
                offset=offset,
            )
        is_expr = param.role == "size" or isinstance(arg, (str, tuple))
        text = self.number(arg) if is_expr else self.constant(arg)
        return Argument(param, text, base=text, literal=arg if isinstance(arg, (int, float)) else None)

    def _item(self, step: Item) -> None:
        if self.values[step.source].owner not in self.apart:
            self.flush()
        # What a library returned may be of another dtype than the program says: an integer of the program is one.
        is_unsure = self.values[step.source].layout is None and step.dtype in DTYPES
        is_whole = step.dtype == "bool" or (is_unsure and DTYPES[step.dtype].is_integer)
        read = f"{self.tensor(step.source)}.item()"
        self.lines.append(f"{step.name} = {f'int({read})' if is_whole else read}")
        self.values[step.name] = Value(step.name)

    def _multiply(self, product: Product, result: str) -> None:
        assert self.sequencing is not None
        assert self.sequencing.write_product is not None
        locations = [self._location(name) for name in (result, *product.operands)]
        product = product.with_sizes(lambda size: size if isinstance(size, int) else self.number(size))
        self.lines += [f"# {product.operation}", *self.sequencing.write_product(product, locations)]
        self.is_waiting = True

    def _location(self, name: str) -> Location:
        value, text = self.values[name], self.address(name)
        return (f"_p_{value.owner}", value.offset) if isinstance(value.offset, int) else (text, 0)

    def _extern(self, step: Extern) -> None:
        variable = "_" + step.target.replace(".", "_")
        self.externs[variable] = step.target
        values = [self.constant(arg) for arg in step.args]
        values += [f"{name}={self.constant(arg)}" for name, arg in step.kwargs.items()]
        call = f"{variable}({', '.join(values)})"
        self.flush()
        start = len(self.lines)
        self._call_extern(step, call, result_kind(step.target))
        if step.origin:
            self.origins |= dict.fromkeys(range(start, len(self.lines)), step.origin)

    def _call_extern(self, step: Extern, call: str, kind: str) -> None:
        """Writes a call, given as text, and what becomes of its results."""
        if not any(step.results):
            self.lines.append(call)
            return
        names = [name or "_" for name in step.results]
        if kind == "nested":
            call = f"_flatten({call})"
        self.lines.append(f"{names[0]} = {call}" if kind == "one" else f"{', '.join(names)}, = {call}")
        for bound, position, axis in step.binds:
            self.lines.append(f"{bound} = {names[position]}.size({axis})")
            self.values[bound] = Value(bound)
        for position, name in enumerate(step.results):
            if name is None:
                continue
            self.own(name, None, trusted=False)
            for like in RESULTS_LIKE.get(step.target, ())[position : position + 1]:
                given = step.args[like]
                layout = self.values[str(given.value)].layout if isinstance(given, Tagged) else None
                self.likely_layouts |= {name: layout} if layout is not None else {}
            strides = step.strides[position] if step.strides is not None else None
            if strides is not None:
                wanted = self.sizes(strides)
                self.lines.append(f"if {name}.stride() != {wanted}: {name} = _restride({name}, {wanted})")
        if "_" in names:
            self.lines.append("del _")

    def output(self, output: Output) -> str:
        if output.value is not None:
            return self.tensor(output.value)
        if isinstance(output.scalar, (str, tuple)):
            return self.number(output.scalar)
        return repr(output.scalar)


def _arena(dtype: str) -> str:
    """Returns the variable of the arena of a dtype."""
    return f"_arena_{torch_name(dtype)}"


def _bind_arenas(writer: _Writer) -> None:
    """Writes the allocations of the arenas, which live as long as the call."""
    sizes = writer.sequencing.arenas.sizes if writer.sequencing is not None else {}
    for dtype, size in sizes.items():
        elements = divided(size, DTYPES[dtype].itemsize)
        assert elements is not None, "the size of an arena is rounded up"
        writer.step(Alloc(_arena(dtype), Layout(dtype, (elements,), (1,))))


def _bind_inputs(writer: _Writer) -> None:
    for value in writer.program.inputs:
        if value.layout is not None:
            writer.owner_layouts[value.name] = value.layout
            writer.own(value.name, value.layout, trusted=False)
            writer.apart |= {value.name} if value.device == "cpu" != writer.program.device else set()
        elif value.kind == "opaque":
            writer.own(value.name, None, trusted=False)
        else:
            writer.values[value.name] = Value(value.name)


def write_host(
    program: Program,
    write_launch: LaunchWriter = write_call,
    preamble: Sequence[str] = (),
    block: str | None = None,
    opening: Sequence[str] = (),
    sequencing: Sequencing | None = None,
    *,
    is_listing: bool = False,
) -> HostText:
    """Returns the text of ``def host(args)``, a function that clears the list of inputs and returns a tuple.

    Args:
        program: the program, already checked.
        write_launch: how a launch is written.
        preamble: lines that stand first: guards.
        block: a ``with`` line around everything after the preamble.
        opening: lines before the inputs are unpacked: the binding of ``_stream``.
        sequencing: how launches that ``write_launch`` lets wait are started; it then gets launches with all of their
            alternatives. Without it none waits, and alternatives are branches.
        is_listing: whether the text is for people, and never run: see `list_host`.
    """
    kernels = {kernel.id: kernel for kernel in program.kernels}
    deferred = DeferredRelease(sequencing.sizes if sequencing is not None else None)
    steps = program.steps if sequencing is None or sequencing.steps is None else sequencing.steps
    writer = _Writer(
        program=program,
        write_launch=write_launch,
        sequencing=sequencing,
        deferred=deferred,
        kernels=kernels,
        is_listing=is_listing,
        objects=tensor_objects(steps, program.outputs),
    )
    writer.lines.extend(opening)
    names = [value.name for value in program.inputs]
    if names:
        writer.lines.append(f"{', '.join(names)}, = args")
    _bind_inputs(writer)
    first = next((location for location, step in enumerate(steps) if not isinstance(step, Let)), len(steps))
    for step in steps[:first]:
        writer.step(step)
    start = len(writer.lines)
    writer.lines.append("args.clear()")
    _bind_arenas(writer)
    if sequencing is not None:
        writer.planned = planned_bytes(steps, sequencing.lengths, sequencing.sizes)
        writer.peak = max(writer.planned or (0,))
    for writer.position, step in enumerate(steps[first:], first):
        writer.step(step)
    outputs = [writer.output(output) for output in program.outputs]
    writer.flush()
    limits = writer.limits()
    writer.lines[start:start] = limits
    writer.lines.append(f"return ({', '.join(outputs)}{',' if outputs else ''})")
    return _host_text(writer, preamble, block, len(limits))


def _host_text(writer: _Writer, preamble: Sequence[str], block: str | None, limits: int) -> HostText:
    """Returns the text around the lines that were written; ``limits`` of them stand before the extern calls."""
    body = [block, *_indented(writer.lines)] if block else writer.lines
    notes = bool(writer.origins) and not writer.is_listing
    if notes:
        body = ["try:", *_indented(body), "except Exception as _error:", "    _note(_error)", "    raise"]
    source = "\n".join(["def host(args):", *_indented((*preamble, *body)), ""])
    # A text's first line, which is the head, has the number 1.
    before = 2 + len(preamble) + notes + (block is not None) + limits
    origins = {location + before: origin for location, origin in writer.origins.items()}
    sites = tuple(writer.sites)
    return HostText(source, writer.externs, writer.dtypes, sites, writer.constants, writer.program.captured, origins)


def _indented(lines: Iterable[str]) -> Iterable[str]:
    return (f"    {line}" for line in lines)


def list_host(program: Program, preamble: Sequence[str] = ()) -> str:
    """Returns the host function with plain launches as people read it: what each kernel came from, strings in place."""
    return write_host(program, preamble=preamble, is_listing=True).source
