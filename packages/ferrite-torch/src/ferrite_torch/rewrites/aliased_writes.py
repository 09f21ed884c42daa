"""Writes and views whose places AOTAutograd does not follow: graphs that are refused, and calls that run eagerly.

It turns a write in place into a new value and, at the end, a copy. That loses writes to a tensor whose elements lie on
each other, and all but one of those of an op on lists that has a tensor twice. It works on a copy where a storage is
freed and filled inside, and counts on inputs that share memory to lie as far apart in every call as when it traced
them, and on others not to share any: dynamo guards sizes and strides, not where a view begins, nor what it is one of.
"""

from __future__ import annotations

import itertools
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeGuard

import torch

from ferrite_torch.diagnostics.origins import unsupported, unsupported_graph
from ferrite_torch.errors import Unsupported
from ferrite_torch.rewrites.layouts.eager_layouts import is_packed_somehow
from ferrite_torch.rewrites.overlapping_targets import is_repeated
from ferrite_torch.sizes.overlaps import DataDependent, Place, overlap, present_place
from ferrite_torch.torch_private.dynamo import is_static_input
from ferrite_torch.torch_private.fake_tensors import is_fake, storage_key, taken_out
from ferrite_torch.torch_private.nodes import example_of, is_in_place_name, nodes_of, target_name
from ferrite_torch.torch_private.operators import Overload, arguments_by_name, schema_of
from ferrite_torch.torch_private.symbolic_shapes import is_known, present_value

_AUGMENTED_NAMES = "iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift setitem"
AUGMENTED = frozenset(_AUGMENTED_NAMES.split())
_METADATA_NAMES = "requires_grad_ detach_ share_memory_ t_ transpose_ swapaxes_ squeeze_ unsqueeze_ as_strided_"
_WRITE_NOTHING = frozenset(_METADATA_NAMES.split())
_KEEP_LAYOUT = frozenset(("requires_grad_", "detach_", "share_memory_"))
_COPIES = frozenset(("select_scatter", "slice_scatter", "diagonal_scatter", "as_strided_scatter"))
_RESIZE = "resize_storage_bytes_"


def refuse_lost_writes(module: torch.fx.GraphModule) -> None:
    """Checks that AOTAutograd keeps all writes of a captured graph, that of checkpoints and branches in it included.

    Raises:
        Unsupported: it would not; the message names op and line.
    """
    parts = _parts_of_storages(module)
    written = {_key(destination) for node in nodes_of(module) for destination in destinations(node)}
    for node in nodes_of(module):
        if _is_by_strides(node) and _key(node.all_input_nodes[0]) in parts & written:
            raise unsupported(
                node,
                "a view by strides (as_strided) of an input which begins within its memory, or leaves some of it out, "
                "and is written to: capture would see other elements",
                "pass what the input is a view of, or take slices of it",
            )
        if target_name(node).partition(".")[0] == _RESIZE:
            raise unsupported(
                node,
                "the storage of a tensor is resized inside a graph, which compiled code would do to a copy",
                "resize it outside of the compiled function, as by compiling each block",
            )
        for destination in destinations(node):
            fake = strided_fake(destination)
            if fake is not None and _lies_on_itself(fake) and not _is_copied_apart(destination):
                raise unsupported(
                    node,
                    "a write to a tensor whose elements share memory, as those of an expanded one do",
                    "write to a clone() of it, or to what it is a view of",
                )
            if _is_of_library(node) and destination.op != "placeholder" and _key(destination) in parts:
                raise unsupported(
                    node,
                    "a custom operator that writes to a view of an input which begins within its memory, or leaves "
                    "some of it out: capture counts from the start of that memory, and would write elsewhere",
                    "pass the view itself to the compiled function, or call the operator on a clone() of it",
                )
        if _writes_what_is_used_later(node):
            raise unsupported(
                node,
                "an op on lists of tensors that writes to memory which it uses at a later position again",
                "call it once for each of the tensors that share memory, or the op on one tensor in a loop",
            )
        for destination in destinations(node):
            if any(map(_leaves_gaps, views_on_the_way(destination))):
                raise unsupported(
                    node,
                    "a write through windows (unfold) that leave elements out, or have some twice: capture would lose "
                    "the rest of what they are windows of",
                    "write to a slice of it, or to a clone() of the windows",
                )


