"""Writes in place, and into ``out=``, that keep the layout of what they write to.

AOTAutograd turns a write in place into a new value by the op that returns one, and that lies as *its* kernel lays it
out: ``x.masked_fill_(…)`` leaves a transposed ``x`` transposed, ``x.masked_fill(…)`` is row-major. Readers of memory,
such as ``as_strided`` and views in another type, would then see other elements than in eager mode, and results have
other strides. ``torch.add(x, 1, out=y)`` leaves ``y`` as it lies, too, however ``x`` does. So where the two differ, the
new value is copied into the layout of the old one; the copy fuses with what makes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from ferrite_torch.torch_private.operators import Overload, schema_of
from ferrite_torch.torch_private.symbolic_shapes import is_known

_UNTOUCHED = frozenset(("aten::copy_", "aten::zero_", "aten::fill_", "aten::set_", "aten::resize_", "aten::resize_as_"))
"""Ops in place whose new values always lie as the old ones, and those that give a tensor another layout."""


def called_in_layout(op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns what an op in place returns, with its layout kept; NotImplemented for a call that keeps it anyway."""
    if any(name in kwargs for name in _results_of(op)):
        return _called_into(op, args, kwargs)
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


def _called_into(op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns the results that an op is given, as they lie; NotImplemented where they lie as the op makes them.

    A result that has another shape is resized, and one of another type computed in that: these are left to the op.
    """
    names = _results_of(op)
    returning = _without_results(op)
    results = [kwargs.get(name) for name in names]
    if returning is None or not all(isinstance(each, torch.Tensor) and is_dense(each) for each in results):
        return NotImplemented
    found = returning(*args, **{name: value for name, value in kwargs.items() if name not in names})
    values = [found] if len(names) == 1 else list(found)
    pairs = list(zip(results, values, strict=True))
    if not all(_is_alike(result, value) for result, value in pairs):
        return NotImplemented
    if all(_lies_alike(result, value) for result, value in pairs):
        return NotImplemented
    written = [torch.ops.aten.copy_.default(result, value) for result, value in pairs]
    return written[0] if len(written) == 1 else tuple(written)


def _is_alike(result: Any, value: torch.Tensor) -> bool:
    is_typed = value.dtype is result.dtype and value.device == result.device and value.dim() == result.dim()
    return is_typed and all(is_known(a == b) for a, b in zip(value.shape, result.shape, strict=True))


def _lies_alike(result: Any, value: torch.Tensor) -> bool:
    return all(is_known(a == b) for a, b in zip(value.stride(), result.stride(), strict=True))


@lru_cache(maxsize=1024)
def _results_of(op: Overload) -> tuple[str, ...]:
    """Returns the names of the arguments of an op of aten that are its results: ``out=`` of one that returns it."""
    arguments = schema_of(op).arguments
    if op.namespace != "aten" or torch.Tag.nondeterministic_seeded in op.tags:
        return ()
    written = [each for each in arguments if each.alias_info is not None and each.alias_info.is_write]
    return tuple(each.name for each in written) if all(each.kwarg_only for each in written) else ()


@lru_cache(maxsize=1024)
def _without_results(op: Overload) -> Overload | None:
    """Returns the op that makes the results that another one is given; None where there is none."""
    names = _results_of(op)
    given = [each for each in schema_of(op).arguments if each.name not in names]
    return _overload(schema_of(op).name.removeprefix("aten::"), given)


def _overload(name: str, arguments: Sequence[Any]) -> Overload | None:
    """Returns the op of aten of this name that writes to nothing, and takes these arguments.

    Overloads of two ops that are called alike may take other arguments: ``pow_.Scalar`` a number as the exponent, and
    ``pow.Scalar`` one as the base.
    """
    wanted = [(each.name, str(each.type)) for each in arguments]
    packet: Any = getattr(torch.ops.aten, name, None)
    for overload in packet.overloads() if packet is not None else ():
        schema = schema_of(getattr(packet, overload))
        if not schema.is_mutable and [(each.name, str(each.type)) for each in schema.arguments] == wanted:
            return getattr(packet, overload)  # type: ignore[no-any-return]
    return None


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
    return _overload(name.removeprefix("aten::")[:-1], arguments)


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
