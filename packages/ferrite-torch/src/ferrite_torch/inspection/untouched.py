"""Running a model without leaving a trace: tensors, attributes of modules, generators of random numbers stay."""

from __future__ import annotations

import functools
import operator
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType, MethodType
from typing import Any

import torch

from ferrite_torch.torch_private.dynamo_state import set_version, version_of
from ferrite_torch.torch_private.nodes import is_in_place_name, target_name

_DEPTH = 3
"""Functions within functions that are searched for modules and tensors."""
_IN_PLACE = frozenset(
    getattr(operator, name) for name in dir(operator) if name.startswith("i") and f"__{name}__" in dir(operator)
) | {operator.setitem}


@dataclass(slots=True)
class SavedTensors:
    """Tensors as they were, for those that are written to."""

    known: dict[int, tuple[torch.Tensor, torch.Tensor, int | None]] = field(default_factory=dict)

    def save(self, tensors: Iterable[Any]) -> None:
        """Keeps a copy of each tensor that is not known yet."""
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and id(tensor) not in self.known and tensor.layout is torch.strided:
                self.known[id(tensor)] = tensor, tensor.detach().clone(), version_of(tensor)

    def save_inputs(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
        """Keeps a copy of each input that a captured graph may write to; parameters only where it says so."""
        written = written_inputs(module.graph)
        pairs = zip(module.graph.find_nodes(op="placeholder"), inputs, strict=False)
        self.save(value for node, value in pairs if not isinstance(value, torch.nn.Parameter) or node.name in written)

    def restore(self) -> None:
        """Gives the tensors that were written to their former elements, and autograd its former count."""
        for tensor, copied, version in reversed(self.known.values()):
            if version is None or version_of(tensor) != version:
                with torch.no_grad():
                    tensor.data.copy_(copied)
                if version is not None:
                    set_version(tensor, version)


def written_inputs(graph: torch.fx.Graph) -> frozenset[str]:
    """Returns the inputs of a captured graph that an operation in place is called on, through views too."""
    written: set[str] = set()
    pending = [node for node in graph.nodes if _is_in_place(node)]
    seen: set[torch.fx.Node] = set()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "placeholder":
            written.add(node.name)
        first = node.args[:1]
        pending += [each for each in _flat(first) if isinstance(each, torch.fx.Node)]
        pending += [each for each in _flat(node.kwargs.get("out")) if isinstance(each, torch.fx.Node)]
    return frozenset(written)


def _is_in_place(node: torch.fx.Node) -> bool:
    name = target_name(node).split(".", maxsplit=1)[0]
    return (
        is_in_place_name(name) or node.target in _IN_PLACE or "out" in node.kwargs or bool(node.kwargs.get("inplace"))
    )


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _flat(part)
    elif isinstance(value, Mapping):
        yield from _flat(list(value.values()))
    else:
        yield value


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Returns the tensors in a value: itself, or within tuples, lists, dicts and plain objects."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (str, bytes)) or value is None:
        return []
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in tensors_in(part)]
    parts = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
    return [tensor for part in parts.values() for tensor in tensors_in(part)]


def held_by(function: Any, depth: int = _DEPTH) -> tuple[list[torch.nn.Module], list[torch.Tensor]]:
    """Returns the modules and tensors that a model or function holds: itself, as its owner, in what it closes over."""
    modules: list[torch.nn.Module] = []
    tensors: list[torch.Tensor] = []
    pending: list[tuple[Any, int]] = [(function, depth)]
    while pending:
        value, left = pending.pop()
        if isinstance(value, torch.nn.Module):
            modules.append(value)
        elif isinstance(value, torch.Tensor):
            tensors.append(value)
        elif left > 0:
            pending += [(part, left - 1) for part in _parts(value)]
    return modules, tensors


def _parts(value: Any) -> Iterator[Any]:
    """Yields what a function names, or what a container or an object holds."""
    if isinstance(value, MethodType):
        yield value.__self__
        yield value.__func__
    elif isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, FunctionType):
        yield from (cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell))
        yield from (value.__globals__[name] for name in value.__code__.co_names if name in value.__globals__)
        yield getattr(value, "__wrapped__", None)
    elif isinstance(value, (list, tuple, set, Mapping)):
        yield from _flat(list(value) if isinstance(value, set) else value)
    elif not isinstance(value, type) and type(value).__module__ not in ("builtins", "torch"):
        yield from getattr(value, "__dict__", {}).values()


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


@contextmanager
def untouched(function: Callable[..., Any], arguments: Any) -> Iterator[SavedTensors]:
    """Leaves what a call of a model changes as it was before the block; gives what other tensors can be added to.

    Kept are the arguments, and of all modules that the model holds the buffers, gradients and attributes, with the
    elements of attributes that are lists, dicts or sets; and the states of the generators of random numbers.
    """
    modules, tensors = held_by(function)
    every = list(dict.fromkeys(module for root in modules for module in root.modules()))
    saved = SavedTensors()
    saved.save([*tensors, *_flat(arguments), *(buffer for module in every for buffer in module.buffers(recurse=False))])
    gradients = [(each, each.grad) for module in every for each in module.parameters(recurse=False)]
    saved.save(gradient for _, gradient in gradients)
    attributes = [restorer(module.__dict__) for module in every]
    with _same_random_numbers():
        try:
            yield saved
        finally:
            saved.restore()
            for restore in attributes:
                restore()
            for parameter, gradient in gradients:
                if parameter.grad is not gradient:
                    parameter.grad = gradient


def restorer(mapping: dict[str, Any]) -> Callable[[], None]:
    """Returns what gives a dict its entries back, and the lists, dicts and sets among them theirs."""
    entries = dict(mapping)
    contents = [(value, value.copy()) for value in entries.values() if isinstance(value, (list, dict, set))]

    def restore() -> None:
        if mapping.keys() != entries.keys() or any(mapping[name] is not value for name, value in entries.items()):
            mapping.clear()
            mapping.update(entries)
        for value, before in contents:
            if isinstance(value, list):
                value[:] = before
            else:
                value.clear()
                value.update(before)

    return restore


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    numpy: Any = sys.modules.get("numpy")
    state = random.getstate(), numpy.random.get_state() if numpy else None
    is_used: Callable[[], bool] = torch.cuda.is_initialized
    devices = range(torch.cuda.device_count()) if is_used() else ()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(state[0])
            if numpy:
                numpy.random.set_state(state[1])
