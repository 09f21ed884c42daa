"""Ops that copy the whole storage of their operand to write a part of it: what the copy holds beside the operand.

    t = x[1:].slice_scatter(y, 0, 0, 1)     eager copies all of x's memory; t is to the copy what x[1:] is to x
    t.as_strided((2,), (1,), 3)             so this reads x[0, 3:5]

Tensors without data begin at 0 instead and have no more memory than elements. Sizes and strides are the same, so that
nothing but ``as_strided`` and its like, which count positions from the start of the storage, can tell. Where a program
calls one of these, the copy is made as eager makes it.
"""

from __future__ import annotations

from typing import Any

import torch

from ferrite_torch.errors import Unsupported
from ferrite_torch.rewrites.overlapping_targets import PARTS, lies_on_itself, written_in_memory
from ferrite_torch.torch_private.nodes import nodes_of, target_name
from ferrite_torch.torch_private.observation import is_in_gradient_formula
from ferrite_torch.torch_private.operators import Overload
from ferrite_torch.torch_private.symbolic_shapes import is_known

_READERS = ("as_strided", "storage_offset")
_KNOWN = frozenset(("torch", "_operator", "math", "builtins"))
"""Packages whose functions do what their names say."""


def counts_from_storage(module: torch.nn.Module) -> bool:
    """Returns whether captured graphs have an op that counts positions from the start of a storage, or may have one.

    Functions of a program's own that are called whole (``torch.compiler.allow_in_graph``) may.
    """
    return any(map(_counts_from_storage, nodes_of(module)))


def _counts_from_storage(node: torch.fx.Node) -> bool:
    if target_name(node).startswith(_READERS):
        return True
    package = str(getattr(node.target, "__module__", None) or "torch").partition(".")[0]
    return node.op == "call_function" and package not in _KNOWN


def called_on_storage(op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns what an op that writes a part of a copy returns, in a copy of the storage of its operand.

    NotImplemented for other ops, and for operands that are all that their storage holds. So it is where torch's formula
    of a gradient calls the op: nothing there counts positions, and where the gradient of a result lies is not known.
    """
    part = PARTS.get(op)
    if part is None or len(args) < 2 or is_in_gradient_formula():
        return NotImplemented
    x, source, *position = args
    if x.layout is not torch.strided or lies_on_itself(x):
        return NotImplemented
    try:
        held = x.untyped_storage().nbytes() // x.element_size()
    except RuntimeError as error:  # torch 2.15 does not hand over the size of what an input is a view of
        raise Unsupported("a copy of the whole storage of an operand, whose size the graph is not given") from error
    if is_known(x.storage_offset() == 0) and is_known(held == x.numel()):
        return NotImplemented
    return written_in_memory(x, source, part(x, *position, **kwargs), 0, held)
