"""The reference evaluator: runs a graph in plain Python, point by point, and is slow and obviously right."""

from __future__ import annotations

import itertools
import math
import operator
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from ferrite_ir.language import sizes
from ferrite_ir.language.bindings import CHECK, STEPS
from ferrite_ir.language.dtypes import DType
from ferrite_ir.language.graph import (
    Attend,
    Call,
    Contract,
    ControlFlow,
    Definition,
    Extern,
    For,
    Graph,
    If,
    Loop,
    Module,
    Output,
    Reduction,
    Scan,
    Segments,
    Sort,
    Update,
    Value,
    View,
    While,
)
from ferrite_ir.language.index import Dim
from ferrite_ir.language.scalar import Number
from ferrite_ir.language.sizes import Size

from .attention import AttendedRow
from .combine_semantics import State, lift, merge, neutral, stored
from .extern_calls import EXTERNS, ExternFunction
from .points import EvaluationError, Point
from .rounding import round_to
from .tensors import Nested, Tensor, empty, filled, shape_of

__all__ = ["EvaluationError", "Evaluator", "Tensor", "evaluate", "filled"]

MAX_ITERATIONS = 10_000
"""A ``while`` that runs longer is taken for endless."""


def evaluate(
    program: Graph | Module,
    inputs: Sequence[Nested | Tensor],
    *,
    externs: Mapping[str, ExternFunction] | None = None,
    symbols: Mapping[str, int] | None = None,
) -> list[Nested]:
    """Returns the outputs of a program as nested lists, numbers and None.

    Args:
        program: a graph, or a module, of which the first graph runs.
        inputs: one for each input: nested lists, or a `Tensor`, whose storage then sees what the program does in place.
        externs: extern calls by target; `EXTERNS` are known always.
        symbols: values of symbolic sizes that cannot be seen from the shapes of the inputs.

    Raises:
        EvaluationError: the program does something undefined, or the inputs do not fit.
    """
    module = program if isinstance(program, Module) else Module((program,))
    evaluator = Evaluator(module.graphs[0], module, externs, symbols)
    evaluator.bind(inputs)
    for definition in evaluator.graph.definitions:
        evaluator.run(definition)
    return [output.nested() if isinstance(output, Tensor) else output for output in evaluator.outputs()]


