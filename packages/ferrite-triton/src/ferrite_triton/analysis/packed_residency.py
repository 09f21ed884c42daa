"""Packed residency: which loads of grid reductions and register norms wait in registers, 16-bit elements two in each.

This only says which; `tile.passes.packed_residency` rewrites the tile program for it. See decision 0022.
"""

from __future__ import annotations

from ferrite_ir.language.graph import Reduction, bodies_of
from ferrite_ir.language.scalar import Scalar
from ferrite_scheduler.model.annotations import HALF_BYTES
from ferrite_scheduler.model.forms import GridReduction, RegisterNorm
from ferrite_triton.analysis.flat import FlatKernel, memory_loads, reads_along_reduction


def held_16_bit_values(flat: FlatKernel) -> tuple[Scalar, ...]:
    """Returns the loads of elements of two bytes that programs hold, in the order of their use."""
    return tuple(load for load in held_loads(flat) if load.dtype.bytes == HALF_BYTES)


def holds_only_16_bit(flat: FlatKernel) -> bool:
    """Returns whether all elements that programs hold have two bytes."""
    return all(load.dtype.bytes == HALF_BYTES for load in held_loads(flat))


def rounds_all_stores(flat: FlatKernel) -> bool:
    """Returns whether everything that is stored is rounded to two bytes, and made of elements that wait packed."""
    stored = [flat.param_of(name).dtype for name in flat.kernel.stored]
    return bool(held_16_bit_values(flat)) and all(dtype.is_narrow_float for dtype in stored)


def held_loads(flat: FlatKernel) -> tuple[Scalar, ...]:
    """Returns the loads of elements that are reduced, in a grid reduction or a register norm.

    What is read for the results alone is read after the grid barrier, and does not wait.
    """
    if not isinstance(flat.kernel.form, GridReduction | RegisterNorm):
        return ()
    reductions = [definition for definition in flat.definitions if isinstance(definition, Reduction)]
    loads = memory_loads(flat, tuple(body for reduction in reductions for body in bodies_of(reduction)))
    return tuple(load for load in loads if reads_along_reduction(flat, load))
