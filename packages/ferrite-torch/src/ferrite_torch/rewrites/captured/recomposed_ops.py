"""Ops that dynamo takes apart before a backend sees them: they are put together again.

From torch 2.13 on it writes ``x.addcmul_(a, b, value=v)``, and ``addcdiv_``, as pieces, so that a tensor may stand for
the number; and ``x.add_(a, alpha=v)`` where ``v`` is a tensor:

    product = torch.mul(a, b)                       x.addcmul_(a, b, value=v)
    fused = prims.fma(product, v, x)         →
    x.copy_(fused)

The pieces take what the op refuses: booleans, fractions of integers, operands of a type that does not fit into ``x``,
memory of ``x`` that is read as well, several numbers. Where ``v`` is a number the op itself stands in the graph for all
that look at it. Where it is a tensor the pieces stay, if the op would take it: a whole op asks for its number, for
which a GPU has to be waited for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

import torch

from ferrite_torch.torch_private.nodes import fake_of, target_name

_OPS: Mapping[Any, str] = {torch.mul: "addcmul_", torch.div: "addcdiv_"}
"""By the function that combines two operands: the op that adds what it gives, times a number."""


def recompose(module: torch.fx.GraphModule) -> None:
    """Makes one op of the pieces that dynamo has made of one, in a dynamo graph."""
    has_changed = False
    for node in list(module.graph.nodes):
        fused = _sum_before(node)
        if fused is not None:
            _put_together(module.graph, node, fused)
            has_changed = True
    if has_changed:
        module.recompile()


def _sum_before(node: torch.fx.Node) -> torch.fx.Node | None:
    """Returns the sum that a node copies to its last operand, if it is a piece of an op that has to be whole."""
    if node.op != "call_method" or node.target != "copy_" or len(node.args) != 2 or node.kwargs:
        return None
    target, fused = node.args[0], node.args[1]
    if not _is_only_for(fused, node) or target_name(fused) != "fma.default" or fused.args[2] is not target:
        return None
    factor = fake_of(fused.args[1])
    if factor is None:
        return fused if _combined(fused) is not None else None
    x, combined = fake_of(target), _combined(fused)
    operands = [] if combined is None else [fake_of(each) for each in combined.args]
    is_divided = combined is not None and combined.target is torch.div
    has_wholes = is_divided and all(each is not None and _is_whole(each) for each in operands)
    is_taken = factor.dim() == 0 and x is not None and not _is_whole(x) and not has_wholes
    return None if is_taken else fused


def _combined(fused: torch.fx.Node) -> torch.fx.Node | None:
    """Returns the node that combines two operands for a sum only, None where the sum has just one."""
    operand = fused.args[0]
    if not _is_only_for(operand, fused) or operand.op != "call_function" or operand.target not in _OPS:
        return None
    return operand if len(operand.args) == 2 and not operand.kwargs else None


def _put_together(graph: torch.fx.Graph, node: torch.fx.Node, fused: torch.fx.Node) -> None:
    operand, factor, target = fused.args
    combined = _combined(fused)
    with graph.inserting_before(node):
        if combined is None:
            whole = graph.call_method("add_", (target, operand), {"alpha": factor})
        else:
            whole = graph.call_method(_OPS[combined.target], (target, *combined.args), {"value": factor})
    whole.meta = dict(node.meta)
    node.replace_all_uses_with(whole)
    for piece in (node, fused, *(() if combined is None else (combined,))):
        graph.erase_node(piece)


def _is_only_for(value: Any, user: torch.fx.Node) -> TypeGuard[torch.fx.Node]:
    return isinstance(value, torch.fx.Node) and list(value.users) == [user]


def _is_whole(x: torch.Tensor) -> bool:
    return not (x.dtype.is_floating_point or x.dtype.is_complex)
