"""Where schedules and their parts find their text form, which is written by a module above them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PRINTERS: dict[str, Callable[[Any], str]] = {}
"""Functions that write things, by the kind of thing; `text.printer` enters them when the package imports it."""


def printed(kind: str, thing: Any) -> str:
    """Returns the text of a thing of this kind (``schedule``, ``kernel``, ``axis``, ``param`` or ``step``)."""
    return PRINTERS[kind](thing)
