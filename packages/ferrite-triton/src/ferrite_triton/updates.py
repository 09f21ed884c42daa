"""Updates in place: plain stores where points do not meet, atomic instructions where they may."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ferrite_ir.dtypes import I32
from ferrite_ir.graph import Update
from ferrite_ir.index import Dim, Index, Indirect
from ferrite_ir.scalar import Scalar, indirects_of
from ferrite_ir.sizes import Size, hint, is_provably_at_most
from ferrite_scheduler.marks import SortedUpdate

from .addresses import place_at
from .bounds import assert_in_bounds
from .errors import UnsupportedUpdate
from .evaluate import Evaluator
from .flat import FlatKernel, ParamText
from .memory import StoreText
from .size_text import magnitude
from .space import Axes
from .tile.build import apply, block_size, converted, either, full, lanes
from .tile.language import (
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
from .writer import Tile, Writer

_ADDED = frozenset(["f16", "bf16", "f32", "f64", "i32", "i64", "u32", "u64"])
_FLOATS = ("f32", "f64")
_INTEGERS = ("i32", "i64", "u32", "u64")

ATOMICS: dict[str, frozenset[str]] = {
    "add": _ADDED,
    **{mode: frozenset((*_FLOATS, *_INTEGERS)) for mode in ("mul", "max", "min")},
}
"""The types of elements that can be combined with values atomically, by mode."""

# How a program combines rows of a tile of which those that go to one place follow each other.
_RUNS = {"add": "add_runs", "max": "maximum_runs", "min": "minimum_runs"}

# The same without atomics.
_COMBINING = {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum"}


def is_injective(offset: Index, points: dict[str, Size]) -> bool:
    """Returns whether different points of the axes ``points`` (sizes by name) provably have different offsets."""
    extents: list[tuple[Size, Size]] = []
    seen: set[str] = set()
    for atom, coefficient in offset.terms:
        if not isinstance(atom, Dim) or atom.name in seen:
            return False
        seen.add(atom.name)
        extents.append((magnitude(coefficient), atom.size))
    if any(size not in (0, 1) and name not in seen for name, size in points.items()):
        return False
    reach: Size = 0
    for stride, size in sorted(extents, key=lambda extent: (hint(extent[0]), hint(extent[1]))):
        if not is_provably_at_most(reach + 1, stride):
            return False
        reach = reach + stride * (size - 1)
    return True


def needs_atomics(flat: FlatKernel, update: Update) -> bool:
    """Returns whether several points of the update may meet in one element."""
    points = {axis.name: axis.size for axis in flat.space.axes if axis.name in domain_axes(flat, update)}
    return update.mode != "set" and not is_injective(flat.offset(update.result.name, update.indices), points)


def domain_axes(flat: FlatKernel, update: Update) -> Axes:
    """Returns the axes, longer than one point, in which the dims of the update lie."""
    longer = {axis.name for axis in flat.space.axes if axis.size != 1}
    return frozenset(
        axis.name for axis in flat.kernel.axes if axis.name in longer and any(dim in axis.dims for dim in update.dims)
    )


def check_atomic(update: Update, param: ParamText) -> None:
    """Does nothing if an update can be atomic.

    Raises:
        UnsupportedUpdate: there is no such instruction for this mode and type.
    """
    if param.dtype.name not in ATOMICS.get(update.mode, ()):
        known = ", ".join(f"{mode}: {' '.join(sorted(types))}" for mode, types in ATOMICS.items())
        raise UnsupportedUpdate(
            f"no atomic {update.mode} on {param.dtype}, which {update.result.name} needs because several points may "
            f"meet in one element; atomics exist for {known}; lower this update to a library call"
        )


@dataclass(frozen=True, slots=True)
class UpdateText:
    """Writes the updates of one kernel."""

    flat: FlatKernel
    writer: Writer
    evaluator: Evaluator
    stores: StoreText

    def prepare(self, update: Update) -> tuple[Tile | None, Callable[[], None]]:
        """Writes what an update stores; returns the new value at each point, where known, and what writes the store.

        Raises:
            UnsupportedUpdate: the machine has no such atomic instruction.
        """
        param = self.flat.param_of(update.result.name)
        axes = domain_axes(self.flat, update)
        value = self.evaluator.tile(update.operand if isinstance(update, SortedUpdate) else update.body)
        conditions = [] if update.condition is None else [self.evaluator.tile(update.condition)]
        offset = self.evaluator.offset(self.flat.offset(update.result.name, update.indices))
        _, mask, reach = self.evaluator.addresses.access(place_at(param, offset), conditions, axes)
        assert_in_bounds(self.flat, self.writer, update.indices, self.evaluator.tile, (mask, reach), offset.dtype)
        if needs_atomics(self.flat, update):
            check_atomic(update, param)
            return None, lambda: self._write_atomic(update, param, offset, value, conditions)
        if update.mode != "set":
            value = self._combine_with_old(update, param, offset, value, conditions)
        new = value if update.condition is None else None
        return new, lambda: self.stores.store_at(param, place_at(param, offset), value, conditions, axes)

    def _write_atomic(
        self, update: Update, param: ParamText, offset: Tile, value: Tile, conditions: list[Tile]
    ) -> None:
        points = domain_axes(self.flat, update) | value.axes
        pointer, mask, axes = self.evaluator.addresses.access(place_at(param, offset), conditions, points)
        if isinstance(update, SortedUpdate) and self._write_runs(
            update, param, self._spread(offset, axes), value, mask
        ):
            return
        if update.mode == "mul" or (update.mode != "add" and param.dtype.is_float):
            pointer = Offset(Name(param.text), self._spread(offset, axes))
        added = converted(value.expression, value.dtype, param.dtype)
        self.writer.do(AtomicUpdate(pointer, added, update.mode, mask), axes)

    def _write_runs(
        self, update: SortedUpdate, param: ParamText, offset: Expression, value: Tile, mask: Expression | None
    ) -> bool:
        """Writes an update of rows in the order of their places; returns False where a tile has but one."""
        space = self.flat.space
        (row,) = [atom.value for index in update.indices for atom, _ in index.terms if isinstance(atom, Indirect)]
        place, following = self.evaluator.tile(row), self.evaluator.tile(update.following)
        along = [name for name in space.order if name in place.axes]
        if len(along) != 1 or len(space.order) != 2 or space.tiled(value.axes) != frozenset(space.order):
            return False
        (name,) = along
        block = f"{name.upper()}BLOCK"
        end = apply("sub", block_size(block, I32), Literal(1, I32))
        last = apply("eq", space.expand(name, lanes(block)), end)
        changes = apply("ne", place.expression, converted(following.expression, following.dtype, place.dtype))
        ends = self.writer.hold("ends", either(changes, last), frozenset(along)).expression
        at = converted(place.expression, place.dtype, I32)
        parts = (Name(param.text), offset, value.expression, at, ends, mask or Constant(None))
        self.writer.do(Call(_RUNS[update.mode], (*parts, Constant(space.order.index(name)))), frozenset(space.order))
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
        self, update: Update, param: ParamText, offset: Tile, value: Tile, conditions: list[Tile]
    ) -> Tile:
        pointer, mask, axes = self.evaluator.addresses.access(place_at(param, offset), conditions)
        old = self.writer.hold("old", Load(pointer, mask), axes)
        wide = param.dtype.compute
        operands = (converted(each.expression, each.dtype, wide) for each in (old, value))
        axes = old.axes | value.axes
        new = self.writer.hold("new", apply(_COMBINING[update.mode], *operands), axes)
        if wide is param.dtype:
            return new
        return self.writer.hold("cast", Cast(new.expression, param.dtype), axes)


def update_scalars(update: Update) -> tuple[Scalar, ...]:
    """Returns the expressions of an update, those inside its indices included."""
    own = (update.body,) if update.condition is None else (update.body, update.condition)
    return (*own, *indirects_of(update.indices))
