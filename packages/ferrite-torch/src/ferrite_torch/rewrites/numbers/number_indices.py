"""Reads and writes at positions that tensors of one element give, ``x[i]`` and ``x[i] = y``, as ones that tensors give.

Eager mode reads the number of such an index on the host and takes a view. A graph does not know the number while it is
captured, so AOTAutograd refuses it. Indexed by a tensor of one axis, ``x`` gives a copy of the same elements, which
nothing can tell from the view as long as it is neither written nor returned, and ``x`` is not written before it was
last read. A write goes to the same elements in both ways.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch.fx import Graph, GraphModule, Node

from ferrite_torch.rewrites.aliased_writes import AUGMENTED, destinations
from ferrite_torch.torch_private.fake_tensors import share_storage
from ferrite_torch.torch_private.nodes import example_of, target_name
from ferrite_torch.torch_private.operators import HigherOrderOp

_WHOLE = slice(None)
_OF_RESULTS = ("example_value", "val", "unbacked_bindings")
"""What is noted of a node's result."""
_NUMBERS = frozenset((torch.int8, torch.int16, torch.int32, torch.int64))
"""Types of which a tensor of one element is a number to eager's indexing; bools and bytes are masks there."""


def index_by_tensors(module: GraphModule) -> None:
    """Makes positions that a dynamo graph reads on the host, of tensors of one element, ones that its kernels read.

    A graph in which one of them has to stay is left alone: it runs eagerly as a whole.
    """
    mapped = set(_mapped(module))
    parts = [each for each in module.modules() if isinstance(each, GraphModule) and each not in mapped]
    found = [(part.graph, node) for part in parts for node in part.graph.nodes if _numbers(node)]
    if not all(_may_change(graph, node) for graph, node in found):
        return
    for graph, node in found:
        if node.target is operator.setitem:
            _write_by_tensors(graph, node)
        else:
            _read_by_tensors(graph, node)
    for part in parts if found else ():
        part.recompile()


def _mapped(module: GraphModule) -> Iterator[torch.nn.Module]:
    """Yields the functions of a score, or a mask, that attention is given: their numbers are those of whole axes."""
    for part in module.modules():
        for node in part.graph.nodes if isinstance(part, GraphModule) else ():
            if node.op == "get_attr" and any("flex_attention" in target_name(user) for user in node.users):
                held = operator.attrgetter(node.target)(part)
                yield from held.modules() if isinstance(held, GraphModule) else ()


def _may_change(graph: Graph, node: Node) -> bool:
    if node.target is operator.setitem:
        return _has_numbers_alone(node)
    return _is_written_back(node) or _is_as_good_as_a_copy(graph, node)


def _numbers(node: Node) -> list[tuple[int, Node]]:
    """Returns which items of an index are tensors of one element and stand for numbers, with their positions."""
    if node.target not in (operator.getitem, operator.setitem):
        return []
    x = _tensor(node.args[0])
    if x is None:
        return []
    items = [(entry, item) for entry, item in enumerate(_index(node)) if isinstance(item, Node)]
    read = [(entry, item, _tensor(item)) for entry, item in items]
    return [
        (entry, item)
        for entry, item, number in read
        if number is not None and number.dim() == 0 and number.dtype in _NUMBERS and number.device == x.device
    ]


def _index(node: Node) -> Sequence[Any]:
    index = node.args[1]
    return index if isinstance(index, tuple) else (index,)


def _tensor(node: Any) -> torch.Tensor | None:
    example = example_of(node) if isinstance(node, Node) else None
    return example if isinstance(example, torch.Tensor) and example.layout is torch.strided else None


def _is_as_good_as_a_copy(graph: Graph, node: Node) -> bool:
    """Returns whether nobody can tell a view from a copy: it is not written, nor what it is of while it is read.

    It may be returned if nothing else that is returned or given shares its memory, and a copy lies as it does.
    """
    whole, order = cast("torch.Tensor", _tensor(node.args[0])), list(graph.nodes)
    views, stack = {node}, [node]
    while stack:
        for user in stack.pop().users:
            if _takes_functions(user):
                return False
            changed = set(destinations(user))  # is what an in-place op gives back
            if user not in views and user.op != "output" and _shares(user, whole) and (changed & views or not changed):
                views.add(user)
                stack.append(user)
    readers = {user for view in views for user in view.users}
    if any(reader.op == "output" for reader in readers) and not _is_apart(graph, node, views, whole):
        return False
    start, last = order.index(node), max((order.index(reader) for reader in readers), default=0)
    until = last if _reads_before_it_writes(order[last], views) else last + 1
    return not any(_shares(target, whole) for each in order[start:until] for target in destinations(each))


def _shares(node: Node, tensor: torch.Tensor) -> bool:
    return any(share_storage(leaf, tensor) for leaf in _leaves(example_of(node)))


def _is_apart(graph: Graph, node: Node, views: set[Node], whole: torch.Tensor) -> bool:
    """Returns whether a view and views of it are all that a caller sees of a storage, and a copy has its strides."""
    (output,) = graph.find_nodes(op="output")
    seen = [each for each in output.all_input_nodes if each not in views]
    seen += [each for each in graph.nodes if each.op in ("placeholder", "get_attr")]
    view = _tensor(node)
    is_dense = view is not None and view.is_contiguous()
    return is_dense and not any(_shares(each, whole) for each in seen)


