"""Data-dependent sizes and numbers (torch calls them unbacked): what binds each, and what is asked of them.

An extern call whose result has such an extent binds it, ``item`` binds the number that it reads, and a slice binds the
length that it computes: the walk over a graph calls `RunTimeSizes.bind` after each node. Where a view begins is bound
if the graph returns it beside what it is a view of. Conditions, of the user's ``torch._check`` or of torch's own, and
the ranges that kernels are compiled for, become checks: each stands behind the definition that binds its last symbol,
before anything that uses one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ferrite_ir.language import size_generators, sizes
from ferrite_ir.language.bindings import CHECK, LET, READ, SIZE, bindings_of, definition_symbols, given_symbols
from ferrite_ir.language.dtypes import BOOL
from ferrite_ir.language.graph import Definition, Extern, Graph
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.size_generators import Symbol
from ferrite_ir.language.sizes import Size, Symbolic, bounds, ceildiv, is_provably_at_most, maximum, symbols_of
from ferrite_ir.text.printer import graph_symbols
from ferrite_torch.diagnostics.origins import origins_of, unsupported
from ferrite_torch.lowering.builder import Builder
from ferrite_torch.lowering.shapes.views import axis_of, from_front, slice_start
from ferrite_torch.lowering.tensors import Tensor
from ferrite_torch.sizes.conditions import Condition, bound_key, condition_of, condition_text
from ferrite_torch.sizes.size_names import named
from ferrite_torch.sizes.specialisation import NeedsNumber
from ferrite_torch.sizes.symbol_tables import depends_on_data, note_teller, symbol_of
from ferrite_torch.sizes.symbolic_scalars import truth_of
from ferrite_torch.sizes.symbolic_sizes import size_of, size_of_expression, steps_of
from ferrite_torch.torch_private.fake_tensors import is_fake
from ferrite_torch.torch_private.nodes import source_text
from ferrite_torch.torch_private.operators import READS
from ferrite_torch.torch_private.symbolic_shapes import (
    environment_of,
    is_unbacked_number,
    replaced_symbol,
    symbolic_value,
    unbacked_bindings,
)

ASSERTIONS = frozenset(
    f"aten.{name}.default" for name in ("_assert_scalar", "sym_constrain_range", "sym_constrain_range_for_size")
)
"""Ops that ask something of a number, and compute nothing."""
BINDING_VIEWS = frozenset(("aten.slice.Tensor", "aten.select.int"))
"""Views whose extents, offsets and conditions follow from data-dependent numbers."""


def has_unbacked(module: torch.fx.GraphModule) -> bool:
    """Returns whether some size or number of a graph is known only when it runs."""
    return any(is_unbacked_number(number) for node in module.graph.nodes for number in _numbers(node.meta.get("val")))


def tells_sizes_of_data(module: torch.fx.GraphModule) -> bool:
    """Returns whether some size or number of a graph comes of data: other than what its loops count to."""
    counted = {
        symbol
        for node in module.graph.nodes
        if str(node.target) == "while_loop"
        for symbol, _ in unbacked_bindings(node)
    }
    numbers = (number for node in module.graph.nodes for number in _numbers(node.meta.get("val")))
    return any(is_unbacked_number(each) and not symbolic_value(each)[0].free_symbols <= counted for each in numbers)


def _numbers(value: Any) -> Iterator[Any]:
    for item in value if isinstance(value, (list, tuple)) else (value,):
        if is_fake(item) and item.layout == torch.strided:
            yield from (number for number in (*item.shape, *item.stride()) if isinstance(number, torch.SymInt))
        elif isinstance(item, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            yield item


@dataclass(frozen=True, slots=True)
class _Requirement:
    """A condition, and who asks it: the source line, and what stands there ("" where that is not known).

    A condition on floats is one on the truth that the graph computes of them; ``text`` says what it is about. With
    ``is_position`` it asks whether a number is a position along an axis, for which eager raises an `IndexError`.
    """

    condition: Condition
    line: str
    code: str = ""
    text: str = ""
    is_position: bool = False


class RunTimeSizes:
    """The data-dependent sizes of one graph that is being lowered."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        """What the user's program calls data-dependent symbols."""
        self._lines: dict[str, str] = {}
        self._requirements: dict[Any, _Requirement] = {}
        self._granted: set[Any] = set()
        self._truths: dict[Scalar, Symbolic] = {}
        self._views: dict[torch.fx.Node, tuple[int, Size]] = {}
        self._settled: dict[Symbolic, Size] = {}

    def name_float(self, node: torch.fx.Node) -> None:
        """Remembers what the user's program calls the float that ``item`` reads."""
        for symbol, _ in unbacked_bindings(node):
            self.names.setdefault(str(symbol), _user_name(node))

    # --- what binds -------------------------------------------------------------------------------------------------

    def read(self, builder: Builder, node: torch.fx.Node, tensor: Tensor) -> None:
        """Binds the number that ``item`` reads; the host waits for it."""
        for symbol, _ in unbacked_bindings(node):
            name = self._raw(symbol, node, _user_name(node))
            builder.extern(READ, [name, tensor], effects=True)
            self._equate(name, symbol, node)

    def bind(self, builder: Builder, node: torch.fx.Node, result: Any, count: int) -> None:
        """Binds what a node tells by its results; ``count`` definitions are older than the node's own."""
        found = unbacked_bindings(node)
        if not found:
            return
        for location in range(count, len(builder.definitions)):
            made = builder.definitions[location]
            if isinstance(made, Extern):
                builder.definitions[location] = replace(made, effects=True)
        for symbol, path in found:
            match path:
                case (*items, ("size", axis)):
                    tensor = result
                    for _, position in items:
                        tensor = tensor[position]
                    label = f"{_user_name(node)}.shape[{axis}]"
                    name = self._raw(symbol, node, label)
                    if tensor.shape[axis] is not name or tensor.value.type.shape != tensor.shape:
                        builder.extern(SIZE, [name, tensor, axis], effects=True)
                    self._equate(name, symbol, node)
                case (*items, (_, _)) if all(kind == "item" for kind, _ in path):
                    tensor = result
                    for _, position in path:
                        tensor = tensor[position]
                    builder.extern(READ, [self._raw(symbol, node, _user_name(node)), tensor], effects=True)
                    self._equate(symbol_of(symbol, environment_of(node)), symbol, node)
                case (("stride" | "storage_offset", *_),):
                    continue  # of a view that a library makes: it is not known where that begins
                case _:
                    raise unsupported(node, f"a size bound by {path} is known only when the graph runs")

    def carried(self, node: torch.fx.Node) -> dict[int, Symbolic]:
        """Returns the symbols of the integers that a node returns, by their place; a loop binds them itself."""
        found: dict[int, Symbolic] = {}
        for symbol, path in unbacked_bindings(node):
            if len(path) == 1 and path[0][0] == "item":
                found[path[0][1]] = self._raw(symbol, node, _user_name(node))
                self._equate(found[path[0][1]], symbol, node)
            else:
                found[-1 - len(found)] = symbol_of(symbol, environment_of(node))
        return found

    def bind_view(self, builder: Builder, node: torch.fx.Node, x: Tensor, given: Sequence[Any]) -> None:
        """Binds what a view in `BINDING_VIEWS` computes from numbers, and has it checked that it lies inside."""
        arguments: list[Any] = [0, None, None, 1]
        arguments[: len(given)] = given
        dim, start, end, step = arguments
        axis = axis_of(dim, x.ndim)
        size = x.shape[axis]
        if str(node.target) == "aten.select.int":
            location = size_of(start)
            self.ask_position(node, location, size)
            self._note_view(node, axis, from_front(location, size))
        elif unbacked_bindings(node):
            first = slice_start(start, size)
            last = size if end is None else slice_start(end, size)
            self._bind_length(builder, node, axis, ceildiv(maximum(last - first, 0), int(step)))
            self._note_view(node, axis, first)

    def _bind_length(self, builder: Builder, node: torch.fx.Node, axis: int, length: Size) -> None:
        """Binds the extent of a slice; one that torch knows, as that of ``narrow``, is checked."""
        extent = node.meta["val"].shape[axis]
        if isinstance(extent, int) or not is_unbacked_number(extent):
            self.ask(node, ("eq", length, size_of(extent)))
        for symbol, path in unbacked_bindings(node):
            if path == (("size", axis),):
                name = self._raw(symbol, node, f"{_user_name(node)}.shape[{axis}]")
                builder.extern(LET, [name, length], effects=True)
                self._take_for_granted(name, length)
                self._equate(name, symbol, node)

    def _note_view(self, node: torch.fx.Node, axis: int, first: Size) -> None:
        """Notes where a view begins in memory, for results that lie there: ``first`` positions along an axis."""
        self._views[node] = axis, first
        for symbol, path in unbacked_bindings(node):
            if path[0][0] == "storage_offset":
                name = self._raw(symbol, node, f"{_user_name(node)}.storage_offset()")
                self._settle(name, _begin(node.all_input_nodes[0].meta["val"], axis, first))
                self._equate(name, symbol, node)

    def note_again(self, node: torch.fx.Node, whole: torch.Tensor, view: torch.Tensor) -> None:
        """Notes what a view is bound to whose op has been called once more, on another whole: it has new symbols."""
        if node not in self._views:
            return
        for extent, known in zip(view.shape, node.meta["val"].shape, strict=True):
            self._settle(size_of(extent), size_of(known))
        self._settle(size_of(view.storage_offset()), _begin(whole, *self._views[node]))

    def _settle(self, name: Size, value: Size) -> None:
        """Notes what a new symbol is, for the case that the graph has it in the end."""
        if isinstance(name, Symbolic) and symbols_of(name) == {str(name)} and name is not value:
            self._settled.setdefault(name, value)
            self._take_for_granted(name, value)

    def _take_for_granted(self, name: Symbolic, value: Size) -> None:
        """Notes those ends of the range of a symbol that hold for what it is bound to."""
        low, high = bounds(name)
        for condition, holds in (
            (("ge", name, low), low is not None and is_provably_at_most(low, value)),
            (("le", name, high), high is not None and is_provably_at_most(value, high)),
        ):
            if holds:
                self._granted.add(bound_key(condition))

    def _raw(self, symbol: Any, node: torch.fx.Node, label: str) -> Symbolic:
        """Returns the symbol itself, whatever torch has learned of it, under a name that people know."""
        environment = environment_of(node)
        found = symbol_of(symbol, environment)
        note_teller(found, environment, str(origins_of(node)[0]))
        self.names.setdefault(str(found), label)
        self._lines.setdefault(str(found), str(origins_of(node)[0]))
        return found

    def _equate(self, name: Symbolic, symbol: Any, node: torch.fx.Node) -> None:
        """Has it checked that a symbol is what torch has replaced it by, if it has."""
        known = replaced_symbol(symbol, environment_of(node))
        if known is not None:
            environment = environment_of(node)
            self._ask(_Requirement(("eq", name, size_of_expression(known, environment)), *_location(node)))

    # --- what is asked ----------------------------------------------------------------------------------------------

    def check(self, builder: Builder, node: torch.fx.Node, floats: Mapping[str, Scalar]) -> None:
        """Notes what an op of `ASSERTIONS` asks; ``floats`` are the data-dependent ones, by their symbols' names.

        Raises:
            Unsupported: it asks what neither sizes nor floats tell.
        """
        if str(node.target) == "aten._assert_scalar.default":
            given = node.args[0]
            value: Any = given.meta["val"] if isinstance(given, torch.fx.Node) else bool(given)
            try:
                self._note(node, condition_of(value))
            except NeedsNumber:
                self._note_truth(builder, node, value, floats)
            return
        size, low, high = _range_of(node)
        self._note_bounds(node, size, low, high)

    def _note_truth(
        self, builder: Builder, node: torch.fx.Node, value: torch.SymBool, floats: Mapping[str, Scalar]
    ) -> None:
        """Notes a condition on floats: the graph computes its truth, which the host reads."""
        try:
            truth, text = truth_of(value, floats)
        except NeedsNumber as need:
            raise unsupported(node, f"a check of {need.reason} is not compiled") from need
        if truth not in self._truths:
            self._truths[truth] = sizes.symbol(f"truth{len(self._truths)}", None, None, None)
            builder.begin(node, origins_of(node))
            builder.extern(READ, [self._truths[truth], builder.loop((), BOOL, lambda point: truth)], effects=True)
        requirement = _Requirement(("eq", self._truths[truth], 1), *_location(node), named(text, self.names))
        self._requirements[bound_key(requirement.condition)] = (
            requirement  # twice, as other conditions: the last is the user's own line
        )

    def _note(self, node: torch.fx.Node, condition: Condition | bool) -> None:  # noqa: FBT001  # or what is known of it
        if condition is False:
            raise unsupported(node, "a check that never holds")
        if condition is not True:
            # Torch asks the same twice: where it learns the size, and then at the user's own line.
            self._requirements[bound_key(condition)] = _Requirement(condition, *_location(node))

    def _note_bounds(self, node: torch.fx.Node, size: Size, low: int | None, high: int | None) -> None:
        if isinstance(size, Symbolic):
            for kind, bound in (("ge", low), ("le", high)):
                if bound is not None:
                    self._ask(_Requirement((kind, size, bound), *_location(node)))

    def ask(self, node: torch.fx.Node, condition: Condition) -> None:
        """Notes what the lowering of a node needs."""
        self._ask(_Requirement(condition, *_location(node)))

    def ask_position(self, node: torch.fx.Node, location: Size, size: Size) -> None:
        """Notes that a number, if it depends on data, has to be a position along an axis of so many."""
        if isinstance(location, Symbolic) and depends_on_data((location,), environment_of(node)):
            for condition in (("le", -size, location), ("lt", location, size)):
                self._ask(_Requirement(condition, *_location(node), is_position=True))

    def _ask(self, requirement: _Requirement) -> None:
        self._requirements.setdefault(bound_key(requirement.condition), requirement)

    # --- the checks -------------------------------------------------------------------------------------------------

    def checked(self, graph: Graph, names: Mapping[str, str]) -> Graph:
        """Returns a graph with its checks: those of conditions, and of the ranges of what depends on data.

        And with what binds the offsets of views, where results lie there.

        ``names`` are what the user's program calls symbols.
        """
        bindings = bindings_of(graph)
        bound = {found.symbol: found.result >= 0 for made in bindings.values() for found in made}
        for symbol in graph_symbols(graph):
            is_bound = symbol.name in bound or symbol.name in self.names or symbol.hint is None
            for requirement in _ranges(symbol, self._lines.get(symbol.name, "")) if is_bound else ():
                self._ask(requirement)
        waiting = [
            *self._bound_to_settled(graph),
            *(
                (symbols_in(requirement.condition), "", self._definition(requirement, names))
                for key, requirement in self._requirements.items()
                if key not in self._granted and not _is_plain(requirement.condition, bound)
            ),
        ]
        if not waiting:
            return graph
        known = set(given_symbols(graph))
        definitions: list[Definition] = []
        for position, definition in enumerate((None, *graph.definitions), -1):
            if definition is not None:
                definitions.append(definition)
                if position not in bindings:
                    continue
                known.update(found.symbol for found in bindings[position])
            waiting = list(_left_over(waiting, known, definitions))
        return replace(graph, definitions=tuple(definitions))

    def _bound_to_settled(self, graph: Graph) -> list[_Waiting]:
        """Returns what binds those symbols of views that a graph has, in the order in which they follow on another."""
        used = {symbol.name for symbol in graph_symbols(graph)}
        found: list[_Waiting] = []
        for name, value in reversed(self._settled.items()):
            if str(name) in used:
                used |= symbols_of(value)
                found.append((frozenset(symbols_of(value)), str(name), Extern((), LET, (name, value), effects=True)))
        return found[::-1]

    def _definition(self, requirement: _Requirement, known: Mapping[str, str]) -> Extern:
        symbols = () if requirement.text else _symbols_of(requirement.condition)
        names = {str(size): known.get(str(size), str(size)) for size in symbols}
        text = f"{requirement.text or condition_text(requirement.condition, names)} does not hold"
        location = ": ".join(part for part in (requirement.line, requirement.code, text) if part)
        made = dict.fromkeys(
            f"{names[name]} comes from {self._lines[name]}"
            for name in names
            if name in self._lines and requirement.line not in self._lines[name]
        )
        message = f"{location} ({'; '.join(made)})" if made else location
        named = tuple((names[str(size)], size) for size in symbols)
        error = ("index",) if requirement.is_position else ()
        return Extern((), CHECK, (requirement.condition, message, named, *error), effects=True)


