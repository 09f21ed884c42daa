"""The operators that graphs call: their classes, schemas and torch's own decompositions of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._prims_common import compute_required_storage_length

Overload = torch._ops.OpOverload
"""An aten op in the form that graphs hold; torch gives the class no public name."""

Packet = torch._ops.OpOverloadPacket
"""All overloads of an op under one name; no public name either."""

READS = "aten._local_scalar_dense.default"
"""What ``item`` is in a graph: it makes a number of a tensor of one element."""

HigherOrderOp = torch._ops.HigherOrderOperator
"""An op that takes functions, such as ``cond``; no public name either."""

INLINED = frozenset(("associative_scan", "flex_attention", "flex_attention_backward"))
"""Higher-order ops whose functions become part of the graphs that they stand in, where these are compiled."""


def schema_of(op: Overload) -> Any:
    """Returns an op's schema: which arguments it writes, which results alias them; only a private attribute has it."""
    return op._schema


def arguments_by_name(op: Overload, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all arguments of a call of an op by their names; those that are left out have their default values."""
    declared = schema_of(op).arguments
    given = {**dict(zip((argument.name for argument in declared), args, strict=False)), **named}
    return {argument.name: given.get(argument.name, argument.default_value) for argument in declared}


_UNMARKED = """
    celu copy elu elu_backward floor_divide gelu gelu_backward hardshrink hardshrink_backward hardsigmoid
    hardsigmoid_backward hardswish hardswish_backward hardtanh hardtanh_backward heaviside leaky_relu
    leaky_relu_backward log_sigmoid_backward masked_fill mish mish_backward relu6 rsub selu silu silu_backward softplus
    softplus_backward softshrink softshrink_backward threshold threshold_backward where
"""
_BY_ELEMENT = frozenset(_UNMARKED.split())
"""Ops that compute element by element and are not marked as such, in one or another of the supported releases."""


@functools.cache
def computes_by_element(name: str) -> bool:
    """Returns whether an op of aten, or the one that does it in place, computes element by element."""
    packet = getattr(torch.ops.aten, name, None)
    overloads = [] if packet is None else [getattr(packet, each) for each in packet.overloads()]
    return name in _BY_ELEMENT or any(torch.Tag.pointwise in each.tags for each in overloads)


def is_by_element(op: object) -> bool:
    """Returns whether an operator computes element by element, as torch marks it, or as releases before did not."""
    if not isinstance(op, Overload):
        return False
    return torch.Tag.pointwise in op.tags or (op.namespace == "aten" and computes_by_element(functional_name(op)))


def makes_view(op: object) -> bool:
    """Returns whether an operator makes one view of its first operand, and writes to nothing."""
    if not isinstance(op, Overload):
        return False
    schema = schema_of(op)
    aliased = [argument.alias_info for argument in schema.arguments]
    return not schema.is_mutable and bool(aliased) and aliased[0] is not None and len(schema.returns) == 1


def reshapes(op: object) -> bool:
    """Returns whether an operator makes a view of its first operand, or would but that nobody else has that."""
    return makes_view(op) or str(op) == "aten._unsafe_view.default"


def is_read_by_element(node: torch.fx.Node) -> bool:
    """Returns whether some ops read a node's result, or views of it, and all of them compute element by element.

    A linear layer of sequences is a view of a product of matrices.
    """
    pending, readers = list(node.users), 0
    while pending:
        reader = pending.pop()
        if reshapes(reader.target):
            pending += reader.users
        elif is_by_element(reader.target):
            readers += 1
        else:
            return False
    return readers > 0


def functional_name(op: Overload) -> str:
    """Returns the name of an operator of aten, or of the one that computes what it writes in place."""
    return str(schema_of(op).name.removeprefix("aten::").removesuffix("_"))


def negated_view(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a view of a tensor that is negated when it is read, as the ``imag`` of a conjugate is."""
    return torch._neg_view(tensor)


def has_no_memory(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is one of zeros that are nowhere, as torch makes them for derivatives that are none."""
    return tensor._is_zerotensor()


def unwrapped_function(node: torch.fx.Node) -> Callable[..., Any] | None:
    """Returns what a call of ``auto_functionalized`` or ``out_dtype`` means, on the same arguments; None for others.

    The functions that take the wrappers apart live beside them, in private modules.
    """
    if not isinstance(node.target, HigherOrderOp):
        return None
    name = str(node.target)
    if name == "out_dtype":
        from torch._higher_order_ops.out_dtype import out_dtype_dense

        return out_dtype_dense
    if not name.startswith("auto_functionalized"):
        return None
    from torch._higher_order_ops import auto_functionalize

    function: Callable[..., Any] = getattr(auto_functionalize, f"{name}_dense")

    def called(*args: Any, **kwargs: Any) -> Any:
        with _copying_what_is_written(auto_functionalize, kwargs):
            return function(*args, **kwargs)

    return called


_PLACED = ("_storage_offset", "_slice_start")
"""How the names of arguments end that say where in a tensor a view begins which an op writes to."""


@contextmanager
def _copying_what_is_written(owner: Any, kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Has copies of what ops write to begin where their memory does, wherever in its memory the written tensor does.

    torch copies that memory from its start on, and says in the graph where the tensor begins, which nothing guards. It
    is left to do so where views are placed in a tensor that does not begin with its memory: these count from there.
    """
    bases = kwargs.get("_all_bases", ())
    is_placed = any(name.endswith(_PLACED) and value is not None for name, value in kwargs.items())
    if is_placed and any(base is not None and base.storage_offset() != 0 for base in bases):
        yield
        return
    theirs = owner.clone_preserve_strides
    owner.clone_preserve_strides = _copied
    try:
        yield
    finally:
        owner.clone_preserve_strides = theirs


def _copied(tensor: torch.Tensor, **_: Any) -> torch.Tensor:
    """Returns a copy with the same strides, of the elements and what lies between them."""
    length = compute_required_storage_length(tensor.size(), tensor.stride(), 0)
    return tensor.as_strided((length,), (1,)).clone().as_strided(tensor.size(), tensor.stride())


class _Inlined(HigherOrderOp):
    """Calls a region's function where it stands: torch takes only its own class for an op that takes a function."""

    def __call__(self, function: Callable[..., Any], _: Any, /, *operands: Any) -> Any:
        return function(*operands)


def inlined(op: Any) -> Any:
    """Returns what calls the function of a region in the region's place, where ``op`` is ``invoke_subgraph``; or it."""
    return _inlining() if isinstance(op, HigherOrderOp) and str(op) == "invoke_subgraph" else op


@functools.cache
def _inlining() -> Any:
    kind: Any = _Inlined  # torch's class has no types
    return kind("ferrite_inlined")


def core_decompositions() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """Returns torch's table of decompositions to core aten.

    The private form leaves out the hundreds of composite ops that the dispatcher decomposes anyway, and is made sooner.
    """
    from torch import _decomp

    table = getattr(_decomp, "_core_aten_decompositions_post_autograd", _decomp.core_aten_decompositions)()
    return dict(table.items())


def decompositions_of(ops: Iterable[Any]) -> dict[Any, Callable[..., Any]]:
    """Returns torch's decompositions of these ops (packets or overloads); ops without one are left out.

    ``torch._decomp`` is where they live; ``torch.export`` republishes only the core ones.
    """
    from torch._decomp import get_decompositions

    return dict(get_decompositions(list(ops)))
