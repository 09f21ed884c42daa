"""Where the values of symbolic sizes come from: the sizes and strides of inputs, and the integers among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ferrite_ir.language.bindings import bindings_of
from ferrite_ir.language.graph import Graph
from ferrite_ir.language.size_generators import Symbol
from ferrite_ir.language.sizes import Size, Symbolic, quotient, symbols_of
from ferrite_ir.text.printer import graph_symbols
from ferrite_triton.analysis.size_params import host_expression
from ferrite_triton.errors import UnsupportedSize


@dataclass(frozen=True, slots=True)
class _Source:
    """A size that the program can see: where it is, as the value of a ``let``, and what it is over the symbols."""

    value: Any
    size: Size
    label: str


def bind_symbols(graph: Graph) -> tuple[dict[str, Any], ...]:
    """Returns the ``let`` steps that give every symbol of a graph, but those that a step of it makes, its value.

    Symbols that stand alone somewhere come first; the others are solved for, one by one.

    Raises:
        UnsupportedSize: a symbol occurs in no input, or only where it cannot be solved for.
    """
    bound = {binding.symbol for made in bindings_of(graph).values() for binding in made}
    missing = {symbol.name: symbol for symbol in graph_symbols(graph) if symbol.name not in bound}
    if not missing:
        return ()
    sources = list(_sources(graph))
    steps: list[dict[str, Any]] = []
    for source in sources:
        name = str(source.size)
        if name in missing:
            del missing[name]
            if source.value != name:
                steps.append({"do": "let", "name": name, "value": source.value})
    while missing:
        solved = next(filter(None, (_solved(source, missing) for source in sources)), None)
        if solved is None:
            raise UnsupportedSize(f"no input of @{graph.name} tells the symbolic size {', '.join(sorted(missing))}")
        name, source, expression = solved
        del missing[name]
        if not isinstance(source.value, str):
            steps.append({"do": "let", "name": source.label, "value": source.value})
        steps.append({"do": "let", "name": name, "value": expression})
    return tuple(steps)


def _sources(graph: Graph) -> Iterator[_Source]:
    for name, size in graph.sizes:
        if isinstance(size, Symbolic):
            yield _Source(name, size, name)
    for kind in ("size", "stride"):
        for value in graph.inputs:
            for axis, size in enumerate(value.type.shape if kind == "size" else value.type.strides):
                if isinstance(size, Symbolic):
                    yield _Source({kind: [value.name, axis]}, size, f"{value.name}_{kind}{axis}")


def _solved(source: _Source, missing: dict[str, Symbol]) -> tuple[str, _Source, Any] | None:
    """Returns ``(name, source, expression)`` for the only missing symbol in a source that is linear in it."""
    unknown = symbols_of(source.size) & missing.keys()
    if len(unknown) != 1:
        return None
    (name,) = unknown
    symbol = missing[name]
    rest: Size = 0
    factor: Size = 0
    for monomial, coefficient in source.size.terms:
        term: Size = coefficient
        for generator, power in monomial:
            term = term * generator.size**power
        if name not in symbols_of(term):
            rest = rest + term
            continue
        part = quotient(term, symbol.size)
        if part is None or name in symbols_of(part):
            return None
        factor = factor + part
    value = source.value if isinstance(source.value, str) else source.label
    left: Any = value if rest == 0 else ["sub", value, host_expression(rest)]
    return name, source, left if factor == 1 else ["floordiv", left, host_expression(factor)]