def _parts_of_storages(module: torch.fx.GraphModule) -> set[int | None]:
    """Returns the storages that an input does not fill from the start on in the present call."""
    fakes = map(strided_fake, module.graph.find_nodes(op="placeholder"))
    return {storage_key(fake) for fake in fakes if fake is not None and not _fills_memory(fake)}


def _fills_memory(fake: torch.Tensor) -> bool:
    """Returns whether elements fill a stretch of memory from its start on, in any order of the dims."""
    numbers = [present_value(number) for number in (*fake.shape, *fake.stride(), fake.storage_offset())]
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        return False
    return known[-1] == 0 and is_packed_somehow(known[: fake.dim()], known[fake.dim() : -1])


def _is_of_library(node: torch.fx.Node) -> bool:
    """Returns whether a call is one of an operator that is not torch's own, as AOTAutograd wraps them."""
    return isinstance(node.target, Overload) and node.target.namespace not in ("aten", "prims", "prim")


def _is_by_strides(node: torch.fx.Node) -> bool:
    return target_name(node).partition(".")[0].rstrip("_") == "as_strided"


def _key(node: torch.fx.Node) -> int | None:
    fake = strided_fake(node)
    return None if fake is None else storage_key(fake)


def destinations(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Yields the nodes whose tensors a call writes to."""
    stack: list[Any] = [node.kwargs.get("out")]
    name = target_name(node).partition(".")[0]
    if isinstance(node.target, Overload):
        given = arguments_by_name(node.target, node.args, node.kwargs)
        written = (x for x in schema_of(node.target).arguments if x.alias_info is not None and x.alias_info.is_write)
        stack += [given[argument.name] for argument in written]
    elif node.op in ("call_method", "call_function") and node.args:
        is_in_place = is_in_place_name(name) and name not in _WRITE_NOTHING
        if is_in_place or name in AUGMENTED or node.kwargs.get("inplace") is True:
            stack.append(node.args[0])
    while stack:
        value = stack.pop()
        if isinstance(value, torch.fx.Node):
            yield value
        elif isinstance(value, (tuple, list)):
            stack.extend(value)


def has_writes(module: torch.nn.Module) -> bool:
    """Returns whether a call in captured graphs writes to a tensor in place."""
    return any(True for node in nodes_of(module) for _ in destinations(node))


def changes_metadata(node: torch.fx.Node) -> bool:
    """Returns whether a call lays its first operand out anew, in place, and writes no elements (``t_``)."""
    name = target_name(node).partition(".")[0]
    return node.op in ("call_function", "call_method") and name in _WRITE_NOTHING - _KEEP_LAYOUT


class _Location(NamedTuple):
    """A tensor's storage, and its place there; None where that depends on data."""

    storage: Any
    place: Place | None

    def may_overlap(self, other: _Location) -> bool:
        """Returns whether tensors may have an element in common."""
        if self.storage != other.storage:
            return False
        return self.place is None or other.place is None or overlap(self.place, other.place)


def _writes_what_is_used_later(node: torch.fx.Node) -> bool:
    """Returns whether an op on lists writes elements that it reads, or writes, at a later position.

    Eager mode goes from tensor to tensor: ``_foreach_mul_([x, x], 2)`` is a product with 4. A graph computes each from
    what there was before. Symbolic sizes are looked at as they are now.
    """
    lists = [value for value in (*node.args, *node.kwargs.values()) if _is_list_of_nodes(value)]
    targets = set(destinations(node)) if lists else set()
    if not targets:
        return False
    locations = {each: _location(each) for value in lists for each in value}
    named = [value for value in (*node.args[:1], node.kwargs.get("out")) if _is_list_of_nodes(value)]
    written: defaultdict[Any, list[_Location]] = defaultdict(list)
    for position in range(max(map(len, lists))):
        used = [locations[value[position]] for value in lists if position < len(value)]
        if any(mine.may_overlap(other) for mine in used if mine is not None for other in written[mine.storage]):
            return True
        for value in named:
            mine = locations[value[position]] if position < len(value) and value[position] in targets else None
            if mine is not None:
                written[mine.storage].append(mine)
    return False


def _is_list_of_nodes(value: Any) -> TypeGuard[Sequence[torch.fx.Node]]:
    return isinstance(value, (tuple, list)) and all(isinstance(each, torch.fx.Node) for each in value)


def _location(node: torch.fx.Node) -> _Location | None:
    """Returns where the tensor of a node lies in the present call; None for one without elements or strides."""
    fake = strided_fake(node)
    if fake is None:
        return None
    try:
        place = present_place(fake)
    except DataDependent:
        return _Location(storage_key(fake), None)
    return None if place is None else _Location(storage_key(fake), place)


def strided_fake(node: torch.fx.Node) -> torch.Tensor | None:
    """Returns the fake tensor with strides that a node computes, None where it computes none.

    In a transform of ``torch.func`` it is the one in memory, with axes for slices in front.
    """
    fake = example_of(node)
    return taken_out(fake) if isinstance(fake, torch.Tensor) and fake.layout == torch.strided else None


def _lies_on_itself(fake: torch.Tensor) -> bool:
    shape, strides = tuple(fake.shape), tuple(fake.stride())
    repeated = [size for size, step in zip(shape, strides, strict=True) if _is_number(step) and step == 0]
    if any(_is_number(size) and size > 1 for size in repeated):
        return True
    if not all(map(_is_number, (*shape, *strides))) or fake.is_contiguous():
        return False
    from ferrite_ir.language.graph import overlaps  # noqa: PLC0415  # not needed where graphs come from the store

    return overlaps(shape, strides)


def _is_copied_apart(node: torch.fx.Node) -> bool:
    """Returns whether a tensor is, or is a part of, a copy whose elements lie apart in eager mode, not in its fake.

    The copy is what `overlapping_targets` mends: its operand is expanded, and fakes of torch 2.11 keep stride 0.
    """
    for each in views_on_the_way(node):
        name, operand = target_name(each).partition(".")[0], next(iter(each.all_input_nodes), None)
        fake, below = strided_fake(each), None if operand is None else strided_fake(operand)
        if fake is None or below is None or name == "as_strided":
            return False
        if storage_key(below) != storage_key(fake):
            return name in _COPIES and is_repeated(below)
        if not is_known(fake.numel() <= below.numel()):
            return False  # expanded anew
    return False


def views_on_the_way(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Yields a node whose tensor is written, and what it is a view of, up to what no call makes."""
    fake = strided_fake(node)
    while fake is not None and node.op in ("call_function", "call_method"):
        yield node
        operand = next(iter(node.all_input_nodes), None)
        below = None if operand is None else example_of(operand)
        if operand is None or (isinstance(below, torch.Tensor) and storage_key(below) != storage_key(fake)):
            return
        node = operand


def _leaves_gaps(node: torch.fx.Node) -> bool:
    """Returns whether a view is one of windows that do not just tile what they are windows of.

    The inverse by which such a write is brought back has zeros where there is no window, and sums where there are two.
    """
    if target_name(node).partition(".")[0] != "unfold":
        return False
    windows, whole = strided_fake(node), strided_fake(node.all_input_nodes[0])
    if windows is None or whole is None:
        return False
    if storage_key(windows) != storage_key(whole):
        return False  # the columns of F.unfold, a copy
    return not is_known(windows.numel() == whole.numel()) or _lies_on_itself(windows)


def _is_number(size: int | torch.SymInt) -> bool:
    return type(size) is int


class Watched(NamedTuple):
    """The inputs of a captured graph that the graph writes to, and those that must not lie there, by position.

    Attributes:
        together: those that share a storage to which the graph writes, by storage.
        counted: those of which the graph counts places from the start of their memory: they begin where they did.
        storages: all that callers choose, with a number for the storage of each; none where the graph writes to none.
        written: those of them that the graph writes to.
    """

    together: list[list[int]]
    storages: dict[int, int]
    written: frozenset[int]
    counted: tuple[int, ...] = ()


def watched_inputs(module: torch.fx.GraphModule, inputs: Sequence[Any], also: frozenset[int] = frozenset()) -> Watched:
    """Returns the inputs whose places in memory a captured graph, which writes to some, counts on.

    Parameters, buffers and what else dynamo takes for a part of a model are compared only where they share a storage
    at first: they stay where they are. Tensors of other classes, and those without strides, are passed over.

    Args:
        module: the graph.
        inputs: its example inputs, real, one for each placeholder; none where they come in lists.
        also: positions of inputs that are known to be written to by more than what `destinations` tells of calls: ops
            that write where no name and no schema says so (``batch_norm``), and kernels.
    """
    fakes = [strided_fake(destination) for node in nodes_of(module) for destination in destinations(node)]
    fakes += [strided_fake(node) for at, node in enumerate(module.graph.find_nodes(op="placeholder")) if at in also]
    targets = {storage_key(fake) for fake in fakes if fake is not None}
    counts = {_key(operand) for node in nodes_of(module) for operand in _counted_from_storage(node)}
    storages: dict[int, int] = {}
    counted: list[int] = []
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for position, (node, value) in enumerate(zip(module.graph.find_nodes(op="placeholder"), inputs, strict=False)):
        fake = strided_fake(node)
        if fake is None or not is_fake(fake):
            continue
        key = storage_key(fake)
        counted += [position] if key in counts else []
        if key in targets:
            groups[key].append(position)
        if not is_static_input(value):
            storages[position] = key
    written = frozenset(position for position, key in storages.items() if key in targets)
    return Watched(
        [group for group in groups.values() if len(group) > 1],
        storages if written and len(storages) > 1 else {},
        written,
        tuple(counted),
    )


def _counted_from_storage(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Yields the operands of a call of which a graph says places from the start of their memory, as numbers.

    Nothing guards where an input begins: the numbers hold for the place that it had when they were told.
    """
    if _is_by_strides(node) and (len(node.args) > 3 or node.kwargs.get("storage_offset") is not None):
        yield node.all_input_nodes[0]


def keeping_aliases(
    compiled: Callable[..., Any],
    eager: Callable[..., Any],
    watched: Watched,
    module: torch.fx.GraphModule,
    note: Callable[[Unsupported], None],
) -> Callable[..., Any]:
    """Returns a compiled graph that runs eagerly where inputs lie on each other as they did not at first.

    ``note`` is told the first time, in a message where the first op of ``module`` stands for the graph. A graph of
    which no inputs are watched is returned as it is.
    """
    positions = (*itertools.chain(*watched.together), *watched.storages, *watched.counted)
    if not positions:
        return compiled
    lie_as_at_first = _comparing_to_first(watched.together)
    begin_as_at_first = _beginning_as_at_first(watched.counted)
    noted: list[Unsupported] = []

    def call(*inputs: Any) -> Any:
        values = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], list) else inputs
        if is_fake(values[positions[0]]):
            return compiled(*inputs)  # dynamo asks what the results look like
        if not begin_as_at_first(values):
            reason, remedy = _BEGINS_ELSEWHERE
        elif lie_as_at_first(values) and not _have_met(values, watched):
            return compiled(*inputs)
        else:
            reason, remedy = _MEETS_OTHERS
        if not noted:
            noted.append(unsupported_graph(module, reason, remedy))
            note(noted[0])
        return eager(*inputs)

    return call


