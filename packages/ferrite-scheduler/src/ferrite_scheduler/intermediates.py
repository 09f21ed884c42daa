"""Values that a rewrite puts between the definitions of a graph."""

from __future__ import annotations

from collections.abc import Iterable

from ferrite_ir.graph import TensorType, Value
from ferrite_ir.sizes import Size


def new_value(wanted: str, tensor: TensorType, types: dict[str, TensorType]) -> Value:
    """Returns a value of this type, entered into ``types`` under the wanted name or one like it that is free."""
    name = wanted
    while name in types:
        name += "_"
    types[name] = tensor
    return Value(name, tensor)


def partial_value(result: Value, kind: str, shape: Iterable[Size], types: dict[str, TensorType]) -> Value:
    """Returns a new row-major value of this shape for intermediate states of a result, named ``<result>_<kind>``."""
    return new_value(
        f"{result.name}_{kind}", TensorType(result.type.dtype, tuple(shape), device=result.type.device), types
    )
