"""Matrix products that a native sequence starts between its kernels: which extern calls they are, and what they take.

See ``native/products.h`` for the other side and docs/decisions/0006-native-products.md for why.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ferrite_runtime.formats.dtypes import DTYPES
from ferrite_runtime.formats.expression_sums import is_same, times
from ferrite_runtime.formats.expressions import Expr
from ferrite_runtime.formats.layouts import Layout
from ferrite_runtime.formats.steps import Extern, Tagged

OPERATIONS = ("mm", "addmm", "bmm", "baddbmm")
"""Names of the products, in the order of the native side's numbers."""

PRODUCT_DTYPES = ("f16", "bf16", "f32", "f64")

_SUMS = ("addmm", "baddbmm")
_MAX_DIMS = 3
_RECORD = struct.Struct("=IIdd")
_OPERAND = struct.Struct("=IIqiIII3q3q")

Location = tuple[str, int]
"""Where a matrix lies: the text of an address, and bytes after it."""


@dataclass(frozen=True, slots=True)
class Product:
    """A product of matrices as the library computes it: ``beta * summand + alpha * left @ right``.

    Attributes:
        operation: one of `OPERATIONS`.
        operands: names of the operands, in the library's order.
        layouts: layouts of the result and of the operands, in that order; all of one dtype.
        beta: the factor of the summand, where there is one.
        alpha: the factor of the product, where there is a summand.
        origin: what the call came from, for people.
    """

    operation: str
    operands: tuple[str, ...]
    layouts: tuple[Layout, ...]
    beta: float = 1.0
    alpha: float = 1.0
    origin: tuple[str, ...] = ()

    @property
    def result(self) -> Layout:
        """The layout of the result."""
        return self.layouts[0]

    @property
    def has_summand(self) -> bool:
        """Tells whether something is added to the product."""
        return self.operation in _SUMS

    def with_sizes(self, size: Callable[[Expr], Expr]) -> Product:
        """Returns the product with ``size`` of each size and stride in its place."""
        layouts = (
            Layout(layout.dtype, tuple(map(size, layout.shape)), tuple(map(size, layout.strides)))
            for layout in self.layouts
        )
        return replace(self, layouts=tuple(layouts))

    def size_names(self) -> tuple[str, ...]:
        """Returns the names among the sizes and strides."""
        sizes = (size for layout in self.layouts for size in (*layout.shape, *layout.strides))
        return tuple(dict.fromkeys(size for size in sizes if isinstance(size, str)))

    def describe(
        self, locations: Sequence[tuple[int, int]], codes: Mapping[str, int], values: Mapping[str, int]
    ) -> bytes:
        """Returns the description of the product, as ``products.h`` reads it.

        Args:
            locations: for the result and each operand the number of a value of the call, and bytes after it.
            codes: the library's numbers of dtypes.
            values: the numbers of the values of the call that sizes and strides are, by their names.
        """
        record = _RECORD.pack(OPERATIONS.index(self.operation), len(self.layouts), self.beta, self.alpha)
        operands = []
        for layout, (value, addend) in zip(self.layouts, locations, strict=True):
            sizes = (*_padded(layout.shape), *_padded(layout.strides))
            given = sum(1 << location for location, size in enumerate(sizes) if isinstance(size, str))
            numbers = (values[size] if isinstance(size, str) else size for size in sizes)
            itemsize = DTYPES[layout.dtype].itemsize
            head = (value, len(layout.shape), addend, codes[layout.dtype], itemsize, given, 0)
            operands.append(_OPERAND.pack(*head, *numbers))
        return record + b"".join(operands)


def _padded(sizes: Sequence[Expr]) -> tuple[Any, ...]:
    return (*sizes, *([0] * (_MAX_DIMS - len(sizes))))


def product_of(step: Extern, layout_of: Callable[[str], Layout | None]) -> Product | None:
    """Returns an extern call as a product, None where it is none that the native side computes.

    The result has to be a new, contiguous tensor that somebody reads, or one that the call is given and does not give
    back (``out``), however its rows lie; and no size the number 0. Sizes that a call tells may be 0; those that have to
    agree have to be surely the same.

    Args:
        step: the call.
        layout_of: the layout of a tensor of the program's device; None where it is not known, or the tensor elsewhere.
    """
    place = place_of(step)
    overload = ".default" if place is None else ".out"
    operation = step.target.removeprefix("aten.").removesuffix(overload)
    if operation not in OPERATIONS or step.target != f"aten.{operation}{overload}":
        return None
    names = [str(arg.value) for arg in step.args if isinstance(arg, Tagged) and arg.tag == "ref"]
    factors = _factors(step, operation)
    if len(names) != len(step.args) or len(names) != (3 if operation in _SUMS else 2) or factors is None:
        return None
    operands = [layout_of(name) for name in names]
    known = [layout for layout in operands if layout is not None]
    if len(known) != len(operands) or len(step.results) != 1 or step.binds:
        return None
    result = _result(operation, known)
    if result is not None and place is not None:
        given = layout_of(place)
        result = given if given is not None and step.results[0] is None and _fits(given, result) else None
    elif step.results[0] is None:
        return None
    wanted = step.strides[0] if step.strides is not None and place is None else None
    if result is None or (wanted is not None and not _agree(wanted, result.strides)):
        return None
    return Product(operation, tuple(names), (result, *known), *factors, step.origin)


def place_of(step: Extern) -> str | None:
    """Returns the name of the tensor that a call writes its result to; None if it makes a new one."""
    place = step.kwargs.get("out")
    return str(place.value) if isinstance(place, Tagged) and place.tag == "ref" else None


def _fits(given: Layout, result: Layout) -> bool:
    """Tells whether a tensor has the type and the sizes of a result."""
    return given.dtype == result.dtype and _agree(given.shape, result.shape)


def _factors(step: Extern, operation: str) -> tuple[float, float] | None:
    """Returns the factors of the summand and the product; None where they are no plain numbers."""
    allowed = ("beta", "alpha") if operation in _SUMS else ()
    given = {name: value for name, value in step.kwargs.items() if name != "out"}
    if any(name not in allowed or type(value) not in (int, float) for name, value in given.items()):
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
    if not _agree(batch, others) or not is_same(k, depth):
        return None
    shape = (*batch, m, n)
    if summand and not _expands(summand[0].shape, shape):
        return None
    strides = tuple(times(*shape[axis + 1 :]) for axis in range(rank))
    return Layout(dtype, shape, strides)


def _agree(left: Sequence[Expr], right: Sequence[Expr]) -> bool:
    """Tells whether sizes are surely the same one by one."""
    return len(left) == len(right) and all(map(is_same, left, right))


def _expands(shape: Sequence[Expr], wanted: Sequence[Expr]) -> bool:
    """Tells whether a tensor can be added to one of the shape ``wanted``."""
    if not 1 <= len(shape) <= len(wanted):
        return False
    pairs = zip(reversed(shape), reversed(wanted), strict=False)
    return all(size == 1 or is_same(size, whole) for size, whole in pairs)
