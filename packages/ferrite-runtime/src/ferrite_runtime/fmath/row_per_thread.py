"""Row per thread: loads of short rows of which each thread gets one, as device functions; see `fmath`.

The compiler gives neighbouring elements to neighbouring threads, so of a tile of rows a thread has a few elements of
each. Where it cannot tell which elements are neighbours it goes by the order of the tile's dims: up to Triton 3.6 the
first dim is spread over threads, from 3.7 on the last one.
"""

from __future__ import annotations

import triton
import triton.language as tl

_FIRST_DIM_UNTIL = (3, 6)
_SPREADS_LAST_DIM = tl.constexpr(tuple(map(int, triton.__version__.split(".")[:2])) > _FIRST_DIM_UNTIL)


@triton.jit
def opaque_indices(positions):
    """Returns positions, none of them negative, that the compiler does not know to be neighbours.

    It follows them through sums and products, not through absolute values. What they are it knows still.
    """
    return tl.abs(positions)


@triton.jit
def load_rows(pointer, mask, other: tl.constexpr, eviction_policy: tl.constexpr):
    """Returns what lies at pointers ``[rows, elements]``, a row in one thread each.

    Args:
        pointer: of elements whose positions `opaque_indices` has made opaque.
        mask: which of them exist.
        other: a number in place of those that do not, or None, as for ``tl.load``.
        eviction_policy: of the cache, likewise.
    """
    if _SPREADS_LAST_DIM:
        return tl.trans(tl.load(tl.trans(pointer), tl.trans(mask), other=other, eviction_policy=eviction_policy))
    return tl.load(pointer, mask, other=other, eviction_policy=eviction_policy)
