"""Types that an op's kernels in torch do not take, found by running the op itself on a few elements of those types.

Which types a kernel takes is said in its code only: for operands, for results that are written (``out``), for random
numbers, and for numbers that a type does not have (300 in eight bits). An op is asked once in a process for each
combination of types. It is asked on the CPU, whatever the device of the graph: an assertion of a kernel that zeros do
not meet would end the process's use of a GPU. A GPU has kernels that a CPU has not (of complex numbers, of ``histc`` of
integers), so there it is asked again, on the GPU, if the CPU has none. Floats of one type are taken to be fine, and so
are, for a GPU, 16-bit floats beside other real numbers, of which its kernels take more. What the op says counts only if
it is about types: sizes of 2, in place of the true ones, may fit no window.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ferrite_torch.torch_private.fake_tensors import without_modes
from ferrite_torch.torch_private.nodes import map_leaves
from ferrite_torch.torch_private.operators import Overload, schema_of
from ferrite_torch.validation.ranges import has_number_outside

MOST = 2
"""Elements along each axis of an operand that stands for another: ``glu`` wants an even number of them."""
VECTOR = 3
"""But for axes of as many: ``cross`` wants no others."""
_ABOUT_TYPES = re.compile(
    r"not implemented for|d-?types?\b|scalar[ _]types?\b|\bbool(ean)?\b|floating[- ]point|integral|data type|"
    r"only supports?\b.*(float|int)|does not support complex|integers? (input|tensor)|without overflow|can't be cast|"
    r"is out of bounds for \w+( char| int)?$|expects \w+ tensor|^promotion for ",
    re.IGNORECASE,
)
_NO_KERNEL = "not implemented for"
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
_RARE = {torch.uint16, torch.uint32, torch.uint64} | {
    dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype) and str(dtype).startswith("torch.float8_")
}
"""Types for which kernels of the CPU are few (``add`` has none), and which torch promotes to no other on any device."""
_TYPE_OF_NUMBER: dict[type, torch.dtype] = {bool: torch.bool, float: torch.float32, complex: torch.complex64}
_known: dict[Any, str | None] = {}


def dtype_problem(op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Returns what the op says of the types of its operands and results, None if nothing."""
    operands = list(_tensors((*args, *kwargs.values())))
    if not _is_asked(op, operands, args, kwargs):
        return None
    key = (op, frozenset(each.device.type for each in operands), _described(args), _described(tuple(kwargs.items())))
    if key not in _known:
        _known[key] = _answer(op, operands, args, kwargs)
    return _known[key]


