"""Views by strides (``as_strided``), and where in memory they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ferrite_ir.language.sizes import hint
from ferrite_torch.sizes.symbolic_sizes import size_of
from ferrite_torch.torch_private.nodes import target_name


def is_inside(node: torch.fx.Node) -> bool:
    """Returns whether the places of a view by strides lie among those of its operand, in the call at hand.

    That they lie in its storage is checked for every call, by a guard of `validation.indexing`.
    """
    found: Any = torch.fx.node.map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
    (fake, *given), kwargs = found
    size, stride, *rest = given[1:] if target_name(node).startswith("as_strided_scatter") else given
    offset = rest[0] if rest else kwargs.get("storage_offset")
    own = fake.storage_offset()
    start = 0 if offset is None else hint(size_of(offset)) - hint(size_of(own))
    reach = start + _span(size, stride)
    return start >= 0 and reach <= _span(fake.shape, fake.stride())


def _span(shape: Sequence[Any], strides: Sequence[Any]) -> int:
    """Returns the distance from the first place of a strided tensor to its last, in the call at hand."""
    pairs = [(hint(size_of(size)), hint(size_of(step))) for size, step in zip(shape, strides, strict=True)]
    return sum(max(size - 1, 0) * step for size, step in pairs)