class Evaluator:
    """One run of one graph; the parts of it can be called in another order, by tests of schedules for instance.

    Attributes:
        graph: what runs.
        module: the graphs that it may call.
        memory: tensors by value name.
        symbols: values of symbolic sizes.
    """

    __slots__ = ("_externs", "graph", "memory", "module", "symbols")

    def __init__(
        self,
        graph: Graph,
        module: Module | None = None,
        externs: Mapping[str, ExternFunction] | None = None,
        symbols: Mapping[str, int] | None = None,
    ) -> None:
        self.graph = graph
        self.module = module or Module((graph,))
        self.memory: dict[str, Tensor] = {}
        self.symbols: dict[str, int] = dict(symbols or {})
        self._externs = {**EXTERNS, **(externs or {})}

    def bind(self, inputs: Sequence[Nested | Tensor]) -> None:
        """Makes these the inputs of the graph, and takes the values of symbolic sizes from their shapes.

        Raises:
            EvaluationError: wrong number, shape or type of inputs.
        """
        if len(inputs) != len(self.graph.inputs):
            raise EvaluationError(f"@{self.graph.name} takes {len(self.graph.inputs)} inputs, got {len(inputs)}")
        shapes = [given.shape if isinstance(given, Tensor) else shape_of(given) for given in inputs]
        for value, shape in zip(self.graph.inputs, shapes, strict=True):
            self._bind_symbols(value, shape)
        for value, given, shape in zip(self.graph.inputs, inputs, shapes, strict=True):
            expected = self.sizes(value.type.shape)
            if shape != expected and not (0 in expected and math.prod(shape) == 0):
                raise EvaluationError(f"input {value.name} has shape {list(shape)}, expected {list(expected)}")
            self.memory[value.name] = self._bound(value, given)

    def _bind_symbols(self, value: Value, shape: tuple[int, ...]) -> None:
        if len(shape) == len(value.type.shape):
            for size, actual in zip(value.type.shape, shape, strict=True):
                if str(size).isidentifier():
                    self.symbols.setdefault(str(size), actual)

    def _bound(self, value: Value, given: Nested | Tensor) -> Tensor:
        if not isinstance(given, Tensor):
            return filled(given, value.type.dtype, self.sizes(value.type.shape), self.sizes(value.type.strides))
        if given.dtype is not value.type.dtype:
            raise EvaluationError(f"input {value.name} is {given.dtype}, expected {value.type.dtype}")
        return given

    def sizes(self, found: Sequence[Size]) -> tuple[int, ...]:
        """Returns sizes as integers."""
        try:
            return tuple(sizes.evaluate(size, self.symbols) for size in found)
        except KeyError as missing:
            raise EvaluationError(f"the symbolic size {missing.args[0]} has no value; pass it in symbols") from None

    def outputs(self) -> list[Tensor | Number | None]:
        """Returns the outputs, tensors as views of the memory."""
        return [self._output(output) for output in self.graph.outputs]

    def _output(self, output: Output) -> Tensor | Number | None:
        if isinstance(output, sizes.Symbolic):
            return self.sizes((output,))[0]
        return self.view(output) if isinstance(output, View) else output

    def view(self, view: View) -> Tensor:
        """Returns the tensor that a view of a value is."""
        shape, strides = self.sizes(view.shape), self.sizes(view.strides)
        (offset,) = self.sizes((view.offset,))
        try:
            return self._find(view.name).view(view.dtype, shape, strides, offset)
        except ValueError as problem:
            raise EvaluationError(f"{view.name}: {problem}") from None

    def _find(self, name: str) -> Tensor:
        found = self.memory.get(name)
        if found is None:
            raise EvaluationError(f"no value {name!r} at this place; it is defined later, or an update has replaced it")
        return found

    def allocate(self, value: Value) -> Tensor:
        """Returns an empty tensor for a value, which it names from now on."""
        found = empty(value.type.dtype, self.sizes(value.type.shape), self.sizes(value.type.strides))
        self.memory[value.name] = found
        return found

    def run(self, definition: Definition) -> None:
        """Computes one definition into the memory.

        Raises:
            EvaluationError: it does something undefined.
        """
        try:
            _RUN[type(definition)](self, definition)
        except EvaluationError as problem:
            names = ", ".join(value.name for value in definition.results if value is not None)
            raise EvaluationError(f"in {names or 'an extern call'}: {problem}") from None

    def points(self, dims: Sequence[Dim], fixed: Mapping[Dim, int] | None = None) -> Iterator[Point]:
        """Yields the points of a domain, the last dim fastest; ``fixed`` dims keep their values."""
        for values in itertools.product(*(range(size) for size in self.sizes([dim.size for dim in dims]))):
            yield Point(self.memory, {**(fixed or {}), **dict(zip(dims, values, strict=True))}, self.symbols)

    def run_loop(self, loop: Loop) -> None:
        """Computes a loop: all points from the old memory, then the results."""
        results = [
            (_position(point, loop.dims), [point.scalar(body) for body in loop.bodies])
            for point in self.points(loop.dims)
        ]
        tensors = [self.allocate(value) for value in loop.results]
        for position, values in results:
            for tensor, value in zip(tensors, values, strict=True):
                tensor.write(position, value)

    def run_reduction(self, reduction: Reduction) -> None:
        """Computes a reduction: the state of each kept point, reduced dims in order."""
        tensors = [self.allocate(value) for value in reduction.results]
        for kept in self.points(reduction.dims):
            states = (
                lift(reduction.combine, tuple(point.scalar(body) for body in reduction.bodies))
                for point in self.points(reduction.reduction_dims, kept.dims)
            )
            state = self._combined(reduction.combine, states, reduction.results[0].type.dtype)
            for tensor, value in zip(tensors, state, strict=True):
                tensor.write(_position(kept, reduction.dims), round_to(value, tensor.dtype))

    def _combined(self, combine: str, states: Iterator[State], dtype: DType) -> State:
        total: State | None = None
        for state in states:
            total = state if total is None else merge(combine, total, state)
        if total is None:
            try:
                return neutral(combine, dtype)
            except ValueError as problem:
                raise EvaluationError(str(problem)) from None
        return total

    def run_scan(self, scan: Scan) -> None:
        """Computes an inclusive scan."""
        others = [dim for dim in scan.dims if dim is not scan.along]
        tensors = [self.allocate(value) for value in scan.results]
        for line in self.points(others):
            state: State | None = None
            points = list(self.points([scan.along], line.dims))
            for point in reversed(points) if scan.reverse else points:
                new = lift(scan.combine, tuple(point.scalar(body) for body in scan.bodies))
                state = new if state is None else merge(scan.combine, state, new)
                for tensor, value in zip(tensors, state, strict=True):
                    tensor.write(_position(point, scan.dims), round_to(value, tensor.dtype))

    def run_sort(self, sort: Sort) -> None:
        """Computes a stable sort; NaN counts as the largest value."""
        others = [dim for dim in sort.dims if dim is not sort.along]
        tensors = [self.allocate(value) for value in sort.results]
        for line in self.points(others):
            values = [point.scalar(sort.body) for point in self.points([sort.along], line.dims)]
            keys = [_sort_key(value) for value in values]
            order = sorted(range(len(values)), key=keys.__getitem__, reverse=sort.descending)  # stable both ways
            count = len(order) if sort.top is None else self.sizes((sort.top,))[0]
            for rank, origin in enumerate(order[:count]):
                position = _position(Point(self.memory, {**line.dims, sort.along: rank}, self.symbols), sort.dims)
                for tensor, value in zip(tensors, (values[origin], origin), strict=False):
                    tensor.write(position, value)

    def run_update(self, update: Update) -> None:
        """Computes an update: all points from the old contents, then the stores, in order of the points."""
        target = self._find(update.target)
        stores: list[tuple[list[int], Number]] = []
        for point in self.points(update.dims):
            if update.condition is not None and not point.scalar(update.condition):
                continue
            position = [point.index(index) for index in update.indices]
            if not target.contains(position):
                raise EvaluationError(f"stores to element {position} of shape {list(target.shape)}")
            stores.append((position, point.scalar(update.body)))
        for position, value in stores:
            target.write(position, round_to(stored(update.mode, target.read(position), value), target.dtype))
        self.memory[update.result.name] = target
        if update.result.name != update.target:
            del self.memory[update.target]

    def run_contract(self, contract: Contract) -> None:
        """Computes a contraction, carried without rounding."""
        result = self.allocate(contract.result)
        groups = None if contract.segments is None else self._groups(contract.segments)
        for kept in self.points(contract.dims):
            total = sum(
                point.scalar(contract.left) * point.scalar(contract.right)
                for inside in self.points(contract.reduction_dims, kept.dims)
                if (point := self._grouped(inside, contract, groups)) is not None
            )
            result.write(_position(kept, contract.dims), round_to(total, result.dtype))

    def _groups(self, segments: Segments) -> list[int]:
        """Returns where each group of a contraction ends."""
        ends = [int(point.scalar(segments.ends)) for point in self.points([segments.group])]
        if ends != sorted(ends) or any(end < 0 for end in ends):
            raise EvaluationError(f"groups end at {ends}: an end is negative, or less than the one before")
        return ends

    def _grouped(self, point: Point, contract: Contract, ends: list[int] | None) -> Point | None:
        """Returns a point at which a product is added, with the group that it is of; None where none is added."""
        segments = contract.segments
        if segments is None or ends is None:
            return point
        group = bisect_right(ends, point.dims[segments.of])
        if not contract.has_grouped_rows:
            return point if group == point.dims[segments.group] else None
        if group == len(ends):
            return None
        return Point(self.memory, {**point.dims, segments.group: group}, self.symbols)

    def run_attend(self, attend: Attend) -> None:
        """Computes an attention row by row, weights without rounding to the types of factors."""
        tensors = [self.allocate(value) for value in attend.results]
        for line in self.points(attend.dims[:-1]):
            row = AttendedRow(attend, self.memory, line.dims, self.symbols)
            for kept in self.points((attend.column,), line.dims):
                for tensor, value in zip(tensors, row.results(kept.dims), strict=False):
                    position = _position(kept, attend.dims[: len(tensor.shape)])
                    tensor.write(position, round_to(value, tensor.dtype))

    def run_extern(self, extern: Extern) -> None:
        """Calls a library function from the registry."""
        if extern.target in STEPS:
            self._run_step(extern)
            return
        function = self._externs.get(extern.target)
        if function is None:
            raise EvaluationError(f"no extern call {extern.target!r} is known here; pass it in externs")
        kwargs = {name: self._argument(value) for name, value in extern.kwargs}
        returned = function(*map(self._argument, extern.args), **kwargs)
        found = returned if isinstance(returned, tuple) else (returned,)
        if len(found) < len(extern.results):
            raise EvaluationError(f"{extern.target} returned {len(found)} results, {len(extern.results)} are declared")
        for value, result in zip(extern.results, found, strict=False):
            if value is not None:
                if isinstance(result, Tensor):
                    self._bind_symbols(value, result.shape)
                    self.memory[value.name] = result
                else:
                    self._bind_symbols(value, shape_of(result))
                    self.memory[value.name] = self._filled(value, result)
        for name, operand in extern.aliases:
            if operand in extern.mutates and name in self.memory:
                self.memory[name] = self.memory.pop(operand)

    def _run_step(self, extern: Extern) -> None:
        """Binds a symbol, or checks a condition on those that are bound."""
        first, *rest = extern.args
        if extern.target == CHECK:
            if not self._holds(first):
                named = ", ".join(f"{name} is {self._argument(size)}" for name, size in rest[1])
                raise EvaluationError(f"{rest[0]}: {named}" if named else str(rest[0]))
            return
        values = [self._argument(value) for value in rest]
        match extern.target, values:
            case "ferrite.size", [tensor, axis]:
                self.symbols[str(first)] = tensor.shape[axis]
            case "ferrite.read", [tensor]:
                (position,) = tensor.points()
                self.symbols[str(first)] = int(tensor.read(position))
            case _:
                (self.symbols[str(first)],) = values

    def _holds(self, condition: tuple[Any, ...]) -> bool:
        kind, *parts = condition
        match kind:
            case "and":
                return all(map(self._holds, parts))
            case "or":
                return any(map(self._holds, parts))
            case "not":
                return not self._holds(parts[0])
        return bool(getattr(operator, kind)(*map(self._argument, parts)))

    def _filled(self, value: Value, values: Nested) -> Tensor:
        return filled(values, value.type.dtype, self.sizes(value.type.shape), self.sizes(value.type.strides))

    def _argument(self, argument: Any) -> Any:
        if isinstance(argument, View):
            return self.view(argument)
        if isinstance(argument, tuple):
            return tuple(map(self._argument, argument))
        return sizes.evaluate(argument, self.symbols) if isinstance(argument, sizes.Symbolic) else argument

    def run_call(self, call: Call) -> None:
        """Runs another graph of the module."""
        self._store(call.results, self.called(call.callee, *self._given(call)))

    def run_if(self, branch: If) -> None:
        """Runs one of two graphs."""
        condition = self._find(branch.condition)
        chosen = branch.then if condition.read((0,) * len(condition.shape)) else branch.otherwise
        self._store(branch.results, self.called(chosen, *self._given(branch)))

    def run_while(self, loop: While) -> None:
        """Runs a graph again and again."""
        tensors, numbers = self._given(loop)
        count = len(loop.results)
        rows: list[list[Any]] = []
        for _ in range(MAX_ITERATIONS):
            (verdict,) = self.called(loop.condition, tensors, numbers)
            if isinstance(verdict, Tensor):
                verdict = verdict.read((0,) * len(verdict.shape))
            if not verdict:
                if loop.stacked:
                    self._stack(loop.results, rows or [tensors[:count]])
                else:
                    self._store(loop.results, tensors[:count])
                self.symbols.update(zip(map(str, loop.binds), numbers, strict=False))
                return
            made: list[Any] = list(self.called(loop.body, tensors, numbers))
            rows.append(made[:count])
            tensors, numbers = [*made[:count], *tensors[count:]], [*made[count:], *numbers[len(loop.binds) :]]
        raise EvaluationError(f"@{loop.condition} still holds after {MAX_ITERATIONS} iterations")

    def run_for(self, loop: For) -> None:
        """Runs a graph for each row of its operands."""
        tensors, numbers = self._given(loop)
        (count,) = self.sizes((loop.count,))
        state, rest = tensors[: loop.carried], tensors[loop.carried + loop.sliced :]
        sliced = tensors[loop.carried : loop.carried + loop.sliced]
        rows: list[list[Tensor | Number | None]] = []
        for iteration in range(count):
            given = [*state, *(_row(tensor, iteration) for tensor in sliced), *rest]
            made = self.called(loop.body, given, numbers)
            state = cast("list[Tensor]", made[: loop.carried])
            rows.append(made[loop.carried :])
        self._store(loop.results[: loop.carried], state)
        self._stack(loop.results[loop.carried :], rows)

    def _stack(self, results: Sequence[Value], rows: Sequence[Sequence[Tensor | Number | None]]) -> None:
        """Stores what all iterations of a loop have made, as rows of one tensor each."""
        for position, value in enumerate(results):
            column = [row[position] for row in rows]
            nested = [item.nested() if isinstance(item, Tensor) else item for item in column]
            self._bind_symbols(value, (len(rows), *self.sizes(value.type.shape[1:])))
            self.memory[value.name] = self._filled(value, cast("Nested", nested))

    def _given(self, call: ControlFlow) -> tuple[list[Tensor], list[int]]:
        return [self._find(name) for name in call.args], list(self.sizes(call.sizes))

    def called(self, name: str, args: Sequence[Tensor], numbers: Sequence[int]) -> list[Tensor | Number | None]:
        """Returns what a graph of the module gives for these tensors and integers."""
        callee = self.module.graph(name)
        symbols = {str(size): number for (_, size), number in zip(callee.sizes, numbers, strict=True)}
        inner = Evaluator(callee, self.module, self._externs, symbols)
        inner.bind(args)
        for definition in inner.graph.definitions:
            inner.run(definition)
        return inner.outputs()

    def _store(self, results: Sequence[Value], found: Sequence[Tensor | Number | None]) -> None:
        """Stores results of a called graph, which are tensors of their own."""
        for value, result in zip(results, found, strict=True):
            self.memory[value.name] = self._filled(value, result.nested() if isinstance(result, Tensor) else result)


def _row(tensor: Tensor, turn: int) -> Tensor:
    """Returns what lies at a place along the first axis of a tensor, as a view."""
    offset = tensor.offset + turn * tensor.strides[0]
    return Tensor(tensor.dtype, tensor.shape[1:], tensor.strides[1:], offset, tensor.storage)


def _position(point: Point, dims: Sequence[Dim]) -> tuple[int, ...]:
    return tuple(point.dims[dim] for dim in dims)


def _sort_key(value: Number) -> tuple[bool, Number]:
    return (True, 0) if value != value else (False, value)  # noqa: PLR0124 - a number that is not itself is NaN


_RUN: dict[type, Callable[[Evaluator, Any], None]] = {
    Loop: Evaluator.run_loop,
    Reduction: Evaluator.run_reduction,
    Scan: Evaluator.run_scan,
    Sort: Evaluator.run_sort,
    Update: Evaluator.run_update,
    Contract: Evaluator.run_contract,
    Attend: Evaluator.run_attend,
    Extern: Evaluator.run_extern,
    Call: Evaluator.run_call,
    If: Evaluator.run_if,
    While: Evaluator.run_while,
    For: Evaluator.run_for,
}
