"""Dynamo: its registry of backends, the floats that it makes inputs, its restarts and nested inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ferrite_runtime.process.forking import renewed_in_children


def register_backend(function: Callable[..., Any], name: str) -> None:
    """Enters a compiler in torch.compile's registry, unless its entry point or an earlier import did so.

    Private because the registry of names is: the public ways are entry points only, which need an installed package.
    """
    from torch._dynamo.backends import registry

    if name not in registry._BACKENDS and name not in registry._COMPILER_FNS:
        registry.register_backend(function, name=name)


def fix_module_floats(is_ours: Callable[[Any], bool]) -> None:
    """Makes dynamo take floats of modules and globals as constants until they change, where the backend is ours.

    Under ``dynamic=True`` it makes every float an input at once, each epsilon and dropout rate of a model, and a tensor
    of each input at each call (`benchmarks/host/dynamic_host.py` shows what that costs). Integers of modules are
    constants there anyway, and without ``dynamic=True`` floats are, until they change: this is the same. Arguments, an
    optimiser's learning rate too, stay inputs. Private because only the builder of variables sees where a float comes
    from before it becomes an input.

    Args:
        is_ours: whether a compiler function is this backend; others are left as they are.
    """
    from torch._dynamo import config
    from torch._dynamo.variables.builder import VariableBuilder

    theirs: Callable[[Any, float], Any] = VariableBuilder.wrap_symfloat
    if hasattr(theirs, "__wrapped__"):
        return

    @functools.wraps(theirs)
    def wrap_symfloat(self: Any, value: float) -> Any:
        origin = self.source.guard_source
        belongs = origin.is_unspecialized_nn_module() or not origin.is_local()
        if belongs and is_ours(innermost(self.tx.output.compiler_fn)):
            with config.patch(assume_static_by_default=True):
                return theirs(self, value)
        return theirs(self, value)

    VariableBuilder.wrap_symfloat = wrap_symfloat  # type: ignore[method-assign]


def innermost(compiler: Any) -> Any:
    """Returns what ``torch.compile`` was given as its backend, out of the functions that torch wraps around it."""
    while True:
        inner = getattr(compiler, "_torchdynamo_orig_backend", None) or getattr(compiler, "compiler_fn", None)
        if inner is None:
            return compiler
        compiler = inner


def free_compilation_in_children() -> None:
    """Has forked children compile though another thread of the parent was compiling: dynamo's lock is free there.

    Private because the lock is; torch leaves it held, and whoever compiles in the child waits for ever.
    """
    from torch._dynamo import convert_frame

    lock = getattr(convert_frame, "compile_lock", None)
    if lock is not None:
        renewed_in_children(lock)


def is_restart(error: BaseException) -> bool:
    """Returns whether an exception is dynamo's way of starting over: backends must let it pass."""
    from torch._dynamo import exc

    kinds = tuple(
        getattr(exc, name)
        for name in ("RestartAnalysis", "TensorifyScalarRestartAnalysis", "SkipFrame")
        if hasattr(exc, name)
    )
    return isinstance(error, kinds)


def keep_writes_through_restarts() -> None:
    """Makes dynamo keep writes to numbers (tensors of no dims on the CPU, in float64) when it starts over.

    On its second way it drops the inputs whose numbers became constants: nodes that hold such a number and that nobody
    uses. The result of a write in place is one as well, and torch (2.11 – 2.13) drops the write, whatever the backend.
    """
    from torch._dynamo.output_graph import OutputGraph

    theirs: Callable[[Any], None] = OutputGraph.remove_tensorify_specialized_graphargs
    if hasattr(theirs, "__wrapped__"):
        return

    @functools.wraps(theirs)
    def remove_tensorify_specialized_graphargs(self: Any) -> None:
        hidden = {
            node: node.meta.pop("example_value")
            for node in self.graph.nodes
            if node.op != "placeholder" and "example_value" in node.meta
        }
        try:
            theirs(self)
        finally:
            for node, value in hidden.items():
                node.meta["example_value"] = value

    OutputGraph.remove_tensorify_specialized_graphargs = (  # type: ignore[method-assign]
        remove_tensorify_specialized_graphargs
    )


def is_static_input(value: Any) -> bool:
    """Returns whether dynamo takes an input for a part of a model, or of an optimizer's state, that does not move.

    It marks parameters, buffers and other tensors of modules, and what users pass to its ``mark_static_address``.
    """
    return getattr(value, "_dynamo_static_input_type", None) is not None


def flatten_inputs(
    module: torch.fx.GraphModule, inputs: Sequence[Any], compiler: Callable[..., Any]
) -> Callable[..., Any]:
    """Returns a module with nested inputs (as compiled autograd passes them) compiled over its flat ones.

    Dynamo's own helper knows the nesting.
    """
    from torch._dynamo.utils import flatten_graph_inputs

    return flatten_graph_inputs(module, inputs, compiler)