_MEETS_OTHERS = (
    (
        "inputs that share memory, and are written to, lie otherwise to each other than when the graph was compiled, "
        "which dynamo does not tell"
    ),
    "pass what they are views of and slice it inside",
)
_BEGINS_ELSEWHERE = (
    (
        "an input begins at another place of its memory than when the graph was compiled, which dynamo does not tell, "
        "and as_strided counts from the start of that memory"
    ),
    "pass a clone() of the input, or what it is a view of",
)


def _beginning_as_at_first(positions: Sequence[int]) -> Callable[[Sequence[Any]], bool]:
    """Returns a function that tells whether inputs begin in their memory where they did in its first call."""
    first: list[list[int]] = []

    def compare(values: Sequence[Any]) -> bool:
        offsets = [values[position].storage_offset() for position in positions]
        if not first:
            first.append(offsets)
        return offsets == first[0]

    return compare if positions else lambda values: True


def _comparing_to_first(groups: Sequence[Sequence[int]]) -> Callable[[Sequence[Any]], bool]:
    """Returns a function that tells whether the inputs of each group lie to each other as they did in its first call.

    That comes with the inputs that the graph was traced with. Inputs that are apart then may move, as long as they stay
    apart; others need one storage, as large as there was.
    """
    first: list[tuple[tuple[int, ...], list[int], bool]] = []

    def compare(values: Sequence[Any]) -> bool:
        offsets = tuple(values[position].storage_offset() for group in groups for position in group)
        if not first:
            first.append((offsets, _bytes_held(values, groups), _all_apart(values, groups)))
        at_first, needed, were_apart = first[0]
        if were_apart:
            return offsets == at_first or _all_apart(values, groups)
        has_room = all(map(operator.ge, _bytes_held(values, groups), needed))
        return offsets == at_first and has_room and _share_storages(values, groups)

    return compare if groups else lambda values: True


