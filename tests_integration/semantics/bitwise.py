"""Equality to the last bit with eager, for operations that have one right result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from against_eager import assert_same_type, compiled, is_own, observed_work, tensors_of

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits_of(x: Tensor) -> Tensor:
    """Returns the bits of a tensor as integers, with one pattern for all NaN."""
    x = x.detach().contiguous()
    if x.is_complex():
        return bits_of(torch.view_as_real(x))
    if x.is_floating_point():
        nan = x.float().isnan() if x.dtype.itemsize == 1 else x.isnan()
        return x.view(_BITS[x.dtype.itemsize]).masked_fill(nan, -1 if x.dtype.itemsize > 1 else 255)
    return x.view(_BITS[x.dtype.itemsize])


def assert_same_bits(actual: Any, eager: Any, about: str = "") -> None:
    """Fails unless both have the same structure, types, strides and bits."""
    mine, theirs = tensors_of(actual), tensors_of(eager)
    assert len(mine) == len(theirs), about
    names = about.split() if len(about.split()) == len(mine) else [f"{about or 'result'} {i}" for i in range(len(mine))]
    for name, a, e in zip(names, mine, theirs, strict=True):
        assert_same_type(a, e, name)
        if a.numel() and a.layout is torch.strided:
            differs = (bits_of(a) != bits_of(e)).reshape(-1)
            assert not differs.any(), (
                f"{name}: {int(differs.sum())} of {a.numel()} differ, first {a.reshape(-1)[differs][:4].tolist()}, "
                f"eager {e.reshape(-1)[differs][:4].tolist()}, at {differs.nonzero().reshape(-1)[:4].tolist()}"
            )


def check_bits(function: Callable[..., Any], *inputs: Any, about: str = "", native: bool = True) -> Any:
    """Compiles and runs a function beside eager on copies of the inputs, and compares results and inputs afterwards.

    ``about`` names what is checked: one word for each result, or all of them together. With ``native`` it also fails if
    a part of it ran as an extern call.
    """
    mine, theirs = ([x.clone() if isinstance(x, Tensor) and not x.is_leaf else x for x in inputs] for _ in range(2))
    torch._dynamo.reset()
    with observed_work() as work:
        wrapped = lambda *given: function(*given)  # noqa: E731, PLW0108  # dynamo does not look into a bare built-in
        actual = compiled(wrapped, fullgraph=True, dynamic=False)(*mine)
    assert_same_bits(actual, function(*theirs), about)
    if native and is_own():
        assert work.extern_calls == 0, f"{about}: an extern call"
    return actual
