"""Updates in place (scatters): plain stores where indices cannot collide, atomic instructions where they may."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ferrite_ir.language.dtypes import I32
from ferrite_ir.language.graph import Update
from ferrite_ir.language.index import Indirect
from ferrite_scheduler.model.annotations import SortedScatter
from ferrite_triton.analysis.flat import FlatKernel, KernelParam
from ferrite_triton.analysis.space import Axes
from ferrite_triton.analysis.update_targets import domain_axes, needs_atomics
from ferrite_triton.bodies.addresses import address_at
from ferrite_triton.bodies.assertions import assert_in_bounds
from ferrite_triton.bodies.builder import Builder, Tile
from ferrite_triton.bodies.scalar_values import ScalarValues
from ferrite_triton.bodies.stores import Stores
from ferrite_triton.errors import UnsupportedUpdate
from ferrite_triton.tile.build import apply, block_size, converted, either, full, lanes
from ferrite_triton.tile.language import (
    AtomicUpdate,
    Broadcast,
    Call,
    Cast,
    Constant,
    Expression,
    Literal,
    Load,
    Name,
    Offset,
)

_ADDED = frozenset(["f16", "bf16", "f32", "f64", "i32", "i64", "u32", "u64"])
_FLOATS = ("f32", "f64")
_INTEGERS = ("i32", "i64", "u32", "u64")

ATOMIC_TYPES: dict[str, frozenset[str]] = {
    "add": _ADDED,
    **{mode: frozenset((*_FLOATS, *_INTEGERS)) for mode in ("mul", "max", "min")},
}
"""The types of elements that can be combined with values atomically, by mode."""

# How a program combines rows of a tile of which those that go to one position follow each other.
_RUNS = {"add": "add_segments", "max": "maximum_segments", "min": "minimum_segments"}

# The same without atomics.
_COMBINING = {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum"}


def check_atomic(update: Update, param: KernelParam) -> None:
    """Does nothing if an update can be atomic.

    Raises:
        UnsupportedUpdate: there is no such instruction for this mode and type.
    """
    if param.dtype.name not in ATOMIC_TYPES.get(update.mode, ()):
        known = ", ".join(f"{mode}: {' '.join(sorted(types))}" for mode, types in ATOMIC_TYPES.items())
        raise UnsupportedUpdate(
            f"no atomic {update.mode} on {param.dtype}, which {update.result.name} needs because several points may "
            f"collide in one element; atomics exist for {known}; lower this update to an extern call"
        )


@dataclass(frozen=True, slots=True)
class Updates:
    """Writes the updates of one kernel."""

    flat: FlatKernel
    builder: Builder
    evaluator: ScalarValues
    stores: Stores

    def prepare(self, update: Update) -> tuple[Tile | None, Callable[[], None]]:
        """Writes what an update stores; returns the new value at each point, where known, and what writes the store.

        Raises:
            UnsupportedUpdate: the machine has no such atomic instruction.
        """
        param = self.flat.param_of(update.result.name)
        axes = domain_axes(self.flat, update)
        value = self.evaluator.tile(update.body)
        conditions = [] if update.condition is None else [self.evaluator.tile(update.condition)]
        offset = self.evaluator.offset(self.flat.offset(update.result.name, update.indices))
        _, mask, reach = self.evaluator.addresses.access(address_at(param, offset), conditions, axes)
        assert_in_bounds(self.flat, self.builder, update.indices, self.evaluator.tile, (mask, reach), offset.dtype)
        if needs_atomics(self.flat, update):
            check_atomic(update, param)
            return None, lambda: self._write_atomic(update, param, offset, value, conditions)
        if update.mode != "set":
            value = self._combine_with_old(update, param, offset, value, conditions)
        new = value if update.condition is None else None
        return new, lambda: self.stores.store_at(param, address_at(param, offset), value, conditions, axes)

    def _write_atomic(
        self, update: Update, param: KernelParam, offset: Tile, value: Tile, conditions: list[Tile]
    ) -> None:
        points = domain_axes(self.flat, update) | value.axes
        pointer, mask, axes = self.evaluator.addresses.access(address_at(param, offset), conditions, points)
        if isinstance(update, SortedScatter) and self._write_runs(
            update, param, self._spread(offset, axes), value, mask
        ):
            return
        if update.mode == "mul" or (update.mode != "add" and param.dtype.is_float):
            pointer = Offset(Name(param.text), self._spread(offset, axes))
        added = converted(value.expression, value.dtype, param.dtype)
        self.builder.do(AtomicUpdate(pointer, added, update.mode, mask), axes)

    def _write_runs(
        self, update: SortedScatter, param: KernelParam, offset: Expression, value: Tile, mask: Expression | None
    ) -> bool:
        """Writes an update of rows in the order of their positions; returns False where a tile has but one."""
        space = self.flat.space
        (row,) = [atom.value for index in update.indices for atom, _ in index.terms if isinstance(atom, Indirect)]
        destination, following = self.evaluator.tile(row), self.evaluator.tile(update.following)
        along = [name for name in space.order if name in destination.axes]
        if len(along) != 1 or len(space.order) != 2 or space.tiled(value.axes) != frozenset(space.order):
            return False
        (name,) = along
        block = f"{name.upper()}BLOCK"
        end = apply("sub", block_size(block, I32), Literal(1, I32))
        last = apply("eq", space.expand(name, lanes(block)), end)
        changes = apply(
            "ne", destination.expression, converted(following.expression, following.dtype, destination.dtype)
        )
        ends = self.builder.hold("ends", either(changes, last), frozenset(along)).expression
        at = converted(destination.expression, destination.dtype, I32)
        parts = (Name(param.text), offset, value.expression, at, ends, mask or Constant(None))
        self.builder.do(Call(_RUNS[update.mode], (*parts, Constant(space.order.index(name)))), frozenset(space.order))
        return True

    def _spread(self, offset: Tile, axes: Axes) -> Expression:
        """Returns offsets of full extent along the axes: every point counts, also where several name one element."""
        space = self.flat.space
        if offset.literal is not None:
            return full(space.shape(axes), offset.literal, offset.dtype)
        if space.tiled(axes) == space.tiled(offset.axes):
            return offset.expression
        return Broadcast(offset.expression, space.shape(axes))

    def _combine_with_old(
        self, update: Update, param: KernelParam, offset: Tile, value: Tile, conditions: list[Tile]
    ) -> Tile:
        pointer, mask, axes = self.evaluator.addresses.access(address_at(param, offset), conditions)
        old = self.builder.hold("old", Load(pointer, mask), axes)
        wide = param.dtype.compute
        operands = (converted(each.expression, each.dtype, wide) for each in (old, value))
        axes = old.axes | value.axes
        new = self.builder.hold("new", apply(_COMBINING[update.mode], *operands), axes)
        if wide is param.dtype:
            return new
        return self.builder.hold("cast", Cast(new.expression, param.dtype), axes)
