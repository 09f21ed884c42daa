"""Interning (hash consing): equal things are one object, so that they are compared by identity.

Source: Ershov, "On programming of arithmetic operations" (1958); the term is of Lisp.
"""

from __future__ import annotations

from typing import Any, TypeVar

_Thing = TypeVar("_Thing")


def entered(table: dict[Any, Any], key: Any, made: _Thing) -> _Thing:
    """Returns what has a key from now on: what was made, complete, or what another thread has entered meanwhile."""
    return table.setdefault(key, made)  # type: ignore[no-any-return]
