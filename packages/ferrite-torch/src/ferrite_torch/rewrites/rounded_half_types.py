"""Half values that are rounded where they are made, as in eager mode, because others are seen as they lie in memory.

Two kinds. What a forward returns, and its backward may compute anew: the caller sees such a value in memory, and a
backward that computes it again from what was saved would see it with excess precision: finite, say, where the one that
was returned has overflowed.

And what is computed of extrema. Eager mode's roundings keep the order of numbers, so that no element is beyond the
largest: the root of a difference to it is a number, and ``(x - least) / (largest - least)`` at most one. That holds
with excess precision, too, but not where one of both is seen in memory, saved for backward maybe, and the other is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ferrite_torch.rewrites.equal_nodes import EqualNodes
from ferrite_torch.rewrites.extrema import chosen_from, origin
from ferrite_torch.torch_private.operators import Overload, functional_name, is_by_element, makes_view

ROUNDED = "is_rounded"
"""The metadata of a node whose half result has no excess precision."""
_HALVES = (torch.float16, torch.bfloat16)
_COPIES = frozenset(("aten.clone.default", "aten.contiguous.default"))
_CONVERSIONS = frozenset(("aten._to_copy.default", "prims.convert_element_type.default"))
_REDUCTIONS = frozenset(
    (
        *("sum", "mean", "prod", "any", "all", "var", "std", "var_mean", "std_mean", "logsumexp"),
        *("amax", "amin", "max", "min", "aminmax", "argmax", "argmin", "norm", "linalg_vector_norm"),
    )
)


def mark_returned_half_types(results: Sequence[Any]) -> None:
    """Marks the nodes of a joint graph whose half values, or views or copies of them, are results of the forward."""
    for result in results:
        node = result
        while isinstance(node, torch.fx.Node) and node.op == "call_function" and _is_half(node):
            node.meta[ROUNDED] = True
            node = node.args[0] if _hands_on(node) else None


def half_extrema(graph: torch.fx.Graph, equal: EqualNodes) -> dict[torch.fx.Node, list[torch.fx.Node]]:
    """Returns the extrema of half values, widened ones maybe, with these values."""
    calls = (node for node in graph.nodes if node.op == "call_function" and not makes_view(node.target))
    found = {node: list(filter(_is_half, chosen_from(node, equal))) for node in calls}
    return {node: chosen for node, chosen in found.items() if chosen}


def mark_beside_extrema(
    extrema: Mapping[torch.fx.Node, Sequence[torch.fx.Node]], equal: EqualNodes, *, is_joint: bool
) -> None:
    """Marks extrema (`half_extrema`), what they are taken of, and all that is computed of them element by element.

    What that is computed with is marked as well. A graph without a backward keeps its excess precision where none of
    these values is seen in memory: what orders numbers then is the same excess on both sides.
    """
    marked = [each for node, chosen in extrema.items() for each in (node, *chosen)]
    pending = list(extrema)
    followed: set[torch.fx.Node] = set()
    while pending:
        for reader in pending.pop().users:
            if reader not in followed and _is_followed(reader):
                followed.add(reader)
                pending.append(reader)
                marked += [reader, *(origin(operand) for operand in reader.all_input_nodes)]
    alike = [same for node in marked for same in equal.of(node) if same.op == "call_function" and _is_half(same)]
    if is_joint or any(map(_is_seen, alike)):
        for node in alike:
            node.meta[ROUNDED] = True


def _is_followed(node: torch.fx.Node) -> bool:
    """Returns whether a node computes element by element, or hands on what it is given."""
    if node.op != "call_function":
        return False
    return is_by_element(node.target) or _hands_on(node) or str(node.target) in _CONVERSIONS


def _is_seen(node: torch.fx.Node) -> bool:
    """Returns whether a kernel reads a value that is also in memory: a result, or an operand of a library maybe."""
    computes = [_is_followed(reader) or _reduces(reader.target) for reader in _readers(node)]
    return any(computes) and not all(computes)


def _readers(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Yields what reads a value, or a view or copy of it."""
    for reader in node.users:
        if reader.op == "call_function" and _hands_on(reader):
            yield from _readers(reader)
        else:
            yield reader


def _reduces(target: object) -> bool:
    """Returns whether an op is a reduction that kernels do."""
    return isinstance(target, Overload) and target.namespace == "aten" and functional_name(target) in _REDUCTIONS


def _is_half(node: torch.fx.Node) -> bool:
    fake = node.meta.get("val")
    return isinstance(fake, torch.Tensor) and fake.dtype in _HALVES


def _hands_on(node: torch.fx.Node) -> bool:
    """Returns whether a node gives a view or a copy of its first operand."""
    return makes_view(node.target) or str(node.target) in _COPIES