def _is_asked(op: Overload, operands: list[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if op.namespace != "aten" or len({tensor.device for tensor in operands}) > 1:
        return False
    kinds = {_kind(tensor.dtype) for tensor in operands}
    others = {_kind(dtype) for dtype in _types_of_numbers(op, args, kwargs)} - kinds
    if any(tensor.layout is not torch.strided for tensor in operands):
        return False
    if has_number_outside(op, operands, args, kwargs):
        return not any(tensor.numel() == 0 for tensor in operands)
    if not operands:
        return bool(_types_asked_for(kwargs)) and torch.Tag.nondeterministic_seeded in op.tags
    if any(_shrunk(size) == 0 for tensor in operands for size in tensor.shape):
        return False  # zeros are places of nothing
    has_results = _writes_results(op)
    types = {tensor.dtype for tensor in operands} | _types_asked_for(kwargs)
    if not has_results and not _is_ours(op):
        return False
    on_cpu, has_rare = operands[0].device.type == "cpu", bool(types & _RARE)
    if not on_cpu and types & _HALVES and not has_rare and not _is_complex(op, operands, args, kwargs):
        return False
    is_simple = len(types) == 1 and types <= _FLOATS
    takes_all = _takes_all_types(op) and not (has_rare and (on_cpu or len(types) > 1))
    return has_results or bool(others) or not (is_simple or (takes_all and not schema_of(op).is_mutable))


def _types_asked_for(kwargs: dict[str, Any]) -> set[torch.dtype]:
    return {value for name, value in kwargs.items() if name == "dtype" and value is not None}


def _types_of_numbers(op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.dtype]:
    """Yields a type for each number that an op computes with; whole ones, which every type has, are left out."""
    for position, name in _computed_with(op):
        value = args[position] if position < len(args) else kwargs.get(name)
        if type(value) in _TYPE_OF_NUMBER:
            yield _TYPE_OF_NUMBER[type(value)]


@functools.cache
def _computed_with(op: Overload) -> tuple[tuple[int, str], ...]:
    """Returns the places and names of an op's arguments that are tensors or numbers."""
    declared = enumerate(schema_of(op).arguments)
    return tuple((place, x.name) for place, x in declared if "number" in str(x.type) or "Tensor" in str(x.type))


def _kind(dtype: torch.dtype) -> torch.dtype:
    """Returns the type that stands for all that hold numbers of one kind."""
    if dtype.is_complex or dtype.is_floating_point:
        return torch.complex64 if dtype.is_complex else torch.float32
    return torch.bool if dtype is torch.bool else torch.int64


def _takes_all_types(op: Overload) -> bool:
    return schema_of(op).name.removeprefix("aten::").removesuffix("_") in _UNASKED


def _writes_results(op: Overload) -> bool:
    """Returns whether an op has operands that its results are written to (``out``)."""
    return any(argument.is_out for argument in schema_of(op).arguments)


def _is_ours(op: Overload) -> bool:
    """Returns whether an op, or the one that it does in place, is lowered or decomposed; a library asks for itself."""
    from ferrite_torch.lowering import LOWERINGS  # noqa: PLC0415
    from ferrite_torch.rewrites.decompositions import is_decomposed  # noqa: PLC0415  # not needed where graphs are stored

    name = schema_of(op).name.removeprefix("aten::").removesuffix("_")
    if name.startswith("_foreach_"):
        return True
    packets = [getattr(torch.ops.aten, each, None) for each in (name, f"{name}_functional")]
    overloads = [getattr(packet, each) for packet in packets if packet is not None for each in packet.overloads()]
    return any(str(each) in LOWERINGS or is_decomposed(each) for each in (op, *overloads))


def _answer(op: Overload, operands: list[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Returns what the op says of types on the CPU, and on the device of its operands if the CPU has no such kernel."""
    said = _answer_on(torch.device("cpu"), op, args, kwargs)
    if said is None or not operands or operands[0].device.type == "cpu":
        return said
    may_differ = _NO_KERNEL in said or _is_complex(op, operands, args, kwargs)
    return _answer_on(operands[0].device, op, args, kwargs) if may_differ else said


def _is_complex(op: Overload, operands: list[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns whether an op computes with complex tensors or numbers."""
    numbers = _types_of_numbers(op, args, kwargs)
    return any(dtype.is_complex for dtype in (*(tensor.dtype for tensor in operands), *numbers))


def _answer_on(device: torch.device, op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Returns what the op's kernels for a device say of types, if they say so however its operands lie in memory.

    Some kernels take more types in one layout than in another: ``flip`` on the CPU moves whole elements of any type
    where the innermost axis is not turned over. What is compiled takes them in all.
    """
    ranks = [tensor.dim() for tensor in _tensors((*args, *kwargs.values()))]
    said = None
    for axis in range(max([1, *ranks])):
        problem = _answer_for_layout(device, op, args, kwargs, -1 - axis)
        if problem is None:
            return None
        said = said or problem
    return said


def _answer_for_layout(
    device: torch.device, op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any], innermost: int
) -> str | None:
    """Returns what the op says of types, with operands that have one axis innermost in memory, counted from the end."""
    stand_in = functools.partial(_stand_in, device=device, innermost=innermost)
    declared = [argument.name for argument in schema_of(op).arguments]
    small = tuple(_small(name, value) for name, value in zip(declared, args, strict=False))
    seeded = [device] if device.type == "cuda" else []
    try:
        with without_modes(), torch.no_grad(), torch.random.fork_rng(seeded), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # results get the sizes that they should have
            op(*map_leaves(small, stand_in), **map_leaves(kwargs, stand_in))
    except Exception as error:  # noqa: BLE001  # of whatever type: it is a question
        return str(error) if _ABOUT_TYPES.search(str(error)) else None
    return None


def _small(name: str, value: Any) -> Any:
    """Returns a number of elements as a small one: ``size`` of what is made, ``n`` of a permutation."""
    if name == "size" and isinstance(value, (list, tuple)):
        return [_shrunk(size) for size in value]
    return _shrunk(value) if name == "n" and type(value) is int else value


def _stand_in(leaf: Any, *, device: torch.device, innermost: int) -> Any:
    if isinstance(leaf, torch.Tensor):
        sizes = [_shrunk(size) for size in leaf.shape]
        held = [1 if is_same else size for size, is_same in zip(sizes, _repeated(leaf), strict=True)]
        return _zeros(held, leaf.dtype, device, innermost).expand(sizes)
    return device if isinstance(leaf, torch.device) else _plain(leaf)


def _zeros(sizes: list[int], dtype: torch.dtype, device: torch.device, innermost: int) -> torch.Tensor:
    order = list(range(len(sizes)))
    if -innermost <= len(order):
        order.append(order.pop(innermost))
    return torch.empty_permuted(sizes, order, dtype=dtype, device=device).zero_()


def _shrunk(size: Any) -> int:
    return MOST if isinstance(size, torch.SymInt) else VECTOR if size == VECTOR else min(size, MOST)


def _repeated(tensor: torch.Tensor) -> tuple[bool, ...]:
    """Returns for each dim whether it repeats elements: some kernels take more types where one does."""
    return tuple(type(step) is int and step == 0 for step in tensor.stride())


def _plain(leaf: Any) -> Any:
    if isinstance(leaf, torch.SymInt):
        return 1
    if isinstance(leaf, torch.Generator):
        return None
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
