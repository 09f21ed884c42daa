"""Ops that take a float which may change, such as a learning rate, in pieces that take it as a tensor.

Dynamo keeps a float symbolic as long as only sums, products and comparisons of tensors use it. In the place of a factor
of an optimiser's op it would be fixed to its value, and each new value would compile anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch


def _added(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    return x + y * alpha


def _subtracted(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    return x - y * alpha


def _added_product(x: Any, a: Any, b: Any, value: Any = 1) -> Any:
    return x + a * b * value


def _added_quotient(x: Any, a: Any, b: Any, value: Any = 1) -> Any:
    return x + a / b * value


def _between(x: Any, y: Any, weight: Any) -> Any:
    return x + (y - x) * weight


_RULES: Mapping[str, Callable[..., Any]] = {
    "add.Tensor": _added,
    "sub.Tensor": _subtracted,
    "addcmul.default": _added_product,
    "addcdiv.default": _added_quotient,
    "lerp.Scalar": _between,
    "_foreach_add.List": _added,
    "_foreach_sub.List": _subtracted,
    "_foreach_add.Scalar": lambda x, y: x + y,
    "_foreach_sub.Scalar": lambda x, y: x - y,
    "_foreach_mul.Scalar": lambda x, y: x * y,
    "_foreach_div.Scalar": lambda x, y: x / y,
    "_foreach_addcmul.Scalar": _added_product,
    "_foreach_addcdiv.Scalar": _added_quotient,
    "_foreach_lerp.Scalar": _between,
}
"""What an op of aten, or its elements for one of lists, is in pieces."""

_TAKES_TENSOR = ("add.Tensor", "sub.Tensor")
"""Ops that stay whole with a symbolic float in the place of a tensor: only as a factor it is in the way."""


def float_rules(decompositions: Mapping[Any, Any]) -> dict[Any, Callable[..., Any]]:
    """Returns decompositions by overload for calls with symbolic floats; all others go where they went."""
    rules = {}
    for name, rule in _RULES.items():
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload)
        rules[op] = _only_with_floats(name, rule, decompositions.get(op))
    return rules


def _only_with_floats(name: str, rule: Callable[..., Any], otherwise: Callable[..., Any] | None) -> Callable[..., Any]:
    taken = _each(rule) if name.startswith("_foreach") else rule

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        scalars = kwargs.values() if name in _TAKES_TENSOR else (*args, *kwargs.values())
        if any(isinstance(scalar, torch.SymFloat) for scalar in scalars):
            return taken(*args, **kwargs)
        return NotImplemented if otherwise is None else otherwise(*args, **kwargs)

    return decomposed


def _each(rule: Callable[..., Any]) -> Callable[..., Any]:
    def decomposed(*args: Any, **kwargs: Any) -> list[Any]:
        rows: list[Sequence[Any]] = [arg if isinstance(arg, (list, tuple)) else [arg] * len(args[0]) for arg in args]
        return [rule(*row, **kwargs) for row in zip(*rows, strict=True)]

    return decomposed