_Waiting = tuple[frozenset[str], str, Extern]
"""The symbols that a definition needs, the one that it binds ("" for none), and the definition."""


def _left_over(waiting: Sequence[_Waiting], known: set[str], definitions: list[Definition]) -> Iterator[_Waiting]:
    """Adds the definitions whose symbols are known to those of a graph; yields the others."""
    for needed, bound, definition in waiting:
        if needed <= known:
            definitions.append(definition)
            known.add(bound)
        else:
            yield needed, bound, definition


def _begin(whole: torch.Tensor, axis: int, first: Size) -> Size:
    """Returns the offset of a view that begins ``first`` positions along an axis of a fake tensor."""
    return size_of(whole.storage_offset()) + first * steps_of(whole)[axis]


def _range_of(node: torch.fx.Node) -> tuple[Size, int | None, int | None]:
    """Returns the size that an op holds in a range, and the ends of that range."""
    given, *positional = node.args
    ends = {**dict(zip(("min", "max"), positional, strict=False)), **node.kwargs}
    low, high = (end if isinstance(end := ends.get(name), int) else None for name in ("min", "max"))
    is_size = str(node.target) == "aten.sym_constrain_range_for_size.default"
    value: Any = given.meta["val"] if isinstance(given, torch.fx.Node) else given
    return size_of(value), max(low or 0, 0) if is_size else low, high


