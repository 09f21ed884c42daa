"""What type an expression of a tile program has, from the types of the names in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from ferrite_ir.language.combines import COMBINES
from ferrite_ir.language.dtypes import BOOL, I32, DType

from .language import (
    Assert,
    Assume,
    AtomicUpdate,
    AwaitPredecessor,
    Barrier,
    Bitcast,
    Block,
    BlockSize,
    Broadcast,
    Call,
    Cast,
    Choose,
    Constant,
    Describe,
    Dispatch,
    Dot,
    Elementwise,
    Expand,
    Expression,
    Extent,
    Full,
    Gather,
    Hint,
    HoldOnly,
    Lanes,
    Literal,
    Load,
    LoadBlock,
    Name,
    Offset,
    Prefetch,
    ProgramCount,
    ProgramId,
    Reduce,
    Reshape,
    Scan,
    Shape,
    Store,
    TileType,
    Transpose,
    operands_of,
    parts_of,
)
from .operations import ELEMENTWISE

EVICTIONS = ("", "evict_first", "evict_last")
CACHES = ("", "streaming")
HINTS = ("multiple_of", "max_contiguous", "max_constancy")
ATOMICS = {"add": "sum", "max": "max", "min": "min", "mul": "prod"}
"""Modes of atomic updates, each with the combine that it is."""


HELD_BYTES = (2, 4)
"""Sizes of elements that registers may hold alone (`HoldOnly`): words of 32 bits are made of them."""


class TileTypeError(ValueError):
    """An operation on operands of types that it does not take."""


def types_of(root: Expression, names: Mapping[str, TileType]) -> tuple[TileType, ...]:
    """Returns the types of the results of an expression: mostly one; none of an operation done for its effect.

    Args:
        root: the expression.
        names: the types of variables.

    Raises:
        TileTypeError: an operation does not take its operands, or a name is unknown.
    """
    if isinstance(root, Name) and root.name in names:
        return (names[root.name],)
    known: dict[int, tuple[TileType, ...]] = {}
    for part in parts_of(root):
        operands = [known[id(operand)] for operand in operands_of(part)]
        if any(len(types) != 1 for types in operands):
            raise TileTypeError("an operand has no value, or several")
        if isinstance(part, (Call, Constant)) and part is not root and not isinstance(root, Call):
            raise TileTypeError("a call, and what only a call takes, stands in a statement of its own")
        match part:
            case Name(name) if name in names:
                known[id(part)] = (names[name],)
            case Name(name):
                raise TileTypeError(f"{name} is not known here")
            case _:
                known[id(part)] = result_types(part, [types[0] for types in operands])
    return known[id(root)]


def result_types(part: Expression, operands: Sequence[TileType]) -> tuple[TileType, ...]:
    """Returns the types of the results of an operation or number, from the types of its operands.

    Raises:
        TileTypeError: the operation does not take its operands.
    """
    match part:
        case Literal(_, dtype) | BlockSize(_, dtype):
            return (TileType(dtype),)
        case Constant():
            return (TileType(I32),)  # a call takes it as it is
        case Call(_, _, results):
            return results
    if any(operand.is_descriptor for operand in operands) and not isinstance(part, LoadBlock):
        raise TileTypeError("only load_block takes a descriptor")
    found = RULES[type(part)](part, *operands)
    return () if found is None else (found,) if isinstance(found, TileType) else found


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Returns the shape that tiles of these shapes have together: scalars and extents of 1 are repeated.

    Raises:
        TileTypeError: they have different ranks, or different extents along an axis.
    """
    tiles = [shape for shape in shapes if shape]
    if not tiles or all(shape == tiles[0] for shape in tiles):
        return tiles[0] if tiles else ()
    ranks = {len(shape) for shape in tiles}
    if len(ranks) > 1:
        raise TileTypeError(f"tiles of different ranks meet: {', '.join(map(_shape_text, tiles))}")
    return tuple(_common(extents, tiles) for extents in zip_longest(*tiles))


def _common(extents: tuple[Extent, ...], tiles: list[Shape]) -> Extent:
    wide = {extent for extent in extents if extent != 1}
    if len(wide) > 1:
        raise TileTypeError(f"tiles of different extents meet: {', '.join(map(_shape_text, tiles))}")
    return wide.pop() if wide else 1


