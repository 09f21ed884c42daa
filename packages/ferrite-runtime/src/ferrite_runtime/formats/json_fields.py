"""Reading closed JSON objects field by field, with errors that name the field."""

from __future__ import annotations

import keyword
from collections.abc import Mapping
from typing import Any

from ferrite_runtime.errors import SpecError, UnknownField

MISSING = object()

MAX_NAME = 1000
"""Characters of an identifier."""
MAX_INTEGER = 1 << 63
"""Every integer of a file fits into 64 bits with a sign: more than that no size, stride or offset is."""
RESERVED = frozenset(("args", "host", "int", "max", "min"))
"""Names that the text of host functions has a meaning for; see ``host_function.py``."""


def check_identifier(value: object, path: str) -> str:
    """Returns ``value`` if it can name a variable, else raises.

    Names that start with an underscore are the runtime's own. Letters are ASCII: Python takes others for the same as
    letters that look like them, so that two names of a file could be one in the text of a function.
    """
    if not isinstance(value, str):
        raise SpecError(path, f"a name is needed, not {value!r}")
    is_word = value.isascii() and value.isidentifier() and not keyword.iskeyword(value)
    if not is_word or value.startswith("_") or value in RESERVED or len(value) > MAX_NAME:
        raise SpecError(
            path, f"{value[:60]!r} is not a name: an ASCII identifier of Python without leading underscore is needed"
        )
    return value


def check_integer(value: object, path: str) -> int:
    """Returns ``value`` if it is an integer of 64 bits, else raises."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise SpecError(path, f"an integer is needed, not {value!r}")
    if not -MAX_INTEGER <= value < MAX_INTEGER:
        raise SpecError(path, "this integer does not fit into 64 bits")
    return value


def check_text(value: str, path: str) -> str:
    """Returns ``value`` if it is text that can be encoded, else raises: JSON can hold halves of characters."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise SpecError(path, f"{value[:60]!r} is no text: it holds half of a character") from error
    return value


def check_line(value: str, path: str) -> str:
    """Returns ``value`` if it is one line of printable characters, else raises: what logs and listings quote."""
    if not value.isprintable():
        raise SpecError(path, f"{value[:60]!r} is not one line of printable text")
    return value


class Fields:
    """A cursor over one JSON object: hands out typed fields and finds leftovers."""

    __slots__ = ("_left", "path")

    def __init__(self, value: object, path: str) -> None:
        if not isinstance(value, Mapping):
            raise SpecError(path, f"an object is needed, not {type(value).__name__}")
        self._left: dict[str, Any] = dict(value)
        self.path = path

    def at(self, name: str) -> str:
        """Returns the path of the field ``name``."""
        return f"{self.path}.{name}" if self.path else name

    def names(self) -> tuple[str, ...]:
        """Returns the names of the fields that nobody took yet."""
        return tuple(self._left)

    def take(self, name: str, default: object = MISSING) -> Any:
        """Removes and returns a field of any type."""
        value = self._left.pop(name, default)
        if value is MISSING:
            raise SpecError(self.at(name), "is missing")
        return value

    def string(self, name: str) -> str:
        """Removes and returns a string field."""
        value = self.take(name)
        if not isinstance(value, str):
            raise SpecError(self.at(name), f"a string is needed, not {value!r}")
        return check_text(value, self.at(name))

    def line(self, name: str) -> str:
        """Removes and returns a string field of one printable line: what logs and listings quote."""
        return check_line(self.string(name), self.at(name))

    def optional_string(self, name: str) -> str | None:
        """Removes and returns a string field that may be null."""
        if self._left.get(name, MISSING) is None:
            self._left.pop(name)
            return None
        return self.string(name)

    def identifier(self, name: str) -> str:
        """Removes and returns a field that names something."""
        return check_identifier(self.string(name), self.at(name))

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        """Removes and returns a string field out of a closed list."""
        value = self.string(name)
        if value not in allowed:
            raise SpecError(self.at(name), f"{value!r} is not one of {', '.join(allowed)}")
        return value

    def integer(self, name: str) -> int:
        """Removes and returns an integer field."""
        return check_integer(self.take(name), self.at(name))

    def optional_integer(self, name: str) -> int | None:
        """Removes and returns an integer field that may be absent or null."""
        value = self._left.get(name)
        if value is None:
            self._left.pop(name, None)
            return None
        return self.integer(name)

    def boolean(self, name: str, default: object = MISSING) -> bool:
        """Removes and returns a field that is true or false."""
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise SpecError(self.at(name), f"true or false is needed, not {value!r}")
        return value

    def array(self, name: str, default: object = MISSING) -> list[Any]:
        """Removes and returns an array field."""
        value = self.take(name, default)
        if not isinstance(value, (list, tuple)):
            raise SpecError(self.at(name), f"an array is needed, not {value!r}")
        return list(value)

    def integers(self, name: str) -> tuple[int, ...]:
        """Removes and returns an array of integers."""
        return tuple(check_integer(value, f"{self.at(name)}[{index}]") for index, value in enumerate(self.array(name)))

    def strings(self, name: str) -> tuple[str, ...]:
        """Removes and returns an array of strings."""
        values = self.array(name)
        for index, value in enumerate(values):
            if not isinstance(value, str):
                raise SpecError(f"{self.at(name)}[{index}]", f"a string is needed, not {value!r}")
            check_line(value, f"{self.at(name)}[{index}]")
        return tuple(values)

    def close(self) -> None:
        """Raises if the object has a field that nobody took."""
        for name in sorted(self._left):
            raise UnknownField(self.at(name), "is not a field of this object in format 2")
