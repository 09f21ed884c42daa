"""Fresh names: identifiers for the values of a graph, none of them twice."""

from __future__ import annotations

import re
from collections.abc import Iterable

_DIM_LIKE = re.compile(r"[dr]\d+\Z")


class FreshNames:
    """Names that are taken; new ones are like those of the FX nodes that values come from."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def reserve(self, names: Iterable[str]) -> None:
        """Keeps names for others."""
        self._taken.update(names)

    def fresh(self, stem: str) -> str:
        """Returns a name like ``stem`` that is not taken, and takes it.

        Names are identifiers without a leading underscore, which is what programs allow, and no names of dims.
        """
        stem = re.sub(r"\W", "_", stem).lstrip("_") or "value"
        if _DIM_LIKE.match(stem) or not stem.isidentifier():
            stem = f"v_{stem}"
        name, count = stem, 0
        while name in self._taken:
            count += 1
            name = f"{stem}_{count}" if not stem[-1].isdigit() else f"{stem}b{count}"
        self._taken.add(name)
        return name
