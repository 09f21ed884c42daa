"""Loads whose blocks a tensor descriptor can describe: what GPUs from sm_90 on copy as a whole (TMA).

A descriptor holds where a matrix begins, how many elements it has along each axis, and how far neighbours along an axis
lie apart. One thread then asks for a block by the position at which it begins; no thread computes addresses, none has
registers for elements on their way. The unit asks for this: rows of elements that lie next to each other, everything
else in steps of 16 bytes, from an address that is a multiple of 16 bytes. It gives zero for what lies outside, which a
mask along the end of an axis may give as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ferrite_ir.language.dtypes import BOOL
from ferrite_ir.language.graph import Contract
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import is_static
from ferrite_triton.analysis.contraction_space import LEFT, RIGHT
from ferrite_triton.analysis.flat import FlatKernel, computed_nodes, memory_loads
from ferrite_triton.analysis.lowering_policy import LOWERING
from ferrite_triton.analysis.rows import step_along
from ferrite_triton.analysis.space import flat_dim

UNIT = 16
"""Bytes of which addresses and steps between rows are multiples."""
MOST_POSITIONS = 2**31 - 1
"""Positions along an axis are counted in 32 bits."""


@dataclass(frozen=True, slots=True)
class DescribedBlock:
    """What a descriptor says of the matrix that a load reads blocks of.

    Attributes:
        param: the parameter, by its name in the text.
        first: elements before the first one of the matrix.
        axes: the axes of the kernel along which it lies, the one of neighbouring elements last.
        extents: its elements along each of them.
        steps: elements between neighbours along each of them.
    """

    param: str
    first: int
    axes: tuple[str, ...]
    extents: tuple[int, ...]
    steps: tuple[int, ...]


def described_blocks(flat: FlatKernel) -> dict[Scalar, DescribedBlock]:
    """Returns the loads of a kernel's factors that can be made through descriptors, with what these say.

    There are none where a size is symbolic: how much memory the descriptors take has to be known. Nor are there any
    where little is computed.
    """
    if not all(is_static(axis.size) and int(axis.size) <= MOST_POSITIONS for axis in flat.space.axes):
        return {}
    if 2 * prod(int(axis.size) for axis in flat.space.axes if axis.has_points) < LOWERING.described_operations:
        return {}
    found: dict[Scalar, DescribedBlock] = {}
    for definition in flat.definitions:
        if isinstance(definition, Contract):
            for root, order in ((definition.left, LEFT), (definition.right, RIGHT)):
                found |= _described(flat, root, order)
    return found


def _described(flat: FlatKernel, root: Scalar, order: tuple[str, str]) -> dict[Scalar, DescribedBlock]:
    if any(node.op == "masked" for node in computed_nodes(flat, (root,))):
        return {}  # some elements may be there and are not to be read
    blocks = {load: _block(flat, load, order) for load in memory_loads(flat, (root,))}
    return {load: block for load, block in blocks.items() if block is not None}


def _block(flat: FlatKernel, load: Scalar, order: tuple[str, str]) -> DescribedBlock | None:
    """Returns what a descriptor says of the matrix that a load reads; None where none can describe it."""
    param, rest = flat.param_of(load.source), flat.offset(load.source, load.indices)
    if param.param.host_scalar or param.dtype is BOOL or rest.is_indirect:
        return None
    steps: dict[str, int] = {}
    extents: dict[str, int] = {}
    for name in ("z", *order):
        axis = flat.space.axis(name)
        step = 0 if axis is None else step_along(rest, name)
        if axis is None or not isinstance(step, int) or step <= 0:
            continue
        steps[name], extents[name] = step, int(axis.size)
        rest -= flat_dim(axis).index * step
    if not rest.is_constant or not set(order) <= set(steps):
        return None
    # A step of one along the batch, or along both axes of a tile, is no multiple of the unit.
    axes = sorted(steps, key=lambda name: (steps[name] == 1 and name in order, name != "z"))
    first = int(rest.const)
    apart = [first, *(steps[name] for name in axes[:-1])]
    if steps[axes[-1]] != 1 or any(elements * param.dtype.bytes % UNIT for elements in apart):
        return None
    return DescribedBlock(
        param.text, first, tuple(axes), tuple(extents[name] for name in axes), tuple(steps[name] for name in axes)
    )
