"""Rows of a target's table of elementwise operations: one spelling for each kind of operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from ferrite_ir.language.dtypes import DType
from ferrite_triton.errors import UnsupportedDefinition

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Row(Generic[S]):
    """How one operation is written, by kind of its operands; None where the language has no such operation."""

    float: S | None = None
    int: S | None = None
    uint: S | None = None
    bool: S | None = None


def everywhere(spelling: S) -> Row[S]:
    """Returns a row for operands of all kinds."""
    return Row(spelling, spelling, spelling, spelling)


def numbers(spelling: S) -> Row[S]:
    """Returns a row for floats and integers."""
    return Row(spelling, spelling, spelling)


def integers(spelling: S, boolean: S | None = None) -> Row[S]:
    """Returns a row for integers, and for bools if they have a spelling, too."""
    return Row(None, spelling, spelling, boolean)


def row_of(rows: Mapping[str, Row[S]], op: str, dtype: DType, target: str) -> S:
    """Returns how an operation is written for operands of a (computed) type.

    Raises:
        UnsupportedDefinition: the target, of this name, has no text of the operation for the type.
    """
    row = rows.get(op)
    found: S | None = None if row is None else getattr(row, dtype.kind, None)
    if found is None:
        raise UnsupportedDefinition(f"no {target} text for {op} of {dtype}; add a row to the target's spellings")
    return found
