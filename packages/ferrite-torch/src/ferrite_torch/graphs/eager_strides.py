"""Strides that no element depends on: those of dims of one element, and of tensors without elements.

Fake tensors give them otherwise than eager's kernels do, which sort such dims among the others:

    x: [4, 1, 1]{1, 4, 1} > 0.5         eager {1, 4, 1}      fake {1, 1, 1}

For results of ops that go element by element the kernels' rule is followed back to the inputs, through views. What it
gives is taken only where no element moves by it. Results of other ops, those with symbolic sizes, and of what was taken
apart keep the strides of the fakes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ferrite_torch.rewrites.layouts.eager_layouts import is_packed_somehow, iterated_strides
from ferrite_torch.thresholds import SEARCHES
from ferrite_torch.torch_private.fake_tensors import without_modes
from ferrite_torch.torch_private.nodes import map_leaves, whole_op
from ferrite_torch.torch_private.operators import Overload, makes_view, schema_of

_LIKE_NAMES = "clone _to_copy nan_to_num empty_like zeros_like ones_like full_like rand_like randn_like"
_LIKE_OPERANDS = frozenset(f"aten.{name}.default" for name in _LIKE_NAMES.split())
"""Ops that lay out their results as their operands are, if nothing else is asked for and these fill their memory."""
_META = torch.device("meta")
_Strides = tuple[int, ...]


class EagerStrides:
    """The strides that results of one graph have in eager mode."""

    def __init__(self) -> None:
        self._made: dict[torch.fx.Node, Any] = {}

    def of(self, node: torch.fx.Node) -> _Strides | None:
        """Returns the strides of a node's result; None where its fake tells all there is to know."""
        fake = node.meta.get("val")
        if not isinstance(fake, torch.Tensor) or not _has_free_strides(fake):
            return None
        made = self._result(node)
        if not isinstance(made, torch.Tensor) or made.shape != fake.shape:
            return None
        differs = any(
            size > 1 and mine != theirs
            for size, mine, theirs in zip(fake.shape, made.stride(), fake.stride(), strict=True)
        )
        return None if differs and fake.numel() else tuple(made.stride())

    def _result(self, last: torch.fx.Node) -> Any:
        """Returns what a node makes on the meta device, those before it made first."""
        pending = [last]
        while pending:
            node = pending[-1]
            needed = [] if not _is_made_again(node) or len(self._made) > SEARCHES.layout_nodes else node.all_input_nodes
            missing = [each for each in needed if each not in self._made]
            if missing:
                pending += missing
            else:
                pending.pop()
                self._made.setdefault(node, _called(node, self._made) if needed else _stand_in(node))
        return self._made[last]


def _has_free_strides(fake: torch.Tensor) -> bool:
    return all(type(size) is int for size in (*fake.shape, *fake.stride())) and any(size < 2 for size in fake.shape)


def _is_made_again(node: torch.fx.Node) -> bool:
    is_op = node.op == "call_function" and isinstance(node.target, Overload) and node.target.namespace == "aten"
    return is_op and _is_free(node.meta.get("val")) and (_goes_by_element(node) or makes_view(node.target))


def _goes_by_element(node: torch.fx.Node) -> bool:
    """Returns whether a node is an op of the program's own, not a piece of one, that a ``TensorIterator`` computes."""
    assert isinstance(node.target, Overload), "judged before"
    name = str(node.target)
    is_by_element = name in _LIKE_OPERANDS or torch.Tag.pointwise in node.target.tags
    return not whole_op(node) and is_by_element and not schema_of(node.target).is_mutable


def _is_free(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and _has_free_strides(value)


def _stand_in(node: torch.fx.Node) -> Any:
    """Returns a node's result on the meta device, as its fake lies; what is no tensor as it is."""
    return map_leaves(node.meta.get("val"), _on_meta)


def _on_meta(value: Any) -> Any:
    """Returns a tensor on the meta device for a fake one, None for one with symbolic sizes or without strides."""
    if not isinstance(value, torch.Tensor):
        return value
    numbers = (*value.shape, *value.stride())
    if value.layout is not torch.strided or not all(type(number) is int for number in numbers):
        return None
    with without_modes():
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=_META)


def _called(node: torch.fx.Node, made: dict[torch.fx.Node, Any]) -> Any:
    args, kwargs = (
        map_leaves(part, lambda leaf: made[leaf] if isinstance(leaf, torch.fx.Node) else leaf)
        for part in (node.args, dict(node.kwargs))
    )
    is_unknown = any(made[each] is None and each.meta.get("val") is not None for each in node.all_input_nodes)
    if is_unknown or not _are_numbers((*args, *kwargs.values())):
        return _stand_in(node)
    assert callable(node.target), "judged before"
    with without_modes(), torch.no_grad():
        if makes_view(node.target):
            return node.target(*args, **kwargs)
        fake = node.meta["val"]
        if str(node.target) in _LIKE_OPERANDS:
            return _like(args[0], fake, kwargs)
        operands = [value for value in args if isinstance(value, torch.Tensor)]
        strides = iterated_strides(fake.shape, operands, is_alone=not _has_number_operand(node, args))
        return torch.empty_strided(fake.shape, strides, dtype=fake.dtype, device=_META)


def _like(x: torch.Tensor, fake: torch.Tensor, kwargs: dict[str, Any]) -> Any:
    is_kept = kwargs.get("memory_format") in (None, torch.preserve_format)
    strides = x.stride() if is_kept and is_packed_somehow(x.shape, x.stride()) else fake.stride()
    return torch.empty_strided(fake.shape, strides, dtype=fake.dtype, device=_META)


def _has_number_operand(node: torch.fx.Node, args: Sequence[Any]) -> bool:
    """Returns whether a number takes the place of a tensor: of one, or of the second operand of two (``gt.Scalar``)."""
    assert isinstance(node.target, Overload), "judged before"
    declared = schema_of(node.target).arguments
    numbers = [x for x, value in zip(declared, args, strict=False) if isinstance(value, (int, float))]
    return any("Tensor" in str(x.type) or x.name == "other" for x in numbers)


def _are_numbers(values: Sequence[Any]) -> bool:
    """Returns whether nothing in some arguments is symbolic."""
    flat: list[Any] = []
    map_leaves(tuple(values), flat.append)
    return not any(isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) for value in flat)
