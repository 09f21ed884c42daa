"""What a max pooling saves for its backward: where in its window each maximum was, in one byte.

torch saves the int64 position in the plane, and the input for its shape: eight bytes per window and the largest
activation of many a convolutional network.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

_aten = torch.ops.aten
_POOL = _aten.max_pool2d_with_indices.default
_BACKWARD = _aten.max_pool2d_with_indices_backward.default
_INDICES = 7
"""Position of the indices among the arguments of the backward op."""


def save_pool_offsets(graph: torch.fx.Graph) -> None:
    """Makes each max pooling of a joint graph that only its own backward asks for positions save offsets instead.

    The backward computes the positions from them again. Windows of more than 128 positions are left alone.
    """
    for node in graph.find_nodes(op="call_function", target=_BACKWARD):
        indices: Any = node.args[_INDICES]
        if indices.target is operator.getitem and indices.args[0].target is _POOL and _area(node) <= 128:
            _save_offsets(graph, node, indices)


def _area(node: torch.fx.Node) -> int:
    rows, columns = _pair(node.args[2])
    return rows * columns


def _pair(value: Any) -> tuple[int, int]:
    given = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    return (int(given[0]), int(given[-1]))


def _save_offsets(graph: torch.fx.Graph, node: torch.fx.Node, indices: torch.fx.Node) -> None:
    given: Any = node.args
    _, pooled, kernel, stride, padding, dilation, *_ = given
    image, positions = pooled.meta["val"], indices.meta["val"]
    steps = stride or kernel
    with graph.inserting_before(indices.next):
        # The backward gets symbolic sizes as numbers: it must not keep a tensor for its shape.
        shape_of_image = _numbers(graph, pooled, _aten.sym_size.int, image.shape)
        strides_of_image = _numbers(graph, pooled, _aten.sym_stride.int, image.stride())
        counts = _numbers(graph, indices, _aten.sym_size.int, positions.shape)
    width = shape_of_image[-1]
    columns = _pair(kernel)[1]
    spacing = _pair(dilation)

    def starts() -> list[torch.fx.Node]:
        """Returns the row and the column at which each window starts, the padding counted as negative."""
        found = []
        for axis, (step, pad) in enumerate(zip(_pair(steps), _pair(padding), strict=True)):
            count = counts[axis - 2]
            number = _call(graph, _aten.arange.default, count, dtype=torch.int64, device=positions.device)
            start = _call(graph, _aten.sub.Tensor, _call(graph, _aten.mul.Tensor, number, step), pad)
            found.append(_call(graph, _aten.view.default, start, [count, 1] if axis == 0 else [count]))
        return found

    with graph.inserting_before(_behind(indices, counts)):
        row = _quotient(graph, indices, width)
        column = _call(graph, _aten.remainder.Scalar, indices, width)
        inside = [
            _quotient(graph, _call(graph, _aten.sub.Tensor, position, start), space)
            for position, start, space in zip((row, column), starts(), spacing, strict=True)
        ]
        flat = _call(graph, _aten.add.Tensor, _call(graph, _aten.mul.Tensor, inside[0], columns), inside[1])
        saved = _call(graph, _aten._to_copy.default, flat, dtype=torch.int8)  # noqa: SLF001  # an op's name
    with graph.inserting_before(node):
        wide = _call(graph, _aten._to_copy.default, saved, dtype=torch.int64)  # noqa: SLF001
        parts = (_quotient(graph, wide, columns), _call(graph, _aten.remainder.Scalar, wide, columns))
        row, column = (
            _call(graph, _aten.add.Tensor, _call(graph, _aten.mul.Tensor, part, space), start)
            for part, start, space in zip(parts, starts(), spacing, strict=True)
        )
        again = _call(graph, _aten.add.Tensor, _call(graph, _aten.mul.Tensor, row, width), column)
        shape = _call(
            graph,
            _aten.empty_strided.default,
            shape_of_image,
            strides_of_image,
            dtype=image.dtype,
            device=image.device,
        )
    node.replace_input_with(indices, again)
    node.update_arg(1, shape)  # only its shape and layout are read


def _numbers(graph: torch.fx.Graph, tensor: torch.fx.Node, op: Any, sizes: Sequence[Any]) -> list[Any]:
    """Returns sizes or strides of a tensor: integers as they are, symbolic ones as nodes that ask for them."""
    return [size if isinstance(size, int) else _call(graph, op, tensor, axis) for axis, size in enumerate(sizes)]


def _behind(node: torch.fx.Node, others: Sequence[Any]) -> torch.fx.Node:
    """Returns the position behind a node and behind all nodes among some numbers, which follow it."""
    following = node.next
    numbers = {other for other in others if isinstance(other, torch.fx.Node)}
    while numbers:
        numbers.discard(following)
        following = following.next
    return following


def _quotient(graph: torch.fx.Graph, value: torch.fx.Node, number: Any) -> torch.fx.Node:
    if number == 1:
        return value
    return _call(graph, _aten.div.Tensor_mode, value, number, rounding_mode="trunc")


def _call(graph: torch.fx.Graph, op: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
    """Returns a new call, with its fake result."""
    node = graph.call_function(op, args, kwargs)
    fakes: Any = torch.fx.node.map_arg((args, kwargs), lambda operand: operand.meta["val"])
    node.meta["val"] = op(*fakes[0], **fakes[1])
    return node
