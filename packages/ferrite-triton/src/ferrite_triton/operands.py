"""Tiles as operands in text: literals with or without a type, narrow floats widened."""

from __future__ import annotations

from ferrite_ir.scalar import Scalar

from .literals import full_text, is_negative_zero, number_text, survives_bare
from .scalars import SELECTIONS
from .space import NO_AXES
from .writer import Tile


def constant_tile(node: Scalar) -> Tile:
    """Returns the tile of a constant, which no line holds."""
    if is_negative_zero(node.value):
        return Tile(full_text(node.value, node.dtype), NO_AXES, node.dtype)
    return Tile(number_text(node.value, node.dtype), NO_AXES, node.dtype, node.value)


def named(tile: Tile) -> str:
    """Returns text that a method can be called on."""
    return tile.text if tile.literal is None else full_text(tile.literal, tile.dtype)


def operand_text(tile: Tile, *, bare: bool, narrow: bool = False) -> str:
    """Returns a tile as an operand.

    Args:
        tile: the value.
        bare: a literal may stand as a plain number, because another operand gives it its type.
        narrow: the operation computes narrow floats in f32.
    """
    if tile.literal is not None:
        bare = bare and survives_bare(tile.literal, tile.dtype)
        return tile.text if bare else full_text(tile.literal, tile.dtype.compute if narrow else tile.dtype)
    return f"{tile.text}.to(tl.float32)" if narrow and tile.dtype.is_narrow_float else tile.text


def has_peer(op: str, tiles: list[Tile]) -> bool:
    """Returns whether the literals among the operands take their type from a tile."""
    if op in SELECTIONS:
        return tiles[0].literal is None and any(tile.literal is None for tile in tiles[1:])
    # Reflected comparisons and shifts are not everywhere: a literal may only stand on the right.
    return tiles[0].literal is None or (op in ("add", "sub", "mul") and tiles[-1].literal is None)


def computes_wider(node: Scalar, tiles: list[Tile]) -> bool:
    """Returns whether narrow operands are widened first: always for arithmetic, for a choice only if 8 bits wide."""
    if node.op in SELECTIONS:
        return node.dtype.is_narrow_float and node.dtype.bits == 8
    return any(tile.dtype.is_narrow_float for tile in tiles)
