"""Calls of operators with their tensors taken out, so that the same call can be made on copies, wider or fake ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

WIDER = {torch.complex64: torch.complex128, torch.complex32: torch.complex128}


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operator.

    Attributes:
        function: what is called.
        leaves: its flattened arguments, None in place of each tensor.
        places: positions of the tensors among the leaves.
        tensors: the tensors.
        spec: how the leaves nest.
        finish: what the operator's own tests do to its result before they differentiate it, such as making it unique.
    """

    function: Callable[..., Any]
    leaves: tuple[Any, ...]
    places: tuple[int, ...]
    tensors: tuple[Tensor, ...]
    spec: Any
    finish: Callable[[Any], Any] | None = None

    @classmethod
    def of(cls, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], finish: Any = None) -> Call:
        """Returns the call ``function(*args, **kwargs)``."""
        leaves, spec = pytree.tree_flatten((tuple(args), kwargs))
        places = tuple(place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
        rest = tuple(None if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        return cls(function, rest, places, tuple(leaves[place] for place in places), spec, finish)

    def run(self, *tensors: Tensor) -> list[Tensor]:
        """Returns the tensors in the result of the call on these tensors, in order."""
        args, kwargs = self.arguments(*tensors)
        result = self.function(*args, **kwargs)
        return self.tensors_in(result if self.finish is None else self.finish(result))

    @staticmethod
    def tensors_in(result: Any) -> list[Tensor]:
        """Returns the tensors in a result, in order."""
        return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]

    def arguments(self, *tensors: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments of the call with these tensors in their places."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return args, kwargs

    def exact(self) -> Call:
        """Returns the call with float64 asked for wherever a narrower float type is asked for."""
        return Call(self.function, tuple(map(_widest, self.leaves)), self.places, self.tensors, self.spec, self.finish)

    def text(self) -> str:
        """Returns the call as people read it: types of tensors, other arguments as they are."""
        args, kwargs = self.arguments(*self.tensors)
        shown = [_text(arg) for arg in args] + [f"{name}={_text(value)}" for name, value in kwargs.items()]
        return f"({', '.join(shown)})"


def _widest(leaf: Any) -> Any:
    if not isinstance(leaf, torch.dtype):
        return leaf
    return torch.complex128 if leaf.is_complex else torch.float64 if leaf.is_floating_point else leaf


def _text(value: Any) -> str:
    if isinstance(value, Tensor):
        strides = "" if value.layout != torch.strided or value.is_contiguous() else f" strides {list(value.stride())}"
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{strides}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text, value))}]"
    return repr(value)[:60]


def twin(x: Tensor) -> Tensor:
    """Returns a tensor of the same contents and layout over storage of its own."""
    if x.layout != torch.strided or x.is_conj() or x.is_neg():
        return x.detach().clone().requires_grad_(x.requires_grad)
    copy = torch.empty(0, dtype=x.dtype, device=x.device)
    copy.set_(x.untyped_storage().clone(), x.storage_offset(), x.size(), x.stride())
    return copy.requires_grad_(x.requires_grad)


def wide_twin(x: Tensor) -> Tensor:
    """Returns a tensor of the same contents and layout in float64 or complex128; integers stay what they are."""
    kind = WIDER.get(x.dtype, torch.complex128 if x.is_complex() else torch.float64)
    if not (x.is_floating_point() or x.is_complex()) or x.dtype == kind:
        return twin(x)
    if x.layout != torch.strided or x.is_conj() or x.is_neg():
        return x.detach().to(kind).requires_grad_(x.requires_grad)
    whole = torch.empty(0, dtype=x.dtype, device=x.device)
    whole.set_(x.untyped_storage(), 0, (x.untyped_storage().nbytes() // x.element_size(),), (1,))
    wide = whole.to(kind).as_strided(x.size(), x.stride(), x.storage_offset())
    return wide.requires_grad_(x.requires_grad)


def spread(calls: Iterable[Call], most: int) -> list[Call]:
    """Returns the few calls that show the most different features.

    The greedy choice of a cover: the call with the most features that no chosen one has comes next, the earliest of
    several; it ends when nothing new is left.
    """
    left = [(call, features(call)) for call in calls]
    seen: set[Any] = set()
    chosen: list[Call] = []
    while left and len(chosen) < most:
        gains = [len(found - seen) for _, found in left]
        best = gains.index(max(gains))
        if chosen and not gains[best]:
            break
        call, found = left.pop(best)
        chosen.append(call)
        seen |= found
    return chosen


def features(call: Call) -> set[Any]:
    """Returns what distinguishes a call: options, ranks, layouts, emptiness, types."""
    args, kwargs = call.arguments(*call.tensors)
    found: set[Any] = {(len(args), *sorted(kwargs))}
    for name, value in [*enumerate(args), *kwargs.items()]:
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, Tensor):
                found |= {(name, leaf.ndim), (name, leaf.dtype, leaf.layout), (name, "empty", leaf.numel() == 0)}
                if leaf.layout == torch.strided:
                    found.add((name, "contiguous", leaf.is_contiguous()))
            else:
                found.add((name, repr(leaf)[:80]))
    return found
