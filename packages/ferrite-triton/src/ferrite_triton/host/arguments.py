"""Arguments of extern calls as JSON values."""

from __future__ import annotations

import math
from typing import Any

from ferrite_ir.language.graph import Tag, View
from ferrite_ir.language.sizes import Symbolic
from ferrite_triton.analysis.size_params import host_expression
from ferrite_triton.errors import EmitError


def encode_number(value: float) -> Any:
    """Returns a number as JSON: tagged where JSON has no word for it."""
    if math.isfinite(value):
        return value
    return {"float": "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}


def encode_argument(argument: Any) -> Any:
    """Returns an argument of an extern call as JSON: tensors by name, non-JSON things tagged, tuples as arrays.

    Raises:
        EmitError: the format has no word for an argument.
    """
    match argument:
        case None | bool() | int() | str():
            return argument
        case float():
            return encode_number(argument)
        case complex():
            return {"complex": [encode_number(argument.real), encode_number(argument.imag)]}
        case Symbolic():
            return {"size": host_expression(argument)}
        case View():
            return {"ref": argument.name}
        case Tag():
            return {argument.kind: argument.value}
        case tuple() | list():
            return [encode_argument(element) for element in argument]
    kind = type(argument).__name__
    raise EmitError(
        f"an extern call takes {argument!r} of type {kind}, which the program format cannot hold; make it an input"
    )
