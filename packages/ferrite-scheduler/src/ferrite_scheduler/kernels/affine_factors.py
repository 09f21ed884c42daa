"""Folded affine steps: what elements are shifted and scaled by becomes one factor and one summand of each channel.

A norm that is spelled ``(x - mean) * inverse * weight + bias`` takes three operations of each element and has a thread
keep four numbers of each of its channels; as ``x * factor + shift`` it takes one, and two numbers. Its results are as
exact: the mean is rounded, so that a difference is off by half a unit of the mean's last place, and so is the shift.
PyTorch's own kernels of group norms compute it like this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ferrite_ir.language.dtypes import F32
from ferrite_ir.language.scalar import Scalar, apply, postorder, rewrite
from ferrite_scheduler.model.policy import DEFAULT_POLICY, Policy


@dataclass(frozen=True, slots=True)
class _Affine:
    """``element * factor + shift``; None for one and zero. ``count`` operands went into both."""

    element: Scalar
    factor: Scalar | None = None
    shift: Scalar | None = None
    count: int = 0

    def times(self, other: Scalar) -> _Affine:
        factor = other if self.factor is None else apply("mul", self.factor, other)
        shift = None if self.shift is None else apply("mul", self.shift, other)
        return _Affine(self.element, factor, shift, self.count + 1)

    def plus(self, other: Scalar) -> _Affine:
        shift = other if self.shift is None else apply("add", self.shift, other)
        return _Affine(self.element, self.factor, shift, self.count + 1)

    def written(self) -> Scalar:
        scaled = self.element if self.factor is None else apply("mul", self.element, self.factor)
        return scaled if self.shift is None else apply("add", scaled, self.shift)


def join_factors(body: Scalar, is_element: Callable[[Scalar], bool], policy: Policy = DEFAULT_POLICY) -> Scalar:
    """Returns a body in which such chains of f32 operations are a product and a sum.

    Args:
        body: of a loop over elements.
        is_element: whether a value is another one for each element; all else is one of a channel.
        policy: says how many operands are worth it.
    """
    found: dict[Scalar, _Affine] = {}
    inside: set[Scalar] = set()
    for node in postorder((body,)):
        if node.dtype is not F32 or not is_element(node):
            continue
        found[node] = grown = _grown(node, found, is_element)
        if grown.element is not node:
            inside.update(arg for arg in node.args if isinstance(arg, Scalar))
    roots = {node: form for node, form in found.items() if node not in inside and form.count >= policy.affine_operands}
    return rewrite(body, lambda leaf: leaf, {node: form.written() for node, form in roots.items()})


def _grown(node: Scalar, found: dict[Scalar, _Affine], is_element: Callable[[Scalar], bool]) -> _Affine:
    """Returns a value as what an operand of it is, once more multiplied or added to; else as itself."""
    if node.op not in ("add", "sub", "mul"):
        return _Affine(node)
    left, right = node.args
    if node.op != "sub" and not is_element(left):
        left, right = right, left
    if left not in found or is_element(right):
        return _Affine(node)
    if node.op == "mul":
        return found[left].times(right)
    return found[left].plus(apply("neg", right) if node.op == "sub" else right)
