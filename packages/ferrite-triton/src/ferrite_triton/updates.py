"""Updates in place: plain stores where points do not meet, atomic instructions where they may."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ferrite_ir.dtypes import BOOL
from ferrite_ir.graph import Update
from ferrite_ir.index import Dim, Index, Indirect
from ferrite_ir.scalar import Scalar, indirects_of
from ferrite_ir.sizes import Size, hint, is_provably_at_most
from ferrite_scheduler.marks import SortedUpdate

from .addresses import place_at
from .bounds import assert_in_bounds
from .casts import cast_text
from .errors import UnsupportedUpdate
from .evaluate import Evaluator
from .flat import FlatKernel, ParamText
from .literals import full_text, type_text
from .memory import StoreText
from .size_text import magnitude
from .space import Axes
from .writer import Tile, Writer

_ADDED = frozenset(["f16", "bf16", "f32", "f64", "i32", "i64", "u32", "u64"])
_FLOATS = ("f32", "f64")
_INTEGERS = ("i32", "i64", "u32", "u64")

# How elements are combined with values atomically, by mode and type. ``{at}`` is a tile of pointers, ``{first}`` and
# ``{offset}`` are its parts; ``{mask}`` is a name or None, ``{guard}`` the same as an argument or nothing.
_ADD = 'tl.atomic_add({at}, {value}, {guard}sem="relaxed")'
ATOMICS: dict[str, dict[str, str]] = {
    "add": dict.fromkeys(_ADDED, _ADD),
    "mul": dict.fromkeys((*_FLOATS, *_INTEGERS), "fmath.atomic_mul({first}, {offset}, {value}, {mask})"),
    **{
        mode: {
            **dict.fromkeys(_INTEGERS, f'tl.atomic_{mode}({{at}}, {{value}}, {{guard}}sem="relaxed")'),
            **dict.fromkeys(_FLOATS, f"fmath.atomic_{mode}_nan({{first}}, {{offset}}, {{value}}, {{mask}})"),
        }
        for mode in ("max", "min")
    },
}

# How a program combines rows of a tile of which those that go to one place follow each other.
_RUNS = {"add": "fmath.add_runs", "max": "fmath.maximum_runs", "min": "fmath.minimum_runs"}

# The same without atomics: the text for integers and the one for floats.
_TEMPLATES = {
    "add": ("{0} + {1}", "{0} + {1}"),
    "mul": ("{0} * {1}", "{0} * {1}"),
    "max": ("tl.maximum({0}, {1})", "fmath.maximum_nan({0}, {1})"),
    "min": ("tl.minimum({0}, {1})", "fmath.minimum_nan({0}, {1})"),
}


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


def check_atomic(update: Update, param: ParamText) -> str:
    """Returns the text of an atomic update, with places for its parts.

    Raises:
        UnsupportedUpdate: there is none for this mode and type.
    """
    found = ATOMICS.get(update.mode, {}).get(param.dtype.name)
    if found is None:
        known = ", ".join(f"{mode}: {' '.join(sorted(texts))}" for mode, texts in ATOMICS.items())
        raise UnsupportedUpdate(
            f"no atomic {update.mode} on {param.dtype}, which {update.result.name} needs because several points may "
            f"meet in one element; atomics exist for {known}; lower this update to a library call"
        )
    return found


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
        assert_in_bounds(self.flat, self.writer, update.indices, self.evaluator.tile, (mask, reach))
        if needs_atomics(self.flat, update):
            check_atomic(update, param)
            return None, lambda: self._write_atomic(update, param, offset, value, conditions)
        if update.mode != "set":
            value = self._combine_with_old(update, param, offset, value, conditions)
        new = value if update.condition is None else None
        return new, lambda: self.stores.store_at(place_at(param, offset), value, conditions, axes)

    def _write_atomic(
        self, update: Update, param: ParamText, offset: Tile, value: Tile, conditions: list[Tile]
    ) -> None:
        template = check_atomic(update, param)
        points = domain_axes(self.flat, update) | value.axes
        pointer, mask, axes = self.evaluator.addresses.access(place_at(param, offset), conditions, points)
        text = value.text if value.literal is None else full_text(value.literal, value.dtype)
        if isinstance(update, SortedUpdate) and self._write_runs(
            update, param, self._spread(offset, axes), value, mask
        ):
            return
        parts = {"at": pointer, "first": param.text, "offset": self._spread(offset, axes), "value": text}
        guard = f"mask={mask}, " if mask else ""
        self.writer.line(template.format(**parts, mask=mask or None, guard=guard), axes)

    def _write_runs(self, update: SortedUpdate, param: ParamText, offset: str, value: Tile, mask: str) -> bool:
        """Writes an update of rows in the order of their places; returns False where a tile has but one."""
        space = self.flat.space
        (row,) = [atom.value for index in update.indices for atom, _ in index.terms if isinstance(atom, Indirect)]
        place, following = self.evaluator.tile(row), self.evaluator.tile(update.following)
        along = [name for name in space.order if name in place.axes]
        if len(along) != 1 or len(space.order) != 2 or space.tiled(value.axes) != frozenset(space.order):
            return False
        (name,) = along
        block = f"{name.upper()}BLOCK"
        last = f"(tl.arange(0, {block}){space.expand(name)} == {block} - 1)"
        ends = f"({place.text} != {following.text}) | {last}"
        ends = self.writer.hold("ends", ends, frozenset(along), BOOL).text
        parts = f"{param.text}, {offset}, {value.text}, {place.text}.to(tl.int32), {ends}, {mask or None}"
        self.writer.line(f"{_RUNS[update.mode]}({parts}, {space.order.index(name)})", frozenset(space.order))
        return True

    def _spread(self, offset: Tile, axes: Axes) -> str:
        """Returns offsets of full extent along the axes: every point counts, also where several name one element."""
        space = self.flat.space
        if offset.literal is not None:
            return f"tl.full({space.shape(axes)}, {offset.text}, {type_text(offset.dtype)})"
        if space.tiled(axes) == space.tiled(offset.axes):
            return offset.text
        return f"tl.broadcast_to({offset.text}, {space.shape(axes)})"

    def _combine_with_old(
        self, update: Update, param: ParamText, offset: Tile, value: Tile, conditions: list[Tile]
    ) -> Tile:
        pointer, mask, axes = self.evaluator.addresses.access(place_at(param, offset), conditions)
        old = self.writer.hold("old", f"tl.load({pointer}{', ' + mask if mask else ''})", axes, param.dtype)
        wide = param.dtype.compute
        texts = tuple(
            cast_text(text, param.dtype, wide)
            for text in (old.text, value.text if value.literal is None else full_text(value.literal, value.dtype))
        )
        axes = old.axes | value.axes
        new = self.writer.hold("new", _TEMPLATES[update.mode][wide.is_float].format(*texts), axes, wide)
        if wide is param.dtype:
            return new
        return self.writer.hold("cast", cast_text(new.text, wide, param.dtype), axes, param.dtype)


def update_scalars(update: Update) -> tuple[Scalar, ...]:
    """Returns the expressions of an update, those inside its indices included."""
    own = (update.body,) if update.condition is None else (update.body, update.condition)
    return (*own, *indirects_of(update.indices))
