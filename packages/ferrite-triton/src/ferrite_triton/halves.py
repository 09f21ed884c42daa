"""Elements of two bytes that lie in registers as narrow as they come while a program waits.

They are widened for what a program publishes, and again for what it does when it has waited. A compiler sees the same
conversion twice, does it once, and holds the results in twice the registers. Combined with a zero that it does not know
the elements are others to it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeGuard

from ferrite_ir.dtypes import BF16, F16, I16
from ferrite_ir.graph import Computed, bodies_of
from ferrite_ir.scalar import Scalar

from .flat import FlatKernel, memory_loads
from .folds import R
from .rows import varies_along_fold
from .space import NO_AXES
from .writer import Tile, Writer

HALVES = (F16, BF16)


def waits_in_halves(flat: FlatKernel, definitions: Iterable[Computed]) -> bool:
    """Returns whether all that definitions read along the fold axis are elements of two bytes, and there are any."""
    roots = tuple(body for definition in definitions for body in bodies_of(definition))
    loads = [load for load in memory_loads(flat, roots) if varies_along_fold(load.indices)]
    return bool(loads) and all(load.dtype in HALVES for load in loads)


@dataclass(frozen=True, slots=True)
class HalvesText:
    """Writes what makes the elements that were loaded along the fold axis others to the compiler."""

    writer: Writer
    status: str

    def zero(self) -> Tile:
        """Returns a zero that nothing else in the kernel is known to equal."""
        return self.writer.hold("zero", f"fmath.unknown_zero({self.status})", NO_AXES, I16)

    def loaded(self) -> dict[Hashable, Tile]:
        """Returns the elements of two bytes that were loaded along the fold axis, by what they are known as."""
        return {
            key: tile
            for key, tile in self.writer.function.known.items()
            if _is_value(key) and key[0].op == "load" and tile.dtype in HALVES and tile.axes >= R
        }

    def keep(self, loaded: Mapping[Hashable, Tile], zero: Tile) -> None:
        """Writes that such elements are used again; what is computed of them from here on is computed anew."""
        for key, tile in self.writer.function.known.copy().items():
            if _is_value(key) and key[0].op not in ("load", "index") and tile.axes >= R:
                del self.writer.function.known[key]
        for key, tile in loaded.items():
            kept = self.writer.hold("kept", f"fmath.kept({tile.text}, {zero.text})", tile.axes, tile.dtype)
            self.writer.remember(key, kept)


def _is_value(key: Hashable) -> TypeGuard[tuple[Scalar, object]]:
    """Returns whether a key of the writer stands for the value of an expression, not for an address."""
    return isinstance(key, tuple) and isinstance(key[0], Scalar)
