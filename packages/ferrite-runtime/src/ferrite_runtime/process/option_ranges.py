"""Ranges of options: what a value may be, in one row for each option, and what is said of a value that it cannot have.

Every package that takes options has one such table; what a name or a word was probably meant to be is found by
`difflib`'s similarity.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

Show = Callable[[object], str]


@dataclass(frozen=True, slots=True)
class Range:
    """The values of one option.

    Attributes:
        kinds: their types; True and False are no numbers here.
        choices: all of them, where they are a closed list.
        least: the smallest number.
        most: the largest number, which may be infinite.
        unit: of numbers, for messages.
    """

    kinds: tuple[type, ...]
    choices: tuple[object, ...] = ()
    least: float | None = None
    most: float | None = None
    unit: str = ""

    def problem(self, value: object, show: Show = str) -> str:
        """Returns what is wrong with a value, in words that follow "it"; nothing, if it is in the range."""
        if not isinstance(value, self.kinds) or (isinstance(value, bool) and bool not in self.kinds):
            return f"takes {self._kinds()}"
        if self.choices and value not in self.choices:
            hint = did_you_mean(value, self.choices) if isinstance(value, str) else ""
            return f"can be {', '.join(map(show, self.choices))}{hint}"
        if not self._holds(value):
            is_negative = self.least == 0 and isinstance(value, (int, float)) and value < 0
            return f"{'cannot be negative: it ' if is_negative else ''}takes {self._numbers()}"
        return ""

    def _holds(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return True
        if math.isnan(value):
            return False
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def _kinds(self) -> str:
        named = dict.fromkeys(_NAMES.get(kind, kind.__name__) for kind in self.kinds)
        choices = f", one of {', '.join(map(repr, self.choices))}" if self.choices else ""
        return " or ".join(named) + choices

    def _numbers(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        if self.most is None or math.isinf(self.most):
            return f"a number{unit} from {self.least:g} on"
        return f"a number{unit} from {self.least:g} to {self.most:g}"


_NAMES: dict[object, str] = {
    type(None): "None",
    os.PathLike: "a path",
    Mapping: "a mapping",
    Iterable: "a list",
    Callable: "a function",
}
"""What types are called in messages, where not by their own names."""

BOOL = Range((bool,))
PATH = Range((str, os.PathLike))
MAPPING = Range((Mapping,))
FUNCTION = Range((Callable,))  # type: ignore[arg-type]  # a class to isinstance, none to mypy
MAYBE_MAPPING = Range((Mapping, type(None)))
MAYBE_BOOL = Range((bool, type(None)))
PROCESSES = Range((int, type(None)), least=0, most=1024, unit="of processes")
LAUNCHES = Range((int,), least=1, unit="of launches")
# More seconds than any clock counts to are no limit; a wait for an infinite time is none that a system call takes.
SECONDS = Range((int, float), least=0, most=math.inf, unit="of seconds")
FINITE_SECONDS = Range((int, float), least=0.001, most=1e9, unit="of seconds")


def find_problem(values: Mapping[str, object], ranges: Mapping[str, Range], show: Show = str) -> str:
    """Returns what is wrong with the first value that is outside of its range: ``NAME is VALUE; it takes …``.

    ``show`` is how names and choices are written.
    """
    for name, each in ranges.items():
        problem = each.problem(values[name], show) if name in values else ""
        if problem:
            return f"{show(name)} is {values[name]!r}; it {problem}"
    return ""


def did_you_mean(word: object, known: Iterable[object]) -> str:
    """Returns ``; did you mean 'full'?`` with the known word that is most like one; nothing, if none is like it."""
    texts = [each for each in known if isinstance(each, str)]
    found = get_close_matches(str(word), texts, n=1) or get_close_matches(str(word).lower(), texts, n=1)
    return f"; did you mean {found[0]!r}?" if found else ""
