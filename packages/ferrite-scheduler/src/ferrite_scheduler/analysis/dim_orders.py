"""Memory orders: in which order the dims of pointwise loops and of their operands lie in memory, outermost first.

Facts only. The layout of a value that a kernel stores is chosen by `rewrites.intermediate_layouts`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ferrite_ir.language.graph import Loop, Reduction, TensorType, loads_of
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


def is_in_one_piece(reduction: Reduction, types: Mapping[str, TensorType], lasting: Collection[str]) -> bool:
    """Returns whether a reduction of everything reads nothing but tensors in memory, all of each, in order.

    Args:
        reduction: any.
        types: of what it reads.
        lasting: the tensors that are in memory.
    """
    loads = loads_of(reduction)
    own = reduction.reduction_dims
    return bool(loads) and not reduction.dims and all(_lies_in_order(load, own, types, lasting) for load in loads)


def _lies_in_order(
    load: Scalar, dims: tuple[Dim, ...], types: Mapping[str, TensorType], lasting: Collection[str]
) -> bool:
    """Returns whether a load reads each element of a tensor without gaps that stays in memory, in the order of both."""
    tensor, expected = types[load.source], 1
    if load.source not in lasting or load.indices != tuple(dim.index for dim in dims):
        return False
    for dim, size, stride in zip(reversed(dims), reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if dim.size != size or (size != 1 and stride != expected):
            return False
        expected *= int(hint(size))
    return True