def _bytes_held(values: Sequence[Any], groups: Sequence[Sequence[int]]) -> list[int]:
    return [values[group[0]].untyped_storage().nbytes() for group in groups]


def _share_storages(values: Sequence[Any], groups: Sequence[Sequence[int]]) -> bool:
    """Returns whether the inputs of each group still share one storage."""
    return all(len({values[position].untyped_storage().data_ptr() for position in group}) == 1 for group in groups)


def _all_apart(values: Sequence[Any], groups: Sequence[Sequence[int]]) -> bool:
    return all(_are_apart([values[position] for position in group]) for group in groups)


def _have_met(values: Sequence[Any], watched: Watched) -> bool:
    """Returns whether a written input lies on one with which it shared no storage when the graph was traced.

    Storages at no address are passed over: they have been freed, or have no elements.
    """
    addresses = [values[position].untyped_storage().data_ptr() for position in watched.storages]
    if len(set(addresses)) == len(addresses):
        return False
    sharers: defaultdict[int, list[int]] = defaultdict(list)
    for position, address in zip(watched.storages, addresses, strict=True):
        sharers[address].append(position)
    return any(
        watched.storages[one] != watched.storages[other] and not _are_apart([values[one], values[other]])
        for address, group in sharers.items()
        if address and not _are_apart([values[position] for position in group])
        for one in watched.written.intersection(group)
        for other in group
    )


def _are_apart(tensors: Sequence[torch.Tensor]) -> bool:
    """Returns whether the ranges of memory that tensors lie in do not meet."""
    ranges = sorted(_range(tensor) for tensor in tensors if tensor.numel())
    return all(low[1] <= high[0] for low, high in itertools.pairwise(ranges))


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    extent = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return tensor.data_ptr(), tensor.data_ptr() + extent * tensor.element_size()
