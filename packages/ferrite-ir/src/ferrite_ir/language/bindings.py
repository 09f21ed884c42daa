"""Symbolic sizes that a graph learns while it runs, and what it asks of sizes before it goes on.

Most symbols are told by the inputs. The others are *bound* by a definition, and nothing that uses one runs before:

- an extern call binds a symbol that is an extent of one of its results and was not known before;
- ``extern ferrite.size(size(u1), x, 0)`` binds one to an extent of a tensor whose type says something else;
- ``extern ferrite.read(size(u2), x)`` binds one to the only element, an integer or bool, of a tensor;
- ``extern ferrite.let(size(u3), size(min(u0, 8)))`` binds one to what is computed from others;
- a ``while`` binds one to each of the integers that it carries, as they are in the end; one that stacks what it makes
  binds one to the number of rows.

``extern ferrite.check(condition, "message", [["k", size(u0)], …])`` stops the program unless a condition on sizes
holds: ``["le", a, b]`` with one of `COMPARISONS`, or ``["and", condition, …]``, ``["or", condition, …]``,
``["not", condition]``. The error has the message, and the values of the sizes that are named. What uses a symbol of the
condition comes after it. All four have ``effects``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from . import size_polynomials
from .graph import (
    ControlFlow,
    Definition,
    Extern,
    For,
    Graph,
    Sort,
    TensorType,
    Update,
    Value,
    View,
    While,
    bodies_of,
    domain_of,
    views_in,
)
from .index import FloorDiv, Index, Indirect, Mod
from .scalar import indirects_of, postorder
from .sizes import Size, Symbolic, symbols_of

SIZE = "ferrite.size"
READ = "ferrite.read"
LET = "ferrite.let"
CHECK = "ferrite.check"
STEPS = frozenset((SIZE, READ, LET, CHECK))
"""Extern calls of the language's own that compute no tensors."""
AFTER = "ferrite.after"
"""The extern call that is its first operand as it lies, once the others are made: an order that nobody sees otherwise.

Programs have a view for it. What must not be computed side by side, for the memory that it takes, is put in a row.
"""
COMPARISONS = ("le", "lt", "ge", "gt", "eq", "ne")


@dataclass(frozen=True, slots=True)
class Binding:
    """A symbol that a definition binds: to the extent ``axis`` of its result number ``result``.

    Both are -1 for the calls in `STEPS`, whose arguments say what it is bound to, and for what a loop carries.
    """

    symbol: str
    result: int = -1
    axis: int = -1


def bindings_of(graph: Graph) -> dict[int, tuple[Binding, ...]]:
    """Returns the symbols that the definitions of a graph bind, by position of the definition."""
    if not size_polynomials.exist():
        return {}
    known = set(given_symbols(graph))
    found: dict[int, tuple[Binding, ...]] = {}
    for position, definition in enumerate(graph.definitions):
        if not isinstance(definition, Extern | While):
            continue
        made = tuple(_new_bindings(definition, known))
        if made:
            found[position] = made
    return found


def results_that_bind(graph: Graph) -> dict[str, tuple[Binding, ...]]:
    """Returns the symbols that extern calls and loops bind by their results, by the name of the result."""
    found: dict[str, tuple[Binding, ...]] = {}
    for position, made in bindings_of(graph).items():
        for binding in made:
            result = graph.definitions[position].results[binding.result] if binding.result >= 0 else None
            if result is not None:
                found[result.name] = (*found.get(result.name, ()), binding)
    return found


def given_symbols(graph: Graph) -> frozenset[str]:
    """Returns the symbols that occur in the inputs of a graph."""
    sizes = [size for value in graph.inputs for size in type_sizes(value.type)]
    sizes += [size for _, size in graph.sizes]
    return frozenset(name for size in sizes for name in symbols_of(size))


def _new_bindings(definition: Extern | While, known: set[str]) -> Iterator[Binding]:
    if isinstance(definition, While):
        for symbol in map(str, definition.binds):
            if symbol not in known:
                known.add(symbol)
                yield Binding(symbol)
        if definition.stacked:
            yield from _extents(definition.results, known)
        return
    if definition.target in STEPS - {CHECK}:
        name = str(definition.args[0])
        if name not in known:
            known.add(name)
            yield Binding(name)
        return
    yield from _extents(definition.results, known)


def _extents(results: Sequence[Value | None], known: set[str]) -> Iterator[Binding]:
    """Yields what is bound to extents of results."""
    for position, result in enumerate(results):
        for axis, extent in enumerate(() if result is None else result.type.shape):
            name = str(extent)
            if isinstance(extent, Symbolic) and symbols_of(extent) == {name} and name not in known:
                known.add(name)
                yield Binding(name, position, axis)


def check_symbols(definition: Definition) -> frozenset[str]:
    """Returns the symbols that a definition asks something of; none for one that is no check."""
    if not isinstance(definition, Extern) or definition.target != CHECK:
        return frozenset()
    return frozenset(name for size in _plain_sizes(definition.args[0]) for name in symbols_of(size))


def definition_symbols(definition: Definition) -> frozenset[str]:
    """Returns the symbols in a definition, the types of its results included."""
    sizes = dict.fromkeys(size for size in definition_sizes(definition) if type(size) is not int)
    for result in definition.results:
        if result is not None:
            sizes.update((size, None) for size in type_sizes(result.type) if type(size) is not int)
    return frozenset(name for size in sizes for name in symbols_of(size))


def type_sizes(type_: TensorType) -> tuple[Size, ...]:
    """Returns the extents and strides of a type."""
    return (*type_.shape, *type_.strides)


def view_sizes(views: Iterable[View]) -> Iterator[Size]:
    """Yields the extents, strides and offsets of views."""
    for view in views:
        yield from (*view.shape, *view.strides, view.offset)


def definition_sizes(definition: Definition) -> Iterator[Size]:
    """Yields the sizes in a definition, those of its results excepted."""
    dims, reduced = domain_of(definition)
    yield from (dim.size for dim in (*dims, *reduced))
    if isinstance(definition, Sort) and definition.top is not None:
        yield definition.top
    if isinstance(definition, ControlFlow):
        yield from definition.sizes
        yield from (definition.count,) if isinstance(definition, For) else ()
        yield from definition.binds if isinstance(definition, While) else ()
    if isinstance(definition, Extern):
        arguments = (definition.args, tuple(value for _, value in definition.kwargs))
        yield from view_sizes(views_in(arguments))
        yield from _plain_sizes(arguments)
    yield from _index_sizes(_indices_in(definition))


def _plain_sizes(argument: Any) -> Iterator[Size]:
    if isinstance(argument, tuple):
        for item in argument:
            yield from _plain_sizes(item)
    elif isinstance(argument, Symbolic):
        yield argument


def _indices_in(definition: Definition) -> Iterator[Index]:
    indices = definition.indices if isinstance(definition, Update) else ()
    yield from indices
    for node in postorder((*bodies_of(definition), *indirects_of(indices))):
        if node.op in ("load", "index"):
            yield from node.indices


def _index_sizes(indices: Iterable[Index]) -> Iterator[Size]:
    stack = list(indices)
    while stack:
        index = stack.pop()
        yield index.const
        for atom, coefficient in index.terms:
            yield coefficient
            match atom:
                case FloorDiv() | Mod():
                    yield atom.divisor
                    stack.append(atom.numerator)
                case Indirect():
                    yield atom.size
