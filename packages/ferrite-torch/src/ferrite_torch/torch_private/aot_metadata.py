"""What AOTAutograd knows of the graph being compiled: who else reads its arguments and results, and how they lie."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def _forward_metadata() -> Any:
    """Returns what AOTAutograd knows of the forward graph of what is being compiled, None outside of that."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    return None if context is None else context.fw_metadata


def regenerated_outputs() -> frozenset[int]:
    """Returns the positions of results of the graph being compiled that AOTAutograd replaces by views of the inputs.

    Only their shape and strides are read, so they need no storage of their own. Only AOTAutograd's metadata says which.
    """
    from torch._functorch._aot_autograd.schemas import OutputType, PlainTensorMeta

    metadata = _forward_metadata()
    if metadata is None or not all(isinstance(meta, PlainTensorMeta) for meta in metadata.subclass_fw_graph_out_meta):
        return frozenset()  # the results of tensor subclasses are several: positions would not match
    first = len(metadata.tokens) + metadata.num_mutated_inp_runtime_indices
    from_inputs = (OutputType.alias_of_input, OutputType.is_input)
    return frozenset(
        first + place for place, info in enumerate(metadata.output_info) if info.output_type in from_inputs
    )


def saved_outputs(count: int) -> frozenset[int]:
    """Returns the positions, among ``count`` results of the forward graph being compiled, that only its backward sees.

    They may lie as the compiler likes if it says so with `report_strides`. Only AOTAutograd's metadata tells them from
    the user's. None are where their new strides would be lost: compiled autograd runs the backward as it was traced,
    and effect tokens shift the positions that are reported.
    """
    from torch._dynamo import config
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    if metadata is None or getattr(context, "output_strides", None) != [] or metadata.tokens:
        return frozenset()
    return frozenset() if getattr(config, "compiled_autograd", False) else frozenset(range(metadata.num_forward, count))


def drop_dynamic_marks() -> None:
    """Has AOTAutograd save tensors for the backward as they are, without writing on each which of its sizes may change.

    It does so in every call (0.2 us a tensor), for dynamo to read where compiled autograd traces the backward anew.
    Where that is on, the marks stay.
    """
    from torch._dynamo import config

    marks = getattr(_forward_metadata(), "dynamic_saved_tensors_idxs", None)
    if marks and not getattr(config, "compiled_autograd", False):
        marks.clear()


def donated_inputs() -> tuple[int, ...]:
    """Returns the positions of arguments of the backward graph being compiled that nobody else reads, then or later.

    They may share storage with each other. Only AOTAutograd's metadata says which. It is told that there are none: it
    would refuse to run such a backward under ``retain_graph``, where ours copies what it overwrites (`keeps_graph`).
    """
    metadata = _forward_metadata()
    positions = getattr(metadata, "bw_donated_idxs", None) or []
    found = tuple(positions)
    positions.clear()
    return found


def keeps_graph() -> bool:
    """Returns whether the backward that is running may run again (``retain_graph``); True where none is running.

    Private because autograd tells it nowhere else; AOTAutograd asks the same.
    """
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def held_inputs(module: torch.fx.GraphModule) -> list[int]:
    """Returns the positions of arguments of the backward graph being compiled that are parameters or buffers.

    Only AOTAutograd's metadata tells them from other inputs of the forward, by their numbers there.
    """
    from torch._functorch._aot_autograd.schemas import PlainTensorMeta

    metadata = _forward_metadata()
    if (
        metadata is None
        or metadata.tokens
        or not all(isinstance(m, PlainTensorMeta) for m in metadata.subclass_inp_meta)
    ):
        return []  # the parts of tensor subclasses are several: numbers would not match
    names = {f"primals_{number + 1}" for number in metadata.static_input_indices or ()}
    placeholders = module.graph.find_nodes(op="placeholder")
    return [position for position, node in enumerate(placeholders) if node.target in names]


def report_strides(strides: Iterable[tuple[int, ...] | None]) -> None:
    """Tells AOTAutograd how the results of the graph being compiled lie, None for those that are no tensors.

    The backward is then compiled for tensors saved in that layout. The list on the tracing context is the way in which
    AOTAutograd asks for it; it is absent where nobody asks.
    """
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    wanted = getattr(context, "output_strides", None)
    if wanted == [] and context is not None and context.fw_metadata is not None and not context.fw_metadata.tokens:
        wanted.extend(strides)
