"""Calling AOTAutograd: graphs of dynamo made functional, differentiated and split, each then compiled on its own."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch

from ferrite_torch.torch_private.aot_cache import Keeper, keeping_graphs, output_code
from ferrite_torch.torch_private.effects import keeping_checks
from ferrite_torch.torch_private.partitioning import Preparation, min_cut
from ferrite_torch.torch_private.region_calls import asking_regions_once
from ferrite_torch.torch_private.symbolic_shapes import sizes_that_depend_on_data
from ferrite_torch.torch_private.transforms import pass_wrapped_gradients
from ferrite_torch.torch_private.whole_ops import keeping_ops_whole

BoxedFunction = Callable[[list[Any]], Any]
GraphCompiler = Callable[[torch.fx.GraphModule, Sequence[Any]], BoxedFunction]


def compile_with_aot(
    module: torch.nn.Module,
    inputs: Sequence[Any],
    *,
    forward: GraphCompiler,
    backward: GraphCompiler,
    inference: GraphCompiler,
    decompositions: dict[Any, Any],
    prepare: Preparation = lambda graph, results: None,
    keeper: Keeper | None = None,
) -> Callable[..., Any]:
    """Returns the module split by AOTAutograd and compiled graph by graph; kept by its cache if there is a keeper.

    ``prepare`` is called with a joint graph, and the results of its forward, before it is split.

    Private because torch offers functionalisation, joint tracing and partitioning of a dynamo graph nowhere else; this
    is the call that its own backends make. The helper class in ``torch._dynamo.backends.common`` is not used: it
    imports the default backend for its logging.
    """
    from torch._functorch.aot_autograd import aot_module_simplified

    def split(joint: torch.fx.GraphModule, joint_inputs: Any, **rest: Any) -> Any:
        return min_cut(joint, joint_inputs, prepare, **rest)

    pass_wrapped_gradients()
    stored = keeper is not None
    keeping = nullcontext() if keeper is None else keeping_graphs(keeper)
    whole = (keeping_ops_whole(), keeping_checks(), _keeping_tangents(), asking_regions_once())
    with ExitStack() as stack:
        for context in (keeping, *whole, sizes_that_depend_on_data(), _without_unread_texts()):
            stack.enter_context(context)
        compiled = aot_module_simplified(
            module,  # type: ignore[arg-type]  # a graph, or dynamo's wrapper around one, whose class is private
            list(inputs),
            fw_compiler=_storable(forward) if stored else forward,  # type: ignore[arg-type]  # a protocol class
            bw_compiler=_lazily(backward),  # type: ignore[arg-type]
            inference_compiler=_storable(inference) if stored else inference,  # type: ignore[arg-type]
            partition_fn=split,
            decompositions=decompositions,
            keep_inference_input_mutations=True,
        )
    _count_use()
    return compiled


def _count_use() -> None:
    """Adds to dynamo's count of graphs that went through AOTAutograd.

    It compiles the buckets of a data-parallel model one after the other, and has the first call of each answer with
    fake tensors, to compile the next one for. Whether that call is AOTAutograd's, which does so, it learns from the
    count alone: a graph that runs as dynamo made it is not to be counted.
    """
    from torch._dynamo.utils import counters

    counters["aot_autograd"]["total"] += 1
    counters["aot_autograd"]["ok"] += 1


@contextmanager
def _keeping_tangents() -> Iterator[None]:
    """Makes AOTAutograd take gradients as they come where an output overlaps itself, as the windows of an unfold do.

    It copies them to the strides of the outputs otherwise; from torch 2.13 it leaves out strides of 0, which is all it
    knows of overlaps. A copy to places that are shared loses elements without a word.
    """
    from torch._functorch._aot_autograd.schemas import MemoryFormatMeta
    from torch._prims_common import suggest_memory_format

    theirs = MemoryFormatMeta.from_tensor

    def from_tensor(tensor: torch.Tensor, *args: Any, **named: Any) -> MemoryFormatMeta | None:
        from ferrite_ir.language.graph import overlaps  # not needed where graphs come from the store

        if tensor.layout is torch.strided and overlaps(tensor.shape, tensor.stride()):
            return MemoryFormatMeta(memory_format=suggest_memory_format(tensor))
        return theirs(tensor, *args, **named)

    MemoryFormatMeta.from_tensor = staticmethod(from_tensor)  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        MemoryFormatMeta.from_tensor = staticmethod(theirs)  # type: ignore[method-assign]


@contextmanager
def _without_unread_texts() -> Iterator[None]:
    """Keeps AOTAutograd from writing each graph down as text where nobody reads it.

    It hands the texts, with an expression for every symbolic size and stride, to a trace, and writes them whether there
    is one or not. Only this thread's are left out.
    """
    if _are_texts_read():
        yield
        return
    theirs, thread = torch.fx.GraphModule.print_readable, threading.get_ident()

    @functools.wraps(theirs)
    def print_readable(self: torch.fx.GraphModule, *args: Any, **named: Any) -> str:
        is_text = named.get("print_output") is False and not args
        return "" if is_text and threading.get_ident() == thread else theirs(self, *args, **named)

    torch.fx.GraphModule.print_readable = print_readable  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.fx.GraphModule.print_readable = theirs  # type: ignore[method-assign]


def _are_texts_read() -> bool:
    """Returns whether there is a trace, or the user asked for a log of graphs (``TORCH_LOGS``)."""
    from torch._functorch._aot_autograd import graph_compile

    logs = [getattr(graph_compile, name, None) for name in ("aot_joint_log", "aot_graphs_log")]
    if any(log is None or log.isEnabledFor(logging.INFO) for log in logs):
        return True
    return bool(logging.getLogger("torch.__trace").handlers)


def _storable(compiler: GraphCompiler) -> Any:
    """Returns a compiler whose results AOTAutograd may keep: it asks for a class of its own."""
    from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler

    wanted: Any = SerializableAOTDispatchCompiler  # typed for functions that return the class, not functions around it
    return wanted(output_code(), compiler)


def _lazily(backward: GraphCompiler) -> GraphCompiler:
    """Returns the backward compiler kept from dynamo, which may be active when a backward is compiled lazily."""
    compiler = undisturbed(backward, "the backward compiler")

    def compile_backward(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> BoxedFunction:
        return undisturbed(compiler(module, inputs), "a compiled backward graph")

    return compile_backward


def undisturbed(function: Callable[..., Any], reason: str = "a compiled graph") -> Callable[..., Any]:
    """Returns a function that dynamo does not trace."""
    disabled: Callable[..., Any] = torch.compiler.disable(function, reason=reason)  # type: ignore[no-untyped-call]
    return disabled
