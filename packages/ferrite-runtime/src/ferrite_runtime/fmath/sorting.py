"""Stable sorts of the rows of a tile, as device functions; kernels reach them through `fmath`.

A row is sorted by a bitonic network (Batcher, "Sorting networks and their applications", 1968). A network is not
stable, so every element carries its position and no two are equal. Elements become integers in the order that torch
sorts by: NaN is the largest, the two zeros are equal. Up to 32 bits, the integer and the position are the halves of one
wider integer, and the network moves one tile; wider elements and their positions are two tiles that move together.
"""

from __future__ import annotations

import triton
import triton.language as tl

_LOW_16 = tl.constexpr(0xFFFF)
_LOW_32 = tl.constexpr(0xFFFFFFFF)


@triton.constexpr_function
def _log2(count):
    return count.bit_length() - 1


@triton.constexpr_function
def _log2_behind(shape, axis):
    """Returns the logarithm of the number of elements that neighbours along an axis are apart."""
    count = 1
    for extent in shape[axis + 1 :]:
        count *= extent
    return count.bit_length() - 1


# --- elements as ordered integers -----------------------------------------------------------------------------------


@triton.jit
def _largest(key):
    """Returns the largest integer of a type, as a tile like ``key``."""
    return tl.full(key.shape, (1 << (key.dtype.primitive_bitwidth - 1)) - 1, key.dtype)


@triton.jit
def _widened(x):
    """Returns floats in a type that there are comparisons of everywhere."""
    return x if x.dtype.primitive_bitwidth >= 32 else x.to(tl.float32)


@triton.jit
def _ordered_float(x, integer: tl.constexpr):
    bits, wide = x.to(integer, bitcast=True), _widened(x)
    # Negative numbers count downwards from minus one.
    key = tl.where(bits < 0, bits ^ _largest(bits), bits)
    key = tl.where(wide == 0.0, 0, key)
    return tl.where(wide != wide, _largest(key), key)


@triton.jit
def _ordered(x):
    """Returns signed integers in the order of the elements: of 32 bits for elements of up to 32, else of 64."""
    if x.dtype == tl.float64:
        return _ordered_float(x, tl.int64)
    elif x.dtype == tl.float32:
        return _ordered_float(x, tl.int32)
    elif x.dtype.is_floating():
        return _ordered_float(x, tl.int16).to(tl.int32)
    elif x.dtype == tl.uint64:
        return (x ^ (1 << 63)).to(tl.int64, bitcast=True)
    elif x.dtype == tl.uint32:
        return (x ^ (1 << 31)).to(tl.int32, bitcast=True)
    elif x.dtype == tl.uint16:
        return x.to(tl.int32) - 32768
    elif x.dtype == tl.int64:
        return x
    else:
        return x.to(tl.int32)


@triton.jit
def _restored_float(key, is_negative_zero, dtype: tl.constexpr):
    bits = tl.where(key < 0, key ^ _largest(key), key)
    # The largest integer is a NaN, and the smallest one minus zero.
    return tl.where(is_negative_zero, -1 - _largest(key), bits).to(dtype, bitcast=True)


@triton.jit
def _restored(key, is_negative_zero, dtype: tl.constexpr):
    """Returns the elements that ordered integers stand for; of NaN it is one, whatever its bits were."""
    if dtype == tl.float64 or dtype == tl.float32:
        return _restored_float(key, is_negative_zero, dtype)
    elif dtype.is_floating():
        return _restored_float(key.to(tl.int16), is_negative_zero, dtype)
    elif dtype == tl.uint64:
        return key.to(tl.uint64, bitcast=True) ^ (1 << 63)
    elif dtype == tl.uint32:
        return key.to(tl.uint32, bitcast=True) ^ (1 << 31)
    elif dtype == tl.uint16:
        return (key + 32768).to(tl.uint16)
    elif dtype == tl.int1:
        return key != 0
    else:
        return key.to(dtype)


@triton.jit
def _is_negative_zero(x):
    if x.dtype.is_floating():
        wide = _widened(x)
        integer: tl.constexpr = tl.int64 if wide.dtype == tl.float64 else tl.int32
        return ((wide == 0.0) & (wide.to(integer, bitcast=True) < 0)).to(tl.int32)
    else:
        return tl.zeros(x.shape, tl.int32)


