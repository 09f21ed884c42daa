"""What tests of behaviour share: both functions on inputs of their own, and tensors that share memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from against_eager import assert_all_close, assert_close, compiled, devices, widened

each_device = pytest.mark.parametrize("device", devices())
Function = Callable[..., Any]


def assert_like_eager(function: Function, *inputs: Any, **options: Any) -> Any:
    """Runs both on their own copies of the inputs; fails unless results and inputs agree. Returns ferrite's results."""
    mine, theirs, wide = ([x.clone() if isinstance(x, Tensor) else x for x in inputs] for _ in range(3))
    exact = function(*widened(wide))
    actual, eager = compiled(function, fullgraph=True, **options)(*mine), function(*theirs)
    assert_all_close(actual, eager, exact)
    for a, e in zip(mine, theirs, strict=True):
        if isinstance(a, Tensor):
            assert_close(a, e, e, "input afterwards")
    return actual


def shares_storage(a: Tensor, b: Tensor) -> bool:
    """Returns whether two tensors lie in one storage."""
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
