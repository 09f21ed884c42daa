"""The types of tensors in a program: dtype, shape and strides, read from JSON and written back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ferrite_runtime.errors import SpecError
from ferrite_runtime.formats.dtypes import is_dtype
from ferrite_runtime.formats.expressions import Expr, read_expr, write_expr
from ferrite_runtime.formats.json_fields import Fields

MAX_DIMS = 64
"""Dimensions that a tensor may have; torch has no more."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The type of a tensor: dtype, and shape and strides counted in elements, numbers or expressions of the program."""

    dtype: str
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]

    @property
    def is_empty(self) -> bool:
        """Tells whether the tensor has no elements."""
        return 0 in self.shape

    @property
    def numbers(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Shape and strides where all of them are numbers, None where some are expressions."""
        shape = tuple(size for size in self.shape if isinstance(size, int))
        strides = tuple(stride for stride in self.strides if isinstance(stride, int))
        is_exact = len(shape) == len(self.shape) and len(strides) == len(self.strides)
        return (shape, strides) if is_exact else None


def read_layout(fields: Fields) -> Layout:
    """Returns the layout in the fields ``dtype``, ``shape`` and ``strides``."""
    layout = Layout(read_dtype(fields), read_exprs(fields, "shape"), read_exprs(fields, "strides"))
    if len(layout.shape) != len(layout.strides):
        raise SpecError(fields.at("strides"), f"{len(layout.strides)} strides for {len(layout.shape)} dimensions")
    if len(layout.shape) > MAX_DIMS:
        raise SpecError(fields.at("shape"), f"{len(layout.shape)} dimensions, torch has {MAX_DIMS} at most")
    if any(isinstance(size, int) and size < 0 for size in layout.shape):
        raise SpecError(fields.at("shape"), "a size is negative")
    if any(isinstance(stride, int) and stride < 0 for stride in layout.strides):
        raise SpecError(fields.at("strides"), "a stride is negative")
    return layout


def read_exprs(fields: Fields, name: str) -> tuple[Expr, ...]:
    """Returns the integers, numbers or expressions, in a field."""
    return tuple(read_expr(value, f"{fields.at(name)}[{i}]") for i, value in enumerate(fields.array(name)))


def read_dtype(fields: Fields) -> str:
    """Returns the dtype in the field ``dtype``."""
    dtype = fields.string("dtype")
    if not is_dtype(dtype):
        raise SpecError(fields.at("dtype"), f"unknown dtype {dtype!r}")
    return dtype


def write_layout(layout: Layout) -> dict[str, Any]:
    """Returns the fields of a layout."""
    return {
        "dtype": layout.dtype,
        "shape": list(map(write_expr, layout.shape)),
        "strides": list(map(write_expr, layout.strides)),
    }
