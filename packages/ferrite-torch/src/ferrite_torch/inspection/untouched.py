"""Running a model without leaving a trace: tensors, attributes of modules, generators of random numbers stay."""

from __future__ import annotations

import operator
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ferrite_torch.inspection.python_state import PythonState, state_of
from ferrite_torch.torch_private.dynamo_state import set_version, version_of
from ferrite_torch.torch_private.nodes import is_in_place_name, target_name

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


@contextmanager
def untouched(function: Callable[..., Any], arguments: Any) -> Iterator[tuple[SavedTensors, PythonState]]:
    """Leaves what a call of a model changes as it was before the block; gives what other tensors can be added to.

    Kept are the arguments, what the model holds, buffers and gradients included, what the code of its methods names
    (`python_state`), and the states of the generators of random numbers.
    """
    state = state_of(function, arguments)
    saved = SavedTensors()
    saved.save([*state.tensors, *_flat(arguments)])
    gradients = [(each, each.grad) for module in state.modules for each in module.parameters(recurse=False)]
    saved.save(gradient for _, gradient in gradients)
    with _same_random_numbers():
        try:
            yield saved, state
        finally:
            saved.restore()
            state.restore()
            for parameter, gradient in gradients:
                if parameter.grad is not gradient:
                    parameter.grad = gradient


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
