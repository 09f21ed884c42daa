"""The structure of a run of nodes in a captured graph: two runs of equal structure compute the same of their operands.

A run is what one call of a module has become. Its structure is what its nodes call, with which constants, on which
operands of which types; names, modules and parameters are no part of it, so the layers of a stack have one structure,
and a layer that differs in anything that was captured (a number, a hook, a shape) has another.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ferrite_torch.torch_private.fake_tensors import is_fake, storage_key
from ferrite_torch.torch_private.nodes import example_of, target_name
from ferrite_torch.torch_private.symbolic_shapes import is_unbacked_number, size_text, unbacked_bindings

_SIMPLE = (str, int, float, bool, complex, type(None), type(...))
_NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_AMBIENT_NAMES = """
    _set_grad_enabled set_grad_enabled _enter_autocast _exit_autocast _enter_inference_mode _exit_inference_mode
    _saved_tensors_hooks_disable _saved_tensors_hooks_enable
"""
AMBIENT = frozenset(_AMBIENT_NAMES.split())
"""Functions that change how all later ops run: a run with one of them would do so only where it was traced."""


class NoStructure(Exception):
    """A run cannot be compared with others, or means something else where it is called from elsewhere."""


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive nodes of a graph as a function.

    Attributes:
        module: the module of the graph.
        nodes: its nodes, in order, all but tensors that the graph holds.
        operands: what they read of the graph around, in the order of first use.
        results: those whose values are read after it.
        same: others that are read after it, with the operand that each is: what a write returns (``calls.add_(1)``).
        structure: what is equal for runs that compute the same.
    """

    module: torch.fx.GraphModule
    nodes: tuple[torch.fx.Node, ...]
    operands: tuple[torch.fx.Node, ...]
    results: tuple[torch.fx.Node, ...]
    same: tuple[tuple[torch.fx.Node, torch.fx.Node], ...]
    structure: Hashable


def run_of(nodes: Sequence[torch.fx.Node]) -> Run:
    """Returns consecutive nodes of a graph as a function.

    Raises:
        NoStructure: they change how later ops run, have results that are no tensors of their own, or arguments whose
            meaning is not certain to be written down.
    """
    module = nodes[0].graph.owning_module
    own = tuple(node for node in nodes if not _is_held_tensor(node, module))
    return _Reader(module, own).read()


def _is_held_tensor(node: torch.fx.Node, module: Any) -> bool:
    return node.op == "get_attr" and isinstance(operator.attrgetter(str(node.target))(module), torch.Tensor)


class _Reader:
    """Numbers the nodes and operands of a run while it writes them down."""

    def __init__(self, module: Any, nodes: Sequence[torch.fx.Node]) -> None:
        self._module, self._nodes = module, nodes
        self._positions = {node: position for position, node in enumerate(nodes)}
        self._operands: dict[torch.fx.Node, int] = {}

    def read(self) -> Run:
        lines = tuple(map(self._line, self._nodes))
        read = [node for node in self._nodes if any(user not in self._positions for user in node.users)]
        operands = tuple(self._operands)
        same = tuple((node, operand) for node in read for operand in operands if _is_same(node, operand))
        results = tuple(node for node in read if node not in dict(same))
        if not results:
            raise NoStructure("a block whose results nobody reads")
        self._check_results(operands, results)
        types = tuple(_operand_type(node) for node in operands)
        returned = tuple(self._positions[node] for node in results)
        kept = tuple((self._positions[node], self._operands[operand]) for node, operand in same)
        return Run(self._module, tuple(self._nodes), operands, results, same, (lines, types, returned, kept))

    def _line(self, node: torch.fx.Node) -> Hashable:
        if target_name(node) in AMBIENT or unbacked_bindings(node):
            raise NoStructure(f"a block that calls {target_name(node)}")
        if node.op == "get_attr":
            return ("graph", _graph_structure(operator.attrgetter(str(node.target))(self._module)))
        if node.op not in ("call_function", "call_method"):
            raise NoStructure(f"a block with a node of kind {node.op}")
        return (node.op, node.target, self._argument(node.args), self._argument(node.kwargs))

    def _argument(self, value: Any) -> Hashable:
        if isinstance(value, torch.fx.Node):
            if value in self._positions:
                return ("node", self._positions[value])
            return ("operand", self._operands.setdefault(value, len(self._operands)))
        return _constant(value, self._argument)

    def _check_results(self, operands: Sequence[torch.fx.Node], results: Sequence[torch.fx.Node]) -> None:
        taken = {storage_key(fake) for fake in map(example_of, operands) if isinstance(fake, torch.Tensor)}
        for node in results:
            fake = example_of(node)
            if not is_fake(fake) or type(fake).__name__ != "FakeTensor" or fake.layout is not torch.strided:
                raise NoStructure("a block with a result that is no plain tensor")
            if storage_key(fake) in taken:
                raise NoStructure("a block that returns a view of what it is given, or of another result")
            taken.add(storage_key(fake))