# --- networks -------------------------------------------------------------------------------------------------------


@triton.jit
def _xor(a, b):
    return a ^ b


@triton.jit
def _bit(rank: tl.constexpr, position: tl.constexpr):
    """Returns bit ``position`` of the position in a tile of ``rank`` axes of two."""
    return tl.reshape(tl.arange(0, 2), [1] * (rank - 1 - position) + [2] + [1] * position)


@triton.jit
def _partner(x, rank: tl.constexpr, position: tl.constexpr):
    # Both elements of a pair combined, less one of them, is the other.
    return x ^ tl.reduce(x, rank - 1 - position, _xor, keep_dims=True)


@triton.jit
def _is_upper(rank: tl.constexpr, position: tl.constexpr, order: tl.constexpr):
    """Returns where the greater of two partners belongs.

    Ascending where bit ``order`` of the position is 0, or everywhere if it is none of the tile's.
    """
    is_right = _bit(rank, position)
    if order < rank:
        is_right = is_right ^ _bit(rank, order)
    return is_right != 0


@triton.jit
def _turned(x, rank: tl.constexpr, order: tl.constexpr):
    """Returns the integers of parts that are to fall in the opposite order, so that they are to rise, and back again.

    A part falls where bit ``order`` of the position is 1; none does if that is none of the tile's.
    """
    if order < rank:
        return x ^ -_bit(rank, order)
    else:
        return x


@triton.constexpr_function
def _order_bit(step, steps, behind, rank):
    """Returns the place of the bit that says in which direction a step sorts: none of the tile's in the last."""
    return behind + step if step < steps else rank


@triton.constexpr_function
def _kept_shape(shape, axis, kept):
    return [kept if position == axis else extent for position, extent in enumerate(shape)]


@triton.jit
def _in_shape(x, shape: tl.constexpr):
    """Returns a tile in another shape; a reduction over all axes leaves a scalar, of which Triton reshapes none."""
    if len(x.shape) == 0:
        return tl.full(shape, x, x.dtype)
    else:
        return tl.reshape(x, shape)


@triton.jit
def _exchange_one(x, rank: tl.constexpr, position: tl.constexpr, order: tl.constexpr):
    y = _partner(x, rank, position)
    is_upper = _is_upper(rank, position, order)
    if x.dtype.primitive_bitwidth == 32:  # one instruction each, and one for both where a thread holds both partners
        return tl.where(is_upper, tl.maximum(x, y), tl.minimum(x, y))
    return tl.where((x > y) != is_upper, y, x)


@triton.jit
def _merge_one(x, rank: tl.constexpr, behind: tl.constexpr, step: tl.constexpr, steps: tl.constexpr):
    """Sorts parts of two to the power of ``step`` elements that first rise and then fall, or the other way round.

    All parts of 32-bit integers rise while they are sorted, so that the greater of two partners is the right one
    everywhere: one of the two instructions for partners within a thread, and no order to look up for others. Turning
    wider ones takes more instructions than that saves.
    """
    order: tl.constexpr = _order_bit(step, steps, behind, rank)
    turned: tl.constexpr = order if x.dtype.primitive_bitwidth == 32 else rank
    x = _turned(x, rank, turned)
    for below in tl.static_range(step):
        x = _exchange_one(x, rank, behind + step - 1 - below, order if turned == rank else rank)
    return _turned(x, rank, turned)


@triton.jit
def _lesser(a, b):
    return tl.minimum(a, b)


@triton.jit
def _sort_one(x, kept: tl.constexpr, axis: tl.constexpr):
    """Returns the ``kept`` smallest integers of each row, no two of which are equal, in ascending order.

    Of two parts that are sorted, one upwards and one downwards, the smaller of each pair are the smallest of both:
    so parts of that many are sorted first, and then halved in number again and again.
    """
    rank: tl.constexpr = _log2(x.numel)
    behind: tl.constexpr = _log2_behind(x.shape, axis)
    steps: tl.constexpr = _log2(x.shape[axis])
    last: tl.constexpr = _log2(kept)
    h = tl.reshape(x, [2] * rank)
    for step in tl.static_range(1, last + 1):
        h = _merge_one(h, rank, behind, step, steps)
    for left in tl.static_range(steps - last):
        h = tl.reduce(h, rank - left - 1 - behind - last, _lesser)
        h = _merge_one(h, rank - left - 1, behind, last, steps - left - 1)
    return _in_shape(h, _kept_shape(x.shape, axis, kept))


