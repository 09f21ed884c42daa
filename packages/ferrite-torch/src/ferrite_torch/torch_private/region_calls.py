"""Regions of captured graphs: the op that calls one, the modules that nodes belong to, and what regions write to.

And an op that stands for a call while AOTAutograd reads a graph, ``ferrite_stand_ins.call(tensors, integers, 7)``.
Of it only what comes out is known, by its number: the fake tensors that dynamo has seen come out of the call.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, NoReturn

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ferrite_torch.torch_private.fake_tensors import is_fake, storage_key, without_modes
from ferrite_torch.torch_private.operators import HigherOrderOp, Overload

NAMESPACE = "ferrite_stand_ins"

_library: Any = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
_results: ContextVar[Mapping[int, Sequence[torch.Tensor]]] = ContextVar("results", default=MappingProxyType({}))
"""What comes out of stand-ins, by their numbers, while AOTAutograd reads the graph that they stand in."""
_numbers = itertools.count()


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


def _refuse(tensors: Sequence[torch.Tensor], integers: Sequence[int], call: int) -> NoReturn:
    raise RuntimeError(f"stand-in {call} was run on data: the call that it stands for was not put back")


def _fakes(tensors: Sequence[torch.Tensor], integers: Sequence[int], call: int) -> list[torch.Tensor]:
    fakes = _results.get()[call]
    return [torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device=each.device) for each in fakes]


_library.define("call(Tensor[] tensors, SymInt[] integers, int call) -> Tensor[]")
_library.impl("call", _refuse, "CompositeExplicitAutograd")
torch.library.register_fake(f"{NAMESPACE}::call", _fakes, lib=_library)


def stand_in() -> Overload:
    """Returns the op."""
    found: Overload = getattr(torch.ops, NAMESPACE).call.default
    return found


def new_number() -> int:
    """Returns the number of one more call, unlike that of any other in this process."""
    return next(_numbers)


@contextmanager
def knowing_results(results: Mapping[int, Sequence[torch.Tensor]]) -> Iterator[None]:
    """Has stand-ins with these numbers return tensors like these fakes until the end of the block, in this thread."""
    token = _results.set({**_results.get(), **results})
    try:
        yield
    finally:
        _results.reset(token)


def new_fakes(fakes: Sequence[torch.Tensor], others: Sequence[Any]) -> list[torch.Tensor]:
    """Returns a fake tensor for each of some, which lies as it does, in a storage of its own, of the mode of others.

    An op of that mode takes several times as long for each as its constructor, which is private.
    """
    mode: Any = next(other.fake_mode for other in others if is_fake(other))
    with without_modes():
        held = [torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device="meta") for fake in fakes]
    return [FakeTensor(mode, elements, fake.device) for elements, fake in zip(held, fakes, strict=True)]


def are_plain(values: Sequence[Any]) -> bool:
    """Returns whether all tensors among some values are fake ones with strides, of no subclass with tensors inside."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return all(type(each).__name__ == "FakeTensor" and each.layout is torch.strided for each in tensors)


def is_plain_whole(fake: Any) -> bool:
    """Returns whether a fake tensor is all that its storage holds, of sizes that are numbers, and nothing special."""
    if not is_fake(fake) or not are_plain([fake]):
        return False
    numbers = (*fake.shape, *fake.stride(), fake.storage_offset(), fake.untyped_storage().nbytes())
    if any(isinstance(number, torch.SymInt) for number in numbers):
        return False
    held = fake.numel() * fake.element_size() == fake.untyped_storage().nbytes() and fake.storage_offset() == 0
    return held and not (fake.is_conj() or fake.is_neg() or fake.is_nested or fake.is_inference())


def shared_storages(fakes: Sequence[Any]) -> set[int]:
    """Returns the storages that more than one of some fake tensors lie in."""
    seen, shared = set[int](), set[int]()
    for fake in fakes:
        if isinstance(fake, torch.Tensor) and fake.layout is torch.strided:
            key = storage_key(fake)
            (shared if key in seen else seen).add(key)
    return shared
