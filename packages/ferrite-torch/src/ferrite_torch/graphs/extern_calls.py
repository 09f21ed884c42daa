"""Extern calls.

An aten (or custom) op as an ``Extern``, with its aliases, mutations and effects read from its schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from ferrite_torch.lowering.builder import Builder
from ferrite_torch.lowering.tensors import Tensor, same_layout
from ferrite_torch.sizes.symbolic_sizes import steps_of
from ferrite_torch.torch_private.operators import Overload, schema_of

# Reads its operand's storage after the call that wrote it has returned: its result is that storage, whatever its schema
# says.
_SAME_STORAGE = ("_c10d_functional.wait_tensor.default",)

# These read any strides and write the layout that their fake has whatever the strides of their operands: no copy for a
# layout's sake.
_LAYOUT_BLIND = frozenset(("mm", "bmm", "addmm", "baddbmm", "mv", "dot", "addmv", "embedding", "index_select"))


@dataclass(frozen=True, slots=True)
class Traits:
    """What a schema says of an op.

    Attributes:
        mutated: names of arguments that it writes.
        aliased: names of arguments that its results share storage with.
        effects: whether it must run, in order: it returns nothing, draws random numbers or communicates.
        exact: whether its operands must have the strides that torch's fake tensors have.
    """

    mutated: frozenset[str]
    aliased: frozenset[str]
    effects: bool
    exact: bool


@lru_cache(maxsize=4096)
def traits_of(op: Overload) -> Traits:
    """Returns the traits of an op."""
    schema = schema_of(op)
    mutated = frozenset(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    returned = {label for r in schema.returns if r.alias_info is not None for label in _labels(r.alias_info)}
    aliased = frozenset(
        a.name for a in schema.arguments if a.alias_info is not None and returned & _labels(a.alias_info)
    )
    if str(op) in _SAME_STORAGE:
        aliased = frozenset((schema.arguments[0].name,))
    random = torch.Tag.nondeterministic_seeded in op.tags
    effects = not schema.returns or random or bool(mutated) or op.namespace in ("_c10d_functional", "c10d_functional")
    exact = op.namespace != "aten" or bool(aliased) or schema.name.rpartition("::")[2] not in _LAYOUT_BLIND
    return Traits(mutated, aliased, effects, exact)


def _labels(info: Any) -> set[str]:
    return set(info.before_set) | set(info.after_set)


@dataclass(frozen=True, slots=True)
class Call:
    """A call as the FX graph has it: the op, its arguments as nodes, and its fake results."""

    op: Overload
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    fakes: Any


def call_of(node: torch.fx.Node) -> Call:
    """Returns the call that a node makes; ``with_effects(token, op, …)`` calls ``op``."""
    fakes = node.meta.get("val")
    if isinstance(node.target, Overload):
        return Call(node.target, node.args, node.kwargs, fakes)
    op = node.args[1]
    assert isinstance(op, Overload)
    _, *results = fakes or (None,)
    returns = schema_of(op).returns
    return Call(op, node.args[2:], node.kwargs, tuple(results) if len(returns) > 1 else results[0] if returns else None)


def call_extern(builder: Builder, call: Call, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Returns the results of an op run as the extern call that it is, nested as torch returns them.

    An op that writes an operand returns that operand; an op that returns views of one returns values that share its
    storage.
    """
    op, traits = call.op, traits_of(call.op)
    if traits.exact:
        args = [_with_layout(builder, arg, given) for arg, given in zip(args, call.args, strict=True)]
        kwargs = {name: _with_layout(builder, value, call.kwargs[name]) for name, value in kwargs.items()}
    positions = list(_operand_names(op, args, kwargs))
    mutates = [position for position, name in enumerate(positions) if name in traits.mutated]
    if traits.mutated:
        fakes = call.fakes if _returns_anything_new(op) else None
        results = builder.extern(str(op), args, kwargs, fakes, mutates=mutates, effects=True)
        return _mutated_operands(op, args, kwargs, results)
    aliases = [position for position, name in enumerate(positions) if name in traits.aliased]
    return builder.extern(str(op), args, kwargs, call.fakes, aliases=aliases, effects=traits.effects)


def _returns_anything_new(op: Overload) -> bool:
    return any(returned.alias_info is None for returned in schema_of(op).returns)


def _operand_names(op: Overload, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[str]:
    """Yields for each tensor operand, in order, the name of the argument that holds it."""
    names = [argument.name for argument in schema_of(op).arguments]
    for name, value in [*zip(names, args, strict=False), *kwargs.items()]:
        stack = [value]
        while stack:
            item = stack.pop()
            if isinstance(item, Tensor):
                yield name
            elif isinstance(item, (tuple, list)):
                stack.extend(reversed(item))


def _mutated_operands(op: Overload, args: Sequence[Any], kwargs: dict[str, Any], results: Any) -> Any:
    """Returns what a writing op returns: the operands that it returns written, and its new results."""
    schema = schema_of(op)
    by_name = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)} | kwargs
    written = {
        label: by_name.get(argument.name)
        for argument in schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
        for label in _labels(argument.alias_info)
    }
    several = len(schema.returns) > 1
    new = results if several and results is not None else (results,) * len(schema.returns)
    returned = tuple(
        value if info.alias_info is None else next(written[label] for label in _labels(info.alias_info))
        for info, value in zip(schema.returns, new, strict=True)
    )
    return returned if several else returned[0] if returned else None


def _with_layout(builder: Builder, value: Any, given: Any) -> Any:
    """Returns an argument with each tensor in it lying as its fake does.

    Copied where its strides differ on a dim longer than 1.
    """
    if isinstance(value, Tensor):
        fake = given.meta.get("val") if isinstance(given, torch.fx.Node) else None
        return value if not isinstance(fake, torch.Tensor) else laid_out(builder, value, steps_of(fake))
    if isinstance(value, (tuple, list)) and isinstance(given, (tuple, list)):
        return [_with_layout(builder, item, origin) for item, origin in zip(value, given, strict=True)]
    return value


def laid_out(builder: Builder, tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Returns the tensor with these strides (those of dims of size 1 aside): itself if it has them, else a copy."""
    view = tensor.strided()
    if view is not None and same_layout(tensor.shape, view.strides, strides):
        return tensor
    if tensor.numel == 0:
        return builder.fresh_copy(tensor)
    pairs = enumerate(zip(tensor.shape, strides, strict=True))
    repeated = [axis for axis, (size, stride) in pairs if size != 1 and stride == 0]
    if not repeated:
        return builder.fresh_copy(tensor, strides)
    # Expanded dims are stored once: copy the tensor at index 0 of them and repeat the copy.
    shape = tuple(1 if axis in repeated else size for axis, size in enumerate(tensor.shape))
    once = builder.fresh_copy(tensor.viewed(shape, lambda point: point), strides)
    return once.viewed(
        tensor.shape, lambda point: [point[axis] * 0 if axis in repeated else point[axis] for axis in range(len(point))]
    )