@triton.jit
def _exchange_two(x, tag, rank: tl.constexpr, position: tl.constexpr, order: tl.constexpr):
    y, other = _partner(x, rank, position), _partner(tag, rank, position)
    swap = ((x > y) | ((x == y) & (tag > other))) != _is_upper(rank, position, order)
    return tl.where(swap, y, x), tl.where(swap, other, tag)


@triton.jit
def _merge_two(x, tag, rank: tl.constexpr, behind: tl.constexpr, step: tl.constexpr, steps: tl.constexpr):
    for below in tl.static_range(step):
        x, tag = _exchange_two(x, tag, rank, behind + step - 1 - below, _order_bit(step, steps, behind, rank))
    return x, tag


@triton.jit
def _lesser_pair(x, tag, y, other):
    is_less = (x < y) | ((x == y) & (tag < other))
    return tl.where(is_less, x, y), tl.where(is_less, tag, other)


@triton.jit
def _sort_two(x, tag, kept: tl.constexpr, axis: tl.constexpr):
    """Returns the ``kept`` smallest pairs of integers of each row in ascending order; see `_sort_one`."""
    rank: tl.constexpr = _log2(x.numel)
    behind: tl.constexpr = _log2_behind(x.shape, axis)
    steps: tl.constexpr = _log2(x.shape[axis])
    last: tl.constexpr = _log2(kept)
    h, t = tl.reshape(x, [2] * rank), tl.reshape(tag, [2] * rank)
    for step in tl.static_range(1, last + 1):
        h, t = _merge_two(h, t, rank, behind, step, steps)
    for left in tl.static_range(steps - last):
        h, t = tl.reduce((h, t), rank - left - 1 - behind - last, _lesser_pair)
        h, t = _merge_two(h, t, rank - left - 1, behind, last, steps - left - 1)
    shape: tl.constexpr = _kept_shape(x.shape, axis, kept)
    return _in_shape(h, shape), _in_shape(t, shape)


# --- what kernels call ----------------------------------------------------------------------------------------------


@triton.jit
def sort_integers(x):
    """Returns each row of a tile of signed integers, its last axis, in ascending order.

    As `triton.language.sort` does, with a minimum and a maximum for each step instead of comparing and choosing.
    """
    axis: tl.constexpr = len(x.shape) - 1
    return _sort_one(x, x.shape[axis], axis)


@triton.jit
def sort_stable(x, size: tl.constexpr, axis: tl.constexpr, descending: tl.constexpr):
    """Returns the first ``size`` elements of each row sorted, and (int32) the positions that they came from.

    What lies behind them in a row comes last. Rows run along ``axis`` and hold at most 32768 elements.
    """
    return sort_first(x, x.shape[axis], size, axis, descending)


@triton.jit
def sort_first(x, kept: tl.constexpr, size: tl.constexpr, axis: tl.constexpr, descending: tl.constexpr):
    """Returns what `sort_stable` does, cut off behind the first ``kept`` elements (a power of two) of each row."""
    extent: tl.constexpr = x.shape[axis]
    lane = tl.arange(0, extent)
    if len(x.shape) == 2:
        lane = tl.expand_dims(lane, 1 - axis)
    key = _ordered(x)
    if descending:
        key = ~key
    key = tl.where(lane < size, key, _largest(key))
    tag = tl.broadcast_to(lane, x.shape) * 2 + _is_negative_zero(x)
    if x.dtype.primitive_bitwidth == 64:
        key, tag = _sort_two(key, tag, kept, axis)
    elif x.dtype.primitive_bitwidth == 32:
        both = _sort_one((key.to(tl.int64) << 32) | tag.to(tl.int64), kept, axis)
        key = (both >> 32).to(tl.int32)
        tag = (both & _LOW_32).to(tl.int32)
    else:
        # Shifted, the largest of 32 bits would be a small one: past the end stands the largest of 16.
        key = tl.where(lane < size, key, 32767)
        both = _sort_one((key << 16) | tag, kept, axis)
        key = both >> 16
        tag = both & _LOW_16
    if descending:
        key = ~key
    return _restored(key, (tag & 1) != 0, x.dtype), tag >> 1
