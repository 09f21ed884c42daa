"""Capturing a model ahead of time: functional graphs of its forward, and of its backward, with no data and no GPU.

The model runs once on tensors without data, on the CPU; the graph is then moved to the device that it is meant for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from ferrite_runtime import PackageInvalid, describe
from ferrite_torch.capture.joint_graphs import prepare_joint
from ferrite_torch.errors import Unsupported
from ferrite_torch.torch_private.fake_tensors import fake_mode, forgetting_symbols, is_fake, move_fake, storage_key
from ferrite_torch.torch_private.graph_positions import drop_tokens, token_count
from ferrite_torch.torch_private.nodes import map_leaves
from ferrite_torch.torch_private.partitioning import partition
from ferrite_torch.torch_private.source_lines import noting_lines
from ferrite_torch.torch_private.tracing import (
    CompilesInside,
    WholeModel,
    export_whole,
    exporting,
    refusing_to_compile,
    trace_functional,
    written_arguments,
)
from ferrite_torch.torch_private.user_kernels import tracing_launches
from ferrite_torch.torch_private.whole_ops import keeping_attention_whole, recurrence_by_library
from ferrite_torch.validation.functions import check_functions
from ferrite_torch.validation.observing import watching

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """A tensor of a model; ``kind`` is ``parameter``, ``buffer`` or, where no state dict has it, ``constant``."""

    name: str
    kind: str
    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class Captured:
    """A model's graphs for one set of example inputs.

    Attributes:
        forward: its arguments are the held tensors, then the tensors of the call; its results are those of the model,
            then the new values of ``mutated``, then what the backward wants.
        backward: its arguments are what the forward saved, then the gradients of the results; None for inference.
        saved: number of tensors that the forward saves.
        derived: positions of the results whose gradients the backward takes, after what was saved.
        held: tensors of the model.
        tensors: number of tensors of the call.
        arguments: the structure of ``[args, kwargs]``.
        results: the structure of the result.
        outputs: number of tensors among the results.
        mutated: positions among ``held`` of those that the forward gives new values.
    """

    forward: torch.fx.GraphModule
    backward: torch.fx.GraphModule | None
    saved: int
    derived: tuple[int, ...]
    held: tuple[HeldTensor, ...]
    tensors: int
    arguments: Mapping[str, Any]
    results: Mapping[str, Any]
    outputs: int
    mutated: tuple[int, ...]


def capture(  # what a call is, and how to flatten it
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    training: bool,
    decompositions: Mapping[Any, Any],
    device: str,
) -> Captured:
    """Returns the graphs of a model called with these example inputs.

    Args:
        model: a module, or a function of tensors.
        args: positional arguments: tensors, and numbers, strings, None, tuples, lists and dicts of them.
        kwargs: keyword arguments.
        training: capture the backward as well, for every parameter and input that wants a gradient.
        decompositions: which ops are decomposed, and how.
        device: device type that the graphs are for; tensors of the model and the inputs may be elsewhere.

    Raises:
        Refused: eager mode would refuse a call of the model for its shapes, types or numbers.
        Unsupported: the model writes to an input, or takes or returns something that cannot be written down.
    """
    held = tuple(_held_tensors(model))
    leaves: list[torch.Tensor] = []
    arguments = _described([tuple(args), dict(kwargs)], leaves, "arguments")
    names = [each.name for each in held]
    tensors = [*(each.tensor for each in held), *leaves]
    try:
        with refusing_to_compile():
            return _captured(_Call(model, names, arguments), held, tensors, training, decompositions, device)
    except CompilesInside:
        whole = export_whole(model, args, kwargs, training=training)
        check_functions(whole.graphs)
        return _captured(_Call(whole, names, arguments), held, tensors, training, decompositions, device)


def _captured(  # what `capture` is asked for
    call: _Call,
    held: tuple[HeldTensor, ...],
    tensors: Sequence[torch.Tensor],
    training: bool,  # noqa: FBT001
    decompositions: Mapping[Any, Any],
    device: str,
) -> Captured:
    lines = nullcontext() if isinstance(call.model, WholeModel) else noting_lines()  # its graphs have them
    with fake_mode():
        fakes = [_fake_of(value, training) for value in tensors]
        with exporting(), _portable_ops(training), watching(copies_storages=True), tracing_launches(), lines:
            call.rehearse(fakes)
            forward, backward, saved, derived = _trace(call, fakes, training, decompositions)
    for module in (forward, backward):
        if module is not None:
            place_on(module, device)
    count = len(tensors) - len(held)
    return Captured(
        forward, backward, saved, derived, held, count, call.arguments, call.results, call.outputs, tuple(call.mutated)
    )


def _held_tensors(model: Callable[..., Any]) -> Iterator[HeldTensor]:
    if not isinstance(model, torch.nn.Module):
        return
    stored = set(model.state_dict(keep_vars=True))
    for name, parameter in model.named_parameters():
        yield HeldTensor(name, "parameter", parameter)
    for name, buffer in model.named_buffers():
        yield HeldTensor(name, "buffer" if name in stored else "constant", buffer)


def _described(value: Any, leaves: list[Any], what: str) -> dict[str, Any]:
    try:
        if what == "arguments":
            return describe(tuple(value), _is_tensor, leaves)
        return describe(value, _is_tensor, leaves)
    except PackageInvalid as error:
        raise Unsupported(f"{what} of the model: {error}") from error


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _fake_of(value: torch.Tensor, training: bool) -> torch.Tensor:  # noqa: FBT001
    if value.layout != torch.strided:
        raise Unsupported(f"a tensor of layout {value.layout}")
    wants_grad = training and value.requires_grad
    fake = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
    return fake.requires_grad_(wants_grad)


class _Call:
    """A model's call as a function of flat tensors, without side effects; it notes what it learns about the call."""

    def __init__(
        self, model: Callable[..., Any] | WholeModel, names: Sequence[str], arguments: Mapping[str, Any]
    ) -> None:
        self.model, self.names, self.arguments = model, names, arguments
        self.mutated: list[int] = []
        self.copied: set[int] = set()
        self.results: dict[str, Any] = {}
        self.outputs = 0

    def _run(self, held: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
        from ferrite_runtime.bundles.structure import build  # noqa: PLC0415

        args, kwargs = build(self.arguments, tensors)
        if isinstance(self.model, WholeModel):
            returned = self.model.call(dict(zip(self.names, held, strict=True)), args, kwargs)
        elif isinstance(self.model, torch.nn.Module):
            state = dict(zip(self.names, held, strict=True))
            returned = torch.func.functional_call(self.model, state, args, kwargs)
        else:
            returned = self.model(*args, **kwargs)
        leaves: list[Any] = []
        self.results = _described(returned, leaves, "results")
        self.outputs = len(leaves)
        return leaves

    def rehearse(self, fakes: Sequence[torch.Tensor]) -> None:
        """Runs the call once to see what it writes to, and which results share memory with something else."""
        held = len(self.names)
        values = [fake.detach() for fake in fakes]
        with torch.no_grad(), forgetting_symbols():
            leaves = self._run(values[:held], values[held:])
        written = written_arguments(lambda *flat: tuple(self._run(flat[:held], flat[held:])), values)
        inputs = [index - held for index in written if index >= held]
        if inputs:
            raise Unsupported(f"the model writes to its tensor argument number {inputs[0]}; clone it first")
        self.mutated = written
        seen = {storage_key(value) for value in values}
        for position, leaf in enumerate(leaves):
            key = storage_key(leaf)
            if key in seen:
                self.copied.add(position)
            seen.add(key)

    def __call__(self, *flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns the results, then the new values of what the model writes to."""
        held = list(flat[: len(self.names)])
        for position in self.mutated:
            held[position] = held[position].clone()
        leaves = self._run(held, flat[len(self.names) :])
        results = [leaf.clone() if position in self.copied else leaf for position, leaf in enumerate(leaves)]
        return (*results, *(held[position].detach() for position in self.mutated))


def _trace(
    call: _Call,
    fakes: Sequence[torch.Tensor],
    training: bool,  # noqa: FBT001
    decompositions: Mapping[Any, Any],
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule | None, int, tuple[int, ...]]:
    traced, derived = trace_functional(call, fakes, joint=training, decompositions=dict(decompositions))
    if not training:
        drop_tokens(traced)
        return traced, None, 0, ()
    results = call.outputs + len(call.mutated)
    forward, backward = partition(traced, token_count(traced) + results, len(call.names), prepare_joint)
    drop_tokens(forward)
    drop_tokens(backward)
    returned: Any = forward.graph.output_node().args[0]
    return forward, backward, len(returned) - results, derived


def place_on(module: torch.fx.GraphModule, device: str) -> None:
    """Moves a graph that was traced on the CPU to another device: its fake results, and the devices it names.

    So are the functions that its control flow takes.
    """
    if device == "cpu":
        return
    moved = torch.device(device, 0)
    graphs = [each for each in module.modules() if isinstance(each, torch.fx.GraphModule)]
    for node in (node for each in graphs for node in each.graph.nodes):
        values = node.meta.get("val")
        for value in values if isinstance(values, (tuple, list)) else (values,):
            if is_fake(value):
                move_fake(value, moved)
        node.args, node.kwargs = (
            map_leaves(part, lambda leaf: moved if isinstance(leaf, torch.device) else leaf)
            for part in (node.args, node.kwargs)
        )
    for each in graphs:
        each.recompile()


@contextmanager
def _portable_ops(training: bool) -> Iterator[None]:  # noqa: FBT001
    """Has nothing traced that only the CPU's library has: the graph may be for a GPU.

    Attention is one extern call for inference, whose kernel the GPU chooses that runs the bundle; where it is derived,
    plain products and a softmax. Recurrent layers are decomposed.
    """
    whole = (
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH) if training else keeping_attention_whole()
    )
    with torch.backends.mkldnn.flags(enabled=False), recurrence_by_library(), whole:
        yield
