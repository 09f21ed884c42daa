"""Programs that share the lines of a scan and wait for each other: which part of which line one takes.

They draw parts in the order in which they begin. A program takes one part; or one after the other, and then what it
reads for the next is on its way while it waits for those before this one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ferrite_ir.graph import bodies_of
from ferrite_ir.scalar import Scalar, postorder
from ferrite_ir.sizes import is_static

from .flat import FlatKernel, memory_loads
from .literals import type_text
from .passes import roots_of
from .scans import look_back_scans
from .space import AxisText, Space
from .writer import Tile

INDENT = "    "


def position_lines(space: Space, axis: AxisText, position: str) -> list[str]:
    """Returns the lines that define positions and mask of an axis; ``position`` is a vector."""
    suffix = space.expand(axis.name)
    is_sum = not position.startswith(("(", "tl.arange("))
    lines = [f"{axis.name} = ({position}){suffix}" if suffix and is_sum else f"{axis.name} = {position}{suffix}"]
    if axis.masked:
        lines.append(f"{axis.name}mask = {_inside(space, axis)}")
    return lines


def _inside(space: Space, axis: AxisText) -> str:
    """Returns the text of an axis's mask.

    What a symbolic size leaves open, and the compiler makes much of, it says of all sizes for which there is such a
    tile: the least one that holds a whole axis is more than half full, and one position is never past the end.
    """
    test = f"{axis.name} < {space.params.text(axis.size)}"
    if is_static(axis.size):
        return test
    if axis.is_fold:
        return test if space.loops else f"({test}) | ({axis.name} < {axis.constant} // 2)"
    return test if axis.name == space.order[-1] else f"({test}) | ({axis.constant} == 1)"


def part_lines(flat: FlatKernel, width: int) -> list[str]:
    """Returns the lines that place a program in the grid of a scan whose programs wait for each other."""
    if flat.space.ahead:
        return []  # the loop over the parts of a program says where they lie
    return [f"program = fmath.draw_part({_status(flat)}, {_count(flat)})", *_place_lines(flat, width)]


def _place_lines(flat: FlatKernel, width: int) -> list[str]:
    """Returns the lines that say where the part of ``program`` lies: parts of all lines in turn."""
    space = flat.space
    grid = [axis for axis in space.grid if axis.size != 1]
    lines = math.prod(int(axis.size) for axis in grid)
    text = [f"line = program % {lines}", f"part = program // {lines}"]
    rest = "line"
    for axis in reversed(grid):
        outermost = axis is grid[0]
        text.append(f"{axis.name} = {rest}" if outermost else f"{axis.name} = {rest} % {axis.size}")
        rest = f"({rest} // {axis.size})"
    fold = space.fold
    if fold is None:
        raise AssertionError("a scan without a fold axis")
    wide = ".to(tl.int64)" if width == 64 else ""
    return [*text, *position_lines(space, fold, f"part{wide} * RBLOCK + tl.arange(0, RBLOCK)")]


def _status(flat: FlatKernel) -> str:
    return flat.param_of(look_back_scans(flat)[0].status).text


def _count(flat: FlatKernel) -> int:
    """Returns the number of parts of all lines."""
    return math.prod(int(axis.size) for axis in flat.space.grid) * flat.space.parts


def loads_ahead(flat: FlatKernel) -> tuple[Scalar, ...]:
    """Returns the loads that a program can ask for before it comes to their part: those that happen at every point."""
    roots = tuple(root for definition in flat.definitions for root in roots_of(definition))
    if any(node.op == "masked" for node in postorder(body for d in flat.definitions for body in bodies_of(d))):
        return ()
    return tuple(
        load
        for load in memory_loads(flat, roots)
        if not any(index.is_indirect for index in load.indices)
        and any(dim.name == "r" for index in load.indices for dim in index.dims)
    )


def loop_lines(
    flat: FlatKernel, width: int, asking: list[str], scanning: list[str], held: Mapping[str, Tile]
) -> list[str]:
    """Returns the lines of a program that takes parts one after the other.

    Args:
        flat: the kernel.
        width: of addresses, in bits.
        asking: lines that load what a part needs.
        scanning: lines that do the rest.
        held: by the names that these lines have for what was loaded, what the former call it.
    """
    place = _place_lines(flat, width)
    inner = [
        f"drawn = fmath.draw_next({_status(flat)})",
        f"program = tl.minimum(drawn, {_count(flat) - 1})",
        *place,
        *(line.removeprefix(INDENT) for line in asking),
        "if taken >= 0:",
        *(f"{INDENT}{line}" for line in ("program = taken", *place)),
        *scanning,
        "taken = drawn",
        *(f"{name} = {tile.text}" for name, tile in held.items()),
    ]
    shapes = {name: f"{flat.space.shape(tile.axes)}, {type_text(tile.dtype)}" for name, tile in held.items()}
    return [
        f"{INDENT}taken = -1",
        *(f"{INDENT}{name} = tl.zeros({shape})" for name, shape in shapes.items()),
        f"{INDENT}while taken < {_count(flat)}:",
        *(f"{INDENT * 2}{line}" for line in inner),
    ]