def _shape_text(shape: Shape) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _is_tile_of(dtype: DType, type_: TileType) -> bool:
    return type_.dtype is dtype and not type_.is_pointer


def _require(holds: bool, message: str) -> None:  # noqa: FBT001  # as an assertion reads
    if not holds:
        raise TileTypeError(message)


def _elementwise(part: Elementwise, *operands: TileType) -> TileType:
    row = ELEMENTWISE.get(part.op)
    if row is None:
        raise TileTypeError(f"there is no operation {part.op}")
    _require(len(operands) == row.arity, f"{part.op} takes {row.arity} operands, got {len(operands)}")
    _require(not any(operand.is_pointer for operand in operands), f"{part.op} does not take addresses; use offset")
    result = row.result(tuple(operand.dtype for operand in operands))
    if isinstance(result, str):
        raise TileTypeError(f"{part.op}: {result}")
    return TileType(result, broadcast_shapes(*(operand.shape for operand in operands)))


def _cast(part: Cast, value: TileType) -> TileType:
    _require(not value.is_pointer, "addresses are not cast")
    return replace(value, dtype=part.to)


def _bitcast(part: Bitcast, value: TileType) -> TileType:
    _require(
        not value.is_pointer and value.dtype.bits == part.to.bits, f"{value} and {part.to} have not the same width"
    )
    return replace(value, dtype=part.to)


def _scalar_index(_: ProgramId | ProgramCount) -> TileType:
    return TileType(I32)


def _lanes(part: Lanes) -> TileType:
    return TileType(I32, (part.extent,))


def _full(part: Full, value: TileType) -> TileType:
    _require(value.shape == () and not value.is_pointer, f"full takes a scalar, got {value}")
    return TileType(value.dtype, part.shape)


def _broadcast(part: Broadcast, value: TileType) -> TileType:
    fits = broadcast_shapes(value.shape, part.shape) == part.shape
    _require(fits, f"{value} cannot be repeated to {_shape_text(part.shape)}")
    return replace(value, shape=part.shape)


def _reshape(part: Reshape, value: TileType) -> TileType:
    have, want = _elements(value.shape), _elements(part.shape)
    _require(have == want, f"{value} has not as many elements as {_shape_text(part.shape)}")
    return replace(value, shape=part.shape)


def _elements(shape: Shape) -> tuple[int, int, tuple[str, ...]]:
    """Returns the number of elements of a shape as numbers over and under a line, and the constants among them."""
    over, under, constants = 1, 1, []
    for extent in shape:
        match extent:
            case Block(constant, parts):
                constants.append(constant)
                under *= parts
            case number:
                over *= number
    while over % 2 == 0 and under % 2 == 0:
        over, under = over // 2, under // 2
    return over, under, tuple(sorted(constants))


def _transpose(part: Transpose, value: TileType) -> TileType:
    axes = tuple(range(len(value.shape)))
    _require(tuple(sorted(part.order)) == axes, f"{list(part.order)} is no order of the axes of {value}")
    return replace(value, shape=tuple(value.shape[axis] for axis in part.order))


def _expand(part: Expand, value: TileType) -> TileType:
    shape = list(value.shape)
    for axis in sorted(part.axes):
        _require(0 <= axis <= len(shape), f"{list(part.axes)} are no positions of further axes of {value}")
        shape.insert(axis, 1)
    return replace(value, shape=tuple(shape))


def _hint(part: Hint, value: TileType) -> TileType:
    _require(part.says in HINTS, f"a hint is one of {HINTS}, not {part.says!r}")
    _require(
        len(part.numbers) == max(1, len(value.shape)), f"{list(part.numbers)} are not one for each axis of {value}"
    )
    return value


def _dot(_: Dot, left: TileType, right: TileType, accumulator: TileType) -> TileType:
    fits = len(left.shape) == len(right.shape) == 2 and left.shape[1] == right.shape[0]
    _require(fits and left.dtype is right.dtype, f"no product of {left} and {right}")
    made = (left.shape[0], right.shape[1])
    _require(accumulator.shape == made, f"a product of shape {_shape_text(made)} is added to {accumulator}")
    return accumulator


