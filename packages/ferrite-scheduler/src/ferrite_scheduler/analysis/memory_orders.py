"""The orders in which the dims of pointwise loops lie in memory, outermost first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ferrite_ir.language.graph import Loop, TensorType
from ferrite_ir.language.index import Dim
from ferrite_ir.language.scalar import Scalar, postorder
from ferrite_ir.language.sizes import hint


def in_memory_order(dims: Sequence[Dim], tensor: TensorType) -> tuple[Dim, ...]:
    """Returns the dims of a tensor from the outermost to the innermost in memory, those of extent 1 left out."""
    ordered = sorted(zip(dims, tensor.strides, strict=True), key=lambda pair: -hint(pair[1]))
    return tuple(dim for dim, _ in ordered if dim.size != 1)


def operand_orders(loop: Loop, types: Mapping[str, TensorType]) -> tuple[tuple[Dim, ...], ...]:
    """Returns the different orders in which operands of a loop's size lie that it reads point by point.

    Operands of fewer dims, such as a scale of each channel, have none, nor do those that ``types`` leaves out.
    """
    whole = {dim for dim in loop.dims if dim.size != 1}
    orders = [
        in_memory_order(read, types[node.source])
        for node in postorder(loop.bodies)
        if node.op == "load" and node.source in types and (read := plain_dims(node)) and whole <= set(read)
    ]
    return tuple(dict.fromkeys(orders))


def plain_dims(load: Scalar) -> tuple[Dim, ...]:
    """Returns the dims by which a load goes through its tensor, none if an index is anything else, or one repeats."""
    found = tuple(dim for index in load.indices for dim in index.dims if index is dim.index)
    return found if len(found) == len(load.indices) == len(set(found)) else ()
