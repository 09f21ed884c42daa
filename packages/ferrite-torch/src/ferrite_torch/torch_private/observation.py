"""Ops as AOTAutograd meets them first."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


def observing(look: Callable[[Any, tuple[Any, ...], dict[str, Any]], None]) -> AbstractContextManager[Any]:
    """Returns a context in which a function is called with each op and its arguments before the op runs.

    Higher-order ops pass unseen; of those that are traced through, the ops inside are seen.

    AOTAutograd runs a graph twice: to see what it writes and returns, then to write it down with ops taken apart. Only
    the first time counts: what it does afterwards, to tensors that stand for arguments of a backward, no program says.
    Modes of ops have no public home; they see ops before AOTAutograd's own modes do.
    """
    from torch._ops import OpOverload
    from torch.fx.experimental.proxy_tensor import get_proxy_mode
    from torch.utils._python_dispatch import TorchDispatchMode

    mode: Any = TorchDispatchMode  # its methods have no types

    class Observer(mode):  # type: ignore[misc]
        supports_higher_order_operators = True  # torch raises where a mode does not say so
        is_first_run = True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            self.is_first_run &= get_proxy_mode() is None
            if self.is_first_run and isinstance(func, OpOverload):
                look(func, args, kwargs)
            return func(*args, **kwargs)

    observer: AbstractContextManager[Any] = Observer()
    return observer
