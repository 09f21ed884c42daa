"""How far the results of a program move when what it computes on the way is rounded otherwise.

Eager's own error is one draw from all the roundings that a right compiler may make, and now and then a lucky one: an
element of a cancellation that comes out exact, a gradient of float32 that passed through float16. So each operation
whose result is not exact is moved by one unit in its last place, up or down by chance, and the program is run a few
times: Monte Carlo arithmetic (Parker 1997, "Monte Carlo Arithmetic: exploiting randomness in floating-point
arithmetic"). Exact results stay, so that comparisons of exact numbers decide as ever.

A sum or difference moves such operands once more whenever it reads them: a product that is added to something may not
be rounded before (IEEE 754 calls that contraction), so that ``x * y - x * y`` need not be zero. That holds of what
passes such numbers on, too, as a minimum does; and of a product with a number such as 1.7, which is rounded itself,
even where it comes out as float64 gives it. Normalisations and softmax are decomposed for that: what they subtract is
the mean of an operand, or its maximum. A sum in a wider type of halves that may not be rounded is not exact either.

Where eager rounds an operand to the type of its result first, as it does with a number of float64 that is subtracted
from halves, it is further from float64's result than by a unit in the last place: then that result is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

from fuzz_exactness import (
    CASTS,
    NARROW,
    Exactness,
    has_rounded_number,
    is_computed,
    name_of,
    tensors_of,
    widened_results,
)
from fuzz_pool import HALVES

SAMPLES = 4
"""Runs with other roundings."""
SUMS = ("add", "sub", "rsub", "addcmul", "addcdiv")
"""Operations that products are contracted with."""
DECOMPOSITIONS = {
    op: function
    for op, function in decomposition_table.items()
    if any(word in str(op) for word in ("layer_norm", "group_norm", "batch_norm", "softmax"))
}


class OtherRoundings(Exactness):
    """While this is active, results that are not exact are off by a unit in the last place."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)
        self.rounded: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Returns what the operation returns, rounded otherwise."""
        kwargs = kwargs or {}
        if func in DECOMPOSITIONS:
            with self:
                return DECOMPOSITIONS[func](*args, **kwargs)
        is_inexact = is_computed(func) and self.reads_inexact(func, args, kwargs)
        # A conversion that the program asks for rounds as it does, unless what it is given is off by a little.
        if not is_computed(func) or (name_of(func) in CASTS and not is_inexact):
            return func(*args, **kwargs)
        unrounded = widened_results(func, *pytree.tree_map(self.reread, (args, kwargs))) if is_inexact else None
        if name_of(func) in SUMS:
            args = (args[0] if func._schema.is_mutable else self.reread(args[0]), *map(self.reread, args[1:]))
        wide = widened_results(func, args, kwargs)
        is_rough = has_rounded_number(args, kwargs)
        reads_halves = any(x.dtype in HALVES for x in tensors_of((args, kwargs)))
        results = func(*args, **kwargs)
        for place, (result, right) in enumerate(zip(tensors_of(results), wide or [], strict=wide is not None)):
            other = unrounded[place] if unrounded is not None and place < len(unrounded) else right
            is_widened = reads_halves and result.dtype not in HALVES
            if self.move(result, right, other, is_widened=is_widened) or is_inexact:
                self.mark(result)
            if is_rough and result in self.rounded:
                self.rounded[result] = torch.zeros_like(self.rounded[result])
        return results

    def move(self, result: Tensor, right: Tensor, other: Tensor, *, is_widened: bool) -> bool:
        """Moves those elements of a result that are not what float64 gives; returns whether there are any.

        ``other`` is what float64 gives where operands were not rounded: where it differs, nor is the result. One of
        a wider type than operands (``is_widened``) may be off then, too.
        """
        if not result.is_floating_point() or not result.numel() or result.shape != right.shape:
            return False
        is_exact = (result if result.dtype in NARROW else result.float()).double() == right
        is_certain = is_exact & (right == other) if other.shape == right.shape else is_exact
        self.rounded[result] = is_certain
        is_exact = is_certain if is_widened else is_exact
        result.copy_(torch.where(is_exact, result, self.drawn(result, right)))
        return not bool(is_exact.all())

    def drawn(self, result: Tensor, right: Tensor) -> Tensor:
        """Returns what elements may be that are not what float64 gives: off by a unit, or that, where it is further."""
        moved = self.moved(result)
        is_far = (result.double() - right).abs() > (moved.double() - result.double()).abs()
        return torch.where(is_far, right.to(result.dtype), moved)

    def reread(self, operand: Any) -> Any:
        """Returns an operand as it may be where it was not rounded."""
        if not isinstance(operand, Tensor) or operand not in self.rounded:
            return operand
        return torch.where(self.rounded[operand], operand, self.moved(operand))

    def moved(self, numbers: Tensor) -> Tensor:
        """Returns numbers that are off by a unit in their last places."""
        signs = torch.randint(0, 2, numbers.shape, generator=self.generator).double() * 2 - 1
        return (numbers.double() * (1 + torch.finfo(numbers.dtype).eps * signs)).to(numbers.dtype)


def spread(sample: Callable[[OtherRoundings], Sequence[Tensor]], exact: Sequence[Tensor]) -> list[Tensor]:
    """Returns by how much, in float64, each element of the results is off at most in a few samples.

    What few samples do not move at all is taken to be off as the median of its tensor.

    Args:
        sample: computes the results with such roundings.
        exact: the results in float64.
    """
    found = [torch.zeros_like(right, dtype=torch.float64) for right in exact]
    for seed in range(SAMPLES):
        results = sample(OtherRoundings(seed))
        for most, result, right in zip(found, results, exact, strict=True):
            error = (result.detach().double() - right.detach().double()).abs()
            torch.maximum(most, error.nan_to_num(0.0, 0.0, 0.0), out=most)
    return [torch.maximum(most, most.median()) if most.numel() else most for most in found]
