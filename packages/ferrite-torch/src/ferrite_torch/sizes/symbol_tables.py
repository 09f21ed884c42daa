"""What is known of the symbols of one frame of dynamo: a table for each of torch's environments of symbols.

Every symbolic integer of torch's holds its environment (a ``ShapeEnv``), so no table has to be handed on; it goes with
the environment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from ferrite_ir.language import sizes
from ferrite_ir.language.size_generators import Generator, Monomial, symbols_in
from ferrite_ir.language.sizes import Size, Symbolic
from ferrite_torch.sizes.size_names import input_name
from ferrite_torch.torch_private.symbolic_shapes import (
    current_symbol,
    is_unbacked,
    numbers_among,
    symbol_facts,
    symbol_source,
    symbolic_value,
)


@dataclass(frozen=True, slots=True)
class KnownProducts:
    """What guards tell of the sizes of a graph. Torch itself writes now one side of an equation, now the other.

    Attributes:
        guards: how many there were.
        numbers: quotients, minima and maxima that are numbers, such as an extent of one chunk.
        products: products that equal sizes in symbols of the inputs, such as rows of labels those of the logits.
        zeros: other sizes that are zero: ``n - n // 2 - 3`` where half of ``n - 4`` is one element, which is broadcast.
    """

    guards: int
    numbers: Mapping[Generator, int]
    products: Mapping[Monomial, Size]
    zeros: tuple[Size, ...] = ()


@dataclass(slots=True)
class SymbolTable:
    """The symbols of an environment, by their names.

    Attributes:
        torch_symbols: as torch has them.
        symbols: as the language has them.
        tellers: the ops, with their source lines, that tell symbols when the graph runs.
        inputs: those that are numbers, extents or strides among the inputs of the graph read last.
        known: what guards told when it was last asked.
    """

    torch_symbols: dict[str, Any] = field(default_factory=dict)
    symbols: dict[str, Symbolic] = field(default_factory=dict)
    tellers: dict[str, str] = field(default_factory=dict)
    inputs: frozenset[str] = frozenset()
    known: KnownProducts | None = None


_tables: WeakKeyDictionary[Any, SymbolTable] = WeakKeyDictionary()


def table_of(environment: Any) -> SymbolTable:
    """Returns what is known of the symbols of an environment; an empty table, which is not kept, for None."""
    return SymbolTable() if environment is None else _tables.setdefault(environment, SymbolTable())


def symbol_of(symbol: Any, environment: Any) -> Symbolic:
    """Returns a symbol of torch's as a size, whatever torch knows it to be equal to."""
    table, symbol = table_of(environment), current_symbol(symbol, environment)
    name = str(symbol)
    if name not in table.symbols:
        low, high, hint = symbol_facts(symbol, environment)
        table.symbols[name] = sizes.symbol(name, low, high, hint)
        table.torch_symbols[name] = symbol
    return table.symbols[name]


def note_teller(symbol: Symbolic, environment: Any, origin: str) -> None:
    """Remembers which op, at which line, tells a symbol when the graph runs."""
    table_of(environment).tellers[str(symbol)] = origin


def note_inputs(fakes: Iterable[Any]) -> None:
    """Remembers in which symbols sizes are written until another graph is read: those that its inputs tell."""
    found: dict[Any, set[str]] = {}
    for number in numbers_among(fakes):
        expression, environment = symbolic_value(number)
        found.setdefault(environment, set()).update([str(expression)] if expression.is_Symbol else [])
    for environment, names in found.items():
        table = table_of(environment)
        table.inputs, table.known = frozenset(names), None


def input_names(environment: Any) -> dict[str, str]:
    """Returns what the user's program calls the symbols that are numbers of inputs: ``x.shape[0]``, by their names."""
    known = table_of(environment).torch_symbols
    sources = {name: symbol_source(symbol, environment) for name, symbol in known.items()}
    return {name: input_name(source) for name, source in sources.items() if source}


def depends_on_data(involved: Iterable[Size], environment: Any) -> bool:
    """Returns whether some of these sizes depend on data."""
    known = table_of(environment).torch_symbols
    names = {symbol.name for size in involved for symbol in symbols_in(size)}
    return any(is_unbacked(known[name], environment) for name in names if name in known)
