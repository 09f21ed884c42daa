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


def save_bases(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, seen: int) -> None:
    """Makes a forward save what the caller has in place of views of it; ``seen`` of its results are the caller's.

    A view stays where its sizes are symbols that the backward does not know, and where the forward writes to the input.
    """
    output = forward.graph.output_node()
    results = list(output.args[0])  # type: ignore[arg-type]
    written = {node.args[0] for node in forward.graph.nodes if str(node.target) == "aten.copy_.default"}
    owned = {
        node for node in (*forward.graph.find_nodes(op="placeholder"), *results[:seen]) if _is_node(node)
    } - written
    given = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    dropped: list[int] = []
    replaced: list[torch.fx.Node] = []
    for place, saved in enumerate(results[seen:], seen):
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
            dropped.append(place)
        else:
            results[place] = base
    if not replaced:
        return
    _return(output, results, dropped)
    for view in replaced:
        if not view.users and not view._erased:
            forward.graph.erase_node(view)
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
    kept = [place for place in range(len(results)) if place not in dropped]
    notes = output.meta.get("desc")
    if notes is not None and len(notes) == len(results):
        output.meta["desc"] = [notes[place] for place in kept]
    form: Any = type(output.args[0])
    output.args = (form(results[place] for place in kept),)
