"""Functions of flat tensors traced into graphs, without dynamo."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ferrite_torch.torch_private.attention import name_attention
from ferrite_torch.torch_private.effects import keeping_checks
from ferrite_torch.torch_private.fake_tensors import without_modes
from ferrite_torch.torch_private.whole_ops import taking_apart_as_ours


def trace_on_fakes(function: Callable[..., Any], fakes: Sequence[Any]) -> torch.fx.GraphModule:
    """Returns the ops that a function calls on fake tensors, in a graph; ``make_fx`` is experimental."""
    from torch.fx.experimental.proxy_tensor import make_fx

    modes = [fake.fake_mode for fake in fakes if isinstance(fake, FakeTensor)]
    with without_modes(), modes[0] if modes else nullcontext():
        return make_fx(function)(*fakes)


def trace_functional(
    function: Callable[..., Any], fakes: Sequence[Any], *, joint: bool, decompositions: dict[Any, Any]
) -> tuple[torch.fx.GraphModule, tuple[int, ...]]:
    """Returns a function of flat tensors as a functional graph; ``joint`` with its derivative, to be partitioned.

    The function writes to nothing, and its results share storage with nothing that outlives them. The second value has
    the positions of the results whose gradients the derivative takes. ``torch.export`` offers the graph without its
    derivative only, and with another calling convention.
    """
    from torch._functorch.aot_autograd import _aot_export_function

    with nullcontext() if joint else torch.no_grad(), taking_apart_as_ours(), keeping_checks():
        found: Any = _aot_export_function(function, tuple(fakes), decompositions=decompositions, trace_joint=joint)
    traced, metadata = found[0], found[1]
    kinds = sorted({info.output_type.name for info in metadata.output_info} - {"non_alias", "unsafe_view_alias"})
    if kinds or any(info.mutates_data for info in metadata.input_info):
        raise TypeError(f"the captured function still has side effects: {', '.join(kinds) or 'it writes to an input'}")
    name_attention(traced)
    derived = (position for position, info in enumerate(metadata.output_info) if info.requires_grad)
    return traced, tuple(derived)


def written_arguments(function: Callable[..., Any], fakes: Sequence[Any]) -> list[int]:
    """Returns the positions of the tensors that a function of flat tensors writes to.

    Only functionalisation sees all of it: norms write their running statistics without a trace in the tensors.
    """
    from torch._functorch.aot_autograd import _aot_export_function

    with torch.no_grad():
        metadata = _aot_export_function(function, tuple(fakes), decompositions={}, trace_joint=False)[1]
    return [position for position, info in enumerate(metadata.input_info) if info.mutates_data or info.mutates_metadata]


@contextmanager
def exporting() -> Iterator[None]:
    """Makes ``torch.compiler.is_compiling()`` and ``is_exporting()`` true: models then leave checks of values out.

    ``torch.export`` sets the same two flags, and nothing public does.
    """
    flags = [name for name in ("_is_compiling_flag", "_is_exporting_flag") if hasattr(torch.compiler, name)]
    before = {name: getattr(torch.compiler, name) for name in flags}
    try:
        for name in flags:
            setattr(torch.compiler, name, True)
        yield
    finally:
        for name, value in before.items():
            setattr(torch.compiler, name, value)


class CompilesInside(Exception):
    """What is traced calls ``torch.compile`` itself."""


@contextmanager
def refusing_to_compile() -> Iterator[None]:
    """Makes ``torch.compile`` raise `CompilesInside`.

    Control flow (``torch.cond`` and its like) outside of a compiled function compiles its functions, to have what they
    close over as operands. Under another tracer that fails, and what is left in dynamo's caches makes later calls fail.
    """
    theirs = torch.compile

    def refuse(*_: Any, **__: Any) -> Any:
        raise CompilesInside

    torch.compile = refuse
    try:
        yield
    finally:
        torch.compile = theirs


@dataclass(frozen=True, slots=True)
class WholeModel:
    """A model that dynamo has read, all of it, with its state under the same names; see `export_whole`."""

    graphs: torch.fx.GraphModule
    results: Any

    def call(self, state: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs the model on another state, node by node: what traces it learns the source line of each."""
        from torch.fx import traceback
        from torch.utils import _pytree

        class Run(torch.nn.Module):
            def __init__(self, graphs: torch.fx.GraphModule) -> None:
                super().__init__()
                self.graphs = graphs

            def forward(self, *flat: Any) -> Any:
                with traceback.preserve_node_meta():
                    return torch.fx.Interpreter(self.graphs).run(*flat, enable_io_processing=False)

        known = {name for name, _ in (*self.graphs.named_parameters(), *self.graphs.named_buffers())}
        given = {f"graphs.{name}": value for name, value in state.items() if name in known}
        flat = _pytree.tree_leaves((tuple(args), dict(kwargs)))
        found = torch.func.functional_call(Run(self.graphs), given, tuple(flat))
        return _pytree.tree_unflatten(found, self.results)


def export_whole(
    model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, training: bool
) -> WholeModel:
    """Returns a model as a graph, control flow and all, with the names that its state has.

    What runs a graph node by node, and how results are nested, are private.
    """

    class Function(torch.nn.Module):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return model(*args, **kwargs)

    module = model if isinstance(model, torch.nn.Module) else Function()
    with nullcontext() if training else torch.no_grad():
        exported = torch.export.export(module, tuple(args), dict(kwargs), strict=True)
    graphs: Any = exported.module()
    return WholeModel(graphs, exported.call_spec.out_spec)
