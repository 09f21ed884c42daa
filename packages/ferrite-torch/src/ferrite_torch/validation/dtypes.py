"""Types that an op's kernels in torch do not take, found by running the op itself on a few elements of those types.

Which types a kernel takes is said in its code only. An op is asked once in a process for each combination of types. It
is asked on the CPU, whatever the device of the graph: an assertion of a kernel that zeros do not meet would end the
process's use of a GPU. Floats of one type are taken to be fine, and so are, for a GPU, 16-bit floats beside others, of
which its kernels take more. What the op says counts only if it is about types: sizes of 2, in place of the true ones,
may fit no window.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ferrite_torch.torch_private.fake_tensors import without_modes
from ferrite_torch.torch_private.nodes import map_leaves
from ferrite_torch.torch_private.operators import Overload, schema_of

MOST = 2
"""Elements along each axis of an operand that stands for another."""
_ABOUT_TYPES = re.compile(
    r"not implemented for|d-?types?\b|scalar[ _]types?\b|\bbool(ean)?\b|floating[- ]point|integral|data type|"
    r"only supports?\b.*(float|int)|integers? (input|tensor)",
    re.IGNORECASE,
)
_FLOATS = {torch.float32, torch.float64}
_HALVES = {torch.float16, torch.bfloat16}
_UNASKED = frozenset(
    """
    view _unsafe_view reshape expand permute t transpose slice select squeeze unsqueeze alias detach clone
    copy as_strided unbind split split_with_sizes diagonal lift_fresh lift_fresh_copy empty empty_strided
    empty_like new_empty new_empty_strided full zeros ones zeros_like ones_like full_like new_full new_zeros
    new_ones scalar_tensor arange eye cat stack _to_copy where eq ne lt le gt ge add mul fill zero
    """.split()  # noqa: SIM905  # a list of words reads better
)
"""Ops that take all types, and those whose operands of small integers and bools are in every other graph."""
_known: dict[Any, str | None] = {}


def dtype_problem(op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Returns what the op says of the types of its operands, None if nothing."""
    operands = list(_tensors((*args, *kwargs.values())))
    if not operands or not _is_asked(op, operands):
        return None
    key = (op, _described(args), _described(tuple(kwargs.items())))
    if key not in _known:
        _known[key] = _answer(op, args, kwargs)
    return _known[key]


def _is_asked(op: Overload, operands: list[torch.Tensor]) -> bool:
    schema = schema_of(op)
    if op.namespace != "aten" or schema.name.removeprefix("aten::").removesuffix("_") in _UNASKED:
        return False
    if any(tensor.layout is not torch.strided or tensor.is_complex() for tensor in operands):
        return False
    if torch.Tag.nondeterministic_seeded in op.tags or len({tensor.device for tensor in operands}) > 1:
        return False  # the first would move the generator on
    if any(_shrunk(size) == 0 for tensor in operands for size in tensor.shape):
        return False  # zeros are places of nothing
    types = {tensor.dtype for tensor in operands}
    if not _is_ours(op):
        return False
    if operands[0].device.type != "cpu" and types & _HALVES:
        return False
    return not (len(types) == 1 and types <= _FLOATS)


def _is_ours(op: Overload) -> bool:
    """Returns whether an op, or the one that it does in place, is lowered or taken apart; a library asks for itself."""
    from ferrite_torch.decompositions import is_taken_apart  # noqa: PLC0415  # not needed where graphs are stored
    from ferrite_torch.lowering import LOWERINGS  # noqa: PLC0415

    name = schema_of(op).name.removeprefix("aten::").removesuffix("_")
    packet = getattr(torch.ops.aten, name, None)
    overloads = [op] if packet is None else [op, *(getattr(packet, each) for each in packet.overloads())]
    return any(str(each) in LOWERINGS or is_taken_apart(each) for each in overloads)


def _answer(op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Returns what the op says of types, if it says so however its operands lie in memory.

    Some kernels take more types in one layout than in another: ``flip`` on the CPU moves whole elements of any type
    where the innermost axis is not turned over. What is compiled takes them in all.
    """
    ranks = [tensor.dim() for tensor in _tensors((*args, *kwargs.values()))]
    said = None
    for axis in range(max(1, *ranks)):
        problem = _answer_for_layout(op, args, kwargs, -1 - axis)
        if problem is None:
            return None
        said = said or problem
    return said


def _answer_for_layout(op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any], innermost: int) -> str | None:
    """Returns what the op says of types, with operands that have one axis innermost in memory, counted from the end."""

    def stand_in(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            sizes = [_shrunk(size) for size in leaf.shape]
            held = [1 if is_same else size for size, is_same in zip(sizes, _repeated(leaf), strict=True)]
            return _zeros(held, leaf.dtype, innermost).expand(sizes)
        if isinstance(leaf, torch.device):
            return torch.device("cpu")
        return _plain(leaf)

    with without_modes(), torch.no_grad():
        try:
            op(*map_leaves(args, stand_in), **map_leaves(kwargs, stand_in))
        except Exception as error:  # noqa: BLE001  # of whatever type: it is a question
            return str(error) if _ABOUT_TYPES.search(str(error)) else None
    return None


def _zeros(sizes: list[int], dtype: torch.dtype, innermost: int) -> torch.Tensor:
    order = list(range(len(sizes)))
    if -innermost <= len(order):
        order.append(order.pop(innermost))
    return torch.empty_permuted(sizes, order, dtype=dtype).zero_()


def _shrunk(size: Any) -> int:
    return MOST if isinstance(size, torch.SymInt) else min(size, MOST)


def _repeated(tensor: torch.Tensor) -> tuple[bool, ...]:
    """Returns for each dim whether it repeats elements: some kernels take more types where one does."""
    return tuple(type(step) is int and step == 0 for step in tensor.stride())


def _plain(leaf: Any) -> Any:
    if isinstance(leaf, torch.SymInt):
        return 1
    return 1.0 if isinstance(leaf, torch.SymFloat) else leaf


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _described(value: Any) -> Any:
    """Returns what of arguments may matter to which types are taken: types, ranks, extents of 0 and 1, strides of 0."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(map(_shrunk, value.shape)), _repeated(value)
    if isinstance(value, (list, tuple)):
        return tuple(map(_described, value))
    return repr(_plain(value))