def _ranges(symbol: Symbol, line: str) -> Iterator[_Requirement]:
    if symbol.low is not None:
        yield _Requirement(("ge", symbol.size, symbol.low), line)
    if symbol.high is not None:
        yield _Requirement(("le", symbol.size, symbol.high), line)


def _is_plain(condition: Condition, bound: dict[str, bool]) -> bool:
    """Returns whether a condition says that an extent is not negative."""
    kind, *sides = condition
    return bool(kind == "ge" and sides[1] == 0 and bound.get(str(sides[0]), False))


def symbols_in(condition: Condition) -> frozenset[str]:
    """Returns the names of the symbols in a condition."""
    return definition_symbols(Extern((), CHECK, (condition,)))


def _symbols_of(condition: Condition) -> tuple[Symbolic, ...]:
    """Returns the symbols in a condition, in order."""
    found: dict[Symbolic, None] = {}
    pending: list[Any] = [condition]
    while pending:
        item = pending.pop()
        if isinstance(item, tuple):
            pending.extend(reversed(item))
        elif isinstance(item, Symbolic):
            found.update((symbol.size, None) for symbol in size_generators.symbols_in(item))
    return tuple(found)


def _location(node: torch.fx.Node) -> tuple[str, str]:
    """Returns the source line of a node, and what stands there."""
    origin = origins_of(node)[0]
    return origin.line, source_text(node)


def _user_name(node: torch.fx.Node) -> str:
    """Returns what the user's line calls the result of a node: a variable, or the call of a method itself."""
    try:
        line = ast.parse(source_text(node).removeprefix("return "))
    except SyntaxError:
        return node.name
    assigned = [made for made in line.body if isinstance(made, ast.Assign)]
    if len(assigned) == 1 and len(assigned[0].targets) == 1:
        names = [found.id for found in _elements(assigned[0].targets[0]) if isinstance(found, ast.Name)]
        bound = [node] if len(names) == 1 else _bound_together(node)
        if len(names) == len(bound) == len(_elements(assigned[0].targets[0])):
            return names[bound.index(node)]
    calls = [found for found in ast.walk(line) if isinstance(found, ast.Call) and _is_read(found.func)]
    return ast.unparse(calls[0]) if len(calls) == 1 and str(node.target) == READS else node.name


def _elements(target: ast.expr) -> list[ast.expr]:
    return target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]


def _bound_together(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Returns the nodes of one source line that tell sizes or numbers, in order."""
    line = origins_of(node)[0].line
    return [n for n in node.graph.nodes if unbacked_bindings(n) and origins_of(n)[0].line == line]


def _is_read(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and function.attr == "item"
