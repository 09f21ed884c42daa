"""Device functions for kernels: one name per function, on a GPU and in Triton's interpreter.

Everything here is a ``@triton.jit`` function over float32 and float64 tiles (integer helpers and combines excepted).
"""

from ferrite_runtime.fmath.atomics import atomic_max_nan, atomic_min_nan, atomic_mul
from ferrite_runtime.fmath.combined_rows import combine_rows
from ferrite_runtime.fmath.cooperation import (
    as_it_came,
    floats_as_they_came,
    meet,
    publish_state,
    published_states,
)
from ferrite_runtime.fmath.elementary import *
from ferrite_runtime.fmath.following import follow
from ferrite_runtime.fmath.held_groups import (
    moments_of_columns,
    of_columns,
    publish_groups,
    sign_of_launch,
    sums_apart,
    whole_groups,
)
from ferrite_runtime.fmath.incomplete_gamma import igamma, igammac
from ferrite_runtime.fmath.look_back import (
    draw_part,
    mark_of_part,
    part_in_order,
    publish_part,
    sum_before,
    sums_of_four,
)
from ferrite_runtime.fmath.number_theory import gcd
from ferrite_runtime.fmath.own_rows import hide, load_rows
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
from ferrite_runtime.fmath.products import add_dot, dot_in_parts, sum_of_parts
from ferrite_runtime.fmath.row_lists import list_rows, sort_rows
from ferrite_runtime.fmath.runs import add_runs, maximum_runs, minimum_runs
from ferrite_runtime.fmath.sorting import sort_first, sort_stable
from ferrite_runtime.fmath.special import airy_ai, j0, j1, k0, k0e, k1, k1e, ndtri, y0, y1, zeta
