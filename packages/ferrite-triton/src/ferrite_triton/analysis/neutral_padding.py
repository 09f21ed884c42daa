"""Neutral padding: sums over rows of symbolic length need no mask where the operand is zero past the end.

Of a row of a known length the compiler knows which lanes lie past the end. Of others none: a sum would choose between
its operand and zero for each element, although a masked load may as well give zero for nothing.
"""

from __future__ import annotations

import math

from ferrite_ir.language.dtypes import BOOL
from ferrite_ir.language.graph import Loop, Reduction
from ferrite_ir.language.ops import CONVERSIONS
from ferrite_ir.language.scalar import Scalar, postorder
from ferrite_ir.language.sizes import is_static
from ferrite_triton.analysis.flat import FlatKernel, memory_loads, reads_along_reduction

_KEEPING = frozenset(("add", "sub", "neg", "abs", *CONVERSIONS, "relu", "maximum", "minimum"))
"""Operations that make zero of zeros."""


def padded_sums(flat: FlatKernel) -> dict[str, frozenset[Scalar]]:
    """Returns such sums, by the name of their result, each with the loads that have to give zero past the end."""
    axis = flat.space.reduction
    if axis is None or is_static(axis.size) or not axis.masked or not flat.space.reduces_tile:
        return {}
    return {
        definition.results[0].name: frozenset(memory_loads(flat, definition.bodies))
        for definition in flat.definitions
        if isinstance(definition, Reduction)
        and definition.combine == "sum"
        and _is_zero_padded(flat, definition.bodies[0])
    }


def zero_padded_loads(flat: FlatKernel, root: Scalar) -> frozenset[Scalar] | None:
    """Returns the loads that have to give zero past the end of the reduction axis for a value to be zero there.

    None where that does not make it zero.
    """
    return frozenset(memory_loads(flat, (root,))) if _is_zero_padded(flat, root) else None


def _is_zero_padded(flat: FlatKernel, root: Scalar) -> bool:
    """Returns whether a value is zero where all loads along the reduction axis are."""
    zeros: set[Scalar] = set()
    for node in postorder((root,)):
        if _is_zero(flat, node, zeros):
            zeros.add(node)
    return root in zeros


def _is_zero(flat: FlatKernel, node: Scalar, zeros: set[Scalar]) -> bool:
    match node.op:
        case "load":
            definition, position = flat.producers.get(node.source, (None, 0))
            if definition is None:
                return node.dtype is not BOOL and reads_along_reduction(flat, node)
            return isinstance(definition, Loop) and _is_zero_padded(flat, definition.bodies[position])
        case "const":
            return bool(node.value == 0)
        case "masked":
            return node.args[1] in zeros and node.args[2] in zeros
        case "mul":
            one, other = node.args
            return (one in zeros or other in zeros) and all(part in zeros or _is_finite(part) for part in node.args)
    return node.op in _KEEPING and all(argument in zeros for argument in node.args)


def _is_finite(node: Scalar) -> bool:
    return node.op == "const" and math.isfinite(node.value)