def _reads_before_it_writes(node: Node, views: set[Node]) -> bool:
    """Returns whether a write takes views as what is written alone, element by element."""
    (target, *_), operands = node.args or (None,), [each for each in node.args[1:] if each in views]
    if target in views or target_name(node) not in AUGMENTED or not operands:
        return False
    if node.target is operator.setitem:
        return True
    shapes = {tuple(leaf.shape) for each in (target, *operands) for leaf in _leaves(example_of(cast("Node", each)))}
    return len(shapes) == 1


def _takes_functions(node: Node) -> bool:
    """Returns whether a node may call other graphs, in which what it is given is seen under other names."""
    return isinstance(node.target, HigherOrderOp) or node.op == "call_module"


def _leaves(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _leaves(each)


def _is_written_back(node: Node) -> bool:
    """Returns whether a view is what ``x[i] += y`` reads: changed in place once, and at once written where it is of."""
    (changed, *others) = node.users
    if others or target_name(changed) not in AUGMENTED or changed.target is operator.setitem:
        return False
    if changed.args[0] is not node or changed.args[1] is node or len(changed.users) != 1:
        return False
    (written,) = changed.users
    return written is changed.next and written.target is operator.setitem and written.args == (*node.args, changed)


def _read_by_tensors(graph: Graph, node: Node) -> None:
    """Takes the elements along each axis that a number gives a position of, as a copy in which that position is 0."""
    index, x = list(_index(node)), cast("Node", node.args[0])
    rank = cast("torch.Tensor", _tensor(x)).dim()
    with graph.inserting_before(node):
        for entry, number in _numbers(node):
            axis = _axis(index, entry, rank)
            made = _with_axis(graph, node, number)
            x = _beside(graph.call_function(operator.getitem, (x, (*[_WHOLE] * axis, made))), node)
            index[entry] = 0
    node.args = (x, tuple(index))


def _axis(index: Sequence[Any], entry: int, rank: int) -> int:
    """Returns the axis that an item of an index is about."""
    if Ellipsis in [item for item in index[:entry] if not isinstance(item, Node)]:
        return rank - sum(map(_width, index[entry:]))
    return sum(map(_width, index[:entry]))


def _width(item: Any) -> int:
    """Returns how many axes an item of an index is about; a mask has as many as it replaces."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    tensor = _tensor(item)
    return 1 if tensor is None or tensor.dtype not in (torch.bool, torch.uint8) else tensor.dim()


def _has_numbers_alone(node: Node) -> bool:
    """Returns whether no item of an index is a tensor but numbers, and what is written is a number or a tensor."""
    numbers, value = dict(_numbers(node)), node.args[2]
    others = [item for entry, item in enumerate(_index(node)) if entry not in numbers]
    if any(isinstance(item, (Node, bool, list)) for item in others):
        return False
    return not isinstance(value, Node) or _tensor(value) is not None


def _write_by_tensors(graph: Graph, node: Node) -> None:
    """Gives what is written the axis that the indices have together, where it has axes before that."""
    x, index, value, numbers = node.args[0], _index(node), node.args[2], dict(_numbers(node))
    target, given = cast("torch.Tensor", _tensor(x)), _tensor(value)
    with graph.inserting_before(node):
        if given is not None:
            behind = _axes_behind(index, numbers, target.dim())
            if given.dtype is not target.dtype:
                value = _beside(graph.call_method("to", (value, target.dtype)), node)
            if given.dim() > behind:
                value = _beside(graph.call_method("unsqueeze", (value, given.dim() - behind)), node)
        entries = [
            _with_axis(graph, node, numbers[entry]) if entry in numbers else item for entry, item in enumerate(index)
        ]
    node.args = (x, tuple(entries), value)


def _axes_behind(index: Sequence[Any], numbers: dict[int, Node], rank: int) -> int:
    """Returns how many axes of what is indexed are behind that of the tensors: where these meet, else all."""
    kept = [(item, entry in numbers) for entry, item in enumerate(index) if entry in numbers or not _is_int(item)]
    spread = rank - sum(map(_width, index))  # the axes of an ellipsis, or those that are not mentioned
    widths = [0 if is_number else spread if item is Ellipsis else 1 for item, is_number in kept]
    widths += [] if any(item is Ellipsis for item, is_number in kept if not is_number) else [spread]
    entries = [position for position, (_, is_number) in enumerate(kept) if is_number]
    between = widths[entries[0] : entries[-1]]
    is_together = entries[-1] - entries[0] == len(entries) - 1 or not any(between)
    return sum(widths[entries[-1] :]) if is_together else sum(widths)


def _is_int(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _with_axis(graph: Graph, node: Node, number: Node) -> Node:
    """Returns a number as positions along one axis, of the type that indices have."""
    long = _beside(graph.call_method("long", (number,)), node)
    return _beside(graph.call_method("unsqueeze", (long, 0)), node)


def _beside(made: Node, node: Node) -> Node:
    """Returns a new node that comes from the line of another one."""
    made.meta = {name: value for name, value in node.meta.items() if name not in _OF_RESULTS}
    return made
