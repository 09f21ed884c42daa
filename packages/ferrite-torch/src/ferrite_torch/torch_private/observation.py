"""Ops as AOTAutograd meets them first."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from ferrite_torch.torch_private.operators import Overload


def is_in_gradient_formula() -> bool:
    """Returns whether an op that runs now belongs to the gradient of another one, by a formula of torch's.

    What `torch.autograd.Function` has for a backward is a program's own and does not count. Which node of autograd is
    at work has no public name.
    """
    node: object = torch._C._current_autograd_node()
    return node is not None and not isinstance(node, torch.autograd.function.BackwardCFunction)


def observing(
    look: Callable[[Overload, tuple[Any, ...], dict[str, Any]], None],
    call: Callable[[Overload, tuple[Any, ...], dict[str, Any]], Any] | None = None,
) -> AbstractContextManager[Any]:
    """Returns a context in which a function is called with each op and its arguments before the op runs.

    ``call``, if there is one, is asked for the result of each op, whenever it runs; NotImplemented leaves it to the op.

    AOTAutograd runs a graph twice: to see what it writes and returns, then to write it down with ops decomposed. Only
    the first time counts: what it does afterwards, to tensors that stand for arguments of a backward, no program says.
    Modes of ops have no public home; they see ops before AOTAutograd's own modes do. An op with graphs of its own, such
    as ``cond`` or a kernel of the user's, is passed on and not looked at: it has no schema.
    """
    from torch.fx.experimental.proxy_tensor import get_proxy_mode
    from torch.utils._python_dispatch import TorchDispatchMode

    mode: Any = TorchDispatchMode  # its methods have no types

    class Observer(mode):  # type: ignore[misc]
        supports_higher_order_operators = True
        is_first_run = True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            self.is_first_run &= get_proxy_mode() is None
            if self.is_first_run and isinstance(func, Overload):
                look(func, args, kwargs)
            result = NotImplemented if call is None or not isinstance(func, Overload) else call(func, args, kwargs)
            return func(*args, **kwargs) if result is NotImplemented else result

    observer: AbstractContextManager[Any] = Observer()
    return observer
