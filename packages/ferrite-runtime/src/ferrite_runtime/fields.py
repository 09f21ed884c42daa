"""Reading closed JSON objects field by field, with errors that name the field."""

from __future__ import annotations

import keyword
from collections.abc import Mapping
from typing import Any

from ferrite_runtime.errors import SpecError, UnknownField

MISSING = object()


def check_identifier(value: str, path: str) -> str:
    """Returns ``value`` if it can name a variable, else raises.

    Names that start with an underscore are the runtime's own.
    """
    if not value.isidentifier() or keyword.iskeyword(value) or value.startswith("_"):
        raise SpecError(path, f"{value!r} is not a name: a Python identifier without leading underscore is needed")
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
        return value

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
        value = self.take(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise SpecError(self.at(name), f"an integer is needed, not {value!r}")
        return value

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
        values = self.array(name)
        for index, value in enumerate(values):
            if not isinstance(value, int) or isinstance(value, bool):
                raise SpecError(f"{self.at(name)}[{index}]", f"an integer is needed, not {value!r}")
        return tuple(values)

    def strings(self, name: str) -> tuple[str, ...]:
        """Removes and returns an array of strings."""
        values = self.array(name)
        for index, value in enumerate(values):
            if not isinstance(value, str):
                raise SpecError(f"{self.at(name)}[{index}]", f"a string is needed, not {value!r}")
        return tuple(values)

    def close(self) -> None:
        """Raises if the object has a field that nobody took."""
        for name in sorted(self._left):
            raise UnknownField(self.at(name), "is not a field of this object in format 1")
