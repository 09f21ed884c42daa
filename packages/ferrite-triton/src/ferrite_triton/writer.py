"""Text under construction: lines, names and what is already computed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from ferrite_ir.dtypes import DType

from .space import Axes


@dataclass(frozen=True, slots=True)
class Tile:
    """A value in the text.

    Attributes:
        text: a name, or a number.
        axes: the axes it varies along; its extent is 1 along the others, and it is a scalar if there are none.
        dtype: its type in the registers.
        literal: the number, if it is one.
    """

    text: str
    axes: Axes
    dtype: DType
    literal: bool | int | float | None = None


@dataclass(slots=True)
class Scope:
    """Lines of one nesting level and the values that are known there."""

    indent: str
    lines: list[str] = field(default_factory=list)
    known: dict[Hashable, Tile] = field(default_factory=dict)


class Writer:
    """Collects the lines of one kernel: those of the function and, while one is open, of the loop over the fold axis.

    A loop runs along one axis, mostly the fold axis. A value that does not vary along it is written before the loop,
    even if it is first needed inside.
    """

    def __init__(self) -> None:
        self.function = Scope("    ")
        self.loop: Scope | None = None
        self._trunks: list[Scope] = []
        self._along = "r"
        self._count = 0

    def fresh(self, prefix: str) -> str:
        """Returns a name that nothing else in the kernel has."""
        self._count += 1
        return f"{prefix}_{self._count}"

    def scope_for(self, axes: Axes) -> Scope:
        """Returns where a value that varies along these axes is computed."""
        return self.loop if self.loop is not None and self._along in axes else self.function

    def find(self, key: Hashable) -> Tile | None:
        """Returns the value known under a key here, or None."""
        if self.loop is not None:
            found = self.loop.known.get(key)
            if found is not None:
                return found
        return self.function.known.get(key)

    def remember(self, key: Hashable, tile: Tile) -> Tile:
        """Records what a key stands for, at the level that its axes belong to, and returns it."""
        self.scope_for(tile.axes).known[key] = tile
        return tile

    def forget(self, axes: Axes) -> None:
        """Forgets at the level of the function what varies along any of some axes."""
        self.function.known = {key: tile for key, tile in self.function.known.items() if not tile.axes & axes}

    def forget_if(self, condition: Callable[[Hashable, Tile], bool]) -> None:
        """Forgets at the level of the function what a condition holds for."""
        known = self.function.known
        self.function.known = {key: tile for key, tile in known.items() if not condition(key, tile)}

    def hold(self, prefix: str, expression: str, axes: Axes, dtype: DType) -> Tile:
        """Writes a line that names an expression, at the level that its axes belong to."""
        name = self.fresh(prefix)
        self.line(f"{name} = {expression}", axes)
        return Tile(name, axes, dtype)

    def line(self, text: str, axes: Axes) -> None:
        """Writes a line at the level that the axes belong to."""
        scope = self.scope_for(axes)
        scope.lines.append(scope.indent + text)

    def before_loop(self, text: str) -> None:
        """Writes a line at the level of the function."""
        self.function.lines.append(self.function.indent + text)

    def open_loop(self, along: str = "r") -> None:
        """Begins the body of a loop along an axis; its header is written when it is closed."""
        self.loop = Scope("        ")
        self._along = along

    def open_branch(self) -> None:
        """Begins lines that only some programs run; what is known before is known there."""
        self._trunks.append(self.function)
        self.function = Scope(self.function.indent + "    ", known=dict(self.function.known))

    def speaks_of(self, name: str) -> bool:
        """Returns whether a line of the open branch holds a name."""
        return any(name in line for line in self.function.lines)

    def close_branch(self, header: str, first: Sequence[str] = ()) -> None:
        """Ends such lines, under their header and what comes first: what was known inside is forgotten."""
        branch, self.function = self.function, self._trunks.pop()
        self.function.lines.append(self.function.indent + header)
        self.function.lines += [branch.indent + line for line in first]
        self.function.lines += branch.lines

    def mark(self) -> int:
        """Returns the place of the next line of the open loop."""
        return 0 if self.loop is None else len(self.loop.lines)

    def uses(self, name: str, mark: int) -> bool:
        """Returns whether a line of the open loop from a place on speaks of a name."""
        return self.loop is not None and any(name in line for line in self.loop.lines[mark:])

    def insert(self, mark: int, text: str) -> None:
        """Writes a line at a place of the open loop."""
        if self.loop is not None:
            self.loop.lines.insert(mark, self.loop.indent + text)

    def close_loop(self, header: str) -> None:
        """Ends the loop: what was known inside is forgotten."""
        if self.loop is None:
            raise AssertionError("no loop is open")
        self.function.lines.append(self.function.indent + header)
        self.function.lines.extend(self.loop.lines)
        self.loop = None
