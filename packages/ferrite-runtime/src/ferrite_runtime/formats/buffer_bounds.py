"""Where tensors lie in their buffers: views and reused buffers are proved to be inside, or get a check that says so.

Of a program that may come from anywhere, nothing is taken to fit "by construction". An interval in bytes is computed
for every name, relative to the first element of the tensor that owns the memory. Where sizes are numbers, and where
expressions of sizes are equal term by term, this is settled when a program is read. For the rest `with_bounds` puts a
`Check` before the step, which the host function computes from the sizes of each call, or a `Within` where only the
tensor that a library returned tells how large it is.

Integers are bounded on the way: what a name can grow to is known in bits, and nothing grows without end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from ferrite_runtime.errors import SpecError
from ferrite_runtime.formats.call_steps import Call, For, If, While
from ferrite_runtime.formats.dtypes import DTYPES
from ferrite_runtime.formats.expression_sums import terms_of
from ferrite_runtime.formats.expressions import DIVISIONS, Condition, Expr, condition_exprs, settle
from ferrite_runtime.formats.layouts import Layout
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.steps import (
    Alloc,
    Check,
    Extern,
    Keep,
    Launch,
    Let,
    Probe,
    Reuse,
    Step,
    View,
    Within,
    value_sizes,
)

MAX_BYTES = 1 << 48
"""No machine has more memory, and no offset or stride is larger."""
MAX_BITS = 4096
"""Bits that an integer of a program can grow to: the product of 64 sizes. Each of them has 64."""
SHORT = 100
"""Parts of an expression that is compared with others term by term; multiplied out, a long one could be endless."""
_WORD = 64


@dataclass(frozen=True, slots=True)
class _Location:
    """Where a tensor lies: ``offset`` bytes into ``owner``'s memory, of which ``size`` bytes are known to be its own.

    ``size`` is None where only the tensor itself tells.
    """

    owner: str
    offset: Expr
    size: Expr | None


@dataclass(slots=True)
class _Extents:
    """What is known while the steps of a program are walked.

    Attributes:
        path: of the program.
        locations: where tensors lie, by name.
        values: integers that are numbers after all.
        bits: how many bits an integer can have, by name.
        meanings: what integers are in terms of others, where that is a short expression.
        counts: names of integers that are never negative: sizes and strides of tensors.
    """

    path: str
    locations: dict[str, _Location] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)
    bits: dict[str, int] = field(default_factory=dict)
    meanings: dict[str, Expr] = field(default_factory=dict)
    counts: set[str] = field(default_factory=set)

    # --- integers ---------------------------------------------------------------------------------------------------

    def settled(self, expr: Expr, path: str) -> Expr:
        """Returns an integer with what is known in it; raises `SpecError` if it may grow too large, or has no value."""
        self._measured(expr, path)
        return settle(expr, self.values)

    def _measured(self, expr: Expr, path: str) -> int:
        """Returns the bits that an integer can have."""
        if isinstance(expr, int):
            return expr.bit_length()
        if isinstance(expr, str):
            return self.bits.get(expr, _WORD)
        sizes = [self._measured(operand, path) for operand in expr[1:]]
        if expr[0] in DIVISIONS and settle(expr[2], self.values) == 0:
            raise SpecError(path, "an integer is divided by zero")
        bits = sum(sizes) if expr[0] == "mul" else max(sizes) + len(sizes)
        if bits > MAX_BITS:
            raise SpecError(path, f"an integer can grow to {bits} bits, {MAX_BITS} are allowed")
        return bits

    def name(self, name: str, value: Expr | Probe, path: str) -> None:
        """Notes what an integer is."""
        if isinstance(value, Probe):
            self.counts.add(name)
            return
        self.bits[name] = self._measured(value, path)
        settled = settle(value, self.values)
        if isinstance(settled, int):
            self.values[name] = settled
        if self.is_count(settled):
            self.counts.add(name)
        meaning = self._meant(settled)
        if _length(meaning) <= SHORT:
            self.meanings[name] = meaning

    def _meant(self, expr: Expr) -> Expr:
        """Returns an expression in terms of integers that are in terms of no others."""
        if isinstance(expr, str):
            return self.meanings.get(expr, expr)
        return (expr[0], *(self._meant(operand) for operand in expr[1:])) if isinstance(expr, tuple) else expr

    def is_count(self, expr: Expr) -> bool:
        """Tells whether an integer is surely not negative."""
        if isinstance(expr, int):
            return expr >= 0
        if isinstance(expr, str):
            return expr in self.counts
        if _length(expr) > 2 * SHORT:
            return False
        return all(
            coefficient > 0 and all(self._is_factor(factor) for factor in factors)
            for factors, coefficient in terms_of(expr).items()
        )

    def _is_factor(self, factor: Expr) -> bool:
        if not isinstance(factor, tuple):
            return factor in self.counts
        operator, *operands = factor
        counted = [self.is_count(operand) for operand in operands]
        if operator in ("floordiv", "ceildiv"):
            return counted[0] and isinstance(operands[1], int) and operands[1] > 0
        if operator == "mod":
            return isinstance(operands[1], int) and operands[1] > 0
        return any(counted) if operator == "max" else all(counted) and operator == "min"

    # --- tensors ----------------------------------------------------------------------------------------------------

    def layout(self, layout: Layout, path: str) -> Layout:
        """Returns a layout with what is known in it; raises `SpecError` if no tensor can be like that."""
        settled = Layout(
            layout.dtype,
            tuple(self.settled(size, f"{path}.shape") for size in layout.shape),
            tuple(self.settled(stride, f"{path}.strides") for stride in layout.strides),
        )
        for name, sizes in (("shape", settled.shape), ("strides", settled.strides)):
            if any(isinstance(size, int) and not 0 <= size <= MAX_BYTES for size in sizes):
                raise SpecError(f"{path}.{name}", "a number is negative, or more than any memory has bytes")
        reach = reach_of(settled)
        if isinstance(reach, int) and reach > MAX_BYTES:
            raise SpecError(f"{path}.shape", f"a tensor of {reach} bytes")
        return settled

    def own(self, name: str, layout: Layout) -> None:
        """Notes a tensor that has its memory for itself."""
        self.locations[name] = _Location(name, 0, reach_of(layout))

    def put(self, name: str, base: str, layout: Layout, offset: Expr, path: str) -> Iterator[Step]:
        """Notes a tensor in the memory of another one; yields the check that it lies inside, if it takes one."""
        location = self.locations.get(base)
        if location is None:  # nobody knows what it is, as of an opaque input
            raise SpecError(path, f"{base!r} is no tensor that others can lie in")
        reach = reach_of(layout)
        if reach is None:
            raise SpecError(f"{path}.dtype", f"views of {layout.dtype} are not supported; only extern calls touch it")
        start = _sum(location.offset, _product(offset, DTYPES[layout.dtype].itemsize))
        end = _sum(start, reach)
        self.locations[name] = _Location(location.owner, start, location.size)
        if isinstance(start, int) and start < 0:
            raise SpecError(path, f"{name} starts {-start} bytes before the memory of {location.owner}")
        needed: list[Condition] = [("ge", start, 0)] if not self.is_count(start) else []
        needed += [("ge", size, 0) for size in (*layout.shape, *layout.strides) if not self.is_count(size)]
        if location.size is None:
            yield Within(location.owner, end)
        elif isinstance(end, int) and isinstance(location.size, int) and end > location.size and reach != 0:
            raise SpecError(path, f"{name} ends {end} bytes into {location.owner}, which has {location.size}")
        elif reach != 0 and not self._is_at_most(end, location.size):
            needed.append(("le", end, location.size))
        if needed:
            yield _bounds_check(needed, f"{name} lies outside of {location.owner}")

    def alloc(self, step: Alloc | Keep, layout: Layout) -> Iterator[Step]:
        """Notes a new buffer; yields the check that its sizes are sizes, if it takes one."""
        self.own(step.name, layout)
        needed = [("ge", size, 0) for size in (*layout.shape, *layout.strides) if not self.is_count(size)]
        if needed:
            yield _bounds_check(needed, f"{step.name} has a negative size or stride")

    def _is_at_most(self, expr: Expr, bound: Expr) -> bool:
        """Tells whether an integer is surely at most another one."""
        if expr == bound:
            return True
        difference = ("sub", self._meant(bound), self._meant(expr))
        return _length(difference) <= 2 * SHORT and self.is_count(difference)


def reach_of(layout: Layout) -> Expr | None:
    """Returns the bytes from a tensor's first element to the end of its last; None where the dtype has no known size.

    Of a tensor with an expression for a size, it holds where no size is 0; where one is, there are no elements.
    """
    if layout.dtype not in DTYPES:
        return None
    if layout.is_empty:
        return 0
    steps = (_product(_sum(size, -1), stride) for size, stride in zip(layout.shape, layout.strides, strict=True))
    return _product(_total(steps), DTYPES[layout.dtype].itemsize)


def _length(expr: Expr) -> int:
    """Returns the number of names, numbers and operators in an expression."""
    return 1 + sum(map(_length, expr[1:])) if isinstance(expr, tuple) else 1


def _total(parts: Iterable[Expr]) -> Expr:
    total: Expr = 1
    for part in parts:
        total = _sum(total, part)
    return total


def _sum(left: Expr, right: Expr) -> Expr:
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    return right if left == 0 else left if right == 0 else ("add", left, right)


def _product(left: Expr, right: Expr) -> Expr:
    if isinstance(left, int) and isinstance(right, int):
        return left * right
    if 0 in (left, right):
        return 0
    return right if left == 1 else left if right == 1 else ("mul", left, right)


def _bounds_check(needed: list[Condition], message: str) -> Check:
    return Check(("and", *needed), message)


def check_layout(layout: Layout, path: str) -> None:
    """Raises `SpecError` if a tensor would need more memory than any machine has."""
    _Extents(path).layout(layout, path)


# --- programs -------------------------------------------------------------------------------------------------------


def check_bounds(program: Program, path: str) -> None:
    """Raises `SpecError`, naming the step, if a tensor of a program surely lies outside of its buffer.

    The same goes for tensors that no machine has memory for, and for integers that grow without end.
    """
    callees = (
        (program.callee(location), f"{path}.graphs.{graph.name}") for location, graph in enumerate(program.graphs)
    )
    for each, where in (*callees, (program, path)):
        for _ in _bounded(each, where):
            pass


def with_bounds(program: Program) -> Program:
    """Returns a program that stops where a tensor would lie outside of its buffer, at sizes that only a call tells."""
    graphs = tuple(
        replace(graph, steps=tuple(_bounded(program.callee(position), f"graphs.{graph.name}")))
        for position, graph in enumerate(program.graphs)
    )
    return replace(program, steps=tuple(_bounded(program, "")), graphs=graphs)


def _bounded(program: Program, path: str) -> Iterator[Step]:
    """Yields the steps of a program, each behind the checks that it takes."""
    known = _Extents(path)
    locations = f"{path}." if path else ""
    for name in _extent_names(program):
        known.counts.add(name)
    leading = _leading(program)
    for position, step in enumerate(program.steps[:leading]):
        yield from _walked(step, known, f"{locations}steps[{position}]")
    for position, value in enumerate(program.inputs):
        if value.layout is not None:
            known.own(value.name, known.layout(value.layout, f"{locations}inputs[{position}]"))
    for position, step in enumerate(program.steps[leading:], leading):
        yield from _walked(step, known, f"{locations}steps[{position}]")
    for position, output in enumerate(program.outputs):
        if isinstance(output.scalar, (str, tuple)):
            known.settled(output.scalar, f"{locations}outputs[{position}].scalar")


def _leading(program: Program) -> int:
    """Returns the number of steps that name integers before anything else is done: layouts of inputs may use these."""
    return next((at for at, step in enumerate(program.steps) if not isinstance(step, Let)), len(program.steps))


def _extent_names(program: Program) -> Iterator[str]:
    """Yields the names of inputs that are extents of tensors: each call is checked for that."""
    scalars = {value.name for value in program.inputs if value.kind == "scalar"}
    for value in program.inputs:
        for size in value.layout.shape if value.layout is not None else ():
            if isinstance(size, str) and size in scalars:
                yield size


def _walked(step: Step, known: _Extents, path: str) -> Iterator[Step]:
    """Yields what a step takes to be inside of its buffers, then the step; notes what it makes."""
    match step:
        case Let(name, value):
            known.name(name, value, f"{path}.value")
        case Alloc(_, layout) | Keep(_, layout):
            yield from known.alloc(step, known.layout(layout, path))
        case View(name, base, layout, offset):
            moved = known.settled(offset, f"{path}.offset")
            yield from known.put(name, base, known.layout(layout, path), moved, path)
        case Reuse(name, source, layout):
            yield from known.put(name, source, known.layout(layout, path), 0, path)
        case Extern():
            _note_results(step, known, path)
        case Call() | If() | While() | For():
            for size in (*step.sizes, *((step.count,) if isinstance(step, For) else ())):
                known.settled(size, f"{path}.sizes")
            for layout in step.stacked if isinstance(step, For) else ():
                known.layout(layout, f"{path}.stacked")
            known.locations |= {name: _Location(name, 0, None) for name in step.results if name is not None}
            known.counts |= {step.turns} if isinstance(step, While) and step.turns is not None else set()
        case _:
            for expr in _exprs_of(step):
                known.settled(expr, path)
    yield step


def _note_results(step: Extern, known: _Extents, path: str) -> None:
    for expr in value_sizes((*step.args, *step.kwargs.values())):
        known.settled(expr, f"{path}.args")
    for name in step.results:
        if name is not None:
            known.locations[name] = _Location(name, 0, None)
    known.counts |= {name for name, _, _ in step.binds}
    for stride in (stride for row in step.strides or () for stride in row or ()):
        known.settled(stride, f"{path}.strides")


def _exprs_of(step: Step) -> Iterator[Expr]:
    """Yields the integers that a step computes with, which is none that makes a tensor."""
    match step:
        case Launch():
            yield from (arg for arg in step.args if isinstance(arg, tuple))
            yield from (expr for other in step.alternatives for expr, _ in other.when)
        case Check():
            yield from (*condition_exprs(step.holds), *(expr for _, expr in step.names))
