"""Transforms around a call of a compiled graph: tangents on its arguments, and gradients that stand for a batch."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast
from torch.autograd import forward_ad

enter_autocast: Callable[..., Any] = _enter_autocast
exit_autocast: Callable[[Any], None] = _exit_autocast


@contextmanager
def leaving_transforms() -> Iterator[None]:
    """Leaves transforms of ``torch.func`` and ``autocast`` that an error has found entered.

    Graphs enter both by nodes of their own. Dynamo finds the first otherwise when it checks its guards, and says that
    torch is broken; torch keeps copies of weights for as long as it counts an ``autocast`` around it, so that later
    ones would have those of weights as they were. The stack is private; what takes all from it that is above a depth
    takes twice as many in torch 2.11.
    """
    stack = torch._C._functorch
    depth = stack.get_dynamic_layer_stack_depth()
    casts, entered = _casts(), _autocast_depth()
    try:
        yield
    except BaseException:
        while stack.get_dynamic_layer_stack_depth() > depth:
            _LEAVE[str(stack.peek_interpreter_stack().key()).rpartition(".")[2]]()
        while _autocast_depth() > entered:
            if torch.autocast_decrement_nesting() == 0:
                torch.clear_autocast_cache()
        for device, (is_enabled, dtype) in casts.items():
            torch.set_autocast_enabled(device, is_enabled)
            torch.set_autocast_dtype(device, dtype)
        raise


def _casts() -> dict[str, tuple[bool, torch.dtype]]:
    """Returns whether ``autocast`` is on, and to which type, by the type of device."""
    devices = torch._C._autocast_supported_devices()
    return {device: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in devices}


def _autocast_depth() -> int:
    """Returns how many regions of ``autocast`` are entered; nothing tells without entering one."""
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return depth


_LEAVE: dict[str, Callable[[], Any]] = {
    "Vmap": torch._C._functorch._vmap_decrement_nesting,
    "Grad": torch._C._functorch._grad_decrement_nesting,
    "Jvp": torch._C._functorch._jvp_decrement_nesting,
    "Functionalize": torch._C._functorch._func_decrement_nesting,
}


def carry_tangents(values: Iterable[Any]) -> bool:
    """Returns whether forward-mode differentiation is on and one of the values has a tangent.

    Dynamo guards neither, and nothing public tells whether a level of dual numbers is open.
    """
    if forward_ad._current_level < 0 or not torch._C._is_fwd_grad_enabled():
        return False
    unpack: Callable[[torch.Tensor], Any] = forward_ad.unpack_dual
    return any(isinstance(value, torch.Tensor) and unpack(value).tangent is not None for value in values)


def are_wrapped(values: Iterable[Any]) -> bool:
    """Returns whether one of the values stands for the slices of a batch: a wrapper without memory.

    ``torch.autograd.grad(is_grads_batched=True)`` calls backwards with these, made by a vmap of its own that is not
    published. With those of ``torch.func.vmap`` torch refuses to call a compiled backward.
    """
    return any(isinstance(value, torch.Tensor) and _is_wrapper(value) for value in values)


def wrapper_finder() -> Callable[[Sequence[Any]], bool]:
    """Returns `are_wrapped` for the arguments of one graph, which are tensors in all calls or in none.

    Hundreds of tensors are looked at in one step, once it has been seen which arguments are.
    """
    take: Callable[[Sequence[Any]], Iterable[Any]] | None = None

    def find(arguments: Sequence[Any]) -> bool:
        nonlocal take
        if take is None:
            places = [place for place, value in enumerate(arguments) if isinstance(value, torch.Tensor)]
            if len(places) < 2:
                return are_wrapped(arguments)
            take = operator.itemgetter(*places)
        return any(map(_is_wrapper, take(arguments)))

    return find


_is_wrapper: Callable[[torch.Tensor], bool] = torch._C._functorch.is_legacy_batchedtensor


def map_slices(function: Callable[[list[Any], Sequence[bool]], Any], arguments: Sequence[Any]) -> list[Any]:
    """Returns the results of a function called once for each slice of the arguments that are wrapped, stacked.

    Each call gets a list of its own, and which of its values are slices; the others are the same in each. Where several
    vmaps are nested, these are the slices of the innermost that wraps an argument.
    """
    level = torch._C._vmapmode_increment_nesting() - 1  # the one way to learn the level
    torch._C._vmapmode_decrement_nesting()
    pairs = [_taken_off(value, level) for value in arguments]
    while not any(dim is not None for _, dim in pairs):
        level -= 1
        pairs = [_taken_off(value, level) for value in arguments]
    size = next(value.shape[0] for value, dim in pairs if dim is not None)
    are_slices = [dim is not None for _, dim in pairs]
    rows = [
        function([value if dim is None else value.select(dim, index) for value, dim in pairs], are_slices)
        for index in range(size)
    ]
    results = [_stacked(column) for column in zip(*rows, strict=True)]
    return [torch._add_batch_dim(value, 0, level) if isinstance(value, torch.Tensor) else value for value in results]


def _taken_off(value: Any, level: int) -> tuple[Any, int | None]:
    """Returns a value without the wrapper of a level, and where the axis of the slices is, None if it has no such.

    A wrapper does not tell its levels; one that is not there adds an axis of any extent that is asked for.
    """
    if not isinstance(value, torch.Tensor) or not _is_wrapper(value):
        return value, None
    found, other = (torch._remove_batch_dim(value, level, extent, 0) for extent in (1, 2))
    return (found, 0) if found.shape[0] == other.shape[0] else (value, None)


def _stacked(column: Sequence[Any]) -> Any:
    return torch.stack(column) if isinstance(column[0], torch.Tensor) else column[0]  # type: ignore[arg-type]


def pass_wrapped_gradients() -> None:
    """Makes AOTAutograd hand incoming gradients that are wrapped to the backward as they are.

    It copies gradients that lie otherwise than it traced them into a tensor that it makes for each, which has no room
    for slices. Slices are laid out where they are taken.
    """
    from torch._functorch._aot_autograd import runtime_wrappers

    theirs: Callable[..., Any] = runtime_wrappers.coerce_to_expected_memory_format
    if hasattr(theirs, "passes_wrapped"):
        return

    @functools.wraps(theirs)
    def coerce_to_expected_memory_format(x: Any, *rest: Any) -> Any:
        return x if isinstance(x, torch.Tensor) and _is_wrapper(x) else theirs(x, *rest)

    coerce_to_expected_memory_format.passes_wrapped = True  # type: ignore[attr-defined]
    runtime_wrappers.coerce_to_expected_memory_format = coerce_to_expected_memory_format  # type: ignore[assignment]
