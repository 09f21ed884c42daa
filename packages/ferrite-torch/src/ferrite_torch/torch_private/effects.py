"""Ops that are called for what they raise: without a result that anybody reads, a graph would lose them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_CHECKS = ("aten::_linalg_check_errors",)
"""Ops without results, which raise; torch knows from 2.13 on that they have an effect."""


def assertion() -> Any:
    """Returns the op that raises with a message unless a number is not zero."""
    return torch.ops.aten._assert_async.msg


@contextmanager
def keeping_checks() -> Iterator[None]:
    """Makes AOTAutograd keep the ops that look at whether a factorisation went well.

    ``linalg.inv``, ``cholesky`` and ``solve`` are one op that computes and one that raises. Which ops have effects is
    a register of torch without a public name.
    """
    from torch._higher_order_ops.effects import _EffectType, _get_effect, _register_effectful_op

    unknown = [name for name in _CHECKS if _get_effect(name) is None]
    handles = [_register_effectful_op(name, _EffectType.ORDERED) for name in unknown]
    try:
        yield
    finally:
        for handle in handles:
            handle.destroy()
