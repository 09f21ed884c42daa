"""What an op that computes element by element asks of the tensors that it writes to, in place or through ``out``.

    x = zeros(2)
    x.atan2_(zeros(3, 2))           the results are 3 by 2, which x cannot take
    x = zeros(4)
    x[1:].add_(x[:-1])              what is written is still to be read: elements would depend on their order

Graphs have no writes: each makes a new tensor, of whatever shape and from operands as they were. So both would go
unseen. An op that is applied to the very tensor that it writes is fine, as each element is read before it is written.

Where tensors lie is asked of those that have a place: a model that runs to be exported. Of the functional values that
AOTAutograd has in their stead it is asked in the captured graph, by `rewrites.captured.overlapping_writes`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from ferrite_torch.torch_private.fake_tensors import is_functional, storage_key
from ferrite_torch.torch_private.operators import Overload, functional_name, is_by_element, schema_of
from ferrite_torch.validation.indexing import broadcasts

_IN_ORDER = frozenset(
    """
    cumsum cumprod logcumsumexp cummax cummin index_select gather take scatter scatter_add
    """.split()  # noqa: SIM905  # a list of words reads better
)
"""Ops that refuse to write to memory that they still read, besides those that compute element by element."""


def write_problem(op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Returns what is wrong with the tensors that an op writes to, None if nothing."""
    written = _written_arguments(op)
    if not written:
        return None
    by_element = is_by_element(op)
    if not (by_element or functional_name(op) in _IN_ORDER):
        return None
    named = dict(zip((argument.name for argument in schema_of(op).arguments), args, strict=False)) | kwargs
    tensors = {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}
    problems = (
        problem
        for name in written
        if name in tensors
        for problem in _problems(tensors, name, is_shaped=by_element and schema_of(op).name.endswith("_"))
    )
    return next(problems, None)


def _problems(tensors: dict[str, torch.Tensor], name: str, *, is_shaped: bool) -> Iterator[str]:
    target = tensors[name]
    for other, value in tensors.items():
        if other == name:
            continue
        if is_shaped and not _fits(value, target):
            yield f"output with shape {list(target.shape)} doesn't match the broadcast shape of {list(value.shape)}"
        elif _has_place(value) and _has_place(target) and _overlaps_in_part(value, target):
            yield "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single"


def _fits(value: torch.Tensor, target: torch.Tensor) -> bool:
    """Returns whether the elements of an operand are for those of a target; compares sizes, which are then fixed."""
    return value.dim() <= target.dim() and broadcasts(value.shape, target.shape)


def _has_place(x: torch.Tensor) -> bool:
    return x.layout is torch.strided and not is_functional(x)


def _overlaps_in_part(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether two tensors, each of one stretch of memory, share some of it and are not the same."""
    if storage_key(one) != storage_key(other) or not (_is_stretch(one) and _is_stretch(other)):
        return False
    (begin, end), (start, stop) = _stretch_of(one), _stretch_of(other)
    if begin == start and end == stop:
        return not all(step == theirs for step, theirs in zip(one.stride(), other.stride(), strict=False))
    return bool(begin < stop and start < end)


def _stretch_of(x: torch.Tensor) -> tuple[Any, Any]:
    """Returns the bytes of its storage from which and up to which a tensor without gaps lies."""
    begin = x.storage_offset() * x.element_size()
    return begin, begin + x.numel() * x.element_size()


def _is_stretch(x: torch.Tensor) -> bool:
    """Returns whether the elements of a tensor fill a stretch of memory, in any order of its dims."""
    expected: Any = 1
    for step, size in sorted((step, size) for size, step in zip(x.shape, x.stride(), strict=True) if size != 1):
        if step != expected:
            return False
        expected = expected * size
    return True


@functools.cache
def _written_arguments(op: Overload) -> tuple[str, ...]:
    arguments = schema_of(op).arguments
    return tuple(each.name for each in arguments if each.alias_info is not None and each.alias_info.is_write)
