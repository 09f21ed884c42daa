"""Runs a schedule in plain Python, with buffers reused as planned: a wrong plan gives wrong numbers or an error.

Kernels run point by point. What a kernel does not store lives in registers that are gone at the next grid point, and
a looped kernel computes its full-level values anew in every later pass, so that reads at other points and overwritten
operands show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, TypeAlias, cast

from ferrite_ir.language.graph import (
    Attend,
    Computed,
    Contract,
    Loop,
    Module,
    Reduction,
    Scan,
    Sort,
    TensorType,
    Update,
    bodies_of,
)
from ferrite_ir.language.index import Dim
from ferrite_ir.language.sizes import Symbolic
from ferrite_ir.reference.attention import AttendedRow
from ferrite_ir.reference.combine_semantics import State, lift, merge
from ferrite_ir.reference.evaluator import EvaluationError, Evaluator
from ferrite_ir.reference.points import Point
from ferrite_ir.reference.rounding import round_to
from ferrite_ir.reference.tensors import Nested, Tensor, empty
from ferrite_scheduler.analysis.neutral_elements import neutral_state
from ferrite_scheduler.model.annotations import ColumnReduction
from ferrite_scheduler.model.contractions import as_reduction
from ferrite_scheduler.model.forms import MixedCombo, RegisterNorm
from ferrite_scheduler.model.schedule import (
    Allocate,
    CallExtern,
    CallGraph,
    Copy,
    Free,
    Item,
    Keep,
    Kernel,
    Launch,
    MakeView,
    Reuse,
    Schedule,
    ScheduledOutput,
    Step,
)

Number: TypeAlias = bool | int | float


def simulate(
    schedule: Schedule,
    inputs: Sequence[Nested | Tensor],
    *,
    externs: Mapping[str, Callable[..., Any]] | None = None,
    module: Module | None = None,
    backwards: bool = False,
    symbols: Mapping[str, int] | None = None,
) -> list[Nested]:
    """Returns the outputs of a schedule as nested lists and numbers, as `ferrite_ir.evaluate` returns those of a graph.

    Args:
        schedule: what to run.
        inputs: one per input of the graph; a `Tensor` sees what the schedule does in place.
        externs: extern calls by target, beside those that the evaluator knows.
        module: the graphs that calls name, where the schedule has none of theirs.
        backwards: whether grid points run last to first; no result may depend on it.
        symbols: values of symbolic sizes that cannot be seen from the shapes of the inputs.

    Raises:
        EvaluationError: a step names a dropped tensor, or a kernel reads what was never written.
    """
    host = _Host(schedule, module, externs, symbols, backwards=backwards)
    outputs = _run(schedule, host, inputs, backwards=backwards)
    return [output.nested() if isinstance(output, Tensor) else output for output in outputs]


def _run(schedule: Schedule, host: Evaluator, inputs: Sequence[Nested | Tensor], *, backwards: bool) -> list[Any]:
    host.bind(inputs)
    for step in schedule.steps:
        _run_step(step, schedule, host, backwards=backwards)
    return [_output(host, output) for output in schedule.outputs]


def _output(host: Evaluator, output: ScheduledOutput) -> Any:
    if isinstance(output, Symbolic):
        return host.sizes((output,))[0]
    return _found(host, output) if isinstance(output, str) else output


class _Host(Evaluator):
    """The memory of one run of a schedule; called graphs run as they are scheduled."""

    __slots__ = ("_backwards", "_callees", "_libraries")

    def __init__(
        self,
        schedule: Schedule,
        module: Module | None,
        externs: Mapping[str, Callable[..., Any]] | None,
        symbols: Mapping[str, int] | None,
        *,
        backwards: bool,
    ) -> None:
        super().__init__(schedule.graph, module, externs, symbols)
        self._callees = schedule.callees
        self._libraries, self._backwards = externs, backwards

    def called(self, name: str, args: Sequence[Tensor], numbers: Sequence[int]) -> list[Any]:
        """Returns what a called graph gives, run as it is scheduled."""
        scheduled = next((each for each in self._callees if each.graph.name == name), None)
        if scheduled is None:
            return super().called(name, args, numbers)
        symbols = {str(size): number for (_, size), number in zip(scheduled.graph.sizes, numbers, strict=True)}
        inner = replace(scheduled, callees=self._callees)
        host = _Host(inner, self.module, self._libraries, symbols, backwards=self._backwards)
        positions = [
            empty(carried.dtype, carried.shape, carried.strides) for carried in args[: len(inner.destinations)]
        ]
        return _run(inner, host, [*args, *positions], backwards=self._backwards)


def _found(host: Evaluator, name: str) -> Tensor:
    found = host.memory.get(name)
    if found is None:
        raise EvaluationError(f"no tensor {name!r} at this place: it was dropped, or not made yet")
    return found


def _run_step(step: Step, schedule: Schedule, host: Evaluator, *, backwards: bool) -> None:
    memory = host.memory
    match step:
        case Allocate() | Keep():
            memory[step.name] = empty(step.type.dtype, host.sizes(step.type.shape), host.sizes(step.type.strides))
        case Reuse():
            memory[step.name] = _reused(_found(host, step.source), step.type, host)
            del memory[step.source]
        case MakeView():
            memory[step.name] = host.view(step.view)
        case Item():
            memory[step.name] = _found(host, step.source)
        case Launch():
            kernel = schedule.kernels[step.kernel]
            if any(all(host.sizes((size,))[0] <= most for size, most in row) for row in kernel.skip_guard):
                return
            _launch(kernel, [_found(host, name) for name in step.args], host, backwards=backwards)
        case CallExtern():
            _call(step, host)
        case CallGraph():
            _call_graph(step, host)
        case Copy():
            target, source = _found(host, step.target), _found(host, step.source)
            for point in target.points():
                target.write(point, cast("Number", source.read(point)))
        case Free():
            for name in step.names:
                _found(host, name)
                del memory[name]


def _reused(old: Tensor, type_: TensorType, host: Evaluator) -> Tensor:
    """Returns a tensor over the storage of another; where element widths differ the old contents are wiped."""
    shape, strides = host.sizes(type_.shape), host.sizes(type_.strides)
    (size,) = host.sizes((type_.storage_size,))
    if old.dtype.bytes == type_.dtype.bytes and len(old.storage) >= size:
        return Tensor(type_.dtype, shape, strides, old.offset, old.storage)
    if len(old.storage) * old.dtype.bytes < size * type_.dtype.bytes:
        raise EvaluationError(
            f"{size} elements of {type_.dtype} do not fit into a storage of {len(old.storage)} {old.dtype}"
        )
    old.storage[:] = [None] * len(old.storage)
    return empty(type_.dtype, shape, strides)


def _call(step: CallExtern, host: Evaluator) -> None:
    results = tuple(
        None if name is None or value is None else value
        for name, value in zip(step.results, step.definition.results, strict=True)
    )
    host.run_extern(replace(step.definition, results=results, aliases=()))


def _call_graph(step: CallGraph, host: Evaluator) -> None:
    host.run(step.definition)
    for value, name in zip(step.definition.results, step.results, strict=True):
        if name is None:
            del host.memory[value.name]


class _Registers:
    """The values of one definition at the points where they were computed."""

    __slots__ = ("shape", "values")

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.values: dict[tuple[int, ...], Number] = {}

    def contains(self, position: Sequence[int]) -> bool:
        return all(0 <= i < size for i, size in zip(position, self.shape, strict=True))

    def read(self, position: Sequence[int]) -> Number | None:
        return self.values.get(tuple(position))


class _Run:
    """One launch."""

    def __init__(self, kernel: Kernel, arguments: Sequence[Tensor], host: Evaluator) -> None:
        self.kernel = kernel
        self.host = host
        self.symbols = host.symbols
        self.tensors = {
            param.name: Tensor(
                param.type.dtype,
                host.sizes(param.type.shape),
                host.sizes(param.type.strides),
                tensor.offset,
                tensor.storage,
            )
            for param, tensor in zip(kernel.params, arguments, strict=True)
        }
        reduction = kernel.reduction
        self.reduction_dims = reduction.dims if reduction is not None else ()
        self.reduced = set(self.reduction_dims)
        self.registers: dict[str, _Registers] = {}
        self.columns: dict[tuple[str, tuple[int, ...]], State] = {}
        self.rows: dict[tuple[int, ...], AttendedRow] = {}
        self.computed: set[tuple[str, int, tuple[int | None, ...]]] = set()

    def begin_columns(self) -> None:
        """Writes what chunks without rows leave in memory: sums of nothing."""
        results = [d.results[0] for d in self.kernel.body if isinstance(d, ColumnReduction)]
        for result in results:
            for home in product(*map(range, self.host.sizes(result.type.shape))):
                self.tensors[result.name].write(home, 0.0)

    def memory(self) -> Mapping[str, Tensor]:
        """Returns what loads see: registers before memory."""
        return cast("Mapping[str, Tensor]", {**self.tensors, **self.registers})

    def clear(self) -> None:
        """Forgets all registers."""
        self.computed.clear()
        shapes = {r.name: r.type.shape for d in self.kernel.body for r in d.results}
        self.registers = {
            name: _Registers(self.host.sizes(shape)) for name, shape in shapes.items() if name in self.kernel.homes
        }

    def keep(self, name: str, point: Point, value: Number, *, stores: bool = True) -> None:
        """Puts a value in its register, and in memory if it is stored."""
        home = tuple(point.index(index) for index in self.kernel.homes[name])
        self.registers[name].values[home] = value
        if stores and name in self.kernel.stored and name in self.tensors:
            self.tensors[name].write(home, value)

    def positions(self, dims: Sequence[Dim]) -> Iterator[dict[Dim, int]]:
        """Yields every point of some dims, the last one fastest."""
        positions: list[dict[Dim, int]] = [{}]
        for dim, extent in zip(dims, self.host.sizes([dim.size for dim in dims]), strict=True):
            positions = [{**position, dim: value} for position in positions for value in range(extent)]
        yield from positions

    def is_full(self, definition: Computed) -> bool:
        """Returns whether a definition runs at every grid × reduction point."""
        return isinstance(definition, Reduction | Scan | Sort | Contract | Attend) or bool(
            self.reduced & set(definition.dims)
        )


def _over_groups(kernel: Kernel) -> Kernel:
    """Returns a kernel that reduces over some dims of ``x``, too, as one that has them on its reduction axis."""
    *grid, x, reduction = kernel.axes
    reduced = {
        dim for definition in kernel.body if isinstance(definition, Reduction) for dim in definition.reduction_dims
    }
    kept, moved = (tuple(dim for dim in x.dims if (dim in reduced) is inside) for inside in (False, True))
    return replace(kernel, axes=(*grid, replace(x, dims=kept), replace(reduction, dims=(*moved, *reduction.dims))))


def _launch(kernel: Kernel, arguments: Sequence[Tensor], host: Evaluator, *, backwards: bool) -> None:
    if isinstance(kernel.form, MixedCombo):
        tensors = {param.name: tensor for param, tensor in zip(kernel.params, arguments, strict=True)}
        for member in kernel.members:
            _launch(member, [tensors[param.name] for param in member.params], host, backwards=backwards)
        return
    kernel = _over_groups(kernel) if isinstance(kernel.form, RegisterNorm) else kernel
    run = _Run(kernel, arguments, host)
    run.begin_columns()
    unrolled = (kernel.unrolled,) if kernel.unrolled is not None else ()
    grid = list(run.positions([dim for axis in (*kernel.grid, *unrolled) for dim in axis.dims]))
    numbers = kernel.part_of
    launched = [(part, position) for part in dict.fromkeys(numbers) for position in grid]
    for part, position in reversed(launched) if backwards else launched:
        run.clear()
        for number, definition in zip(numbers, kernel.body, strict=True):
            if number == part:
                _run_definition(run, definition, position)


def _run_definition(run: _Run, definition: Computed, grid: dict[Dim, int]) -> None:
    if not run.is_full(definition):
        _point(run, definition, Point(run.memory(), grid, run.symbols))
        return
    match definition:
        case Contract():
            _reduction(run, as_reduction(definition), grid, definition.locals)
        case Attend():
            _attention(run, definition, grid)
        case ColumnReduction():
            _column_reduction(run, definition, grid)
        case Reduction():
            for block in run.positions([dim for dim in run.reduction_dims if dim in definition.dims]):
                _reduction(run, definition, {**grid, **block})
        case Scan():
            _scan(run, definition, grid)
        case Sort():
            _sort(run, definition, grid)
        case _:
            for position in run.positions([dim for dim in run.reduction_dims if dim in definition.dims]):
                full = {**grid, **position}
                _refresh(run, definition, full)
                _point(run, definition, Point(run.memory(), full, run.symbols))


def _point(run: _Run, definition: Computed, point: Point, *, stores: bool = True) -> None:
    """Computes a loop or update at one point."""
    match definition:
        case Loop():
            values = [point.scalar(body) for body in definition.bodies]
            for result, value in zip(definition.results, values, strict=True):
                run.keep(result.name, point, value, stores=stores)
        case Update():
            if definition.condition is None or point.scalar(definition.condition):
                _update(run, definition, point)
        case _:
            raise EvaluationError(f"the simulator does not run {type(definition).__name__} kernels")


def _update(run: _Run, update: Update, point: Point) -> None:
    target = run.tensors[update.result.name]
    position = [point.index(index) for index in update.indices]
    if not target.contains(position):
        raise EvaluationError(f"{update.result.name} stores to element {position} of shape {list(target.shape)}")
    value = point.scalar(update.body)
    if update.mode == "set":
        new = value
    else:
        old = cast("Number", target.read(position))
        new = _UPDATES[update.mode](old, value)
    new = round_to(new, target.dtype)
    target.write(position, new)
    run.registers[update.result.name].values[tuple(position)] = new


_UPDATES: dict[str, Callable[[Any, Any], Number]] = {
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": min,
    "max": max,
}


def _refresh(run: _Run, definition: Computed, full: dict[Dim, int]) -> None:
    """In a looped kernel, computes anew at one point the full-level values of earlier passes that it is to read.

    A pass computes each of them once.
    """
    if not run.kernel.form.has_passes:
        return
    number = run.kernel.pass_of[definition.results[0].name]
    position = tuple(full.get(dim) for dim in run.reduction_dims)
    for needed in _needed(run, definition):
        computed = needed.results[0].name, number, position
        if computed not in run.computed:
            run.computed.add(computed)
            _point(run, needed, Point(run.memory(), full, run.symbols), stores=False)


def _needed(run: _Run, definition: Computed) -> list[Computed]:
    pass_of = run.kernel.pass_of
    makers = {
        r.name: d
        for d in run.kernel.body
        for r in d.results
        if isinstance(d, Loop) and run.is_full(d) and pass_of[r.name] < pass_of[definition.results[0].name]
    }
    wanted: set[str] = set()
    stack = [definition]
    while stack:
        for scalar in bodies_of(stack.pop()):
            for load in scalar.loads:
                if load.source in makers and load.source not in wanted:
                    wanted.add(load.source)
                    stack.append(makers[load.source])
    return [d for d in run.kernel.body if any(r.name in wanted for r in d.results)]


def _states(
    run: _Run, definition: Reduction | Scan, grid: dict[Dim, int], inner: tuple[Dim, ...] = ()
) -> Iterator[tuple[dict[Dim, int], State]]:
    for position in run.positions([dim for dim in (*inner, *run.reduction_dims) if dim not in grid]):
        full = {**grid, **position}
        _refresh(run, definition, full)
        point = Point(run.memory(), full, run.symbols)
        yield full, lift(definition.combine, tuple(point.scalar(body) for body in definition.bodies))


def _reduction(run: _Run, reduction: Reduction, grid: dict[Dim, int], inner: tuple[Dim, ...] = ()) -> None:
    total: State | None = None
    for _, state in _states(run, reduction, grid, inner):
        total = state if total is None else merge(reduction.combine, total, state)
    if total is None:
        total = tuple(
            state.value for state in neutral_state(reduction.combine, [r.type.dtype for r in reduction.results])
        )
    point = Point(run.memory(), grid, run.symbols)
    for result, value in zip(reduction.results, total, strict=True):
        run.keep(result.name, point, round_to(value, result.type.dtype))


def _attention(run: _Run, attend: Attend, grid: dict[Dim, int]) -> None:
    """Computes the results of an attention in one column; the weights of a row are the same in all."""
    position = {**dict.fromkeys((*attend.dims, attend.along), 0), **grid}
    key = tuple(position[dim] for dim in attend.dims[:-1])
    if key not in run.rows:
        run.rows[key] = AttendedRow(attend, run.tensors, position, run.symbols)
    point = Point(run.memory(), grid, run.symbols)
    for result, value in zip(attend.results, run.rows[key].results(position), strict=False):
        run.keep(result.name, point, round_to(value, result.type.dtype))


def _column_reduction(run: _Run, reduction: ColumnReduction, grid: dict[Dim, int]) -> None:
    """Adds one row to the column reductions of its chunk; what lies in memory is complete after the last row."""
    name = reduction.results[0].name
    for full, state in _states(run, reduction, grid):
        point = Point(run.memory(), full, run.symbols)
        home = tuple(point.index(index) for index in run.kernel.homes[name])
        before = run.columns.get((name, home))
        total = run.columns[name, home] = state if before is None else merge(reduction.combine, before, state)
        for result, value in zip(reduction.results, total, strict=True):
            run.keep(result.name, point, round_to(value, result.type.dtype))


def _scan(run: _Run, scan: Scan, grid: dict[Dim, int]) -> None:
    total: State | None = None
    states = list(_states(run, scan, grid))
    for full, state in reversed(states) if scan.reverse else states:
        total = state if total is None else merge(scan.combine, total, state)
        point = Point(run.memory(), full, run.symbols)
        for result, value in zip(scan.results, total, strict=True):
            run.keep(result.name, point, round_to(value, result.type.dtype))


def _sort(run: _Run, sort: Sort, grid: dict[Dim, int]) -> None:
    positions = [{**grid, **position} for position in run.positions(run.reduction_dims)]
    values = [Point(run.memory(), position, run.symbols).scalar(sort.body) for position in positions]
    order = sorted(range(len(values)), key=lambda i: (values[i] != values[i], values[i]), reverse=sort.descending)
    for rank, origin in enumerate(order[: sort.top]):
        point = Point(run.memory(), positions[rank], run.symbols)
        for result, value in zip(sort.results, (values[origin], origin), strict=False):
            run.keep(result.name, point, value)
