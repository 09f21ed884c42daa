"""Elements of two bytes that wait as they came, two in a register, in kernels whose programs share rows."""

from __future__ import annotations

from ferrite_ir.graph import bodies_of
from ferrite_ir.scalar import Scalar

from .flat import FlatKernel, memory_loads
from .rows import varies_along_fold

HALF_BYTES = 2


def held_halves(flat: FlatKernel) -> tuple[Scalar, ...]:
    """Returns the loads of elements of two bytes that programs hold, in the order of their use."""
    if not flat.kernel.points:
        return ()
    loads = memory_loads(flat, tuple(body for definition in flat.definitions for body in bodies_of(definition)))
    return tuple(load for load in loads if load.dtype.bytes == HALF_BYTES and varies_along_fold(load.indices))
