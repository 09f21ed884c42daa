"""The one place where a symbolic size is fixed to its value: what needs a number raises, and is made again with it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ferrite_ir.language.size_generators import symbols_in
from ferrite_ir.language.sizes import Size, Undecided
from ferrite_torch.diagnostics.statistics import record_specialisation
from ferrite_torch.errors import Unsupported
from ferrite_torch.sizes.size_names import named
from ferrite_torch.sizes.symbol_tables import input_names, table_of
from ferrite_torch.thresholds import SEARCHES
from ferrite_torch.torch_private.symbolic_shapes import (
    environments,
    is_unbacked,
    relax_dynamic_marks,
    specialise_symbol,
)

log = logging.getLogger(__name__)

Made = TypeVar("Made")

_noted: set[str] = set()
"""What was logged: each text once."""


class NeedsNumber(Exception):
    """Some part of the compiler cannot go on with a symbolic size.

    Attributes:
        where: the op and the source line, or the stage; "" where the one who asks does not know it.
        reason: what it asked.
        sizes: the sizes to fix.
    """

    def __init__(self, where: str, reason: str, involved: Iterable[Size]) -> None:
        super().__init__(f"{where}: {reason}")
        self.where, self.reason, self.sizes = where, reason, tuple(involved)

    def at(self, where: str) -> NeedsNumber:
        """Returns the same, with a place if it has none."""
        return self if self.where else NeedsNumber(where, self.reason, self.sizes)


def settled(make: Callable[[], Made], fakes: Callable[[], Iterable[Any]]) -> Made:
    """Returns what a function makes, fixing sizes to their values until it needs no number that it does not have.

    Each size that is fixed is logged with what needed it, counted, and guarded by dynamo. ``fakes`` gives the values
    that hold the symbols.

    Raises:
        Unsupported: a number is needed that depends on data.
    """
    for _ in range(SEARCHES.specialised_sizes):
        try:
            return make()
        except NeedsNumber as need:
            _specialise(need, fakes())
        except Undecided as need:
            _specialise(NeedsNumber("code generation", need.question, need.sizes), fakes())
    raise Unsupported(f"more than {SEARCHES.specialised_sizes} sizes of one graph would have to be fixed")


def _specialise(need: NeedsNumber, fakes: Iterable[Any]) -> None:
    environment = next(environments(fakes), None)
    symbols = dict.fromkeys(symbol for size in need.sizes for symbol in symbols_in(size))
    table = table_of(environment)
    relax_dynamic_marks()
    fixed = 0
    for symbol in symbols:
        if symbol.name not in table.torch_symbols:
            raise Unsupported(f"{need.where}: {need.reason}, which depends on data")
        if is_unbacked(table.torch_symbols[symbol.name], environment):
            teller = table.tellers.get(symbol.name, "")
            source = f" ({symbol.name} comes from {teller})" if teller else ""
            raise Unsupported(f"{need.where}: {need.reason}, a size that is known only when the graph runs{source}")
        value = specialise_symbol(table.torch_symbols[symbol.name], environment)
        fixed += 1
        names = input_names(environment)
        where, reason, name = need.where or "a size", named(need.reason, names), names.get(symbol.name, symbol.name)
        record_specialisation(where, reason)
        _note(f"{where}: {name} is fixed to {value}, and other values compile anew: {reason}")
    if not fixed:
        raise Unsupported(f"{need.where}: {need.reason}")


def _note(text: str) -> None:
    if text not in _noted:
        _noted.add(text)
        log.warning("%s", text)
