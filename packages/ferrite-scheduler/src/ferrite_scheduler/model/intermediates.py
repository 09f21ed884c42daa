"""Values that a rewrite puts between the definitions of a graph."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from ferrite_ir.language.dtypes import I64
from ferrite_ir.language.graph import Extern, Tag, TensorType, Value
from ferrite_ir.language.index import Dim
from ferrite_ir.language.sizes import Size


def new_value(wanted: str, tensor: TensorType, types: dict[str, TensorType]) -> Value:
    """Returns a value of this type, entered into ``types`` under the wanted name or one like it that is free."""
    name = wanted
    while name in types:
        name += "_"
    types[name] = tensor
    return Value(name, tensor)


def fresh_dim(letter: str, size: Size, taken: Iterable[Dim]) -> Dim:
    """Returns a dim of this size whose name is a letter and a number, and none of those that are taken."""
    names = {dim.name for dim in taken}
    return Dim(next(name for number in count() if (name := f"{letter}{number}") not in names), size)


def partial_value(result: Value, kind: str, shape: Iterable[Size], types: dict[str, TensorType]) -> Value:
    """Returns a new row-major value of this shape for intermediate states of a result, named ``<result>_<kind>``."""
    return new_value(
        f"{result.name}_{kind}", TensorType(result.type.dtype, tuple(shape), device=result.type.device), types
    )


def empty_for(result: Value, types: dict[str, TensorType], device: str = "") -> tuple[Value, Extern]:
    """Returns a buffer without contents that a result is stored into, and the call that allocates it.

    ``device`` is that of the graph, for results that do not name theirs.
    """
    home, kind = new_value(f"{result.name}_home", result.type, types), result.type
    kwargs = (("dtype", Tag("dtype", kind.dtype.name)), ("device", Tag("device", kind.device or device)))
    return home, Extern((home,), EMPTY, (kind.shape, kind.strides), kwargs)


EMPTY = "aten.empty_strided.default"
"""The call that allocates a buffer without contents."""
KEPT = "ferrite.kept"
"""The call that stands for a buffer which is kept from launch to launch: to the host it is a step, `schedule.Keep`."""


def workspace_of(
    result: Value, words: int, types: dict[str, TensorType], device: str = "", *, is_kept: bool = False
) -> tuple[Value, Extern]:
    """Returns what programs that make a result tell each other through, and the call that fills it with zeros.

    Args:
        result: what they make.
        words: elements (i64) of the workspace.
        types: of all values; the workspace is entered.
        device: of the graph, for results that do not name theirs.
        is_kept: whether it is filled once only, and each launch finds what the one before has left.
    """
    workspace = new_value(f"{result.name}_workspace", TensorType(I64, (words,), device=result.type.device), types)
    if is_kept:
        return workspace, Extern((workspace,), KEPT, (workspace.type.shape,), ())
    kwargs = (("dtype", Tag("dtype", "i64")), ("device", Tag("device", result.type.device or device)))
    return workspace, Extern((workspace,), "aten.zeros.default", (workspace.type.shape,), kwargs)
