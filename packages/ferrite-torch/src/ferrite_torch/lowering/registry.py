"""The lowering table: one function per aten overload.

A lowering is called with the builder and the op's arguments as the FX graph has them, with a `Tensor` in place of each
tensor node. It returns a `Tensor`, a tuple or list of them (in the order of the op's results), or None. It may raise
`Unlowered(reason)`: the op then runs as the extern call that it is, and the reason is counted.

Ops that promise a copy (``clone``, ``_to_copy``) return a new loop, never their operand: whether two results share
storage is visible to users. View ops return ``operand.viewed(…)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ferrite_torch.lowering.builder import Lowered, Unlowered

__all__ = ["LOWERINGS", "Lowered", "Lowering", "Unlowered", "lowers"]

Lowering = Callable[..., Lowered]
"""``lowering(builder, *args, **kwargs)``."""

_Function = TypeVar("_Function", bound=Lowering)

LOWERINGS: dict[str, Lowering] = {}
"""Lowerings by qualified op name, such as ``"aten.add.Tensor"``."""


def lowers(*names: str) -> Callable[[_Function], _Function]:
    """Returns a decorator that enters a function in the table under each of these names.

    Raises:
        ValueError: a name is taken, or is not of the form ``namespace.op.overload``.
    """

    def enter(function: _Function) -> _Function:
        for name in names:
            if name.count(".") != 2:
                raise ValueError(f"{name!r} is not namespace.op.overload, such as 'aten.add.Tensor'")
            if name in LOWERINGS:
                raise ValueError(f"{name} has a lowering already, in {LOWERINGS[name].__module__}")
            LOWERINGS[name] = function
        return function

    return enter
