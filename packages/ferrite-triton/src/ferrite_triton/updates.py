"""Updates in place: plain stores where points do not meet, atomic instructions where they may."""

from __future__ import annotations

from dataclasses import dataclass

from ferrite_ir.graph import Update
from ferrite_ir.index import Dim, Index
from ferrite_ir.scalar import Scalar

from .casts import cast_text
from .errors import UnsupportedUpdate
from .evaluate import Evaluator
from .flat import FlatKernel, ParamText
from .literals import full_text
from .memory import StoreText
from .scalars import Operands, spelling_of
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

_OPERATIONS = {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum"}


def is_injective(offset: Index, points: dict[str, int]) -> bool:
    """Returns whether different points of the axes ``points`` (sizes by name) provably have different offsets."""
    extents: list[tuple[int, int]] = []
    seen: set[str] = set()
    for atom, coefficient in offset.terms:
        if not isinstance(atom, Dim) or type(coefficient) is not int or atom.name in seen:
            return False
        seen.add(atom.name)
        extents.append((abs(coefficient), int(atom.size)))
    if any(size > 1 and name not in seen for name, size in points.items()):
        return False
    reach = 0
    for stride, size in sorted(extents):
        if stride <= reach:
            return False
        reach += stride * (size - 1)
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
            f"no atomic {update.mode} on {param.dtype}, which {update.result.name} needs because several points may meet in one element; "
            f"atomics exist for {known}; lower this update to a library call"
        )
    return function


@dataclass(frozen=True, slots=True)
class UpdateText:
    """Writes the updates of one kernel."""

    flat: FlatKernel
    writer: Writer
    evaluator: Evaluator
    stores: StoreText

    def write(self, update: Update) -> Tile | None:
        """Writes an update; returns the new value at each point where that is known.

        Raises:
            UnsupportedUpdate: the machine has no such atomic instruction.
        """
        param = self.flat.param_of(update.result.name)
        axes = domain_axes(self.flat, update)
        value = self.evaluator.tile(update.body)
        conditions = [] if update.condition is None else [self.evaluator.tile(update.condition)]
        offset = self.evaluator.offset(self.flat.offset(update.result.name, update.indices))
        if needs_atomics(self.flat, update):
            self._write_atomic(update, param, offset, value, conditions)
            return None
        if update.mode != "set":
            value = self._combine_with_old(update, param, offset, value, conditions)
        self.stores.store_at(param, offset, value, conditions, axes)
        return value if update.condition is None else None

    def _write_atomic(
        self, update: Update, param: ParamText, offset: Tile, value: Tile, conditions: list[Tile]
    ) -> None:
        function = check_atomic(update, param)
        pointer, mask, axes = self.evaluator.access(
            param, offset, conditions, domain_axes(self.flat, update) | value.axes
        )
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
        spelling = spelling_of(_OPERATIONS[update.mode], wide)
        hold = lambda text: self.writer.hold("new", text, axes, wide).text  # noqa: E731
        expression = (
            spelling.format(*texts)
            if isinstance(spelling, str)
            else spelling(Operands(texts, wide, (None, None), hold))
        )
        new = self.writer.hold("new", expression, axes, wide)
        return (
            new
            if wide is param.dtype
            else self.writer.hold("cast", cast_text(new.text, wide, param.dtype), axes, param.dtype)
        )


def update_scalars(update: Update) -> tuple[Scalar, ...]:
    """Returns the expressions of an update, those inside its indices included."""
    from ferrite_ir.dtypes import I64
    from ferrite_ir.scalar import index_value

    own = (update.body,) if update.condition is None else (update.body, update.condition)
    return (*own, *(index_value(index, I64) for index in update.indices))
