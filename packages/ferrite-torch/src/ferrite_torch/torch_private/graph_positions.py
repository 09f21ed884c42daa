"""Which arguments and results of a graph that AOTAutograd compiles are which: the one place that reads its positions.

    forward   tokens, inputs                        ->  tokens, mutated inputs, results, bases, RNG offsets │ saved
    backward  symbols, saved, gradients, RNG, tokens  ->  gradients, tokens
    inference tokens, inputs                        ->  tokens, mutated inputs, results

*Tokens* order calls with effects and have no value. A tensor subclass stands for the tensors that it is made of. What a
forward saves comes after everything that the caller sees, and only the backward reads it.

AOTAutograd's own lists of positions leave tokens out (unless its backends take them out of graphs first, in a way that
is theirs). So what may be overwritten is found where the joint graph is split (`mark_split`), from the two graphs
themselves, and stays with their nodes, whatever is put before or behind these later.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ferrite_torch.torch_private.fake_tensors import storage_key

_SEEN = "ferrite_seen_results"
_OWN = "ferrite_own_argument"


@dataclass(frozen=True, slots=True)
class Positions:
    """Positions of arguments and results of one graph.

    Attributes:
        tokens: how many of its first arguments, and of its first results, are effect tokens.
        regenerated: results that AOTAutograd replaces by views of the inputs, each with the argument that it is made
            from. Only their shape, their strides and where they begin are read, so they need no storage of their own.
        saved: results of a forward that only its backward sees. They may lie as the compiler likes if it says so with
            `report_strides`.
        donated: arguments of a backward that nobody else reads, then or later. They may share storage with each other.
        held: arguments of a backward that are parameters or buffers.
        static: arguments, of any graph, that are parameters, buffers or what else dynamo knows to stay where it is.
        bases: arguments that stand for several of the caller's, which share memory.
    """

    tokens: int = 0
    regenerated: Mapping[int, int] = field(default_factory=dict)
    saved: frozenset[int] = frozenset()
    donated: frozenset[int] = frozenset()
    held: frozenset[int] = frozenset()
    static: frozenset[int] = frozenset()
    bases: frozenset[int] = frozenset()


def positions_of(module: torch.fx.GraphModule, kind: str) -> Positions:
    """Returns the positions in the graph being compiled, of kind ``forward``, ``backward`` or ``inference``."""
    metadata = forward_metadata()
    if metadata is None:
        return Positions()
    if kind == "backward":
        held = _held(module, metadata)
        return Positions(donated=_donated(module, metadata), held=held, static=held)
    tokens = len(metadata.tokens)
    saved = _saved(module, metadata, tokens) if kind == "forward" else frozenset()
    static = _held(module, metadata) if kind == "forward" else _static(metadata)
    return Positions(tokens, _regenerated(metadata, tokens), saved, static=static, bases=_bases(module))


def forward_metadata() -> Any:
    """Returns what AOTAutograd knows of the forward graph of what is being compiled, None outside of that."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    return None if context is None else context.fw_metadata


@contextmanager
def without_metadata() -> Iterator[None]:
    """Has nothing known of the graph around what is compiled: parts of it have other inputs and results."""
    from torch._guards import TracingContext, tracing

    context = TracingContext.try_get()
    with tracing(TracingContext(None if context is None else context.fake_mode)):
        yield


