"""Checks a program's inputs against what the program was compiled for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ferrite_runtime.errors import InputError
from ferrite_runtime.formats.dtypes import DTYPES
from ferrite_runtime.formats.expressions import evaluate
from ferrite_runtime.formats.json_fields import MAX_INTEGER
from ferrite_runtime.formats.layouts import Layout
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.steps import Input, Let, Probe
from ferrite_runtime.host.tensors import torch_dtype


def check_inputs(program: Program, inputs: Sequence[Any]) -> None:
    """Raises `InputError`, naming the input, unless every input has the type that ``program`` declares."""
    if len(inputs) != len(program.inputs):
        names = ", ".join(value.name for value in program.inputs)
        raise InputError(
            f"program {program.name} takes {len(program.inputs)} inputs ({names}), got {len(inputs)}", "inputs"
        )
    devices = set()
    numbers = _numbers(program, inputs)
    for position, (declared, actual) in enumerate(zip(program.inputs, inputs, strict=True)):
        where = f"input {declared.name!r} (number {position}) of program {program.name}"
        if declared.kind == "tensor":
            _check_tensor(declared, actual, where, numbers)
            if actual.device.type == program.device:
                devices.add(actual.device)
        elif declared.kind == "scalar":
            check_number(declared.dtype, actual, where, declared.name)
        elif isinstance(actual, int) and not -MAX_INTEGER <= actual < MAX_INTEGER:
            raise InputError(f"{where} does not fit into 64 bits", declared.name)
    if len(devices) > 1:
        found = sorted(map(str, devices))
        raise InputError(f"the inputs of program {program.name} are on several devices: {found}", "device")


def check_number(dtype: str | None, value: object, where: str, name: str) -> None:
    """Raises `InputError` unless a value is a number that can be passed as this type: an integer is not cut off.

    Args:
        dtype: what it is passed as; None takes any number of 64 bits.
        value: what somebody gives.
        where: what it is given for, for messages.
        name: that, as a caller names it.
    """
    if not isinstance(value, (bool, int, float)):
        raise InputError(f"{where} is a number, got {type(value).__name__}", name)
    known = DTYPES.get(dtype or "")
    if known is not None and known.is_integer and isinstance(value, float):
        raise InputError(f"{where} is an integer ({dtype}), got {value!r}", name)
    if isinstance(value, int) and (known is None or known.is_integer):
        bits = 64 if known is None or known.name == "bool" else 8 * known.itemsize
        least = 0 if known is not None and known.name[0] == "u" else -(1 << (bits - 1))
        if not least <= value < least + (1 << bits):
            raise InputError(f"{where} does not fit into {bits} bits, got {value}", name)


def _numbers(program: Program, inputs: Sequence[Any]) -> dict[str, int]:
    """Returns the integers of a program that follow from its inputs; those with a wrong number of axes tell nothing."""
    given = {declared.name: actual for declared, actual in zip(program.inputs, inputs, strict=True)}
    numbers = {name: value for name, value in given.items() if type(value) is int}
    for step in program.steps:
        match step:
            case Let(name, Probe(kind, tensor, axis)):
                actual = given.get(tensor)
                if actual is None or not hasattr(actual, "dim") or actual.dim() <= axis:
                    break
                numbers[name] = int(getattr(actual, kind)(axis))
            case Let(name, value) if not isinstance(value, Probe):
                numbers[name] = evaluate(value, numbers)
            case _:
                break
    return numbers


def _exact(layout: Layout, numbers: dict[str, int]) -> Layout:
    """Returns a layout with its expressions computed."""
    if all(isinstance(size, int) for size in (*layout.shape, *layout.strides)):
        return layout
    shape, strides = (tuple(evaluate(size, numbers) for size in row) for row in (layout.shape, layout.strides))
    return Layout(layout.dtype, shape, strides)


def _check_tensor(declared: Input, actual: Any, where: str, numbers: dict[str, int]) -> None:
    import torch

    layout = declared.layout
    assert layout is not None
    if not isinstance(actual, torch.Tensor):
        raise InputError(f"{where} is a tensor, got {type(actual).__name__}", declared.name)
    if actual.device.type != declared.device:
        raise InputError(f"{where} is on {declared.device}, got a tensor on {actual.device}", f"{declared.name}.device")
    if actual.dtype != torch_dtype(layout.dtype):
        raise InputError(f"{where} has dtype {torch_dtype(layout.dtype)}, got {actual.dtype}", f"{declared.name}.dtype")
    if actual.dim() != len(layout.shape):
        raise InputError(f"{where} has {len(layout.shape)} axes, got {actual.dim()}", f"{declared.name}.shape")
    layout = _exact(layout, numbers)
    if tuple(actual.shape) != layout.shape:
        raise InputError(f"{where} has shape {layout.shape}, got {tuple(actual.shape)}", f"{declared.name}.shape")
    if not _strides_agree(layout, tuple(actual.stride())):
        raise InputError(
            f"{where} has strides {layout.strides}, got {tuple(actual.stride())}", f"{declared.name}.strides"
        )


def _strides_agree(layout: Layout, strides: tuple[int, ...]) -> bool:
    """Tells whether strides address the same elements; the stride of an axis of size 1 is never used."""
    if layout.is_empty:
        return True
    return all(
        size == 1 or wanted == actual
        for size, wanted, actual in zip(layout.shape, layout.strides, strides, strict=True)
    )
