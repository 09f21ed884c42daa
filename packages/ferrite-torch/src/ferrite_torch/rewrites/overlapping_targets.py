"""Ops that write a part of a copy, where the elements of what they copy share memory.

    x = y.expand(4, 3)              stride 0: eager writes into x.clone(), whose elements lie apart
    x = y.as_strided((3, 3), (1, 1))        eager copies the memory: a write is seen in all elements that lie there

Tensors without data of torch 2.11 keep stride 0, and so do results that are laid out as they are. A lowering takes each
element for one of its own. So the first is cloned before the op, and the second becomes a write to what it lies in.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ferrite_torch.torch_private.operators import Overload
from ferrite_torch.torch_private.symbolic_shapes import is_known

aten = torch.ops.aten

Part = Callable[..., torch.Tensor]
"""From a tensor and the arguments of an op but its source to the view that the op writes to."""

PARTS: dict[Overload, Part] = {
    aten.select_scatter.default: aten.select.int,
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.diagonal_scatter.default: aten.diagonal.default,
    aten.as_strided_scatter.default: aten.as_strided.default,
}
"""The ops that write a part of a copy, with the view that is the part."""


def rules_for_overlapping_targets() -> Iterator[tuple[Overload, Callable[..., Any]]]:
    """Yields the ops that write a part of a copy, each with a decomposition that leaves other operands to the op."""
    for op, part in PARTS.items():
        yield op, _rule(op, part)


def _rule(op: Overload, part: Part) -> Callable[..., Any]:
    def decomposed(x: torch.Tensor, source: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if is_repeated(x):
            return op(x.clone(), source, *args, **kwargs)
        if lies_on_itself(x):
            written = part(x, *args, **kwargs)
            first = x.storage_offset()
            if is_known(written.storage_offset() >= first):
                positions = 1 + sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
                return written_in_memory(x, source, written, first, positions)
        return NotImplemented

    return decomposed


def is_repeated(x: torch.Tensor) -> bool:
    """Returns whether a tensor has a dim of several elements with stride 0, as an expanded one has."""
    dims = list(zip(x.shape, x.stride(), strict=True))
    if any(is_known(size == 0) for size, _ in dims):
        return False
    return any(is_known(step == 0) and is_known(size > 1) for size, step in dims)


def lies_on_itself(x: torch.Tensor) -> bool:
    """Returns whether elements of a tensor provably share memory: a step along one dim is some steps along another."""
    return _overlap(list(zip(x.shape, x.stride(), strict=True)))


def has_windows(x: torch.Tensor) -> bool:
    """Returns whether elements of a tensor provably share memory as windows (``unfold``) do, not only as repeated."""
    return _overlap([(size, step) for size, step in zip(x.shape, x.stride(), strict=True) if not is_known(step == 0)])


def _overlap(axes: list[tuple[Any, Any]]) -> bool:
    from ferrite_ir.language.graph import overlaps  # noqa: PLC0415  # not needed where graphs come from the store

    dims = [(size, step) for size, step in axes if is_known(size > 1)]
    if any(is_known(size == 0) for size, _ in axes):
        return False
    return overlaps(tuple(size for size, _ in axes), tuple(step for _, step in axes)) or any(
        _reaches(*inner, outer) for inner, (_, outer) in itertools.permutations(dims, 2)
    )


def _reaches(size: Any, step: Any, other: Any) -> bool:
    if is_known(step == 0):
        return True
    return is_known(step > 0) and is_known(other % step == 0) and is_known(other < size * step)


def written_in_memory(
    x: torch.Tensor, source: torch.Tensor, part: torch.Tensor, first: Any, positions: Any
) -> torch.Tensor:
    """Returns a copy of so many positions of a storage, seen as ``x``, with a source written to a part of ``x``.

    The positions begin at ``first``; ``part`` is the view of ``x`` that the source goes to.
    """
    memory = aten.as_strided.default(x, [positions], [1], first)
    written = aten.as_strided_scatter.default(
        memory.clone(), source.expand(part.shape), part.shape, part.stride(), part.storage_offset() - first
    )
    seen: torch.Tensor = aten.as_strided.default(written, x.shape, x.stride(), x.storage_offset() - first)
    return seen