def _offset(_: Offset, pointer: TileType, elements: TileType) -> TileType:
    _require(pointer.is_pointer, f"offset takes addresses, got {pointer}")
    _require(elements.dtype.is_integer and not elements.is_pointer, f"offset takes integers, got {elements}")
    return replace(pointer, shape=broadcast_shapes(pointer.shape, elements.shape))


def _access(what: str, pointer: TileType, *masks: TileType) -> None:
    _require(pointer.is_pointer, f"{what} takes addresses, got {pointer}")
    for mask in masks:
        _require(_is_tile_of(BOOL, mask), f"a mask is bool, got {mask}")
        fits = broadcast_shapes(pointer.shape, mask.shape) == pointer.shape
        _require(fits, f"a mask {mask} does not fit the addresses {pointer}")


def _load(part: Load, pointer: TileType, *given: TileType) -> TileType:
    masks, others = (given[:1], given[1:]) if part.mask is not None else ((), given)
    _access("load", pointer, *masks)
    for other in others:
        _require(part.mask is not None, "other stands for what a mask leaves out, and there is no mask")
        _require(_is_tile_of(pointer.dtype, other), f"other is {other}, the elements {pointer.dtype}")
        broadcast_shapes(pointer.shape, other.shape)
    _require(part.eviction in EVICTIONS, f"eviction is one of {EVICTIONS}, not {part.eviction!r}")
    return TileType(pointer.dtype, pointer.shape)


def _describe(part: Describe, pointer: TileType, *numbers: TileType) -> TileType:
    rank = len(part.shape)
    _require(pointer.is_pointer and pointer.shape == (), f"describe takes the address of an element, got {pointer}")
    _require(rank > 0 and len(numbers) == 2 * rank, f"describe takes an extent and a step for each of {rank} axes")
    _require(all(map(_is_integer, numbers)), f"extents and steps are integers, got {', '.join(map(str, numbers))}")
    last = part.operands[-1]
    _require(isinstance(last, Literal) and last.value == 1, "elements of a described row lie next to each other")
    return TileType(pointer.dtype, part.shape, is_descriptor=True)


def _load_block(_: LoadBlock, descriptor: TileType, *positions: TileType) -> TileType:
    _require(descriptor.is_descriptor, f"load_block takes a descriptor, got {descriptor}")
    fits = len(positions) == len(descriptor.shape) and all(each == TileType(I32) for each in positions)
    _require(fits, f"load_block takes an i32 for each axis of {descriptor}, got {', '.join(map(str, positions))}")
    return TileType(descriptor.dtype, descriptor.shape)


def _is_integer(type_: TileType) -> bool:
    return type_.shape == () and type_.dtype.is_integer and not type_.is_pointer


def _choose(part: Choose, chosen: TileType, otherwise: TileType) -> TileType:
    _require(isinstance(part.constant, Block), f"a choice is made by a block constant, not by {part.constant}")
    _require(chosen == otherwise, f"choose of {chosen} and {otherwise}")
    return chosen


def _stored(what: str, pointer: TileType, value: TileType, *masks: TileType) -> None:
    _access(what, pointer, *masks)
    _require(_is_tile_of(pointer.dtype, value), f"{what} puts {value} where {pointer.dtype} lies; cast it")
    fits = broadcast_shapes(pointer.shape, value.shape) == pointer.shape
    _require(fits, f"{what} puts {value} into fewer places, {pointer}")


def _store(part: Store, *operands: TileType) -> None:
    _stored("store", *operands)
    _require(part.cache in CACHES, f"cache is one of {CACHES}, not {part.cache!r}")


def _atomic(part: AtomicUpdate, *operands: TileType) -> None:
    _stored("atomic", *operands)
    _require(part.mode in ATOMICS, f"mode is one of {tuple(ATOMICS)}, not {part.mode!r}")


def _nothing(_: Barrier | AwaitPredecessor) -> None:
    return None


def _prefetch(_: Prefetch, pointer: TileType) -> None:
    _access("prefetch", pointer)


def _hold_only(part: HoldOnly, *tiles: TileType) -> None:
    for operand, tile in zip(part.operands, tiles, strict=True):
        is_tile = isinstance(operand, Name) and bool(tile.shape) and not tile.is_pointer
        fits = is_tile and tile.dtype.bytes in HELD_BYTES
        _require(fits, f"hold_only takes names of tiles whose elements have 2 or 4 bytes, got {tile}")


