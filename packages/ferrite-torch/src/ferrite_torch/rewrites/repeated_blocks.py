"""Hierarchical compilation: calls of modules that occur many times in a captured graph become calls of one region.

    linear_1 = linear(x, w1) …                  block_0 = get_attr block_0
    add_1 = add(…)                              call = invoke_subgraph(block_0, "block_0", x, w1, …)
    linear_2 = linear(add_1, w2) …     →        add_1 = call[0]
    add_2 = add(…)                              call_1 = invoke_subgraph(block_0, "block_0", add_1, w2, …)

What follows (differentiating, lowering, scheduling, compiling kernels) does its work for each region once, as for one
that a user marked (``torch.compiler.nested_compile_region``). What is compared are graphs, after capture: what a module
looks like does not matter, and layers that were captured differently stay what they are.

A region changes nothing that it is given. What a block writes to (statistics of a norm, a counter) its region copies,
writes to the copy and returns it, and the graph around stores that where it belongs:

    batch_norm(x, mean, …)              mean_copy = clone(mean)                         inside
    …                             →     call = invoke_subgraph(block_0, …, mean)        around
                                        mean.copy_(call[1])
"""

from __future__ import annotations

import logging
import operator
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import torch

from ferrite_torch.rewrites.block_structure import AMBIENT, NoStructure, Run, run_of
from ferrite_torch.thresholds import REPEATED_BLOCKS
from ferrite_torch.torch_private.fake_tensors import share_storage
from ferrite_torch.torch_private.nodes import example_of, module_of, target_name
from ferrite_torch.torch_private.region_calls import modules_around, region_call, written_operands
from ferrite_torch.torch_private.symbolic_shapes import is_known

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Call:
    """The call of a module: its first and its last node, by position, and what the module is."""

    first: int
    last: int
    identity: int
    kind: str

    @property
    def length(self) -> int:
        return self.last - self.first + 1


_SUMS = frozenset(("add", "__add__"))
_OF_ONE_VALUE = frozenset(("dropout", "mul", "__mul__"))
"""What may be done to a term of a sum, of one value of the same call, in the kernel that adds."""


_Block: TypeAlias = "tuple[list[Run], tuple[int, ...]]"
"""Runs of equal structure, and the operands that they write to, by number."""


class Outlined(NamedTuple):
    """A captured graph with regions for the blocks that repeat.

    Attributes:
        module: the graph; the one that was captured where no block repeats.
        regions: the names of the regions.
    """

    module: torch.fx.GraphModule
    regions: tuple[str, ...]


def outline_blocks(module: torch.fx.GraphModule, is_wanted: Callable[[int], bool] = lambda identity: True) -> Outlined:
    """Returns a captured graph with regions for the blocks that repeat; the graph itself, unchanged, if none does.

    Args:
        module: the graph, as dynamo captured it.
        is_wanted: tells of a module's identity whether its calls may become regions.
    """
    nodes = list(module.graph.nodes)
    chosen = _chosen(nodes, is_wanted)
    if not chosen:
        return Outlined(module, ())
    graph, known = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    for node in nodes:
        known[node] = graph.node_copy(node, known.__getitem__)
    outlined = module_of(module, graph)
    outlined.meta = dict(module.meta)
    regions = tuple(f"repeated_block_{number}" for number in range(len(chosen)))
    for name, (runs, written) in zip(regions, chosen, strict=True):
        setattr(outlined, name, _region(runs[0], written))
        for run in runs:
            _replace(outlined.graph, run, known, name, written)
    outlined.recompile()
    log.info("%d calls of %d repeated blocks", sum(len(runs) for runs, _ in chosen), len(chosen))
    return Outlined(outlined, regions)


def _chosen(nodes: Sequence[torch.fx.Node], is_wanted: Callable[[int], bool]) -> list[_Block]:
    """Returns the runs that become calls of one region each, by region: the largest blocks that repeat."""
    plain = _under_plain_modes(nodes)
    alike: defaultdict[Hashable, list[_Call]] = defaultdict(list)
    names = [target_name(node) for node in nodes]
    for found in _calls(nodes):
        for call in _apart(found, names):
            if call.length >= REPEATED_BLOCKS.least_nodes and is_wanted(call.identity) and plain[call.first]:
                alike[call.kind, tuple(names[call.first : call.last + 1])].append(call)
    taken = [False] * len(nodes)
    chosen: list[_Block] = []
    for calls in sorted(alike.values(), key=lambda calls: (-calls[0].length, calls[0].first)):
        free = [call for call in calls if not any(taken[call.first : call.last + 1])]
        for runs, written in _equal_runs_anywhere(nodes, free):
            chosen.append(([run for _, run in runs], written))
            for call, _ in runs:
                taken[call.first : call.last + 1] = [True] * call.length
    return chosen


