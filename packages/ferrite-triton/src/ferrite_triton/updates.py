"""Updates in place: plain stores where points do not meet, atomic instructions where they may."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ferrite_ir.graph import Update
from ferrite_ir.index import Dim, Index
from ferrite_ir.scalar import Scalar, indirects_of
from ferrite_ir.sizes import Size, hint, is_provably_at_most

from .casts import cast_text
from .errors import UnsupportedUpdate
from .evaluate import Evaluator
from .flat import FlatKernel, ParamText
from .literals import full_text
from .memory import StoreText
from .size_text import magnitude
from .space import Axes
from .writer import Tile, Writer

_ADDED = frozenset(["f16", "bf16", "f32", "f64", "i32", "i64", "u32", "u64"])
_COMPARED = frozenset(["f32", "f64", "i32", "i64", "u32", "u64"])

# Types for which the machine has the atomic instruction of a mode.
ATOMICS: dict[str, tuple[str, frozenset[str]]] = {
    "add": ("tl.atomic_add", _ADDED),
    "max": ("tl.atomic_max", _COMPARED),
    "min": ("tl.atomic_min", _COMPARED),
}

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
    """Returns the atomic instruction of an update.

    Raises:
        UnsupportedUpdate: there is none for this mode and type.
    """
    function, types = ATOMICS.get(update.mode, ("", frozenset()))
    if param.dtype.name not in types:
        known = ", ".join(f"{mode}: {' '.join(sorted(names))}" for mode, (_, names) in ATOMICS.items())
        raise UnsupportedUpdate(
            f"no atomic {update.mode} on {param.dtype}, which {update.result.name} needs because several points may "
            f"meet in one element; atomics exist for {known}; lower this update to a library call"
        )
    return function


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
        value = self.evaluator.tile(update.body)
        conditions = [] if update.condition is None else [self.evaluator.tile(update.condition)]
        offset = self.evaluator.offset(self.flat.offset(update.result.name, update.indices))
        if needs_atomics(self.flat, update):
            check_atomic(update, param)
            return None, lambda: self._write_atomic(update, param, offset, value, conditions)
        if update.mode != "set":
            value = self._combine_with_old(update, param, offset, value, conditions)
        new = value if update.condition is None else None
        return new, lambda: self.stores.store_at(param, offset, value, conditions, axes)

    def _write_atomic(
        self, update: Update, param: ParamText, offset: Tile, value: Tile, conditions: list[Tile]
    ) -> None:
        function = check_atomic(update, param)
        points = domain_axes(self.flat, update) | value.axes
        pointer, mask, axes = self.evaluator.access(param, offset, conditions, points)
        text = value.text if value.literal is None else full_text(value.literal, value.dtype)
        guard = f", mask={mask}" if mask else ""
        self.writer.line(f'{function}({pointer}, {text}{guard}, sem="relaxed")', axes)

    def _combine_with_old(
        self, update: Update, param: ParamText, offset: Tile, value: Tile, conditions: list[Tile]
    ) -> Tile:
        pointer, mask, axes = self.evaluator.access(param, offset, conditions)
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
