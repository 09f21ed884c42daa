"""Ops that write to memory which they read as well: what comes of it depends on the order in which eager mode goes.

    x[:, 1:].copy_(x[:, :-1])       elements are read that have been written
    torch.mm(x, y, out=x)           so are they here
    x.add_(x[:, :1])

Eager refuses some of these, where it sees that the memory is one stretch; others have whatever result its kernels have.
A graph has no writes, so it would compute with the elements as they were. An op that goes element by element may read
the very tensor that it writes: each element is read before it is written.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ferrite_torch.diagnostics.origins import origins_of
from ferrite_torch.errors import Refused, located
from ferrite_torch.rewrites.aliased_writes import AUGMENTED, destinations, strided_fake
from ferrite_torch.sizes.overlaps import DataDependent, overlap, present_place
from ferrite_torch.torch_private.fake_tensors import storage_key
from ferrite_torch.torch_private.nodes import example_of, map_leaves, nodes_of, target_name
from ferrite_torch.torch_private.operators import computes_by_element
from ferrite_torch.torch_private.symbolic_shapes import is_known, present_value

_PROBLEM = (
    "a write to memory that the same op reads, so that the result depends on the order of elements. What to do: read "
    "from a clone(), or write into another tensor and copy that"
)


def refuse_overlapping_writes(module: torch.fx.GraphModule) -> None:
    """Checks that no op of a captured graph writes to memory that it reads elsewhere in the same op.

    Symbolic sizes are looked at as they are now.

    Raises:
        Refused: one does; it says where the program has the op. Eager may take it.
    """
    for node in nodes_of(module):
        targets = set(destinations(node))
        if targets and any(_is_read_while_written(node, *pair) for pair in _pairs(node, targets)):
            raise located(Refused(_PROBLEM), origins_of(node))


def _pairs(node: torch.fx.Node, targets: set[torch.fx.Node]) -> Iterator[tuple[Any, Any, bool]]:
    """Yields what a node writes to with each of its other operands; of lists, those at one position.

    And whether the op may do its work in place there: ``cumsum(x, 0, out=x)`` is ``x.cumsum_(0)``.
    """
    is_done_in_place = hasattr(torch.ops.aten, f"{target_name(node)}_")
    places: list[Any] = [*node.args, *(value for name, value in node.kwargs.items() if name != "out")]
    out = node.kwargs.get("out")
    written: list[Any] = [out] if out is not None else [value for value in places[:1] if _names(value, targets)]
    operands = places if out is not None else places[1:]
    if node.target is operator.setitem:
        operands = [value for value in operands[1:] if isinstance(value, torch.fx.Node)]
    for target in written:
        for position, operand in enumerate(operands):
            may_be_own = out is not None and position == 0 and is_done_in_place
            lists = [isinstance(value, (tuple, list)) for value in (target, operand)]
            if all(lists):
                yield from ((one, other, may_be_own) for one, other in zip(target, operand, strict=False))
            else:
                yield from ((one, other, may_be_own) for one in _listed(target) for other in _listed(operand))


def _names(value: Any, targets: set[torch.fx.Node]) -> bool:
    return any(isinstance(each, torch.fx.Node) and each in targets for each in _listed(value))


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else (value,)


def _is_read_while_written(node: torch.fx.Node, target: Any, operand: Any, may_be_own: bool) -> bool:  # noqa: FBT001
    if not isinstance(target, torch.fx.Node) or not isinstance(operand, torch.fx.Node):
        return False
    written, read = _written_part(node, target), strided_fake(operand)
    if written is None or read is None or storage_key(written) != storage_key(read):
        return False
    is_same = written.dtype is read.dtype and all(
        len(mine) == len(theirs) and all(is_known(a == b) for a, b in zip(mine, theirs, strict=True))
        for mine, theirs in zip(_geometry(written), _geometry(read), strict=True)
    )
    return not (is_same and (may_be_own or _goes_by_element(node))) and _overlap(written, read)


def _geometry(x: torch.Tensor) -> tuple[Sequence[Any], ...]:
    return x.shape, x.stride(), (x.storage_offset(),)


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether tensors of one storage share memory as they are now.

    Of those whose places depend on data it is not known: rows ``x[i]`` and ``x[j]`` are one or apart.
    """
    try:
        first, second = present_place(one), present_place(other)
    except DataDependent:
        return False
    return first is not None and second is not None and overlap(first, second)


def _written_part(node: torch.fx.Node, target: torch.fx.Node) -> torch.Tensor | None:
    """Returns the tensor that is written: what an assignment names of its target, where slices and numbers name it.

    None where numbers name it that depend on data: a row ``x[i]`` is the one that is read, or apart from it.
    """
    whole = strided_fake(target)
    if node.target is not operator.setitem or whole is None:
        return whole
    index = map_leaves(node.args[1], lambda leaf: example_of(leaf) if isinstance(leaf, torch.fx.Node) else leaf)
    parts = index if isinstance(index, tuple) else (index,)
    listed = [part for part in parts if isinstance(part, (torch.Tensor, list, bool))]
    if listed:
        return None if all(map(_is_number, listed)) else whole
    numbers: list[torch.SymInt] = []
    settled = map_leaves(parts, lambda leaf: _settled(leaf, numbers))
    slices = whole.dim() - example_of(target).dim()  # a batch's, which a vmap hides
    part = (*[slice(None)] * slices, *settled)
    return whole if any(present_value(number) is None for number in numbers) else whole[part]


def _is_number(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and part.dim() == 0 and part.dtype is not torch.bool


def _settled(leaf: Any, numbers: list[torch.SymInt]) -> Any:
    """Returns a part of an index with a symbolic number as it is now; notes the number."""
    if not isinstance(leaf, torch.SymInt):
        return leaf
    numbers.append(leaf)
    return present_value(leaf)


def _goes_by_element(node: torch.fx.Node) -> bool:
    name = target_name(node).partition(".")[0]
    return name in AUGMENTED or computes_by_element(name.removesuffix("_").removeprefix("_foreach_"))
