"""What AOTAutograd is told of the graph being compiled, and asked about the one that runs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ferrite_torch.torch_private.graph_positions import forward_metadata


def drop_dynamic_marks() -> None:
    """Has AOTAutograd save tensors for the backward as they are, without writing on each which of its sizes may change.

    It does so in every call, for dynamo to read where compiled autograd traces the backward anew.
    Where that is on, the marks stay.
    """
    from torch._dynamo import config

    marks = getattr(forward_metadata(), "dynamic_saved_tensors_idxs", None)
    if marks and not getattr(config, "compiled_autograd", False):
        marks.clear()


def keeps_graph() -> bool:
    """Returns whether the backward that is running may run again (``retain_graph``); True where none is running.

    Private because autograd tells it nowhere else; AOTAutograd asks the same.
    """
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def report_strides(strides: Sequence[tuple[int, ...] | None], tokens: int) -> None:
    """Tells AOTAutograd how the results of the graph being compiled lie, None for those that are no tensors.

    The backward is then compiled for tensors saved in that layout. The list on the tracing context is the way in which
    AOTAutograd asks for it; it is absent where nobody asks. ``tokens`` results come first that it does not count.
    """
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    wanted = getattr(context, "output_strides", None)
    if tokens and context is not None and context.fakify_first_call:
        return  # all lie as they were traced then: see `graph_positions`
    if wanted == [] and context is not None and context.fw_metadata is not None:
        wanted.extend(strides[tokens:])
