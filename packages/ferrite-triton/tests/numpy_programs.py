"""Runs tile programs as NumPy functions, beside the tile evaluator, on the same lists of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ferrite_ir.language.dtypes import BF16, DType
from ferrite_ir.language.scalar import Number
from ferrite_ir.reference.rounding import from_bits, to_bits
from ferrite_triton.printing.numpy_target import print_numpy
from ferrite_triton.tile import TileProgram, run_program

np = pytest.importorskip("numpy")

_NAMES = {"bool": "bool", "f": "float", "i": "int", "u": "uint"}


def array_of(numbers: Sequence[Number], dtype: DType) -> Any:
    """Returns the memory that holds numbers of a type: bits, of bfloat16."""
    if dtype is BF16:
        return np.array([to_bits(number, dtype) for number in numbers], np.uint16)
    with np.errstate(all="ignore"):
        return np.array(numbers, numpy_name(dtype))


def numbers_of(array: Any, dtype: DType) -> list[Number]:
    """Returns the numbers in memory."""
    return [from_bits(bits, dtype) for bits in array.tolist()] if dtype is BF16 else list(array.tolist())


def numpy_name(dtype: DType) -> str:
    """Returns what NumPy calls a type."""
    return _NAMES.get(dtype.name) or f"{_NAMES[dtype.name[0]]}{dtype.bits}"


def run_in_numpy(
    program: TileProgram,
    arguments: Mapping[str, list[Number] | Number],
    constants: Mapping[str, int],
    grid: Sequence[int],
) -> None:
    """Does what `run_program` does: what a program stores is in the lists of ``arguments`` afterwards."""
    space: dict[str, Any] = {}
    exec(print_numpy(program), space)
    types = {parameter.name: parameter.type.dtype for parameter in program.parameters}
    given = {
        name: array_of(value, types[name]) if isinstance(value, list) else value for name, value in arguments.items()
    }
    space[program.name](**given, **constants, grid=tuple(grid))
    for name, value in arguments.items():
        if isinstance(value, list):
            value[:] = numbers_of(given[name], types[name])


def run_both(
    program: TileProgram,
    arguments: Mapping[str, list[Number] | Number],
    constants: Mapping[str, int],
    grid: Sequence[int],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns what arguments are after the program ran in NumPy, and after it ran in the tile evaluator."""
    copies = [
        {name: list(value) if isinstance(value, list) else value for name, value in arguments.items()} for _ in range(2)
    ]
    run_in_numpy(program, copies[0], constants, grid)
    run_program(program, copies[1], constants, grid)
    return copies[0], copies[1]
