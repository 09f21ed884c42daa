"""The cost model of recomputation: what an expression costs to compute again, in simple instructions."""

from __future__ import annotations

from ferrite_ir.language.ops import CONVERSIONS, OPS, RANDOM
from ferrite_ir.language.scalar import Scalar, postorder

COSTS: dict[str, int] = {name: row.cost for name, row in OPS.items()} | dict.fromkeys(CONVERSIONS, 1)
"""Rough price of each form in simple instructions; forms that are not listed are free."""

REPEATED_COSTS: dict[str, int] = COSTS | dict.fromkeys(RANDOM, 1 << 30)
"""The same for expressions that would be computed at several places: random numbers never are."""


def cost_up_to(root: Scalar, limit: int, costs: dict[str, int]) -> int:
    """Returns the summed cost of the distinct nodes of an expression; beyond ``limit`` just some larger number."""
    total = 0
    seen = {root}
    stack = [root]
    while stack:
        node = stack.pop()
        total += costs.get(node.op, 0)
        if total > limit:
            return total
        for child in node.below:
            if child not in seen:
                seen.add(child)
                stack.append(child)
    return total


def count_new_nodes(root: Scalar, counted: set[Scalar]) -> int:
    """Returns how many nodes of an expression are not in ``counted``, and adds them there."""
    return sum(1 for _ in postorder((root,), counted))


def count_nodes(root: Scalar) -> int:
    """Returns how many distinct nodes an expression has."""
    seen = {root}
    stack = [root]
    while stack:
        for child in stack.pop().below:
            if child not in seen:
                seen.add(child)
                stack.append(child)
    return len(seen)