def _equal_runs_anywhere(
    nodes: Sequence[torch.fx.Node], calls: Sequence[_Call]
) -> list[tuple[list[tuple[_Call, Run]], tuple[int, ...]]]:
    """Returns what `_equal_runs` yields, of calls that begin with the last sum of the one before if they can.

    A sum at the end of a layer (its residual) is read by a norm at the beginning of the next. In one region with that
    they are one kernel, as in a whole graph; two regions would store it and read it again. The first call then stays
    as it is, and so does the last sum of the last one.
    """
    moved = _from_sum_to_sum(nodes, calls)
    found = list(_equal_runs(nodes, moved)) if moved else []
    return found if found and sum(len(runs) for runs, _ in found) == len(moved) else list(_equal_runs(nodes, calls))


def _from_sum_to_sum(nodes: Sequence[torch.fx.Node], calls: Sequence[_Call]) -> list[_Call]:
    """Returns calls that follow each other, all but the first, each from the last sum of the one before to its last.

    There are none where one does not end in a sum of two values of its own that is its only result.
    """
    ordered = sorted(calls, key=lambda call: call.first)
    if not all(one.last + 1 == other.first for one, other in pairwise(ordered)):
        return []
    counts = {_nodes_of_last_sum(nodes, call) for call in ordered}
    if len(counts) != 1 or counts == {0}:
        return []
    (count,) = counts
    return [replace(call, first=call.first - count, last=call.last - count) for call in ordered[1:]]


def _nodes_of_last_sum(nodes: Sequence[torch.fx.Node], call: _Call) -> int:
    """Returns how many nodes at the end of a call are its last sum, and what is done to its terms by element.

    0 unless the sum is the only result of the call, and its terms are values of the call's own. What makes a term of
    one other value (dropout, a factor for each column) shares a kernel with the sum.
    """
    own, last = frozenset(nodes[call.first : call.last + 1]), nodes[call.last]
    read = [node for node in own if any(user not in own for user in node.users)]
    is_sum = target_name(last) in _SUMS and len(last.args) == 2 and not last.kwargs
    if read != [last] or not is_sum or not all(term in own for term in last.args):
        return 0
    moved = {last}
    for node in reversed(nodes[call.first : call.last]):
        is_by_element = target_name(node) in _OF_ONE_VALUE and len(own.intersection(node.all_input_nodes)) == 1
        if not is_by_element or not moved.issuperset(node.users):
            break
        moved.add(node)
    return len(moved)


def _equal_runs(
    nodes: Sequence[torch.fx.Node], calls: Sequence[_Call]
) -> Iterator[tuple[list[tuple[_Call, Run]], tuple[int, ...]]]:
    """Yields calls of equal structure, as many as make a region, and which of their operands they write to."""
    if len(calls) < REPEATED_BLOCKS.least_calls:
        return
    equal: defaultdict[Hashable, list[tuple[_Call, Run]]] = defaultdict(list)
    for call in calls:
        try:
            run = run_of(nodes[call.first : call.last + 1])
        except NoStructure as reason:
            log.info("%s is no repeated block: %s", call.kind, reason)
            continue
        equal[run.structure].append((call, run))
    for runs in equal.values():
        written = _written(runs[0][1]) if len(runs) >= REPEATED_BLOCKS.least_calls else None
        if written is None:
            continue
        fitting = [(call, run) for call, run in runs if all(_is_own(run, number) for number in written)]
        if len(fitting) >= REPEATED_BLOCKS.least_calls:
            yield fitting, written


def _written(run: Run) -> tuple[int, ...] | None:
    """Returns which operands a run writes to, by number; None if that is not known."""
    try:
        return written_operands(_region(run), [example_of(node) for node in run.operands])
    except Exception as error:  # noqa: BLE001  # ops that only AOTAutograd can run on fakes raise what they like
        log.info("what a block writes to is not known: %s", error)
        return None


def _is_own(run: Run, number: int) -> bool:
    """Returns whether an operand may be written to as a copy: nothing else is seen to change, and it is small enough.

    Another operand may lie in its storage, or a derivative may be taken of what is written.
    """
    fake = example_of(run.operands[number])
    sharing = [each for each in map(example_of, (*run.operands, *run.nodes)) if share_storage(each, fake)]
    is_alone = sum(share_storage(example_of(each), fake) for each in run.operands) == 1
    is_small = is_known(fake.numel() * fake.element_size() <= REPEATED_BLOCKS.most_written)
    return is_alone and is_small and fake.is_contiguous() and not any(each.requires_grad for each in sharing)


def _calls(nodes: Sequence[torch.fx.Node]) -> Iterator[_Call]:
    """Yields the calls of modules that a graph's nodes stand in, each from its first node to its last."""
    open_calls: list[tuple[str, int, str, int]] = []
    last = -1
    for position, node in enumerate(nodes):
        if node.op in ("placeholder", "output"):
            around: tuple[tuple[str, int, str], ...] = ()
        elif not isinstance(example_of(node), torch.Tensor) and not modules_around(node):
            continue  # sizes and functions, which dynamo puts where they are first needed
        else:
            around = modules_around(node)
        depth = 0
        while depth < min(len(around), len(open_calls)) and around[depth][0] == open_calls[depth][0]:
            depth += 1
        while len(open_calls) > depth:
            _, identity, kind, first = open_calls.pop()
            yield _Call(first, last, identity, kind)
        open_calls += [(*entry, position) for entry in around[depth:]]
        last = position


