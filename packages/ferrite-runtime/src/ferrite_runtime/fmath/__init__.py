"""Device functions for kernels: one name per function, on a GPU and in Triton's interpreter.

Everything here is a ``@triton.jit`` function over float32 and float64 tiles (integer helpers and combines excepted).
"""

from ferrite_runtime.fmath.atomics import atomic_max_nan, atomic_min_nan, atomic_mul
from ferrite_runtime.fmath.combines import (
    all_,
    any_,
    argmax_nan,
    argmin_nan,
    logaddexp,
    maximum_nan,
    minimum_nan,
    online_softmax,
    prod,
    welford,
    xor,
)
from ferrite_runtime.fmath.dependent_launch import pdl_wait
from ferrite_runtime.fmath.elementary import *
from ferrite_runtime.fmath.grid_sync import (
    grid_barrier,
    in_branch,
    opaque_floats,
    opaque_value,
    publish_state,
    published_states,
)
from ferrite_runtime.fmath.group_moments import (
    epoch_sign,
    moments_of_columns,
    of_columns,
    publish_groups,
    sums_apart,
    whole_groups,
)
from ferrite_runtime.fmath.incomplete_gamma import igamma, igammac
from ferrite_runtime.fmath.integers import (
    equal_neighbours,
    floordiv,
    floormod,
    gcd,
    magnitude_short,
    negative_short,
    truncdiv,
)
from ferrite_runtime.fmath.look_back import (
    part_epoch,
    publish_part,
    sum_before,
    sums_of_four,
    take_ticket,
    ticket_in_order,
)
from ferrite_runtime.fmath.machine import require
from ferrite_runtime.fmath.polynomials import (
    chebyshev_t,
    chebyshev_u,
    chebyshev_v,
    chebyshev_w,
    hermite_h,
    hermite_he,
    laguerre_l,
    legendre_p,
)
from ferrite_runtime.fmath.prefetch import prefetch, prefetch_bytes, sectors
from ferrite_runtime.fmath.products import (
    add_dot,
    add_dot_cut_off,
    add_dot_of_parts,
    dot_in_parts,
    sum_of_parts,
    to_tf32,
)
from ferrite_runtime.fmath.quotients import (
    divide_by,
    divisor_scale,
    quotient,
    reciprocal,
    rounded_inverse,
    row_quotient,
    share,
)
from ferrite_runtime.fmath.row_bins import bin_rows, sort_rows
from ferrite_runtime.fmath.row_per_thread import load_rows, opaque_indices
from ferrite_runtime.fmath.segmented_reductions import reduce_segments
from ferrite_runtime.fmath.segments import add_segments, maximum_segments, minimum_segments
from ferrite_runtime.fmath.sorting import sort_first, sort_stable
from ferrite_runtime.fmath.special import airy_ai, digamma, i0e, i1e, j0, j1, k0, k0e, k1, k1e, ndtri, y0, y1, zeta