def _is_same(node: torch.fx.Node, operand: torch.fx.Node) -> bool:
    """Returns whether a node is what it was given: the same elements of one storage, without a derivative."""
    one, other = example_of(node), example_of(operand)
    if not (is_fake(one) and is_fake(other)) or one.requires_grad or other.requires_grad:
        return False
    if one.layout is not torch.strided or other.layout is not torch.strided or storage_key(one) != storage_key(other):
        return False
    return (*_type_facts(one), size_text(one.storage_offset())) == (
        *_type_facts(other),
        size_text(other.storage_offset()),
    )


def _constant(value: Any, inner: Any) -> Hashable:
    if type(value) in _SIMPLE:
        return (type(value).__name__, repr(value))
    if isinstance(value, _NAMED):
        return ("named", str(value))
    if isinstance(value, Mapping):
        return ("mapping", tuple((name, inner(item)) for name, item in value.items()))
    if isinstance(value, (tuple, list)):
        return (type(value).__name__, tuple(inner(item) for item in value))
    if isinstance(value, slice):
        return ("slice", *(inner(part) for part in (value.start, value.stop, value.step)))
    if callable(value) and isinstance(value, Hashable):
        return ("function", value)
    raise NoStructure(f"a block with an argument of type {type(value).__name__}")


def _graph_structure(module: Any) -> Hashable:
    """Returns what a graph computes that a node takes as a function: the body of a checkpoint, a branch.

    Raises:
        NoStructure: it holds tensors, or something that cannot be written down.
    """
    if not isinstance(module, torch.fx.GraphModule):
        raise NoStructure(f"a block that holds a {type(module).__name__}")
    positions: dict[torch.fx.Node, int] = {}

    def argument(value: Any) -> Hashable:
        return ("node", positions[value]) if isinstance(value, torch.fx.Node) else _constant(value, argument)

    lines: list[Hashable] = []
    for node in module.graph.nodes:
        if node.op == "get_attr":
            lines.append(("graph", _graph_structure(operator.attrgetter(str(node.target))(module))))
        elif node.op == "placeholder":
            lines.append(node.op)
        else:
            target = "" if node.op == "output" else node.target
            lines.append((node.op, target, argument(node.args), argument(node.kwargs)))
        positions[node] = len(positions)
    return tuple(lines)


def _operand_type(node: torch.fx.Node) -> Hashable:
    fake = example_of(node)
    if isinstance(fake, torch.SymInt) and not is_unbacked_number(fake):
        return ("integer", size_text(fake))
    if not is_fake(fake) or fake.layout is not torch.strided or fake.is_conj() or fake.is_neg() or fake.is_nested:
        raise NoStructure(f"a block that is given a {type(fake).__name__}")
    return (*_type_facts(fake), fake.requires_grad, fake.is_inference())


def _type_facts(fake: torch.Tensor) -> Iterator[Hashable]:
    yield type(fake).__name__
    yield fake.dtype
    yield str(fake.device)
    yield tuple(map(size_text, fake.shape))
    yield tuple(map(size_text, fake.stride()))
