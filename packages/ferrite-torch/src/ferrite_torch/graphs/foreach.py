"""Ops on lists of tensors, lowered tensor by tensor: the scheduler puts the small kernels back together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from ferrite_torch.lowering.builder import Builder, Unlowered
from ferrite_torch.torch_private.operators import Overload, schema_of

_PREFIX = "aten._foreach_"

# Overloads of the op on one tensor that may stand for an overload of the op on lists, the likeliest first.
_OVERLOADS: dict[str, tuple[str, ...]] = {
    "default": ("default",),
    "List": ("Tensor", "default", "Tensor_Tensor"),
    "Scalar": ("Scalar", "Tensor_Scalar", "default"),
    "ScalarList": ("Scalar", "Tensor_Scalar", "default"),
    "Tensor": ("Tensor",),
    "ScalarAndTensor": ("Scalar",),
}
_RENAMED: dict[str, str] = {
    "maximum.Scalar": "aten.clamp_min.default",
    "maximum.ScalarList": "aten.clamp_min.default",
    "minimum.Scalar": "aten.clamp_max.default",
    "minimum.ScalarList": "aten.clamp_max.default",
    "clamp_min.List": "aten.maximum.default",
    "clamp_max.List": "aten.minimum.default",
    "norm.Scalar": "aten.linalg_vector_norm.default",
}


def is_foreach(name: str) -> bool:
    """Returns whether an op works on lists of tensors."""
    return name.startswith(_PREFIX)


def lower_foreach(
    builder: Builder,
    op: Overload,
    lowerings: Mapping[str, Callable[..., Any]],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> tuple[Any, ...]:
    """Returns the results of an op on lists: the lowering of the op on one tensor, called for each position.

    Raises:
        Unlowered: the op on one tensor has no lowering, or results are not one per tensor.
    """
    fakes = builder.node.meta.get("val")
    name = _single_name(str(op), frozenset(lowerings))
    if name is None or not isinstance(fakes, (tuple, list)):
        raise Unlowered("no lowering for the op on one tensor")
    results = []
    try:
        for position, fake in enumerate(fakes):
            builder.fake = fake
            given, named = _arguments_at(op, name, position, args, kwargs)
            results.append(lowerings[name](builder, *given, **named))
    finally:
        builder.fake = fakes
    return tuple(results)


@lru_cache(maxsize=256)
def _single_name(name: str, known: frozenset[str]) -> str | None:
    base = name.removeprefix(_PREFIX)
    renamed = _RENAMED.get(base)
    if renamed is not None:
        return renamed if renamed in known else None
    stem, _, overload = base.partition(".")
    candidates = (f"aten.{stem}.{other}" for other in _OVERLOADS.get(overload, ()))
    return next((candidate for candidate in candidates if candidate in known), None)


def _arguments_at(
    op: Overload, name: str, position: int, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Returns the arguments for the tensors at a position: lists give their element, others are shared."""
    _, stem, overload = name.split(".")
    wanted = schema_of(getattr(getattr(torch.ops.aten, stem), overload)).arguments
    declared = [argument.name for argument in schema_of(op).arguments]
    values = [*args, *(kwargs[each] for each in declared[len(args) :] if each in kwargs)]
    given: list[Any] = []
    named: dict[str, Any] = {}
    for argument, value in zip(wanted, values, strict=False):
        chosen = value[position] if isinstance(value, (tuple, list)) else value
        if argument.kwarg_only:
            named[argument.name] = chosen
        else:
            given.append(chosen)
    return given, named
