"""Regions of captured graphs: the op that calls one, the modules that nodes belong to, and what regions write to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ferrite_torch.torch_private.operators import HigherOrderOp


def region_call() -> HigherOrderOp:
    """Returns the op that calls a graph held by the graph it stands in: what ``nested_compile_region`` makes.

    Torch publishes the decorator, for functions, and not the op.
    """
    from torch._higher_order_ops.invoke_subgraph import invoke_subgraph

    return invoke_subgraph


def region_names(module: torch.fx.GraphModule) -> list[str]:
    """Returns the names of the regions that a captured graph calls, one for each call."""
    return [str(node.args[1]) for node in module.graph.find_nodes(op="call_function", target=region_call())]


def modules_around(node: torch.fx.Node) -> tuple[tuple[str, int, str], ...]:
    """Returns the modules whose calls a node of a captured graph stands in, the outermost first.

    Each as what is one for a call, the module's identity (``id``), and the name of its class. Dynamo notes both in a
    table without a published form: ``{"140231735400528": ("L['self'].blocks.0", Block)}``, where a further call of the
    module adds ``@1`` to the key.
    """
    stack: Any = node.meta.get("nn_module_stack") or {}
    found = []
    for key, (_, kind) in stack.items():
        identity = str(key).partition("@")[0]
        name = kind.rpartition(".")[2] if isinstance(kind, str) else kind.__name__
        found.append((str(key), int(identity) if identity.isdigit() else 0, name))
    return tuple(found)


def written_operands(module: torch.fx.GraphModule, operands: Sequence[Any]) -> tuple[int, ...]:
    """Returns the positions of the operands that a graph writes to, running statistics of norms included.

    Only functionalisation sees all writes; what runs a function under it is private.

    Args:
        module: the graph.
        operands: fake tensors and numbers to call it with.
    """
    from torch._functorch._aot_autograd.functional_utils import has_data_mutation, to_fun
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

    # What the graph makes itself (a mask of positions) is to be as fake as what it is given.
    modes = [each.fake_mode for each in operands if isinstance(each, FakeTensor)]
    with torch.no_grad(), modes[0] if modes else nullcontext(), FunctionalTensorMode():
        given: list[Any] = [to_fun(each.detach()) if isinstance(each, torch.Tensor) else each for each in operands]
        torch.fx.Interpreter(module).run(*given)
        return tuple(
            position
            for position, each in enumerate(given)
            if isinstance(each, FunctionalTensor) and has_data_mutation(each)
        )


@contextmanager
def asking_regions_once() -> Iterator[None]:
    """Has torch ask each region once whether it writes to what it is given, not at each of its calls.

    It traces a region to know, which takes as long as compiling it; torch 2.13 remembers some of the answers. There is
    no hook for it.
    """
    from torch._higher_order_ops.invoke_subgraph import InvokeSubgraphHOP

    kind: Any = InvokeSubgraphHOP
    theirs = kind.gen_schema
    known: dict[Any, tuple[Any, Any]] = {}

    def gen_schema(self: Any, region: Any, identifier: Any, *operands: Any) -> Any:
        graph = getattr(region, "subgraph", region)
        question = (id(graph), identifier, tuple(map(_kind_of, operands)))
        if question not in known:
            known[question] = theirs(self, region, identifier, *operands), graph  # held: identities are used again
        return known[question][0]

    kind.gen_schema = gen_schema
    try:
        yield
    finally:
        kind.gen_schema = theirs


def _kind_of(operand: Any) -> Any:
    return operand.dtype if isinstance(operand, torch.Tensor) else type(operand)
