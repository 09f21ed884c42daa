"""Which numbers of a program every right compiler must give to the last bit, and which it may round otherwise.

A number is exact if each operation on the way to it gave in its own type what it gives in float64, whatever the order
in which it is computed, or was a conversion that the program asks for: those round, and say how. All others carry a
mark, which spreads to whatever reads them. Marks are kept for storages, so that views and writes share them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

NARROW = (torch.float32, torch.float16, torch.bfloat16)
"""The types whose results are exact where float64 gives the same; one of float64 counts as exact if float32 has it."""

CASTS = frozenset(("_to_copy", "copy", "to", "type_as"))
"""Conversions that a program asks for: rounding is what they are for."""

SHAPED = frozenset(
    ("zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty")
)
"""Operations that read nothing but the shape of their operand."""

ANY_ORDER = frozenset(
    """
    _unsafe_index abs add addcmul amax amin aminmax arange as_strided_scatter cat ceil clamp clamp_max clamp_min
    clone constant_pad_nd copysign cummax cummin diag_embed diagonal_scatter empty empty_strided eye fill flip
    floor floor_divide fmax fmin fmod frac full gather hardtanh heaviside index index_copy index_fill index_put
    index_select isin kthvalue lift_fresh_copy logical_not masked_fill masked_scatter max maximum median min
    minimum mode mul nan_to_num neg new_empty_strided ones put relu remainder repeat resize roll rot90 round rsub
    scalar_tensor scatter select_copy select_scatter sgn sign slice_scatter sort stack sub take topk tril
    tril_indices triu triu_indices trunc unfold_copy where zero zeros
    """.split()  # noqa: SIM905
)  # fmt: skip
"""Operations that give the same number however they are computed, if float64 gives that number too."""

PRODUCTS = frozenset(("mm", "bmm", "addmm", "baddbmm", "mv", "dot"))
SUMS = PRODUCTS | {"sum", "cumsum", "index_add", "scatter_add", "scatter_reduce", "index_reduce", "trace"}
"""Operations that add up many numbers in an order of their own."""

UNIT = 64
"""Sums are exact in any order where what is added is a multiple of one part in so many …"""
LARGEST = 2.0**16
"""… and the sums of their sizes no larger than this: all that is added on the way fits into 24 bits."""


def storage(x: Tensor) -> int:
    """Returns a number that tensors over one storage share."""
    return x.untyped_storage()._cdata


class Exactness(TorchDispatchMode):
    """While this is active, storages of floating numbers that are not exact are marked."""

    def __init__(self) -> None:
        super().__init__()
        self.inexact: dict[int, Any] = {}  # with the storages themselves, so that no other takes their numbers

    def is_inexact(self, x: Tensor) -> bool:
        """Returns whether a tensor holds floats that another order of operations would round otherwise."""
        return x.is_floating_point() and storage(x) in self.inexact

    def mark(self, x: Tensor) -> None:
        """Marks the storage of a tensor."""
        self.inexact[storage(x)] = x.untyped_storage()

    def unmark(self, x: Tensor) -> None:
        """Takes the mark of a tensor's storage away: what it holds is given from now on."""
        self.inexact.pop(storage(x), None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Returns what the operation returns, and marks it."""
        kwargs = kwargs or {}
        if not is_computed(func):
            return func(*args, **kwargs)
        is_inexact = self.reads_inexact(func, args, kwargs)
        if name_of(func) in CASTS and not is_inexact:
            return func(*args, **kwargs)
        wide = None if is_inexact else exact_results(func, args, kwargs)
        results = func(*args, **kwargs)
        for place, result in enumerate(tensors_of(results)):
            right = wide[place] if wide is not None and place < len(wide) else None
            if result.is_floating_point() and (right is None or not is_same(result, right)):
                self.mark(result)
        return results

    def reads_inexact(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Returns whether an operation reads marked numbers."""
        name = name_of(func)
        if name in SHAPED or name in ("fill", "zero"):
            return False
        leaves = tensors_of((args[1:], kwargs) if name == "copy" else (args, kwargs))
        return any(map(self.is_inexact, leaves))


def name_of(func: Any) -> str:
    """Returns the name of an operation, the same for one that writes in place."""
    name: str = func.overloadpacket.__name__
    return name.removesuffix("_")


def is_computed(func: Any) -> bool:
    """Returns whether an operation computes numbers from its operands alone: it is no view, and draws nothing."""
    aliases = [each.alias_info for each in func._schema.returns if each.alias_info is not None]
    return all(alias.is_write for alias in aliases) and torch.Tag.nondeterministic_seeded not in func.tags


def is_same(result: Tensor, right: Tensor) -> bool:
    held = result if result.dtype in NARROW else result.float()
    return held.shape == right.shape and torch.equal(held.double(), right.double())


def exact_results(func: Any, args: Any, kwargs: Any) -> list[Tensor] | None:
    """Returns in float64 what an operation on exact operands must give to the last bit; None if it need not."""
    name = name_of(func)
    is_power = name == "pow" and len(args) == 2 and args[1] == 2
    is_sum = name in SUMS or (name == "index_put" and ((len(args) > 3 and args[3]) or kwargs.get("accumulate")))
    if not (is_sum or is_power or name in ANY_ORDER or (name == "div" and kwargs.get("rounding_mode"))):
        return None
    if (is_sum and not are_exact_sums(func, args, kwargs)) or has_rounded_number(args, kwargs):
        return None
    return widened_results(func, args, kwargs)


def has_rounded_number(args: Any, kwargs: Any) -> bool:
    """Returns whether a number such as 1.7 is rounded to meet operands.

    What is multiplied by it may come out exact only where it is rounded at once, not where it is added to something: of
    float64 as well, where the product with the nearest number to 1.7 has more digits than either.
    """
    leaves = pytree.tree_leaves((args, kwargs))
    if not any(map(is_float, leaves)):
        return False
    numbers = [leaf for leaf in leaves if isinstance(leaf, float) and abs(leaf) < float("inf")]
    return any(float(torch.tensor(number, dtype=torch.float32)) != number for number in numbers)


def are_exact_sums(func: Any, args: Any, kwargs: Any) -> bool:
    """Returns whether sums of these operands are exact in any order."""
    if "prod" in args or "mean" in args or kwargs.get("reduce") in ("prod", "mean"):
        return False
    operands = [x for x in tensors_of((args, kwargs)) if x.is_floating_point()]
    unit = UNIT**0.5 if name_of(func) in PRODUCTS else UNIT
    if not all(is_multiple(x, unit) for x in operands):
        return False
    sizes = pytree.tree_map(lambda leaf: leaf.abs() if is_float(leaf) else leaf, (args, kwargs))
    results = widened_results(func, *sizes)
    return results is not None and all(
        float(x.abs().max()) <= LARGEST for x in results if x.is_floating_point() and x.numel()
    )


def is_float(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def is_multiple(x: Tensor, unit: float) -> bool:
    scaled = x.double() * unit
    return bool((scaled == scaled.round()).all())


def copied(arguments: Any) -> Any:
    """Returns arguments with tensors that may be written, floating ones in float64."""

    def copy(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.to(torch.float64, copy=True) if leaf.is_floating_point() else leaf.clone()
        return torch.float64 if isinstance(leaf, torch.dtype) and leaf in NARROW else leaf

    return pytree.tree_map(copy, arguments)


def computed(func: Any, args: Any, kwargs: Any) -> list[Tensor] | None:
    """Returns what an operation gives; None if it cannot."""
    try:
        return tensors_of(func(*args, **kwargs))
    except (RuntimeError, NotImplementedError, IndexError):
        return None


def widened_results(func: Any, args: Any, kwargs: Any) -> list[Tensor] | None:
    """Returns what an operation gives in float64; None if it cannot say."""
    return computed(func, *copied((args, kwargs)))


def tensors_of(results: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, Tensor)]
