"""Matrix products that a native sequence starts between its kernels: which library calls they are, and what they take.

See ``native/products.h`` for the other side and docs/decisions/0006-native-products.md for why.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ferrite_runtime.dtypes import DTYPES
from ferrite_runtime.steps import Extern, Layout, Tagged

OPERATIONS = ("mm", "addmm", "bmm", "baddbmm")
"""Names of the products, in the order of the native side's numbers."""

PRODUCT_DTYPES = ("f16", "bf16", "f32", "f64")

_SUMS = ("addmm", "baddbmm")
_MAX_DIMS = 3
_RECORD = struct.Struct("=IIdd")
_OPERAND = struct.Struct("=IIqiI3q3q")

Place = tuple[str, int]
"""Where a matrix lies: the text of an address, and bytes after it."""


@dataclass(frozen=True, slots=True)
class Product:
    """A product of matrices as the library computes it: ``beta * summand + alpha * left @ right``.

    Attributes:
        operation: one of `OPERATIONS`.
        operands: names of the operands, in the library's order.
        layouts: layouts of the result and of the operands, in that order; all of one dtype, their sizes numbers.
        beta: the factor of the summand, where there is one.
        alpha: the factor of the product, where there is a summand.
    """

    operation: str
    operands: tuple[str, ...]
    layouts: tuple[Layout, ...]
    beta: float = 1.0
    alpha: float = 1.0

    @property
    def result(self) -> Layout:
        """The layout of the result."""
        return self.layouts[0]

    @property
    def has_summand(self) -> bool:
        """Tells whether something is added to the product."""
        return self.operation in _SUMS

    def describe(self, places: Sequence[tuple[int, int]], codes: dict[str, int]) -> bytes:
        """Returns the description of the product, as ``products.h`` reads it.

        Args:
            places: for the result and each operand the number of a value of the call, and bytes after it.
            codes: the library's numbers of dtypes.
        """
        record = _RECORD.pack(OPERATIONS.index(self.operation), len(self.layouts), self.beta, self.alpha)
        operands = (
            _OPERAND.pack(
                value,
                len(layout.shape),
                addend,
                codes[layout.dtype],
                DTYPES[layout.dtype].itemsize,
                *_padded(layout.shape),
                *_padded(layout.strides),
            )
            for layout, (value, addend) in zip(self.layouts, places, strict=True)
        )
        return record + b"".join(operands)


def _padded(numbers: Sequence[Any]) -> tuple[int, ...]:
    return (*numbers, *([0] * (_MAX_DIMS - len(numbers))))


def product_of(step: Extern, layout_of: Callable[[str], Layout | None]) -> Product | None:
    """Returns a library call as a product, None where it is none that the native side computes.

    The result has to be a new, contiguous tensor that somebody reads, and every size a number other than 0.

    Args:
        step: the call.
        layout_of: the layout of a tensor of the program's device; None where it is not known, or the tensor elsewhere.
    """
    operation = step.target.removeprefix("aten.").removesuffix(".default")
    if operation not in OPERATIONS or step.target != f"aten.{operation}.default":
        return None
    names = [str(arg.value) for arg in step.args if isinstance(arg, Tagged) and arg.tag == "ref"]
    factors = _factors(step, operation)
    if len(names) != len(step.args) or len(names) != (3 if operation in _SUMS else 2) or factors is None:
        return None
    operands = [layout_of(name) for name in names]
    known = [layout for layout in operands if layout is not None and layout.numbers is not None]
    if len(known) != len(operands) or len(step.results) != 1 or step.results[0] is None or step.binds:
        return None
    result = _result(operation, known)
    if result is None or (step.strides is not None and step.strides[0] not in (None, result.strides)):
        return None
    return Product(operation, tuple(names), (result, *known), *factors)


def _factors(step: Extern, operation: str) -> tuple[float, float] | None:
    """Returns the factors of the summand and the product; None where they are no plain numbers."""
    allowed = ("beta", "alpha") if operation in _SUMS else ()
    if any(name not in allowed or type(value) not in (int, float) for name, value in step.kwargs.items()):
        return None
    return float(step.kwargs.get("beta", 1)), float(step.kwargs.get("alpha", 1))


def _result(operation: str, operands: Sequence[Layout]) -> Layout | None:
    """Returns the layout that the library gives the result of matrices that go together; None if these do not."""
    *summand, left, right = operands
    dtype = left.dtype
    rank = 3 if operation in ("bmm", "baddbmm") else 2
    if dtype not in PRODUCT_DTYPES or any(layout.dtype != dtype or layout.is_empty for layout in operands):
        return None
    if len(left.shape) != rank or len(right.shape) != rank:
        return None
    *batch, m, k = left.shape
    *others, depth, n = right.shape
    if batch != others or k != depth:
        return None
    shape = (*batch, m, n)
    if summand and not _expands(summand[0].shape, shape):
        return None
    strides = tuple(_count(shape[axis + 1 :]) for axis in range(rank))
    return Layout(dtype, shape, strides)


def _expands(shape: Sequence[Any], wanted: Sequence[Any]) -> bool:
    """Tells whether a tensor can be added to one of the shape ``wanted``."""
    if not 1 <= len(shape) <= len(wanted):
        return False
    pairs = zip(reversed(shape), reversed(wanted), strict=False)
    return all(size in (1, whole) for size, whole in pairs)


def _count(shape: Sequence[Any]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