def _apart(call: _Call, names: Sequence[str]) -> Iterator[_Call]:
    """Yields the calls that one is: several of the same module in a row look like one, with what repeats inside."""
    own = names[call.first : call.last + 1]
    period = next(
        (p for p in range(REPEATED_BLOCKS.least_nodes, call.length) if call.length % p == 0 and own[p:] == own[:-p]),
        call.length,
    )
    for first in range(call.first, call.last + 1, period):
        yield replace(call, first=first, last=first + period - 1)


def _under_plain_modes(nodes: Sequence[torch.fx.Node]) -> list[bool]:
    """Returns for each node whether no mode is in force there that the graph itself has entered.

    What is traced once, for all calls of a region, is traced under the modes of the first; its derivative under none.
    """
    plain, grad, entered = [], True, 0
    for node in nodes:
        name = target_name(node) if node.op == "call_function" else ""
        if name in AMBIENT:
            if name.endswith("set_grad_enabled"):
                grad = bool(node.args[0])
            else:
                entered += 1 if "enter" in name or name.endswith("disable") else -1
        plain.append(grad and not entered)
    return plain


def _region(run: Run, written: Sequence[int] = ()) -> torch.fx.GraphModule:
    """Returns a run as a graph of its own, which returns what it has written to these operands as further results."""
    graph = torch.fx.Graph()
    known: dict[torch.fx.Node, torch.fx.Node] = {}
    for number, operand in enumerate(run.operands):
        known[operand] = graph.placeholder(f"operand_{number}")
        known[operand].meta = dict(operand.meta)
    for number in written:
        known[run.operands[number]] = graph.call_method("clone", (known[run.operands[number]],))
    for node in run.nodes:
        known[node] = graph.node_copy(node, known.__getitem__)
    copies = [run.operands[number] for number in written]
    graph.output(tuple(known[node] for node in (*run.results, *copies)))
    return module_of(run.module, graph)


def _replace(
    graph: torch.fx.Graph, run: Run, known: dict[torch.fx.Node, torch.fx.Node], name: str, written: Sequence[int]
) -> None:
    """Puts the call of a region in the place of a run, and stores after it what the region has written."""
    last = known[run.nodes[-1]]
    with graph.inserting_after(last):
        held = graph.get_attr(name)
    operands = [known[node] for node in run.operands]
    copies = [run.operands[number] for number in written]
    position = held
    for number in written if any(example_of(node).requires_grad for node in run.results) else ():
        # The derivative of a region keeps all that it is given, which must not change any more.
        operands[number] = position = _after(graph, position, torch.clone, (operands[number],), operands[number].meta)
    with graph.inserting_after(position):
        call = graph.call_function(region_call(), (held, name, *operands))
    call.meta = {**last.meta, "example_value": tuple(example_of(node) for node in (*run.results, *copies))}
    position, made = call, [known[node] for node in run.nodes]
    shares_gradients = sum(example_of(node).requires_grad for node in run.results) > 1
    for number, node in enumerate(run.results):
        position = result = _after(graph, position, operator.getitem, (call, number), known[node].meta)
        if shares_gradients:
            position = _view_after(graph, result)
        known[node].replace_all_uses_with(position, lambda user: user.op != "output")
        known[node].replace_all_uses_with(result)
        known[node] = position
    for number, operand in enumerate(copies, len(run.results)):
        meta = {**last.meta, "example_value": example_of(operand)}
        position = _after(graph, position, operator.getitem, (call, number), meta)
        position = _after(
            graph, position, torch.detach, (position,), meta
        )  # what is made of floats has a derivative, for torch
        position = _after(graph, position, torch.Tensor.copy_, (known[operand], position), meta)
    for node, operand in run.same:
        known[node].replace_all_uses_with(known[operand], lambda user: user not in made)
    for node in reversed(made):
        graph.erase_node(node)


def _view_after(graph: torch.fx.Graph, result: torch.fx.Node) -> torch.fx.Node:
    """Returns a view of all of a result, which stands right after it.

    Where one gradient comes to two results of a region (that of their sum), they are one tensor for torch or two,
    depending on what made it, and torch traces a derivative for each case. Behind a view each has a tensor of its own.
    """
    with graph.inserting_after(result):
        view = graph.call_method("view_as", (result, result))
    view.meta = dict(result.meta)
    return view


def _after(
    graph: torch.fx.Graph, position: torch.fx.Node, function: Callable[..., Any], args: Any, meta: Mapping[str, Any]
) -> torch.fx.Node:
    """Returns a new node that stands right after another one."""
    with graph.inserting_after(position):
        made = graph.call_function(function, args)
    made.meta = dict(meta)
    return made
