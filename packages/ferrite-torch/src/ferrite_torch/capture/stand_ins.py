"""Calls of repeated blocks that AOTAutograd need not read: it is given one call of each region, and stand-ins.

    block_0 = get_attr block_0                               block_0 = get_attr block_0
    a = invoke_subgraph(block_0, "block_0", x, w_1, …)       a = invoke_subgraph(block_0, "block_0", x, w_1, …)
    b = invoke_subgraph(block_0, "block_0", a[0], w_2, …) →  b = call([a[0]], [], 1)            w_2, … are no inputs
    c = invoke_subgraph(block_0, "block_0", b[0], w_3, …)    c = call([b[0]], [], 2)            w_3, …

In its graph, which has no derivative, each stand-in is then what the first call of the region has become, with operands
of its own; what only stand-ins read comes behind the other inputs. To make a graph functional, and to write it down,
takes AOTAutograd a while for each input, of which a layer has a dozen.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ferrite_torch.torch_private.fake_tensors import is_fake, storage_key
from ferrite_torch.torch_private.nodes import example_of, module_of, target_name
from ferrite_torch.torch_private.region_calls import (
    are_plain,
    is_plain_whole,
    new_fakes,
    new_number,
    region_call,
    shared_storages,
    stand_in,
)
from ferrite_torch.torch_private.symbolic_shapes import size_text

log = logging.getLogger(__name__)


_DECIDING = ("set_grad_enabled", "inference_mode")
"""How the names of functions end that change, inside of a graph, whether what follows has a derivative."""


class NotPutBack(Exception):
    """A graph of AOTAutograd is not as it was expected, so that no call can be put in the place of a stand-in."""


@dataclass(frozen=True, slots=True)
class _Call:
    """What a stand-in stands for.

    Attributes:
        region: what it calls.
        operands: for each operand the number of the withheld input that it is; of others, whether they are tensors.
    """

    region: str
    operands: tuple[int | type, ...]


@dataclass(frozen=True, slots=True)
class Shortened:
    """A captured graph with stand-ins.

    Attributes:
        module: the graph.
        kept: positions of the inputs that it has, among those of the captured graph.
        withheld: positions of the others, which nothing but stand-ins reads.
        fakes: what dynamo traced with in the place of these.
        results: what comes out of each stand-in, by its number.
    """

    module: torch.fx.GraphModule
    kept: tuple[int, ...]
    withheld: tuple[int, ...]
    fakes: tuple[torch.Tensor, ...]
    results: Mapping[int, tuple[torch.Tensor, ...]]
    _calls: Mapping[int, _Call]

    def put_back(self, module: torch.fx.GraphModule) -> None:
        """Puts calls in the place of stand-ins in AOTAutograd's graph, in place; withheld inputs come last.

        Raises:
            NotPutBack: the graph does not tell what the calls are.
        """
        first = {str(node.args[1]): node for node in reversed(_region_calls(module))}
        stand_ins = module.graph.find_nodes(op="call_function", target=stand_in())
        inputs = self._add_inputs(module.graph)
        for node in stand_ins:
            tensors, integers, number = node.args
            call = self._calls[number]
            model = first.get(call.region)
            if model is None or node < model:
                raise NotPutBack(f"no call of {call.region}")
            given = {torch.Tensor: iter(tensors), torch.SymInt: iter(integers)}
            operands = [inputs[each] if isinstance(each, int) else next(given[each]) for each in call.operands]
            _check_alike(model, node, operands)
            node.target, node.args = model.target, (*model.args[:2], *operands)
            node.meta = {**node.meta, "val": tuple(node.meta["val"])}
        module.recompile()

    def _add_inputs(self, graph: torch.fx.Graph) -> list[torch.fx.Node]:
        """Returns new inputs for all that was withheld, behind those that the graph has."""
        inputs = graph.find_nodes(op="placeholder")
        made: list[torch.fx.Node] = []
        for number, fake in enumerate(new_fakes(self.fakes, [node.meta.get("val") for node in inputs])):
            with graph.inserting_after(made[-1] if made else inputs[-1]):
                made.append(graph.placeholder(f"withheld_{number}"))
            made[-1].meta["val"] = fake
        return made


def shorten(module: torch.fx.GraphModule, regions: Collection[str]) -> Shortened | None:
    """Returns a captured graph with stand-ins for all calls of a region but the first; None if that gains nothing.

    Withheld are inputs that nothing else reads and that share no memory with others, so that no write is missed. The
    graph must have no derivative, which stand-ins lack.

    Args:
        module: the graph.
        regions: the names of the regions that change nothing that they are given, and return tensors of their own.
    """
    inputs = module.graph.find_nodes(op="placeholder")
    if not are_plain([example_of(node) for node in inputs]) or _may_have_derivative(module, inputs):
        return None
    chosen = dict.fromkeys(_further_calls(module, regions))
    shared = shared_storages([example_of(node) for node in inputs])
    withheld = {
        node: None
        for node in inputs
        if node.users
        and all(user in chosen for user in node.users)
        and is_plain_whole(example_of(node))
        and storage_key(example_of(node)) not in shared
    }
    if not withheld or not any(is_fake(example_of(node)) for node in inputs if node not in withheld):
        return None  # nothing is gained; nothing tells AOTAutograd's mode
    numbers = {node: number for number, node in enumerate(withheld)}
    calls, results = dict[int, _Call](), dict[int, tuple[torch.Tensor, ...]]()
    graph, known = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    for node in module.graph.nodes:
        if node in withheld:
            continue
        if node not in chosen:
            known[node] = graph.node_copy(node, known.__getitem__)
            continue
        kinds = [torch.Tensor if is_fake(example_of(each)) else torch.SymInt for each in node.args[2:]]
        operands = tuple(numbers.get(each, kind) for each, kind in zip(node.args[2:], kinds, strict=True))
        number = new_number()
        calls[number], results[number] = _Call(str(node.args[1]), operands), example_of(node)
        given = {
            each: [known[node.args[2 + place]] for place, kind in enumerate(operands) if kind is each]
            for each in (torch.Tensor, torch.SymInt)
        }
        known[node] = graph.call_function(stand_in(), (given[torch.Tensor], given[torch.SymInt], number))
        known[node].meta = dict(node.meta)
    shortened = module_of(module, graph)
    shortened.meta = dict(module.meta)
    positions = [(position, node in withheld) for position, node in enumerate(inputs)]
    log.info("%d calls of regions and %d inputs are kept from AOTAutograd", len(calls), len(withheld))
    return Shortened(
        shortened,
        tuple(position for position, is_withheld in positions if not is_withheld),
        tuple(position for position, is_withheld in positions if is_withheld),
        tuple(example_of(node) for node in withheld),
        results,
        calls,
    )


def _may_have_derivative(module: torch.fx.GraphModule, inputs: Sequence[torch.fx.Node]) -> bool:
    """Returns whether AOTAutograd may make a backward, or a mode changes that decides it."""
    if any(target_name(node).endswith(_DECIDING) for node in module.graph.nodes):
        return True
    fakes = [example_of(node) for node in inputs]
    return torch.is_grad_enabled() and any(isinstance(fake, torch.Tensor) and fake.requires_grad for fake in fakes)


def _region_calls(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return list(module.graph.find_nodes(op="call_function", target=region_call()))


def _further_calls(module: torch.fx.GraphModule, regions: Collection[str]) -> list[torch.fx.Node]:
    """Returns the calls of regions, all but the first of each, that take tensors and integers and return tensors."""
    seen, found = set[str](), []
    for node in _region_calls(module):
        region, results = str(node.args[1]), example_of(node)
        given = [example_of(each) if isinstance(each, torch.fx.Node) else None for each in node.args[2:]]
        known = all(is_fake(each) or isinstance(each, torch.SymInt) for each in given) and any(map(is_fake, given))
        if region in seen and region in regions and known and not node.kwargs:
            found += [node] if isinstance(results, tuple) and all(map(is_fake, results)) else []
        seen.add(region)
    return found


def _check_alike(model: torch.fx.Node, node: torch.fx.Node, operands: Sequence[torch.fx.Node]) -> None:
    """Raises `NotPutBack` unless a call takes and returns what another one does, type by type."""
    mine = [*(each.meta["val"] for each in operands), *node.meta["val"]]
    theirs = [*(_value(each) for each in model.args[2:]), *_value(model)]
    if len(operands) != len(model.args) - 2 or list(map(_type_of, mine)) != list(map(_type_of, theirs)):
        raise NotPutBack(f"a call of {node.args[1]} that is another one to AOTAutograd")


def _value(node: Any) -> Any:
    return node.meta["val"] if isinstance(node, torch.fx.Node) else node


def _type_of(value: Any) -> Any:
    if not is_fake(value):
        return type(value)
    return value.dtype, value.device, *map(size_text, value.shape), "by", *map(size_text, value.stride())
