"""Renaming of values: definitions that compute the same from, and as, values of other names (alpha-renaming).

c: f32[n] = loop [i < n] add(a[i], b[i])     with a -> x, c -> z:     z: f32[n] = loop [i < n] add(x[i], b[i])
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ferrite_ir.language.graph import Computed, Contract, Definition, Loop, Reduction, Scan, Sort, Update, Value
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar, load, replace_in_index, replace_loads

from .rewriting import map_scalars


class Renaming:
    """Other names for values; a value that ``names`` does not have keeps its own.

    Expressions that were changed are remembered, so that what definitions share is changed once. More names may be
    added to ``names`` while it is in use, of values that nothing has read yet.
    """

    __slots__ = ("_memo", "_names")

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._memo: dict[Scalar, Scalar] = {}

    def name(self, name: str) -> str:
        """Returns what a value is called now."""
        return self._names.get(name, name)

    def value(self, value: Value) -> Value:
        """Returns the value of a definition or graph under its new name."""
        return Value(self.name(value.name), value.type)

    def scalar(self, body: Scalar) -> Scalar:
        """Returns an expression that reads the values under their new names; the same object if it reads none."""
        names = self._names
        if not any([found.source in names for found in body.loads]):  # noqa: C419 - a list is faster for so few
            return body
        return replace_loads(body, self._load, self._memo)

    def index(self, index: Index) -> Index:
        """Returns an index whose indirect parts read the values under their new names."""
        return replace_in_index(index, self._load, self._memo) if index.is_indirect else index

    def reads(self, definition: Definition) -> Definition:
        """Returns a definition whose expressions read the values under their new names, and which makes what it made.

        The target of an update, and what definitions without expressions take, keep their names.
        """
        return map_scalars(definition, self.scalar, self.index)

    def definition(self, definition: Computed) -> Computed:
        """Returns a definition that reads, updates and makes the values under their new names."""
        results: tuple[Value, ...] = tuple(map(self.value, definition.results))
        changed: Any = self.reads(definition)
        match changed:
            case Update():
                return replace(changed, result=results[0], target=self.name(changed.target))
            case Contract():
                return replace(changed, result=results[0])
            case Loop() | Reduction() | Scan() | Sort():
                return replace(changed, results=results)
        raise AssertionError(f"not computed at points: {type(definition).__name__}")

    def _load(self, node: Scalar) -> Scalar | None:
        new = self._names.get(node.source)
        return None if new is None else load(new, node.indices, node.dtype)
