"""Reads what a schedule says beside its kernels and steps: decisions, changes, choices, origins of definitions."""

from __future__ import annotations

import json
from typing import cast

from ferrite_ir.language.graph import Origin, Origins
from ferrite_ir.text.expression_parser import read_integer, read_listed, read_number
from ferrite_ir.text.tokens import Words
from ferrite_scheduler.model.changes import Change
from ferrite_scheduler.model.choices import Choice, Cost
from ferrite_scheduler.model.schedule import Decision, Numbers


class RecordReader:
    """Reads such records, one after the other."""

    __slots__ = ("words",)

    def __init__(self, words: Words) -> None:
        self.words = words

    def read_decision(self) -> Decision:
        """Returns a decision of fusion."""
        words = self.words
        first = words.name("a value")
        words.expect("+")
        second = words.name("a value")
        words.expect(":")
        token = words.take()
        if token.text not in ("fused", "apart"):
            raise words.error(f"expected 'fused' or 'apart', found {token.text!r}", token)
        rule = words.take().text if words.next.kind == "name" else ""
        reason = self.read_string()
        numbers: Numbers = ()
        if words.accept("("):
            numbers = tuple(read_listed(words, ")", self.read_fact))
        return Decision(first, second, token.text == "fused", rule, reason, numbers)

    def read_change(self) -> Change:
        """Returns what a rewrite or refinement changed."""
        words = self.words
        step = words.name("a step")
        words.expect("(")
        names = tuple(read_listed(words, ")", lambda: words.name("a value")))
        words.expect("became")
        words.expect("(")
        became = tuple(read_listed(words, ")", self.read_string))
        return Change(step, names, became, self.read_string())

    def read_choice(self) -> Choice:
        """Returns a choice between kernels and extern calls."""
        words = self.words
        words.expect("(")
        values = tuple(read_listed(words, ")", lambda: words.name("a value")))
        words.expect("took")
        chosen, reason = self.read_string(), self.read_string()
        words.expect("of")
        words.expect("(")
        return Choice(values, tuple(read_listed(words, ")", self.read_way)), chosen, reason)

    def read_way(self) -> tuple[str, Cost]:
        """Returns one of the ways that there were, with its cost."""
        name, token = self.read_string(), self.words.next
        try:
            seconds = float(self.read_string())
        except ValueError:
            raise self.words.error("expected seconds", token) from None
        return name, Cost(seconds, self.read_string(), self.read_string())

    def read_fact(self) -> tuple[str, int | str]:
        """Returns a number or word that a decision rests on, by its name."""
        name = self.read_string()
        self.words.expect(":")
        value = self.read_string() if self.words.next.kind == "string" else read_number(self.words)
        return name, cast("int | str", value)

    def read_string(self) -> str:
        """Returns a quoted string."""
        words = self.words
        if words.next.kind != "string":
            raise words.error(f"expected a quoted string, found {words.describe()}")
        return str(json.loads(words.take().text))

    def read_origins(self) -> tuple[list[str], Origins]:
        """Returns places, and the origins of the definitions there."""
        words = self.words
        positions = [self.read_place()]
        while words.accept(","):
            positions.append(self.read_place())
        words.expect(":")
        origins = [self.read_origin()]
        while words.accept(","):
            origins.append(self.read_origin())
        return positions, tuple(origins)

    def read_place(self) -> str:
        """Returns where a definition is, such as ``kernel 0 2``."""
        words, token = self.words, self.words.next
        kind = words.take().text
        if kind not in ("graph", "kernel", "step"):
            raise words.error(f"expected graph, kernel or step, found {token.text!r}", token)
        numbers = [read_integer(words)]
        if kind == "kernel":
            numbers.append(read_integer(words))
        return " ".join([kind, *map(str, numbers)])

    def read_origin(self) -> Origin:
        """Returns one origin."""
        self.words.expect("[")
        token = self.words.next
        fields = read_listed(self.words, "]", self.read_string)
        if len(fields) > len(Origin.__slots__):
            raise self.words.error("an origin is the op, the module, the line and the path", token)
        return Origin(*fields)
