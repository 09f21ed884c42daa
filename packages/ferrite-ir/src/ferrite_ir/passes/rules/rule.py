"""What a rewriting rule is, and the table that finds the rules for a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from ferrite_ir.language.scalar import Scalar

Rewrite: TypeAlias = Callable[[Scalar], Scalar | None]
"""Returns what a node is replaced by, or None where the rule does not apply. Its operands are simplified already."""


def ends_nothing(operand: Scalar) -> bool:
    """Returns whether an operand may be left out: it reads nothing.

    A value that it reads may be one that ends the program, as eager mode would: ``x[k] * 0`` is zero, but where ``k``
    lies outside of ``x``, nothing is. Of bools nobody asks: what makes conditions of windows and masks is left out.
    """
    return not operand.loads


@dataclass(frozen=True, slots=True)
class Rule:
    """One rewriting rule.

    Attributes:
        name: in kebab case, for people.
        ops: the operations at whose nodes it is tried.
        rewrite: what it does.
        example: ``before => after`` in the text form, over the values that the rule tests declare (x, y: f32; h: bf16;
            k: i32; l: i64; b, c: bool).
        first, second: the rule is tried only if the first (second) operand is of one of these forms; any if empty.
    """

    name: str
    ops: tuple[str, ...]
    rewrite: Rewrite
    example: str
    first: tuple[str, ...] = ()
    second: tuple[str, ...] = ()


class Book:
    """Rules in the order in which they are tried; a decorator adds to it."""

    __slots__ = ("rules",)

    def __init__(self) -> None:
        self.rules: list[Rule] = []

    def rule(self, ops: str, example: str, *, first: str = "", second: str = "") -> Callable[[Rewrite], Rewrite]:
        """Returns a decorator that adds a function to the book.

        The function's name is the rule's. Operations are separated by spaces.
        """

        def add(rewrite: Rewrite) -> Rewrite:
            name = rewrite.__name__.strip("_").replace("_", "-")
            row = Rule(name, tuple(ops.split()), rewrite, example, tuple(first.split()), tuple(second.split()))
            self.rules.append(row)
            return rewrite

        return add


@dataclass(frozen=True, slots=True)
class Candidates:
    """The rules for one operation.

    Attributes:
        always: those for any operands.
        first, second: those that want a certain form of the first (second) operand, by that form.
    """

    always: tuple[Rewrite, ...]
    first: dict[str, tuple[Rewrite, ...]]
    second: dict[str, tuple[Rewrite, ...]]


def index_rules(rules: Iterable[Rule]) -> dict[str, Candidates]:
    """Returns the rules by operation, and by the form of one operand where a rule names it."""
    always: dict[str, list[Rewrite]] = {}
    first: dict[str, dict[str, list[Rewrite]]] = {}
    second: dict[str, dict[str, list[Rewrite]]] = {}
    for rule in rules:
        for op in rule.ops:
            always.setdefault(op, [])
            keyed, forms = (first, rule.first) if rule.first else (second, rule.second)
            if not forms:
                always[op].append(rule.rewrite)
            for form in forms:
                keyed.setdefault(op, {}).setdefault(form, []).append(rule.rewrite)
    return {
        op: Candidates(tuple(found), _frozen(first.get(op, {})), _frozen(second.get(op, {})))
        for op, found in always.items()
    }


def _frozen(keyed: dict[str, list[Rewrite]]) -> dict[str, tuple[Rewrite, ...]]:
    return {form: tuple(found) for form, found in keyed.items()}
