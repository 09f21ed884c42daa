"""Writes in place that keep the layout of what they write to.

AOTAutograd turns a write in place into a new value by the op that returns one, and that lies as *its* kernel lays it
out: ``x.masked_fill_(…)`` leaves a transposed ``x`` transposed, ``x.masked_fill(…)`` is row-major. Readers of memory,
such as ``as_strided`` and views in another type, would then see other elements than in eager mode, and results have
other strides. So where the two differ, the new value is copied into the layout of the old one; the copy fuses with what
makes it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from ferrite_torch.torch_private.operators import Overload, schema_of
from ferrite_torch.torch_private.symbolic_shapes import is_known

_UNTOUCHED = frozenset(("aten::copy_", "aten::zero_", "aten::fill_", "aten::set_", "aten::resize_", "aten::resize_as_"))
"""Ops in place whose new values always lie as the old ones, and those that give a tensor another layout."""


def called_in_layout(op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns what an op in place returns, with its layout kept; NotImplemented for a call that keeps it anyway."""
    returning = _returning(op)
    if returning is None or not args or not isinstance(args[0], torch.Tensor):
        return NotImplemented
    written = args[0]
    if written.layout is not torch.strided or written.is_contiguous() or not is_dense(written):
        return NotImplemented
    value = returning(*args, **kwargs)
    is_narrowed = value.dtype is not written.dtype and not value.dtype.is_floating_point  # sums of small integers
    if (value.dtype is not written.dtype and not is_narrowed) or value.dim() != written.dim():
        return NotImplemented
    if all(is_known(a == b) for a, b in zip(value.stride(), written.stride(), strict=True)):
        return NotImplemented
    return torch.ops.aten.copy_.default(written, value)


@lru_cache(maxsize=1024)
def _returning(op: Overload) -> Overload | None:
    """Returns the op that returns what another one writes to its first operand; None if it is no such op."""
    schema = schema_of(op)
    name, arguments = schema.name, schema.arguments
    if op.namespace != "aten" or not name.endswith("_") or name in _UNTOUCHED:
        return None
    if torch.Tag.nondeterministic_seeded in op.tags or torch.Tag.inplace_view in op.tags:
        return None
    written = [
        position for position, each in enumerate(arguments) if each.alias_info is not None and each.alias_info.is_write
    ]
    if written != [0] or len(schema.returns) != 1:
        return None
    packet = getattr(torch.ops.aten, name.removeprefix("aten::")[:-1], None)
    found = getattr(packet, schema.overload_name or "default", None)
    return found if isinstance(found, Overload) else None


def is_dense(x: torch.Tensor) -> bool:
    """Returns whether the elements of a tensor fill the memory that they lie in, each with a place of its own."""
    left = [(size, step) for size, step in zip(x.shape, x.stride(), strict=True) if not is_known(size == 1)]
    reach: Any = 1
    while left:
        position = next((position for position, (_, step) in enumerate(left) if is_known(step == reach)), None)
        if position is None:
            return False
        reach = reach * left.pop(position)[0]
    return True