def _assert(_: Assert, condition: TileType, *masks: TileType) -> None:
    for each in (condition, *masks):
        _require(_is_tile_of(BOOL, each), f"a condition is bool, got {each}")


def _assume(_: Assume, condition: TileType) -> None:
    _require(_is_tile_of(BOOL, condition) and condition.shape == (), f"assume takes one bool, got {condition}")


def _dispatch(part: Dispatch, number: TileType, *given: TileType) -> tuple[TileType, ...]:
    width = part.columns + 1
    _require(_is_integer(number) and number.shape == (), f"dispatch takes an integer, got {number}")
    _require(bool(given) and len(given) % width == 0, f"ranges have a length and {part.columns} values")
    rows = [given[at : at + width] for at in range(0, len(given), width)]
    for length, *values in rows:
        _require(length == number, f"a range of {length} for a number that is {number}")
        for value, first in zip(values, rows[0][1:], strict=True):
            _require(value == first and value.shape == (), f"dispatch to {first} and {value}")
    return rows[0]


def _axis_of(what: str, axis: int, value: TileType) -> None:
    _require(0 <= axis < len(value.shape), f"{what} along axis {axis} of {value}, which has {len(value.shape)}")
    _require(not value.is_pointer, f"{what} of addresses")


def _same_shape(what: str, part: Reduce | Scan, values: tuple[TileType, ...]) -> None:
    for value in values:
        _axis_of(what, part.axis, value)
        _require(value.shape == values[0].shape, f"{what} of {values[0]} and {value}, which have different shapes")


def _combined(what: str, part: Reduce | Scan, values: tuple[TileType, ...]) -> None:
    _same_shape(what, part, values)
    row = COMBINES.get(part.combine)
    if row is None or len(row.state) != len(values):
        raise TileTypeError(f"{what} of {len(values)} by {part.combine}")
    problem = row.operand_problem(tuple(value.dtype for value in values))
    _require(problem is None, f"{what}: {problem}")
    _require(what != "scan" or row.scans, f"no scan combines by {part.combine}")


def _reduce(part: Reduce, *values: TileType) -> tuple[TileType, ...]:
    _combined("reduce", part, values)
    kept: Shape = (1,) if part.keep else ()
    shape = (*values[0].shape[: part.axis], *kept, *values[0].shape[part.axis + 1 :])
    return tuple(replace(value, shape=shape) for value in values)


def _scan(part: Scan, *values: TileType) -> tuple[TileType, ...]:
    if part.combine in COMBINES:
        _combined("scan", part, values)
    else:
        _same_shape("scan", part, values)  # by a function of the program, whose types the verifier knows
    return values


def _gather(part: Gather, value: TileType, index: TileType) -> TileType:
    _axis_of("gather", part.axis, value)
    _require(index.dtype.is_integer and not index.is_pointer, f"gather takes integers, got {index}")
    same = [a == b for axis, (a, b) in enumerate(zip_longest(value.shape, index.shape)) if axis != part.axis]
    _require(all(same), f"gather by {index} from {value}: other axes differ")
    return replace(value, shape=index.shape)


RULES: dict[type[Expression], Callable[..., TileType | tuple[TileType, ...] | None]] = {
    Elementwise: _elementwise,
    Cast: _cast,
    Bitcast: _bitcast,
    ProgramId: _scalar_index,
    ProgramCount: _scalar_index,
    Lanes: _lanes,
    Full: _full,
    Broadcast: _broadcast,
    Reshape: _reshape,
    Transpose: _transpose,
    Expand: _expand,
    Hint: _hint,
    Offset: _offset,
    Load: _load,
    Describe: _describe,
    LoadBlock: _load_block,
    Choose: _choose,
    Dispatch: _dispatch,
    Reduce: _reduce,
    Scan: _scan,
    Gather: _gather,
    Dot: _dot,
    Store: _store,
    AtomicUpdate: _atomic,
    Barrier: _nothing,
    AwaitPredecessor: _nothing,
    Prefetch: _prefetch,
    HoldOnly: _hold_only,
    Assert: _assert,
    Assume: _assume,
}
