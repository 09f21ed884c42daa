"""Where expressions and graphs find their text form, which is written by a module above them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PRINTERS: dict[str, Callable[[Any], str]] = {}
"""Functions that write things, by the kind of thing; `ferrite_ir.text` enters them when the package imports it."""


def printed(kind: str, thing: Any) -> str:
    """Returns the text of a thing of this kind (``index``, ``scalar``, ``graph`` or ``module``)."""
    return PRINTERS[kind](thing)
