"""Lines that say which positions of an axis a tile holds, and which of them lie past the end."""

from __future__ import annotations

from ferrite_ir.sizes import is_static

from .space import AxisText, Space


def position_lines(space: Space, axis: AxisText, position: str) -> list[str]:
    """Returns the lines that define positions and mask of an axis; ``position`` is a vector."""
    suffix = space.expand(axis.name)
    is_sum = not position.startswith(("(", "tl.arange(", "fmath.hide("))
    lines = [f"{axis.name} = ({position}){suffix}" if suffix and is_sum else f"{axis.name} = {position}{suffix}"]
    if axis.masked:
        lines.append(f"{axis.name}mask = {_inside(space, axis)}")
    return lines


def skewed_lines(space: Space, axis: AxisText, position: str, skewed: str) -> list[str]:
    """Returns the lines that define positions and mask of a fold axis whose blocks begin before the row."""
    lanes = position if position.startswith("(") else f"({position})"
    return [
        f"lanes = {lanes}{space.expand(axis.name)}",
        f"{axis.name} = lanes - {skewed}",
        f"{axis.name}mask = ({axis.name} >= 0) & ({axis.name} < {space.params.text(axis.size)})",
    ]


def _inside(space: Space, axis: AxisText) -> str:
    """Returns the text of an axis's mask.

    What a symbolic size leaves open, and the compiler makes much of, it says of all sizes for which there is such a
    tile: the least one that holds a whole axis is more than half full, and one position is never past the end.
    """
    if space.runs and axis.name == "x":
        return f"(x < xend) | ({axis.constant} == 1)"
    test = f"{axis.name} < {space.params.text(axis.size)}"
    if is_static(axis.size):
        return test
    if axis.is_fold:
        return test if space.loops else f"({test}) | ({axis.name} < {axis.constant} // 2)"
    return test if axis.name == space.order[-1] else f"({test}) | ({axis.constant} == 1)"
