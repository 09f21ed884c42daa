"""The axes of a kernel of attention, and of the tiles that its programs make.

The axes of the kernel are those of its results and of the loop: ``y`` (rows of scores), ``x`` (columns of the result,
all of them in one tile) and ``r`` (columns of scores, block by block). Inside, products are summed over axes of their
own, all of each in one tile: ``d``, ``e``, …; lists of blocks have positions, ``j`` and ``k``, of which a program has
one at a time. What gradients are summed of are factors of products once more: what these are summed over are then the
columns of the result, and a program loads such a factor once.

    left factor [y, d]   right factor [d, r]   weights [y, r]   factor of weights [r, x]   result [y, x]
"""

from __future__ import annotations

from dataclasses import replace

from ferrite_ir.language.attend import Attend
from ferrite_ir.language.index import Dim, Index, constant
from ferrite_ir.language.powers_of_two import next_power_of_two
from ferrite_ir.language.scalar import Scalar, substitute_dims
from ferrite_ir.language.sizes import Size, is_static
from ferrite_scheduler.model.contractions import LEAST_EXTENT
from ferrite_scheduler.model.schedule import Kernel
from ferrite_triton.analysis.attention_weights import simplified
from ferrite_triton.analysis.lowering_policy import LOWERING
from ferrite_triton.analysis.space import KernelAxis, Space, dim_mapping, flat_dim
from ferrite_triton.analysis.traversal import InBlocks
from ferrite_triton.errors import UnsupportedDefinition

DEPTHS, SLOTS = "defghi", "jkl"
"""Names of axes inside: what products are summed over, and positions in lists."""
FIRST_ROW = "yfirst"
"""The first row of a program, on which lists of blocks depend; an axis along which a program has one position."""


def attend_of(kernel: Kernel) -> Attend:
    """Returns the attention of a kernel of this form.

    Raises:
        UnsupportedDefinition: there are several.
    """
    found = [definition for definition in kernel.body if isinstance(definition, Attend)]
    if len(found) != 1:
        raise UnsupportedDefinition(
            f"{kernel.name} holds {len(found)} definitions of attention; write a kernel for each"
        )
    return found[0]


def attention_space(kernel: Kernel) -> Space:
    """Returns the space of a kernel of attention.

    Raises:
        UnsupportedDefinition: what is in one tile is too long, or of symbolic length; blocks are no multiples of 16.
    """
    attend = attend_of(kernel)
    sizes = {axis.name: axis.size for axis in kernel.axes}
    blocks = attend.blocks
    axes = [_single("z", sizes["z"])] if "z" in sizes else []
    axes.append(_rows(sizes.get("y", 1), None if blocks is None else blocks.rows))
    axes.append(_whole("x", sizes["x"]))
    axes.append(_cut("r", sizes["r"], None if blocks is None else blocks.columns))
    named = inner_names(attend)
    inner = [(_whole if name in DEPTHS else _single)(name, dim.size) for dim, name in named.items() if name != "x"]
    if blocks is not None:
        inner.append(_single(FIRST_ROW, sizes.get("y", 1)))
    mapping = dim_mapping(kernel.axes)
    along = {axis.name: flat_dim(axis).index if axis.size != 1 else constant(0) for axis in (*axes, *inner)}
    mapping |= {dim: along[name] for dim, name in named.items()}
    return Space(tuple(axes), ("y", "x"), mapping, kernel.form, InBlocks(), inner=tuple(inner))


