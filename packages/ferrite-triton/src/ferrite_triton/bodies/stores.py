"""Stores of a kernel's results."""

from __future__ import annotations

from collections.abc import Callable

from ferrite_ir.language.graph import Loop
from ferrite_ir.language.index import Index
from ferrite_triton.analysis.flat import FlatKernel, KernelParam
from ferrite_triton.analysis.space import NO_AXES, Axes
from ferrite_triton.bodies.builder import Builder, Tile
from ferrite_triton.bodies.scalar_values import ScalarValues
from ferrite_triton.errors import ScheduleMismatch
from ferrite_triton.tile.build import converted
from ferrite_triton.tile.language import Expression, Store


class Stores:
    """Writes the stores of one kernel."""

    def __init__(self, flat: FlatKernel, builder: Builder, evaluator: ScalarValues) -> None:
        self._flat = flat
        self._builder = builder
        self._evaluator = evaluator

    def prepare(self, name: str, tile: Tile, home: Index, conditions: list[Tile]) -> Callable[[], None]:
        """Writes the address of a value's home; returns what writes the store, where the conditions hold.

        Raises:
            ScheduleMismatch: the value varies along an axis that its place does not depend on.
        """
        param = self._flat.param_of(name)
        address = self._evaluator.address(param, home)
        # Of an axis of one point that a tile has more lanes for, the mask says which lane is stored.
        found = tile.axes - address.axes
        found -= {axis.name for axis in self._flat.space.axes if axis.size == 1 and axis.masked}
        if found:
            lost = ", ".join(sorted(found))
            raise ScheduleMismatch(
                f"kernel {self._flat.kernel.name} stores {name} in one place for all of {lost}, along which it varies"
            )
        cache = "streaming" if param.param.is_streaming else ""
        # Which lanes there are is known here: the next piece of a program may have others.
        access = self._evaluator.addresses.access(address, conditions, tile.axes)
        return lambda: self._store(param, access, tile, cache)

    def store_at(
        self, param: KernelParam, address: Tile, tile: Tile, conditions: list[Tile] | None = None, axes: Axes = NO_AXES
    ) -> None:
        """Writes the store of a tile at an address, where the conditions hold, for every position of ``axes``."""
        self._store(param, self._evaluator.addresses.access(address, conditions or [], axes | tile.axes), tile)

    def _store(
        self, param: KernelParam, access: tuple[Expression, Expression | None, Axes], tile: Tile, cache: str = ""
    ) -> None:
        pointer, mask, axes = access
        value = converted(tile.expression, tile.dtype, param.dtype)
        self._builder.do(Store(pointer, value, mask, cache), axes)


def value_of(evaluator: ScalarValues, flat: FlatKernel, name: str) -> Tile:
    """Returns the tile of a value defined in the kernel, computed here if it is pointwise."""
    definition, position = flat.producers[name]
    if isinstance(definition, Loop):
        return evaluator.tile(definition.bodies[position])
    return evaluator.results[name]
