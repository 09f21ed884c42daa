"""The functions that NumPy programs call where NumPy has none: the target's device library, as text.

A module that is printed holds those that it uses. They take and return arrays, or NumPy's scalars, of any shape.
"""

from __future__ import annotations

from collections.abc import Iterable

_EXTREME = """\
def {name}(a, b):
    nan_a, nan_b = a[0] != a[0], b[0] != b[0]
    tie = (a[0] == b[0]) | (nan_a & nan_b)
    first = np.where(tie, {tie}, nan_a | ((a[0] {better} b[0]) & ~nan_b))
    return tuple(np.where(first, x, y) for x, y in zip(a, b))
"""

LIBRARY: dict[str, str] = {
    "offset": '''\
def offset(pointer, elements):
    """An address is an array, flat, and numbers of its elements."""
    return pointer[0], pointer[1] + elements
''',
    "rearranged": """\
def rearranged(pointer, change):
    return pointer[0], change(pointer[1])
""",
    "checked": """\
def checked(memory, element):
    if element.size and not (element.min() >= 0 and element.max() < memory.size):
        raise IndexError(f"elements {element.min()} to {element.max()} of an array of {memory.size}")
    return element
""",
    "load": '''\
def load(pointer, mask=np.True_, other=None):
    """What lies at addresses; what a mask leaves out is `other`, or no number."""
    memory, element = pointer
    if other is None:
        other = np.array(np.nan if memory.dtype.kind == "f" else -1).astype(memory.dtype)
    element, mask = np.broadcast_arrays(element, mask)
    found = np.empty(element.shape, memory.dtype)
    found[...] = other
    found[mask] = memory[checked(memory, element[mask])]
    return found[()]
''',
    "load_block": '''\
def load_block(descriptor, *positions):
    """The block of a described matrix that begins at some positions; zero outside of its extents."""
    (memory, first), extents, steps, shape = descriptor
    at = np.ix_(*(position + np.arange(extent) for position, extent in zip(positions, shape)))
    inside = np.prod(np.broadcast_arrays(*((i >= 0) & (i < n) for i, n in zip(at, extents))), 0, dtype=bool)
    return load((memory, first + sum(i * np.int64(step) for i, step in zip(at, steps))), inside, memory.dtype.type(0))
''',
    "store": """\
def store(pointer, value, mask=np.True_):
    memory, element = pointer
    element, value, mask = np.broadcast_arrays(element, value, mask)
    memory[checked(memory, element[mask])] = value[mask]
""",
    "atomic": """\
def atomic(ufunc, pointer, value, mask=np.True_):
    memory, element = pointer
    element, value, mask = np.broadcast_arrays(element, value, mask)
    ufunc.at(memory, checked(memory, element[mask]), value[mask])
""",
    "check": """\
def check(condition, message, mask=np.True_):
    if np.any(mask & ~condition):
        raise AssertionError(message)
""",
    "bf16_values": """\
def bf16_values(bits):
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
""",
    "bf16_bits": """\
def bf16_bits(values):
    return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
""",
    "round_bf16": '''\
def round_bf16(values):
    """The nearest numbers of bfloat16, ties to even, as float32."""
    bits = values.view(np.uint32)
    near = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(values), near.view(np.float32), values)
''',
    "to_integer": '''\
def to_integer(values, dtype):
    """Truncates; saturates beyond 32 bits (64, of a type of 64), where NaN is 0, and wraps to what is narrower."""
    bits = 64 if np.dtype(dtype).itemsize == 8 else 32
    wide = np.dtype(f"{np.dtype(dtype).kind}{bits // 8}").type
    least, most = np.iinfo(wide).min, np.iinfo(wide).max
    values = np.float64(values)
    inside = (values > least) & (values < float(most) + (bits == 32))
    whole = np.where(inside, values, 0.0).astype(wide)
    ends = np.where(values <= least, wide(least), np.where(values > 0, wide(most), wide(0)))
    return np.where(inside, whole, ends).astype(dtype)
''',
    "truncdiv": """\
def truncdiv(x, y):
    quotient = x // y
    return quotient + ((quotient < 0) & (quotient * y != x) & (y != 0)).astype(quotient.dtype)
""",
    "floordiv": """\
def floordiv(x, y):
    return np.where((y == 0) | np.isinf(x), x / y, np.floor_divide(x, y))
""",
    "power": '''\
def power(x, y):
    """Integers; a negative power of anything but 1 and -1 is 0."""
    odd = (y & 1) != 0
    inverse = np.where(x == 1, 1, np.where(x + 1 == 0, np.where(odd, -1, 1), 0)).astype(x.dtype)
    return np.where(y < 0, inverse, np.power(x, np.where(y < 0, 0, y).astype(x.dtype)))
''',
    "minimum": """\
def minimum(x, y):
    return np.where(x == y, np.where(np.signbit(x), x, y), np.minimum(x, y))
""",
    "maximum": """\
def maximum(x, y):
    return np.where(x == y, np.where(np.signbit(x), y, x), np.maximum(x, y))
""",
    "fma": '''\
def fma(x, y, z):
    """One rounding: the exact sum rounded to odd in float64 (Boldo and Melquiond, 2008), then to float32."""
    product, z = np.float64(x) * y, np.float64(z)
    total = product + z
    added = total - product
    error = (product - (total - added)) + (z - added)
    is_even = (np.asarray(total).view(np.int64) & 1) == 0
    towards = np.nextafter(total, np.copysign(np.inf, error))
    return np.where((error != 0) & is_even & np.isfinite(total), towards, total).astype(np.float32)
''',
    "shl": """\
def shl(x, y):
    inside = (y >= 0) & (y < 8 * x.dtype.itemsize)
    return np.where(inside, x << np.where(inside, y, 0).astype(y.dtype), 0).astype(x.dtype)
""",
    "shr": """\
def shr(x, y):
    bits = 8 * x.dtype.itemsize
    inside = (y >= 0) & (y < bits)
    moved = x >> np.where(inside, y, bits - 1).astype(y.dtype)
    return np.where(inside | (x.dtype.kind == "i"), moved, 0).astype(x.dtype)
""",
    "erf": """\
def erf(x):
    import math
    return np.vectorize(math.erf, otypes=[x.dtype])(x)[()]
""",
    "erfc": """\
def erfc(x):
    import math
    return np.vectorize(math.erfc, otypes=[x.dtype])(x)[()]
""",
    "argmax": _EXTREME.format(name="argmax", better=">", tie="a[1] <= b[1]"),
    "argmin": _EXTREME.format(name="argmin", better="<", tie="a[1] <= b[1]"),
    "cummax": _EXTREME.format(name="cummax", better=">", tie="False"),
    "cummin": _EXTREME.format(name="cummin", better="<", tie="False"),
    "welford": '''\
def welford(a, b):
    """Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979)."""
    weight, delta = a[2] + b[2], b[0] - a[0]
    share = np.where(weight == 0, 0, b[2] / weight).astype(weight.dtype)
    return a[0] + delta * share, a[1] + b[1] + delta * delta * a[2] * share, weight
''',
    "online_softmax": '''\
def online_softmax(a, b):
    """Milakov, Gimelshein, "Online normalizer calculation for softmax" (2018)."""
    top = np.maximum(a[0], b[0])
    scales = [np.where(top == -np.inf, 1, np.exp(each[0] - top)).astype(top.dtype) for each in (a, b)]
    return top, a[1] * scales[0] + b[1] * scales[1]
''',
    "sort_first": '''\
def sort_first(x, kept, size, axis, descending):
    """The first of each row in stable order, and where they were; NaN is the largest. Lanes from `size` come last."""
    ranks = np.unique(x, return_inverse=True)[1].reshape(x.shape)
    lane = np.moveaxis(np.arange(x.shape[axis]).reshape((-1,) + (1,) * (x.ndim - 1)), 0, axis)
    keys = np.where(lane < size, -ranks if descending else ranks, x.size)
    order = np.take(np.argsort(keys, axis, kind="stable"), np.arange(kept), axis)
    return np.take_along_axis(x, order, axis), order.astype(np.int32)
''',
    "sort_stable": """\
def sort_stable(x, size, axis, descending):
    return sort_first(x, x.shape[axis], size, axis, descending)
""",
    "accumulate": '''\
def accumulate(merge, tiles, axis):
    """For each element along an axis, the states of all up to it, merged."""
    lines = list(zip(*(np.moveaxis(np.asarray(tile), axis, 0) for tile in tiles)))
    states = [lines[0]]
    for line in lines[1:]:
        states.append(merge(states[-1], line))
    return tuple(np.stack(each, axis) for each in zip(*states))
''',
    "reduce": """\
def reduce(merge, tiles, axis, keepdims):
    last = [np.take(tile, [-1], axis) for tile in accumulate(merge, tiles, axis)]
    return tuple(tile if keepdims else np.squeeze(tile, axis)[()] for tile in last)
""",
    "backwards": """\
def backwards(scan, tiles, axis):
    return tuple(np.flip(tile, axis) for tile in scan(tuple(np.flip(tile, axis) for tile in tiles)))
""",
}  # fmt: skip
"""By name, in an order in which each is defined before those that use it."""

_NEEDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("load", "store", "atomic"), ("checked",)),
    "load_block": ("load", "checked"),
    "reduce": ("accumulate",),
    "sort_stable": ("sort_first",),
}


def library_text(names: Iterable[str]) -> str:
    """Returns the definitions of functions, and of those that they call."""
    wanted = set(names)
    wanted |= {needed for name in wanted for needed in _NEEDS.get(name, ())}
    return "\n\n".join(text for name, text in LIBRARY.items() if name in wanted)