def over_flat_positions(attend: Attend, space: Space, memo: dict[Scalar, Scalar]) -> Attend:
    """Returns an attention over the flat positions of a space, its weights simplified.

    Its lists of blocks are those of the first row.
    """
    mapped = attend.with_bodies(tuple(substitute_dims(body, space.mapping, memo) for body in attend.bodies))
    rows, along, first = space.axis("y"), space.axis("r"), space.axis(FIRST_ROW)
    assert rows is not None, "attention has rows"
    assert along is not None, "attention goes along an axis"
    mapped = replace(mapped, weights=simplified(mapped, flat_dim(rows), flat_dim(along)))
    if mapped.blocks is None or first is None:
        return mapped
    at_first: dict[Dim, Index] = {flat_dim(rows): flat_dim(first).index}
    found: dict[Scalar, Scalar] = {}
    lists = [
        replace(
            each,
            count=substitute_dims(each.count, at_first, found),
            position=substitute_dims(each.position, at_first, found),
        )
        for each in mapped.blocks.lists
    ]
    masked, whole = lists[0], lists[1] if len(lists) > 1 else None
    return replace(mapped, blocks=replace(mapped.blocks, masked=masked, whole=whole))


def inner_names(attend: Attend) -> dict[Dim, str]:
    """Returns the axis of each dim that only the inside of an attention knows."""
    columns = _columns(attend)
    depths = tuple(dict.fromkeys(product.depth for product in attend.products if product.depth not in columns))
    slots = tuple(dict.fromkeys(each.slot for each in (() if attend.blocks is None else attend.blocks.lists)))
    if len(depths) > len(DEPTHS):
        raise UnsupportedDefinition(f"attention made of {len(depths)} products; there are kernels of {len(DEPTHS)}")
    names = zip((*depths, *slots), (*DEPTHS[: len(depths)], *SLOTS[: len(slots)]), strict=True)
    return {**dict.fromkeys(columns, "x"), **dict(names)}


def _columns(attend: Attend) -> tuple[Dim, ...]:
    """Returns the dims that products are summed over which are columns of the result: right factors are factors there.

    There are none unless all factors are such: tiles of others have their columns along another of their axes.
    """
    found: dict[Dim, None] = {}
    for factor in attend.factors:
        same = [
            product.depth
            for product in attend.products
            if product.depth.size == attend.column.size
            and substitute_dims(product.right, {product.depth: attend.column.index}) == factor
        ]
        if not same:
            return ()
        found.update(dict.fromkeys(same))
    return tuple(found)


def _whole(name: str, size: Size) -> KernelAxis:
    """Returns an axis all of which is in a tile."""
    if not is_static(size):
        raise UnsupportedDefinition(
            f"attention over heads of symbolic length {size}; lengths of heads have to be numbers"
        )
    block = max(LEAST_EXTENT, next_power_of_two(int(size)))
    return KernelAxis(name, size, tiled=True, masked=size != block, block=block, max_block=block)


def _single(name: str, size: Size) -> KernelAxis:
    return KernelAxis(name, size, tiled=False, masked=False, block=1, max_block=1)


def _rows(size: Size, multiple: int | None) -> KernelAxis:
    """Returns the axis of rows, all of them in a tile where they are few; ``multiple`` is what a block divides."""
    if multiple is not None and is_static(size) and size <= multiple:
        multiple = None  # all rows are in one block
    if is_static(size) and size <= LEAST_EXTENT and multiple is None:
        least = LEAST_EXTENT
        return KernelAxis("y", size, tiled=True, masked=size != least, block=least, max_block=least)
    return _cut("y", size, multiple)


def _cut(name: str, size: Size, multiple: int | None) -> KernelAxis:
    """Returns an axis whose block the config chooses, without a mask where all that it may choose divide it."""
    largest = LOWERING.largest_scores
    largest = largest if multiple is None else min(largest, multiple & -multiple)
    if largest < LEAST_EXTENT:
        raise UnsupportedDefinition(
            f"attention in sparse blocks of {multiple}; they have to be multiples of {LEAST_EXTENT}"
        )
    known = int(size) if is_static(size) else 0
    divisor = known & -known
    if multiple is None and divisor >= LOWERING.sure_scores:
        largest = min(largest, divisor)
    masked = known == 0 or known % largest != 0
    return KernelAxis(name, size, tiled=True, masked=masked, block=None, max_block=largest)