def note_metadata(metadata: Any) -> None:
    """Notes what is known of the forward graph of what is being compiled, where it was found and not traced."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    if context is not None:
        context.fw_metadata = metadata


def written_positions(count: int) -> frozenset[int] | None:
    """Returns which of so many inputs the graph that was compiled last writes to, as AOTAutograd saw it run.

    None where its inputs are not those of the captured graph: where bases stand for some of them, or nobody knows.
    """
    infos = getattr(forward_metadata(), "input_info", None)
    if infos is None or len(infos) != count:
        return None
    return frozenset(position for position, info in enumerate(infos) if info.mutates_data)


def token_count(joint: torch.fx.GraphModule) -> int:
    """Returns how many of the first inputs of a joint graph are effect tokens: nothing reads them but such calls."""
    placeholders = joint.graph.find_nodes(op="placeholder")
    return sum(1 for _ in itertools.takewhile(is_token, placeholders))


def has_effects(module: torch.fx.GraphModule) -> bool:
    """Returns whether a graph has calls with effects, and so takes tokens."""
    return any(str(node.target) == "with_effects" for node in module.graph.nodes)


def is_token(node: torch.fx.Node) -> bool:
    """Returns whether an input is only what orders calls with effects, and never has a value."""
    return bool(node.users) and all(is_token_of(node, user) for user in node.users)


def is_token_of(node: torch.fx.Node, user: torch.fx.Node) -> bool:
    """Returns whether a call with effects uses a node as its token, and as nothing else."""
    return str(user.target) == "with_effects" and user.args[0] is node and user.all_input_nodes.count(node) == 1


def drop_tokens(module: torch.fx.GraphModule) -> None:
    """Takes effect tokens out of the inputs and results of a graph: calls with effects stand in their order in it."""
    graph = module.graph
    output = graph.output_node()
    kept = [value for value in _returned(output) if not _is_new_token(value)]
    tokens = [node for node in graph.find_nodes(op="placeholder") if is_token(node)]
    if not tokens and len(kept) == len(_returned(output)):
        return
    output.args = (tuple(kept),)
    for node in tokens:
        for user in list(node.users):
            user.args = (None, *user.args[1:])
        graph.erase_node(node)
    module.recompile()


def _is_new_token(value: Any) -> bool:
    """Returns whether a result of a graph is the token that a call with effects returns."""
    if not isinstance(value, torch.fx.Node) or value.target is not operator.getitem:
        return False
    call, position = value.args
    return isinstance(call, torch.fx.Node) and str(call.target) == "with_effects" and bool(position == 0)


def mark_split(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, seen: int) -> None:
    """Notes on the nodes of two graphs how many results of the forward the caller sees, and what is the backward's own.

    Its own are the saved tensors that share storage with no argument of the forward, with nothing that the caller sees
    and with no result of the backward. The two graphs must have been split just now: their fakes tell what shares.
    """
    output = forward.graph.output_node()
    output.meta[_SEEN] = seen
    results = _returned(output)
    inputs, gradients = forward.graph.find_nodes(op="placeholder"), _returned(backward.graph.output_node())
    foreign = {_storage(value) for value in (*inputs, *results[:seen], *gradients)}
    saved = {
        node.name
        for node in results[seen:]
        if isinstance(node, torch.fx.Node) and node.op != "placeholder" and _storage(node) not in foreign
    }
    for node in backward.graph.find_nodes(op="placeholder"):
        if node.name in saved and _storage(node) not in foreign:
            node.meta[_OWN] = True


def _returned(output: torch.fx.Node) -> Sequence[Any]:
    returned = output.args[0]
    return returned if isinstance(returned, (tuple, list)) else (returned,)


def _storage(node: Any) -> int | None:
    fake = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return storage_key(fake) if isinstance(fake, torch.Tensor) and fake.layout == torch.strided else None


def _regenerated(metadata: Any, tokens: int) -> Mapping[int, int]:
    from torch._functorch._aot_autograd.schemas import OutputType, PlainTensorMeta

    if not all(isinstance(meta, PlainTensorMeta) for meta in metadata.subclass_fw_graph_out_meta):
        return {}  # the results of tensor subclasses are several: positions would not match
    first = tokens + metadata.num_mutated_inp_runtime_indices
    from_inputs = (OutputType.alias_of_input, OutputType.is_input)
    made = ((position, info) for position, info in enumerate(metadata.output_info) if info.output_type in from_inputs)
    return {first + position: tokens + info.base_idx for position, info in made}


def _saved(module: torch.fx.GraphModule, metadata: Any, tokens: int) -> frozenset[int]:
    """Returns what only the backward sees; nothing where the layouts that are reported would not reach it.

    Compiled autograd runs the backward as it was traced. Where dynamo compiles one graph for the results of another
    (the buckets of a data-parallel model), the report would need the tokens, which it must not have for the backward.
    """
    from torch._dynamo import config
    from torch._guards import TracingContext

    context: Any = TracingContext.try_get()
    output = module.graph.output_node()
    first = output.meta.get(_SEEN)
    if first is None or first != tokens + metadata.num_forward or getattr(config, "compiled_autograd", False):
        return frozenset()
    if getattr(context, "output_strides", None) != [] or (tokens and context.fakify_first_call):
        return frozenset()
    return frozenset(range(first, len(_returned(output))))


def _bases(module: torch.fx.GraphModule) -> frozenset[int]:
    from torch._functorch._aot_autograd.descriptors import SyntheticBaseAOTInput

    placeholders = module.graph.find_nodes(op="placeholder")
    described = ((position, node.meta.get("desc")) for position, node in enumerate(placeholders))
    return frozenset(position for position, found in described if isinstance(found, SyntheticBaseAOTInput))


def _donated(module: torch.fx.GraphModule, metadata: Any) -> frozenset[int]:
    """Returns the backward's own arguments, and tells AOTAutograd that there are none.

    It would refuse to run a backward that has some under ``retain_graph``, where ours copies what it overwrites
    (`keeps_graph`). Its list is empty where the graph was kept for another backward already, or the user wants none.
    """
    listed = metadata.bw_donated_idxs
    if not listed:
        return frozenset()
    listed.clear()
    return frozenset(
        position for position, node in enumerate(module.graph.find_nodes(op="placeholder")) if node.meta.get(_OWN)
    )


def _held(module: torch.fx.GraphModule, metadata: Any) -> frozenset[int]:
    """Returns the arguments of a graph split from a joint one that are parameters, known by the names of its inputs.

    The metadata numbers the inputs behind the tokens, which are inputs of the joint graph as well.
    """
    tokens = len(metadata.tokens)
    names = {f"primals_{tokens + number + 1}" for number in metadata.static_input_indices or ()}
    placeholders = module.graph.find_nodes(op="placeholder")
    return frozenset(position for position, node in enumerate(placeholders) if node.target in names)


def _static(metadata: Any) -> frozenset[int]:
    """Returns the arguments of a graph for inference that are parameters."""
    return frozenset(len(metadata.tokens) + number for number in metadata.static_input_indices or ())
