"""Views that a forward saves of its inputs and results: the tensor itself is saved, and its backward makes the view.

    y = x @ w       forward(x, w) -> y │ x, permute(w)          becomes        forward(x, w) -> y │ x, w

Autograd refuses a backward whose saved tensors were written to since, and tells by their version counters. A program
returns a view as a tensor of its own: a write to ``w`` would not be seen, and the gradient of ``x`` be wrong.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ferrite_torch.torch_private.operators import Overload, schema_of
from ferrite_torch.torch_private.region_calls import region_call
from ferrite_torch.torch_private.symbolic_shapes import is_known


def save_bases(
    forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, seen: int, *, is_region: bool = False
) -> None:
    """Makes a forward save what the caller has in place of views of it; ``seen`` of its results are the caller's.

    A view stays where its sizes are symbols that the backward does not know, and where the forward writes to the input.

    Args:
        forward: one part of a joint graph.
        backward: the other.
        seen: how many results of the forward are the caller's.
        is_region: the two are called by other graphs. What a region returns are tensors of their own, so what its
            backward wants several views of (query, key and value of one product) is saved in their place.
    """
    output = forward.graph.output_node()
    results = list(output.args[0])  # type: ignore[arg-type]
    written = {node.args[0] for node in forward.graph.nodes if str(node.target) == "aten.copy_.default"}
    owned = {
        node for node in (*forward.graph.find_nodes(op="placeholder"), *results[:seen]) if _is_node(node)
    } - written
    if is_region:
        owned |= _repaid_bases(results[seen:], owned)
    given = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    dropped: list[int] = []
    replaced: list[torch.fx.Node] = []
    for position, saved in enumerate(results[seen:], seen):
        views = _views_up_to(saved, owned)
        if not views or saved.name not in given:
            continue
        base: Any = views[-1].args[0]
        sizes = _sizes_of(views, given)
        if sizes is None:
            continue
        is_saved_already = base.name in given
        _make_views(backward.graph, given, base, [*sizes, *reversed(views)])
        replaced += views
        if is_saved_already:
            dropped.append(position)
        else:
            results[position] = base
    if not replaced:
        return
    _return(output, results, dropped)
    for view in replaced:
        if not view.users and not view._erased:
            forward.graph.erase_node(view)
    for module in (forward, backward):
        module.recompile()


def save_old_contents(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, seen: int) -> None:
    """Makes a forward save a copy of an input that it writes to in place of the input: the backward reads old contents.

    Autograd would not notice: kernels do not count versions of what they write.

    Args:
        forward: one part of a joint graph, which writes at its end.
        backward: the other.
        seen: how many results of the forward are the caller's.
    """
    written = {
        node.args[0] for node in forward.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    }
    output = forward.graph.output_node()
    results = list(output.args[0])  # type: ignore[arg-type]
    given = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    for position, saved in enumerate(results[seen:], seen):
        if saved not in written or saved.name not in given:
            continue
        with forward.graph.inserting_before(next(node for node in forward.graph.nodes if node.op != "placeholder")):
            results[position] = forward.graph.call_function(torch.ops.aten.clone.default, (saved,))
        results[position].meta = dict(saved.meta)
        taken = given[saved.name]
        with backward.graph.inserting_before(taken):
            replacement = backward.graph.placeholder(results[position].name)
        replacement.meta = dict(taken.meta)
        taken.replace_all_uses_with(replacement)
        backward.graph.erase_node(taken)
    _return(output, results, ())
    for module in (forward, backward):
        module.recompile()


def _is_node(value: Any) -> bool:
    return isinstance(value, torch.fx.Node)


def _views_up_to(node: Any, owned: set[Any]) -> list[torch.fx.Node]:
    """Returns a node that is a view and what it is a view of, up to the first of all that is owned; none if none is."""
    views: list[torch.fx.Node] = []
    count = 0
    if not _is_node(node) or node.meta.get("saved_tensor_with_no_vc_check", False):
        return views
    while _is_view(node):
        views.append(node)
        node = node.args[0]
        if node in owned:
            count = len(views)
    return views[:count]


def _repaid_bases(saved: Sequence[Any], owned: set[Any]) -> set[torch.fx.Node]:
    """Returns what a forward makes itself and saves views of that have as many elements as it, or more."""
    elements: dict[torch.fx.Node, Any] = {}
    for node in saved:
        base = node
        while _is_node(base) and _is_view(base):
            base = base.args[0]
        if _is_node(base) and base is not node and base not in owned and isinstance(base.meta.get("val"), torch.Tensor):
            elements[base] = elements.get(base, 0) + node.meta["val"].numel()
    return {base for base, count in elements.items() if is_known(count >= base.meta["val"].numel())}


def hand_on_operands(joint: torch.fx.GraphModule) -> None:
    """Reads around regions what they return as they were given it.

    A region of a joint graph returns what its backward takes: its weights, among others. They are the caller's already,
    which saves them as what they are: not results of the region, but inputs.
    """
    for node in joint.graph.find_nodes(op="call_function", target=region_call()):
        region = getattr(joint, str(node.args[0].target), None)
        if not isinstance(region, torch.fx.GraphModule):
            continue
        parameters = {each: position for position, each in enumerate(region.graph.find_nodes(op="placeholder"))}
        returned: Any = region.graph.output_node().args[0]
        for reader in list(node.users):
            position = reader.args[1] if reader.target is operator.getitem else None
            if isinstance(position, int) and position < len(returned) and returned[position] in parameters:
                reader.replace_all_uses_with(node.args[2 + parameters[returned[position]]])
                joint.graph.erase_node(reader)


def return_once(joint: torch.fx.GraphModule) -> None:
    """Reads what regions return several times where they return it first; their other results become nothing.

    A forward region returns what its caller reads and what its backward takes, which may be one tensor, and a backward
    region returns the gradient of a sum for each of its terms. As results of their own they would be copies.
    """
    again: dict[torch.fx.GraphModule, dict[int, int]] = {}
    for node in joint.graph.find_nodes(op="call_function", target=region_call()):
        region = getattr(joint, str(node.args[0].target), None)
        if not isinstance(region, torch.fx.GraphModule):
            continue
        if region not in again:
            again[region] = _drop_repeated(region)
        if again[region]:
            _read_first(node, again[region])


def _drop_repeated(region: torch.fx.GraphModule) -> dict[int, int]:
    """Makes a graph return each value once, and nothing in place of it again; returns where it did, by position."""
    output = region.graph.output_node()
    results: Any = output.args[0]
    first = {node: position for position, node in reversed([*enumerate(results)]) if _is_node(node)}
    again = {at: first[node] for at, node in enumerate(results) if _is_node(node) and first[node] != at}
    if again:
        output.args = (type(results)(None if at in again else node for at, node in enumerate(results)),)
        region.recompile()
    return again


def _read_first(call: torch.fx.Node, again: Mapping[int, int]) -> None:
    """Has those who read a result of a call that is another one's value read that one.

    Of two nodes that read it, the one that did so before stays: its fake tensor is of this call, where those of what a
    region saves are of all its calls.
    """
    found = [user for user in call.users if user.target is operator.getitem]
    readers: dict[Any, torch.fx.Node] = {}
    for reader in sorted(found, key=lambda reader: reader.args[1] in again):
        position = again.get(reader.args[1], reader.args[1])  # type: ignore[arg-type]
        if position in readers:
            call.append(readers[position])
            reader.replace_all_uses_with(readers[position])
            call.graph.erase_node(reader)
        else:
            readers[position] = reader
            reader.args = (call, position)
    fakes = call.meta["val"]
    call.meta["val"] = type(fakes)(None if at in again else fake for at, fake in enumerate(fakes))


def read_originals(joint: torch.fx.GraphModule) -> None:
    """Has a region read a tensor where it is given a copy that nobody else reads.

    Copies stand before regions that write to what they are given, for a derivative that takes it as it was. A region
    changes nothing, and what it has written is stored after it.
    """
    for node in joint.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default):
        readers = list(node.users)
        if len(readers) == 1 and readers[0].target is region_call() and not node.kwargs:
            node.replace_all_uses_with(node.args[0])
            joint.graph.erase_node(node)


def _is_view(node: torch.fx.Node) -> bool:
    made = node.args[0] if node.target is operator.getitem else node
    if not isinstance(made, torch.fx.Node) or not isinstance(made.target, Overload):
        return False
    schema = schema_of(made.target)
    if len(schema.returns) != 1 or not schema.arguments or not isinstance(made.args[0], torch.fx.Node):
        return False
    info = schema.arguments[0].alias_info
    return info is not None and not info.is_write and schema.returns[0].alias_info is not None


def _sizes_of(views: Sequence[torch.fx.Node], given: Mapping[str, torch.fx.Node]) -> list[torch.fx.Node] | None:
    """Returns the nodes that compute the sizes of views, in order; None if they take more than a backward is given."""
    pending = [node for view in views for node in view.all_input_nodes if node is not view.args[0]]
    found: dict[torch.fx.Node, None] = {}
    while pending:
        node = pending.pop()
        if node.name in given or node in found:
            continue
        if node.op != "call_function" or not isinstance(node.meta.get("val"), (int, torch.SymInt)):
            return None
        found[node] = None
        pending += node.all_input_nodes
    return sorted(found)


def _make_views(
    backward: torch.fx.Graph, given: dict[str, torch.fx.Node], base: torch.fx.Node, nodes: Sequence[torch.fx.Node]
) -> None:
    """Makes the last of some nodes of a forward in its backward, which took it: from the base, which it takes then."""
    taken = given.pop(nodes[-1].name)
    if base.name not in given:
        with backward.inserting_before(taken):
            given[base.name] = backward.placeholder(base.name)
        given[base.name].meta = {**base.meta, **({"desc": taken.meta["desc"]} if "desc" in taken.meta else {})}
    made: dict[torch.fx.Node, torch.fx.Node] = {}
    with backward.inserting_before(next(node for node in backward.nodes if node.op != "placeholder")):
        for node in nodes:
            made[node] = backward.node_copy(node, lambda operand: made.get(operand) or given[operand.name])
    taken.replace_all_uses_with(made[nodes[-1]])
    backward.erase_node(taken)


def _return(output: torch.fx.Node, results: Sequence[Any], dropped: Sequence[int]) -> None:
    """Makes a graph return these results, some left out, with what is noted of each."""
    kept = [position for position in range(len(results)) if position not in dropped]
    notes = output.meta.get("desc")
    if notes is not None and len(notes) == len(results):
        output.meta["desc"] = [notes[position] for position in kept]
    form: Any = type(output.args[0])
    output.args = (form(results[position] for position in kept),)
